//! Queue formats against bytes worked out by hand from `efa_io_defs.h`: the offsets and bits below
//! are counted in its structs, not taken from the code under test.

use crate::engine::entry::{
    Completion, Op, RecvDescriptor, Remote, ReqId, SendEntry, Sge, Source, Status,
};

/// `efa_io_tx_meta_desc`: req_id 0x1234, ctrl1, ctrl2, dest_qp_num 0xabcd, length, immediate data
/// 0x11223344, ah 0x0506, ctrl3 and reserved, qkey 0x00004242, 6 reserved bytes, req_id_ex.
fn meta(ctrl1: u8, ctrl2: u8, length: u8) -> Vec<u8> {
    let mut bytes = vec![
        0x34, 0x12, ctrl1, ctrl2, 0xcd, 0xab, length, 0x00, // 0
        0x44, 0x33, 0x22, 0x11, 0x06, 0x05, 0x00, 0x00, // 8
        0x42, 0x42, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // 16
        0x00, 0x00, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, // 24
    ];
    bytes.resize(64, 0);
    bytes
}

/// `efa_io_tx_buf_desc`: length 0x00001000, lkey 0xfedcba (24 bits), address 0x00007f0102030405.
const BUFFER: [u8; 16] = [
    0x00, 0x10, 0x00, 0x00, 0xba, 0xdc, 0xfe, 0x00, // length, lkey
    0x05, 0x04, 0x03, 0x02, 0x01, 0x7f, 0x00, 0x00, // address low, high
];

const SGE: Sge = Sge {
    address: 0x0000_7f01_0203_0405,
    len: 0x1000,
    lkey: 0x00fe_dcba,
};

/// FIRST (bit 2), LAST (bit 3), COMP_REQ (bit 4).
const WHOLE: u8 = 0b0001_1100;

#[test]
fn a_send_with_two_buffers() {
    // META_DESC (bit 7), HAS_IMM (bit 4), op 0.
    let mut bytes = meta(0b1001_0000, WHOLE | 1, 2);
    bytes[32..48].copy_from_slice(&BUFFER);
    bytes[48..64].copy_from_slice(&BUFFER);
    let entry = SendEntry::decode(&bytes);
    assert_eq!(entry.defect, None);
    assert_eq!(entry.op, Some(Op::Send));
    let id = ReqId {
        low: 0x1234,
        high: [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6],
    };
    assert_eq!(entry.req_id, id);
    assert_eq!(entry.imm, Some(0x1122_3344));
    assert!(entry.phase);
    assert_eq!(
        (entry.dest_qpn, entry.ah, entry.qkey),
        (0xabcd, 0x0506, 0x4242)
    );
    assert_eq!(entry.sge_count, 2);
    assert_eq!(entry.sges, [SGE, SGE]);
    assert_eq!(entry.local_len(), 0x2000);
}

#[test]
fn inline_data_of_both_widths() {
    // META_DESC (bit 7), INLINE_MSG (bit 5), op 0.
    for (size, len) in [(64, 32), (128, 80)] {
        let mut bytes = meta(0b1010_0000, WHOLE, len);
        bytes.resize(size, 0);
        for (i, byte) in bytes[32..32 + usize::from(len)].iter_mut().enumerate() {
            *byte = i as u8 + 1;
        }
        let entry = SendEntry::decode(&bytes);
        assert_eq!(entry.defect, None);
        assert_eq!(entry.imm, None);
        assert!(!entry.phase);
        let inline = entry.inline.unwrap();
        assert_eq!(inline.len, len);
        let expected: Vec<u8> = (1..=len).collect();
        assert_eq!(inline.bytes[..usize::from(len)], expected);
        bytes[6] = len + 1;
        assert!(SendEntry::decode(&bytes).defect.is_some());
    }
}

/// `efa_io_rdma_req`: `efa_io_remote_mem_addr` (length, rkey, address low, high) at 32, the local
/// buffer at 48.
fn rdma(op: u8) -> Vec<u8> {
    let mut bytes = meta(0b1000_0000 | op, WHOLE, 1);
    bytes[32..48].copy_from_slice(&[
        0x00, 0x10, 0x00, 0x00, 0x03, 0x02, 0x01, 0x00, // length 0x1000, rkey 0x010203
        0x78, 0x56, 0x34, 0x12, 0xff, 0x00, 0x00, 0x00, // address 0xff_12345678
    ]);
    bytes[48..64].copy_from_slice(&BUFFER);
    bytes
}

#[test]
fn rdma_requests() {
    for (number, op) in [(1, Op::Read), (2, Op::Write)] {
        let entry = SendEntry::decode(&rdma(number));
        assert_eq!((entry.defect, entry.op), (None, Some(op)));
        let remote = Remote {
            address: 0x00ff_1234_5678,
            len: 0x1000,
            rkey: 0x0001_0203,
        };
        assert_eq!(entry.remote, remote);
        assert_eq!((entry.sge_count, entry.sges[0]), (1, SGE));
    }
}

#[test]
fn a_wide_write_with_inline_data() {
    let mut bytes = rdma(2);
    bytes.resize(128, 0);
    bytes[2] |= 0b0010_0000;
    bytes[6] = 80;
    // In `efa_io_rdma_req_128` the inline data shares the place of the local buffer, at 48.
    for (i, byte) in bytes[48..128].iter_mut().enumerate() {
        *byte = 200 - i as u8;
    }
    let entry = SendEntry::decode(&bytes);
    assert_eq!((entry.defect, entry.op), (None, Some(Op::Write)));
    let inline = entry.inline.unwrap();
    assert_eq!(
        (inline.len, inline.bytes[0], inline.bytes[79]),
        (80, 200, 121)
    );
    // The 64-byte entry has no room for it, and a read has no use for it.
    assert!(SendEntry::decode(&bytes[..64]).defect.is_some());
    bytes[2] = 0b1010_0001;
    assert!(SendEntry::decode(&bytes).defect.is_some());
}

#[test]
fn entries_that_make_no_sense_say_why() {
    for (at, bits, hint) in [
        (2, 0x80, "meta descriptor"),
        (2, 0x40, "extension"),
        (3, 0x04, "first or last"),
        (3, 0x08, "first or last"),
        (3, 0x10, "completion"),
        (3, 0x02, "reserved"),
        (3, 0x20, "reserved"),
    ] {
        let mut bytes = meta(0b1000_0000, WHOLE, 0);
        bytes[at] ^= bits;
        let defect = SendEntry::decode(&bytes).defect.unwrap();
        assert!(defect.contains(hint), "{at}, {bits:#x}: {defect}");
    }
    assert_eq!(SendEntry::decode(&meta(0b1000_0011, WHOLE, 0)).op, None);
    assert!(
        SendEntry::decode(&meta(0b1000_0000, WHOLE, 3))
            .defect
            .is_some()
    );
    assert!(
        SendEntry::decode(&meta(0b1000_0001, WHOLE, 2))
            .defect
            .is_some()
    );
}

#[test]
fn receive_descriptors() {
    // `efa_io_rx_desc`: address low, high, req_id 0x0102, length 0xfffe, lkey 0xfedcba with FIRST
    // (bit 30) and LAST (bit 31).
    let mut bytes = [
        0x05, 0x04, 0x03, 0x02, 0x01, 0x7f, 0x00, 0x00, // address
        0x02, 0x01, 0xfe, 0xff, 0xba, 0xdc, 0xfe, 0xc0,
    ];
    let descriptor = RecvDescriptor::decode(&bytes);
    let sge = Sge {
        address: 0x0000_7f01_0203_0405,
        len: 0xfffe,
        lkey: 0x00fe_dcba,
    };
    assert_eq!((descriptor.sge, descriptor.req_id), (sge, 0x0102));
    assert!(descriptor.first && descriptor.last);
    bytes[15] = 0x40;
    let descriptor = RecvDescriptor::decode(&bytes);
    assert!(descriptor.first && !descriptor.last);
}

#[test]
fn send_completions() {
    let completion = Completion::Send {
        qpn: 0xabcd,
        req_id: ReqId {
            low: 0x1234,
            high: [1, 2, 3, 4, 5, 6],
        },
        op: Op::Write,
        status: Status(7),
    };
    // `efa_io_cdesc_common`: req_id, status, flags, qp_num; then req_id_ex and 4 reserved bytes.
    // Flags: phase (bit 0), q_type send = 1 (bits 1, 2), op_type write = 2 (bits 4 to 6).
    let mut expected = [0; 32];
    expected[..12].copy_from_slice(&[0x34, 0x12, 7, 0b0010_0011, 0xcd, 0xab, 1, 2, 3, 4, 5, 6]);
    assert_eq!(completion.encode(true, true), expected);
    expected[3] &= !1;
    assert_eq!(completion.encode(false, true), expected);
}

fn received(op: Op, ah: Option<u16>, req_id: Option<u16>, imm: Option<u32>) -> Completion {
    let mut gid = [0; 16];
    gid.iter_mut().zip(0xe0..).for_each(|(byte, i)| *byte = i);
    Completion::Recv {
        qpn: 0x0102,
        req_id,
        op,
        status: Status::OK,
        len: 0x0005_1122,
        imm,
        source: Source {
            ah,
            qpn: 0xbeef,
            gid,
        },
    }
}

#[test]
fn receive_completions() {
    // `efa_io_rx_cdesc`: common, length, ah, src_qp_num, imm. Flags: phase, q_type receive = 2
    // (bits 1, 2), HAS_IMM (bit 3), op_type (bits 4 to 6), UNSOLICITED (bit 7).
    let bytes =
        received(Op::Send, Some(0x0a0b), Some(0x0304), Some(0xdead_beef)).encode(true, true);
    let mut expected = [0; 32];
    expected[..16].copy_from_slice(&[
        0x04,
        0x03,
        0,
        0b0000_1101,
        0x02,
        0x01,
        0x22,
        0x11, // req_id .. length
        0x0b,
        0x0a,
        0xef,
        0xbe,
        0xef,
        0xbe,
        0xad,
        0xde, // ah, src_qp_num, imm
    ]);
    assert_eq!(bytes, expected);
}

#[test]
fn an_unknown_sender_leaves_its_gid_where_the_queue_wants_it() {
    let completion = received(Op::Send, None, Some(1), None);
    let bytes = completion.encode(false, true);
    assert_eq!(bytes[8..10], [0xff, 0xff]);
    let gid: Vec<u8> = (0xe0..0xf0).collect();
    assert_eq!(bytes[16..32], gid);
    assert_eq!(completion.encode(false, false)[16..32], [0; 16]);
}

#[test]
fn the_length_of_a_write_has_32_bits() {
    let bytes = received(Op::Write, Some(1), None, Some(7)).encode(true, true);
    assert_eq!(
        bytes[3], 0b1010_1101,
        "unsolicited, write, immediate, receive, phase"
    );
    assert_eq!(bytes[0..2], [0, 0]);
    assert_eq!(bytes[6..8], [0x22, 0x11]);
    assert_eq!(bytes[16..18], [0x05, 0x00]);
}
