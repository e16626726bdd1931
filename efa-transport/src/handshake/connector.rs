//! Opens a handshake over TCP, without threads.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::config::HandshakeConfig;
use super::deadline::{Deadline, sleep};
use super::error::{HandshakeError, HandshakeErrorKind, Step};
use super::store::{Connected, PeerStore};
use super::stream::StreamHandshake;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Opens a handshake with a [`Listener`](super::Listener) over TCP.
///
/// It does nothing in the background: [`poll`](Self::poll) never waits, so one loop serves many
/// connectors, listeners and endpoints. [`run`](Self::run) waits for the end.
///
/// The timeout of the [`HandshakeConfig`] covers everything: all attempts, and the pauses between
/// them. A target that nobody listens at yet, or whose listener is busy, is tried again until then.
///
/// Two programs that connect to each other must both poll their listeners meanwhile. Two that both
/// wait in `run` fail at the deadline with [`HandshakeErrorKind::Silent`].
///
/// ```no_run
/// use efa_transport::handshake::{Connector, HandshakeConfig, Listener};
/// use std::task::Poll;
/// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let mut listener = Listener::bind("0.0.0.0:7000", HandshakeConfig::default())?;
/// let mut connector = Connector::new("peer.example:7000", HandshakeConfig::default())?;
/// let connected = loop {
///     if let Some(arrival) = listener.poll(endpoint) {
///         println!("{} connected", arrival?.peer);
///     }
///     if let Poll::Ready(result) = connector.poll(endpoint) {
///         break result?;
///     }
///     std::thread::sleep(std::time::Duration::from_micros(100));
/// };
/// println!("connected to {}", connected.peer);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Connector {
    target: String,
    /// Addresses of the target; none if the stream was given.
    addresses: Vec<Address>,
    /// The address in use.
    current: usize,
    config: HandshakeConfig,
    retry: bool,
    deadline: Deadline,
    pause: Duration,
    state: State,
}

/// One address of the target.
#[derive(Debug)]
struct Address {
    at: SocketAddr,
    /// Why the last attempt failed.
    error: Option<HandshakeError>,
    /// No attempt can succeed.
    hopeless: bool,
}

#[derive(Debug)]
enum State {
    Waiting {
        until: Deadline,
    },
    /// The deadline is that of this address: others must have their share of the time.
    Connecting {
        stream: TcpStream,
        deadline: Deadline,
    },
    /// The same holds until the first byte from the peer.
    Handshaking {
        handshake: Box<StreamHandshake<TcpStream>>,
        deadline: Deadline,
    },
    Done,
}

impl Connector {
    /// A handshake with the listener at `address`, a host with a port, beginning now. The addresses
    /// of a name are tried in turn. Looking up a name may wait for the system's resolver.
    ///
    /// # Errors
    /// The name has no address, the port is 0, or the user data is too long.
    pub fn new(
        address: impl ToSocketAddrs + Display,
        config: HandshakeConfig,
    ) -> Result<Self, HandshakeError> {
        let begun = Instant::now();
        let failed = |source| HandshakeError::io(Step::Resolving, source).to(&address);
        let found = address.to_socket_addrs().map_err(failed)?;
        Self::to_addresses(&address, found, config, begun)
    }

    /// The same with the addresses of a name that was looked up. The timeout began at `begun`.
    pub(crate) fn to_addresses(
        target: impl Display,
        found: impl Iterator<Item = SocketAddr>,
        config: HandshakeConfig,
        begun: Instant,
    ) -> Result<Self, HandshakeError> {
        let failed = |source| HandshakeError::io(Step::Resolving, source).to(&target);
        let addresses: Vec<_> = found
            .map(|at| Address {
                at,
                error: None,
                hopeless: false,
            })
            .collect();
        if addresses.is_empty() {
            return Err(failed(io::Error::new(
                ErrorKind::NotFound,
                "the name has no address",
            )));
        }
        if addresses.iter().all(|address| address.at.port() == 0) {
            return Err(failed(io::Error::new(
                ErrorKind::InvalidInput,
                "nobody can listen at port 0",
            )));
        }
        let config = config.speak_first(true);
        config.check().map_err(|error| error.to(&target))?;
        let now = Instant::now();
        Ok(Connector {
            target: target.to_string(),
            addresses,
            current: 0,
            deadline: Deadline::after(begun, config.timeout),
            config,
            retry: true,
            pause: FIRST_PAUSE,
            state: State::Waiting {
                until: Deadline::at(now),
            },
        })
    }

    /// A handshake over a TCP connection that exists, beginning now. Either side may speak first.
    /// The stream does not block meanwhile, so the timeout holds in every step.
    ///
    /// # Errors
    /// The socket can't be made non-blocking, or the user data is too long.
    pub fn from_stream(stream: TcpStream, config: HandshakeConfig) -> Result<Self, HandshakeError> {
        let target = match stream.peer_addr() {
            Ok(remote) => remote.to_string(),
            Err(_) => "a stream that is not connected".into(),
        };
        prepare(&stream)
            .map_err(|source| HandshakeError::io(Step::Beginning, source))
            .and_then(|()| config.check())
            .map_err(|error| error.to(&target))?;
        let deadline = Deadline::after(Instant::now(), config.timeout);
        Ok(Connector {
            target,
            addresses: Vec::new(),
            current: 0,
            deadline,
            config,
            retry: false,
            pause: FIRST_PAUSE,
            state: State::Connecting { stream, deadline },
        })
    }

    /// Whether to try again until the timeout if nobody listens there or the listener is busy. True
    /// by default: the processes of a job rarely start in order.
    pub fn retry(mut self, retry: bool) -> Self {
        self.retry = retry && !self.addresses.is_empty();
        self
    }

    #[cfg(test)]
    pub(super) fn step(&self) -> Step {
        match &self.state {
            State::Handshaking { handshake, .. } => handshake.step(),
            _ => Step::Connecting,
        }
    }

    pub(crate) fn poll_in<S: PeerStore>(
        &mut self,
        store: &mut S,
    ) -> Poll<Result<Connected<TcpStream, S::Peer>, HandshakeError>> {
        let result = std::task::ready!(self.advance(store));
        self.state = State::Done;
        if let Ok(connected) = &result {
            // The stream is the caller's from here on. The call can't fail for an open socket.
            let _ = connected.channel.set_nonblocking(false);
        }
        Poll::Ready(result.map_err(|error| error.to(&self.target)))
    }

    /// Sleeps until [`poll`](Self::poll) has something to do, at most for `timeout`. It may return
    /// early.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = sleep(timeout, self.next_timeout());
        let result = match self.interest() {
            Some((fd, flags)) => poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)),
            None => poll(&mut [], Some(&timeout)),
        };
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn run_in<S: PeerStore>(
        mut self,
        store: &mut S,
    ) -> Result<Connected<TcpStream, S::Peer>, HandshakeError> {
        loop {
            if let Poll::Ready(result) = self.poll_in(store) {
                return result;
            }
            if let Err(source) = self.wait(None) {
                let error = HandshakeError::io(Step::Connecting, source).to(&self.target);
                self.cancel_in(store);
                return Err(error);
            }
        }
    }

    pub(crate) fn cancel_in<S: PeerStore>(self, store: &mut S) {
        if let State::Handshaking { handshake, .. } = self.state {
            handshake.cancel(store, HandshakeErrorKind::Cancelled);
        }
    }

    /// The time after which [`poll`](Self::poll) has something to do even if no socket is ready;
    /// `None` without limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        let at = match &self.state {
            State::Waiting { until } => *until,
            State::Connecting { deadline, .. } => *deadline,
            State::Handshaking {
                handshake,
                deadline,
            } => match handshake.has_heard() {
                true => handshake.deadline(),
                false => *deadline,
            },
            State::Done => Deadline::NEVER,
        };
        at.earlier(self.deadline).left(Instant::now())
    }

    /// The socket to watch, and what for. It changes from attempt to attempt.
    pub(crate) fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Connecting { stream, .. } => Some((stream.as_fd(), PollFlags::OUT)),
            State::Handshaking { handshake, .. } => {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, handshake.wants_read());
                flags.set(PollFlags::OUT, handshake.wants_write());
                Some((handshake.channel()?.as_fd(), flags))
            }
            _ => None,
        }
    }

    fn advance<S: PeerStore>(
        &mut self,
        store: &mut S,
    ) -> Poll<Result<Connected<TcpStream, S::Peer>, HandshakeError>> {
        loop {
            let now = Instant::now();
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => {
                    let kind = HandshakeErrorKind::Cancelled;
                    return Poll::Ready(Err(HandshakeError::new(Step::Beginning, kind)));
                }
                State::Waiting { .. } if self.deadline.has_passed(now) => {
                    return Poll::Ready(Err(self.timed_out()));
                }
                State::Waiting { until } if !until.has_passed(now) => {
                    self.state = State::Waiting { until };
                    return Poll::Pending;
                }
                State::Waiting { .. } => match open(self.addresses[self.current].at) {
                    Ok(stream) => {
                        let later = &self.addresses[self.current..];
                        let left = later.iter().filter(|address| !address.hopeless).count();
                        let deadline = self.deadline.share(now, left as u32);
                        self.state = State::Connecting { stream, deadline };
                    }
                    Err(source) => {
                        self.failed(HandshakeError::io(Step::Connecting, source), now)?
                    }
                },
                State::Connecting { stream, deadline } => match is_connected(&stream) {
                    Ok(true) => {
                        let handshake = StreamHandshake::new(
                            stream,
                            store.local(),
                            self.config.clone(),
                            self.deadline,
                        );
                        self.state = State::Handshaking {
                            handshake: Box::new(handshake),
                            deadline,
                        };
                    }
                    Ok(false) if !deadline.has_passed(now) => {
                        self.state = State::Connecting { stream, deadline };
                        return Poll::Pending;
                    }
                    Ok(false) => {
                        let kind = HandshakeErrorKind::TimedOut(self.config.timeout);
                        self.failed(HandshakeError::new(Step::Connecting, kind), now)?;
                    }
                    Err(source) => {
                        self.failed(HandshakeError::io(Step::Connecting, source), now)?
                    }
                },
                State::Handshaking {
                    mut handshake,
                    deadline,
                } => match handshake.poll(store, now) {
                    Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(connected)),
                    Poll::Ready(Err(error)) => {
                        let silent = matches!(error.kind(), HandshakeErrorKind::TimedOut(_))
                            && !handshake.has_heard();
                        self.failed(if silent { self.silent(error) } else { error }, now)?;
                    }
                    Poll::Pending if deadline.has_passed(now) && !handshake.has_heard() => {
                        // Perhaps another address of the target answers.
                        let kind = HandshakeErrorKind::TimedOut(self.config.timeout);
                        let error = handshake.cancel(store, kind);
                        let error = self.silent(error);
                        self.failed(error, now)?;
                    }
                    Poll::Pending => {
                        self.state = State::Handshaking {
                            handshake,
                            deadline,
                        };
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    /// An attempt has failed: plans the next one, or returns the error if there is none.
    fn failed(&mut self, error: HandshakeError, now: Instant) -> Result<(), HandshakeError> {
        let Some(address) = self.addresses.get_mut(self.current) else {
            return Err(error);
        };
        let error = error.at(address.at);
        let silent = matches!(error.kind(), HandshakeErrorKind::Silent(_));
        let transient = error.is_transient() || silent;
        let connecting = error.step() == Step::Connecting || silent;
        (address.hopeless, address.error) = (!transient, Some(error));
        let later = self.addresses.iter().skip(self.current + 1);
        let next = later.take_while(|address| address.hopeless).count() + self.current + 1;
        let again = next >= self.addresses.len();
        let first = self.addresses.iter().position(|address| !address.hopeless);
        let (Some(first), true) = (first, transient || connecting) else {
            return Err(self.summary());
        };
        if !self.retry && (again || !connecting) {
            return Err(self.summary());
        }
        let until = match again {
            true => Deadline::after(now, self.pause),
            false => Deadline::at(now),
        };
        self.current = if again { first } else { next };
        if again {
            self.pause = (self.pause * 2).min(LAST_PAUSE);
        }
        self.state = State::Waiting { until };
        Ok(())
    }

    /// The peer's kernel accepted the connection and nothing else came.
    fn silent(&self, error: HandshakeError) -> HandshakeError {
        if self.addresses.is_empty() {
            return error;
        }
        error.replace(HandshakeErrorKind::Silent(self.config.timeout))
    }

    fn timed_out(&mut self) -> HandshakeError {
        if self.addresses.iter().all(|address| address.error.is_none()) {
            let kind = HandshakeErrorKind::TimedOut(self.config.timeout);
            return HandshakeError::new(Step::Connecting, kind);
        }
        self.summary()
    }

    /// The errors of all addresses. The attempt that came furthest is the first.
    fn summary(&mut self) -> HandshakeError {
        let errors = self.addresses.iter_mut();
        let mut errors: Vec<_> = errors.filter_map(|address| address.error.take()).collect();
        let furthest = errors
            .iter()
            .rposition(|error| error.step() != Step::Connecting);
        let main = furthest.unwrap_or(errors.len().saturating_sub(1));
        if main >= errors.len() {
            return HandshakeError::new(Step::Connecting, HandshakeErrorKind::Cancelled);
        }
        let error = errors.remove(main);
        error.and(errors)
    }
}

/// Begins to connect, without waiting.
fn open(target: SocketAddr) -> io::Result<TcpStream> {
    let family = match target {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    prepare(&stream)?;
    Ok(stream)
}

/// What the sockets of handshakes have in common.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// Whether the connection exists by now.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    let mut socket = [PollFd::new(stream, PollFlags::OUT)];
    match poll(&mut socket, Some(&sleep(Some(Duration::ZERO), None))) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    stream.take_error()?.map_or(Ok(true), Err)
}
