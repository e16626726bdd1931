//! Endpoints: one queue pair, any number of peers, operations of any size.

mod life;
mod local;
mod make;
mod meet;
mod messages;
mod shared;
mod store;
mod transfer;
mod wait;

use std::fmt;
use std::os::fd::OwnedFd;

use efa_verbs::{QpState, QueuePair};

use crate::address::EndpointAddress;
use crate::config::Config;
use crate::domain::{Domain, Handle};
use crate::error::{Error, Result};
use crate::handshake::Incarnation;
use crate::operation::Completion;
use crate::peers::{Gone, NewPeer, PeerId};
use crate::queue::connect::bring_up;
use crate::queue::{Batch, Queue};
use crate::scheduler::immediates::Immediates;
use crate::stats::{Limits, PeerStats, Stats};

pub use life::Closed;
pub use meet::connect_over;
pub(crate) use shared::FLUSH;

/// A queue pair with any number of peers: what a program transfers data with.
///
/// SRD has no connections, so one queue pair reaches thousands of peers, each of which costs a small
/// entry and an address handle that is shared by all peers of one device. Everything goes through
/// `&mut self`: use one endpoint per thread, on a shared [`Domain`].
///
/// An operation ([`Put`](crate::Put), [`Get`](crate::Get), [`Send`](crate::Send)) may be of any size, and
/// has exactly one [`Completion`], whatever the number of its requests and the order in which they finish.
/// What it needs, memory and peer, is kept alive until the device is done with it.
///
/// ```no_run
/// use efa_transport::{Access, Buffer, Config, Domain, Endpoint};
/// # fn f(exchange: impl Fn(String) -> (String, String)) -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::open_first()?;
/// let mut endpoint = Endpoint::new(&domain, Config::default())?;
/// let region = domain.register(Buffer::zeroed(1 << 20)?, Access::LOCAL | Access::REMOTE_WRITE)?;
/// region.copy_in(0, b"hello")?;
///
/// // Tell the peer our address, and learn its address and memory; see `handshake` for a ready-made way.
/// let (address, target) = exchange(endpoint.address().to_string());
/// let peer = endpoint.connect(address.parse()?)?;
///
/// let put = endpoint.put(peer, region.slice(..5)?, target.parse()?)?;
/// endpoint.wait(put, None)?.result?;
/// # Ok(()) }
/// ```
pub struct Endpoint {
    // First: the queue pair is destroyed before anything that its requests name.
    queue: Queue,
    config: Config,
    domain: Domain,
    address: EndpointAddress,
    incarnation: Incarnation,
    immediates: Immediates,
    /// An epoll descriptor over the completion channel and the receive pool's event. It is what programs
    /// see: nothing can be read from it.
    events: OwnedFd,
    /// Operations that wait for room stay where they are.
    held_back: bool,
}

impl Endpoint {
    /// Makes an endpoint, with its queue pair in RESET until the first peer is connected.
    ///
    /// # Errors
    /// Settings that can't be, depths above the device's limits (with both numbers), features that the
    /// device or the library lacks, or whatever the kernel refuses.
    pub fn new(domain: &Domain, config: Config) -> Result<Self> {
        let _span = tracing::debug_span!("endpoint", device = domain.device_name()).entered();
        Self::make(domain, config)
    }

    // ---- what it is -----------------------------------------------------------------

    /// Where peers reach this endpoint. It changes when the endpoint is rebuilt.
    pub fn address(&self) -> EndpointAddress {
        self.address
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What it can do at most.
    pub fn limits(&self) -> Limits {
        Limits {
            max_request: self.queue.rules.max_request,
            max_message: self.queue.rules.max_message,
            max_inline: self.queue.rules.max_inline,
            depth: self.queue.scheduler.credits.limit(),
            receive_buffers: self.config.receive_pool.buffers,
            path: self.queue.pair().path(),
        }
    }

    /// The queue pair, to ask it things. It changes when the endpoint is rebuilt.
    pub fn queue_pair(&self) -> &QueuePair {
        self.queue.pair()
    }

    /// Counters since the endpoint was made.
    pub fn stats(&self) -> Stats {
        let mut stats = self.queue.scheduler.snapshot();
        stats.messages_ready = u32::try_from(self.queue.receives.ready()).unwrap_or(u32::MAX);
        stats
    }

    // ---- peers ----------------------------------------------------------------------

    /// Connects to a peer: makes (or shares) the address handle, and brings the queue pair up if this is
    /// the first.
    ///
    /// Both sides must have connected before either uses RDMA: a device refuses requests from a device
    /// for which it has no handle (UNKNOWN_PEER). The [`handshake`](crate::handshake) takes care of that.
    /// Connecting to a peer again returns the same name.
    ///
    /// # Errors
    /// The handle can't be made, a transition fails (the queue pair is then back in RESET, or the error
    /// names its state), or the same queue pair is connected with another key.
    pub fn connect(&mut self, address: EndpointAddress) -> Result<PeerId> {
        self.queue.check_process()?;
        let _span = self.span("connect");
        let handle = self.reach(address)?;
        let peers = &self.queue.scheduler.peers;
        if let Some(known) = peers.connected_at(handle.as_ref(), address) {
            let found = peers.get(known).map_or(address, |entry| entry.address);
            return match found == address {
                true => Ok(known),
                false => Err(Error::AlreadyConnected { address: found }),
            };
        }
        self.bring_up_for(address)?;
        let local = handle.is_none();
        let peer = self.queue.scheduler.peers.add(NewPeer {
            address,
            handle,
            incarnation: 0,
            takes_messages: true,
        });
        tracing::debug!(%peer, %address, local, "connected");
        Ok(peer)
    }

    /// Ends a connection. Operations that are fully posted go on; those with requests still to post fail
    /// with [`FailureKind::Disconnected`](crate::FailureKind::Disconnected). The address handle goes when
    /// nothing uses it any more.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn disconnect(&mut self, peer: PeerId) -> Result<()> {
        if self.queue.scheduler.disconnect(peer, Gone::Disconnected) {
            tracing::debug!(%peer, "disconnected");
            return Ok(());
        }
        Err(self.gone(peer))
    }

    /// The addresses of all peers.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, EndpointAddress)> {
        let peers = self.queue.scheduler.peers.iter();
        peers.map(|(id, entry)| (id, entry.address))
    }

    /// Who a peer is, and what has been exchanged with it.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn peer(&self, peer: PeerId) -> Result<PeerStats> {
        let Some(entry) = self.queue.scheduler.peers.get(peer) else {
            return Err(self.gone(peer));
        };
        let (operations, bytes) = entry.counts.good();
        Ok(PeerStats {
            address: entry.address,
            incarnation: Incarnation::from_number(entry.incarnation),
            operations,
            bytes,
            failed: entry.counts.failed(),
            in_flight: entry.counts.in_flight(),
        })
    }

    /// Makes the queue pair ready without a peer, so that whoever knows its address can send to it.
    /// Connecting, and waiting for messages or immediates, do so as well.
    ///
    /// # Errors
    /// A transition fails.
    pub fn bring_up(&mut self) -> Result<()> {
        self.queue.check_process()?;
        self.bring_up_for(self.address)
    }

    /// For life-cycle events; nothing on the data path has one.
    fn span(&self, what: &'static str) -> tracing::span::EnteredSpan {
        tracing::debug_span!("endpoint", what, number = self.address.queue_pair()).entered()
    }

    #[cold]
    fn gone(&self, peer: PeerId) -> Error {
        Error::PeerGone {
            peer,
            reason: self.queue.scheduler.peers.gone(peer),
        }
    }

    /// The handle for an address; None where transfers to it are copied.
    fn reach(&self, address: EndpointAddress) -> Result<Option<Handle>> {
        if self.is_local(address) {
            return Ok(None);
        }
        let handle = self.domain.handle(address.gid());
        handle.map(Some).map_err(|source| Error::Connect {
            address,
            step: "address handle",
            state: self.queue.pair().known_state(),
            source,
        })
    }

    fn bring_up_for(&mut self, address: EndpointAddress) -> Result<()> {
        let (key, retries) = (self.config.queue_key, self.config.rnr_retries);
        let was_up = self.queue.pair().known_state() == QpState::Rts;
        bring_up(self.queue.pair_mut(), key, retries).map_err(|failed| failed.with(address))?;
        if !was_up {
            self.queue.refill();
        }
        Ok(())
    }

    // ---- batches --------------------------------------------------------------------

    /// Posts the operations that `build` adds to a batch, with one doorbell: all of them, or none if
    /// `build` returns an error or panics, or if the device refuses.
    ///
    /// This is the fastest way to post many short operations. The closure sees nothing but the batch,
    /// which can't leave it.
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error, PeerId, Put, Region, RemoteRegion};
    /// # fn f(endpoint: &mut Endpoint, peer: PeerId, region: &Region, remote: RemoteRegion)
    /// # -> Result<(), Error> {
    /// endpoint.batch(|batch| {
    ///     for i in 0..16u64 {
    ///         let part = i * 64..(i + 1) * 64;
    ///         batch.add(Put::new(peer, region.slice(part.clone())?, remote.slice(part)?).tag(i))?;
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `build` returns; [`Error::PostFailed`]; the queue pair is not up.
    #[inline(always)]
    pub fn batch<R, E: From<Error>>(
        &mut self,
        build: impl FnOnce(&mut Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.queue.batch(build)
    }

    // ---- completions ----------------------------------------------------------------

    /// Gives what has completed to `take`, and keeps everything moving: waiting operations, receives,
    /// deadlines. Returns how many completions there were.
    ///
    /// It never blocks. Call it often while operations are in flight. No lock is held while `take` runs; if
    /// it panics, completions that it was not given come with the next poll.
    ///
    /// ```no_run
    /// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), efa_transport::Error> {
    /// let (mut bytes, mut failed) = (0, 0);
    /// endpoint.poll(|completion| match completion.result {
    ///     Ok(()) => bytes += completion.bytes,
    ///     Err(_) => failed += 1,
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The device can't be polled; `take` was given what was taken before.
    #[inline(always)]
    pub fn poll(&mut self, mut take: impl FnMut(Completion)) -> Result<usize> {
        self.queue.check_process()?;
        let mut taken = self.queue.poll_requests(&mut take)?;
        if self.has_more_to_do() {
            self.progress_rest()?;
            while let Some(completion) = self.queue.scheduler.take_parked() {
                taken += 1;
                take(completion);
            }
        }
        Ok(taken)
    }

    /// One round of everything, in which completions are parked. Returns how much happened.
    fn progress(&mut self) -> Result<usize> {
        self.queue.check_process()?;
        let events = self.queue.poll_parking()?;
        Ok(events + self.progress_rest()?)
    }

    /// Whether a round has more to do than to look for completions of requests.
    #[inline]
    fn has_more_to_do(&self) -> bool {
        let queue = &self.queue;
        !queue.receives.is_none() || queue.scheduler.has_more_to_do() || !queue.local.is_empty()
    }

    /// The part of a round that comes after completions of requests.
    fn progress_rest(&mut self) -> Result<usize> {
        let mut events = self.poll_receives()?;
        if !self.held_back {
            self.queue.pump()?;
        }
        events += self.step_local();
        if self.queue.scheduler.has_deadlines() {
            events += self.expire();
        }
        Ok(events)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("incarnation", &self.incarnation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_can_move_to_another_thread_and_a_domain_can_be_shared() {
        fn moves<T: std::marker::Send>() {}
        fn shared<T: std::marker::Send + Sync>() {}
        moves::<Endpoint>();
        moves::<crate::Connection>();
        shared::<Domain>();
        shared::<crate::Region>();
        shared::<crate::Message>();
    }
}
