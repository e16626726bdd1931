//! Making, using and destroying objects.

use super::*;

#[test]
fn the_drivers_part_must_say_nothing_that_is_not_understood() {
    let file = File::opened();
    let with = |at: usize, value: u8| {
        let mut driver = plain_cq();
        driver[at] = value;
        file.create_cq(8, &driver)
    };
    assert_eq!(with(0, 1), Err(libc::EINVAL), "comp_mask");
    for reserved in 11..16 {
        assert_eq!(
            with(reserved, 1),
            Err(libc::EINVAL),
            "reserved byte {reserved}"
        );
    }
    assert_eq!(with(4, 24), Err(libc::EINVAL), "entry size");
    assert_eq!(with(8, 2), Err(libc::EINVAL), "rings");
    assert_eq!(
        file.create_cq(8, &plain_cq()[..9]),
        Err(libc::EINVAL),
        "too short"
    );
    let mut longer = plain_cq();
    longer.extend_from_slice(&[0, 0, 0, 0]);
    assert!(file.create_cq(8, &longer).is_ok(), "longer, with zeros");
    longer[19] = 1;
    assert_eq!(
        file.create_cq(8, &longer),
        Err(libc::EINVAL),
        "longer, with more"
    );
    let mut small_with_sgid = plain_cq();
    small_with_sgid[4] = 16;
    assert!(file.create_cq(8, &small_with_sgid).is_ok());
    small_with_sgid[10] = 2;
    assert_eq!(file.create_cq(8, &small_with_sgid), Err(libc::EINVAL));
    assert_eq!(file.create_cq(0, &plain_cq()), Err(libc::EINVAL));
    assert_eq!(file.create_cq(32769, &plain_cq()), Err(libc::EINVAL));
}

#[test]
fn handles_belong_to_one_file_and_one_kind() {
    let process = process(Options::default());
    let (one, other) = (File::of(process), File::of(process));
    one.open();
    other.open();
    let pd = one.alloc_pd();
    assert_eq!(other.ioctl(1, 0, &mut [handle(0, pd)]), Err(libc::ENOENT));
    assert_eq!(
        one.ioctl(6, 0, &mut [handle(0, pd)]),
        Err(libc::EINVAL),
        "a domain is no handle"
    );
    assert_eq!(one.ioctl(1, 0, &mut [handle(0, pd + 1)]), Err(libc::ENOENT));
    assert_eq!(
        one.ioctl(1, 0, &mut [attr(0, 0, 1 << 40)]),
        Err(libc::ENOENT)
    );
    // Domains of two files are two domains on the device.
    let _ = other.alloc_pd();
    assert_eq!(one.count("pd"), 2);
    assert_eq!(one.ioctl(1, 0, &mut [handle(0, pd)]), Ok(()));
    assert_eq!(one.count("pd"), 1);
    drop(other);
    assert_eq!(one.count("pd"), 0);
}

#[test]
fn an_object_that_can_t_be_told_of_does_not_exist() {
    let file = File::opened();
    let mut driver = [0u8; 8];
    let mut attrs = [
        number(2, 3),
        data(0, &0u64),
        attr(1, 4, 64),
        room(0x1001, &mut driver),
    ];
    assert_eq!(file.ioctl(0, 0, &mut attrs), Err(libc::EFAULT));
    assert_eq!(file.count("pd"), 0);
    let driver = plain_cq();
    let mut attrs = [
        handle(0, 0),
        number32(1, 8),
        number(2, 0),
        number32(4, 0),
        attr(6, 4, 64),
        data(0x1000, driver.as_slice()),
    ];
    assert_eq!(file.ioctl(3, 0, &mut attrs), Err(libc::EFAULT));
    assert_eq!(file.count("cq"), 0);
}

#[test]
fn the_lowest_free_handle_is_next() {
    let file = File::opened();
    let handles = [file.alloc_pd(), file.alloc_pd(), file.alloc_pd()];
    assert_eq!(handles, [0, 1, 2]);
    file.ioctl(1, 0, &mut [handle(0, 1)]).unwrap();
    assert_eq!(file.alloc_pd(), 1);
    let (mut count, mut list) = ([0u8; 4], [0u8; 16]);
    file.ioctl(
        0,
        1,
        &mut [number(0, 1), room(1, &mut count), room(2, &mut list)],
    )
    .unwrap();
    assert_eq!(count, 3u32.to_ne_bytes());
    assert_eq!(list[8..12], 2u32.to_ne_bytes());
}

#[test]
fn every_allocation_fails_when_the_fault_plan_says_so_and_is_counted() {
    let verbs = [
        "alloc_pd",
        "reg_mr",
        "create_cq",
        "create_qp",
        "create_ah",
        "create_channel",
    ];
    let plan: Vec<_> = verbs
        .iter()
        .map(|verb| format!("enomem={verb}@2"))
        .collect();
    let file = File::closed(Options {
        faults: plan.join(","),
        ..Options::default()
    });
    file.open();
    for (name, failed) in verbs.iter().zip(1..) {
        // The first and the third are made. What one verb needs of another is there already.
        let made: Vec<_> = (0..3).map(|_| file.allocate(name)).collect();
        assert_eq!(made, [Ok(()), Err(libc::ENOMEM), Ok(())], "{name}");
        assert_eq!(file.counter("allocations_failed"), failed);
    }
    let counts: Vec<_> = ["pd", "mr", "cq", "qp", "ah", "channel"]
        .map(|kind| file.count(kind))
        .into();
    assert_eq!(counts, [2; 6], "what failed is not there");
}

#[test]
fn an_object_in_use_is_busy_until_its_last_user_is_gone() {
    let file = File::opened();
    for verb in ["alloc_pd", "create_cq", "reg_mr", "create_ah", "create_qp"] {
        file.allocate(verb).unwrap();
    }
    // Handles in the order of their making: domain, queue, region, address handle, queue pair.
    let destroy = |object: u16, method: u16, at: u32| {
        let mut room_for_answer = [0u8; 8];
        let mut attrs = vec![handle(0, at), room(1, &mut room_for_answer)];
        attrs.truncate(if matches!(object, 3 | 4) { 2 } else { 1 });
        file.ioctl(object, method, &mut attrs)
    };
    let (pd, cq, mr, ah, qp) = (0, 1, 2, 3, 4);
    let busy_pd = || assert_eq!(destroy(1, 0, pd), Err(libc::EBUSY));
    busy_pd();
    assert_eq!(destroy(7, 1, mr), Ok(()));
    busy_pd();
    assert_eq!(destroy(6, 0, ah), Ok(()));
    busy_pd();
    assert_eq!(destroy(3, 1, cq), Err(libc::EBUSY));
    assert_eq!(destroy(4, 1, qp), Ok(()));
    assert_eq!(destroy(3, 1, cq), Ok(()));
    assert_eq!(destroy(1, 0, pd), Ok(()));
}

#[test]
fn objects_of_another_file_can_t_be_used() {
    let process = process(Options::default());
    let (one, other) = (File::of(process), File::of(process));
    one.open();
    other.open();
    one.allocate("alloc_pd").unwrap();
    one.allocate("create_cq").unwrap();
    // The other file has no object at all, whatever number is named.
    for verb in ["reg_mr", "create_ah", "create_qp"] {
        assert_eq!(other.allocate(verb), Err(libc::ENOENT), "{verb}");
    }
    assert_eq!(other.count("mr") + other.count("ah") + other.count("qp"), 0);
}
