//! The rings over plain memory, against bytes worked out by hand from the format's description in
//! rdma-core's `efa_io_defs.h`.

use super::entry::Entry;
use super::*;
use crate::completion::{RecvCompletion, RecvKind, SendCompletion};
use crate::gid::Gid;
use crate::request::{Destination, ReceiveRequest, RemoteMemory, Request, Sge};
use crate::status::VendorStatus;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

/// A ring in plain memory, whose other side is the test.
struct Memory {
    bytes: Box<[Entry]>,
    doorbell: Box<u32>,
    entry_size: u32,
    entries: u32,
    max_batch: u32,
}

impl Memory {
    fn new(entry_size: u32, entries: u32, max_batch: u32) -> Self {
        let bytes = vec![Entry([0; 8]); (entry_size * entries).div_ceil(64) as usize];
        let doorbell = Box::new(0);
        Self {
            bytes: bytes.into(),
            doorbell,
            entry_size,
            entries,
            max_batch,
        }
    }

    fn ring(&mut self) -> RingMemory {
        RingMemory {
            buffer: self.bytes.as_mut_ptr().cast(),
            entry_size: self.entry_size,
            entries: self.entries,
            doorbell: &mut *self.doorbell,
            max_batch: self.max_batch,
        }
    }

    fn at(&self, index: u32) -> &[u8] {
        let (size, index) = (self.entry_size as usize, index as usize);
        // SAFETY: inside the ring, whose bytes are all initialised.
        unsafe {
            std::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>().add(size * index), size)
        }
    }

    /// The device writes an entry.
    fn put(&mut self, index: u32, bytes: &[u8]) {
        let offset = (self.entry_size * index) as usize;
        // SAFETY: inside the ring.
        let entry = unsafe {
            std::slice::from_raw_parts_mut(
                self.bytes.as_mut_ptr().cast::<u8>().add(offset),
                self.entry_size as usize,
            )
        };
        entry[..bytes.len()].copy_from_slice(bytes);
    }

    fn send(&mut self) -> SendRing {
        let ring = self.ring();
        // SAFETY: the memory outlives the ring in each test.
        unsafe { SendRing::new(ring).unwrap() }
    }

    fn receive(&mut self) -> ReceiveRing {
        let ring = self.ring();
        // SAFETY: as above.
        unsafe { ReceiveRing::new(ring).unwrap() }
    }

    fn completion(&mut self, queue_pair: u16, doorbell: bool) -> CompletionRing {
        let mut ring = self.ring();
        if !doorbell {
            ring.doorbell = std::ptr::null_mut();
        }
        // SAFETY: as above.
        unsafe { CompletionRing::new(ring, queue_pair).unwrap() }
    }
}

const PEER: Destination = Destination {
    ah: std::ptr::null_mut(),
    number: 0x0a0b,
    queue_pair: 0x1234,
    queue_key: 0x4242,
};

fn sge((lkey, addr): (u32, u64), length: u32) -> Sge {
    Sge { addr, length, lkey }
}

fn write(
    length: u32,
    (rkey, addr): (u32, u64),
    here: (u32, u64),
    immediate: Option<u32>,
) -> Request<'static> {
    Request::Write {
        local: sge(here, length),
        remote: RemoteMemory { addr, rkey },
        immediate,
    }
}

fn push(ring: &mut SendRing, wr_id: u64, request: Request<'_>) -> bool {
    // SAFETY: no device reads the addresses.
    unsafe { ring.push(wr_id, &PEER, request) }
}

fn push_inline(ring: &mut SendRing, wr_id: u64, immediate: Option<u32>, bytes: &[u8]) -> bool {
    push(ring, wr_id, Request::SendInline { bytes, immediate })
}

fn push_receive(ring: &mut ReceiveRing, wr_id: u64, length: u32, at: (u32, u64)) -> bool {
    let buffer = sge(at, length);
    // SAFETY: no device writes to the addresses.
    unsafe { ring.push(&ReceiveRequest { wr_id, buffer }) }
}

/// Commits, or aborts if something could not be pushed. Whether it was committed.
fn commit(ring: &mut SendRing, pushed: bool) -> bool {
    match pushed {
        true => ring.commit(),
        false => ring.abort(),
    }
    pushed
}

#[rustfmt::skip]
#[test]
fn a_write_is_these_bytes() {
    let mut memory = Memory::new(64, 4, 0);
    let mut sends = memory.send();
    let (there, here) = ((0xdead_beef, 0x1122_3344_5566_7788), (0x00c0_ffee, 0x0f0e_0d0c_0b0a_0908));
    push(&mut sends, 7, write(0x0102_0304, there, here, None));
    assert_eq!(memory.at(0), [0; 64], "nothing is in the queue before the commit");
    assert_eq!(*memory.doorbell, 0);
    sends.commit();
    assert_eq!(*memory.doorbell, 1);
    assert_eq!(memory.at(0), [
        0x00, 0x00,                                     // request 0
        0x82,                                           // metadata descriptor, RDMA write
        0x1c,                                           // completion wanted, last, first, phase 0
        0x34, 0x12,                                     // destination queue pair
        0x01, 0x00,                                     // one buffer
        0x00, 0x00, 0x00, 0x00,                         // no immediate data
        0x0b, 0x0a,                                     // address handle
        0x00, 0x00,
        0x42, 0x42, 0x00, 0x00,                         // queue key
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0x04, 0x03, 0x02, 0x01,                         // bytes there
        0xef, 0xbe, 0xad, 0xde,                         // remote key
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // remote address
        0x04, 0x03, 0x02, 0x01,                         // bytes here
        0xee, 0xff, 0xc0, 0x00,                         // local key
        0x08, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, // local address
    ]);
}

#[rustfmt::skip]
#[test]
fn each_operation_has_its_bits() {
    let mut memory = Memory::new(64, 8, 0);
    let mut sends = memory.send();
    let there = (0x5566_7788, 0x1000);
    let here = (0x11, 0x2000);
    push(&mut sends, 1, write(16, there, here, Some(0xa1b2_c3d4)));
    let remote = RemoteMemory { addr: there.1, rkey: there.0 };
    push(&mut sends, 2, Request::Read { local: sge(here, 16), remote });
    push(&mut sends, 3, Request::Send { local: &[sge(here, 16)], immediate: None });
    push(&mut sends, 4, Request::Send { local: &[sge(here, 0)], immediate: Some(0xa1b2_c3d4) });
    push_inline(&mut sends, 5, Some(1), b"hello");
    push_inline(&mut sends, 6, None, &[0xee; 32]);
    push_inline(&mut sends, 7, None, &[]);
    sends.commit();
    let head = |i: u32| memory.at(i)[..12].to_vec();
    assert_eq!(head(0), [0, 0, 0x92, 0x1c, 0x34, 0x12, 1, 0, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(head(1), [1, 0, 0x81, 0x1c, 0x34, 0x12, 1, 0, 0, 0, 0, 0]);
    assert_eq!(head(2), [2, 0, 0x80, 0x1c, 0x34, 0x12, 1, 0, 0, 0, 0, 0]);
    assert_eq!(head(3), [3, 0, 0x90, 0x1c, 0x34, 0x12, 1, 0, 0xd4, 0xc3, 0xb2, 0xa1]);
    assert_eq!(head(4), [4, 0, 0xb0, 0x1c, 0x34, 0x12, 5, 0, 1, 0, 0, 0]);
    assert_eq!(head(5), [5, 0, 0xa0, 0x1c, 0x34, 0x12, 32, 0, 0, 0, 0, 0]);
    assert_eq!(head(6), [6, 0, 0xa0, 0x1c, 0x34, 0x12, 0, 0, 0, 0, 0, 0]);
    // A read's fields are where a write's are.
    assert_eq!(memory.at(1)[32..], memory.at(0)[32..]);
    // A send has its buffer where RDMA has the remote side, and no second one.
    assert_eq!(memory.at(2)[32..], [
        16, 0, 0, 0, 0x11, 0, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    assert_eq!(&memory.at(4)[32..38], b"hello\0");
    assert_eq!(memory.at(5)[32..], [0xee; 32]);
}

#[rustfmt::skip]
#[test]
fn a_send_has_up_to_two_pieces() {
    let mut memory = Memory::new(64, 4, 0);
    let mut sends = memory.send();
    let pieces = [sge((0x11, 0x1000), 3), sge((0x22, 0x2000), 5), sge((0x33, 0x3000), 7)];
    for count in 0..3 {
        push(&mut sends, 0, Request::Send { local: &pieces[..count], immediate: None });
    }
    sends.commit();
    assert_eq!([0, 1, 2].map(|i| memory.at(i)[6]), [0, 1, 2]);
    assert_eq!(memory.at(2)[32..], [
        3, 0, 0, 0, 0x11, 0, 0, 0, 0x00, 0x10, 0, 0, 0, 0, 0, 0,
        5, 0, 0, 0, 0x22, 0, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0,
    ]);
    assert!(!push(&mut sends, 0, Request::Send { local: &pieces, immediate: None }));
}

#[test]
fn a_local_key_has_24_bits() {
    let mut memory = Memory::new(64, 1, 0);
    let mut sends = memory.send();
    let local = &[sge((0xff00_0001, 0), 16)];
    push(
        &mut sends,
        1,
        Request::Send {
            local,
            immediate: None,
        },
    );
    sends.commit();
    assert_eq!(memory.at(0)[36..40], [1, 0, 0, 0]);
}

#[test]
fn the_phase_changes_with_each_pass() {
    let mut memory = Memory::new(64, 4, 0);
    let mut sends = memory.send();
    for count in 0..20u32 {
        push_inline(&mut sends, count.into(), None, &[]);
        sends.commit();
        assert_eq!(u32::from(memory.at(count % 4)[3] & 1), (count / 4) % 2);
        assert_eq!(*memory.doorbell, count + 1);
        let id = u16::from_le_bytes([memory.at(count % 4)[0], memory.at(count % 4)[1]]);
        assert_eq!(sends.ids().returns().give_back(id), Some(count.into()));
    }
}

#[test]
fn the_doorbell_has_16_bits_and_the_count_more() {
    let mut memory = Memory::new(64, 2, 0);
    let mut sends = memory.send();
    for count in 0..0x1_0003u32 {
        push_inline(&mut sends, 0, None, &[]);
        sends.commit();
        assert_eq!(*memory.doorbell, (count + 1) & 0xffff);
        let entry = memory.at(count % 2);
        let id = u16::from_le_bytes([entry[0], entry[1]]);
        assert_eq!(u32::from(entry[3] & 1), (count / 2) % 2);
        assert!(sends.ids().returns().give_back(id).is_some());
    }
}

/// A page that counts writes to it is more than a unit test can have, so the order of doorbells is
/// seen by what has reached the queue: a batch of 5 with at most 2 between doorbells.
#[test]
fn a_batch_longer_than_the_limit_and_across_the_end_arrives_whole() {
    let mut memory = Memory::new(64, 8, 2);
    let mut sends = memory.send();
    for batch in 0..6u8 {
        for i in 0..5 {
            push_inline(&mut sends, 0, None, &[batch, i]);
        }
        sends.commit();
        for i in 0..5u8 {
            let entry = memory.at((u32::from(batch) * 5 + u32::from(i)) % 8);
            assert_eq!(entry[32..34], [batch, i]);
            assert!(
                sends
                    .ids()
                    .returns()
                    .give_back(u16::from_le_bytes([entry[0], entry[1]]))
                    .is_some()
            );
        }
        assert_eq!(*memory.doorbell, (u32::from(batch) + 1) * 5);
    }
}

#[test]
fn a_batch_is_posted_whole_or_not_at_all() {
    let mut memory = Memory::new(64, 4, 0);
    let mut sends = memory.send();
    for _ in 0..3 {
        push_inline(&mut sends, 1, None, b"first");
    }
    sends.commit();
    let one = push_inline(&mut sends, 2, None, b"second");
    let two = push_inline(&mut sends, 2, None, b"second");
    assert!(one && !two, "it has four entries");
    sends.abort();
    assert_eq!((sends.in_flight(), *memory.doorbell), (3, 3));
    assert_eq!(memory.at(3), [0; 64]);
    assert!(!push_inline(&mut sends, 2, None, &[0; 33]));
    sends.abort();
    push_inline(&mut sends, 3, None, b"gone");
    sends.abort();
    push_inline(&mut sends, 4, None, b"last");
    sends.commit();
    assert_eq!(&memory.at(3)[32..36], b"last");
    assert_eq!((memory.at(3)[0], *memory.doorbell), (3, 4));
    sends.commit();
    assert_eq!(*memory.doorbell, 4, "nothing to post");
}

#[rustfmt::skip]
#[test]
fn a_receive_is_these_bytes() {
    let mut memory = Memory::new(16, 4, 0);
    let mut receives = memory.receive();
    assert!(push_receive(&mut receives, 1, 0x1234, (0xc0_ffee, 0x1122_3344_5566_7788)));
    assert!(push_receive(&mut receives, 2, 0x12_3456, (1, 0)));
    assert_eq!(*memory.doorbell, 0);
    receives.announce();
    assert_eq!(*memory.doorbell, 2);
    assert_eq!(memory.at(0), [
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // address
        0x00, 0x00,                                     // request 0
        0x34, 0x12,                                     // bytes
        0xee, 0xff, 0xc0,                               // local key
        0xc0,                                           // first and last
    ]);
    assert_eq!(memory.at(1)[8..], [1, 0, 0xff, 0xff, 1, 0, 0, 0xc0]);
    assert!(push_receive(&mut receives, 3, 1, (1, 0)));
    assert!(push_receive(&mut receives, 4, 1, (1, 0)));
    assert!(!push_receive(&mut receives, 5, 1, (1, 0)), "full");
}

/// A completion of a send: id, status, flags, queue pair.
fn sent(id: u16, status: u8, flags: u8, queue_pair: u16) -> [u8; 6] {
    let ([a, b], [c, d]) = (id.to_le_bytes(), queue_pair.to_le_bytes());
    [a, b, status, flags, c, d]
}

fn poll(side: &mut SendSide, most: usize) -> Vec<(u64, u8)> {
    let mut found = Vec::new();
    let count = side.poll(most, |done: SendCompletion| {
        found.push((done.wr_id, done.status.0 as u8));
    });
    assert_eq!(count, found.len());
    found
}

/// A send queue over `queue`, whose completions are in `memory`.
fn send_side(queue: &mut Memory, memory: &mut Memory, queue_pair: u16, doorbell: bool) -> SendSide {
    SendSide {
        queue: queue.send(),
        completions: memory.completion(queue_pair, doorbell),
    }
}

/// A receive queue over `queue`, whose completions are in `memory`.
fn receive_side(queue: &mut Memory, memory: &mut Memory, queue_pair: u16) -> ReceiveSide {
    ReceiveSide {
        queue: queue.receive(),
        completions: memory.completion(queue_pair, false),
        source_gid: true,
    }
}

#[test]
fn completions_are_taken_in_any_order_and_once() {
    let (mut queue, mut memory) = (Memory::new(64, 4, 0), Memory::new(32, 4, 0));
    let mut side = send_side(&mut queue, &mut memory, 0x1f2e, false);
    for wr_id in [10, 11, 12] {
        push_inline(&mut side.queue, wr_id, None, &[]);
    }
    side.queue.commit();
    assert_eq!(poll(&mut side, 4), []);
    // Phase 1, send queue: 0x03; an RDMA write has 0x20 as well.
    memory.put(0, &sent(2, 0, 0x03, 0x1f2e));
    memory.put(1, &sent(0, 14, 0x23, 0x1f2e));
    assert_eq!(poll(&mut side, 4), [(12, 0), (10, 14)]);
    memory.put(2, &sent(0, 0, 0x03, 0x1f2e)); // A second time.
    memory.put(3, &sent(5, 0, 0x03, 0x1f2e)); // Slot 1, another generation.
    assert_eq!(poll(&mut side, 4), []);
    assert_eq!((side.completions.stale(), side.queue.in_flight()), (2, 1));
    // The second pass has phase 0.
    memory.put(0, &sent(1, 0, 0x03, 0x1f2e));
    assert_eq!(poll(&mut side, 4), []);
    memory.put(0, &sent(1, 0, 0x02, 0xffff)); // Of another queue pair.
    memory.put(1, &sent(1, 0, 0x04, 0x1f2e)); // Of the receive queue.
    memory.put(2, &sent(1, 0, 0x02, 0x1f2e));
    assert_eq!(poll(&mut side, 4), [(11, 0)]);
    assert_eq!((side.completions.stale(), side.queue.in_flight()), (4, 0));
}

#[test]
fn nothing_is_taken_while_a_batch_is_staged() {
    let (mut queue, mut memory) = (Memory::new(64, 2, 0), Memory::new(32, 8, 0));
    let mut side = send_side(&mut queue, &mut memory, 1, false);
    push_inline(&mut side.queue, 1, None, &[]);
    side.queue.commit();
    push_inline(&mut side.queue, 2, None, &[]);
    // Of the first, and of the second, which the device was never given.
    memory.put(0, &sent(0, 0, 0x03, 1));
    memory.put(1, &sent(1, 0, 0x03, 1));
    assert_eq!(poll(&mut side, 8), []);
    side.queue.abort();
    assert_eq!(poll(&mut side, 8), [(1, 0)]);
    assert_eq!((side.completions.stale(), side.queue.in_flight()), (1, 0));
}

#[test]
fn a_panic_in_between_loses_no_count() {
    let (mut queue, mut memory) = (Memory::new(64, 2, 0), Memory::new(32, 8, 0));
    let mut side = send_side(&mut queue, &mut memory, 1, false);
    for wr_id in [1, 2] {
        push_inline(&mut side.queue, wr_id, None, &[]);
        memory.put(wr_id as u32 - 1, &sent(wr_id as u16 - 1, 0, 0x03, 1));
    }
    side.queue.commit();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        side.poll(8, |_| panic!("on purpose"));
    }));
    assert!(caught.is_err());
    assert_eq!(poll(&mut side, 8), [(2, 0)]);
    assert_eq!(side.queue.in_flight(), 0);
}

#[test]
fn no_more_are_taken_than_asked_for() {
    let (mut queue, mut memory) = (Memory::new(64, 4, 0), Memory::new(32, 4, 0));
    let mut side = send_side(&mut queue, &mut memory, 1, false);
    for wr_id in 0..4 {
        push_inline(&mut side.queue, wr_id, None, &[]);
        memory.put(wr_id as u32, &sent(wr_id as u16, 0, 0x03, 1));
    }
    side.queue.commit();
    assert_eq!(poll(&mut side, 0), []);
    assert_eq!(poll(&mut side, 3), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(poll(&mut side, 3), [(3, 0)]);
}

fn poll_receives(side: &mut ReceiveSide) -> Vec<RecvCompletion> {
    let mut found = Vec::new();
    side.poll(16, |received| found.push(received));
    found
}

#[rustfmt::skip]
#[test]
fn a_receive_completion_is_read_from_these_bytes() {
    let (mut queue, mut memory) = (Memory::new(16, 4, 0), Memory::new(32, 4, 0));
    let mut side = receive_side(&mut queue, &mut memory, 0x0101);
    for wr_id in [20, 21] {
        assert!(push_receive(&mut side.queue, wr_id, 100, (1, 0)));
    }
    // A message with immediate data from a known sender.
    memory.put(0, &[
        0x01, 0x00, 0x00,       // request 1, success
        0x0d,                   // phase 1, receive queue, immediate data
        0x01, 0x01,             // local queue pair
        0x39, 0x30,             // 12345 bytes
        0x07, 0x00,             // handle 7
        0x78, 0x56,             // sender's queue pair
        0xd4, 0xc3, 0xb2, 0xa1, // immediate data
        0xff, 0xff, 0xff, 0xff, // not part of a message's completion
    ]);
    // A message from a stranger, too long for the buffer.
    memory.put(1, &[
        0x00, 0x00, 0x0b, 0x05, 0x01, 0x01, 0x00, 0x00, 0xff, 0xff, 0x78, 0x56, 0, 0, 0, 0,
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    // A write with immediate data that used up no receive: 0x80 unsolicited, 0x20 write,
    // 0x08 immediate, 0x04 receive queue, 0x01 phase; 0x0002_0001 bytes.
    memory.put(2, &[
        0x00, 0x00, 0x00, 0xad, 0x01, 0x01, 0x01, 0x00, 0x07, 0x00, 0x78, 0x56, 5, 0, 0, 0,
        0x02, 0x00, 0xff, 0xff,
    ]);
    // A request that is not in flight.
    memory.put(3, &[0x02, 0x00, 0x00, 0x05, 0x01, 0x01]);
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(poll_receives(&mut side), [
        RecvCompletion {
            wr_id: 21, status: VendorStatus::OK, byte_len: 12345, kind: RecvKind::Send,
            unsolicited: false, immediate: Some(0xa1b2_c3d4), src_qp: 0x5678,
            src_handle: Some(7), src_gid: None,
        },
        RecvCompletion {
            wr_id: 20, status: VendorStatus(11), byte_len: 0, kind: RecvKind::Send,
            unsolicited: false, immediate: None, src_qp: 0x5678,
            src_handle: None, src_gid: Some(Gid::from_bytes(gid)),
        },
        RecvCompletion {
            wr_id: 0, status: VendorStatus::OK, byte_len: 0x0002_0001,
            kind: RecvKind::WriteWithImmediate, unsolicited: true, immediate: Some(5),
            src_qp: 0x5678, src_handle: Some(7), src_gid: None,
        },
    ]);
    assert_eq!((side.completions.stale(), side.queue.in_flight()), (1, 0));
}

#[test]
fn a_queue_with_a_channel_has_a_doorbell() {
    let (mut queue, mut memory) = (Memory::new(64, 4, 0), Memory::new(32, 4, 0));
    let mut side = send_side(&mut queue, &mut memory, 1, true);
    push_inline(&mut side.queue, 1, None, &[]);
    side.queue.commit();
    assert!(side.completions.arm());
    assert_eq!(*memory.doorbell, 0x8000_0000);
    memory.put(0, &sent(0, 0, 0x03, 1));
    side.completions.event_taken();
    poll(&mut side, 4);
    assert_eq!(
        *memory.doorbell, 0x2000_0001,
        "one consumed, one event, not armed"
    );
    assert!(side.completions.arm());
    assert_eq!(*memory.doorbell, 0xa000_0001);
    for _ in 0..3 {
        side.completions.event_taken();
    }
    side.completions.arm();
    assert_eq!(*memory.doorbell, 0x8000_0001, "two bits of the event count");
    assert!(!Memory::new(32, 4, 0).completion(1, false).arm());
}

#[test]
fn a_ring_that_is_not_understood_is_refused() {
    let mut memory = Memory::new(64, 4, 0);
    let refused = |change: fn(&mut RingMemory)| {
        let mut ring = memory.ring();
        change(&mut ring);
        // SAFETY: never used.
        unsafe { SendRing::new(ring) }
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    let refused = RefCell::new(refused);
    let refused = |change| (refused.borrow_mut())(change);
    assert!(refused(|r| r.buffer = std::ptr::null_mut()).contains("no buffer address"));
    assert!(refused(|r| r.doorbell = std::ptr::null_mut()).contains("no doorbell address"));
    assert!(refused(|r| r.entry_size = 128).contains("128 bytes"));
    assert!(refused(|r| r.entries = 0).contains("0 entries"));
    assert!(refused(|r| r.entries = 6).contains("6 entries"));
    assert!(refused(|r| r.entries = 1 << 17).contains("131072 entries"));
    assert!(refused(|r| r.buffer = r.buffer.wrapping_add(8)).contains("not aligned"));
    assert_eq!(refused(|_| ()), "");
}

proptest::proptest! {
    /// A device may write anything at all: each request ends at most once, and only one that was
    /// posted; nothing is written beyond the tables, and no poll lasts for ever.
    #[test]
    fn nonsense_in_the_completion_queue_ends_nothing_that_was_not_posted(
        bits in 0u32..5,
        steps in proptest::collection::vec(
            proptest::prelude::any::<(u8, [u64; 4], u16, bool)>(), 0..400),
    ) {
        let entries = 1 << bits;
        let (mut queue, mut recv_queue) = (Memory::new(64, entries, 0), Memory::new(16, entries, 0));
        let mut memory = Memory::new(32, entries, 0);
        let mut side = send_side(&mut queue, &mut memory, 9, false);
        let mut receive = receive_side(&mut recv_queue, &mut memory, 9);
        let (mut flying, mut posted) = (HashSet::new(), HashSet::new());
        let mut next = 1;
        for (what, words, id, plausible) in steps {
            match what % 4 {
                0 => {
                    let pushed = push_inline(&mut side.queue, next, None, &[]);
                    if commit(&mut side.queue, pushed) {
                        flying.insert(next);
                    }
                    if push_receive(&mut receive.queue, next, 8, (1, 0)) {
                        posted.insert(next);
                    }
                    next += 1;
                }
                1 => {
                    let mut words = words;
                    if plausible {
                        // Any id and status, but of this queue pair.
                        words[0] = words[0] & 0xff00_0000 | 9 << 32 | u64::from(id);
                    }
                    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                    memory.put(u32::from(what) % entries, &bytes);
                }
                2 => for (wr_id, _) in poll(&mut side, usize::MAX) {
                    assert!(flying.remove(&wr_id));
                },
                _ => for found in poll_receives(&mut receive) {
                    assert!(found.unsolicited || posted.remove(&found.wr_id));
                },
            }
            assert_eq!(side.queue.in_flight() as usize, flying.len());
            assert_eq!(receive.queue.in_flight() as usize, posted.len());
        }
    }

    /// Any mix of batches, aborts and completions in any order: a device that reads the queue up to
    /// the doorbell sees each committed request once, in order, with the right phase, and each comes
    /// back once.
    #[test]
    fn whatever_is_done_each_request_arrives_and_completes_once(
        bits in 0u32..5,
        max_batch in 0u32..6,
        steps in proptest::collection::vec(proptest::prelude::any::<(u8, u8)>(), 0..300),
    ) {
        let entries = 1 << bits;
        let (mut queue, mut memory) =
            (Memory::new(64, entries, max_batch), Memory::new(32, entries, 0));
        let mut side = send_side(&mut queue, &mut memory, 9, false);
        let (mut fetched, mut written) = (0u32, 0u32);
        let mut expected = VecDeque::new();
        let mut device = Vec::new();
        let mut finished = 0u32;
        let mut next = 0u64;
        for (what, amount) in steps {
            match what % 3 {
                0 => {
                    let before = side.queue.in_flight();
                    let count = u32::from(amount % 20);
                    let ids: Vec<_> = (0..count).map(|i| next + u64::from(i)).collect();
                    let mut pushed = true;
                    for id in &ids {
                        pushed &= push_inline(&mut side.queue, *id, None, &id.to_le_bytes());
                    }
                    if amount % 7 == 0 {
                        side.queue.abort();
                        assert_eq!(side.queue.in_flight(), before);
                    } else if before + count > entries {
                        assert!(!commit(&mut side.queue, pushed), "more than there is room for");
                        assert_eq!(side.queue.in_flight(), before);
                    } else {
                        assert!(commit(&mut side.queue, pushed));
                        next += u64::from(count);
                        expected.extend(ids);
                    }
                }
                1 => {
                    while fetched & 0xffff != *queue.doorbell {
                        let entry = queue.at(fetched % entries);
                        assert_eq!(u32::from(entry[3] & 1), (fetched / entries) % 2);
                        let body = u64::from_le_bytes(entry[32..40].try_into().unwrap());
                        assert_eq!(Some(body), expected.pop_front());
                        device.push((u16::from_le_bytes([entry[0], entry[1]]), body));
                        fetched += 1;
                    }
                    for _ in 0..amount % 4 {
                        // As on hardware, no more completions than the ring has entries.
                        if device.is_empty() || written - finished >= entries {
                            break;
                        }
                        let (id, body) = device.swap_remove(amount as usize % device.len());
                        let phase = ((written / entries) & 1 ^ 1) as u8;
                        memory.put(written % entries, &sent(id, body as u8, 0x02 | phase, 9));
                        written += 1;
                    }
                }
                _ => for (wr_id, status) in poll(&mut side, amount as usize % 8) {
                    assert_eq!(wr_id as u8, status);
                    finished += 1;
                },
            }
        }
        finished += poll(&mut side, usize::MAX).len() as u32;
        assert_eq!((finished, side.completions.stale()), (written, 0));
        assert_eq!(u64::from(side.queue.in_flight()), next - u64::from(finished));
    }
}
