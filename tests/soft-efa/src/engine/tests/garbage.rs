//! Whatever arrives or is posted: no crash, no hang, and what is valid goes on.

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::rig::*;
use crate::engine::wire::{self, Data, DataKind, Frame, Header};

pub(super) fn write_works(p: &mut Pair) {
    let source = pattern(5000, 9);
    let target = vec![0u8; 5000];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let entry = Entry::rdma(2, 1000, p.b(), (&source, lkey), (target.as_ptr(), rkey));
    p.qa.post(&[entry]);
    loop {
        let done = p.qa.send_cq.wait();
        if req_id(&done) == 1000 {
            assert_eq!(done[2], 0);
            break;
        }
    }
    p.a.engine.dereg_mr(lkey);
    p.b.engine.dereg_mr(rkey);
    assert!(source == target);
}

pub(super) fn data() -> impl Strategy<Value = Data> {
    let kind = prop_oneof![
        Just(DataKind::Send),
        Just(DataKind::Write),
        Just(DataKind::ReadRequest),
        Just(DataKind::ReadResponse),
        Just(DataKind::Datagram),
    ];
    let numbers = (
        any::<[u32; 8]>(),
        any::<u64>(),
        any::<[u16; 2]>(),
        any::<[bool; 2]>(),
    );
    (kind, numbers).prop_map(|(kind, (n, address, small, flags))| Data {
        kind,
        has_imm: flags[0],
        unsolicited: flags[1],
        attempt: small[0],
        round: small[1],
        seq: n[0],
        packet: n[1] % 3,
        packets: 1 + n[2] % 3,
        total: n[3] % 5000,
        offset: n[4] % 100,
        len: n[5] % 100,
        qkey: if flags[0] { QKEY } else { n[6] },
        address,
        rkey: n[7],
        imm: n[0],
        near: if flags[1] && kind == DataKind::Write {
            address
        } else {
            0
        },
    })
}

pub(super) fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        4 => data().prop_map(Frame::Data),
        1 => any::<(u32, u32, u64)>().prop_map(|(seq, base, bits)| Frame::Ack { seq, base, bits }),
        1 => any::<(u32, u8)>().prop_map(|(seq, status)| Frame::Done { seq, status }),
        1 => any::<(u32, u16)>().prop_map(|(seq, round)| Frame::NotReady { seq, round }),
        1 => Just(Frame::Hello),
        1 => any::<(u32, bool)>().prop_map(|(window, near)| Frame::Welcome { window, near }),
        1 => any::<(u32, u64, u64)>().prop_map(|(pid, address, value)| Frame::Near {
            pid, address, value
        }),
        1 => Just(Frame::Gone),
        1 => Just(Frame::Reset),
    ]
}

pub(super) fn encode(header: &Header, frames: &[Frame]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::open(&mut bytes, header);
    for frame in frames {
        frame.encode(&mut bytes);
    }
    wire::seal(&mut bytes, frames.len());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(
        source: u64, dest: u64, lowest: u32,
        frames in proptest::collection::vec(frame(), 0..20),
    ) {
        let header = Header { source, dest, lowest, stamp: 3, echo: 4 };
        let bytes = encode(&header, &frames);
        let parsed = wire::parse(&bytes).unwrap();
        prop_assert_eq!(parsed.header, header);
        prop_assert_eq!(parsed.prefix, bytes.len());
        let payload = frames.iter().map(|f| match f {
            Frame::Data(data) => data.payload(),
            _ => 0,
        }).sum();
        let mut read = Vec::new();
        let valid = frames.iter().all(|f| match f {
            Frame::Data(d) => d.packet < d.packets && d.packets <= d.total.div_ceil(512).max(1)
                && d.offset + d.len <= d.total,
            _ => true,
        });
        prop_assert_eq!(parsed.frames(payload, &mut read).is_some(), valid);
        if valid {
            prop_assert_eq!(read, frames);
        }
    }

    #[test]
    fn a_message_has_no_more_packets_than_bytes_for_them(total in 1u32.., packets: u32) {
        let data = Data {
            kind: DataKind::Write,
            has_imm: false,
            unsolicited: false,
            attempt: 0,
            seq: 1,
            packet: 0,
            packets,
            total,
            offset: 0,
            len: 0,
            qkey: QKEY,
            address: 0,
            rkey: 0,
            imm: 0,
            round: 0,
            near: 0,
        };
        let bytes = encode(&Header::default(), &[Frame::Data(data)]);
        let parsed = wire::parse(&bytes).unwrap();
        let fine = packets > 0 && u64::from(packets - 1) * 512 < u64::from(total);
        prop_assert_eq!(parsed.frames(0, &mut Vec::new()).is_some(), fine);
    }

    #[test]
    fn a_flipped_bit_is_noticed(frames in proptest::collection::vec(frame(), 1..5), bit: usize) {
        let mut bytes = encode(&Header::default(), &frames);
        let bit = bit % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(wire::parse(&bytes).is_none());
    }
}

#[test]
fn garbage_in_the_rings_is_an_error_and_nothing_else() {
    let p = Pair::new(113);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let bytes = proptest::collection::vec(any::<u8>(), 64);
    let mut posted = 0u16;
    for round in 0..20 {
        for _ in 0..8 {
            let entry = bytes.new_tree(&mut runner).unwrap().current();
            let at = usize::from(posted % DEPTH);
            p.qa.write_raw_send(at * 64, &entry);
            p.qb.write_raw_recv(at * 16, &entry[..16]);
            posted += 1;
        }
        // Every fifth doorbell is nonsense, and stays until it was seen: the next one overwrites it.
        let nonsense = round % 5 == 3;
        let value = if nonsense {
            posted.wrapping_sub(5000)
        } else {
            posted
        };
        let seen = p.a.counter("doorbells_invalid");
        p.qa.ring_send(value);
        p.qb.ring_recv(value);
        if nonsense {
            until(|| p.a.counter("doorbells_invalid") > seen);
        } else {
            until(|| p.a.counter("completions_send") == u64::from(posted));
        }
    }
    assert_eq!(p.a.counter("completions_send"), 160);
}

#[test]
fn a_new_queue_pair_works_beside_a_spoilt_one() {
    let mut p = Pair::new(115);
    p.qa.ring_send(5000);
    p.qb.ring_recv(5000);
    let mut fresh = Qp::new(&p.a);
    std::mem::swap(&mut p.qa, &mut fresh);
    write_works(&mut p);
    p.a.engine.destroy_qp(fresh.number);
}
