//! The trace: a line for each event that a person can read, with who, what, how much and why.

use std::sync::{Arc, Mutex};

use super::rig::*;
use crate::engine::TraceSink;
use crate::profile::ProfileName;

#[test]
fn lines_say_who_did_what_to_whom_and_what_came_of_it_and_why() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let traced = |last| {
        let sink = lines.clone();
        let trace: TraceSink = Arc::new(move |line: &str| {
            sink.lock().unwrap().push(line.to_owned());
        });
        Device::traced(
            last,
            ProfileName::P5en,
            "timeout=300ms,status=3@5",
            1,
            Some(trace),
        )
    };
    let (a, b) = (traced(141), traced(142));
    let (to_b, to_a) = (a.handle(&b), b.handle(&a));
    let (mut qa, mut qb) = (Qp::new(&a), Qp::new(&b));
    let (bytes, target) = (pattern(5000, 1), vec![0u8; 5000]);
    let lkey = a.register(&bytes, ALL);
    let rkey = b.register(&target, ALL);
    qb.post_recv(7, &[(&target[..100], rkey)]);
    let to = (to_b, qb.number);
    let write = |key| Entry::rdma(2, 1, to, (&bytes, lkey), (target.as_ptr(), key));
    let entries = [
        (write(rkey), 0),
        (write(rkey ^ 1), 7),
        (Entry::send(2, to.0, to.1, &[(&bytes[..200], lkey)]), 11),
        (Entry::inline(3, to.0, to.1, b"x").qkey(0x11), 13),
        (write(rkey), 3),
    ];
    for (entry, status) in entries {
        qa.post(&[entry]);
        assert_eq!(qa.send_cq.wait()[2], status);
    }
    a.engine.destroy_qp(qa.number);
    b.engine.destroy_qp(qb.number);
    drop((a, b));
    let lines = lines.lock().unwrap();
    let told = |parts: &[&str]| {
        let fits = |line: &&String| parts.iter().all(|part| line.contains(part));
        let found = lines.iter().find(fits);
        assert!(
            found.is_some(),
            "nothing says {parts:?}:\n{}",
            lines.join("\n")
        );
    };
    let (from, peer) = (
        format!("qp {}", qa.number),
        format!("127.0.7.142:{}", qb.number),
    );
    let own = format!("127.0.7.141:{}", qa.number);
    told(&["efa_0", &from, "Reset -> Init"]);
    told(&["memory region", "5000 B", "pd 1"]);
    told(&["address handle", "127.0.7.142"]);
    // What was posted, to whom, and its end.
    told(&[&from, "Write of 5000 B to", &peer]);
    told(&[&from, "Write of 5000 B to", &peer, "ends with 0"]);
    told(&[&from, "Write of 5000 B to", &peer, "ends with 7"]);
    // The same from the other side, with the reason.
    told(&[
        &own,
        "Write",
        "5000 B",
        "refused with 7",
        "the rkey does not allow this operation",
    ]);
    told(&[
        &own,
        "Send",
        "200 B",
        "refused with 11",
        "the posted receive is shorter",
    ]);
    told(&[&own, "dropped: queue key 0x11 ≠ 0x4242"]);
    told(&[&from, "ends with 13"]);
    told(&[&from, "ends with 3", "the fault plan says so"]);
    told(&[&from, "destroyed"]);
    for line in lines.iter() {
        assert!(
            line.starts_with("efa_0: ") && !line.contains('\n'),
            "{line}"
        );
    }
    let _ = to_a;
}
