//! The handshake against bytes that nobody sane would send.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Random, cases, endpoint};
use crate::address::{EndpointAddress, Gid};
use crate::handshake::wire::{self, Body, Frame, FrameReader, Id};
use crate::handshake::*;
use crate::remote::RemoteRegion;

fn runner() -> TestRunner {
    let cases = u32::try_from(cases(2_000)).unwrap_or(u32::MAX);
    TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

const A: Id = Id {
    incarnation: 1,
    nonce: 2,
};
const B: Id = Id {
    incarnation: 3,
    nonce: 4,
};

fn hello(user_data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::put_hello(
        &mut bytes,
        A,
        B,
        &endpoint(1, 2, 1),
        Capabilities::NONE,
        user_data,
    );
    bytes
}

fn ready() -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::put_ready(&mut bytes, A, B);
    bytes
}

#[test]
fn the_wire_format_is_what_the_documentation_says() {
    let bytes = hello(b"xy");
    assert_eq!(bytes.len(), 16 + 32 + 68 + 2);
    assert_eq!(bytes[..12], *b"EFAh\x01\x01\0\0\0\0\0\x66");
    assert_eq!(bytes[16..24], 1u64.to_be_bytes());
    assert_eq!(bytes[40..48], 4u64.to_be_bytes());
    assert_eq!(bytes[48..72], endpoint(1, 2, 1).address.to_bytes());
    assert_eq!(bytes[96..116], [0; 20]);
    assert_eq!(bytes[116..], *b"xy");
    // A checksum computed elsewhere (zlib), so that the table is not only consistent with itself.
    assert_eq!(ready()[12..16], 0xd7ca_05d6u32.to_be_bytes());
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let good = hello(b"");
    let damaged = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        wire::decode(&bytes, 64).unwrap_err()
    };
    assert_eq!(damaged(0, b'G'), FrameError::Foreign(*b"GFAh"));
    assert_eq!(damaged(4, 2), FrameError::Version { theirs: 2, ours: 1 });
    assert_eq!(damaged(5, 9), FrameError::Kind(9));
    assert_eq!(damaged(6, 1), FrameError::Reserved);
    assert_eq!(
        damaged(8, 1),
        FrameError::Oversized {
            len: (1 << 24) + 100,
            max: 164
        }
    );
    assert_eq!(damaged(11, 99), FrameError::Length(99));
    assert_eq!(damaged(12, good[12] ^ 1), FrameError::Checksum);
    assert_eq!(damaged(60, 0xff), FrameError::Checksum);
    assert_eq!(
        wire::decode(&good[..115], 64),
        Err(FrameError::Truncated {
            found: 115,
            expected: 116
        })
    );
    assert_eq!(
        wire::decode(&[&good[..], b"z"].concat(), 64),
        Err(FrameError::Length(101))
    );
    assert_eq!(
        wire::decode(b"", 64),
        Err(FrameError::Truncated {
            found: 0,
            expected: 16
        })
    );
    let mut anonymous = Vec::new();
    wire::put_ready(&mut anonymous, Id::UNKNOWN, A);
    assert_eq!(wire::decode(&anonymous, 64), Err(FrameError::NoIncarnation));
    assert!(matches!(
        wire::decode(&hello(&[0; 65]), 64),
        Err(FrameError::Oversized { len: 165, max: 164 })
    ));
    assert!(wire::decode(&hello(&[0; 64]), 64).is_ok());
}

#[test]
fn every_frame_survives_encoding_and_any_cutting_of_the_stream() {
    let ids = (1u64.., 1u64.., any::<u64>(), any::<u64>());
    let strategy = (
        ids,
        0..3u8,
        any::<[u64; 4]>(),
        prop::collection::vec(any::<u8>(), 0..300),
        any::<u64>(),
    );
    type Case = ((u64, u64, u64, u64), u8, [u64; 4], Vec<u8>, u64);
    let test = |((i, n, j, m), kind, [a, b, c, d], data, seed): Case| {
        let (from, to) = (
            Id {
                incarnation: i,
                nonce: n,
            },
            Id {
                incarnation: j,
                nonce: m,
            },
        );
        let mut bytes = Vec::new();
        let body = match kind {
            0 => {
                let mut info = endpoint(a as u8 | 1, b as u32 & 0xffff, i);
                info.capabilities = Capabilities::from_bits(c);
                (info.max_message, info.immediate_grant) = (d as u32, (d >> 32) as u32);
                info.grant_table = RemoteRegion::new(d, b, a as u32)
                    .ok()
                    .filter(|table| !table.is_empty());
                wire::put_hello(
                    &mut bytes,
                    from,
                    to,
                    &info,
                    Capabilities::from_bits(a),
                    &data,
                );
                let info = PeerInfo {
                    endpoint: info,
                    user_data: data,
                };
                Body::Hello {
                    info,
                    required: Capabilities::from_bits(a),
                }
            }
            1 => {
                wire::put_ready(&mut bytes, from, to);
                Body::Ready
            }
            _ => {
                let text: String = data
                    .iter()
                    .map(|byte| char::from(byte % 0x5f + 0x20))
                    .take(200)
                    .collect();
                let reason = RejectReason::Capabilities(Capabilities::from_bits(a));
                wire::put_reject(&mut bytes, from, to, reason, &text);
                Body::Reject { reason, text }
            }
        };
        let frame = Frame { from, to, body };
        let decoded = wire::decode(&bytes, 512);
        prop_assert_eq!(decoded.as_ref(), Ok(&frame));

        let mut random = Random::new(seed);
        let mut reader = FrameReader::new(512);
        let stream = bytes.repeat(3);
        let (mut at, mut frames) = (0, 0);
        while at < stream.len() {
            let count = 1 + random.below(reader.wanted() as u64) as usize;
            if let Some(read) = reader.push(&stream[at..at + count]).unwrap() {
                prop_assert_eq!(&read, &frame);
                frames += 1;
                // Never a byte beyond the frame.
                prop_assert_eq!((at + count) % bytes.len(), 0);
            }
            at += count;
        }
        prop_assert_eq!(frames, 3);
        Ok(())
    };
    runner().run(&strategy, test).unwrap();
}

#[test]
fn text_of_a_refusal_is_cut_at_a_character_and_stripped_of_control_characters() {
    let mut bytes = Vec::new();
    wire::put_reject(
        &mut bytes,
        A,
        B,
        RejectReason::Busy,
        &format!("\x1b[31m{}", "é".repeat(200)),
    );
    let Ok(Frame {
        body: Body::Reject { text, .. },
        ..
    }) = wire::decode(&bytes, 0)
    else {
        panic!()
    };
    assert_eq!(text, format!(" [31m{}", "é".repeat(125)));
}

/// Random bytes, and valid frames with random changes.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let frame = prop_oneof![
        Just(ready()),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|data| hello(&data)),
    ];
    let change = (any::<prop::sample::Index>(), any::<u8>());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        (frame, prop::collection::vec(change, 0..4), 0..3usize).prop_map(
            |(mut bytes, changes, cut)| {
                for (at, value) in changes {
                    let at = at.index(bytes.len());
                    bytes[at] = value;
                }
                bytes.truncate(bytes.len() - cut);
                bytes
            }
        ),
    ]
}

#[test]
fn no_bytes_panic_the_decoder_or_the_machine() {
    let strategy = (
        prop::collection::vec(garbage(), 1..6),
        any::<bool>(),
        any::<bool>(),
    );
    let test = |(frames, stream, first): (Vec<Vec<u8>>, bool, bool)| {
        let channel = match stream {
            true => Channel::Stream,
            false => Channel::Datagram {
                resend: Duration::from_millis(1),
            },
        };
        let config = HandshakeConfig::default()
            .channel(channel)
            .speak_first(first)
            .nonce(4)
            .max_user_data(64);
        let now = Instant::now();
        let mut machine = Handshake::new(endpoint(3, 4, 3), config, now).unwrap();
        let mut reader = FrameReader::new(64);
        for bytes in frames {
            let before = machine.phase();
            let result = machine.handle_frame(now, &bytes);
            if result.is_err() && !stream {
                prop_assert_eq!(machine.phase(), before);
            }
            if result.is_err() && stream && before == Phase::Greeting {
                prop_assert_eq!(machine.phase(), Phase::Failed);
            }
            while let Some(event) = machine.poll_event() {
                if let Event::Install(_) = event {
                    machine.installed(now);
                }
            }
            let mut out = Vec::new();
            let mut count = 0;
            while machine.poll_transmit(&mut out) {
                count += 1;
            }
            prop_assert!(count <= 2, "{} frames in answer to one", count);
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(reader.wanted().min(rest.len()));
                rest = after;
                if reader.push(piece).is_err() {
                    reader = FrameReader::new(64);
                }
            }
        }
        Ok(())
    };
    runner().run(&strategy, test).unwrap();
}

#[test]
fn no_text_or_bytes_panic_the_parsers_of_addresses_and_regions() {
    let strategy = (
        ".{0,60}",
        "[0-9a-fA-F]{36,50}",
        prop::collection::vec(any::<u8>(), 0..30),
    );
    let test = |(text, digits, bytes): (String, String, Vec<u8>)| {
        for text in [&text, &digits] {
            let _ = text.parse::<Gid>();
            if let Ok(address) = text.parse::<EndpointAddress>() {
                prop_assert_eq!(address.to_string(), text.to_lowercase());
            }
            if let Ok(region) = text.parse::<RemoteRegion>() {
                prop_assert_eq!(region.to_string(), text.to_lowercase());
            }
        }
        if let Ok(address) = EndpointAddress::try_from(bytes.as_slice()) {
            prop_assert_eq!(&address.to_bytes()[..], &bytes[..]);
        }
        if let Ok(region) = RemoteRegion::try_from(bytes.as_slice()) {
            prop_assert_eq!(&region.to_bytes()[..], &bytes[..]);
        }
        Ok(())
    };
    runner().run(&strategy, test).unwrap();
}

/// One end of a channel in memory that takes and gives few bytes at a time.
#[derive(Debug)]
struct Dribble {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
    random: u64,
    closed: bool,
}

impl Dribble {
    fn new(random: u64) -> Self {
        Dribble {
            incoming: VecDeque::new(),
            outgoing: Vec::new(),
            random,
            closed: false,
        }
    }

    fn some(&mut self, len: usize) -> io::Result<usize> {
        let mut random = Random(self.random);
        let count = random.below(8) as usize;
        self.random = random.next();
        match count.min(len) {
            0 if self.random.is_multiple_of(2) => Err(ErrorKind::WouldBlock.into()),
            0 => Err(ErrorKind::Interrupted.into()),
            count => Ok(count),
        }
    }
}

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.closed && self.incoming.is_empty() {
            return Ok(0);
        }
        let len = self.incoming.len().min(buffer.len());
        if len == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.some(len)?;
        for (to, from) in buffer.iter_mut().zip(self.incoming.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.some(bytes.len())?;
        self.outgoing.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_in_small_pieces_works_and_is_left_at_the_first_byte_behind_the_handshake() {
    for seed in 1..cases(300) {
        let mut stores = [
            Roster::new(endpoint(1, 1, 1)),
            Roster::new(endpoint(2, 2, 2)),
        ];
        let mut channels = [Dribble::new(seed), Dribble::new(seed ^ 0xabcdef)].map(Some);
        let mut sides = [0, 1].map(|me| {
            let config = HandshakeConfig::default()
                .speak_first(me == 0 || seed % 2 == 0)
                .user_data(vec![me as u8; (seed % 50) as usize]);
            let channel = channels[me].take().unwrap();
            Some(StreamHandshake::new(channel, &stores[me], config, Instant::now()).unwrap())
        });
        let mut done = [None, None];
        let mut turns = 0;
        while done.iter().any(Option::is_none) {
            turns += 1;
            assert!(turns < 10_000, "seed {seed}: hangs");
            for me in 0..2 {
                let Some(side) = &mut sides[me] else { continue };
                match side.poll(&mut stores[me], Instant::now()) {
                    Poll::Pending => {}
                    Poll::Ready(result) => {
                        let mut connected = result.unwrap();
                        // The next protocol on the channel starts at once.
                        connected.channel.outgoing.extend_from_slice(b"next");
                        done[me] = Some(connected);
                        sides[me] = None;
                    }
                }
            }
            // Moves the bytes.
            for me in 0..2 {
                let other = 1 - me;
                let bytes = match (&mut sides[me], &mut done[me]) {
                    (Some(side), _) => std::mem::take(&mut side.channel_mut().outgoing),
                    (None, Some(connected)) => std::mem::take(&mut connected.channel.outgoing),
                    (None, None) => continue,
                };
                match (&mut sides[other], &mut done[other]) {
                    (Some(side), _) => side.channel_mut().incoming.extend(bytes),
                    (None, Some(connected)) => connected.channel.incoming.extend(bytes),
                    (None, None) => {}
                }
            }
        }
        for (me, connected) in done.into_iter().enumerate() {
            let connected = connected.unwrap();
            assert_eq!(
                connected.info.user_data,
                vec![1 - me as u8; (seed % 50) as usize]
            );
            assert_eq!(connected.channel.incoming, b"next", "seed {seed}");
            assert_eq!(stores[me].standing(connected.peer), Standing::Active);
        }
    }
}

#[test]
fn a_stream_that_ends_early_is_an_error_and_leaves_nothing_installed() {
    let whole = hello(b"data");
    for cut in 0..=whole.len() {
        let mut store = Roster::new(endpoint(3, 4, 3));
        let mut channel = Dribble::new(5);
        let mut bytes = whole.clone();
        // Meant for whom it may concern.
        bytes.clear();
        wire::put_hello(
            &mut bytes,
            A,
            Id::UNKNOWN,
            &endpoint(1, 2, 1),
            Capabilities::NONE,
            b"data",
        );
        channel.incoming.extend(&bytes[..cut]);
        channel.closed = true;
        let error = connect_over(channel, &mut store, HandshakeConfig::default()).unwrap_err();
        match cut {
            0 => assert!(
                matches!(error, HandshakeError::Closed(Phase::Greeting)),
                "{error:?}"
            ),
            _ if cut < whole.len() => {
                assert!(
                    matches!(error, HandshakeError::Frame(FrameError::Truncated { .. })),
                    "{error:?}"
                )
            }
            _ => assert!(
                matches!(error, HandshakeError::Closed(Phase::Confirming)),
                "{error:?}"
            ),
        }
        assert!(store.is_empty());
    }
}

#[test]
fn an_endpoint_rebuilt_in_the_middle_fails_the_handshake() {
    let mut store = Roster::new(endpoint(3, 4, 3));
    let mut channel = Dribble::new(5);
    let config = HandshakeConfig::default().nonce(4);
    wire::put_hello(
        &mut channel.outgoing,
        A,
        Id::UNKNOWN,
        &endpoint(1, 2, 1),
        Capabilities::NONE,
        b"",
    );
    let ready = ready();
    channel
        .incoming
        .extend(std::mem::take(&mut channel.outgoing));
    channel.incoming.extend(ready);
    let mut side = StreamHandshake::new(channel, &store, config, Instant::now()).unwrap();
    store.set_local(endpoint(3, 5, 4));
    let result = loop {
        if let Poll::Ready(result) = side.poll(&mut store, Instant::now()) {
            break result;
        }
    };
    assert!(
        matches!(result, Err(HandshakeError::LocalChanged)),
        "{result:?}"
    );
    assert!(store.is_empty());
}

#[test]
fn user_data_that_nobody_could_receive_is_refused_at_once() {
    let config = HandshakeConfig::default().user_data(vec![0; MAX_USER_DATA + 1]);
    let error = Handshake::new(endpoint(1, 1, 1), config, Instant::now()).unwrap_err();
    assert!(matches!(error, HandshakeError::UserDataTooLong { .. }));
}

#[test]
fn a_confirmation_for_another_handshake_confirms_nothing() {
    let now = Instant::now();
    for stream in [true, false] {
        let channel = match stream {
            true => Channel::Stream,
            false => Channel::Datagram {
                resend: Duration::from_millis(1),
            },
        };
        let config = HandshakeConfig::default().channel(channel).nonce(4);
        let mut machine = Handshake::new(endpoint(3, 4, 3), config, now).unwrap();
        machine.handle_frame(now, &hello(b"")).unwrap();
        machine.installed(now);
        let mut other = Vec::new();
        wire::put_ready(&mut other, A, Id { nonce: 5, ..B });
        assert_eq!(machine.handle_frame(now, &other).is_err(), stream);
        let expected = match stream {
            true => Phase::Failed,
            false => Phase::Confirming,
        };
        assert_eq!(machine.phase(), expected);
        if !stream {
            machine.handle_frame(now, &ready()).unwrap();
            assert_eq!(machine.phase(), Phase::Established);
        }
    }
}
