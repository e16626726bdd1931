//! Carries a handshake over a byte channel.

use std::io::{ErrorKind, Read, Write};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::error::{HandshakeError, Phase, RejectReason};
use super::info::PeerInfo;
use super::machine::{Channel, Event, Handshake, HandshakeConfig};
use super::store::{Connected, PeerStore};
use super::wire::FrameReader;

/// How many reads one [`StreamHandshake::poll`] does at most, so that one channel can't keep its
/// caller from the others.
const READS_PER_POLL: usize = 32;
const READ_SIZE: usize = 8 << 10;

/// One handshake over one byte channel.
///
/// It works with channels that block and with those that report [`ErrorKind::WouldBlock`], and
/// reads no byte beyond the handshake. [`connect_over`] runs it to its end; by itself it does what can be done
/// at the moment and never waits longer than the channel does.
///
/// A handshake that is dropped before its end may leave a peer installed in the store: end it with
/// [`cancel`](Self::cancel).
#[derive(Debug)]
pub struct StreamHandshake<C, P> {
    channel: Option<C>,
    handshake: Handshake,
    reader: FrameReader,
    out: Vec<u8>,
    written: usize,
    installed: Option<(P, PeerInfo)>,
    established: bool,
}

impl<C: Read + Write, P> StreamHandshake<C, P> {
    /// A handshake of the store's endpoint over `channel` that begins now.
    ///
    /// # Errors
    /// [`HandshakeError::UserDataTooLong`].
    pub fn new<S>(
        channel: C,
        store: &S,
        config: HandshakeConfig,
        now: Instant,
    ) -> Result<Self, HandshakeError>
    where
        S: PeerStore<Peer = P>,
    {
        let config = config.channel(Channel::Stream);
        let reader = FrameReader::new(config.max_user_data);
        Ok(StreamHandshake {
            channel: Some(channel),
            handshake: Handshake::new(store.local(), config, now)?,
            reader,
            out: Vec::new(),
            written: 0,
            installed: None,
            established: false,
        })
    }

    /// How far it has come.
    pub fn phase(&self) -> Phase {
        self.handshake.phase()
    }

    /// The channel, until the handshake has ended.
    pub fn channel(&self) -> Option<&C> {
        self.channel.as_ref()
    }

    #[cfg(test)]
    pub(super) fn channel_mut(&mut self) -> &mut C {
        self.channel.as_mut().expect("the handshake is over")
    }

    /// Whether bytes wait for the channel to take them.
    pub fn wants_write(&self) -> bool {
        self.written < self.out.len()
    }

    /// When to poll again even if nothing happens on the channel.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.handshake.next_timeout()
    }

    /// Does what can be done now. After [`Poll::Ready`] it is over and must not be polled again.
    ///
    /// # Errors
    /// Why the handshake failed. The store has forgotten the peer.
    pub fn poll<S>(
        &mut self,
        store: &mut S,
        now: Instant,
    ) -> Poll<Result<Connected<P, C>, HandshakeError>>
    where
        S: PeerStore<Peer = P>,
    {
        self.handshake.handle_timeout(now);
        let mut reads = 0;
        loop {
            if let Some(error) = self.handle_events(store, now) {
                self.last_words();
                return Poll::Ready(Err(error));
            }
            while self.handshake.poll_transmit(&mut self.out) {}
            let flushed = self.flush();
            match (flushed, self.established) {
                (Ok(true), true) => return Poll::Ready(self.finish(store)),
                (Ok(false), true) => return Poll::Pending,
                (Ok(_), false) => {}
                (Err(source), _) => {
                    self.established = false;
                    let phase = self.handshake.phase();
                    self.give_up(store);
                    return Poll::Ready(Err(HandshakeError::Io { phase, source }));
                }
            }
            if reads == READS_PER_POLL {
                return Poll::Pending;
            }
            reads += 1;
            if !self.read(now) {
                return Poll::Pending;
            }
        }
    }

    /// Ends the handshake. The store forgets the peer, and the peer is told why as far as the channel
    /// takes it at once.
    pub fn cancel<S>(mut self, store: &mut S, reason: RejectReason)
    where
        S: PeerStore<Peer = P>,
    {
        self.handshake.cancel(reason);
        self.give_up(store);
        self.last_words();
    }

    fn handle_events<S>(&mut self, store: &mut S, now: Instant) -> Option<HandshakeError>
    where
        S: PeerStore<Peer = P>,
    {
        while let Some(event) = self.handshake.poll_event() {
            match event {
                Event::Install(info) => match store.install(&info) {
                    Ok(peer) => {
                        self.installed = Some((peer, info));
                        self.handshake.installed(now);
                    }
                    Err(error) => self.handshake.install_failed(error),
                },
                Event::Established => self.established = true,
                Event::Failed(error) => {
                    self.give_up(store);
                    return Some(error);
                }
            }
        }
        None
    }

    fn finish<S>(&mut self, store: &mut S) -> Result<Connected<P, C>, HandshakeError>
    where
        S: PeerStore<Peer = P>,
    {
        // The peer holds a handle for what we were at the start; if that is no more, the peer
        // learns it from the channel's end at the latest.
        let current = store.local();
        let told = self.handshake.local();
        if (current.incarnation, current.address) != (told.incarnation, told.address) {
            self.give_up(store);
            return Err(HandshakeError::LocalChanged);
        }
        match (self.installed.take(), self.channel.take()) {
            (Some((peer, info)), Some(channel)) => {
                store.activate(&peer);
                Ok(Connected {
                    peer,
                    info,
                    channel,
                })
            }
            _ => Err(HandshakeError::Cancelled),
        }
    }

    fn give_up<S>(&mut self, store: &mut S)
    where
        S: PeerStore<Peer = P>,
    {
        if let Some((peer, _)) = self.installed.take() {
            store.forget(peer);
        }
    }

    /// Tells the peer why it is over, if the channel takes it.
    fn last_words(&mut self) {
        while self.handshake.poll_transmit(&mut self.out) {}
        // The handshake has failed already, and for a better reason than this one.
        let _ = self.flush();
        self.channel = None;
    }

    /// Writes what there is; false if some of it is left.
    fn flush(&mut self) -> std::io::Result<bool> {
        let Some(channel) = &mut self.channel else {
            return Ok(true);
        };
        while self.written < self.out.len() {
            match channel.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count.min(self.out.len() - self.written),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(false),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        if self.written > 0 {
            self.out.clear();
            self.written = 0;
            match channel.flush() {
                Err(error) if !is_pending(error.kind()) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Reads once; false if there is nothing to read now.
    fn read(&mut self, now: Instant) -> bool {
        let Some(channel) = &mut self.channel else {
            return false;
        };
        let mut buffer = [0; READ_SIZE];
        let wanted = self.reader.wanted().min(READ_SIZE);
        match channel.read(&mut buffer[..wanted]) {
            Ok(0) => {
                let closed = HandshakeError::Closed(self.handshake.phase());
                self.handshake.channel_failed(
                    self.reader
                        .truncated()
                        .map_or(closed, HandshakeError::Frame),
                );
            }
            Ok(count) => match self.reader.push(&buffer[..count.min(wanted)]) {
                // An error is kept by the handshake as well, which then has failed.
                Ok(Some(frame)) => drop(self.handshake.handle(now, frame)),
                Ok(None) => {}
                Err(error) => self.handshake.damaged(error),
            },
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_pending(error.kind()) => return false,
            Err(source) => {
                let phase = self.handshake.phase();
                self.handshake
                    .channel_failed(HandshakeError::Io { phase, source });
            }
        }
        true
    }
}

fn is_pending(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Runs a handshake over any byte channel to its end: a pipe, a TLS session, a Unix socket, a tunnel
/// through something else.
///
/// Exactly one side should speak first ([`HandshakeConfig::speak_first`]). The timeout is looked at
/// whenever the channel returns: a channel that may block for ever needs a timeout of its own, such
/// as [`TcpStream::set_read_timeout`](std::net::TcpStream::set_read_timeout). A channel that does not block is
/// tried again every millisecond.
///
/// # Errors
/// Why the handshake failed. The store has forgotten the peer, and the channel is closed.
///
/// ```
/// use efa_transport::handshake::{HandshakeConfig, PeerStore, connect_over};
/// use std::os::unix::net::UnixStream;
///
/// # use efa_transport::{address::*, handshake::*};
/// # fn endpoint(queue_pair: u32) -> Roster {
/// #     let gid: Gid = "fe80::1".parse().unwrap();
/// #     let address = EndpointAddress::new(gid, queue_pair, 0x4242).unwrap();
/// #     Roster::new(EndpointInfo::new(address, Incarnation::random()))
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (ours, theirs) = UnixStream::pair()?;
/// let peer = std::thread::spawn(move || {
///     let mut endpoint = endpoint(2);
///     connect_over(theirs, &mut endpoint, HandshakeConfig::default().speak_first(false)).map(|c| c.info)
/// });
/// let mut endpoint = endpoint(1);
/// let config = HandshakeConfig::default().user_data(b"hello".as_slice());
/// let connected = connect_over(ours, &mut endpoint, config)?;
/// assert_eq!(connected.info.endpoint.address.queue_pair(), 2);
/// assert_eq!(peer.join().unwrap()?.user_data, b"hello");
/// # Ok(())
/// # }
/// ```
pub fn connect_over<C, S>(
    channel: C,
    store: &mut S,
    config: HandshakeConfig,
) -> Result<Connected<S::Peer, C>, HandshakeError>
where
    C: Read + Write,
    S: PeerStore,
{
    let mut handshake = StreamHandshake::new(channel, store, config, Instant::now())?;
    loop {
        if let Poll::Ready(result) = handshake.poll(store, Instant::now()) {
            return result;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
