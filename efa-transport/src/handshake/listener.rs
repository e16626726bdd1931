//! Accepts handshakes over TCP, many at once, without threads.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::config::HandshakeConfig;
use super::connector::prepare;
use super::deadline::{Deadline, sleep};
use super::error::{HandshakeError, HandshakeErrorKind, Step};
use super::store::{Connected, PeerStore};
use super::stream::StreamHandshake;

const LISTENER: u64 = u64::MAX;
const ACCEPTS_PER_POLL: usize = 64;
const EVENTS_PER_POLL: usize = 64;
/// The pause after the system refused a connection for want of resources.
const PAUSE: Duration = Duration::from_millis(100);
/// The shortest pause while all places are taken.
const SHORT_PAUSE: Duration = Duration::from_millis(1);

/// Accepts handshakes over TCP, many at once.
///
/// It does nothing in the background: [`poll`](Self::poll) does what can be done at the moment and
/// never waits, so it fits into the loop that polls the endpoint. [`wait`](Self::wait) sleeps until
/// there is something to do. To wait for other things as well, watch the listener's file descriptor
/// ([`AsFd`], readable) and heed [`next_timeout`](Self::next_timeout).
///
/// Clients can't hold it up. Each has a deadline in every step, takes bounded memory, and takes one
/// of a bounded number of places.
///
/// ```no_run
/// use efa_transport::handshake::{HandshakeConfig, Listener};
/// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let mut listener = Listener::bind("0.0.0.0:7000", HandshakeConfig::default())?;
/// let timeout = std::time::Duration::from_secs(30);
/// while let Some(arrival) = listener.accept(endpoint, Some(timeout)) {
///     match arrival {
///         Ok(connected) => println!("{} connected", connected.peer),
///         Err(error) => eprintln!("{error}"), // concerns this client alone
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    epoll: OwnedFd,
    config: HandshakeConfig,
    max_pending: usize,
    patience: Duration,
    /// By age. The timeout never changes, so the deadlines ascend as well.
    pending: BTreeMap<u64, Pending>,
    next_id: u64,
    /// While no connection is accepted: when to try again.
    paused: Option<Deadline>,
    /// What is to be advanced next.
    ready: VecDeque<u64>,
    errors: VecDeque<HandshakeError>,
}

#[derive(Debug)]
struct Pending {
    handshake: StreamHandshake<TcpStream>,
    remote: SocketAddr,
    since: Instant,
    watched: epoll::EventFlags,
}

impl Listener {
    /// Listens at `address`, a host with a port. With port 0 the system chooses one: see
    /// [`local_addr`](Self::local_addr). A listener never speaks first, so a port scanner learns
    /// nothing.
    ///
    /// # Errors
    /// The address is taken, is not this host's, or can't be resolved; or the user data is too long.
    pub fn bind(
        address: impl ToSocketAddrs + Display,
        config: HandshakeConfig,
    ) -> Result<Self, HandshakeError> {
        TcpListener::bind(&address)
            .map_err(|source| HandshakeError::io(Step::Listening, source))
            .and_then(|socket| Self::from_socket(socket, config))
            .map_err(|error| error.to(&address))
    }

    /// Listens at a socket that exists.
    ///
    /// # Errors
    /// The socket can't be made non-blocking, the system lacks file descriptors, or the user data is
    /// too long.
    pub fn from_socket(
        socket: TcpListener,
        config: HandshakeConfig,
    ) -> Result<Self, HandshakeError> {
        config.check()?;
        let failed = |source| HandshakeError::io(Step::Listening, source);
        socket.set_nonblocking(true).map_err(failed)?;
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let event = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &socket, event, epoll::EventFlags::IN)
            .map_err(|error| failed(error.into()))?;
        Ok(Listener {
            socket,
            epoll,
            config: config.speak_first(false),
            max_pending: 1024,
            patience: Duration::from_secs(1),
            pending: BTreeMap::new(),
            next_id: 0,
            paused: None,
            ready: VecDeque::new(),
            errors: VecDeque::new(),
        })
    }

    /// The largest number of pending handshakes, at least 1; 1024 by default. When more clients come,
    /// the oldest one that sent no hello within the [patience](Self::patience) is given up. If there
    /// is none, new clients wait in the kernel's queue.
    ///
    /// Each pending handshake takes memory for this side's user data, and for bytes that have come, up
    /// to [`HandshakeConfig::max_user_data`].
    pub fn max_pending(mut self, max: usize) -> Self {
        self.max_pending = max.max(1);
        self
    }

    /// How long a client may keep its place while others wait for one. One second by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system call fails.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The number of pending handshakes.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Replaces the user data for clients that come from now on.
    ///
    /// # Errors
    /// The user data is too long.
    pub fn set_user_data(&mut self, user_data: impl Into<Arc<[u8]>>) -> Result<(), HandshakeError> {
        let config = self.config.clone().user_data(user_data);
        config.check()?;
        self.config = config;
        Ok(())
    }

    /// The time after which [`poll`](Self::poll) has something to do even if the file descriptor is
    /// not readable; `None` without limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        if !self.ready.is_empty() || !self.errors.is_empty() {
            return Some(Duration::ZERO);
        }
        let first = self.pending.values().next();
        first
            .map_or(Deadline::NEVER, |pending| pending.handshake.deadline())
            .earlier(self.paused.unwrap_or(Deadline::NEVER))
            .left(Instant::now())
    }

    pub(crate) fn poll_in<S: PeerStore>(
        &mut self,
        store: &mut S,
    ) -> Option<Result<Connected<TcpStream, S::Peer>, HandshakeError>> {
        let now = Instant::now();
        if self.ready.is_empty() {
            self.collect(now);
        }
        loop {
            if let Some(error) = self.errors.pop_front() {
                return Some(Err(error));
            }
            let result = match self.ready.pop_front()? {
                LISTENER => {
                    self.accept_some(store, now);
                    None
                }
                id => self.advance(id, store, now),
            };
            if result.is_some() {
                return result;
            }
        }
    }

    /// Sleeps until [`poll`](Self::poll) has something to do, at most for `timeout`. It may return
    /// early.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = sleep(timeout, self.next_timeout());
        let mut ready = Vec::with_capacity(1);
        let buffer = rustix::buffer::spare_capacity(&mut ready);
        // What is ready stays so until it is polled.
        match epoll::wait(&self.epoll, buffer, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn accept_in<S: PeerStore>(
        &mut self,
        store: &mut S,
        timeout: Option<Duration>,
    ) -> Option<Result<Connected<TcpStream, S::Peer>, HandshakeError>> {
        let deadline = timeout.map_or(Deadline::NEVER, |timeout| {
            Deadline::after(Instant::now(), timeout)
        });
        loop {
            if let Some(arrival) = self.poll_in(store) {
                return Some(arrival);
            }
            let left = deadline.left(Instant::now());
            if left == Some(Duration::ZERO) {
                return None;
            }
            if let Err(source) = self.wait(left) {
                return Some(Err(HandshakeError::io(Step::Accepting, source)));
            }
        }
    }

    pub(crate) fn close_in<S: PeerStore>(self, store: &mut S) {
        for pending in self.pending.into_values() {
            pending
                .handshake
                .cancel(store, HandshakeErrorKind::Cancelled);
        }
    }

    /// Notes whatever is ready or due.
    fn collect(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until.has_passed(now)) {
            self.paused = None;
            self.watch(epoll::EventFlags::IN);
        }
        let mut events = Vec::with_capacity(EVENTS_PER_POLL);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        let timeout = sleep(Some(Duration::ZERO), None);
        if epoll::wait(&self.epoll, buffer, Some(&timeout)).is_ok() {
            self.ready
                .extend(events.iter().map(|event| event.data.u64()));
        }
        let due = self
            .pending
            .iter()
            .take_while(|(_, pending)| pending.handshake.deadline().has_passed(now));
        self.ready.extend(due.map(|(&id, _)| id));
    }

    fn accept_some<S: PeerStore>(&mut self, store: &mut S, now: Instant) {
        for _ in 0..ACCEPTS_PER_POLL {
            if self.pending.len() >= self.max_pending && !self.evict(store, now) {
                let oldest = self.pending.values().next();
                let since = oldest.map_or(now, |pending| pending.since);
                let until = Deadline::after(since, self.patience);
                return self.pause(match until.has_passed(now + SHORT_PAUSE) {
                    true => Deadline::after(now, SHORT_PAUSE),
                    false => until,
                });
            }
            match self.socket.accept() {
                Ok((stream, remote)) => {
                    if let Err(source) = self.begin(stream, remote, store, now) {
                        let error = HandshakeError::io(Step::Accepting, source);
                        self.errors.push_back(error.at(remote));
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // That client is gone already; there may be others.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    _ => {
                        self.errors
                            .push_back(HandshakeError::io(Step::Accepting, error));
                        self.evict(store, now);
                        return self.pause(Deadline::after(now, PAUSE));
                    }
                },
            }
        }
    }

    fn begin<S: PeerStore>(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        store: &mut S,
        now: Instant,
    ) -> io::Result<()> {
        prepare(&stream)?;
        let id = self.next_id;
        let watched = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(id), watched)?;
        self.next_id += 1;
        let deadline = Deadline::after(now, self.config.timeout);
        let handshake = StreamHandshake::new(stream, store.local(), self.config.clone(), deadline);
        self.pending.insert(
            id,
            Pending {
                handshake,
                remote,
                since: now,
                watched,
            },
        );
        Ok(())
    }

    fn advance<S: PeerStore>(
        &mut self,
        id: u64,
        store: &mut S,
        now: Instant,
    ) -> Option<Result<Connected<TcpStream, S::Peer>, HandshakeError>> {
        let pending = self.pending.get_mut(&id)?;
        let Poll::Ready(result) = pending.handshake.poll(store, now) else {
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, pending.handshake.wants_read());
            flags.set(epoll::EventFlags::OUT, pending.handshake.wants_write());
            // Should the call ever fail, the handshake ends at its deadline.
            if flags != pending.watched
                && let Some(stream) = pending.handshake.channel()
                && epoll::modify(&self.epoll, stream, epoll::EventData::new_u64(id), flags).is_ok()
            {
                pending.watched = flags;
            }
            return None;
        };
        let remote = pending.remote;
        self.ended(id);
        if let Ok(connected) = &result {
            // The stream is the caller's from here on. Neither call can fail for an open socket.
            let _ = epoll::delete(&self.epoll, &connected.channel);
            let _ = connected.channel.set_nonblocking(false);
        }
        Some(result.map_err(|error| error.at(remote)))
    }

    /// Gives up the oldest handshake that has used up the patience, first of all those without a
    /// hello; false if there is none.
    fn evict<S: PeerStore>(&mut self, store: &mut S, now: Instant) -> bool {
        let patience = self.patience;
        let mut old = self
            .pending
            .iter()
            .take_while(|(_, pending)| Deadline::after(pending.since, patience).has_passed(now));
        let Some((&oldest, first)) = old.next() else {
            return false;
        };
        let is_mute = |pending: &Pending| pending.handshake.step() == Step::Greeting;
        let mute = match is_mute(first) {
            true => Some(oldest),
            false => old.find(|(_, pending)| is_mute(pending)).map(|(&id, _)| id),
        };
        let Some(evicted) = self.ended(mute.unwrap_or(oldest)) else {
            return false;
        };
        let error = evicted.handshake.cancel(store, HandshakeErrorKind::Evicted);
        self.errors.push_back(error.at(evicted.remote));
        true
    }

    /// Frees a place, for which the next client may wait.
    fn ended(&mut self, id: u64) -> Option<Pending> {
        let pending = self.pending.remove(&id);
        if self.paused.is_some() && self.pending.len() < self.max_pending {
            self.paused = Some(Deadline::at(Instant::now()));
        }
        pending
    }

    fn pause(&mut self, until: Deadline) {
        self.paused = Some(until);
        self.watch(epoll::EventFlags::empty());
    }

    fn watch(&mut self, flags: epoll::EventFlags) {
        let event = epoll::EventData::new_u64(LISTENER);
        if epoll::modify(&self.epoll, &self.socket, event, flags).is_err() {
            // The kernel is short of memory: try again later.
            self.paused = Some(Deadline::after(Instant::now(), PAUSE));
        }
    }
}

/// Readable when [`Listener::poll`] has something to do, timeouts apart.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
