//! The handshake as a state machine without input, output, clock or threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::{FrameError, HandshakeError, Phase, RejectReason};
use super::info::{Capabilities, EndpointInfo, Incarnation, PeerInfo, random_nonzero};
use super::wire::{self, Body, Frame, Id};
use crate::address::EndpointAddress;

/// What the frames travel over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Channel {
    /// A byte stream between two parties, such as a TCP connection: nothing is lost, doubled, out
    /// of order or left over from an earlier conversation.
    Stream,
    /// Separate frames of which each may be lost, come twice, late or out of order. A frame that
    /// got no answer is sent again after `resend`, then after twice that time, and so on up to
    /// sixteen times it. A peer is believed only when it repeats this handshake's random number, so
    /// that a frame left over from an earlier one does no harm.
    Datagram {
        /// The time after which a frame is sent again.
        resend: Duration,
    },
}

/// How one handshake is to go.
///
/// ```
/// use efa_transport::handshake::{Capabilities, HandshakeConfig};
/// use std::time::Duration;
///
/// let config = HandshakeConfig::default()
///     .timeout(Duration::from_secs(3))
///     .require(Capabilities::RDMA_WRITE)
///     .user_data(b"descriptors of my memory".as_slice());
/// ```
#[derive(Debug, Clone)]
pub struct HandshakeConfig {
    pub(super) timeout: Duration,
    pub(super) channel: Channel,
    pub(super) speak_first: bool,
    pub(super) required: Capabilities,
    pub(super) user_data: Arc<[u8]>,
    pub(super) max_user_data: usize,
    pub(super) expected_address: Option<EndpointAddress>,
    pub(super) expected_incarnation: Option<Incarnation>,
    pub(super) nonce: Option<u64>,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        HandshakeConfig {
            timeout: Duration::from_secs(10),
            channel: Channel::Stream,
            speak_first: true,
            required: Capabilities::NONE,
            user_data: Arc::new([]),
            max_user_data: 64 << 10,
            expected_address: None,
            expected_incarnation: None,
            nonce: None,
        }
    }
}

impl HandshakeConfig {
    /// The time that the whole handshake may take. 10 seconds if not set.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What the frames travel over. [`Channel::Stream`] if not set.
    pub fn channel(mut self, channel: Channel) -> Self {
        self.channel = channel;
        self
    }

    /// Whether this side introduces itself at once, or only after the peer did. True if not set.
    ///
    /// One side at least must speak first; both may. Over a channel that blocks, exactly one should:
    /// if both wait for the other to take their bytes, neither reads.
    pub fn speak_first(mut self, speak_first: bool) -> Self {
        self.speak_first = speak_first;
        self
    }

    /// What the peer must be capable of. Nothing if not set.
    pub fn require(mut self, required: Capabilities) -> Self {
        self.required = required;
        self
    }

    /// Bytes for the program at the peer, at most [`MAX_USER_DATA`](super::MAX_USER_DATA) and at
    /// most what the peer accepts.
    pub fn user_data(mut self, user_data: impl Into<Arc<[u8]>>) -> Self {
        self.user_data = user_data.into();
        self
    }

    /// The longest user data to accept, in bytes; a peer that sends more is refused. 65536 if not
    /// set, and never above [`MAX_USER_DATA`](super::MAX_USER_DATA).
    pub fn max_user_data(mut self, max: usize) -> Self {
        self.max_user_data = max.min(wire::MAX_USER_DATA);
        self
    }

    /// Accept only the endpoint at this address.
    pub fn expect_address(mut self, address: EndpointAddress) -> Self {
        self.expected_address = Some(address);
        self
    }

    /// Accept only this incarnation of the peer: a restarted one is refused with
    /// [`HandshakeError::PeerRestarted`].
    pub fn expect_incarnation(mut self, incarnation: Incarnation) -> Self {
        self.expected_incarnation = Some(incarnation);
        self
    }

    /// The random number of this handshake, for tests that must repeat themselves exactly. It must
    /// differ from handshake to handshake; zero is replaced by one.
    pub fn nonce(mut self, nonce: u64) -> Self {
        self.nonce = Some(nonce.max(1));
        self
    }
}

/// What a [`Handshake`] asks of whoever drives it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Make an address handle for this peer, then call [`Handshake::installed`] or
    /// [`Handshake::install_failed`].
    Install(PeerInfo),
    /// Both sides have each other's address handle: requests may be posted.
    Established,
    /// It is over: whatever was installed for it is to be forgotten. Over datagrams this may come
    /// after `Established`, when the peer never heard of it.
    Failed(HandshakeError),
}

/// One side of one handshake: eats frames and makes frames.
///
/// Drivers for byte channels and TCP are in this module as well; use the machine itself to carry
/// frames in your own way, for example inside the messages of a control plane:
///
/// ```
/// use efa_transport::address::{EndpointAddress, Gid};
/// use efa_transport::handshake::{EndpointInfo, Event, Handshake, HandshakeConfig, Incarnation};
/// use std::time::Instant;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let now = Instant::now();
/// let side = |queue_pair| {
///     let gid: Gid = "fe80::1".parse().unwrap();
///     let address = EndpointAddress::new(gid, queue_pair, 0x4242).unwrap();
///     Handshake::new(EndpointInfo::new(address, Incarnation::random()), HandshakeConfig::default(), now)
/// };
/// let mut sides = [side(1)?, side(2)?];
/// let mut established = 0;
/// while established < 2 {
///     for (me, other) in [(0, 1), (1, 0)] {
///         let mut frame = Vec::new();
///         if sides[me].poll_transmit(&mut frame) {
///             sides[other].handle_frame(now, &frame)?;
///         }
///         match sides[me].poll_event() {
///             Some(Event::Install(peer)) => {
///                 // … make the address handle of peer.endpoint.address here …
///                 sides[me].installed(now);
///             }
///             Some(Event::Established) => established += 1,
///             Some(Event::Failed(error)) => return Err(error.into()),
///             _ => {}
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// The rule that it keeps: a side is told `Established` only after the peer has said, in answer to
/// this very handshake, that it holds this side's address handle. (A peer that gives up after it said so,
/// because it closes or its deadline passes in that very moment, can't take its word back: requests
/// to it then fail as they do with any peer that is gone.) Over datagrams keep the machine, and go
/// on feeding it, for as long as the peer may still ask again (its timeout): the last frame to it
/// may be lost.
#[derive(Debug)]
pub struct Handshake {
    local: EndpointInfo,
    config: HandshakeConfig,
    id: Id,
    phase: Phase,
    deadline: Instant,
    /// The one peer that this handshake is with, once it is believed.
    peer: Option<Id>,
    /// Whom the next hello answers while no peer is believed yet.
    candidate: Id,
    ready_received: bool,
    send_hello: bool,
    send_ready: bool,
    send_reject: Option<(RejectReason, String)>,
    resend_at: Option<Instant>,
    resend_after: Duration,
    events: VecDeque<Event>,
}

impl Handshake {
    /// A handshake of the endpoint `local` that begins now.
    ///
    /// # Errors
    /// [`HandshakeError::UserDataTooLong`].
    pub fn new(
        local: EndpointInfo,
        config: HandshakeConfig,
        now: Instant,
    ) -> Result<Self, HandshakeError> {
        let len = config.user_data.len();
        if len > wire::MAX_USER_DATA {
            return Err(HandshakeError::UserDataTooLong {
                len,
                max: wire::MAX_USER_DATA,
            });
        }
        let nonce = config.nonce.unwrap_or_else(|| random_nonzero().get());
        let resend_after = match config.channel {
            Channel::Stream => Duration::ZERO,
            Channel::Datagram { resend } => resend.max(Duration::from_micros(1)),
        };
        let mut handshake = Handshake {
            local,
            id: Id {
                incarnation: local.incarnation.number(),
                nonce,
            },
            phase: Phase::Greeting,
            deadline: now + config.timeout,
            peer: None,
            candidate: Id::UNKNOWN,
            ready_received: false,
            send_hello: config.speak_first,
            send_ready: false,
            send_reject: None,
            resend_at: None,
            resend_after,
            events: VecDeque::new(),
            config,
        };
        if handshake.send_hello {
            handshake.schedule_resend(now);
        }
        Ok(handshake)
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The endpoint that this side introduces.
    pub fn local(&self) -> &EndpointInfo {
        &self.local
    }

    /// What to do next, if anything.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends the next frame for the peer to `out`; false if there is none.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> bool {
        let to = self.peer.unwrap_or(self.candidate);
        if let Some((reason, text)) = self.send_reject.take() {
            wire::put_reject(out, self.id, to, reason, &text);
        } else if self.send_hello {
            self.send_hello = false;
            let data = &self.config.user_data;
            wire::put_hello(out, self.id, to, &self.local, self.config.required, data);
        } else if self.send_ready {
            self.send_ready = false;
            wire::put_ready(out, self.id, to);
        } else {
            return false;
        }
        true
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) if nothing happens before; `None` when
    /// it is over.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Established | Phase::Failed => None,
            _ => Some(
                self.resend_at
                    .map_or(self.deadline, |at| at.min(self.deadline)),
            ),
        }
    }

    /// Does what is due: sends again, or gives up at the deadline.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Established | Phase::Failed) {
            return;
        }
        if now >= self.deadline {
            let phase = self.phase;
            return self.fail(HandshakeError::TimedOut(phase), RejectReason::TimedOut);
        }
        if self.resend_at.is_some_and(|at| now >= at) {
            self.send_hello = true;
            self.send_ready = self.phase == Phase::Confirming;
            self.resend_after = match self.config.channel {
                Channel::Datagram { resend } => (self.resend_after * 2)
                    .min(resend * 16)
                    .max(self.resend_after),
                Channel::Stream => self.resend_after,
            };
            self.schedule_resend(now);
        }
    }

    /// The address handle for the peer of [`Event::Install`] exists.
    pub fn installed(&mut self, now: Instant) {
        if self.phase != Phase::Installing {
            return;
        }
        self.phase = Phase::Confirming;
        self.send_ready = true;
        self.schedule_resend(now);
        self.confirm();
    }

    /// The address handle for the peer of [`Event::Install`] can't be made. The handshake fails; the
    /// peer is told the error's text.
    pub fn install_failed(&mut self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) {
        if self.phase == Phase::Installing {
            self.fail(HandshakeError::Install(error.into()), RejectReason::Install);
        }
    }

    /// Ends the handshake, and tells the peer why. Does nothing once it is established.
    pub fn cancel(&mut self, reason: RejectReason) {
        if !matches!(self.phase, Phase::Established | Phase::Failed) {
            self.fail(HandshakeError::Cancelled, reason);
        }
    }

    /// Takes one whole frame from the peer.
    ///
    /// # Errors
    /// The bytes are no valid frame. Over a stream the handshake has then failed; over datagrams
    /// nothing has happened, and the caller may count the error and go on.
    pub fn handle_frame(&mut self, now: Instant, bytes: &[u8]) -> Result<(), FrameError> {
        match wire::decode(bytes, self.config.max_user_data) {
            Ok(frame) => self.handle(now, frame),
            Err(error) => {
                self.damaged(error.clone());
                Err(error)
            }
        }
    }

    /// Something that is no frame came.
    pub(super) fn damaged(&mut self, error: FrameError) {
        if self.is_stream() && !matches!(self.phase, Phase::Established | Phase::Failed) {
            let reason = match error {
                FrameError::Version { .. } => RejectReason::Version,
                _ => RejectReason::Malformed,
            };
            // A party that does not speak this protocol has no use for an answer in it.
            let silent = matches!(error, FrameError::Foreign(_));
            self.fail(error.into(), reason);
            if silent {
                self.send_reject = None;
            }
        }
    }

    /// The channel failed or ended.
    pub(super) fn channel_failed(&mut self, error: HandshakeError) {
        if !matches!(self.phase, Phase::Established | Phase::Failed) {
            self.fail(error, RejectReason::Closing);
            self.send_reject = None;
        }
    }

    /// Takes one decoded frame.
    pub(super) fn handle(&mut self, now: Instant, frame: Frame) -> Result<(), FrameError> {
        if self.phase == Phase::Failed {
            return Ok(());
        }
        if frame.from == self.id {
            if self.is_stream() {
                self.fail(HandshakeError::Reflected, RejectReason::Malformed);
            }
            return Ok(());
        }
        match frame.body {
            Body::Hello { info, required } => {
                self.handle_hello(now, frame.from, frame.to, info, required)
            }
            Body::Ready => self.handle_ready(frame.from, frame.to),
            Body::Reject { reason, text } => {
                self.handle_reject(frame.from, frame.to, reason, text);
                Ok(())
            }
        }
    }

    fn handle_hello(
        &mut self,
        now: Instant,
        from: Id,
        to: Id,
        info: PeerInfo,
        required: Capabilities,
    ) -> Result<(), FrameError> {
        if let Some(peer) = self.peer {
            if from != peer {
                return self.nonsense("a second peer introduces itself");
            }
            // It asks again because it lacks our answer.
            match self.phase {
                Phase::Confirming | Phase::Established => self.send_ready = true,
                _ => {}
            }
            return Ok(());
        }
        if to != self.id && (to != Id::UNKNOWN || !self.is_stream()) {
            if self.is_stream() {
                return self.nonsense("the introduction is meant for another handshake");
            }
            // Perhaps left over from an earlier handshake. A live peer will repeat our number.
            self.candidate = from;
            self.send_hello = true;
            return Ok(());
        }
        if let Err((error, reason)) = self.check(&info.endpoint, required) {
            self.candidate = from;
            self.fail(error, reason);
            return Ok(());
        }
        self.peer = Some(from);
        self.phase = Phase::Installing;
        // Over datagrams the peer may still need the proof that we are alive.
        self.send_hello |= !self.config.speak_first || !self.is_stream();
        self.resend_after = match self.config.channel {
            Channel::Datagram { resend } => resend.max(Duration::from_micros(1)),
            Channel::Stream => Duration::ZERO,
        };
        self.schedule_resend(now);
        self.events.push_back(Event::Install(info));
        Ok(())
    }

    /// Whether the peer is one that this side can work with.
    fn check(
        &self,
        peer: &EndpointInfo,
        required: Capabilities,
    ) -> Result<(), (HandshakeError, RejectReason)> {
        if let Some(expected) = self.config.expected_address
            && expected != peer.address
        {
            let found = peer.address;
            return Err((
                HandshakeError::WrongPeer { expected, found },
                RejectReason::WrongPeer,
            ));
        }
        if let Some(expected) = self.config.expected_incarnation
            && expected != peer.incarnation
        {
            let found = peer.incarnation;
            return Err((
                HandshakeError::PeerRestarted { expected, found },
                RejectReason::WrongPeer,
            ));
        }
        if peer.address == self.local.address && peer.incarnation != self.local.incarnation {
            return Err((
                HandshakeError::OwnAddress(peer.address),
                RejectReason::WrongPeer,
            ));
        }
        let missing = self.config.required - peer.capabilities;
        if !missing.is_empty() {
            return Err((
                HandshakeError::PeerLacks(missing),
                RejectReason::Capabilities(missing),
            ));
        }
        let missing = required - self.local.capabilities;
        if !missing.is_empty() {
            return Err((
                HandshakeError::WeLack(missing),
                RejectReason::Capabilities(missing),
            ));
        }
        Ok(())
    }

    fn handle_ready(&mut self, from: Id, to: Id) -> Result<(), FrameError> {
        if self.peer != Some(from) || to != self.id {
            return self.nonsense(
                "a confirmation comes before the introduction, or for another handshake",
            );
        }
        self.ready_received = true;
        self.confirm();
        Ok(())
    }

    fn handle_reject(&mut self, from: Id, to: Id, reason: RejectReason, text: String) {
        let from_peer = self.peer.is_none_or(|peer| peer == from);
        // A peer that can't read our frames can't repeat our number either. Whoever could make that
        // up could as well drop our frames, and an established handshake is beyond it.
        let unread = to == Id::UNKNOWN
            && matches!(reason, RejectReason::Malformed | RejectReason::Version)
            && self.phase == Phase::Greeting;
        let meant = self.is_stream() || (to == self.id && from_peer) || unread;
        if meant {
            self.fail(
                HandshakeError::Rejected { reason, text },
                RejectReason::Closing,
            );
            self.send_reject = None;
        }
    }

    fn confirm(&mut self) {
        if self.phase == Phase::Confirming && self.ready_received {
            self.phase = Phase::Established;
            self.resend_at = None;
            self.events.push_back(Event::Established);
        }
    }

    fn fail(&mut self, error: HandshakeError, reason: RejectReason) {
        // The peer is told in this side's words only what concerns it.
        let text = match &error {
            HandshakeError::Install(source) => source.to_string(),
            HandshakeError::TimedOut(_) | HandshakeError::Cancelled => String::new(),
            error => error.to_string(),
        };
        self.phase = Phase::Failed;
        self.resend_at = None;
        (self.send_hello, self.send_ready) = (false, false);
        self.send_reject = Some((reason, text));
        self.events.clear();
        self.events.push_back(Event::Failed(error));
    }

    /// A well-formed frame that does not fit: over a stream that breaks the protocol, over datagrams
    /// it is old news.
    fn nonsense(&mut self, what: &'static str) -> Result<(), FrameError> {
        if !self.is_stream() {
            return Ok(());
        }
        let error = FrameError::Protocol(what);
        self.damaged(error.clone());
        Err(error)
    }

    fn is_stream(&self) -> bool {
        self.config.channel == Channel::Stream
    }

    fn schedule_resend(&mut self, now: Instant) {
        self.resend_at = (!self.is_stream()).then(|| now + self.resend_after);
    }
}
