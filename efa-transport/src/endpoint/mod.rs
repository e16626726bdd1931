//! Endpoints: one queue pair, any number of peers, operations of any size.

mod inquire;
mod life;
mod local;
mod receive;
mod store;
mod transfer;
mod wait;

use std::collections::{HashMap, VecDeque};
use std::fmt;

use efa_verbs::{Access, Buffer, Operations, QpState, QueuePair, QueuePairConfig};

use crate::address::EndpointAddress;
use crate::config::{Config, Loopback};
use crate::connect::bring_up;
use crate::credit::Credits;
use crate::domain::{Domain, Handle};
use crate::error::{Error, Result};
use crate::flow::Flow;
use crate::handshake::Incarnation;
use crate::immediate::Immediates;
use crate::ops::{Completion, OperationId};
use crate::peers::{Gone, NewPeer, PeerId};
use crate::region::Region;
use crate::session::{Core, GrantTable, Rules, Session};
use crate::stats::{PeerStats, Stats};

pub use life::Closed;

/// PCI device id of the p4d generation, which drops traffic of a device to itself.
const P4D: u32 = 0xefa1;
/// Most peers that a grant can be given to.
const TABLE_SLOTS: u32 = 4096;

/// A queue pair with any number of peers: what a program transfers data with.
///
/// SRD has no connections, so one queue pair reaches thousands of peers, each of which costs a
/// small entry and an address handle that is shared by all peers of one device. Everything
/// goes through `&mut self`: use one endpoint per thread, on a shared [`Domain`].
///
/// An operation ([`put`](Self::put), [`get`](Self::get), [`send`](Self::send), …) may be of
/// any size, and has exactly one [`Completion`], whatever the number of its requests and the
/// order in which they finish. What it needs, memory and peer, is kept alive until the
/// device is done with it.
///
/// ```no_run
/// use efa_transport::{Access, Buffer, Config, Domain, Endpoint};
/// # fn f(exchange: impl Fn(String) -> (String, String)) -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::open_first()?;
/// let mut endpoint = Endpoint::new(&domain, Config::default())?;
/// let region = domain.register(Buffer::zeroed(1 << 20)?, Access::LOCAL | Access::REMOTE_WRITE)?;
/// region.copy_in(0, b"hello")?;
///
/// // Tell the peer our address, and learn its address and memory; see `handshake` for a
/// // ready-made way.
/// let (address, target) = exchange(endpoint.address().to_string());
/// let peer = endpoint.connect(address.parse()?)?;
///
/// let put = endpoint.put(peer, region.slice(..5)?, target.parse()?, 0)?;
/// let completion = endpoint.wait(put, None)?;
/// completion.result?;
/// # Ok(()) }
/// ```
pub struct Endpoint {
    // First: the queue pair is destroyed before anything that its requests name.
    core: Core,
    rules: Rules,
    config: Config,
    domain: Domain,
    address: EndpointAddress,
    incarnation: Incarnation,
    /// Peers by the number of their handle and of their queue pair, for receive completions.
    sources: HashMap<u32, u32>,
    /// Peers whose handshake has not finished.
    installing: HashMap<(EndpointAddress, u64), PeerId>,
    immediates: Immediates,
    /// Operations that this process carries out itself.
    local: VecDeque<OperationId>,
    /// Buffers for messages from plain slices. One is free when no operation has a clone.
    send_buffers: Vec<Region>,
    next_send_buffer: usize,
    receives: bool,
    /// Where peers see how many of their immediates were taken.
    grants: Option<GrantTable>,
    /// Buffers for inquiries, and whether one is under way.
    inquiry_buffers: Vec<(Region, bool)>,
}

impl Endpoint {
    /// Makes an endpoint, with its queue pair in RESET until the first peer is connected.
    ///
    /// # Errors
    /// Depths above the device's limits (with both numbers), features that the device or the
    /// library lacks, or whatever the kernel refuses.
    pub fn new(domain: &Domain, config: Config) -> Result<Self> {
        let _span = tracing::debug_span!("endpoint", device = domain.device_name()).entered();
        config.check()?;
        let (pair, rules) = create_pair(domain, &config)?;
        let address = address_of(domain, &pair, &config)?;
        let pool = match config.receive_pool {
            None => None,
            Some(pool) => {
                let size = pool
                    .size
                    .unwrap_or(rules.max_message)
                    .min(rules.max_message);
                let bytes = u64::from(size) * u64::from(pool.buffers);
                let bytes = usize::try_from(bytes).map_err(|_| Error::Overflow)?;
                if pool.buffers > pair.recv_capacity() {
                    return Err(efa_verbs::Error::LimitExceeded {
                        device: rules.device.clone(),
                        what: efa_verbs::Limit::RecvDepth,
                        requested: pool.buffers.into(),
                        limit: pair.recv_capacity().into(),
                    }
                    .into());
                }
                let region = domain.register_private(Buffer::zeroed(bytes)?, Access::LOCAL)?;
                Some((region, pool.buffers, size))
            }
        };
        let receives = config.receive_depth > 0 || rules.unsolicited;
        let flow = Flow::new(
            credits(&pair),
            config.max_operations,
            rules.max_request,
            config.quantum,
        );
        let grants = grant_table(domain, &config, &rules)?;
        let incarnation = Incarnation::random();
        tracing::debug!(
            device = rules.device,
            %incarnation,
            ?address,
            "endpoint made"
        );
        Ok(Self {
            core: Core::new(pair, flow, pool),
            rules,
            immediates: Immediates::new(config.max_immediates),
            config,
            domain: domain.clone(),
            address,
            incarnation,
            sources: HashMap::new(),
            installing: HashMap::new(),
            local: VecDeque::new(),
            send_buffers: Vec::new(),
            next_send_buffer: 0,
            receives,
            grants,
            inquiry_buffers: Vec::new(),
        })
    }

    // ---- what it is -----------------------------------------------------------------

    /// Where peers reach this endpoint. It changes when the endpoint is rebuilt.
    pub fn address(&self) -> EndpointAddress {
        self.address
    }

    /// Which life of the endpoint this is.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// The settings it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The queue pair's state, asked of the device.
    ///
    /// # Errors
    /// The query fails: the device may be gone.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.core.pair().state()?)
    }

    /// Bytes of the largest single RDMA request; longer transfers are cut.
    pub fn max_request_size(&self) -> u32 {
        self.rules.max_request
    }

    /// Bytes of the longest message.
    pub fn max_message_size(&self) -> u32 {
        self.rules.max_message
    }

    /// Bytes of the longest message that needs no buffer at all.
    pub fn max_inline(&self) -> u32 {
        self.rules.max_inline
    }

    /// Requests that may be with the device at once.
    pub fn depth(&self) -> u32 {
        self.core.flow.credits.limit()
    }

    /// Requests that could be posted now.
    pub fn free_depth(&self) -> u32 {
        self.core.flow.credits.free()
    }

    /// Operations that are not finished, or whose completion was not taken.
    pub fn operations(&self) -> u32 {
        self.core.flow.operations()
    }

    /// Operations that wait for room in the send queue.
    pub fn queued(&self) -> u32 {
        self.core.flow.waiting()
    }

    /// The queue pair, to ask it things. It changes when the endpoint is rebuilt.
    pub fn queue_pair(&self) -> &QueuePair {
        self.core.pair()
    }

    /// How requests are posted: through libefa, or directly.
    pub fn data_path(&self) -> efa_verbs::DataPath {
        self.core.pair().path()
    }

    /// Counters since the endpoint was made.
    pub fn stats(&self) -> Stats {
        self.core.flow.snapshot()
    }

    // ---- peers ----------------------------------------------------------------------

    /// Connects to a peer: makes (or shares) the address handle, and brings the queue pair up
    /// if this is the first.
    ///
    /// Both sides must have connected before either uses RDMA: a device refuses requests from
    /// a device for which it has no handle (UNKNOWN_PEER). The [`handshake`](crate::handshake)
    /// takes care of that. Connecting to a peer again returns the same name.
    ///
    /// # Errors
    /// The handle can't be made, a transition fails (the queue pair is then back in RESET, or
    /// the error names its state), or the same queue pair is connected with another key.
    pub fn connect(&mut self, address: EndpointAddress) -> Result<PeerId> {
        let _span = self.span("connect");
        let (handle, key) = self.reach(address)?;
        if let Some(known) = self.connected_at(key) {
            let entry = self.core.flow.peers.get(known);
            if entry.is_some_and(|entry| entry.address == address) {
                return Ok(known);
            }
            return Err(Error::AlreadyConnected {
                address: entry.map_or(address, |entry| entry.address),
            });
        }
        self.bring_up(address)?;
        let local = handle.is_none();
        let peer = self.core.flow.peers.add(NewPeer {
            address,
            handle,
            incarnation: 0,
            local,
            capabilities: 0,
        });
        self.sources.insert(key, peer.index());
        tracing::debug!(%peer, ?address, local, "connected");
        Ok(peer)
    }

    /// Makes the queue pair ready without a peer: peers that connect to this endpoint can then
    /// send to it, and receives can be posted.
    ///
    /// # Errors
    /// A transition fails.
    pub fn activate(&mut self) -> Result<()> {
        self.bring_up(self.address)
    }

    /// Ends a connection. Operations that are fully posted go on; those with requests still to
    /// post fail with [`FailureKind::Disconnected`](crate::FailureKind::Disconnected). The
    /// address handle goes when nothing uses it any more.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn disconnect(&mut self, peer: PeerId) -> Result<()> {
        self.drop_peer(peer, Gone::Disconnected)
    }

    /// The addresses of all peers.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, EndpointAddress)> {
        self.core
            .flow
            .peers
            .iter()
            .map(|(id, entry)| (id, entry.address))
    }

    /// Connected peers.
    pub fn peer_count(&self) -> u32 {
        self.core.flow.peers.connected()
    }

    /// A peer's address.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn peer_address(&self, peer: PeerId) -> Result<EndpointAddress> {
        match self.core.flow.peers.get(peer) {
            Some(entry) => Ok(entry.address),
            None => Err(self.gone(peer)),
        }
    }

    /// A peer's incarnation, where a handshake told it.
    pub fn peer_incarnation(&self, peer: PeerId) -> Option<Incarnation> {
        Incarnation::from_number(self.core.flow.peers.get(peer)?.incarnation)
    }

    /// What has been exchanged with a peer.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn peer_stats(&self, peer: PeerId) -> Result<PeerStats> {
        let flow = &self.core.flow;
        let Some(entry) = flow.peers.get(peer) else {
            return Err(self.gone(peer));
        };
        let (operations, bytes) = flow.succeeded(peer);
        Ok(PeerStats {
            operations,
            bytes,
            failed: entry.failures,
            in_flight: flow.in_flight(peer),
        })
    }

    /// For life-cycle events; nothing on the data path has one.
    fn span(&self, what: &'static str) -> tracing::span::EnteredSpan {
        let address = self.address;
        tracing::debug_span!("endpoint", what, number = address.queue_pair()).entered()
    }

    #[cold]
    fn gone(&self, peer: PeerId) -> Error {
        Error::PeerGone {
            peer,
            reason: self.core.flow.peers.gone(peer),
        }
    }

    fn drop_peer(&mut self, peer: PeerId, why: Gone) -> Result<()> {
        let Some(entry) = self.core.flow.peers.get(peer) else {
            return Err(self.gone(peer));
        };
        let address = entry.address;
        if let Ok((_, key)) = self.reach(address)
            && self.sources.get(&key) == Some(&peer.index())
        {
            self.sources.remove(&key);
        }
        let slot = entry.slot;
        self.core.flow.disconnect(peer, why);
        if let Some(grants) = &mut self.grants {
            grants.close(slot);
        }
        tracing::debug!(%peer, ?address, %why, "disconnected");
        Ok(())
    }

    /// The handle for an address, and the key under which its messages arrive. An address that
    /// transfers are copied to needs no handle, and has a key that no handle's number is part
    /// of.
    fn reach(&self, address: EndpointAddress) -> Result<(Option<Handle>, u32)> {
        if self.is_local(address) {
            return Ok((None, source_key(u16::MAX, address.queue_pair())));
        }
        let handle = self
            .domain
            .handle(address.gid())
            .map_err(|source| Error::Connect {
                address,
                step: "address handle",
                state: self.core.pair().known_state(),
                source,
            })?;
        let key = source_key(handle.ah().number(), address.queue_pair());
        Ok((Some(handle), key))
    }

    /// The usable peer behind a key.
    fn connected_at(&self, key: u32) -> Option<PeerId> {
        let &index = self.sources.get(&key)?;
        let id = self.core.flow.peers.name(index)?;
        self.core.flow.peers.is_usable(id).then_some(id)
    }

    fn bring_up(&mut self, address: EndpointAddress) -> Result<()> {
        let (key, retries) = (self.config.queue_key, self.config.rnr_retries);
        let was_up = self.core.pair().known_state() == QpState::Rts;
        bring_up(self.core.pair_mut(), key, retries).map_err(|failed| failed.with(address))?;
        if !was_up {
            self.core.refill()?;
        }
        Ok(())
    }

    /// Whether transfers to this address are copied by the CPU.
    fn is_local(&self, address: EndpointAddress) -> bool {
        if self.config.loopback == Loopback::Device || address.gid() != self.domain.gid() {
            return false;
        }
        let own = address.queue_pair() == self.address.queue_pair();
        own || self.domain.attributes().vendor_part_id == P4D
    }

    // ---- posting in batches ---------------------------------------------------------

    /// Posts the requests that `build` adds to a session, with one doorbell: all of them, or
    /// none if `build` returns an error or panics, or if the device refuses.
    ///
    /// This is the fastest way to post many short operations, above all in [runs](Session::run) with
    /// one peer and one region. The closure sees nothing but the session, which can't leave it.
    ///
    /// ```no_run
    /// # use efa_transport::{Endpoint, Error, PeerId, Region, RemoteRegion};
    /// # fn f(endpoint: &mut Endpoint, peer: PeerId, region: &Region, remote: RemoteRegion)
    /// # -> Result<(), Error> {
    /// endpoint.post(|session| {
    ///     session.run(peer, region, |run| {
    ///         for i in 0..16u64 {
    ///             let part = i * 64..(i + 1) * 64;
    ///             run.write(part.clone(), remote.slice(part)?, i)?;
    ///         }
    ///         Ok::<_, Error>(())
    ///     })
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `build` returns; [`Error::PostFailed`]; the queue pair is not up.
    #[inline(always)]
    pub fn post<R, E: From<Error>>(
        &mut self,
        build: impl FnOnce(&mut Session<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.core.post(&self.rules, build)
    }

    // ---- completions ----------------------------------------------------------------

    /// Takes what has completed, appends it to `out`, and keeps everything moving: queued
    /// operations, receives, deadlines. Returns how many completions it appended.
    ///
    /// It never blocks. Call it often while operations are under way; with nothing to do it
    /// costs little. `out` keeps its capacity, so a reused vector makes polling free of
    /// allocations.
    ///
    /// # Errors
    /// The device can't be polled. Completions that were taken before are in `out`.
    #[inline]
    pub fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize> {
        self.poll_each(|completion| out.push(completion))
    }

    /// As [`poll`](Self::poll), but gives each completion to `take` instead of writing it to
    /// memory: the fastest way to learn of many short operations.
    ///
    /// No lock is held while `take` runs. If it panics, completions that it was not given come with the
    /// next poll.
    ///
    /// ```no_run
    /// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), efa_transport::Error> {
    /// let (mut bytes, mut failed) = (0, 0);
    /// endpoint.poll_each(|completion| match completion.result {
    ///     Ok(()) => bytes += completion.bytes,
    ///     Err(_) => failed += 1,
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    #[inline(always)]
    pub fn poll_each(&mut self, mut take: impl FnMut(Completion)) -> Result<usize> {
        let mut taken = 0;
        let mut result = self.core.poll_send(&mut take, &mut taken);
        if self.has_more_to_do() {
            result = result.and_then(|()| self.progress_rest().map(drop));
            // Not by a function that is given `take`: what it changes would have to be in memory.
            while let Some(completion) = self.core.flow.take_parked() {
                taken += 1;
                take(completion);
            }
        }
        result.map(|()| taken)
    }

    /// One round of everything, in which completions are kept. Returns how much happened.
    fn progress(&mut self) -> Result<usize> {
        let events = self.core.poll_send_parking()?;
        Ok(events + self.progress_rest()?)
    }

    /// Whether a round has more to do than to look for completions of requests.
    #[inline(always)]
    fn has_more_to_do(&self) -> bool {
        self.receives || !self.local.is_empty() || self.core.flow.has_more_to_do()
    }

    /// The part of a round that comes after completions of requests.
    fn progress_rest(&mut self) -> Result<usize> {
        let mut events = 0;
        if self.receives {
            events += self.poll_receives()?;
        }
        if self.core.flow.has_waiting() {
            self.core.pump()?;
        }
        if !self.local.is_empty() {
            events += self.step_local();
        }
        if self.core.flow.has_inquiries() {
            events += self.inquire()?;
        }
        if self.core.flow.has_deadlines() {
            events += self.expire();
        }
        Ok(events)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("peers", &self.peer_count())
            .field("operations", &self.operations())
            .finish_non_exhaustive()
    }
}

/// Receive completions name their sender by two 16-bit numbers.
fn source_key(handle: u16, queue_pair: u32) -> u32 {
    u32::from(handle) << 16 | (queue_pair & 0xffff)
}

/// The table of what has been taken, with a slot for as many grants as there is room for.
fn grant_table(domain: &Domain, config: &Config, rules: &Rules) -> Result<Option<GrantTable>> {
    let slots = config
        .immediate_room
        .checked_div(config.immediate_grant)
        .unwrap_or(0)
        .min(TABLE_SLOTS);
    if !rules.unsolicited || slots == 0 || !rules.operations.contains(Operations::READ) {
        return Ok(None);
    }
    let bytes = slots as usize * crate::grant::SLOT as usize;
    let region = domain.register_private(Buffer::zeroed(bytes)?, Access::REMOTE_READ)?;
    Ok(Some(GrantTable::new(region)))
}

/// As many as the send queue has places: its completion queue is made as large.
fn credits(pair: &QueuePair) -> Credits {
    Credits::new(pair.send_capacity(), pair.send_capacity())
}

fn address_of(domain: &Domain, pair: &QueuePair, config: &Config) -> Result<EndpointAddress> {
    EndpointAddress::new(domain.gid(), pair.number(), config.queue_key).map_err(|error| {
        Error::Verbs(efa_verbs::Error::InvalidArgument {
            what: "the endpoint's own address",
            reason: error.to_string(),
        })
    })
}

/// The queue pair that a configuration asks for, and what can be done with it.
fn create_pair(domain: &Domain, config: &Config) -> Result<(QueuePair, Rules)> {
    let attributes = domain.attributes();
    let capabilities = attributes.capabilities;
    let mut operations = Operations::supported(capabilities);
    if attributes.max_rdma_size == 0 {
        operations = Operations::SEND | Operations::SEND_WITH_IMMEDIATE;
    }
    let can_unsolicited =
        capabilities.contains(efa_verbs::DeviceCapabilities::UNSOLICITED_WRITE_RECV);
    let mut unsolicited = config.unsolicited.unwrap_or(can_unsolicited);
    let inline = u32::from(attributes.inline_buf_size);
    let mut wanted = QueuePairConfig {
        send_depth: config.send_depth,
        recv_depth: config.receive_depth,
        max_inline: inline,
        operations,
        completion_channel: config.events,
        unsolicited_write_recv: unsolicited,
        extra_recv_completions: if unsolicited {
            config.immediate_room
        } else {
            0
        },
        source_gid: capabilities.contains(efa_verbs::DeviceCapabilities::CQ_WITH_SGID)
            && config.receive_depth > 0,
        locks: !config.lockless,
        path: config.path,
        ..QueuePairConfig::default()
    };
    let pd = domain.protection_domain();
    let pair = match pd.create_queue_pair(&wanted) {
        // The device has it and the library is too old to offer it: go without, unless it
        // was asked for.
        Err(
            efa_verbs::Error::Unsupported {
                feature: efa_verbs::Feature::UnsolicitedWriteRecv | efa_verbs::Feature::SourceGid,
                ..
            }
            | efa_verbs::Error::MissingEntryPoints { .. },
        ) if config.unsolicited.is_none() => {
            unsolicited = false;
            wanted.unsolicited_write_recv = false;
            wanted.extra_recv_completions = 0;
            wanted.source_gid = false;
            pd.create_queue_pair(&wanted)?
        }
        made => made?,
    };
    let max_request = match config.max_request {
        None => attributes.max_rdma_size,
        Some(limit) => {
            if limit == 0 || limit > attributes.max_rdma_size {
                return Err(Error::TooLong {
                    what: "Config::max_request",
                    length: limit.into(),
                    limit: attributes.max_rdma_size.into(),
                });
            }
            limit
        }
    };
    let rules = Rules {
        domain: domain.id(),
        max_request,
        max_message: domain.max_message_size(),
        max_inline: pair.max_inline(),
        operations,
        unsolicited,
        device: domain.device_name().to_owned(),
        write_end: 0,
        read_end: 0,
    }
    .complete();
    Ok((pair, rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_can_move_to_another_thread_and_a_domain_can_be_shared() {
        fn moves<T: Send>() {}
        fn shared<T: Send + Sync>() {}
        moves::<Endpoint>();
        moves::<crate::Connection>();
        shared::<Domain>();
        shared::<Region>();
    }
}
