//! Faults have their effect, the counters show it, and the data is right all the same.

use std::sync::{Arc, Mutex};

use super::rig::*;
use crate::engine::TraceSink;
use crate::profile::ProfileName;

/// Writes, reads and sends until all is done; every byte is checked.
fn exchange(p: &mut Pair, rounds: usize) {
    let len = 400_000;
    let small = 500;
    for round in 0..rounds {
        let source = pattern(len, round as u8);
        let written = vec![0u8; len];
        let read = vec![0u8; len];
        let received = vec![0u8; small * 20];
        let local = p.a.register(&source, ALL);
        let into = p.a.register(&read, ALL);
        let there = p.b.register(&written, ALL);
        let from = p.b.register(&source, ALL);
        let inbox = p.b.register(&received, ALL);
        let to = p.b();
        for i in 0..20 {
            p.qb.post_recv(i, &[(&received[usize::from(i) * small..][..small], inbox)]);
        }
        let mut entries = vec![
            Entry::rdma(2, 100, to, (&source, local), (written.as_ptr(), there)),
            Entry::rdma(1, 101, to, (&read, into), (source.as_ptr(), from)),
        ];
        entries.extend((0..20).map(|i| {
            let part = &source[usize::from(i) * small..][..small];
            Entry::send(i, to.0, to.1, &[(part, local)]).imm(u32::from(i))
        }));
        p.qa.post(&entries);
        for _ in 0..22 {
            let done = p.qa.send_cq.wait();
            assert_eq!(done[2], 0, "request {}", req_id(&done));
        }
        for _ in 0..20 {
            let got = p.qb.recv_cq.wait();
            assert_eq!(got[2], 0);
            let sent = u32::from_le_bytes(got[12..16].try_into().unwrap()) as usize;
            let at = usize::from(req_id(&got)) * small;
            assert!(source[sent * small..][..small] == received[at..][..small]);
        }
        assert!(source == written && source == read);
        assert!(p.qb.recv_cq.poll().is_none(), "a message came twice");
        for (device, key) in [(&p.a, local), (&p.a, into)] {
            device.engine.dereg_mr(key);
        }
        for key in [there, from, inbox] {
            p.b.engine.dereg_mr(key);
        }
    }
}

#[test]
fn a_fifth_of_all_packets_may_get_lost() {
    for (net, faults) in [(71, "loss=0.05,socket"), (73, "loss=0.2,dup=0.1")] {
        let mut p = Pair::with(net, faults, 3, QpOptions::default());
        exchange(&mut p, 3);
        assert!(p.a.counter("packets_lost") > 0);
        assert!(p.a.counter("packets_resent") > 0);
        if faults.contains("dup") {
            assert!(p.a.counter("packets_duplicated") > 0);
            assert!(p.b.counter("packets_repeated") > 0);
        }
    }
}

#[test]
fn delay_and_a_wide_window_only_change_the_order() {
    let faults = "delay=3ms:0.3,reorder=64";
    let mut p = Pair::with(75, faults, 3, QpOptions::default());
    exchange(&mut p, 2);
    assert!(p.a.counter("packets_delayed") > 0);
    assert!(p.b.counter("packets_out_of_order") > 0);
}

#[test]
fn corruption_is_seen_in_the_data() {
    let mut p = Pair::with(77, "corrupt=@1", 3, QpOptions::default());
    let source = pattern(100, 1);
    let target = vec![0u8; 100];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    for (round, same) in [(0, false), (1, true)] {
        let entry = Entry::rdma(2, round, p.b(), (&source, lkey), (target.as_ptr(), rkey));
        p.qa.post(&[entry]);
        assert_eq!(p.qa.send_cq.wait()[2], 0);
        assert_eq!(source == target, same);
    }
    assert_eq!(p.a.counter("packets_corrupted"), 1);
}

#[test]
fn a_status_comes_on_demand() {
    let mut p = Pair::with(79, "status=13@2,status=7@3", 3, QpOptions::default());
    let bytes = pattern(8, 1);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let statuses: Vec<_> = (0..4)
        .map(|i| {
            let entry = Entry::rdma(2, i, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
            p.qa.post(&[entry]);
            p.qa.send_cq.wait()[2]
        })
        .collect();
    assert_eq!(statuses, [0, 13, 7, 0]);
    assert_eq!(p.a.counter("completions_injected"), 2);
}

#[test]
fn a_cut_link_heals() {
    let mut p = Pair::with(81, "timeout=300ms", 3, QpOptions::default());
    exchange(&mut p, 1);
    let bytes = pattern(8, 1);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
    for cut in ["both", "in", "out"] {
        let plan = format!("timeout=300ms,cut={cut}:{}", p.b.ip);
        p.a.engine.set_faults(plan.parse().unwrap());
        p.qa.post(std::slice::from_ref(&entry));
        assert_eq!(p.qa.send_cq.wait()[2], 13, "cut={cut}");
        p.a.engine.set_faults("timeout=300ms".parse().unwrap());
    }
    assert!(p.a.counter("packets_cut") > 0);
    exchange(&mut p, 1);
}

#[test]
fn a_receiver_can_pretend_not_to_be_ready() {
    let mut p = Pair::with(83, "rnr=0.5", 3, QpOptions::default());
    exchange(&mut p, 2);
    assert!(p.b.counter("rnr_sent") > 0);
}

#[test]
fn a_slow_engine_lets_the_queue_fill() {
    let mut p = Pair::with(85, "slow=200", 3, QpOptions::default());
    let start = std::time::Instant::now();
    let bytes = pattern(8, 1);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
    p.qa.post(&vec![entry; 30]);
    for _ in 0..30 {
        assert_eq!(p.qa.send_cq.wait()[2], 0);
    }
    let took = start.elapsed().as_millis();
    assert!(took >= 100, "{took} ms");
}

#[test]
fn the_same_seed_loses_the_same_packets() {
    // First attempts only: what is resent depends on time as well.
    let lost = |net, seed| {
        let faults = "loss=0.1,timeout=20s";
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let trace: TraceSink = Arc::new(move |line: &str| {
            if line.ends_with("lost (attempt 0)") {
                let at = line.find("request").unwrap();
                sink.lock().unwrap().push(line[at..].to_owned());
            }
        });
        let a = Device::traced(net, ProfileName::P5en, faults, seed, Some(trace));
        let mut p = Pair::of(a, net + 1, faults, seed, QpOptions::default());
        let bytes = pattern(64, 1);
        let lkey = p.a.register(&bytes, ALL);
        let rkey = p.b.register(&bytes, ALL);
        for i in 0..40 {
            let entry = Entry::rdma(2, i, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
            p.qa.post(&[entry]);
            assert_eq!(p.qa.send_cq.wait()[2], 0);
        }
        let lines = lines.lock().unwrap();
        lines.clone()
    };
    let first = lost(87, 5);
    assert!(!first.is_empty());
    assert_eq!(first, lost(89, 5));
    assert_ne!(first, lost(91, 6));
}

#[test]
fn a_cq_overrun_is_counted() {
    let mut p = Pair::new(93);
    // With room for everything that can be outstanding there is none, whatever the doorbell says:
    // a program may poll the ring itself and not ring it.
    let bytes = pattern(8, 1);
    let lkey = p.a.register(&bytes, ALL);
    let rkey = p.b.register(&bytes, ALL);
    let entry = Entry::rdma(2, 1, p.b(), (&bytes, lkey), (bytes.as_ptr(), rkey));
    let run = |qp: &mut Qp| {
        // The program polls once, and so shows that it rings the doorbell, and never again.
        qp.post(std::slice::from_ref(&entry));
        qp.send_cq.wait();
        for _ in 0..3 {
            let before = p.a.counter("completions_send");
            qp.post(&vec![entry.clone(); 100]);
            until(|| p.a.counter("completions_send") >= before + 100);
        }
    };
    run(&mut p.qa);
    assert_eq!(p.a.counter("cq_overruns"), 0);
    let short = Cq::new(&p.a, u32::from(DEPTH) / 2, 32);
    let mut qp = Qp::with_send_cq(&p.a, QpOptions::default(), short);
    qp.connect(&p.a);
    run(&mut qp);
    assert_eq!(p.a.counter("cq_overruns"), 300 - u64::from(DEPTH) / 2);
}
