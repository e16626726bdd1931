//! Each item of a fault plan does what it says, and the counters show it.

use std::time::{Duration, Instant};

use super::rig::*;

/// A write of `bytes` to `target`, by the number that its completion shall carry.
fn write(p: &Pair, id: u16, bytes: (&[u8], u32), target: (&[u8], u32)) -> Entry {
    Entry::rdma(2, id, p.b(), bytes, (target.0.as_ptr(), target.1))
}

fn plan(device: &Device, text: &str) {
    device.engine.set_faults(text.parse().unwrap());
}

#[test]
fn every_status_comes_on_demand_and_its_request_is_not_carried_out() {
    let codes: Vec<u8> = (1..=15).chain([18]).collect();
    let items: Vec<String> = codes
        .iter()
        .zip(1..)
        .map(|(code, n)| format!("status={code}@{n}"))
        .collect();
    let mut p = Pair::with(121, &items.join(","), 1, QpOptions::default());
    let (bytes, target) = (pattern(16, 1), vec![0u8; 16]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    for (code, id) in codes.iter().zip(1..) {
        let entry = write(&p, id, (&bytes, lkey), (&target, rkey));
        p.qa.post(&[entry]);
        let done = p.qa.send_cq.wait();
        assert_eq!((done[2], req_id(&done)), (*code, id));
        assert_eq!(p.a.counter(&format!("send_status_{code}")), 1);
        assert_eq!(p.a.counter("completions_injected"), u64::from(id));
    }
    assert_eq!(p.b.counter("packets_received"), 0);
    assert_eq!(target, [0; 16]);
    let entry = write(&p, 99, (&bytes, lkey), (&target, rkey));
    p.qa.post(&[entry]);
    assert_eq!(p.qa.send_cq.wait()[2], 0, "the queue pair goes on");
    assert_eq!(target, bytes);
}

#[test]
fn a_rate_of_a_status_hits_some_requests_and_leaves_the_others() {
    let mut p = Pair::with(123, "status=7:0.3", 5, QpOptions::default());
    let (bytes, target) = (pattern(16, 1), vec![0u8; 16]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = write(&p, 1, (&bytes, lkey), (&target, rkey));
    p.qa.post(&vec![entry; 200]);
    let failed = (0..200).filter(|_| p.qa.send_cq.wait()[2] == 7).count() as u64;
    assert!((30..=90).contains(&failed), "{failed} of 200");
    assert_eq!(p.a.counter("completions_injected"), failed);
    assert_eq!(p.a.counter("send_status_0"), 200 - failed);
}

#[test]
fn a_stopped_device_does_nothing_until_the_plan_lets_it_go_on() {
    let mut p = Pair::new(125);
    let (bytes, target) = (pattern(16, 1), vec![0u8; 16]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    plan(&p.a, "stop");
    let before = p.a.engine.counters();
    let entry = write(&p, 1, (&bytes, lkey), (&target, rkey));
    p.qa.post(&[entry]);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(p.a.engine.counters(), before);
    assert!(p.qa.send_cq.poll().is_none());
    plan(&p.a, "");
    assert_eq!(p.qa.send_cq.wait()[2], 0);
    assert_eq!(p.a.counter("requests_posted"), 1);
}

#[test]
fn without_a_window_everything_keeps_its_order() {
    let mut p = Pair::with(127, "reorder=0", 1, QpOptions::default());
    let (bytes, target) = (pattern(100, 1), vec![0u8; 100]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let entries: Vec<_> = (0..200)
        .map(|id| write(&p, id, (&bytes, lkey), (&target, rkey)))
        .collect();
    p.qa.post(&entries);
    for id in 0..200 {
        let done = p.qa.send_cq.wait();
        assert_eq!((done[2], req_id(&done)), (0, id));
    }
    assert_eq!(p.a.counter("completions_out_of_order"), 0);
    assert_eq!(p.b.counter("packets_out_of_order"), 0);
}

#[test]
fn the_receiver_claims_not_to_be_ready_the_nth_time_it_is_asked() {
    let mut p = Pair::with(129, "rnr=@2", 1, QpOptions::default());
    let inbox = vec![0u8; 64];
    let key = p.b.register(&inbox, ALL);
    for id in 0..4 {
        p.qb.post_recv(id, &[(&inbox, key)]);
    }
    until(|| p.b.counter("receives_posted") == 4);
    for id in 0..4 {
        p.qa.post(&[Entry::inline(id, p.to_b, p.qb.number, b"x")]);
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        assert_eq!(p.b.counter("rnr_sent"), u64::from(id > 0));
    }
    assert_eq!(p.a.counter("rnr_received"), 1);
}

#[test]
fn every_packet_is_late_where_no_rate_is_given() {
    let mut p = Pair::with(131, "delay=20ms", 1, QpOptions::default());
    let (bytes, target) = (pattern(16, 1), vec![0u8; 16]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let start = Instant::now();
    let entry = write(&p, 1, (&bytes, lkey), (&target, rkey));
    p.qa.post(&[entry]);
    assert_eq!(p.qa.send_cq.wait()[2], 0);
    assert!(start.elapsed() >= Duration::from_millis(20));
    // Sent again meanwhile, perhaps; then that is late as well.
    let sent = p.a.counter("packets_sent");
    assert!(sent > 0 && p.a.counter("packets_delayed") >= sent);
}

#[test]
fn a_cut_of_one_way_lets_the_other_one_through() {
    for (net, way, lands) in [(133, "in", true), (135, "out", false)] {
        let mut p = Pair::with(net, "timeout=300ms", 1, QpOptions::default());
        let third = Device::with(net + 60, crate::profile::ProfileName::P5en, "", 1);
        let beside = Qp::new(&third);
        let to_third = p.a.handle(&third);
        let _ = third.handle(&p.a);
        let (bytes, target) = (pattern(16, 1), vec![0u8; 16]);
        let lkey = p.a.register(&bytes, ALL);
        let rkey = p.b.register(&target, ALL);
        let key = third.register(&target, ALL);
        let entry = write(&p, 1, (&bytes, lkey), (&target, rkey));
        // The way is known before it is cut.
        p.qa.post(std::slice::from_ref(&entry));
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        let before = p.b.counter("bytes_received");
        plan(&p.a, &format!("timeout=300ms,cut={way}:{}", p.b.ip));
        p.qa.post(&[entry]);
        assert_eq!(p.qa.send_cq.wait()[2], 13, "cut={way}");
        assert_eq!(p.b.counter("bytes_received") > before, lands, "cut={way}");
        assert!(p.a.counter("packets_cut") > 0);
        // Others are reached all the while.
        let other = (to_third, beside.number);
        let entry = Entry::rdma(2, 2, other, (&bytes, lkey), (target.as_ptr(), key));
        p.qa.post(&[entry]);
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        third.engine.destroy_qp(beside.number);
    }
}

#[test]
fn a_slow_engine_fetches_as_many_requests_as_it_may() {
    let mut p = Pair::with(137, "slow=100", 1, QpOptions::default());
    let (bytes, target) = (pattern(8, 1), vec![0u8; 8]);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = write(&p, 1, (&bytes, lkey), (&target, rkey));
    let start = Instant::now();
    p.qa.post(&vec![entry; 200]);
    std::thread::sleep(Duration::from_millis(200));
    let fetched = p.a.counter("requests_posted");
    let most = 5 + start.elapsed().as_millis() as u64 / 10;
    assert!(
        fetched > 0 && fetched <= most,
        "{fetched} of at most {most}"
    );
    plan(&p.a, "");
    for _ in 0..200 {
        assert_eq!(p.qa.send_cq.wait()[2], 0);
    }
}
