//! Registers and commands.

use std::io::Read;
use std::time::{Duration, Instant};

use super::rig::*;

const P5EN: &str = "addr=127.3.0.1";

#[test]
fn registers_are_read_through_memory_and_a_reset_shows_while_it_lasts() {
    let mut rig = Rig::new(0, P5EN, 64);
    assert_eq!(rig.get(register::STATUS), 1);
    assert!(rig.get(0) >= 1, "the admin interface is at least 0.1");
    assert!((32..=64).contains(&(rig.get(8) >> 8 & 0xff)), "DMA bits");
    rig.alloc_pd();
    rig.set(register::CONTROL, 1);
    // A reset forgets where answers go.
    rig.set_up();
    assert_eq!(rig.get(register::STATUS), 1 | 8);
    rig.set(register::CONTROL, 0);
    assert_eq!(rig.get(register::STATUS), 1);
    assert_eq!(rig.alloc_pd(), 0, "what was made is gone");
}

#[test]
fn both_forms_of_commands_wrap_around_their_queue() {
    for entry in [64, 128] {
        let mut rig = Rig::new(0, P5EN, entry);
        for expected in 0..100 {
            assert_eq!(rig.alloc_pd(), expected, "entries of {entry} B");
        }
    }
}

#[test]
fn a_damaged_command_is_malformed() {
    let mut rig = Rig::new(0, P5EN, 128);
    rig.alloc_pd();
    // The next entry, with a checksum that is wrong.
    let mut entry = vec![0; 128];
    entry[..4].copy_from_slice(&[1, 0, 14, 1]);
    rig.put(0x1000 + 128, &entry);
    rig.set(register::AQ_DOORBELL, 2);
    assert_eq!(rig.bytes(0x3000 + 64, 3)[2], 4);
}

#[test]
fn every_profile_describes_itself() {
    for profile in crate::profile::ProfileName::ALL {
        let mut rig = Rig::new(0, &format!("{P5EN} profile={profile}"), 128);
        let feature = |id: u8| Fields::default().u32(0).u64(0).u8(0).u8(id).u16(0).u64(0);
        let p = profile.profile();
        let device = rig.must(11, 0, feature(1));
        assert_eq!(u32_at(&device, 32) & 1, u32::from(p.rdma_read));
        assert_eq!(u32_at(&device, 32) >> 3 & 1, u32::from(p.rdma_write));
        let queues = rig.must(11, 0, feature(4));
        assert_eq!(u32_at(&queues, 4), p.max_sq_wr);
        assert_eq!(u16_at(&queues, 24), p.sub_cqs_per_cq);
        let (status, _) = rig.admin(11, 0, &feature(7));
        assert_eq!(status == 0, p.cq_notifications, "{profile}: event queues");
        for unknown in [0, 8, 10, 63, 64, 255] {
            assert_eq!(
                rig.admin(11, 0, &feature(unknown)).0,
                3,
                "feature {unknown}"
            );
        }
        for kind in 0..5 {
            let stats = Fields::default().u32(0).u64(0).u8(kind).u8(0).u16(0);
            assert_eq!(rig.admin(13, 0, &stats).0, 0, "statistics {kind}");
        }
    }
}

#[test]
fn what_is_in_use_is_not_destroyed_and_what_is_unknown_is_refused() {
    let mut rig = Rig::new(0, P5EN, 64);
    let (uar, pd) = (rig.alloc_uar(), rig.alloc_pd());
    let (cq, _) = rig.create_cq(uar, FREE, None);
    let (qp, _) = rig.create_qp(uar, pd, cq, FREE + 0x1000);
    let one = |value: u16| Fields::default().u16(value).u16(0);
    assert_eq!(
        rig.admin(15, 0, &one(pd)).0,
        7,
        "a domain with a queue pair"
    );
    assert_eq!(rig.admin(10, 0, &one(cq)).0, 7, "a queue with a queue pair");
    for (opcode, what) in [
        (15, "domain"),
        (10, "queue"),
        (17, "access region"),
        (19, "event queue"),
    ] {
        assert_eq!(rig.admin(opcode, 0, &one(999)).0, 5, "{what}");
    }
    assert_eq!(rig.admin(8, 0, &Fields::default().u32(77)).0, 5);
    assert_eq!(rig.modify_qp(qp.wrapping_add(1), 1, 1, 0), 5);
    assert_eq!(rig.admin(200, 0, &Fields::default()).0, 3);
    assert_eq!(rig.admin(0, 0, &Fields::default()).0, 2);
    assert_eq!(rig.admin(4, 0, &Fields::default().u32(qp.into())).0, 0);
    assert_eq!(rig.admin(10, 0, &one(cq)).0, 0);
    assert_eq!(rig.admin(15, 0, &one(pd)).0, 0);
    let objects = rig.function.device().objects().counts();
    assert_eq!(objects.values().sum::<u64>(), 1, "{objects:?}");
}

#[test]
fn the_fault_plan_fails_allocations() {
    let mut rig = Rig::new(0, &format!("{P5EN} faults=enomem=alloc_pd@1"), 64);
    let done = rig.admin(14, 0, &Fields::default());
    assert_eq!(done.0, 1);
}

#[test]
fn page_lists_of_every_kind_find_the_memory() {
    let mut rig = Rig::new(0, P5EN, 64);
    let pd = rig.alloc_pd();
    let list = FREE;
    // Every second page, so that nothing is contiguous.
    let page = |index: u64| 0x2_0000 + 0x2000 * 64 + index % 300 * 0x2000;
    let entries: Vec<u8> = (0..600u64)
        .flat_map(|index| page(index).to_le_bytes())
        .collect();
    rig.put(list, &entries);
    let length = 599 * 4096 + 100;
    let direct = Rig::mr_fields(
        pd,
        [(600 * 8) | (list << 32), 0, 0, 0],
        0x4000_0000,
        length,
        12,
    );
    assert_eq!(rig.admin(7, 2, &direct).0, 0);
    // The same through two pages of entries that one chunk names.
    let chunk = FREE + 0x8000;
    let mut pointers = Vec::new();
    for index in 0..2u64 {
        let copy = FREE + 0x10000 + index * 0x3000;
        let from = index as usize * 4096;
        rig.put(copy, &entries[from..entries.len().min(from + 4096)]);
        pointers.extend(copy.to_le_bytes());
    }
    pointers.extend([0; 12]);
    rig.put(chunk, &pointers);
    let chained =
        |bytes: u64| Rig::mr_fields(pd, [bytes | chunk << 32, 0, 0, 0], 0x4000_0000, length, 12);
    assert_eq!(rig.admin(7, 6, &chained(28)).0, 0);
    assert_eq!(
        rig.admin(7, 6, &chained(20)).0,
        5,
        "a chunk that is too short"
    );
    // Pages that are not the guest's, not aligned, or beyond the end.
    for bad in [super::rig::MEMORY, 0x1001, u64::MAX - 0xfff, 1 << 47] {
        let fields = Rig::mr_fields(pd, [0x1000, bad, 0, 0], 0, 8192, 12);
        assert_eq!(rig.admin(7, 0, &fields).0, 5, "{bad:#x}");
    }
    for (iova, length, shift) in [
        (0, 0, 12),
        (u64::MAX, 2, 12),
        (0, 4096, 63),
        (0, 1 << 40, 12),
    ] {
        let fields = Rig::mr_fields(pd, [0x1000, 0, 0, 0], iova, length, shift);
        assert_ne!(
            rig.admin(7, 0, &fields).0,
            0,
            "{length:#x} B at {iova:#x}, shift {shift}"
        );
    }
    // A page larger than the memory, of which a part is used.
    let fields = Rig::mr_fields(pd, [0, 0, 0, 0], 0x1_0000_2000, 0x3000, 30);
    assert_eq!(rig.admin(7, 0, &fields).0, 0);
}

#[test]
fn keep_alives_come_once_they_are_wanted_and_stop_where_nobody_reads() {
    let mut rig = Rig::new(0, P5EN, 64);
    let mut vectors = rig.interrupts();
    let start = Instant::now();
    let tick = |rig: &mut Rig, seconds| {
        rig.function.tick(start + Duration::from_secs(seconds));
    };
    tick(&mut rig, 5);
    assert_eq!(rig.bytes(0x4000, 8), [0; 8], "nobody has asked");
    let wanted = Fields::default()
        .u32(0)
        .u64(0)
        .u8(0)
        .u8(2)
        .u16(0)
        .u32(0)
        .u32(0x10);
    assert_eq!(rig.admin(12, 0, &wanted).0, 0);
    assert!(vectors[0].read(&mut [0; 8]).is_ok());
    for seconds in 6..60 {
        tick(&mut rig, seconds);
    }
    for index in 0..16 {
        let event = rig.bytes(0x4000 + index * 64, 5);
        assert_eq!((u16_at(&event, 0), event[4]), (4, 1), "event {index}");
    }
    assert!(vectors[0].read(&mut [0; 8]).is_ok());
    // Once the driver has read, there is room.
    rig.set(register::AENQ_DOORBELL, 16);
    tick(&mut rig, 100);
    assert_eq!(rig.bytes(0x4004, 1), [0], "the second round's phase");
    let unknown = Fields::default()
        .u32(0)
        .u64(0)
        .u8(0)
        .u8(2)
        .u16(0)
        .u32(0)
        .u32(1);
    assert_eq!(rig.admin(12, 0, &unknown).0, 5);
}

#[test]
fn memory_that_is_taken_away_takes_with_it_what_was_in_it() {
    let mut rig = Rig::new(0, P5EN, 64);
    let file = crate::pci::bars::shared_file(c"more", 0x10000).unwrap();
    let more = 1 << 32;
    rig.function
        .map(more, 0x10000, Some(&file), 0, true)
        .unwrap();
    let (uar, pd) = (rig.alloc_uar(), rig.alloc_pd());
    let (kept, _) = rig.create_cq(uar, FREE, None);
    let (lost, _) = rig.create_cq(uar, more, None);
    rig.create_qp(uar, pd, kept, FREE + 0x1000);
    rig.create_qp(uar, pd, kept, more + 0x4000);
    rig.create_qp(uar, pd, lost, FREE + 0x2000);
    rig.reg_mr(pd, &[0x1000], 0x1000, 4096);
    rig.reg_mr(pd, &[0x1000, more + 0x8000], 0x1000, 8192);
    assert!(!rig.function.unmap(Some((more, 0x8000))), "a part of it");
    assert!(rig.function.unmap(Some((more, 0x10000))));
    let objects = rig.function.device().objects().counts();
    assert_eq!(
        (objects["cq"], objects["qp"], objects["mr"]),
        (1, 1, 1),
        "{objects:?}"
    );
}
