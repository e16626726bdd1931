//! Opens a handshake over TCP, without threads.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::error::{HandshakeError, Phase, RejectReason};
use super::listener::timespec;
use super::machine::HandshakeConfig;
use super::store::{Connected, PeerStore};
use super::stream::StreamHandshake;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// How a [`Connector`] behaves.
#[derive(Debug, Clone)]
pub struct ConnectorConfig {
    handshake: HandshakeConfig,
    retry: bool,
}

impl Default for ConnectorConfig {
    fn default() -> Self {
        ConnectorConfig {
            handshake: HandshakeConfig::default(),
            retry: true,
        }
    }
}

impl ConnectorConfig {
    /// How the handshake is to go. Its timeout covers everything: connecting, all attempts and all
    /// pauses between them. A connector always speaks first.
    pub fn handshake(mut self, config: HandshakeConfig) -> Self {
        self.handshake = config;
        self
    }

    /// Whether to try again until the timeout while nobody listens there yet or the listener is busy. True
    /// if not set: processes of one job rarely start in order.
    pub fn retry(mut self, retry: bool) -> Self {
        self.retry = retry;
        self
    }
}

#[derive(Debug)]
enum State<P> {
    Waiting {
        until: Instant,
    },
    Connecting {
        stream: TcpStream,
        deadline: Instant,
    },
    Handshaking(Box<StreamHandshake<TcpStream, P>>),
    Done,
}

/// Opens a handshake with a [`Listener`](super::Listener) over TCP.
///
/// Like the listener it does nothing in the background: [`poll`](Self::poll) never waits, and
/// many can be under way in one loop. [`run`](Self::run) is the simple way that waits.
///
/// ```
/// use efa_transport::handshake::{Connector, ConnectorConfig, HandshakeConfig, HandshakeError};
/// use std::time::Duration;
/// # use efa_transport::{address::*, handshake::*};
/// # let gid: Gid = "fe80::1".parse().unwrap();
/// # let address = EndpointAddress::new(gid, 1, 0x4242).unwrap();
/// # let mut endpoint = Roster::new(EndpointInfo::new(address, Incarnation::random()));
///
/// let config = HandshakeConfig::default().timeout(Duration::from_millis(30));
/// let nobody = "127.0.0.1:9";
/// let connector = Connector::new(nobody, ConnectorConfig::default().handshake(config))?;
/// let error = connector.run(&mut endpoint).unwrap_err();
/// assert!(matches!(error, HandshakeError::Io { .. }), "{error}");
/// # Ok::<(), HandshakeError>(())
/// ```
#[derive(Debug)]
pub struct Connector<P> {
    targets: Vec<SocketAddr>,
    next_target: usize,
    config: ConnectorConfig,
    deadline: Instant,
    pause: Duration,
    state: State<P>,
    last_error: Option<HandshakeError>,
}

impl<P> Connector<P> {
    /// A handshake with whoever listens at `address`, beginning now. Where a name has several addresses they
    /// are tried in turn. Looking up a name may wait for the system's resolver.
    ///
    /// # Errors
    /// The name can't be resolved, or the user data is too long.
    pub fn new(
        address: impl ToSocketAddrs,
        mut config: ConnectorConfig,
    ) -> Result<Self, HandshakeError> {
        let io = |source| HandshakeError::Io {
            phase: Phase::Connecting,
            source,
        };
        let targets: Vec<_> = address.to_socket_addrs().map_err(io)?.collect();
        if targets.is_empty() {
            return Err(io(io::Error::new(
                ErrorKind::NotFound,
                "the name has no address",
            )));
        }
        config.handshake = config.handshake.speak_first(true);
        let (len, max) = (config.handshake.user_data.len(), super::MAX_USER_DATA);
        if len > max {
            return Err(HandshakeError::UserDataTooLong { len, max });
        }
        let now = Instant::now();
        Ok(Connector {
            targets,
            next_target: 0,
            deadline: now + config.handshake.timeout,
            config,
            pause: FIRST_PAUSE,
            state: State::Waiting { until: now },
            last_error: None,
        })
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        match &self.state {
            State::Waiting { .. } | State::Connecting { .. } => Phase::Connecting,
            State::Handshaking(handshake) => handshake.phase(),
            State::Done => Phase::Failed,
        }
    }

    /// Does what can be done now. After [`Poll::Ready`] it is over and must not be polled again.
    ///
    /// # Errors
    /// Why the handshake failed; where several attempts did, the last one's reason.
    pub fn poll<S>(
        &mut self,
        store: &mut S,
    ) -> Poll<Result<Connected<P, TcpStream>, HandshakeError>>
    where
        S: PeerStore<Peer = P>,
    {
        let result = std::task::ready!(self.step(store));
        self.state = State::Done;
        if let Ok(connected) = &result {
            // It is the caller's from here on. The call can't fail for a socket that is open.
            let _ = connected.channel.set_nonblocking(false);
        }
        Poll::Ready(result)
    }

    /// Sleeps until there is something for [`poll`](Self::poll) to do, at most for `timeout`.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let due = self
            .next_timeout()
            .saturating_duration_since(Instant::now());
        let timeout = timespec(timeout.map_or(due, |timeout| timeout.min(due)));
        let result = match self.interest() {
            Some((fd, flags)) => poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timeout)),
            None => poll(&mut [], Some(&timeout)),
        };
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the handshake has ended.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn run<S>(mut self, store: &mut S) -> Result<Connected<P, TcpStream>, HandshakeError>
    where
        S: PeerStore<Peer = P>,
    {
        loop {
            if let Poll::Ready(result) = self.poll(store) {
                return result;
            }
            if let Err(source) = self.wait(None) {
                let phase = self.phase();
                self.cancel(store);
                return Err(HandshakeError::Io { phase, source });
            }
        }
    }

    /// Ends the handshake. A connector that is merely dropped may leave its peer installed in the store.
    pub fn cancel<S: PeerStore<Peer = P>>(self, store: &mut S) {
        if let State::Handshaking(handshake) = self.state {
            handshake.cancel(store, RejectReason::Closing);
        }
    }

    /// When to call [`poll`](Self::poll) even if the socket is not ready.
    pub fn next_timeout(&self) -> Instant {
        let at = match &self.state {
            State::Waiting { until } => *until,
            State::Connecting { deadline, .. } => *deadline,
            State::Handshaking(handshake) => handshake.next_timeout().unwrap_or(self.deadline),
            State::Done => self.deadline,
        };
        at.min(self.deadline)
    }

    /// The socket to watch at the moment, and whether for reading or writing. It changes from
    /// attempt to attempt.
    fn interest(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Connecting { stream, .. } => Some((stream.as_fd(), PollFlags::OUT)),
            State::Handshaking(handshake) => {
                let writing = if handshake.wants_write() {
                    PollFlags::OUT
                } else {
                    PollFlags::empty()
                };
                Some((handshake.channel()?.as_fd(), PollFlags::IN | writing))
            }
            _ => None,
        }
    }

    fn step<S>(&mut self, store: &mut S) -> Poll<Result<Connected<P, TcpStream>, HandshakeError>>
    where
        S: PeerStore<Peer = P>,
    {
        loop {
            let now = Instant::now();
            match std::mem::replace(&mut self.state, State::Done) {
                State::Done => return Poll::Ready(Err(HandshakeError::Cancelled)),
                State::Waiting { until } => {
                    if now >= self.deadline {
                        let timeout = HandshakeError::TimedOut(Phase::Connecting);
                        return Poll::Ready(Err(self.last_error.take().unwrap_or(timeout)));
                    }
                    if now < until {
                        self.state = State::Waiting { until };
                        return Poll::Pending;
                    }
                    match open(self.targets[self.next_target]) {
                        Ok(stream) => {
                            // A target that swallows everything must leave time for the others.
                            let share = (self.targets.len() - self.next_target) as u32;
                            let deadline = now + (self.deadline - now) / share;
                            self.state = State::Connecting { stream, deadline };
                        }
                        Err(source) => self.failed(
                            HandshakeError::Io {
                                phase: Phase::Connecting,
                                source,
                            },
                            now,
                        )?,
                    }
                }
                State::Connecting { stream, deadline } => match is_connected(&stream) {
                    Ok(true) => {
                        let config = self
                            .config
                            .handshake
                            .clone()
                            .timeout(self.deadline - now.min(self.deadline));
                        let handshake = StreamHandshake::new(stream, store, config, now)?;
                        self.state = State::Handshaking(Box::new(handshake));
                    }
                    Ok(false) if now < deadline => {
                        self.state = State::Connecting { stream, deadline };
                        return Poll::Pending;
                    }
                    Ok(false) => self.failed(HandshakeError::TimedOut(Phase::Connecting), now)?,
                    Err(source) => self.failed(
                        HandshakeError::Io {
                            phase: Phase::Connecting,
                            source,
                        },
                        now,
                    )?,
                },
                State::Handshaking(mut handshake) => match handshake.poll(store, now) {
                    Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(connected)),
                    Poll::Ready(Err(error)) => self.failed(error, now)?,
                    Poll::Pending => {
                        self.state = State::Handshaking(handshake);
                        return Poll::Pending;
                    }
                },
            }
        }
    }

    /// An attempt has failed: plans the next one, or returns the error if there is none to be made.
    fn failed(&mut self, error: HandshakeError, now: Instant) -> Result<(), HandshakeError> {
        let connecting = match &error {
            HandshakeError::Io {
                phase: Phase::Connecting,
                ..
            }
            | HandshakeError::TimedOut(Phase::Connecting) => true,
            // The listener had no place, or the port was taken by nobody but our own socket.
            HandshakeError::Io {
                phase: Phase::Greeting,
                ..
            }
            | HandshakeError::Closed(Phase::Greeting)
            | HandshakeError::Rejected {
                reason: RejectReason::Busy,
                ..
            }
            | HandshakeError::Reflected => false,
            _ => return Err(error),
        };
        self.next_target += 1;
        let again = self.next_target >= self.targets.len();
        if again {
            self.next_target = 0;
        }
        if !self.config.retry && (again || !connecting) {
            return Err(error);
        }
        let until = if again { now + self.pause } else { now };
        if again {
            self.pause = (self.pause * 2).min(LAST_PAUSE);
        }
        self.last_error = Some(error);
        self.state = State::Waiting {
            until: until.min(self.deadline),
        };
        Ok(())
    }
}

/// Begins to connect, without waiting.
fn open(target: SocketAddr) -> io::Result<TcpStream> {
    let family = if target.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &target) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Whether the connection that was begun exists by now.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    let mut socket = [PollFd::new(stream, PollFlags::OUT)];
    match poll(&mut socket, Some(&timespec(Duration::ZERO))) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    stream.take_error()?.map_or(Ok(true), Err)
}
