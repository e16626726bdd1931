//! Drives engines by hand, as libefa would: writes queue entries and doorbells, reads completions.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{
    Access, Backing, CqSpec, Engine, EngineConfig, FaultPlan, MrSpec, QpChange, QpKind, QpSpec,
    QpState, TraceSink,
};
use crate::gid::gid_of;
use crate::profile::{Profile, ProfileName};

pub const QKEY: u32 = 0x4242;
pub const PD: u32 = 1;

/// Zeroed memory with the alignment of a queue, between words that nobody may change. Everything
/// goes through atomics: the engine works on it at the same time.
pub struct Pages(Box<[AtomicU64]>);

impl Pages {
    /// Words on either side.
    const GUARD: usize = 16;
    const MARK: u64 = 0xa5a5_5a5a_c3c3_3c3c;

    fn new(bytes: usize) -> Self {
        let guard = || (0..Self::GUARD).map(|_| AtomicU64::new(Self::MARK));
        let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0));
        Self(guard().chain(words).chain(guard()).collect())
    }

    fn words(&self) -> &[AtomicU64] {
        &self.0[Self::GUARD..self.0.len() - Self::GUARD]
    }

    fn ptr(&self) -> *mut u8 {
        // Of the whole, since the engine's pointers lead to all of it.
        self.0.as_ptr().wrapping_add(Self::GUARD).cast_mut().cast()
    }

    fn is_guarded(&self) -> bool {
        let guards = self.0[..Self::GUARD]
            .iter()
            .chain(&self.0[self.0.len() - Self::GUARD..]);
        guards
            .into_iter()
            .all(|word| word.load(Ordering::Relaxed) == Self::MARK)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at.is_multiple_of(8) && bytes.len().is_multiple_of(8));
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let word = u64::from_le_bytes(chunk.try_into().unwrap());
            self.words()[at / 8 + i].store(word, Ordering::Relaxed);
        }
    }

    fn doorbell(&self) -> &AtomicU32 {
        // SAFETY: the first four bytes of an aligned, larger allocation that lives as long as the
        // reference; everybody accesses them atomically.
        unsafe { &*self.ptr().cast::<AtomicU32>() }
    }
}

impl Pages {
    /// Writes a doorbell as a program does.
    pub fn set(&self, value: u32) {
        self.doorbell().store(value, Ordering::Release);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let fine = self.is_guarded() || std::thread::panicking();
        assert!(fine, "something was written beside a queue");
    }
}

/// A device, and what its queues live in.
pub struct Device {
    pub engine: Arc<Engine>,
    pub ip: Ipv4Addr,
}

impl Device {
    pub fn with(last: u8, profile: ProfileName, faults: &str, seed: u64) -> Self {
        let trace = std::env::var_os("SOFT_EFA_TEST_TRACE").map(|_| {
            let sink: TraceSink = Arc::new(|line: &str| eprintln!("{line}"));
            sink
        });
        Self::traced(last, profile, faults, seed, trace)
    }

    pub fn traced(
        last: u8,
        profile: ProfileName,
        faults: &str,
        seed: u64,
        trace: Option<TraceSink>,
    ) -> Self {
        let ip = Ipv4Addr::new(127, 0, 7, last);
        let profile = Profile::of(profile);
        let engine = Engine::start(EngineConfig {
            device_index: 0,
            ip,
            gid: gid_of(ip),
            profile,
            seed,
            faults: faults.parse::<FaultPlan>().unwrap(),
            trace,
            max_rdma_size: profile.max_rdma_size,
            mtu: profile.mtu,
            first_qp: None,
            stats: None,
        })
        .unwrap();
        Self { engine, ip }
    }

    pub fn register(&self, bytes: &[u8], access: Access) -> u32 {
        self.register_in(PD, bytes, access)
    }

    pub fn register_in(&self, pd: u32, bytes: &[u8], access: Access) -> u32 {
        let spec = MrSpec {
            pd,
            iova: bytes.as_ptr() as u64,
            length: bytes.len() as u64,
            backing: Backing::UserVa(bytes.as_ptr() as u64),
            access,
        };
        // SAFETY: the tests keep their buffers until the engine is gone, and look at them only
        // after the completion.
        unsafe { self.engine.reg_mr(spec) }.unwrap()
    }

    pub fn handle(&self, to: &Self) -> u16 {
        self.engine.create_ah(PD, gid_of(to.ip)).unwrap()
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.engine.counters().get(name).copied().unwrap_or(0)
    }
}

/// A completion queue as a program sees it.
pub struct Cq {
    ring: Pages,
    pub doorbell: Pages,
    entries: u32,
    entry_size: u32,
    pub index: u16,
    pub consumed: u32,
}

impl Cq {
    pub fn new(device: &Device, entries: u32, entry_size: u32) -> Self {
        Self::with_notify(device, entries, entry_size, None)
    }

    pub fn with_notify(
        device: &Device,
        entries: u32,
        entry_size: u32,
        notify: Option<Box<dyn Fn() + Send + Sync>>,
    ) -> Self {
        let ring = Pages::new((entries * entry_size) as usize);
        let doorbell = Pages::new(8);
        let spec = CqSpec {
            ring: ring.ptr(),
            entries,
            entry_size,
            src_addr: entry_size == 32,
            doorbell: Some(doorbell.ptr().cast()),
            notify,
        };
        // SAFETY: ring and doorbell live as long as `Cq`, which the tests drop after the engine
        // has let go of the queue.
        let index = unsafe { device.engine.create_cq(spec) }.unwrap();
        Self {
            ring,
            doorbell,
            entries,
            entry_size,
            index,
            consumed: 0,
        }
    }

    /// The next completion, if its phase says that it is there.
    pub fn poll(&mut self) -> Option<[u8; 32]> {
        let phase = (self.consumed / self.entries).is_multiple_of(2);
        let at = ((self.consumed % self.entries) * self.entry_size) as usize / 8;
        let words = self.ring.words();
        let first = words[at].load(Ordering::Acquire).to_le_bytes();
        if (first[3] & 1 != 0) != phase {
            return None;
        }
        let mut entry = [0; 32];
        for word in 0..self.entry_size as usize / 8 {
            let value = words[at + word].load(Ordering::Relaxed).to_le_bytes();
            entry[word * 8..word * 8 + 8].copy_from_slice(&value);
        }
        self.consumed = self.consumed.wrapping_add(1);
        self.ring_doorbell(false, 0);
        Some(entry)
    }

    pub fn ring_doorbell(&self, arm: bool, number: u32) {
        let value = (self.consumed & 0xffff) | number << 29 | u32::from(arm) << 31;
        self.doorbell.doorbell().store(value, Ordering::Release);
    }

    pub fn wait(&mut self) -> [u8; 32] {
        self.wait_for(Duration::from_secs(20))
    }

    pub fn wait_for(&mut self, most: Duration) -> [u8; 32] {
        let start = Instant::now();
        loop {
            if let Some(entry) = self.poll() {
                return entry;
            }
            assert!(start.elapsed() < most, "no completion came");
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A queue pair as a program sees it.
pub struct Qp {
    sq: Pages,
    sq_db: Pages,
    rq: Pages,
    rq_db: Pages,
    entry_size: usize,
    depth: u16,
    posted: u16,
    received: u16,
    pub send_cq: Cq,
    pub recv_cq: Cq,
    pub number: u16,
}

pub const DEPTH: u16 = 256;

#[derive(Clone, Copy)]
pub struct QpOptions {
    pub kind: QpKind,
    pub unsolicited: bool,
    pub entry_size: u32,
    pub pd: u32,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self {
            kind: QpKind::Srd,
            unsolicited: false,
            entry_size: 64,
            pd: PD,
        }
    }
}

impl Qp {
    pub fn new(device: &Device) -> Self {
        let qp = Self::unconnected(device, QpOptions::default());
        qp.connect(device);
        qp
    }

    pub fn unconnected(device: &Device, options: QpOptions) -> Self {
        Self::with_send_cq(device, options, Cq::new(device, u32::from(DEPTH), 32))
    }

    pub fn with_send_cq(device: &Device, options: QpOptions, send_cq: Cq) -> Self {
        let recv_cq = Cq::new(device, u32::from(DEPTH) * 4, 32);
        let sq = Pages::new(usize::from(DEPTH) * options.entry_size as usize);
        let rq = Pages::new(usize::from(DEPTH) * 16);
        let (sq_db, rq_db) = (Pages::new(8), Pages::new(8));
        let spec = QpSpec {
            pd: options.pd,
            kind: options.kind,
            send_cq: send_cq.index,
            recv_cq: recv_cq.index,
            sq: sq.ptr(),
            sq_bytes: u32::from(DEPTH) * options.entry_size,
            sq_entry_size: options.entry_size,
            sq_db: sq_db.ptr().cast(),
            rq: rq.ptr(),
            rq_bytes: u32::from(DEPTH) * 16,
            rq_db: rq_db.ptr().cast(),
            unsolicited: options.unsolicited,
        };
        // SAFETY: the pages live as long as `Qp`, which the tests drop after the engine has let go
        // of the queue pair.
        let number = unsafe { device.engine.create_qp(spec) }.unwrap();
        Self {
            sq,
            sq_db,
            rq,
            rq_db,
            entry_size: options.entry_size as usize,
            depth: DEPTH,
            posted: 0,
            received: 0,
            send_cq,
            recv_cq,
            number,
        }
    }

    pub fn connect(&self, device: &Device) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.modify(device, state);
        }
    }

    pub fn modify(&self, device: &Device, state: QpState) {
        let change = QpChange {
            state: Some(state),
            qkey: (state == QpState::Init).then_some(QKEY),
            ..QpChange::default()
        };
        device.engine.modify_qp(self.number, change).unwrap();
    }

    /// Writes entries and rings the doorbell once.
    pub fn post(&mut self, entries: &[Entry]) {
        for entry in entries {
            let mut bytes = entry.0;
            let phase = (self.posted / self.depth) % 2;
            bytes[3] |= phase as u8;
            let at = usize::from(self.posted % self.depth) * self.entry_size;
            self.sq.write(at, &bytes[..self.entry_size]);
            self.posted = self.posted.wrapping_add(1);
        }
        self.ring_send(self.posted);
    }

    pub fn ring_send(&self, value: u16) {
        self.sq_db
            .doorbell()
            .store(u32::from(value), Ordering::Release);
    }

    pub fn ring_recv(&self, value: u16) {
        self.rq_db
            .doorbell()
            .store(u32::from(value), Ordering::Release);
    }

    pub fn write_raw_send(&self, at: usize, bytes: &[u8]) {
        self.sq.write(at, bytes);
    }

    pub fn write_raw_recv(&self, at: usize, bytes: &[u8]) {
        self.rq.write(at, bytes);
    }

    /// Where the next receive goes in its ring.
    pub fn next_receive(&self) -> usize {
        usize::from(self.received % self.depth) * 16
    }

    /// Posts one receive.
    pub fn post_recv(&mut self, req_id: u16, buffers: &[(&[u8], u32)]) {
        for (i, (bytes, lkey)) in buffers.iter().enumerate() {
            let mut b = [0u8; 16];
            b[0..8].copy_from_slice(&(bytes.as_ptr() as u64).to_le_bytes());
            b[8..10].copy_from_slice(&req_id.to_le_bytes());
            b[10..12].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
            let first = u32::from(i == 0) << 30;
            let last = u32::from(i == buffers.len() - 1) << 31;
            b[12..16].copy_from_slice(&(lkey | first | last).to_le_bytes());
            self.rq
                .write(usize::from(self.received % self.depth) * 16, &b);
            self.received = self.received.wrapping_add(1);
        }
        self.ring_recv(self.received);
    }
}

/// A send entry under construction, by the offsets of `efa_io_defs.h`.
#[derive(Clone)]
pub struct Entry(pub [u8; 128]);

impl Entry {
    pub fn new(op: u8, req_id: u16, ah: u16, qpn: u16) -> Self {
        let mut b = [0; 128];
        b[0..2].copy_from_slice(&req_id.to_le_bytes());
        b[2] = 0x80 | op;
        b[3] = 0x1c;
        b[4..6].copy_from_slice(&qpn.to_le_bytes());
        b[12..14].copy_from_slice(&ah.to_le_bytes());
        b[16..20].copy_from_slice(&QKEY.to_le_bytes());
        Self(b)
    }

    pub fn send(req_id: u16, ah: u16, qpn: u16, buffers: &[(&[u8], u32)]) -> Self {
        let mut entry = Self::new(0, req_id, ah, qpn);
        entry.0[6] = buffers.len() as u8;
        for (i, (bytes, lkey)) in buffers.iter().enumerate() {
            entry.buffer(32 + 16 * i, bytes, *lkey);
        }
        entry
    }

    pub fn inline(req_id: u16, ah: u16, qpn: u16, bytes: &[u8]) -> Self {
        let mut entry = Self::new(0, req_id, ah, qpn);
        entry.0[2] |= 0x20;
        entry.0[6] = bytes.len() as u8;
        entry.0[32..32 + bytes.len()].copy_from_slice(bytes);
        entry
    }

    fn buffer(&mut self, at: usize, bytes: &[u8], lkey: u32) {
        self.0[at..at + 4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0[at + 4..at + 8].copy_from_slice(&lkey.to_le_bytes());
        self.0[at + 8..at + 16].copy_from_slice(&(bytes.as_ptr() as u64).to_le_bytes());
    }

    /// A read (1) or write (2).
    pub fn rdma(
        op: u8,
        req_id: u16,
        to: (u16, u16),
        local: (&[u8], u32),
        remote: (*const u8, u32),
    ) -> Self {
        let mut entry = Self::new(op, req_id, to.0, to.1);
        entry.0[6] = 1;
        entry.0[32..36].copy_from_slice(&(local.0.len() as u32).to_le_bytes());
        entry.0[36..40].copy_from_slice(&remote.1.to_le_bytes());
        entry.0[40..48].copy_from_slice(&(remote.0 as u64).to_le_bytes());
        entry.buffer(48, local.0, local.1);
        entry
    }

    pub fn imm(mut self, imm: u32) -> Self {
        self.0[2] |= 0x10;
        self.0[8..12].copy_from_slice(&imm.to_le_bytes());
        self
    }

    pub fn qkey(mut self, qkey: u32) -> Self {
        self.0[16..20].copy_from_slice(&qkey.to_le_bytes());
        self
    }
}

pub fn req_id(entry: &[u8; 32]) -> u16 {
    u16::from_le_bytes([entry[0], entry[1]])
}

/// Two devices, a connected queue pair on each, and the handles for one another.
pub struct Pair {
    pub a: Device,
    pub b: Device,
    pub qa: Qp,
    pub qb: Qp,
    pub to_b: u16,
    pub to_a: u16,
}

impl Pair {
    pub fn with(net: u8, faults: &str, seed: u64, options: QpOptions) -> Self {
        let a = Device::with(net, ProfileName::P5en, faults, seed);
        Self::of(a, net + 1, faults, seed, options)
    }

    /// A given device and another one.
    pub fn of(a: Device, last: u8, faults: &str, seed: u64, options: QpOptions) -> Self {
        let b = Device::with(last, ProfileName::P5en, faults, seed);
        let (to_b, to_a) = (a.handle(&b), b.handle(&a));
        let qa = Qp::unconnected(&a, options);
        let qb = Qp::unconnected(&b, options);
        qa.connect(&a);
        qb.connect(&b);
        Self {
            a,
            b,
            qa,
            qb,
            to_b,
            to_a,
        }
    }

    pub fn new(net: u8) -> Self {
        Self::with(net, "", 1, QpOptions::default())
    }

    /// The address of B for A's entries.
    pub fn b(&self) -> (u16, u16) {
        (self.to_b, self.qb.number)
    }
}

pub const ALL: Access = Access(7);

/// Bytes that differ by place and seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ (i >> 16) as u8 ^ seed)
        .collect()
}

/// Waits for something to become true; it will soon, or the test fails.
pub fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain");
        std::thread::sleep(Duration::from_micros(100));
    }
}
