//! Two state machines, a channel with faults between them and a virtual clock.

use std::time::{Duration, Instant};

use super::{Random, cases, endpoint};
use crate::handshake::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const RESEND: Duration = Duration::from_millis(50);

/// What may happen on the way, in percent.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    loss: u64,
    duplicate: u64,
    /// The longest delay of a frame; 0 keeps frames in order.
    delay_ms: u64,
    damage: u64,
}

struct Side {
    machine: Handshake,
    /// What the machine asked to install, and when that will be done.
    installing: Option<(PeerInfo, Instant)>,
    install_fails: bool,
    installed: Option<PeerInfo>,
    established: bool,
    error: Option<HandshakeError>,
    sent: u32,
}

struct InFlight {
    at: Instant,
    order: u64,
    to: usize,
    bytes: Vec<u8>,
}

struct Pair {
    now: Instant,
    random: Random,
    faults: Faults,
    sides: [Side; 2],
    flight: Vec<InFlight>,
    order: u64,
    /// A digest of everything that happened, to compare runs.
    trace: u64,
}

fn info(side: usize) -> EndpointInfo {
    let mut info = endpoint(side as u8 + 1, 10 + side as u32, 100 + side as u64);
    info.capabilities = Capabilities::RDMA_READ | Capabilities::MESSAGES;
    (info.max_message, info.immediate_grant) = (8192, 7 + side as u32);
    info
}

impl Pair {
    fn new(seed: u64, configs: [HandshakeConfig; 2], faults: Faults) -> Pair {
        Self::with_infos(seed, [info(0), info(1)], configs, faults)
    }

    fn with_infos(
        seed: u64,
        infos: [EndpointInfo; 2],
        configs: [HandshakeConfig; 2],
        faults: Faults,
    ) -> Pair {
        let now = Instant::now();
        let mut random = Random::new(seed);
        let mut infos = infos.into_iter();
        let sides = configs.map(|config| Side {
            machine: Handshake::new(
                infos.next().unwrap(),
                config.timeout(TIMEOUT).nonce(random.next()),
                now,
            )
            .unwrap(),
            installing: None,
            install_fails: false,
            installed: None,
            established: false,
            error: None,
            sent: 0,
        });
        Pair {
            now,
            random,
            faults,
            sides,
            flight: Vec::new(),
            order: 0,
            trace: 0,
        }
    }

    fn record(&mut self, what: u64) {
        self.trace = (self.trace ^ what)
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(17);
    }

    fn send(&mut self, from: usize, bytes: Vec<u8>) {
        self.sides[from].sent += 1;
        self.record(bytes.len() as u64 ^ (from as u64) << 32);
        let copies = 1 + u64::from(self.random.chance(self.faults.duplicate));
        for _ in 0..copies {
            if self.random.chance(self.faults.loss) {
                continue;
            }
            let mut bytes = bytes.clone();
            if self.random.chance(self.faults.damage) {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            let delay = self.random.below(self.faults.delay_ms + 1);
            self.order += 1;
            let at = self.now + Duration::from_millis(delay);
            self.flight.push(InFlight {
                at,
                order: self.order,
                to: 1 - from,
                bytes,
            });
        }
    }

    /// Does everything that is due at this moment.
    fn settle(&mut self) {
        loop {
            let mut idle = true;
            for me in 0..2 {
                let now = self.now;
                let side = &mut self.sides[me];
                side.machine.handle_timeout(now);
                if side.installing.as_ref().is_some_and(|(_, at)| now >= *at)
                    && let Some((peer, _)) = side.installing.take()
                {
                    if side.install_fails {
                        side.machine.install_failed("the table of handles is full");
                    } else {
                        side.installed = Some(peer);
                        side.machine.installed(now);
                    }
                    idle = false;
                }
                while let Some(event) = self.sides[me].machine.poll_event() {
                    idle = false;
                    self.event(me, event);
                }
                let mut bytes = Vec::new();
                while self.sides[me].machine.poll_transmit(&mut bytes) {
                    idle = false;
                    self.send(me, std::mem::take(&mut bytes));
                }
            }
            let due = self
                .flight
                .iter()
                .enumerate()
                .filter(|(_, frame)| frame.at <= self.now);
            if let Some((index, _)) = due.min_by_key(|(_, frame)| (frame.at, frame.order)) {
                idle = false;
                let frame = self.flight.swap_remove(index);
                let machine = &mut self.sides[frame.to].machine;
                let error = machine.handle_frame(self.now, &frame.bytes).is_err();
                self.record(u64::from(error));
            }
            if idle {
                return;
            }
        }
    }

    fn event(&mut self, me: usize, event: Event) {
        let now = self.now;
        match event {
            Event::Install(peer) => {
                self.record(1);
                let delay = self.random.below(self.faults.delay_ms * 3 + 1);
                self.sides[me].installing = Some((peer, now + Duration::from_millis(delay)));
            }
            Event::Established => {
                self.record(2);
                self.sides[me].established = true;
                // The rule of the whole module: the other side holds our handle, ours and no other.
                let (mine, other) = (&self.sides[me], &self.sides[1 - me]);
                let theirs = other
                    .installed
                    .as_ref()
                    .expect("established before the other side has a handle");
                assert_eq!(theirs.endpoint, *mine.machine.local());
                assert_eq!(
                    mine.installed.as_ref().map(|peer| peer.endpoint),
                    Some(*other.machine.local())
                );
            }
            Event::Failed(error) => {
                self.record(3);
                let side = &mut self.sides[me];
                side.error = Some(error);
                (side.installed, side.installing) = (None, None);
            }
        }
    }

    /// Runs until nothing is left to happen.
    fn run(&mut self) {
        loop {
            self.settle();
            let frames = self.flight.iter().map(|frame| frame.at);
            let installs = self
                .sides
                .iter()
                .filter_map(|side| side.installing.as_ref().map(|(_, at)| *at));
            let timeouts = self
                .sides
                .iter()
                .filter_map(|side| side.machine.next_timeout());
            let Some(next) = frames.chain(installs).chain(timeouts).min() else {
                return;
            };
            assert!(next > self.now, "time stands still");
            self.now = next;
        }
    }

    fn both_established(&self) -> bool {
        self.sides
            .iter()
            .all(|side| side.established && side.error.is_none())
    }

    fn inject(&mut self, to: usize, after: Duration, bytes: Vec<u8>) {
        self.order += 1;
        self.flight.push(InFlight {
            at: self.now + after,
            order: self.order,
            to,
            bytes,
        });
    }
}

fn datagram() -> HandshakeConfig {
    HandshakeConfig::default().channel(Channel::Datagram { resend: RESEND })
}

/// A configuration in all the ways that have to work.
fn random_config(random: &mut Random, side: usize) -> HandshakeConfig {
    datagram()
        .speak_first(side == 0 || random.chance(50))
        .user_data(vec![side as u8; random.below(64) as usize])
        .require(Capabilities::from_bits(random.below(2)))
}

#[test]
fn over_a_stream_two_frames_each_are_enough_whoever_starts() {
    for (first, second) in [(true, false), (false, true), (true, true)] {
        let stream = HandshakeConfig::default;
        let configs = [
            stream().speak_first(first).user_data(*b"abc"),
            stream().speak_first(second),
        ];
        let mut pair = Pair::new(1, configs, Faults::default());
        pair.run();
        assert!(pair.both_established());
        assert_eq!(pair.sides.each_ref().map(|side| side.sent), [2, 2]);
        let seen = pair.sides[1].installed.as_ref().unwrap();
        assert_eq!(
            (&seen.endpoint, seen.user_data.as_slice()),
            (&info(0), b"abc".as_slice())
        );
    }
}

#[test]
fn two_sides_that_both_wait_time_out() {
    let wait = || HandshakeConfig::default().speak_first(false);
    let mut pair = Pair::new(1, [wait(), wait()], Faults::default());
    pair.run();
    for side in &pair.sides {
        assert!(
            matches!(side.error, Some(HandshakeError::TimedOut(Phase::Greeting))),
            "{:?}",
            side.error
        );
    }
}

#[test]
fn nobody_is_established_before_the_other_has_its_handle_whatever_the_channel_does() {
    let mut established = 0;
    let total = cases(8_000);
    for seed in 0..total {
        let mut random = Random::new(seed);
        let faults = Faults {
            loss: random.below(50),
            duplicate: random.below(50),
            delay_ms: random.below(200),
            damage: random.below(10),
        };
        let configs = [random_config(&mut random, 0), random_config(&mut random, 1)];
        let mut pair = Pair::new(seed, configs, faults);
        pair.run();
        for side in &pair.sides {
            assert!(
                side.established || side.error.is_some(),
                "seed {seed}: neither established nor failed"
            );
            assert!(side.sent < 400, "seed {seed}: {} frames sent", side.sent);
        }
        established += u64::from(pair.both_established());
    }
    // With up to half of the frames lost some run into the deadline, but few.
    assert!(
        established * 100 >= total * 99,
        "{established} of {total} established"
    );
}

#[test]
fn a_channel_that_loses_nothing_for_good_always_succeeds() {
    for seed in 0..cases(5_000) {
        let mut random = Random::new(seed);
        let faults = Faults {
            loss: 0,
            duplicate: random.below(100),
            delay_ms: random.below(100),
            damage: 0,
        };
        let configs = [random_config(&mut random, 0), random_config(&mut random, 1)];
        let mut pair = Pair::new(seed, configs, faults);
        pair.run();
        assert!(
            pair.both_established(),
            "seed {seed}: {:?}",
            pair.sides.each_ref().map(|s| &s.error)
        );
    }
}

#[test]
fn a_seed_replays_exactly() {
    let run = |seed| {
        let faults = Faults {
            loss: 30,
            duplicate: 30,
            delay_ms: 100,
            damage: 10,
        };
        let mut pair = Pair::new(seed, [datagram(), datagram()], faults);
        let start = pair.now;
        pair.run();
        (pair.trace, pair.now - start)
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

/// All frames of a finished handshake between the same addresses.
fn recording(seed: u64, infos: [EndpointInfo; 2]) -> Vec<(usize, Vec<u8>)> {
    let mut pair = Pair::with_infos(seed, infos, [datagram(), datagram()], Faults::default());
    let mut frames = Vec::new();
    for _ in 0..10 {
        for me in 0..2 {
            let mut bytes = Vec::new();
            while pair.sides[me].machine.poll_transmit(&mut bytes) {
                frames.push((1 - me, bytes.clone()));
                pair.sides[1 - me]
                    .machine
                    .handle_frame(pair.now, &bytes)
                    .unwrap();
                bytes.clear();
            }
            while let Some(event) = pair.sides[me].machine.poll_event() {
                if let Event::Install(_) = event {
                    pair.sides[me].machine.installed(pair.now);
                }
            }
        }
    }
    frames
}

#[test]
fn frames_left_over_from_earlier_handshakes_and_dead_incarnations_do_no_harm() {
    for seed in 0..cases(3_000) {
        let mut random = Random::new(seed ^ 0x5eed);
        // Either the same two endpoints at an earlier time, or one of them before its restart.
        let mut before = [info(0), info(1)];
        if random.chance(50) {
            before[1].incarnation = Incarnation::from_number(7).unwrap();
        }
        let old = recording(seed ^ 0xffff, before);
        assert!(old.len() >= 4);
        // Nothing is lost for good, so that only the old frames could do harm.
        let faults = Faults {
            loss: 0,
            duplicate: 20,
            delay_ms: 50,
            damage: 0,
        };
        let mut pair = Pair::new(seed, [datagram(), datagram()], faults);
        for (to, bytes) in old {
            if random.chance(70) {
                pair.inject(to, Duration::from_millis(random.below(500)), bytes);
            }
        }
        pair.run();
        assert!(
            pair.both_established(),
            "seed {seed}: {:?}",
            pair.sides.each_ref().map(|s| &s.error)
        );
    }
}

#[test]
fn a_peer_that_cannot_make_a_handle_fails_both_sides_and_says_why() {
    for channel in [HandshakeConfig::default(), datagram()] {
        let mut pair = Pair::new(3, [channel.clone(), channel], Faults::default());
        pair.sides[1].install_fails = true;
        pair.run();
        assert!(matches!(
            pair.sides[1].error,
            Some(HandshakeError::Install(_))
        ));
        let Some(HandshakeError::Rejected {
            reason: RejectReason::Install,
            text,
        }) = &pair.sides[0].error
        else {
            panic!("{:?}", pair.sides[0].error);
        };
        assert_eq!(text, "the table of handles is full");
        assert!(pair.sides.iter().all(|side| side.installed.is_none()));
    }
}

#[test]
fn a_missing_capability_is_named_on_both_sides() {
    for (needy, lacking) in [(0, 1), (1, 0)] {
        for channel in [HandshakeConfig::default(), datagram()] {
            let mut configs = [channel.clone(), channel];
            configs[needy] = configs[needy]
                .clone()
                .require(Capabilities::RDMA_WRITE | Capabilities::RDMA_READ);
            let mut pair = Pair::new(4, configs, Faults::default());
            pair.run();
            let write = Capabilities::RDMA_WRITE;
            for (side, error) in [&pair.sides[needy].error, &pair.sides[lacking].error]
                .into_iter()
                .enumerate()
            {
                match (side, error) {
                    (0, Some(HandshakeError::PeerLacks(what))) => assert_eq!(*what, write),
                    (1, Some(HandshakeError::WeLack(what))) => assert_eq!(*what, write),
                    (
                        _,
                        Some(HandshakeError::Rejected {
                            reason: RejectReason::Capabilities(what),
                            ..
                        }),
                    ) => {
                        assert_eq!(*what, write)
                    }
                    (_, other) => panic!("{other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_restarted_peer_is_recognised_and_refused() {
    let before = Incarnation::from_number(55).unwrap();
    let mut pair = Pair::new(
        5,
        [
            HandshakeConfig::default().expect_incarnation(before),
            HandshakeConfig::default(),
        ],
        Faults::default(),
    );
    pair.run();
    let Some(HandshakeError::PeerRestarted { expected, found }) = pair.sides[0].error else {
        panic!("{:?}", pair.sides[0].error);
    };
    assert_eq!((expected, found), (before, info(1).incarnation));
    assert!(matches!(
        pair.sides[1].error,
        Some(HandshakeError::Rejected {
            reason: RejectReason::WrongPeer,
            ..
        })
    ));
}

#[test]
fn another_endpoint_than_the_expected_one_is_refused() {
    let config = HandshakeConfig::default().expect_address(endpoint(9, 9, 9).address);
    let mut pair = Pair::new(6, [config, HandshakeConfig::default()], Faults::default());
    pair.run();
    assert!(matches!(
        pair.sides[0].error,
        Some(HandshakeError::WrongPeer { .. })
    ));
    assert!(pair.sides[1].error.is_some());
}

#[test]
fn a_peer_with_our_own_address_is_refused_but_ourselves_we_may_connect_to() {
    let mut stranger = info(0);
    stranger.incarnation = Incarnation::from_number(1).unwrap();
    for (other, works) in [(stranger, false), (info(0), true)] {
        let configs = [HandshakeConfig::default(), HandshakeConfig::default()];
        let mut pair = Pair::with_infos(7, [info(0), other], configs, Faults::default());
        pair.run();
        assert_eq!(pair.both_established(), works);
    }
}

#[test]
fn a_stream_that_echoes_is_noticed() {
    let mut side = Handshake::new(info(0), HandshakeConfig::default(), Instant::now()).unwrap();
    let mut bytes = Vec::new();
    assert!(side.poll_transmit(&mut bytes));
    side.handle_frame(Instant::now(), &bytes).unwrap();
    assert!(matches!(
        side.poll_event(),
        Some(Event::Failed(HandshakeError::Reflected))
    ));
}

#[test]
fn cancelling_tells_the_peer_and_does_nothing_afterwards() {
    let mut pair = Pair::new(
        8,
        [HandshakeConfig::default(), HandshakeConfig::default()],
        Faults::default(),
    );
    pair.sides[0].machine.cancel(RejectReason::Closing);
    pair.sides[0].machine.cancel(RejectReason::Busy);
    pair.run();
    assert!(matches!(
        pair.sides[0].error,
        Some(HandshakeError::Cancelled)
    ));
    assert!(matches!(
        pair.sides[1].error,
        Some(HandshakeError::Rejected {
            reason: RejectReason::Closing,
            ..
        })
    ));

    let mut pair = Pair::new(
        8,
        [HandshakeConfig::default(), HandshakeConfig::default()],
        Faults::default(),
    );
    pair.run();
    pair.sides[0].machine.cancel(RejectReason::Closing);
    pair.run();
    assert!(pair.both_established());
}

#[test]
fn out_of_turn_frames_on_a_stream_break_it_with_an_error() {
    // A confirmation without an introduction.
    let frames = recording(1, [info(0), info(1)]);
    let (_, ready) = frames
        .iter()
        .find(|(to, bytes)| *to == 0 && bytes[5] == 2)
        .unwrap();
    let mut side = Handshake::new(info(0), HandshakeConfig::default(), Instant::now()).unwrap();
    assert!(matches!(
        side.handle_frame(Instant::now(), ready),
        Err(FrameError::Protocol(_))
    ));
    assert_eq!(side.phase(), Phase::Failed);
    assert!(matches!(
        side.poll_event(),
        Some(Event::Failed(HandshakeError::Frame(_)))
    ));
    assert!(side.poll_event().is_none());
}
