use super::rig::*;
use crate::engine::QpKind;

#[test]
fn a_write_lands_and_completes() {
    let mut p = Pair::new(1);
    let source = pattern(300_000, 1);
    let target = vec![0u8; 300_000];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = Entry::rdma(2, 7, p.b(), (&source, lkey), (target.as_ptr(), rkey));
    p.qa.post(&[entry]);
    let done = p.qa.send_cq.wait();
    assert_eq!(done[2], 0, "status");
    assert_eq!(req_id(&done), 7);
    assert_eq!(done[3] >> 1 & 3, 1, "send queue");
    assert_eq!(done[3] >> 4 & 7, 2, "write");
    assert!(source == target);
}

#[test]
fn large_writes_take_the_short_way_unless_the_plan_forbids_it() {
    for (net, plan) in [(17, ""), (19, "socket")] {
        let mut p = Pair::with(net, plan, 1, QpOptions::default());
        let source = pattern(3_000_000, 1);
        let target = vec![0u8; 3_000_000];
        let lkey = p.a.register(&source, ALL);
        let rkey = p.b.register(&target, ALL);
        let entry = Entry::rdma(2, 7, p.b(), (&source, lkey), (target.as_ptr(), rkey));
        p.qa.post(&[entry]);
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        assert!(source == target);
        assert_eq!(p.b.counter("packets_near") > 0, plan.is_empty());
        assert_eq!(p.b.counter("bytes_received"), 3_000_000);
    }
}

#[test]
fn a_read_fetches_and_completes() {
    let mut p = Pair::new(3);
    let source = pattern(300_000, 2);
    let target = vec![0u8; 300_000];
    let lkey = p.a.register(&target, ALL);
    let rkey = p.b.register(&source, ALL);
    let entry = Entry::rdma(1, 9, p.b(), (&target, lkey), (source.as_ptr(), rkey));
    p.qa.post(&[entry]);
    let done = p.qa.send_cq.wait();
    assert_eq!((done[2], req_id(&done)), (0, 9));
    assert_eq!(done[3] >> 4 & 7, 1, "read");
    assert!(source == target);
}

#[test]
fn a_send_with_two_buffers_meets_a_receive_with_two() {
    let mut p = Pair::new(5);
    let source = pattern(3000, 3);
    let target = vec![0u8; 4000];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    p.qb.post_recv(5, &[(&target[..1000], rkey), (&target[1000..], rkey)]);
    let buffers = [(&source[..700], lkey), (&source[700..], lkey)];
    let entry = Entry::send(1, p.to_b, p.qb.number, &buffers).imm(0xdead_beef);
    p.qa.post(&[entry]);
    let sent = p.qa.send_cq.wait();
    assert_eq!(sent[2], 0);
    let got = p.qb.recv_cq.wait();
    assert_eq!((got[2], req_id(&got)), (0, 5));
    assert_eq!(got[3] >> 1 & 3, 2, "receive queue");
    assert_eq!(got[3] >> 3 & 1, 1, "has immediate data");
    assert_eq!(u16::from_le_bytes([got[6], got[7]]), 3000);
    assert_eq!(u16::from_le_bytes([got[8], got[9]]), p.to_a);
    assert_eq!(u16::from_le_bytes([got[10], got[11]]), p.qa.number);
    assert_eq!(got[12..16], 0xdead_beef_u32.to_le_bytes());
    assert_eq!(source[..], target[..3000]);
}

#[test]
fn an_unknown_sender_is_told_by_its_gid() {
    let mut p = Pair::new(7);
    let target = vec![0u8; 64];
    let rkey = p.b.register(&target, ALL);
    p.b.engine.destroy_ah(PD, p.to_a);
    p.qb.post_recv(1, &[(&target, rkey)]);
    let entry = Entry::inline(2, p.to_b, p.qb.number, b"hello");
    p.qa.post(&[entry]);
    let got = p.qb.recv_cq.wait();
    assert_eq!(u16::from_le_bytes([got[8], got[9]]), 0xffff);
    assert_eq!(got[16..32], crate::gid::gid_of(p.a.ip));
    assert_eq!(&target[..5], b"hello");
}

#[test]
fn writes_with_immediate_data_come_solicited_or_not() {
    for (net, unsolicited) in [(9, false), (11, true)] {
        let options = QpOptions {
            unsolicited,
            ..QpOptions::default()
        };
        let mut p = Pair::with(net, "", 1, options);
        let source = pattern(100_000, 4);
        let target = vec![0u8; 100_000];
        let lkey = p.a.register(&source, ALL);
        let rkey = p.b.register(&target, ALL);
        if !unsolicited {
            p.qb.post_recv(77, &[(&target[..0], rkey)]);
        }
        let entry = Entry::rdma(2, 7, p.b(), (&source, lkey), (target.as_ptr(), rkey)).imm(42);
        p.qa.post(&[entry]);
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        let got = p.qb.recv_cq.wait();
        assert_eq!(got[2], 0);
        assert_eq!(got[3] >> 7 != 0, unsolicited);
        assert_eq!(req_id(&got), if unsolicited { 0 } else { 77 });
        assert_eq!(got[12..16], 42u32.to_le_bytes());
        let len = u32::from(u16::from_le_bytes([got[6], got[7]]))
            | u32::from(u16::from_le_bytes([got[16], got[17]])) << 16;
        assert_eq!(len, 100_000);
        assert!(source == target);
    }
}

#[test]
fn many_requests_complete_in_another_order_and_land_right() {
    let mut p = Pair::new(13);
    let n = 200;
    let len = 1000;
    let source = pattern(n * len, 5);
    let target = vec![0u8; n * len];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let entries: Vec<_> = (0..n)
        .map(|i| {
            let local = (&source[i * len..(i + 1) * len], lkey);
            Entry::rdma(
                2,
                i as u16,
                p.b(),
                local,
                (target[i * len..].as_ptr(), rkey),
            )
        })
        .collect();
    p.qa.post(&entries);
    let order: Vec<_> = (0..n)
        .map(|_| {
            let done = p.qa.send_cq.wait();
            assert_eq!(done[2], 0);
            req_id(&done)
        })
        .collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..n as u16).collect::<Vec<_>>());
    assert_ne!(order, sorted, "completions came in the posted order");
    assert!(p.a.counter("completions_out_of_order") > 0);
    assert!(p.b.counter("packets_out_of_order") > 0);
    assert!(source == target);
}

#[test]
fn a_datagram_comes_with_its_prefix() {
    let options = QpOptions {
        kind: QpKind::Ud,
        ..QpOptions::default()
    };
    let mut p = Pair::with(15, "", 1, options);
    let source = pattern(500, 6);
    let target = vec![0u8; 600];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    p.qb.post_recv(3, &[(&target, rkey)]);
    // The receive must be there before the datagram.
    until(|| p.b.counter("receives_posted") > 0);
    let entry = Entry::send(1, p.to_b, p.qb.number, &[(&source, lkey)]);
    p.qa.post(&[entry]);
    assert_eq!(p.qa.send_cq.wait()[2], 0);
    let got = p.qb.recv_cq.wait();
    assert_eq!((got[2], req_id(&got)), (0, 3));
    assert_eq!(u16::from_le_bytes([got[6], got[7]]), 540);
    assert_eq!(target[8..24], crate::gid::gid_of(p.a.ip));
    assert_eq!(target[24..40], crate::gid::gid_of(p.b.ip));
    assert_eq!(source[..], target[40..540]);
}

/// Bytes of memory that can be had, as the system says.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    number.unwrap_or(u64::MAX / 1024) * 1024
}

#[test]
fn a_gibibyte_goes_in_one_request() {
    let len = 1 << 30;
    if available() < 3 << 30 {
        let reason = "less than 3 GiB of memory are available";
        if let Some(path) = std::env::var_os("EFA_TEST_SKIPS") {
            let line = format!("a_gibibyte_goes_in_one_request\t{reason}\n");
            std::fs::write(path, line).unwrap();
        }
        return;
    }
    let mut p = Pair::new(180);
    // Hardly written, so nearly all of it is the zero page.
    let mut source = vec![0u8; len];
    for at in [0, 12_345_678, len / 2, len - 1] {
        source[at] = 0x5a;
    }
    let target = vec![1u8; len];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = Entry::rdma(2, 1, p.b(), (&source, lkey), (target.as_ptr(), rkey));
    p.qa.post(&[entry]);
    assert_eq!(p.qa.send_cq.wait()[2], 0, "write");
    assert!(source == target);
    // And back, over what is no zero page any more.
    let entry = Entry::rdma(1, 2, p.b(), (&source, lkey), (target.as_ptr(), rkey));
    p.qa.post(&[entry]);
    assert_eq!(
        p.qa.send_cq.wait_for(std::time::Duration::from_secs(120))[2],
        0,
        "read"
    );
    assert!(source == target);
}
