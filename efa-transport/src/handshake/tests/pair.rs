//! Two handshakes, a stream with faults between them, and a virtual clock.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::{Store, cases, endpoint};
use crate::handshake::deadline::Deadline;
use crate::handshake::stream::StreamHandshake;
use crate::handshake::*;

const TIMEOUT: Duration = Duration::from_millis(200);
const TICK: Duration = Duration::from_millis(1);

/// What may happen on the way.
#[derive(Debug, Clone, Copy)]
struct Faults {
    /// Bytes that a direction holds before a writer must wait.
    room: usize,
    /// The longest delay of a piece.
    delay_ms: u64,
    /// A direction breaks after so many bytes.
    breaks: [Option<usize>; 2],
    /// The side is not polled any more from this tick on.
    stalls: [Option<u32>; 2],
    /// The side is cancelled at this tick.
    cancels: [Option<u32>; 2],
}

const NONE: Faults = Faults {
    room: 1 << 20,
    delay_ms: 0,
    breaks: [None; 2],
    stalls: [None; 2],
    cancels: [None; 2],
};

/// One direction of the stream.
#[derive(Debug, Default)]
struct Link {
    bytes: VecDeque<(Instant, u8)>,
    sent: usize,
    writer_gone: bool,
    reader_gone: bool,
}

#[derive(Debug)]
struct End {
    now: Rc<Cell<Instant>>,
    random: Rng,
    faults: Faults,
    breaks: Option<usize>,
    from: Rc<RefCell<Link>>,
    to: Rc<RefCell<Link>>,
}

impl End {
    fn hesitates(&mut self) -> io::Result<()> {
        match self.random.u8(..) {
            0..20 if self.faults.delay_ms > 0 => Err(ErrorKind::WouldBlock.into()),
            20..40 => Err(ErrorKind::Interrupted.into()),
            _ => Ok(()),
        }
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.hesitates()?;
        let now = self.now.get();
        let mut link = self.from.borrow_mut();
        let here = link.bytes.iter().take_while(|(at, _)| *at <= now).count();
        if here == 0 {
            return match link.writer_gone && link.bytes.is_empty() {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        let count = self.random.usize(1..=here.min(buffer.len()));
        for (to, (_, from)) in buffer.iter_mut().zip(link.bytes.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hesitates()?;
        let mut link = self.to.borrow_mut();
        let broken = self.breaks.is_some_and(|at| link.sent >= at);
        if link.reader_gone || broken {
            link.writer_gone = true;
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = self.faults.room.saturating_sub(link.bytes.len());
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = self.random.usize(1..=room.min(bytes.len()));
        let delay = Duration::from_millis(self.random.u64(0..=self.faults.delay_ms));
        let last = link.bytes.back().map(|(at, _)| *at);
        let at = last.unwrap_or(self.now.get()).max(self.now.get() + delay);
        link.bytes
            .extend(bytes[..count].iter().map(|&byte| (at, byte)));
        link.sent += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hesitates()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.from.borrow_mut().reader_gone = true;
        self.to.borrow_mut().writer_gone = true;
    }
}

struct Side {
    info: EndpointInfo,
    store: Store,
    handshake: Option<StreamHandshake<End>>,
    result: Option<Result<Connected<End, EndpointInfo>, HandshakeError>>,
}

struct Pair {
    now: Rc<Cell<Instant>>,
    faults: Faults,
    sides: [Side; 2],
    links: [Rc<RefCell<Link>>; 2],
    tick: u32,
    /// Ticks at which sides ended, and bytes that were sent, to compare runs.
    trace: Vec<(u32, usize, usize)>,
}

fn info(side: usize) -> EndpointInfo {
    endpoint(side as u8 + 1, 10 + side as u32, 100 + side as u64)
}

impl Pair {
    fn new(seed: u64, configs: [HandshakeConfig; 2], faults: Faults) -> Pair {
        Self::of([info(0), info(1)], seed, configs, faults)
    }

    fn of(
        infos: [EndpointInfo; 2],
        seed: u64,
        configs: [HandshakeConfig; 2],
        faults: Faults,
    ) -> Pair {
        let now = Rc::new(Cell::new(Instant::now()));
        let links = [(); 2].map(|()| Rc::new(RefCell::new(Link::default())));
        let mut random = Rng::with_seed(seed);
        let mut configs = configs.into_iter();
        let sides = [0, 1].map(|me: usize| {
            let end = End {
                now: now.clone(),
                random: random.fork(),
                faults,
                breaks: faults.breaks[me],
                from: links[1 - me].clone(),
                to: links[me].clone(),
            };
            let deadline = Deadline::after(now.get(), TIMEOUT);
            let config = configs.next().unwrap().timeout(TIMEOUT);
            Side {
                info: infos[me],
                store: Store::new(infos[me]),
                handshake: Some(StreamHandshake::new(end, infos[me], config, deadline)),
                result: None,
            }
        });
        Pair {
            now,
            faults,
            sides,
            links,
            tick: 0,
            trace: Vec::new(),
        }
    }

    /// Runs until both sides have ended, or one is stalled and the other has ended.
    fn run(&mut self) {
        while (0..2).any(|me| self.is_running(me)) {
            // A deadline is kept to the tick.
            assert!(self.tick <= TIMEOUT.as_millis() as u32, "it does not end");
            for me in 0..2 {
                self.turn(me);
            }
            self.tick += 1;
            self.now.set(self.now.get() + TICK);
        }
        for side in &self.sides {
            match &side.result {
                Some(Ok(_)) => assert!(side.store.pending.is_empty()),
                Some(Err(_)) => assert!(side.store.is_empty(), "a peer is left behind"),
                None => {}
            }
        }
    }

    fn is_running(&self, me: usize) -> bool {
        let stalled = self.faults.stalls[me].is_some_and(|at| self.tick >= at);
        self.sides[me].handshake.is_some() && !stalled
    }

    fn turn(&mut self, me: usize) {
        if !self.is_running(me) {
            return;
        }
        let side = &mut self.sides[me];
        let Some(mut handshake) = side.handshake.take() else {
            return;
        };
        if self.faults.cancels[me] == Some(self.tick) {
            let error = handshake.cancel(&mut side.store, HandshakeErrorKind::Cancelled);
            return self.ended(me, Err(error));
        }
        match handshake.poll(&mut side.store, self.now.get()) {
            Poll::Pending => side.handshake = Some(handshake),
            Poll::Ready(result) => self.ended(me, result),
        }
    }

    fn ended(&mut self, me: usize, result: Result<Connected<End, EndpointInfo>, HandshakeError>) {
        if let Ok(connected) = &result {
            // The rule of the whole module: the other side has made our handle, ours and no other.
            let [mine, other] = [me, 1 - me].map(|side| &self.sides[side]);
            assert!(other.store.known.contains(&mine.info), "too early");
            assert_eq!(connected.info, other.info);
            assert_eq!(mine.store.active[&other.info.address], other.info);
        }
        let sent = self.links[me].borrow().sent;
        self.trace.push((self.tick, me, sent));
        self.sides[me].result = Some(result);
    }

    fn kind(&self, me: usize) -> &HandshakeErrorKind {
        match &self.sides[me].result {
            Some(Err(error)) => error.kind(),
            other => panic!("side {me}: {other:?}"),
        }
    }

    fn both_established(&self) -> bool {
        let mut sides = self.sides.iter();
        sides.all(|side| matches!(side.result, Some(Ok(_))))
    }
}

/// Settings in all the ways that have to work.
fn random_config(random: &mut Rng, side: usize) -> HandshakeConfig {
    HandshakeConfig::default()
        .speak_first(side == 0 || random.bool())
        .user_data(vec![side as u8; random.usize(0..64)])
        .require(match random.bool() {
            true => Capabilities::RDMA_READ,
            false => Capabilities::empty(),
        })
}

fn configs() -> [HandshakeConfig; 2] {
    [true, false].map(|first| HandshakeConfig::default().speak_first(first))
}

#[test]
fn nobody_is_established_before_the_other_has_its_handle_whatever_the_channel_does() {
    let (mut established, mut failed) = (0, 0);
    for seed in 0..cases(3_000) {
        let mut random = Rng::with_seed(seed);
        let mut rarely = |end: usize| (random.u8(..) < 50).then(|| random.usize(0..end));
        let breaks = [rarely(250), rarely(250)];
        let mut tick = || rarely(40).map(|tick| tick as u32);
        let (stalls, cancels) = ([tick(), tick()], [tick(), tick()]);
        let faults = Faults {
            room: random.usize(1..300),
            delay_ms: random.u64(0..20),
            breaks,
            stalls,
            cancels,
        };
        let configs = [0, 1].map(|side| random_config(&mut random, side));
        let mut pair = Pair::new(seed, configs, faults);
        pair.sides[1].store.fails = random.u8(..) < 10;
        pair.run();
        match pair.both_established() {
            true => established += 1,
            false => failed += 1,
        }
    }
    assert!(established > 0 && failed > 0, "{established} and {failed}");
}

#[test]
fn a_slow_channel_without_faults_always_succeeds() {
    for seed in 0..cases(2_000) {
        let mut random = Rng::with_seed(seed);
        let faults = Faults {
            room: random.usize(60..300),
            delay_ms: random.u64(0..5),
            ..NONE
        };
        let configs = [0, 1].map(|side| random_config(&mut random, side));
        let mut pair = Pair::new(seed, configs, faults);
        pair.run();
        let results = pair.sides.each_ref().map(|side| &side.result);
        assert!(pair.both_established(), "seed {seed}: {results:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let run = |seed| {
        let faults = Faults {
            room: 100,
            delay_ms: 10,
            ..NONE
        };
        let mut pair = Pair::new(seed, configs(), faults);
        pair.run();
        pair.trace
    };
    for seed in 0..50 {
        assert_eq!(run(seed), run(seed));
    }
    assert!((1..50).any(|seed| run(seed) != run(0)));
}

#[test]
fn both_learn_the_other_whoever_starts() {
    for (first, second) in [(true, false), (false, true), (true, true)] {
        let [one, other] = configs();
        let configs = [
            one.speak_first(first).user_data(*b"abc"),
            other.speak_first(second),
        ];
        let mut pair = Pair::new(1, configs, NONE);
        pair.run();
        assert!(pair.both_established());
        let Some(Ok(connected)) = &pair.sides[1].result else {
            panic!()
        };
        assert_eq!(connected.info, info(0));
        assert_eq!(connected.user_data, b"abc");
    }
}

#[test]
fn two_sides_that_both_wait_time_out() {
    let wait = || HandshakeConfig::default().speak_first(false);
    let mut pair = Pair::new(1, [wait(), wait()], NONE);
    pair.run();
    for side in [0, 1] {
        assert!(matches!(pair.kind(side), HandshakeErrorKind::TimedOut(_)));
    }
}

#[test]
fn a_peer_that_confirms_and_stops_reading_meets_the_deadline() {
    for me in [0, 1] {
        let [mut one, mut other] = configs();
        let config = [&mut one, &mut other];
        *config[me] = config[me].clone().user_data(vec![7; 5_000]);
        let mut pair = Pair::new(
            2,
            [one, other],
            Faults {
                room: 1_000,
                ..NONE
            },
        );
        // A side that confirms whatever it reads, and stops.
        pair.sides[1 - me].handshake = None;
        let theirs = info(1 - me);
        let nonce = {
            let mut frames = Vec::new();
            wire::put_hello(&mut frames, &theirs, 77, Capabilities::empty(), b"");
            pair.feed(1 - me, &frames);
            pair.turn_until_sent(me)
        };
        let mut ready = Vec::new();
        wire::put_ready(&mut ready, nonce);
        pair.feed(1 - me, &ready);
        // The rest is never read.
        pair.run();
        assert!(
            matches!(pair.kind(me), HandshakeErrorKind::TimedOut(_)),
            "{:?}",
            pair.kind(me)
        );
        let Some(Err(error)) = &pair.sides[me].result else {
            panic!()
        };
        assert!(error.to_string().contains("sending"), "{error}");
    }
}

impl Pair {
    /// Bytes that side `from` sends by hand.
    fn feed(&mut self, from: usize, bytes: &[u8]) {
        let mut link = self.links[from].borrow_mut();
        link.writer_gone = false;
        link.bytes
            .extend(bytes.iter().map(|&byte| (self.now.get(), byte)));
    }

    /// Lets side `me` work until the nonce of its hello is on the way, and returns that.
    fn turn_until_sent(&mut self, me: usize) -> u64 {
        self.links[me].borrow_mut().reader_gone = false;
        for _ in 0..50 {
            self.turn(me);
        }
        let link = self.links[me].borrow();
        let bytes: Vec<_> = link.bytes.iter().map(|(_, byte)| *byte).collect();
        u64::from_be_bytes(bytes[20..28].try_into().unwrap())
    }
}

#[test]
fn a_side_that_is_refused_while_it_writes_learns_the_refusal() {
    let config = HandshakeConfig::default().user_data(vec![1; 60_000]);
    let refusing = HandshakeConfig::default()
        .speak_first(false)
        .max_user_data(10);
    for seed in 0..100 {
        let faults = Faults { room: 500, ..NONE };
        let mut pair = Pair::new(seed, [config.clone(), refusing.clone()], faults);
        pair.run();
        assert!(matches!(
            pair.kind(1),
            HandshakeErrorKind::PeerDataTooLong {
                length: 60_000,
                limit: 10
            }
        ));
        let HandshakeErrorKind::Rejected { reason, text } = pair.kind(0) else {
            panic!("seed {seed}: {:?}", pair.kind(0));
        };
        assert_eq!(*reason, RejectReason::Malformed);
        assert!(text.contains("max_user_data"), "{text}");
    }
}

#[test]
fn a_peer_that_cannot_make_a_handle_fails_both_sides_and_says_why() {
    let mut pair = Pair::new(3, configs(), NONE);
    pair.sides[1].store.fails = true;
    pair.run();
    assert!(matches!(pair.kind(1), HandshakeErrorKind::Install(_)));
    let HandshakeErrorKind::Rejected { reason, text } = pair.kind(0) else {
        panic!("{:?}", pair.kind(0));
    };
    assert_eq!(*reason, RejectReason::Install);
    assert_eq!(text, "the table of handles is full");
}

#[test]
fn a_missing_capability_is_named_on_both_sides() {
    for needy in [0, 1] {
        let mut configs = configs();
        configs[needy] = configs[needy]
            .clone()
            .require(Capabilities::RDMA_WRITE | Capabilities::RDMA_READ);
        let mut pair = Pair::new(4, configs, NONE);
        pair.run();
        for side in [0, 1] {
            match pair.kind(side) {
                HandshakeErrorKind::PeerLacks(what) if side == needy => {
                    assert_eq!(*what, Capabilities::RDMA_WRITE);
                }
                HandshakeErrorKind::WeLack(what) if side != needy => {
                    assert_eq!(*what, Capabilities::RDMA_WRITE);
                }
                HandshakeErrorKind::Rejected {
                    reason: RejectReason::Capabilities(what),
                    ..
                } => assert_eq!(*what, Capabilities::RDMA_WRITE),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn another_incarnation_or_endpoint_than_the_expected_one_is_refused() {
    let before = Incarnation::from_number(55).unwrap();
    let [first, second] = configs();
    let configs = [first.clone().expect_incarnation(before), second.clone()];
    let mut pair = Pair::new(5, configs, NONE);
    pair.run();
    let HandshakeErrorKind::PeerRestarted { expected, found } = pair.kind(0) else {
        panic!("{:?}", pair.kind(0));
    };
    assert_eq!((*expected, *found), (before, info(1).incarnation));
    let refused = |pair: &Pair| match pair.kind(1) {
        HandshakeErrorKind::Rejected { reason, .. } => *reason == RejectReason::WrongPeer,
        _ => false,
    };
    assert!(refused(&pair));

    let configs = [first.expect_address(endpoint(9, 9, 9).address), second];
    let mut pair = Pair::new(6, configs, NONE);
    pair.run();
    assert!(matches!(pair.kind(0), HandshakeErrorKind::WrongPeer { .. }));
    assert!(refused(&pair));
}

#[test]
fn a_peer_with_our_own_address_is_refused_but_ourselves_we_may_connect_to() {
    let mut stranger = info(0);
    stranger.incarnation = Incarnation::from_number(1).unwrap();
    for (other, works) in [(stranger, false), (info(0), true)] {
        let mut pair = Pair::of([info(0), other], 7, configs(), NONE);
        pair.run();
        assert_eq!(pair.both_established(), works);
    }
}

#[test]
fn cancelling_tells_the_peer() {
    let faults = Faults {
        cancels: [Some(0), None],
        ..NONE
    };
    let mut pair = Pair::new(8, configs(), faults);
    pair.run();
    assert!(matches!(pair.kind(0), HandshakeErrorKind::Cancelled));
    assert!(matches!(
        pair.kind(1),
        HandshakeErrorKind::Rejected {
            reason: RejectReason::Closing,
            ..
        }
    ));
}

#[test]
fn an_endpoint_rebuilt_in_the_middle_fails_the_handshake() {
    let mut pair = Pair::new(9, configs(), NONE);
    pair.sides[0].store.local = endpoint(1, 11, 300);
    pair.run();
    assert!(matches!(pair.kind(0), HandshakeErrorKind::LocalChanged));
}
