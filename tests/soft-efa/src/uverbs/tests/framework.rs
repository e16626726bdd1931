//! What the framework of the ioctls checks before a method runs.

use super::*;

fn header(object_id: u16, method_id: u16, attrs: usize) -> IoctlHeader {
    IoctlHeader {
        length: (24 + 16 * attrs) as u16,
        object_id,
        method_id,
        num_attrs: attrs as u16,
        driver_id: DRIVER_EFA,
        ..IoctlHeader::default()
    }
}

#[test]
fn headers_are_checked_in_the_kernels_order() {
    let file = File::opened();
    let fine = header(0, 1, 0);
    let cases = [
        (IoctlHeader { length: 23, ..fine }, libc::EINVAL),
        (IoctlHeader { length: 40, ..fine }, libc::EINVAL),
        (
            IoctlHeader {
                length: 24 + 16 * 300,
                num_attrs: 300,
                ..fine
            },
            libc::EINVAL,
        ),
        (
            IoctlHeader {
                reserved1: 1,
                ..fine
            },
            libc::EPROTONOSUPPORT,
        ),
        (
            IoctlHeader {
                reserved2: 1,
                ..fine
            },
            libc::EPROTONOSUPPORT,
        ),
        (
            IoctlHeader {
                driver_id: 1,
                ..fine
            },
            libc::EINVAL,
        ),
        (
            IoctlHeader {
                object_id: 5,
                ..fine
            },
            libc::EPROTONOSUPPORT,
        ),
        (
            IoctlHeader {
                method_id: 99,
                ..fine
            },
            libc::EPROTONOSUPPORT,
        ),
        // Known, and its mandatory attributes are missing.
        (fine, libc::EINVAL),
    ];
    for (header, errno) in cases {
        assert_eq!(file.ioctl_with(header, &mut []), Err(errno), "{header:?}");
    }
}

#[test]
fn attributes_are_checked_against_their_specification() {
    let file = File::opened();
    let mut entry = [0u8; 32];
    let query = |attrs: &mut [IoctlAttr]| file.ioctl(0, 6, attrs);
    let mut fine = [
        number(0, 1),
        number(1, 0),
        number32(2, 0),
        room(3, &mut entry),
    ];
    assert_eq!(query(&mut fine), Ok(()));
    assert_eq!(fine[3].flags & 2, 2, "an answer is marked as written");
    assert_eq!(entry[..2], [0xfe, 0x80]);

    let mut again = [fine[0], fine[1], fine[3], fine[0]];
    assert_eq!(
        query(&mut again),
        Err(libc::EINVAL),
        "twice the same attribute"
    );
    let mut unknown = fine.to_vec();
    unknown.push(number(77, 1));
    assert_eq!(
        query(&mut unknown),
        Err(libc::EPROTONOSUPPORT),
        "unknown and mandatory"
    );
    unknown[4].flags = 0;
    assert_eq!(query(&mut unknown), Ok(()), "unknown and optional");
    let mut reserved = fine;
    reserved[0].attr_data = 1;
    assert_eq!(query(&mut reserved), Err(libc::EINVAL));
    let mut short = fine;
    short[3].len = 31;
    assert_eq!(query(&mut short), Err(libc::EINVAL));
    let mut flags = fine;
    flags[2] = number32(2, 1);
    assert_eq!(query(&mut flags), Err(libc::EINVAL));
    let mut bad_pointer = fine;
    bad_pointer[3].data = 64;
    assert_eq!(query(&mut bad_pointer), Err(libc::EFAULT));
}

#[test]
fn the_probe_of_libibverbs_finds_wrapped_commands() {
    let file = File::closed(Options::default());
    // QUERY_DEVICE without room for anything: the kernel has the method, if it says ENOSPC.
    assert_eq!(file.ioctl(0, 0, &mut [number(2, 1)]), Err(libc::ENOSPC));
    // Commands that EFA doesn't have, and numbers that nobody has.
    for command in [10, 16, 19, 21, 32, 40, 200, 0x8000_0000 + 50] {
        assert_eq!(
            file.ioctl(0, 0, &mut [number(2, command)]),
            Err(libc::EOPNOTSUPP),
            "{command}"
        );
    }
    assert_eq!(file.ioctl(0, 0, &mut [number(2, 0x100)]), Err(libc::EINVAL));
}

#[test]
fn nothing_works_before_the_context_and_nothing_makes_two() {
    let file = File::closed(Options::default());
    let mut resp = [0u8; 48];
    let mut query = [number(0, 1), room(1, &mut resp)];
    assert_eq!(file.ioctl(0, 2, &mut query), Err(libc::EINVAL));
    assert_eq!(file.create_cq(8, &plain_cq()), Err(libc::EINVAL));
    file.open();
    assert_eq!(file.ioctl(0, 2, &mut query), Ok(()));
    assert_eq!(
        file.ioctl(0, 3, &mut [data(0x1000, &3u64)]),
        Err(libc::EINVAL)
    );
    assert_eq!(file.count("context"), 1);
}

#[test]
fn a_libefa_that_does_not_know_batches_is_refused() {
    let file = File::closed(Options::default());
    assert_eq!(
        file.ioctl(0, 3, &mut [data(0x1000, &0u64)]),
        Err(libc::EOPNOTSUPP)
    );
    assert_eq!(file.ioctl(0, 3, &mut []), Err(libc::EOPNOTSUPP));
    assert_eq!(file.count("context"), 0);
}
