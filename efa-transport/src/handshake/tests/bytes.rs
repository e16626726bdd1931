//! The handshake against bytes that nobody sane would send.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::{Store, cases, endpoint};
use crate::address::EndpointAddress;
use crate::handshake::error::Step;
use crate::handshake::machine::{Event, Machine};
use crate::handshake::wire::{self, Frame, FrameError, FrameReader, Hello};
use crate::handshake::*;
use crate::remote::RemoteRegion;
use efa_verbs::Gid;

fn runner() -> TestRunner {
    let cases = u32::try_from(cases(2_000)).unwrap_or(u32::MAX);
    TestRunner::new(ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })
}

const NONCE: u64 = 2;
const OURS: u64 = 4;

fn hello(user_data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let info = endpoint(1, 2, 1);
    wire::put_hello(&mut bytes, &info, NONCE, Capabilities::empty(), user_data);
    bytes
}

fn ready(answers: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::put_ready(&mut bytes, answers);
    bytes
}

#[test]
fn the_wire_format_is_what_the_documentation_says() {
    let bytes = hello(b"xy");
    assert_eq!(bytes.len(), 12 + 60 + 2);
    assert_eq!(bytes[..12], *b"EFAh\x02\x01\0\0\0\0\0\x3e");
    assert_eq!(bytes[12..20], 1u64.to_be_bytes());
    assert_eq!(bytes[20..28], NONCE.to_be_bytes());
    assert_eq!(bytes[28..52], endpoint(1, 2, 1).address.to_bytes());
    assert_eq!(bytes[52..60], 0b1001u64.to_be_bytes());
    assert_eq!(bytes[60..68], [0; 8]);
    assert_eq!(bytes[68..72], 8192u32.to_be_bytes());
    assert_eq!(bytes[72..], *b"xy");
    assert_eq!(ready(7), *b"EFAh\x02\x02\0\0\0\0\0\x08\0\0\0\0\0\0\0\x07");
}

#[test]
fn each_kind_of_damage_has_its_own_error() {
    let good = hello(b"");
    let damaged = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        wire::decode(&bytes, 64).unwrap_err()
    };
    let malformed = |at, value, what: &str| match damaged(at, value) {
        FrameError::Malformed(text) => assert!(text.contains(what), "{text}"),
        other => panic!("{other:?}"),
    };
    assert_eq!(damaged(0, b'G'), FrameError::Foreign(*b"GFAh"));
    assert_eq!(damaged(4, 1), FrameError::Version(1));
    malformed(5, 9, "kind 9");
    malformed(6, 1, "reserved");
    malformed(11, 59, "59 bytes");
    malformed(11, 61, "cut off");
    malformed(19, 0, "incarnation");
    malformed(44, 1, "queue pair number");
    assert_eq!(
        damaged(8, 1),
        FrameError::TooLong {
            length: 1 << 24,
            limit: 64
        }
    );
    assert!(wire::decode(b"", 64).is_err() && wire::decode(&good[..71], 64).is_err());
    assert!(matches!(
        wire::decode(&hello(&[0; 65]), 64),
        Err(FrameError::TooLong {
            length: 65,
            limit: 64
        })
    ));
    assert!(wire::decode(&hello(&[0; 64]), 64).is_ok());
}

#[test]
fn a_peer_of_another_version_is_refused_with_both_versions() {
    // The first bytes of a hello of version 1.
    let mut stream = Stream::of(b"EFAh\x01\x01\0\0\0\0\0\x64");
    let error = run_over(
        &mut stream,
        &mut Store::new(endpoint(3, 4, 3)),
        HandshakeConfig::default(),
    )
    .unwrap_err();
    assert!(matches!(
        error.kind(),
        HandshakeErrorKind::Version { theirs: 1, ours: 2 }
    ));
    assert!(error.to_string().contains("version 1"), "{error}");
    // The peer is told as well: magic, version and kind are where version 1 has them.
    let out = stream.written;
    let reject = out.len() - out.windows(4).rev().position(|w| w == b"EFAh").unwrap() - 4;
    assert_eq!(out[reject..reject + 6], *b"EFAh\x02\x03");
}

#[test]
fn every_frame_survives_encoding_and_any_cutting_of_the_stream() {
    let strategy = (
        0..3u8,
        any::<[u64; 4]>(),
        prop::collection::vec(any::<u8>(), 0..300),
        any::<u64>(),
    );
    type Case = (u8, [u64; 4], Vec<u8>, u64);
    let test = |(kind, [a, b, c, d], data, seed): Case| {
        let mut bytes = Vec::new();
        let capabilities = Capabilities::from_bits_retain(a);
        let frame = match kind {
            0 => {
                let info = EndpointInfo {
                    capabilities: Capabilities::from_bits_retain(c),
                    max_message: d as u32,
                    ..endpoint(a as u8 | 1, b as u32 & 0xffff, d | 1)
                };
                wire::put_hello(&mut bytes, &info, b, capabilities, &data);
                Frame::Hello(Hello {
                    info,
                    nonce: b,
                    required: capabilities,
                    user_data: data,
                })
            }
            1 => {
                wire::put_ready(&mut bytes, a);
                Frame::Ready { answers: a }
            }
            _ => {
                let printable = data.iter().map(|byte| char::from(byte % 0x5f + 0x20));
                let text: String = printable.take(200).collect();
                let reason = RejectReason::Capabilities(capabilities);
                wire::put_reject(&mut bytes, reason, &text);
                Frame::Reject { reason, text }
            }
        };
        let decoded = wire::decode(&bytes, 512);
        prop_assert_eq!(decoded.as_ref(), Ok(&frame));

        let mut random = fastrand::Rng::with_seed(seed);
        let mut reader = FrameReader::new(512);
        let stream = bytes.repeat(3);
        let (mut at, mut frames) = (0, 0);
        while at < stream.len() {
            let count = random.usize(1..=reader.wanted());
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
    let text = format!("\x1b[31m{}", "é".repeat(200));
    wire::put_reject(&mut bytes, RejectReason::Busy, &text);
    let Ok(Frame::Reject { text, .. }) = wire::decode(&bytes, 0) else {
        panic!()
    };
    assert_eq!(text, format!(" [31m{}", "é".repeat(125)));
}

/// Random bytes, and valid frames with random changes.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let frame = prop_oneof![
        Just(ready(OURS)),
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
fn no_bytes_panic_the_reader_or_the_machine_and_memory_stays_bounded() {
    let strategy = (prop::collection::vec(garbage(), 1..6), any::<bool>());
    let test = |(frames, first): (Vec<Vec<u8>>, bool)| {
        let config = HandshakeConfig::default().speak_first(first);
        let mut machine = Machine::new(endpoint(3, 4, 3), config, OURS);
        let mut reader = FrameReader::new(64);
        for bytes in frames {
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(reader.wanted().min(rest.len()));
                rest = after;
                match reader.push(piece) {
                    Ok(Some(frame)) => machine.handle(frame),
                    Ok(None) => {}
                    Err(error) => {
                        machine.fail(error.into());
                        reader = FrameReader::new(64);
                    }
                }
                if let Some(Event::Install(..)) = machine.take_event() {
                    machine.installed();
                }
                // A hello, a ready, and a reject with its text.
                prop_assert!(machine.out.len() <= 72 + 20 + 24 + 256);
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

#[test]
fn frames_out_of_turn_break_the_handshake() {
    let cases: [(&[Vec<u8>], &str); 4] = [
        (&[ready(OURS)], "before the hello"),
        (&[hello(b""), hello(b"")], "second hello"),
        (&[hello(b""), ready(5)], "another handshake"),
        (
            &[hello(b""), ready(OURS), ready(OURS)],
            "second confirmation",
        ),
    ];
    for (frames, what) in cases {
        let mut machine = Machine::new(endpoint(3, 4, 3), HandshakeConfig::default(), OURS);
        for bytes in frames {
            machine.handle(wire::decode(bytes, 64).unwrap());
        }
        // The last one broke it, and the address handle makes no difference any more.
        let Some(Event::Failed(error)) = machine.take_event() else {
            panic!("{what}")
        };
        assert!(error.to_string().contains(what), "{error}");
        machine.installed();
        assert_ne!(machine.step(), Step::Sending);
    }
}

#[test]
fn a_channel_that_echoes_is_noticed() {
    let mut machine = Machine::new(endpoint(3, 4, 3), HandshakeConfig::default(), OURS);
    let own = machine.out.clone();
    machine.handle(wire::decode(&own, 64).unwrap());
    let Some(Event::Failed(error)) = machine.take_event() else {
        panic!()
    };
    assert!(matches!(error.kind(), HandshakeErrorKind::Reflected));
}

/// A channel with these bytes to read, which then ends.
#[derive(Debug)]
struct Stream {
    incoming: VecDeque<u8>,
    written: Vec<u8>,
}

impl Stream {
    fn of(bytes: &[u8]) -> Self {
        Stream {
            incoming: bytes.iter().copied().collect(),
            written: Vec::new(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_that_ends_early_is_an_error_and_leaves_nothing_installed() {
    let whole = hello(b"data");
    for cut in 0..=whole.len() {
        let mut store = Store::new(endpoint(3, 4, 3));
        let channel = Stream::of(&whole[..cut]);
        let error = run_over(channel, &mut store, HandshakeConfig::default()).unwrap_err();
        let text = error.to_string();
        let expected = match cut {
            0 => "waiting for the peer's hello: the peer closed the channel",
            _ if cut < whole.len() => "the channel ends inside a frame",
            _ => "waiting for the peer's confirmation: the peer closed the channel",
        };
        assert!(text.contains(expected), "{text}");
        assert!(store.is_empty());
    }
}
