//! Takes handshakes over TCP, many at once, without threads.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::error::{HandshakeError, Phase, RejectReason};
use super::machine::HandshakeConfig;
use super::store::{Connected, PeerStore};
use super::stream::StreamHandshake;

const LISTENER: u64 = u64::MAX;
const ACCEPTS_PER_POLL: usize = 64;
const EVENTS_PER_POLL: usize = 64;
/// How long no connection is taken after the system refused one for want of resources.
const BREATHER: Duration = Duration::from_millis(100);

/// How a [`Listener`] behaves.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    handshake: HandshakeConfig,
    max_pending: usize,
    patience: Duration,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        ListenerConfig {
            handshake: HandshakeConfig::default(),
            max_pending: 1024,
            patience: Duration::from_secs(1),
        }
    }
}

impl ListenerConfig {
    /// How each handshake is to go. Its timeout holds for each connection from the moment that it is
    /// taken, whatever the client sends in between. A listener never speaks first.
    pub fn handshake(mut self, config: HandshakeConfig) -> Self {
        self.handshake = config;
        self
    }

    /// How many handshakes may be under way at once, at least 1; 1024 if not set. When more clients
    /// come, the oldest that has not introduced itself within the [patience](Self::patience) is given up;
    /// if there is none, new ones wait in the kernel's queue.
    ///
    /// Each may take as much memory as [`HandshakeConfig::max_user_data`] allows, but only for bytes that
    /// have come.
    pub fn max_pending(mut self, max: usize) -> Self {
        self.max_pending = max.max(1);
        self
    }

    /// How long a client may take when others wait for its place. One second if not set.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// The end of one handshake at a [`Listener`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Arrival<P> {
    /// Where the client's connection came from.
    pub remote: SocketAddr,
    /// The peer, or why its handshake failed. A failure concerns this client alone.
    pub result: Result<Connected<P, TcpStream>, HandshakeError>,
}

/// What a [`Listener`] has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Connections taken.
    pub accepted: u64,
    /// Handshakes that succeeded.
    pub established: u64,
    /// Handshakes that failed, for whatever reason.
    pub failed: u64,
    /// Those of them that were given up in favour of newer ones.
    pub evicted: u64,
    /// Connections that the system could not hand over, for instance for want of file descriptors.
    pub accept_errors: u64,
}

#[derive(Debug)]
struct Pending<P> {
    handshake: StreamHandshake<TcpStream, P>,
    remote: SocketAddr,
    since: Instant,
    writing: bool,
}

/// Takes handshakes over TCP, many at once.
///
/// Nothing happens in the background: [`poll`](Self::poll) does what can be done at the moment and
/// never waits, so that it fits into the loop that polls the endpoint. [`wait`](Self::wait) sleeps
/// until there is something to do; to wait for other things as well, watch the
/// listener's file descriptor ([`AsFd`], readable) and heed [`next_timeout`](Self::next_timeout).
///
/// Clients can't hold it up: each has a deadline, sends a bounded number of bytes and takes one of a bounded
/// number of places; one that sends something else, or stops in the middle, costs nobody but itself.
///
/// ```
/// use efa_transport::handshake::{Connector, ConnectorConfig, Listener, ListenerConfig};
/// # use efa_transport::{address::*, handshake::*};
/// # fn endpoint(queue_pair: u32) -> Roster {
/// #     let gid: Gid = "fe80::1".parse().unwrap();
/// #     let address = EndpointAddress::new(gid, queue_pair, 0x4242).unwrap();
/// #     Roster::new(EndpointInfo::new(address, Incarnation::random()))
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut server = endpoint(1);
/// let mut listener = Listener::bind("127.0.0.1:0", ListenerConfig::default())?;
/// let mut client = endpoint(2);
/// let mut connector = Connector::new(listener.local_addr()?, ConnectorConfig::default())?;
///
/// let arrival = loop {
///     let _ = connector.poll(&mut client);
///     if let Some(arrival) = listener.poll(&mut server) {
///         break arrival;
///     }
/// };
/// assert_eq!(arrival.result?.info.endpoint.address.queue_pair(), 2);
/// listener.close(&mut server);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener<P> {
    socket: TcpListener,
    epoll: OwnedFd,
    config: ListenerConfig,
    pending: BTreeMap<u64, Pending<P>>,
    next_id: u64,
    /// While no connection is taken: when to try again.
    paused: Option<Instant>,
    done: VecDeque<Arrival<P>>,
    stats: ListenerStats,
}

impl<P> Listener<P> {
    /// Listens at `address`. Port 0 lets the system choose one: see [`local_addr`](Self::local_addr).
    ///
    /// # Errors
    /// The address is taken, not ours, or can't be resolved.
    pub fn bind(address: impl ToSocketAddrs, config: ListenerConfig) -> io::Result<Self> {
        Self::from_socket(TcpListener::bind(address)?, config)
    }

    /// Listens at a socket that exists already.
    ///
    /// # Errors
    /// The socket can't be made non-blocking, or the system lacks file descriptors.
    pub fn from_socket(socket: TcpListener, mut config: ListenerConfig) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Who opens the connection introduces itself: nothing is told to a port scanner.
        config.handshake = config.handshake.speak_first(false);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &socket,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )?;
        Ok(Listener {
            socket,
            epoll,
            config,
            pending: BTreeMap::new(),
            next_id: 0,
            paused: None,
            done: VecDeque::new(),
            stats: ListenerStats::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Handshakes under way.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What it has seen so far.
    pub fn stats(&self) -> ListenerStats {
        self.stats
    }

    /// Replaces the bytes that peers get from now on.
    pub fn set_user_data(&mut self, user_data: impl Into<Arc<[u8]>>) {
        self.config.handshake.user_data = user_data.into();
    }

    /// When to call [`poll`](Self::poll) even if the file descriptor is not readable.
    pub fn next_timeout(&self) -> Option<Instant> {
        // All have the same timeout, so the oldest is the first.
        let oldest = self
            .pending
            .values()
            .next()
            .and_then(|pending| pending.handshake.next_timeout());
        [oldest, self.paused].into_iter().flatten().min()
    }

    /// Does what can be done now, and returns the next handshake that has ended, if any.
    pub fn poll<S: PeerStore<Peer = P>>(&mut self, store: &mut S) -> Option<Arrival<P>> {
        if self.done.is_empty() {
            self.sweep(store, Instant::now());
        }
        self.done.pop_front()
    }

    /// Sleeps until there is something for [`poll`](Self::poll) to do, at most for `timeout`.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.done.is_empty() {
            return Ok(());
        }
        let due = self
            .next_timeout()
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = [timeout, due].into_iter().flatten().min().map(timespec);
        // What is ready stays so until poll looks at it; a signal is a reason to return, too.
        let mut ready = Vec::with_capacity(1);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut ready),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the next handshake to end, at most for `timeout`; `None` if none has.
    ///
    /// # Errors
    /// Waiting fails. What fails in a handshake is in the [`Arrival`].
    pub fn accept<S: PeerStore<Peer = P>>(
        &mut self,
        store: &mut S,
        timeout: Duration,
    ) -> io::Result<Option<Arrival<P>>> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(arrival) = self.poll(store) {
                return Ok(Some(arrival));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.wait(left)?;
        }
    }

    /// Ends all handshakes that are under way and stops listening. A listener that is merely dropped
    /// leaves their peers installed in the store.
    pub fn close<S: PeerStore<Peer = P>>(self, store: &mut S) {
        for (_, pending) in self.pending {
            pending.handshake.cancel(store, RejectReason::Closing);
        }
        // Those that succeeded and were not asked for keep their peers: they are connected.
    }

    fn sweep<S: PeerStore<Peer = P>>(&mut self, store: &mut S, now: Instant) {
        let mut ready = Vec::with_capacity(EVENTS_PER_POLL);
        let buffer = rustix::buffer::spare_capacity(&mut ready);
        if epoll::wait(&self.epoll, buffer, Some(&timespec(Duration::ZERO))).is_err() {
            ready.clear();
        }
        if self.paused.is_some_and(|until| now >= until) {
            self.resume();
        }
        for event in ready {
            match event.data.u64() {
                LISTENER => self.accept_some(store, now),
                id => self.advance(id, store, now),
            }
        }
        while let Some((&id, oldest)) = self.pending.first_key_value()
            && oldest.handshake.next_timeout().is_none_or(|at| now >= at)
        {
            self.advance(id, store, now);
            if self.pending.contains_key(&id) {
                break;
            }
        }
    }

    fn accept_some<S: PeerStore<Peer = P>>(&mut self, store: &mut S, now: Instant) {
        for _ in 0..ACCEPTS_PER_POLL {
            if self.pending.len() >= self.config.max_pending && !self.evict(store, now) {
                let oldest = self
                    .pending
                    .values()
                    .next()
                    .map_or(now, |pending| pending.since);
                return self
                    .pause((oldest + self.config.patience).max(now + Duration::from_millis(1)));
            }
            match self.socket.accept() {
                Ok((stream, remote)) => {
                    self.stats.accepted += 1;
                    if let Err(error) = self.take(stream, remote, store, now) {
                        self.end(remote, Err(error));
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // That client is gone already; there may be others.
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                    _ => {
                        self.stats.accept_errors += 1;
                        self.evict(store, now);
                        return self.pause(now + BREATHER);
                    }
                },
            }
        }
    }

    fn take<S: PeerStore<Peer = P>>(
        &mut self,
        stream: TcpStream,
        remote: SocketAddr,
        store: &mut S,
        now: Instant,
    ) -> Result<(), HandshakeError> {
        let io = |source| HandshakeError::Io {
            phase: Phase::Connecting,
            source,
        };
        stream.set_nonblocking(true).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        let id = self.next_id;
        epoll::add(
            &self.epoll,
            &stream,
            epoll::EventData::new_u64(id),
            epoll::EventFlags::IN,
        )
        .map_err(|error| io(error.into()))?;
        self.next_id += 1;
        let handshake = StreamHandshake::new(stream, store, self.config.handshake.clone(), now)?;
        self.pending.insert(
            id,
            Pending {
                handshake,
                remote,
                since: now,
                writing: false,
            },
        );
        Ok(())
    }

    fn advance<S: PeerStore<Peer = P>>(&mut self, id: u64, store: &mut S, now: Instant) {
        let Some(pending) = self.pending.get_mut(&id) else {
            return;
        };
        match pending.handshake.poll(store, now) {
            Poll::Pending => {
                let writing = pending.handshake.wants_write();
                if writing != pending.writing
                    && let Some(stream) = pending.handshake.channel()
                {
                    let flags = match writing {
                        true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                        false => epoll::EventFlags::IN,
                    };
                    // Should this ever fail, the handshake runs into its deadline.
                    let data = epoll::EventData::new_u64(id);
                    pending.writing =
                        epoll::modify(&self.epoll, stream, data, flags).is_ok() == writing;
                }
            }
            Poll::Ready(result) => {
                let remote = pending.remote;
                self.pending.remove(&id);
                if let Ok(connected) = &result {
                    // It is the caller's from here on; a stream that is dropped leaves by itself. Neither
                    // call can fail for a socket that is registered and open.
                    let _ = epoll::delete(&self.epoll, &connected.channel);
                    let _ = connected.channel.set_nonblocking(false);
                }
                self.end(remote, result);
            }
        }
    }

    /// Gives up the oldest handshake that has used up the patience, first of all among those that
    /// have not introduced themselves; false if there is none.
    fn evict<S: PeerStore<Peer = P>>(&mut self, store: &mut S, now: Instant) -> bool {
        let patience = self.config.patience;
        let mut old = self
            .pending
            .iter()
            .take_while(|(_, pending)| now >= pending.since + patience)
            .peekable();
        let Some(&(&oldest, _)) = old.peek() else {
            return false;
        };
        let mute = old
            .find(|(_, pending)| pending.handshake.phase() == Phase::Greeting)
            .map(|(&id, _)| id);
        let Some(evicted) = self.pending.remove(&mute.unwrap_or(oldest)) else {
            return false;
        };
        let phase = evicted.handshake.phase();
        evicted.handshake.cancel(store, RejectReason::Busy);
        self.stats.evicted += 1;
        self.end(evicted.remote, Err(HandshakeError::Evicted(phase)));
        true
    }

    fn end(&mut self, remote: SocketAddr, result: Result<Connected<P, TcpStream>, HandshakeError>) {
        match &result {
            Ok(_) => self.stats.established += 1,
            Err(_) => self.stats.failed += 1,
        }
        self.done.push_back(Arrival { remote, result });
        if self.paused.is_some() && self.pending.len() < self.config.max_pending {
            self.paused = Some(Instant::now());
        }
    }

    fn pause(&mut self, until: Instant) {
        self.paused = Some(until);
        self.watch(epoll::EventFlags::empty());
    }

    fn resume(&mut self) {
        self.paused = None;
        self.watch(epoll::EventFlags::IN);
    }

    fn watch(&mut self, flags: epoll::EventFlags) {
        if epoll::modify(
            &self.epoll,
            &self.socket,
            epoll::EventData::new_u64(LISTENER),
            flags,
        )
        .is_err()
        {
            // The kernel is short of memory: try again in a while.
            self.paused = Some(Instant::now() + BREATHER);
        }
    }
}

/// Readable when there is something for [`Listener::poll`] to do, timeouts apart.
impl<P> AsFd for Listener<P> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
