//! The protocol: eats frames and makes frames, without input, output, clock or threads.

use super::config::HandshakeConfig;
use super::error::{HandshakeError, HandshakeErrorKind, RejectReason, Step};
use super::info::EndpointInfo;
use super::wire::{self, Frame, FrameError, Hello};

/// What a [`Machine`] asks of its driver.
#[derive(Debug)]
pub(super) enum Event {
    /// Make an address handle for this peer, then call [`Machine::installed`] or
    /// [`Machine::install_failed`].
    Install(EndpointInfo, Vec<u8>),
    /// The handshake is over. The driver forgets the peer, and sends what is in `out`.
    Failed(HandshakeError),
}

/// One side of one handshake.
///
/// The rule that it keeps: it reaches [`Step::Sending`] only after the peer has said, in answer to
/// this very handshake, that it holds this side's address handle. A peer that gives up after it said
/// so can't take that back: requests to it fail as with any peer that is gone.
#[derive(Debug)]
pub(super) struct Machine {
    local: EndpointInfo,
    config: HandshakeConfig,
    nonce: u64,
    step: Step,
    failed: bool,
    /// Nonce of the peer's hello.
    peer: u64,
    confirmed: bool,
    event: Option<Event>,
    /// Bytes for the peer. Each side sends three frames at most, so this is bounded.
    pub(super) out: Vec<u8>,
}

impl Machine {
    /// A handshake of the endpoint `local`. The nonce differs from handshake to handshake.
    pub(super) fn new(local: EndpointInfo, config: HandshakeConfig, nonce: u64) -> Self {
        let mut machine = Machine {
            local,
            config,
            nonce,
            step: Step::Greeting,
            failed: false,
            peer: 0,
            confirmed: false,
            event: None,
            out: Vec::new(),
        };
        if machine.config.speak_first {
            machine.put_hello();
        }
        machine
    }

    pub(super) fn local(&self) -> &EndpointInfo {
        &self.local
    }

    pub(super) fn step(&self) -> Step {
        self.step
    }

    pub(super) fn take_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// The address handle for the peer of [`Event::Install`] exists.
    pub(super) fn installed(&mut self) {
        if self.step == Step::Installing && !self.failed {
            wire::put_ready(&mut self.out, self.peer);
            self.step = Step::Confirming;
            self.confirm();
        }
    }

    /// The address handle for the peer of [`Event::Install`] can't be made. The peer is told why.
    pub(super) fn install_failed(
        &mut self,
        error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) {
        self.fail(HandshakeErrorKind::Install(error.into()));
    }

    /// Takes one frame from the peer.
    pub(super) fn handle(&mut self, frame: Frame) {
        if self.failed {
            return;
        }
        match (self.step, frame) {
            (_, Frame::Reject { reason, text }) => {
                self.fail(HandshakeErrorKind::Rejected { reason, text });
            }
            (Step::Greeting, Frame::Hello(hello)) => self.greet(hello),
            (_, Frame::Hello(_)) => self.malformed("a second hello"),
            (Step::Greeting, Frame::Ready { .. }) => {
                self.malformed("a confirmation before the hello");
            }
            (_, Frame::Ready { answers }) if answers != self.nonce => {
                self.malformed("a confirmation of another handshake");
            }
            (_, Frame::Ready { .. }) if self.confirmed => self.malformed("a second confirmation"),
            (_, Frame::Ready { .. }) => {
                self.confirmed = true;
                self.confirm();
            }
        }
    }

    /// Ends the handshake, and tells the peer why if it can understand that.
    pub(super) fn fail(&mut self, kind: HandshakeErrorKind) {
        if self.failed {
            return;
        }
        if let Some(reason) = reason(&kind) {
            let text = match &kind {
                HandshakeErrorKind::Install(source) => source.to_string(),
                HandshakeErrorKind::TimedOut(_)
                | HandshakeErrorKind::Cancelled
                | HandshakeErrorKind::Evicted
                | HandshakeErrorKind::PeerLacks(_)
                | HandshakeErrorKind::WeLack(_) => String::new(),
                kind => kind.to_string(),
            };
            wire::put_reject(&mut self.out, reason, &text);
        }
        self.failed = true;
        self.event = Some(Event::Failed(HandshakeError::new(self.step, kind)));
    }

    fn malformed(&mut self, what: &str) {
        self.fail(FrameError::malformed(what).into());
    }

    fn greet(&mut self, hello: Hello) {
        if let Err(kind) = self.check(&hello) {
            return self.fail(kind);
        }
        if !self.config.speak_first {
            self.put_hello();
        }
        self.peer = hello.nonce;
        self.step = Step::Installing;
        self.event = Some(Event::Install(hello.info, hello.user_data));
    }

    /// Whether the peer is one that this side can work with.
    fn check(&self, hello: &Hello) -> Result<(), HandshakeErrorKind> {
        let (peer, local) = (&hello.info, &self.local);
        if hello.nonce == self.nonce && peer.incarnation == local.incarnation {
            return Err(HandshakeErrorKind::Reflected);
        }
        if let Some(expected) = self.config.expected_address
            && expected != peer.address
        {
            let found = peer.address;
            return Err(HandshakeErrorKind::WrongPeer { expected, found });
        }
        if let Some(expected) = self.config.expected_incarnation
            && expected != peer.incarnation
        {
            let found = peer.incarnation;
            return Err(HandshakeErrorKind::PeerRestarted { expected, found });
        }
        if peer.address == local.address && peer.incarnation != local.incarnation {
            return Err(HandshakeErrorKind::OwnAddress(peer.address));
        }
        let missing = self.config.required - peer.capabilities;
        if !missing.is_empty() {
            return Err(HandshakeErrorKind::PeerLacks(missing));
        }
        let missing = hello.required - local.capabilities;
        if !missing.is_empty() {
            return Err(HandshakeErrorKind::WeLack(missing));
        }
        Ok(())
    }

    fn confirm(&mut self) {
        if self.step == Step::Confirming && self.confirmed {
            self.step = Step::Sending;
        }
    }

    fn put_hello(&mut self) {
        let HandshakeConfig {
            required,
            user_data,
            ..
        } = &self.config;
        wire::put_hello(&mut self.out, &self.local, self.nonce, *required, user_data);
    }
}

/// What the peer is told about a failure; `None` if it can't be told, or knows.
fn reason(kind: &HandshakeErrorKind) -> Option<RejectReason> {
    Some(match kind {
        HandshakeErrorKind::Version { .. } => RejectReason::Version,
        HandshakeErrorKind::Malformed(_)
        | HandshakeErrorKind::PeerDataTooLong { .. }
        | HandshakeErrorKind::Reflected => RejectReason::Malformed,
        HandshakeErrorKind::PeerLacks(missing) | HandshakeErrorKind::WeLack(missing) => {
            RejectReason::Capabilities(*missing)
        }
        HandshakeErrorKind::WrongPeer { .. }
        | HandshakeErrorKind::PeerRestarted { .. }
        | HandshakeErrorKind::OwnAddress(_) => RejectReason::WrongPeer,
        HandshakeErrorKind::Install(_) => RejectReason::Install,
        HandshakeErrorKind::TimedOut(_) => RejectReason::TimedOut,
        HandshakeErrorKind::Evicted => RejectReason::Busy,
        HandshakeErrorKind::Cancelled | HandshakeErrorKind::LocalChanged => RejectReason::Closing,
        HandshakeErrorKind::Foreign(_)
        | HandshakeErrorKind::UserDataTooLong { .. }
        | HandshakeErrorKind::Silent(_)
        | HandshakeErrorKind::Closed
        | HandshakeErrorKind::Io(_)
        | HandshakeErrorKind::Rejected { .. } => return None,
    })
}
