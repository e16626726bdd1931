//! Data between two devices, and what goes on around it.

use std::io::Read;
use std::time::{Duration, Instant};

use super::rig::*;
use crate::gid::gid_of;
use crate::pci::config::{DOORBELLS, RINGS};

const QKEY: u32 = 0x1234;

/// A device with a queue pair that is ready, a region of two pages that don't follow each other,
/// and a handle for a peer.
struct End {
    rig: Rig,
    qp: u16,
    cq_doorbell: u32,
    doorbells: [u32; 3],
    key: u32,
    ah: u16,
    /// Completions seen.
    seen: u32,
}

const CQ: u64 = FREE;
const RQ: u64 = FREE + 0x1000;
const EQ: u64 = FREE + 0x4000;
const PAGES: [u64; 2] = [0x20_3000, 0x20_0000];
const IOVA: u64 = 0x7000_0000;

impl End {
    fn new(index: u32, peer: u32, options: &str) -> Self {
        let mut rig = Rig::new(index, options, 128);
        let options: crate::options::Options = options.parse().unwrap();
        let (uar, pd) = (rig.alloc_uar(), rig.alloc_pd());
        let eq = Fields::default().u16(16).u8(1).u8(4).u64(EQ).u32(1).u32(0);
        let eq = u16_at(&rig.must(18, 0, eq), 0);
        rig.set(register::EQ_DOORBELL, 1 << 31 | u32::from(eq));
        let (cq, cq_doorbell) = rig.create_cq(uar, CQ, Some(eq));
        let (qp, doorbells) = rig.create_qp(uar, pd, cq, RQ);
        rig.ready(qp, QKEY);
        let key = rig.reg_mr(pd, &PAGES, IOVA, 8192);
        let ah = rig.create_ah(pd, gid_of(options.ip(peer)));
        Self {
            rig,
            qp,
            cq_doorbell,
            doorbells,
            key,
            ah,
            seen: 0,
        }
    }

    /// Posts a receive of `bytes` at the beginning of the region.
    fn receive(&mut self, bytes: u16) {
        let descriptor = Fields::default()
            .u64(IOVA)
            .u16(9)
            .u16(bytes)
            .u32(self.key | 3 << 30);
        self.rig.put(RQ, &descriptor.0);
        let doorbell = self.doorbells[1];
        self.rig.poke(DOORBELLS, doorbell, &1u32.to_le_bytes());
    }

    /// Posts the first send: `bytes` from the beginning of the region.
    fn send(&mut self, qp: u16, bytes: u32) {
        let mut entry = Fields::default()
            .u16(5)
            .u8(0x80)
            .u8(0x1c)
            .u16(qp)
            .u16(1)
            .u32(0)
            .u16(self.ah)
            .u16(0)
            .u32(QKEY);
        entry.0.resize(32, 0);
        let entry = entry.u32(bytes).u32(self.key).u64(IOVA);
        let [doorbell, _, ring] = self.doorbells;
        self.rig.poke(RINGS, ring, &entry.0);
        self.rig.poke(DOORBELLS, doorbell, &1u32.to_le_bytes());
    }

    /// Waits for the next completion and returns its status.
    fn completion(&mut self) -> u8 {
        let place = CQ + u64::from(self.seen) * 32;
        let ends = Instant::now() + Duration::from_secs(60);
        loop {
            let entry = self.rig.bytes(place, 32);
            if entry[3] & 1 == 1 {
                self.seen += 1;
                return entry[2];
            }
            assert!(Instant::now() < ends, "no completion comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two devices that know each other.
fn two(net: u8) -> (End, End) {
    let options = format!("devices=2 addr=127.3.{net}.1");
    (End::new(0, 1, &options), End::new(1, 0, &options))
}

#[test]
fn a_send_crosses_pages_that_do_not_follow_each_other() {
    let (mut a, mut b) = two(1);
    let data: Vec<u8> = (0..8000u32).map(|at| (at % 251) as u8).collect();
    a.rig.put(PAGES[0], &data[..4096]);
    a.rig.put(PAGES[1], &data[4096..]);
    b.receive(8000);
    let to = b.qp;
    a.send(to, 8000);
    assert_eq!((a.completion(), b.completion()), (0, 0));
    assert_eq!(b.rig.bytes(PAGES[0], 4096), data[..4096]);
    assert_eq!(b.rig.bytes(PAGES[1], 8000 - 4096), data[4096..]);
    assert_eq!(
        b.rig.bytes(PAGES[0] + 4096, 8),
        [0; 8],
        "the page behind is another's"
    );
    let sent = a.rig.function.device().counters()["sends_done"];
    let stats = a
        .rig
        .must(13, 0, Fields::default().u32(0).u64(0).u8(1).u8(0).u16(0));
    assert_eq!((sent, u32_at(&stats, 8)), (1, 1));
}

#[test]
fn an_armed_completion_queue_raises_its_vector_once() {
    let (mut a, mut b) = two(2);
    let mut vectors = b.rig.interrupts();
    let doorbell = b.cq_doorbell;
    b.rig
        .poke(DOORBELLS, doorbell, &(1u32 << 31 | 1 << 29).to_le_bytes());
    b.receive(100);
    let to = b.qp;
    a.send(to, 100);
    assert_eq!(b.completion(), 0);
    let ends = Instant::now() + Duration::from_secs(60);
    while vectors[1].read(&mut [0; 8]).is_err() {
        assert!(Instant::now() < ends, "no interrupt comes");
        std::thread::sleep(Duration::from_millis(1));
    }
    let event = b.rig.bytes(EQ, 16);
    assert_eq!(event[0] & 1, 1);
    assert_eq!(b.rig.bytes(EQ + 16, 1)[0] & 1, 0, "one event");
    assert!(vectors[1].read(&mut [0; 8]).is_err(), "one interrupt");
}

#[test]
fn a_reset_in_the_middle_of_traffic_ends_it() {
    let (mut a, b) = two(3);
    a.rig.function.device().engine().set_paused(true);
    let to = b.qp;
    a.send(to, 8000);
    a.rig.set(register::CONTROL, 1);
    a.rig.set(register::CONTROL, 0);
    a.rig.function.device().engine().set_paused(false);
    a.rig.set_up();
    assert_eq!(a.rig.alloc_pd(), 0);
    assert_eq!(
        a.rig.bytes(CQ, 32)[3],
        0,
        "nobody is told of what was reset"
    );
    let objects = a.rig.function.device().objects().counts();
    assert_eq!((objects["qp"], objects["mr"], objects["cq"]), (0, 0, 0));
}

#[test]
fn memory_that_goes_away_under_traffic_is_an_error_at_most() {
    let (mut a, mut b) = two(4);
    b.receive(8000);
    let to = b.qp;
    a.send(to, 8000);
    assert!(a.rig.function.unmap(None));
    assert!(b.rig.function.unmap(None));
    a.rig.function.disconnect();
    b.rig.function.disconnect();
    assert_eq!(a.rig.function.device().objects().counts()["qp"], 0);
}
