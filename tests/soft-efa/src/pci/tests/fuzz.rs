//! A hostile guest, and a hostile client: nothing crashes or hangs, and nothing is touched that was
//! not lent.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;

use super::rig::*;
use crate::fuzz;
use crate::gid::gid_of;
use crate::pci::bars::shared_file;
use crate::pci::config::{DOORBELLS, RINGS};
use crate::pci::function::Function;
use crate::pci::server;

/// Bytes on either side of each range that is lent, which the device must leave alone.
const GUARD: u64 = 0x4000;
/// What stands in them.
const SECRET: [u8; 8] = *b"\xd1secret\xd1";

/// What a hostile guest does next.
#[derive(Clone, Debug)]
enum Step {
    Register(u64, u32),
    Access(u32, u64, Vec<u8>, bool),
    Command(u8, u8, Vec<u8>),
    Object(Object),
    Memory(u64, Vec<u8>),
    Map(u64, u64, u64, bool),
    Unmap(u64, u64),
    Ring(u8, u32, u32, Vec<u8>),
    Tick(u64),
    Reset,
}

/// A command that may well succeed.
#[derive(Clone, Debug)]
enum Object {
    Uar,
    Pd,
    Cq(u64, u8, u16, u8),
    Qp(u8, u8, u64, u32, u32),
    Ready(u8),
    Mr(u8, [u64; 4], u64, u64, u8, u8),
    Ah(u8, u8),
    Eq(u64, u16, u8),
    Destroy(u8, u8),
}

/// Addresses: mostly of the guest's memory, its edges, or other extremes.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..MEMORY / 4096).prop_map(|page| page * 4096),
        2 => 0..MEMORY,
        1 => MEMORY - 64..MEMORY + 64,
        1 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 4095), Just(1 << 47), any::<u64>()],
    ]
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        Just(Object::Uar),
        Just(Object::Pd),
        (
            address(),
            any::<u8>(),
            prop_oneof![Just(64u16), any::<u16>()],
            any::<u8>()
        )
            .prop_map(|(ring, words, depth, eq)| Object::Cq(ring, words, depth, eq)),
        (
            0..3u8,
            0..3u8,
            address(),
            prop_oneof![Just(64u32), 0..70_000u32, any::<u32>()],
            prop_oneof![Just(1024u32), 0..70_000u32, any::<u32>()],
        )
            .prop_map(|(pd, cq, rq, sends, receives)| Object::Qp(pd, cq, rq, sends, receives)),
        any::<u8>().prop_map(Object::Ready),
        (
            0..3u8,
            [address(), address(), address(), address()],
            address(),
            prop_oneof![0..40_000u64, any::<u64>()],
            prop_oneof![3 => Just(12u8), 1 => any::<u8>()],
            0..8u8,
        )
            .prop_map(|(pd, list, iova, length, shift, flags)| {
                Object::Mr(pd, list, iova, length, shift, flags)
            }),
        (0..3u8, 0..4u8).prop_map(|(pd, peer)| Object::Ah(pd, peer)),
        (
            address(),
            prop_oneof![Just(16u16), any::<u16>()],
            any::<u8>()
        )
            .prop_map(|(ring, depth, vector)| Object::Eq(ring, depth, vector)),
        (0..8u8, any::<u8>()).prop_map(|(kind, which)| Object::Destroy(kind, which)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |most| vec(any::<u8>(), 0..most);
    let register = prop_oneof![4 => (0..0x80u64).prop_map(|at| at & !3), 1 => 0..0x4000u64];
    prop_oneof![
        4 => (register, any::<u32>()).prop_map(|(at, value)| Step::Register(at, value)),
        2 => (0..12u32, prop_oneof![0..0x200u64, any::<u64>()], bytes(300), any::<bool>())
            .prop_map(|(region, at, data, write)| Step::Access(region, at, data, write)),
        4 => (0..30u8, 0..8u8, bytes(130))
            .prop_map(|(opcode, flags, payload)| Step::Command(opcode, flags << 1, payload)),
        20 => object().prop_map(Step::Object),
        4 => (address(), bytes(300)).prop_map(|(at, data)| Step::Memory(at, data)),
        1 => (address(), address(), 0..0x20000u64, any::<bool>())
            .prop_map(|(at, size, offset, write)| Step::Map(at, size, offset, write)),
        1 => (address(), address()).prop_map(|(at, size)| Step::Unmap(at, size)),
        8 => (any::<u8>(), 0..80u32, any::<u32>(), bytes(128))
            .prop_map(|(which, index, bell, entry)| Step::Ring(which, index, bell, entry)),
        1 => (0..100u64).prop_map(Step::Tick),
        1 => Just(Step::Reset),
    ]
}

/// A guest that keeps what it gets, to misuse it.
struct Guest {
    rig: Rig,
    /// The file behind the guest's memory, with guards.
    backing: File,
    uar: Vec<u16>,
    pds: Vec<u16>,
    cqs: Vec<u16>,
    qps: Vec<(u16, [u32; 3])>,
    mrs: Vec<u32>,
    ahs: Vec<(u16, u16)>,
    eqs: Vec<u16>,
    started: Instant,
}

fn pick<T: Copy + Default>(list: &[T], which: u8) -> T {
    match list.len() {
        0 => T::default(),
        count => list[usize::from(which) % count],
    }
}

impl Guest {
    fn new(entry: usize, profile: &str) -> Self {
        let mut rig = Rig::cold(0, &format!("addr=127.3.9.1 profile={profile}"));
        // The guest's memory in the middle of a larger file.
        assert!(rig.function.unmap(None));
        let backing = shared_file(c"fuzz", MEMORY + 2 * GUARD).unwrap();
        let guard = SECRET.repeat(GUARD as usize / 8);
        backing.write_all_at(&guard, 0).unwrap();
        backing.write_all_at(&guard, GUARD + MEMORY).unwrap();
        rig.function
            .map(0, MEMORY, Some(&backing), GUARD, true)
            .unwrap();
        rig.file = shared_file(c"unused", 0x20000).unwrap();
        let mut guest = Self {
            rig,
            backing,
            uar: Vec::new(),
            pds: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
            mrs: Vec::new(),
            ahs: Vec::new(),
            eqs: Vec::new(),
            started: Instant::now(),
        };
        guest.rig.lend(&guest.backing, GUARD, entry);
        guest.start();
        guest
    }

    fn start(&mut self) {
        self.rig.set_up();
        for list in [&mut self.uar, &mut self.pds, &mut self.cqs, &mut self.eqs] {
            list.clear();
        }
        self.qps.clear();
        self.mrs.clear();
        self.ahs.clear();
        // Something to begin with, so that few steps get far.
        for object in [
            Object::Uar,
            Object::Pd,
            Object::Eq(FREE, 16, 1),
            Object::Cq(FREE + 0x1000, 8, 64, 0),
            Object::Qp(0, 0, FREE + 0x3000, 64, 1024),
            Object::Ready(0),
            Object::Mr(0, [FREE + 0x8000, FREE, 0, 0], 0x1000, 8192, 12, 7),
            Object::Ah(0, 0),
        ] {
            self.object(&object);
        }
    }

    fn object(&mut self, object: &Object) {
        let ask = |rig: &mut Rig, opcode, flags, fields: &Fields| -> Option<Vec<u8>> {
            let (status, answer) = rig.try_admin(opcode, flags, fields)?;
            (status == 0).then_some(answer)
        };
        let uar = pick(&self.uar, 0);
        match *object {
            Object::Uar => {
                if let Some(answer) = ask(&mut self.rig, 16, 0, &Fields::default()) {
                    self.uar.push(u16_at(&answer, 0));
                }
            }
            Object::Pd => {
                if let Some(answer) = ask(&mut self.rig, 14, 0, &Fields::default()) {
                    self.pds.push(u16_at(&answer, 0));
                }
            }
            Object::Cq(ring, words, depth, eq) => {
                let fields = Fields::default()
                    .u8(if eq & 1 == 0 { 0x20 } else { eq })
                    .u8(if words & 1 == 0 { 8 } else { words })
                    .u16(depth)
                    .u16(pick(&self.eqs, eq))
                    .u16(0)
                    .u64(ring)
                    .u32(0)
                    .u16(1)
                    .u16(uar);
                if let Some(answer) = ask(&mut self.rig, 9, 0, &fields) {
                    self.cqs.push(u16_at(&answer, 0));
                }
            }
            Object::Qp(pd, cq, rq, sends, receives) => {
                let (pd, cq) = (pick(&self.pds, pd), pick(&self.cqs, cq));
                let mut fields = Rig::qp_fields(uar, pd, cq, rq);
                let mut put = |at: usize, value: u32| {
                    fields.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
                };
                put(36, sends.wrapping_mul(64));
                put(40, sends);
                put(44, receives);
                if let Some(answer) = ask(&mut self.rig, 1, 0, &fields) {
                    let places = [12, 16, 20].map(|at| u32_at(&answer, at));
                    self.qps.push((u16_at(&answer, 4), places));
                }
            }
            Object::Ready(which) => {
                let qp = pick(&self.qps, which).0;
                for (mask, state) in [(5, 1), (1, 2), (9, 3)] {
                    let fields = Fields::default()
                        .u32(mask)
                        .u32(qp.into())
                        .u32(state)
                        .u32(0)
                        .u32(1)
                        .u64(0);
                    ask(&mut self.rig, 2, 0, &fields);
                }
            }
            Object::Mr(pd, list, iova, length, shift, flags) => {
                let pd = pick(&self.pds, pd);
                let mut fields = Rig::mr_fields(pd, list, iova, length, shift);
                if flags & 3 == 1 {
                    // A buffer, whose length is near what it should be.
                    let bytes = (length.div_ceil(4096).div_ceil(512)).wrapping_mul(8) + 12;
                    fields.0[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
                    fields.0[8..16].copy_from_slice(&list[1].to_le_bytes());
                }
                if let Some(answer) = ask(&mut self.rig, 7, flags & 6, &fields) {
                    self.mrs.push(u32_at(&answer, 0));
                }
            }
            Object::Ah(pd, peer) => {
                let pd = pick(&self.pds, pd);
                let gid = gid_of(std::net::Ipv4Addr::new(127, 3, 9, 1 + peer));
                let fields = Fields(gid.to_vec()).u16(pd).u16(0);
                if let Some(answer) = ask(&mut self.rig, 5, 0, &fields) {
                    self.ahs.push((pd, u16_at(&answer, 0)));
                }
            }
            Object::Eq(ring, depth, vector) => {
                let fields = Fields::default()
                    .u16(depth)
                    .u8(vector & 0x3f)
                    .u8(4)
                    .u64(ring)
                    .u32(1)
                    .u32(0);
                if let Some(answer) = ask(&mut self.rig, 18, 0, &fields) {
                    let number = u16_at(&answer, 0);
                    self.rig
                        .set(register::EQ_DOORBELL, 1 << 31 | u32::from(number));
                    self.eqs.push(number);
                }
            }
            Object::Destroy(kind, which) => {
                let one = |value: u16| Fields::default().u16(value).u16(0);
                let (opcode, fields) = match kind {
                    0 => (17, one(pick(&self.uar, which))),
                    1 => (15, one(pick(&self.pds, which))),
                    2 => (10, one(pick(&self.cqs, which))),
                    3 => (4, Fields::default().u32(pick(&self.qps, which).0.into())),
                    4 => (8, Fields::default().u32(pick(&self.mrs, which))),
                    5 => {
                        let (pd, ah) = pick(&self.ahs, which);
                        (6, Fields::default().u16(ah).u16(pd))
                    }
                    6 => (19, one(pick(&self.eqs, which))),
                    _ => (3, Fields::default().u32(pick(&self.qps, which).0.into())),
                };
                ask(&mut self.rig, opcode, 0, &fields);
            }
        }
    }

    /// A send or receive entry that is right in places, and a doorbell.
    fn ring(&mut self, which: u8, index: u32, bell: u32, noise: &[u8]) {
        let (qp, [send_bell, recv_bell, ring]) = pick(&self.qps, which);
        let key = pick(&self.mrs, which);
        let to = pick(&self.qps, which.wrapping_add(1)).0;
        let ah = pick(&self.ahs, which).1;
        let mut entry = Fields::default()
            .u16(index as u16)
            .u8(0x80 | (bell >> 8 & 3) as u8)
            .u8(0x1c)
            .u16(if bell & 4 == 0 { qp } else { to })
            .u16(1)
            .u32(0)
            .u16(ah)
            .u16(0)
            .u32(1)
            .u64(0)
            .u32(0)
            .u32(bell >> 12 & 0xfff)
            .u32(key)
            .u64(0x1000)
            .u32(0x40)
            .u32(key)
            .u64(0x1000)
            .0;
        if bell & 3 == 3 {
            for (byte, noise) in entry.iter_mut().zip(noise) {
                *byte ^= noise;
            }
        }
        let place = u64::from(ring) + u64::from(index) * 64;
        // What lies beyond the BAR is refused.
        let _ = self.rig.function.region_write(RINGS, place, &entry);
        let count = if bell & 0x30 == 0x30 { bell } else { index + 1 };
        for bar in [send_bell, recv_bell] {
            let _ = self
                .rig
                .function
                .region_write(DOORBELLS, bar.into(), &count.to_le_bytes());
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Register(at, value) => {
                let _ = self.rig.function.region_write(0, *at, &value.to_le_bytes());
            }
            Step::Access(region, at, data, write) => {
                if *write {
                    let _ = self.rig.function.region_write(*region, *at, data);
                } else {
                    let _ = self
                        .rig
                        .function
                        .region_read(*region, *at, &mut data.clone());
                }
            }
            Step::Command(opcode, flags, payload) => {
                self.rig
                    .try_admin(*opcode, *flags, &Fields(payload.clone()));
            }
            Step::Object(object) => self.object(object),
            Step::Memory(at, data) => {
                if at
                    .checked_add(data.len() as u64)
                    .is_some_and(|end| end <= MEMORY)
                {
                    self.backing.write_all_at(data, GUARD + at).unwrap();
                }
            }
            Step::Map(at, size, offset, write) => {
                let file = &self.rig.file;
                let _ = self
                    .rig
                    .function
                    .map(*at, *size, Some(file), *offset, *write);
            }
            Step::Unmap(at, size) => {
                let _ = self.rig.function.unmap(Some((*at, *size)));
            }
            Step::Ring(which, index, bell, noise) => self.ring(*which, *index, *bell, noise),
            Step::Tick(seconds) => {
                let later = self.started + Duration::from_secs(*seconds);
                self.rig.function.tick(later);
            }
            Step::Reset => {
                self.rig.function.reset();
                self.start();
            }
        }
    }

    /// The guards are as they were, and what stands in them is nowhere else.
    fn check(&self) -> Result<(), TestCaseError> {
        let mut guard = vec![0; GUARD as usize];
        for at in [0, GUARD + MEMORY] {
            self.backing.read_exact_at(&mut guard, at).unwrap();
            prop_assert!(
                guard == SECRET.repeat(GUARD as usize / 8),
                "something was written outside of the guest's memory, near {at:#x}"
            );
        }
        let memory = {
            let mut bytes = vec![0; MEMORY as usize];
            self.backing.read_exact_at(&mut bytes, GUARD).unwrap();
            bytes
        };
        // SAFETY: both ranges are as long as said.
        let leaked = unsafe {
            libc::memmem(
                memory.as_ptr().cast(),
                memory.len(),
                SECRET[1..].as_ptr().cast(),
                SECRET.len() - 1,
            )
        };
        prop_assert!(
            leaked.is_null(),
            "something outside of the guest's memory was read"
        );
        Ok(())
    }
}

#[test]
fn a_hostile_guest_touches_nothing_but_its_own() {
    let profiles = prop_oneof![Just("c5n"), Just("p5en"), Just("p6")];
    let input = (
        prop_oneof![Just(64usize), Just(128)],
        profiles,
        vec(step(), 1..60),
    );
    fuzz::run("hostile guest", &input, |(entry, profile, steps)| {
        let mut guest = Guest::new(entry, profile);
        for step in &steps {
            guest.step(step);
        }
        // What was posted is done, or flushed.
        std::thread::sleep(Duration::from_micros(300));
        guest.rig.function.disconnect();
        guest.check()
    });
}

/// A message of a client: a header that is right in places, a body, and how many descriptors.
fn message() -> impl Strategy<Value = (Vec<u8>, u8)> {
    let length = prop_oneof![8 => Just(None), 1 => any::<u32>().prop_map(Some)];
    let flags = prop_oneof![8 => Just(0u32), 2 => Just(0x10), 1 => any::<u32>()];
    let body = prop_oneof![
        vec(any::<u8>(), 0..80),
        vec(
            prop_oneof![Just(0u8), Just(1), Just(2), Just(4), Just(32)],
            0..80
        ),
    ];
    (any::<u16>(), 0..18u16, length, flags, body, 0..3u8).prop_map(
        |(id, command, length, flags, body, files)| {
            let length = length.unwrap_or(16 + body.len() as u32);
            let header = Fields::default()
                .u16(id)
                .u16(command)
                .u32(length)
                .u32(flags)
                .u32(0);
            ([header.0, body].concat(), files)
        },
    )
}

#[test]
fn a_hostile_client_is_answered_or_cut_off() {
    let options = "addr=127.3.9.9".parse().unwrap();
    let function = Arc::new(Mutex::new(Function::new(0, &options).unwrap()));
    fuzz::run("hostile client", &vec(message(), 1..30), |messages| {
        let (mut client, stream) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        let function = function.clone();
        let served = std::thread::spawn(move || server::serve(&function, stream));
        for (bytes, _) in &messages {
            // A server that has cut us off takes no more.
            if client.write_all(bytes).is_err() {
                break;
            }
            let mut answers = [0; 4096];
            while matches!(std::io::Read::read(&mut client, &mut answers), Ok(1..)) {}
        }
        drop(client);
        prop_assert!(served.join().is_ok(), "the server panicked");
        Ok(())
    });
}
