//! Whatever arrives on a socket or stands in a ring: no crash, no hang, nothing touched that was not
//! offered, and what is valid goes on.

use std::cell::RefCell;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::garbage::{encode, frame, write_works};
use super::rig::*;
use crate::engine::wire::{self, Frame, Header};
use crate::engine::{QpKind, QpState};
use crate::fuzz;

/// What is done to a datagram after it was made.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// A byte is another, and the check sum is as it was.
    Byte(u16, u8),
    /// A byte of the prefix is another, and the check sum is right.
    Sealed(u16, u8),
    /// The end is missing.
    Cut(u16),
    /// More comes behind.
    More(u16),
    /// The header says another number of frames.
    Frames(u8),
}

fn damage() -> impl Strategy<Value = Option<Damage>> {
    prop_oneof![
        3 => Just(None),
        1 => any::<(u16, u8)>().prop_map(|(at, with)| Some(Damage::Byte(at, with))),
        3 => (0u16..200, any::<u8>()).prop_map(|(at, with)| Some(Damage::Sealed(at, with))),
        1 => any::<u16>().prop_map(|by| Some(Damage::Cut(by))),
        1 => (1u16..3000).prop_map(|by| Some(Damage::More(by))),
        1 => any::<u8>().prop_map(|frames| Some(Damage::Frames(frames))),
    ]
}

/// Payload bytes that are never those of memory that nobody may read.
const PAYLOAD: u8 = 0x21;
const SECRET: u8 = 0xee;

/// The datagram with these frames and payloads for them.
fn datagram(header: &Header, frames: &[Frame], damage: Option<Damage>) -> Vec<u8> {
    let mut bytes = encode(header, frames);
    let prefix = bytes.len();
    match damage {
        Some(Damage::Sealed(at, with)) => {
            let at = usize::from(at) % prefix;
            bytes[at] = with;
            reseal(&mut bytes, frames.len());
        }
        Some(Damage::Frames(count)) => reseal(&mut bytes, usize::from(count)),
        _ => {}
    }
    let payload: usize = frames
        .iter()
        .map(|frame| match frame {
            Frame::Data(data) => data.payload(),
            _ => 0,
        })
        .sum();
    bytes.resize(prefix + payload.min(60_000 - prefix), PAYLOAD);
    match damage {
        Some(Damage::Byte(at, with)) => {
            let at = usize::from(at) % bytes.len();
            bytes[at] = with;
        }
        Some(Damage::Cut(by)) => bytes.truncate(usize::from(by) % bytes.len()),
        Some(Damage::More(by)) => bytes.resize(bytes.len() + usize::from(by), PAYLOAD),
        _ => {}
    }
    bytes
}

/// Makes the sum right again, unless it is the lengths that are wrong.
fn reseal(prefix: &mut [u8], frames: usize) {
    wire::seal(prefix, frames);
}

#[test]
fn datagrams_are_parsed_without_harm() {
    let made = (
        any::<(u64, u64, u32)>(),
        prop::collection::vec(frame(), 0..8),
        damage(),
    )
        .prop_map(|((source, dest, lowest), frames, damage)| {
            let header = Header {
                source,
                dest,
                lowest,
                ..Header::default()
            };
            datagram(&header, &frames, damage)
        });
    let noise = prop::collection::vec(any::<u8>(), 0..300);
    let bytes = prop_oneof![4 => made, 1 => noise];
    fuzz::run("datagrams_are_parsed_without_harm", &bytes, |bytes| {
        // As it is parsed when it was taken whole, and when only its beginning was looked at.
        let mut frames = Vec::new();
        for len in [bytes.len(), bytes.len().min(crate::engine::inbox::PEEK)] {
            let Some(parsed) = wire::parse(&bytes[..len]) else {
                continue;
            };
            prop_assert!(parsed.prefix <= len);
            let payload = bytes.len() - parsed.prefix;
            if parsed.frames(payload, &mut frames).is_none() {
                continue;
            }
            let announced: usize = frames
                .iter()
                .map(|frame| match frame {
                    Frame::Data(data) => data.payload(),
                    _ => 0,
                })
                .sum();
            prop_assert_eq!(announced, payload);
            for frame in &frames {
                if let Frame::Data(data) = frame {
                    prop_assert!(data.packet < data.packets);
                    prop_assert!(
                        data.offset
                            .checked_add(data.len)
                            .is_some_and(|end| end <= data.total)
                    );
                }
            }
        }
        Ok(())
    });
}

/// Bytes that a device may use, amid bytes that nobody may.
struct Guarded(Vec<AtomicU8>);

impl Guarded {
    const GUARD: usize = 4096;
    const ROOM: usize = 8192;

    fn new() -> Self {
        let bytes = (0..2 * Self::GUARD + Self::ROOM).map(|at| {
            let inside = (Self::GUARD..Self::GUARD + Self::ROOM).contains(&at);
            AtomicU8::new(if inside { 0 } else { SECRET })
        });
        Self(bytes.collect())
    }

    /// The part to register.
    fn room(&self) -> &[u8] {
        let room = &self.0[Self::GUARD..Self::GUARD + Self::ROOM];
        // SAFETY: bytes in a row that live as long as the reference. It is used for its address
        // and length alone.
        unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), room.len()) }
    }

    /// Whether nobody wrote beside the part. What was written is mended, for the next case.
    fn is_guarded(&self) -> bool {
        let (before, rest) = self.0.split_at(Self::GUARD);
        let guards = before.iter().chain(&rest[Self::ROOM..]);
        let strange = |byte: &&AtomicU8| byte.swap(SECRET, Ordering::Relaxed) != SECRET;
        guards.filter(strange).count() == 0
    }

    fn is_untouched(&self) -> bool {
        let room = &self.0[Self::GUARD..Self::GUARD + Self::ROOM];
        room.iter().all(|byte| byte.load(Ordering::Relaxed) == 0)
    }
}

/// What a stranger sends: frames, how they are damaged, and whether the header names anybody.
fn packets() -> impl Strategy<Value = Vec<(Vec<Frame>, Option<Damage>, u64)>> {
    let dest = prop_oneof![2 => any::<u64>(), 1 => Just(0u64)];
    let packet = (prop::collection::vec(frame(), 1..4), damage(), dest);
    prop::collection::vec(packet, 1..40)
}

/// Aims data frames at memory that is there, so that nothing but the sender is wrong with them.
fn aim(frames: &mut [Frame], rkey: u32, address: u64, qkey: u32) {
    for frame in frames {
        if let Frame::Data(data) = frame {
            (data.rkey, data.address, data.qkey) = (rkey, address, qkey);
        }
    }
}

/// A socket of somebody who has no queue pair.
fn stranger(device: &Device) -> UdpSocket {
    let socket = UdpSocket::bind((device.ip, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

#[test]
fn strangers_change_nothing() {
    let p = RefCell::new(Pair::new(111));
    write_works(&mut p.borrow_mut());
    let offered = Guarded::new();
    let (number, key) = {
        let p = &mut *p.borrow_mut();
        let key = p.b.register(offered.room(), ALL);
        p.qb.post_recv(1, &[(offered.room(), key)]);
        (p.qb.number, key)
    };
    // Kept even if the test fails: the engine outlives this function's frame.
    let datagrams = std::mem::ManuallyDrop::new(Qp::unconnected(
        &p.borrow().b,
        QpOptions {
            kind: QpKind::Ud,
            ..QpOptions::default()
        },
    ));
    datagrams.connect(&p.borrow().b);
    let socket = stranger(&p.borrow().a);
    let ip = p.borrow().b.ip;
    fuzz::run("strangers_change_nothing", &packets(), |packets| {
        for (i, (mut frames, damage, dest)) in packets.into_iter().enumerate() {
            // Queue pairs for datagrams know no incarnation; there it is the key that is wrong.
            let ud = i % 4 == 3;
            let qkey = if ud { QKEY ^ 1 } else { QKEY };
            aim(&mut frames, key, offered.room().as_ptr() as u64, qkey);
            let header = Header {
                source: i as u64 + 1,
                dest,
                ..Header::default()
            };
            let bytes = datagram(&header, &frames, damage);
            let to = if ud { datagrams.number } else { number };
            let _ = socket.send_to(&bytes, (ip, to));
        }
        let p = &mut *p.borrow_mut();
        write_works(p);
        prop_assert!(offered.is_untouched() && offered.is_guarded());
        prop_assert_eq!(p.b.counter("completions_recv"), 0);
        prop_assert_eq!(p.b.engine.qp_state(number), QpState::Rts);
        Ok(())
    });
    let p = p.into_inner();
    assert!(p.b.counter("datagrams_malformed") > 0);
    assert!(p.b.counter("datagrams_wrong_incarnation") > 0);
    p.b.engine.destroy_qp(datagrams.number);
}

/// Learns the incarnation of a queue pair, as any requester does.
fn introduce(socket: &UdpSocket, to: (std::net::Ipv4Addr, u16), source: u64) -> Option<u64> {
    let header = Header {
        source,
        ..Header::default()
    };
    socket
        .send_to(&encode(&header, &[Frame::Hello]), to)
        .unwrap();
    let start = Instant::now();
    let mut bytes = [0; 65536];
    while start.elapsed() < Duration::from_secs(10) {
        match socket.recv(&mut bytes) {
            Ok(len) => {
                let parsed = wire::parse(&bytes[..len]).unwrap();
                let mut frames = Vec::new();
                let fine = parsed.frames(len - parsed.prefix, &mut frames).is_some();
                if fine && matches!(frames[..], [Frame::Welcome { .. }]) {
                    return Some(parsed.header.source);
                }
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[test]
fn a_hostile_peer_reaches_what_it_was_offered_and_nothing_else() {
    let p = RefCell::new(Pair::new(113));
    write_works(&mut p.borrow_mut());
    let offered = Guarded::new();
    let key = p.borrow().b.register(offered.room(), ALL);
    let socket = stranger(&p.borrow().a);
    let to = (p.borrow().b.ip, p.borrow().qb.number);
    let incarnation = introduce(&socket, to, 7).expect("no answer to a greeting");
    let peer = (packets(), place(), any::<u16>());
    let name = "a_hostile_peer_reaches_what_it_was_offered_and_nothing_else";
    let (sequence, read) = (RefCell::new(0u32), RefCell::new(0u64));
    fuzz::run(name, &peer, |(packets, place, lowest)| {
        let mut p = p.borrow_mut();
        p.qb.post_recv(1, &[(offered.room(), key)]);
        for (mut frames, damage, _) in packets {
            aim(&mut frames, key, 0, QKEY);
            // Mostly the messages that are due, which a peer has to know to be heard.
            let mut sequence = sequence.borrow_mut();
            for frame in &mut frames {
                if let Frame::Data(data) = frame {
                    data.address = place.address(offered.room(), data.total);
                    if data.near == 0 {
                        // The end of a message is what may reach too far.
                        data.len = data.len.min(data.total);
                        data.offset = data.total - data.len;
                    }
                    data.seq = sequence.wrapping_add(data.seq % 4);
                    *sequence = sequence.wrapping_add(data.seq & 1);
                }
            }
            let header = Header {
                source: 7,
                dest: incarnation,
                lowest: sequence.wrapping_sub(u32::from(lowest % 8)),
                ..Header::default()
            };
            let _ = socket.send_to(&datagram(&header, &frames, damage), to);
        }
        write_works(&mut p);
        prop_assert!(
            offered.is_guarded(),
            "memory was written that was not offered"
        );
        while p.qb.recv_cq.poll().is_some() {}
        let mut bytes = [0; 65536];
        let mut frames = Vec::new();
        while let Ok(len) = socket.recv(&mut bytes) {
            let parsed = wire::parse(&bytes[..len]).unwrap();
            let payload = &bytes[parsed.prefix..len];
            prop_assert!(parsed.frames(payload.len(), &mut frames).is_some());
            prop_assert!(
                !payload.contains(&SECRET),
                "memory was read that was not offered"
            );
            *read.borrow_mut() += payload.len() as u64;
        }
        Ok(())
    });
    let p = p.into_inner();
    assert!(
        p.b.counter("bytes_received") > 0 && *read.borrow() > 0,
        "nothing got through"
    );
}

/// Where a message lies: its first byte around the first one that is offered, or its last byte
/// around the last one.
#[derive(Clone, Copy, Debug)]
enum Place {
    First(i8),
    Last(i8),
    Inside(u16),
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        2 => any::<i8>().prop_map(Place::First),
        2 => any::<i8>().prop_map(Place::Last),
        3 => (0u16..5000).prop_map(Place::Inside),
    ]
}

impl Place {
    fn address(self, room: &[u8], len: u32) -> u64 {
        let start = room.as_ptr() as u64;
        match self {
            Self::First(by) => start.wrapping_add_signed(by.into()),
            Self::Last(by) => (start + room.len() as u64)
                .wrapping_sub(len.into())
                .wrapping_add_signed(by.into()),
            Self::Inside(at) => start + u64::from(at),
        }
    }
}

/// A request: its operation, where its memory is here and there, and words of it that are others.
type Request = (u8, [Place; 2], Vec<(u8, u32)>);

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let word = prop_oneof![
        3 => 0u32..5,
        2 => 0u32..20_000,
        1 => any::<u32>(),
        1 => Just(u32::MAX),
    ];
    let op = prop_oneof![6 => 0u8..3, 1 => any::<u8>()];
    let changes = prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec((0u8..16, word), 1..3),
    ];
    prop::collection::vec((op, [place(), place()], changes), 1..30)
}

#[test]
fn spoilt_requests_touch_what_was_registered_and_nothing_else() {
    let p = RefCell::new(Pair::new(115));
    let (here, there) = (Guarded::new(), Guarded::new());
    let (lkey, rkey) = {
        let p = p.borrow();
        (
            p.a.register(here.room(), ALL),
            p.b.register(there.room(), ALL),
        )
    };
    let name = "spoilt_requests_touch_what_was_registered_and_nothing_else";
    let receive = (
        any::<u8>(),
        any::<u32>(),
        prop::option::weighted(0.1, any::<u16>()),
    );
    fuzz::run(
        name,
        &(requests(), receive),
        |(requests, (which, spoilt, bell))| {
            let p = &mut *p.borrow_mut();
            for id in 0..8 {
                p.qb.post_recv(
                    id,
                    &[(&there.room()[..4000], rkey), (&there.room()[4000..], rkey)],
                );
            }
            // The next receive is spoilt before the device is told of it.
            let at = p.qb.next_receive();
            p.qb.post_recv(9, &[(there.room(), rkey)]);
            let word = spoilt.to_le_bytes();
            p.qb.write_raw_recv(at + usize::from(which % 2) * 8, &[word, word].concat());
            for (op, [local, remote], changes) in requests {
                let mut entry = match op {
                    0 => Entry::send(1, p.to_b, p.qb.number, &[(&here.room()[..900], lkey)]),
                    _ => Entry::rdma(
                        op,
                        1,
                        p.b(),
                        (&here.room()[..5000], lkey),
                        (there.room().as_ptr(), rkey),
                    ),
                };
                let local = local.address(here.room(), if op == 0 { 900 } else { 5000 });
                let remote = remote.address(there.room(), 5000);
                entry.0[40..48]
                    .copy_from_slice(&if op == 0 { local } else { remote }.to_le_bytes());
                if op != 0 {
                    entry.0[56..64].copy_from_slice(&local.to_le_bytes());
                }
                for (at, value) in changes {
                    let at = usize::from(at) * 4;
                    entry.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
                }
                p.qa.post(&[entry]);
            }
            if let Some(value) = bell {
                // Either nonsense, or an announcement of what was posted long ago.
                p.qa.ring_send(value);
            }
            drain(p);
            prop_assert!(
                here.is_guarded() && there.is_guarded(),
                "other memory was written"
            );
            Ok(())
        },
    );
}

/// Waits for the completions of what was posted, and makes new queue pairs where too much went
/// wrong to go on with these.
fn drain(p: &mut Pair) {
    let (a, b) = (Qp::new(&p.a), Qp::new(&p.b));
    let (old_a, old_b) = (
        std::mem::replace(&mut p.qa, a),
        std::mem::replace(&mut p.qb, b),
    );
    write_works(p);
    p.a.engine.destroy_qp(old_a.number);
    p.b.engine.destroy_qp(old_b.number);
    for qp in [&old_a, &old_b] {
        let device = if std::ptr::eq(qp, &old_a) { &p.a } else { &p.b };
        device.engine.destroy_cq(qp.send_cq.index);
        device.engine.destroy_cq(qp.recv_cq.index);
    }
}
