//! Carries a handshake over a byte channel.

use std::io::{self, ErrorKind, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::config::HandshakeConfig;
use super::deadline::Deadline;
use super::error::{HandshakeError, HandshakeErrorKind, Step};
use super::info::{EndpointInfo, random_nonzero};
use super::machine::{Event, Machine};
use super::store::{Connected, PeerStore};
use super::wire::FrameReader;

/// How many reads one [`StreamHandshake::poll`] does at most, so that one channel can't keep its
/// caller from the others.
const READS_PER_POLL: usize = 32;
const READ_SIZE: usize = 8 << 10;

/// One handshake over one byte channel.
///
/// It works with channels that block and with those that report [`ErrorKind::WouldBlock`], and reads
/// no byte beyond the handshake. It ends at its deadline in every step, until its last byte is
/// flushed. A handshake that is dropped before its end leaves its peer installed in the store: end
/// it with [`cancel`](Self::cancel).
#[derive(Debug)]
pub(super) struct StreamHandshake<C> {
    channel: Option<C>,
    machine: Machine,
    reader: FrameReader,
    deadline: Deadline,
    timeout: Duration,
    /// Bytes of the machine's `out` that the channel has taken.
    written: usize,
    unflushed: bool,
    /// Writing failed. The peer may have refused before it closed, so reading goes on.
    write_error: Option<io::Error>,
    heard: bool,
    installed: Option<(EndpointInfo, Vec<u8>)>,
}

impl<C: Read + Write> StreamHandshake<C> {
    /// A handshake of the endpoint `local` over `channel`.
    pub(super) fn new(
        channel: C,
        local: EndpointInfo,
        config: HandshakeConfig,
        deadline: Deadline,
    ) -> Self {
        StreamHandshake {
            channel: Some(channel),
            reader: FrameReader::new(config.max_user_data),
            deadline,
            timeout: config.timeout,
            machine: Machine::new(local, config, random_nonzero().get()),
            written: 0,
            unflushed: false,
            write_error: None,
            heard: false,
            installed: None,
        }
    }

    pub(super) fn step(&self) -> Step {
        self.machine.step()
    }

    /// The channel, until the handshake has ended.
    pub(super) fn channel(&self) -> Option<&C> {
        self.channel.as_ref()
    }

    /// Whether any byte has come from the peer.
    pub(super) fn has_heard(&self) -> bool {
        self.heard
    }

    /// Whether bytes from the channel are wanted. Those behind the handshake are not.
    pub(super) fn wants_read(&self) -> bool {
        self.step() != Step::Sending
    }

    /// Whether bytes wait for the channel to take them.
    pub(super) fn wants_write(&self) -> bool {
        self.write_error.is_none() && (self.written < self.machine.out.len() || self.unflushed)
    }

    /// When the handshake ends at the latest.
    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// Does what can be done now. After [`Poll::Ready`] it must not be polled again.
    ///
    /// # Errors
    /// Why the handshake failed. The store has forgotten the peer.
    pub(super) fn poll<S: PeerStore>(
        &mut self,
        store: &mut S,
        now: Instant,
    ) -> Poll<Result<Connected<C, S::Peer>, HandshakeError>> {
        if self.deadline.has_passed(now) {
            let timed_out = HandshakeErrorKind::TimedOut(self.timeout);
            self.channel_failed(timed_out);
        }
        let mut reads = 0;
        loop {
            match self.machine.take_event() {
                Some(Event::Install(info, user_data)) => match store.install(&info) {
                    Ok(()) => {
                        self.installed = Some((info, user_data));
                        self.machine.installed();
                    }
                    Err(error) => {
                        self.machine.install_failed(error);
                        continue;
                    }
                },
                Some(Event::Failed(error)) => {
                    self.give_up(store);
                    return Poll::Ready(Err(error));
                }
                None => {}
            }
            let flushed = self.flush();
            if self.step() == Step::Sending {
                match self.write_error.take() {
                    Some(error) => self.machine.fail(HandshakeErrorKind::Io(error)),
                    None if flushed => return Poll::Ready(self.finish(store)),
                    None => return Poll::Pending,
                }
            } else if reads == READS_PER_POLL || !self.read() {
                return Poll::Pending;
            }
            reads += 1;
        }
    }

    /// Ends the handshake. The store forgets the peer, and the peer is told why as far as the channel
    /// takes it at once.
    pub(super) fn cancel<S: PeerStore>(
        mut self,
        store: &mut S,
        kind: HandshakeErrorKind,
    ) -> HandshakeError {
        self.machine.fail(kind);
        self.give_up(store);
        match self.machine.take_event() {
            Some(Event::Failed(error)) => error,
            _ => HandshakeError::new(self.step(), HandshakeErrorKind::Cancelled),
        }
    }

    fn finish<S: PeerStore>(
        &mut self,
        store: &mut S,
    ) -> Result<Connected<C, S::Peer>, HandshakeError> {
        // The peer holds a handle for the endpoint as it was at the beginning. If that has changed,
        // the peer learns it from the end of the channel.
        let (current, told) = (store.local(), self.machine.local());
        if (current.incarnation, current.address) == (told.incarnation, told.address)
            && let Some((info, user_data)) = self.installed.take()
            && let Some(peer) = store.activate(&info)
            && let Some(channel) = self.channel.take()
        {
            return Ok(Connected {
                peer,
                info,
                user_data,
                channel,
            });
        }
        self.give_up(store);
        let kind = HandshakeErrorKind::LocalChanged;
        Err(HandshakeError::new(Step::Sending, kind))
    }

    /// Forgets the peer, and tells it what the machine has to say.
    fn give_up<S: PeerStore>(&mut self, store: &mut S) {
        if let Some((info, _)) = self.installed.take() {
            store.forget(&info);
        }
        self.flush();
        self.channel = None;
    }

    /// Writes what there is; false if some of it is left.
    fn flush(&mut self) -> bool {
        let Some(channel) = self.channel.as_mut().filter(|_| self.write_error.is_none()) else {
            return false;
        };
        let out = &mut self.machine.out;
        while self.written < out.len() {
            match channel.write(&out[self.written..]) {
                Ok(0) => {
                    self.write_error = Some(ErrorKind::WriteZero.into());
                    return false;
                }
                Ok(count) => {
                    self.written = out.len().min(self.written + count);
                    self.unflushed = true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_pending(error.kind()) => return false,
                Err(error) => {
                    self.write_error = Some(error);
                    return false;
                }
            }
        }
        (*out, self.written) = (Vec::new(), 0);
        if self.unflushed {
            match channel.flush() {
                Ok(()) => self.unflushed = false,
                Err(error) if is_pending(error.kind()) => {}
                Err(error) => self.write_error = Some(error),
            }
        }
        !self.unflushed
    }

    /// Reads once; false if there is nothing to read now.
    fn read(&mut self) -> bool {
        let Some(channel) = &mut self.channel else {
            return false;
        };
        let mut buffer = [0; READ_SIZE];
        let wanted = self.reader.wanted().min(READ_SIZE);
        match channel.read(&mut buffer[..wanted]) {
            Ok(0) if self.reader.is_inside() => {
                let what = "the channel ends inside a frame";
                self.channel_failed(HandshakeErrorKind::Malformed(what.into()));
            }
            Ok(0) => self.channel_failed(HandshakeErrorKind::Closed),
            Ok(count) => {
                self.heard = true;
                match self.reader.push(&buffer[..count.min(wanted)]) {
                    Ok(Some(frame)) => self.machine.handle(frame),
                    Ok(None) => {}
                    Err(error) => self.machine.fail(error.into()),
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_pending(error.kind()) => return false,
            Err(error) => self.channel_failed(HandshakeErrorKind::Io(error)),
        }
        true
    }

    /// Nothing more comes. A failed write is the better cause, if there was one.
    fn channel_failed(&mut self, kind: HandshakeErrorKind) {
        let kind = self.write_error.take().map_or(kind, HandshakeErrorKind::Io);
        self.machine.fail(kind);
    }
}

fn is_pending(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Runs a handshake over a byte channel to its end.
pub(crate) fn run_over<C: Read + Write, S: PeerStore>(
    channel: C,
    store: &mut S,
    config: HandshakeConfig,
) -> Result<Connected<C, S::Peer>, HandshakeError> {
    config.check()?;
    let deadline = Deadline::after(Instant::now(), config.timeout);
    let mut handshake = StreamHandshake::new(channel, store.local(), config, deadline);
    loop {
        if let Poll::Ready(result) = handshake.poll(store, Instant::now()) {
            return result;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
