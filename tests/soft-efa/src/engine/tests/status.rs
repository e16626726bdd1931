//! Every vendor status arises from its cause, and leaves the queue pair as it was.

use super::rig::*;
use crate::engine::{Access, QpChange, QpState, RNR_FOREVER};
use crate::profile::ProfileName;

const SHORT: &str = "timeout=300ms";

fn status(qp: &mut Qp, entry: Entry) -> u8 {
    qp.post(&[entry]);
    qp.send_cq.wait()[2]
}

/// A write that works, to show that a queue pair still does.
fn works(p: &mut Pair) {
    let source = pattern(100, 9);
    let target = vec![0u8; 100];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = Entry::rdma(2, 1000, p.b(), (&source, lkey), (target.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, entry), 0);
    assert!(source == target);
    p.a.engine.dereg_mr(lkey);
    p.b.engine.dereg_mr(rkey);
}

#[test]
fn local_errors_never_leave_the_device() {
    let mut p = Pair::new(21);
    let bytes = pattern(10_000, 1);
    let lkey = p.a.register(&bytes, Access(0));
    let foreign = p.a.register_in(PD + 1, &bytes, ALL);
    let rkey = p.b.register(&bytes, Access(0));
    let to = p.b();
    let remote = (bytes.as_ptr(), rkey);

    let mut unknown = Entry::new(5, 1, to.0, to.1);
    unknown.0[6] = 1;
    assert_eq!(status(&mut p.qa, unknown), 3);
    let handle = Entry::rdma(2, 1, (to.0 + 7, to.1), (&bytes, lkey), remote);
    assert_eq!(status(&mut p.qa, handle), 4);
    let key = Entry::rdma(2, 1, to, (&bytes, lkey ^ 1), remote);
    assert_eq!(status(&mut p.qa, key), 5);
    let domain = Entry::rdma(2, 1, to, (&bytes, foreign), remote);
    assert_eq!(status(&mut p.qa, domain), 5);
    let read_only = Entry::rdma(1, 1, to, (&bytes, lkey), remote);
    assert_eq!(status(&mut p.qa, read_only), 5);
    let mut range = Entry::rdma(2, 1, to, (&bytes, lkey), remote);
    range.0[32..36].copy_from_slice(&10_001u32.to_le_bytes());
    range.0[48..52].copy_from_slice(&10_001u32.to_le_bytes());
    assert_eq!(status(&mut p.qa, range), 5);
    let long = Entry::send(1, to.0, to.1, &[(&bytes, lkey)]);
    assert_eq!(status(&mut p.qa, long), 6, "longer than the MTU");
    let mut huge = Entry::rdma(2, 1, to, (&bytes, lkey), remote);
    huge.0[32..36].copy_from_slice(&(1u32 << 31).to_le_bytes());
    huge.0[48..52].copy_from_slice(&(1u32 << 31).to_le_bytes());
    assert_eq!(status(&mut p.qa, huge), 6, "longer than max_rdma_size");
    let mut damaged = Entry::send(1, to.0, to.1, &[(&bytes[..8], lkey)]);
    damaged.0[3] &= !8;
    assert_eq!(status(&mut p.qa, damaged), 2);
    assert_eq!(p.b.counter("packets_received"), 0);
    works(&mut p);
}

#[test]
fn the_responder_checks_key_range_and_access() {
    let mut p = Pair::new(23);
    let bytes = pattern(4000, 1);
    let target = vec![0u8; 4000];
    let lkey = p.a.register(&bytes, ALL);
    let rkey =
        p.b.register(&target, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let foreign = p.b.register_in(PD + 1, &target, ALL);
    let to = p.b();
    let write = |at: *const u8, key| Entry::rdma(2, 1, to, (&bytes, lkey), (at, key));
    let at = target.as_ptr();
    assert_eq!(status(&mut p.qa, write(at, rkey)), 7, "access");
    assert_eq!(status(&mut p.qa, write(at, rkey ^ 1)), 7, "key");
    assert_eq!(status(&mut p.qa, write(at, foreign)), 7, "domain");
    let read = Entry::rdma(1, 1, to, (&bytes, lkey), (at.wrapping_add(1), rkey));
    assert_eq!(status(&mut p.qa, read), 7, "range");
    assert!(target.iter().all(|b| *b == 0));
    works(&mut p);
}

#[test]
fn rdma_needs_a_handle_for_the_requester_and_a_send_does_not() {
    let mut p = Pair::new(25);
    let bytes = pattern(64, 1);
    let target = vec![0u8; 64];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    p.b.engine.destroy_ah(PD, p.to_a);
    for op in [1, 2] {
        let entry = Entry::rdma(op, 1, p.b(), (&bytes, lkey), (target.as_ptr(), rkey));
        assert_eq!(status(&mut p.qa, entry), 14);
    }
    p.qb.post_recv(1, &[(&target, rkey)]);
    let entry = Entry::send(1, p.to_b, p.qb.number, &[(&bytes, lkey)]);
    assert_eq!(status(&mut p.qa, entry), 0);
}

#[test]
fn without_a_receive_the_retries_run_out() {
    let mut p = Pair::new(27);
    let change = QpChange {
        rnr_retry: Some(2),
        ..QpChange::default()
    };
    p.a.engine.modify_qp(p.qa.number, change).unwrap();
    let entry = Entry::inline(1, p.to_b, p.qb.number, b"x");
    assert_eq!(status(&mut p.qa, entry), 10);
    assert_eq!(p.a.counter("rnr_received"), 3);
    assert_eq!(p.b.counter("rnr_sent"), 3);
    works(&mut p);
}

#[test]
fn a_late_receive_is_found_by_the_retries() {
    // Nobody has set a count, so there is no end to them.
    let mut p = Pair::new(29);
    assert_eq!(
        p.a.engine.query_qp(p.qa.number).unwrap().rnr_retry,
        RNR_FOREVER
    );
    let target = vec![0u8; 16];
    let rkey = p.b.register(&target, ALL);
    p.qa.post(&[Entry::inline(1, p.to_b, p.qb.number, b"patience")]);
    until(|| p.a.counter("rnr_received") >= 3);
    p.qb.post_recv(1, &[(&target, rkey)]);
    assert_eq!(p.qa.send_cq.wait()[2], 0);
    assert_eq!(p.qb.recv_cq.wait()[2], 0);
    assert_eq!(&target[..8], b"patience");
}

#[test]
fn a_receive_that_is_too_short_is_told_to_both_sides() {
    let mut p = Pair::new(31);
    let bytes = pattern(100, 1);
    let target = vec![0u8; 50];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    p.qb.post_recv(1, &[(&target, rkey)]);
    let entry = Entry::send(1, p.to_b, p.qb.number, &[(&bytes, lkey)]);
    assert_eq!(status(&mut p.qa, entry), 11);
    assert_eq!(p.qb.recv_cq.wait()[2], 6);
    assert!(target.iter().all(|b| *b == 0));
    works(&mut p);
}

#[test]
fn a_receive_in_unregistered_memory_is_a_bad_response() {
    let mut p = Pair::new(33);
    let bytes = pattern(100, 1);
    let target = vec![0u8; 200];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    p.qb.post_recv(1, &[(&target, rkey ^ 1)]);
    let entry = Entry::send(1, p.to_b, p.qb.number, &[(&bytes, lkey)]);
    assert_eq!(status(&mut p.qa, entry), 12);
    assert_eq!(p.qb.recv_cq.wait()[2], 5);
    works(&mut p);
}

#[test]
fn a_queue_pair_that_is_gone_or_in_error_is_no_destination() {
    let mut p = Pair::new(35);
    works(&mut p);
    let entry = || Entry::inline(1, 0, 0, b"x");
    let to = |mut e: Entry, (ah, qpn): (u16, u16)| {
        e.0[4..6].copy_from_slice(&qpn.to_le_bytes());
        e.0[12..14].copy_from_slice(&ah.to_le_bytes());
        e
    };
    let b = p.b();
    p.qb.modify(&p.b, QpState::Err);
    assert_eq!(status(&mut p.qa, to(entry(), b)), 9);
    p.b.engine.destroy_qp(p.qb.number);
    assert_eq!(status(&mut p.qa, to(entry(), b)), 9);
    let fresh = Qp::unconnected(&p.b, QpOptions::default());
    assert_eq!(
        status(&mut p.qa, to(entry(), (p.to_b, fresh.number))),
        9,
        "not yet RTR"
    );
    p.b.engine.destroy_qp(fresh.number);
}

#[test]
fn a_message_cut_short_by_the_peer_is_reset() {
    let mut p = Pair::with(37, SHORT, 1, QpOptions::default());
    works(&mut p);
    let bytes = vec![1u8; 8 << 20];
    let target = vec![0u8; 8 << 20];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    // So slow a way that the message is in its middle.
    p.a.engine
        .set_faults("timeout=3s,delay=40ms".parse().unwrap());
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (target.as_ptr(), rkey));
    p.qa.post(&[entry]);
    let before = p.b.counter("packets_received");
    until(|| p.b.counter("packets_received") > before);
    p.qb.modify(&p.b, QpState::Err);
    let done = p.qa.send_cq.wait();
    assert!([8, 9].contains(&done[2]), "{}", done[2]);
}

#[test]
fn a_new_owner_of_a_number_is_not_the_old_one() {
    let mut p = Pair::new(39);
    works(&mut p);
    // RESET ends the incarnation as destroying and making would, under the same number.
    p.qb.modify(&p.b, QpState::Reset);
    p.qb.connect(&p.b);
    let bytes = pattern(64, 1);
    let target = vec![0u8; 64];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (target.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, entry), 8);
    assert!(target.iter().all(|b| *b == 0));
    assert_eq!(p.a.counter("peers_reset"), 1);
    works(&mut p);
}

#[test]
fn a_wrong_queue_key_is_dropped_in_silence() {
    let mut p = Pair::with(41, SHORT, 1, QpOptions::default());
    let entry = Entry::inline(1, p.to_b, p.qb.number, b"x").qkey(0x11);
    assert_eq!(status(&mut p.qa, entry), 13);
    assert!(p.b.counter("packets_wrong_qkey") > 0);
    works(&mut p);
}

#[test]
fn silence_is_unresponsive_after_an_answer_and_unreachable_before() {
    let mut p = Pair::with(43, SHORT, 1, QpOptions::default());
    p.b.engine.set_paused(true);
    let entry = Entry::inline(1, p.to_b, p.qb.number, b"x");
    assert_eq!(status(&mut p.qa, entry.clone()), 15);
    p.b.engine.set_paused(false);
    works(&mut p);
    p.b.engine.set_paused(true);
    assert_eq!(status(&mut p.qa, entry), 13);
    p.b.engine.set_paused(false);
    works(&mut p);
}

#[test]
fn both_sides_need_unsolicited_receives() {
    let mut p = Pair::new(45);
    let options = QpOptions {
        unsolicited: true,
        ..QpOptions::default()
    };
    let other = Qp::unconnected(&p.b, options);
    other.connect(&p.b);
    let bytes = pattern(64, 1);
    let target = vec![0u8; 64];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let to = (p.to_b, other.number);
    let entry = Entry::rdma(2, 1, to, (&bytes, lkey), (target.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, entry.clone()), 0);
    assert_eq!(status(&mut p.qa, entry.imm(1)), 18);
    p.b.engine.destroy_qp(other.number);
}

#[test]
fn what_is_outstanding_is_flushed_on_error_and_destroy() {
    for (net, destroy) in [(47, false), (49, true)] {
        let mut p = Pair::new(net);
        p.b.engine.set_paused(true);
        let target = vec![0u8; 64];
        let key = p.a.register(&target, ALL);
        p.qa.post_recv(11, &[(&target, key)]);
        p.qa.post(&[
            Entry::inline(1, p.to_b, p.qb.number, b"x"),
            Entry::inline(1, p.to_b, p.qb.number, b"x"),
            Entry::inline(1, p.to_b, p.qb.number, b"x"),
        ]);
        until(|| p.a.counter("requests_posted") == 3);
        p.qa.post(&[Entry::inline(2, p.to_b, p.qb.number, b"y")]);
        if destroy {
            p.a.engine.destroy_qp(p.qa.number);
        } else {
            p.qa.modify(&p.a, QpState::Err);
        }
        let sends: Vec<_> = std::iter::from_fn(|| p.qa.send_cq.poll()).collect();
        assert_eq!(sends.len(), 4, "all at once");
        assert!(sends.iter().all(|done| done[2] == 1));
        let receive = p.qa.recv_cq.poll().unwrap();
        assert_eq!((receive[2], req_id(&receive)), (1, 11));
        if !destroy {
            p.qa.post(&[Entry::inline(3, p.to_b, p.qb.number, b"z")]);
            assert_eq!(p.qa.send_cq.wait()[2], 1, "posted in the error state");
        }
    }
}

#[test]
fn requests_of_a_destroyed_handle_are_flushed() {
    let mut p = Pair::new(51);
    p.b.engine.set_paused(true);
    p.qa.post(&[Entry::inline(1, p.to_b, p.qb.number, b"x")]);
    until(|| p.a.counter("requests_posted") == 1);
    p.a.engine.destroy_ah(PD, p.to_b);
    assert_eq!(p.qa.send_cq.wait()[2], 1);
}

#[test]
fn capabilities_are_those_of_the_profile() {
    let a = Device::with(53, ProfileName::P4d, SHORT, 1);
    let mut qa = Qp::new(&a);
    let b = Device::with(54, ProfileName::P4d, SHORT, 1);
    let qb = Qp::new(&b);
    let (to_b, to_a) = (a.handle(&b), b.handle(&a));
    let bytes = pattern(64, 1);
    let lkey = a.register(&bytes, ALL);
    let rkey = b.register(&bytes, ALL);
    let entry = |op, to| Entry::rdma(op, 1, to, (&bytes, lkey), (bytes.as_ptr(), rkey));
    assert_eq!(status(&mut qa, entry(2, (to_b, qb.number))), 3);
    assert_eq!(status(&mut qa, entry(1, (to_b, qb.number))), 0);
    let _ = to_a;
    // What such a device sends to itself is dropped.
    let own = a.handle(&a);
    let number = qa.number;
    assert_eq!(status(&mut qa, entry(1, (own, number))), 15);
    a.engine.destroy_qp(qa.number);
    b.engine.destroy_qp(qb.number);
}

#[test]
fn a_queue_pair_reaches_itself_where_the_device_loops_back() {
    let mut p = Pair::new(55);
    let own = p.a.handle(&p.a);
    let source = pattern(200_000, 1);
    let target = vec![0u8; 200_000];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.a.register(&target, ALL);
    let to = (own, p.qa.number);
    let entry = Entry::rdma(2, 1, to, (&source, lkey), (target.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, entry), 0);
    assert!(source == target);
}

#[test]
fn memory_that_vanished_is_an_error_and_not_a_crash() {
    memory_vanishes(Pair::new(57));
    memory_vanishes(Pair::with(63, "socket", 1, QpOptions::default()));
}

fn memory_vanishes(mut p: Pair) {
    let len = 1 << 20;
    // SAFETY: a new private mapping.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    // SAFETY: the mapping is `len` bytes long; it is only named here, not read.
    let vanishing = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    let bytes = vec![0u8; len];
    let lkey = p.a.register(vanishing, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let back = p.b.register(vanishing, ALL);
    let own = p.a.register(&bytes, ALL);
    // SAFETY: nothing reads the mapping but by calls that fail.
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
    let to = p.b();
    let from_it = Entry::rdma(2, 1, to, (vanishing, lkey), (bytes.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, from_it), 5);
    let into_it = Entry::rdma(1, 1, to, (vanishing, lkey), (bytes.as_ptr(), rkey));
    assert_eq!(status(&mut p.qa, into_it), 5);
    let write_there = Entry::rdma(2, 1, to, (&bytes, own), (vanishing.as_ptr(), back));
    assert_eq!(status(&mut p.qa, write_there), 7);
    let read_there = Entry::rdma(1, 1, to, (&bytes, own), (vanishing.as_ptr(), back));
    assert_eq!(status(&mut p.qa, read_there), 7);
    works(&mut p);
}

#[test]
fn zero_bytes_are_a_message_too() {
    let mut p = Pair::new(59);
    let bytes = pattern(8, 1);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let to = p.b();
    for op in [1, 2] {
        let entry = Entry::rdma(op, 1, to, (&bytes[..0], lkey), (bytes.as_ptr(), rkey));
        assert_eq!(status(&mut p.qa, entry), 0);
        let entry = Entry::rdma(op, 1, to, (&bytes[..0], lkey), (bytes.as_ptr(), rkey ^ 1));
        assert_eq!(status(&mut p.qa, entry), 7, "the key must be valid");
        let entry = Entry::rdma(op, 1, to, (&bytes[..0], lkey ^ 1), (bytes.as_ptr(), rkey));
        assert_eq!(status(&mut p.qa, entry), 5, "the key must be valid");
    }
    p.qb.post_recv(4, &[(&bytes, rkey)]);
    assert_eq!(status(&mut p.qa, Entry::send(1, to.0, to.1, &[])), 0);
    let got = p.qb.recv_cq.wait();
    assert_eq!((got[2], got[6], got[7]), (0, 0, 0));
}

#[test]
fn a_peer_that_fell_silent_fails_all_requests_at_once() {
    let mut p = Pair::with(61, SHORT, 1, QpOptions::default());
    works(&mut p);
    p.b.engine.set_paused(true);
    let bytes = vec![0u8; 4 << 20];
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let start = std::time::Instant::now();
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
    p.qa.post(&vec![entry; 20]);
    for _ in 0..20 {
        assert_eq!(p.qa.send_cq.wait()[2], 13);
    }
    let took = start.elapsed().as_millis();
    assert!(took < 5000, "{took} ms");
}
