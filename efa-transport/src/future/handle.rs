//! The handle that tasks and threads share.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::driver::Driver;
use super::receive::{Close, Flush, Receive};
use super::shared::{Owner, Shared};
use super::spin::Spin;
use super::submitted::{Submitted, SubmittedBatch};
use crate::address::EndpointAddress;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::operation::{Await, Get, Operation, Put, Send};
use crate::peers::PeerId;
use crate::queue::Message;
use crate::region::Slice;
use crate::remote::RemoteRegion;
use crate::stats::{Limits, PeerStats, Stats};

/// An endpoint that any number of tasks and threads share.
///
/// Cloning it is cheap. Whoever calls it posts on its own thread, under a lock that is held for a moment;
/// the [`Driver`] takes completions. When the last handle and the last future are gone, the endpoint is
/// closed as if it was dropped.
///
/// ```no_run
/// use efa_transport::future::Handle;
/// use efa_transport::{Config, Domain, Endpoint, Error, PeerId, Region, RemoteRegion};
///
/// fn share(domain: &Domain) -> Result<Handle, Box<dyn std::error::Error>> {
///     let config = Config { events: true, ..Config::default() };
///     let (handle, driver) = Handle::new(Endpoint::new(domain, config)?)?;
///     driver.spawn()?;
///     Ok(handle)
/// }
///
/// async fn send(handle: Handle, peer: PeerId, page: Region, to: RemoteRegion) -> Result<u64, Error> {
///     let put = handle.put(peer, &page, to); // begins now
///     put.await
/// }
/// ```
#[derive(Clone)]
pub struct Handle {
    owner: Arc<Owner>,
    domain: Domain,
    limits: Limits,
}

impl Handle {
    /// Makes a handle to an endpoint, and the driver that moves it on. Operations that the endpoint has in
    /// flight are cancelled, and completions that were not taken are dropped.
    ///
    /// # Errors
    /// [`Error::NoEvents`]: set [`Config::events`](crate::Config::events). The system lacks descriptors.
    pub fn new(mut endpoint: Endpoint) -> Result<(Self, Driver)> {
        if !endpoint.has_events() {
            return Err(Error::NoEvents);
        }
        endpoint.cancel_all();
        let (domain, limits) = (endpoint.domain().clone(), endpoint.limits());
        let (events, spin) = (endpoint.as_fd().try_clone_to_owned()?, endpoint.spin());
        let shared = Arc::new(Shared::new(endpoint)?);
        let driver = Driver::new(shared.clone(), events, Spin::new(spin));
        let handle = Self {
            owner: Arc::new(Owner(shared)),
            domain,
            limits,
        };
        Ok((handle, driver))
    }

    // ---- operations -----------------------------------------------------------------

    /// Submits an operation of any size, which begins at once, or when those that wait for room before it
    /// have begun. Its tag is not used: the future is the name of the operation.
    ///
    /// A [deadline](Put::deadline) holds while it waits, too.
    ///
    /// What the future ends with is what [`Endpoint::submit`] refuses, and what a
    /// [`Completion`](crate::Completion) says.
    pub fn submit<'m>(&self, operation: impl Into<Operation<'m>>) -> Submitted {
        let wanted = operation.into().wanted;
        let submitted = self
            .owner
            .0
            .with(|state, wakes| state.submit(&wanted, wakes));
        Submitted::new(&self.owner, submitted.flatten())
    }

    /// `submit(Put::new(peer, local, remote))`
    pub fn put<'m>(
        &self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
    ) -> Submitted {
        self.submit(Put::new(peer, local, remote))
    }

    /// `submit(Get::new(peer, local, remote))`
    pub fn get<'m>(
        &self,
        peer: PeerId,
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
    ) -> Submitted {
        self.submit(Get::new(peer, local, remote))
    }

    /// `submit(Send::bytes(peer, bytes))`
    pub fn send(&self, peer: PeerId, bytes: &[u8]) -> Submitted {
        self.submit(Send::bytes(peer, bytes))
    }

    /// `submit(Await::new(value, count))`: ends when `count` writes with this immediate value have landed.
    pub fn landed(&self, value: u32, count: u64) -> Submitted {
        self.submit(Await::new(value, count))
    }

    /// Posts operations with one doorbell, all of them or none, when there is room for all at once. Each is
    /// a single request, as in [`Endpoint::batch`]; no more than [`Limits::depth`] and
    /// [`Config::max_operations`](crate::Config::max_operations).
    pub fn batch<'m, O: Into<Operation<'m>>>(
        &self,
        operations: impl IntoIterator<Item = O>,
    ) -> SubmittedBatch {
        let operations = operations.into_iter();
        let batch: Vec<_> = operations.map(|it| it.into().wanted).collect();
        let submitted = self
            .owner
            .0
            .with(|state, wakes| state.submit_batch(&batch, wakes));
        SubmittedBatch::new(&self.owner, submitted.flatten())
    }

    // ---- arrivals -------------------------------------------------------------------

    /// The next message.
    pub fn recv(&self) -> Receive {
        Receive::new(&self.owner)
    }

    /// A message that has arrived and that nobody waits for.
    ///
    /// # Errors
    /// None comes any more, as for [`recv`](Self::recv).
    pub fn try_recv(&self) -> Result<Option<Message>> {
        self.owner.0.with(|state, _| state.try_receive()).flatten()
    }

    // ---- the end --------------------------------------------------------------------

    /// The end of all operations that were submitted until now, by any handle.
    pub fn flush(&self) -> Flush {
        Flush::new(&self.owner)
    }

    /// Closes the endpoint: nothing new is accepted, what is in flight may finish for at most `patience`, and
    /// the rest fails. Waits for immediates are not waited for. Messages that have arrived can still be
    /// received.
    pub fn close(&self, patience: Duration) -> Close {
        Close::new(&self.owner, patience)
    }

    /// The end of the endpoint, whoever closes it.
    pub fn closed(&self) -> Close {
        Close::watch(&self.owner)
    }

    // ---- peers ----------------------------------------------------------------------

    /// As [`Endpoint::connect`]. It does not wait for anybody, but for the kernel.
    ///
    /// # Errors
    /// As there, and [`Error::Closed`].
    pub fn connect(&self, address: EndpointAddress) -> Result<PeerId> {
        self.ask(|endpoint| endpoint.connect(address))
    }

    /// As [`Endpoint::disconnect`].
    ///
    /// # Errors
    /// As there, and [`Error::Closed`].
    pub fn disconnect(&self, peer: PeerId) -> Result<()> {
        self.ask(|endpoint| endpoint.disconnect(peer))
    }

    /// As [`Endpoint::peer`].
    ///
    /// # Errors
    /// As there, and [`Error::Closed`].
    pub fn peer(&self, peer: PeerId) -> Result<PeerStats> {
        self.ask(|endpoint| endpoint.peer(peer))
    }

    /// The addresses of all peers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn peers(&self) -> Result<Vec<(PeerId, EndpointAddress)>> {
        self.ask(|endpoint| Ok(endpoint.peers().collect()))
    }

    // ---- the endpoint ---------------------------------------------------------------

    /// Where peers reach the endpoint.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn address(&self) -> Result<EndpointAddress> {
        self.ask(|endpoint| Ok(endpoint.address()))
    }

    /// The domain, to register memory.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What the endpoint can do at most.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The endpoint's counters.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        self.ask(|endpoint| Ok(endpoint.stats()))
    }

    /// As [`Endpoint::immediate_count`].
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn immediate_count(&self, value: u32) -> Result<u64> {
        self.ask(|endpoint| Ok(endpoint.immediate_count(value)))
    }

    /// As [`Endpoint::recover`].
    ///
    /// # Errors
    /// As there, and [`Error::Closed`].
    pub fn recover(&self) -> Result<bool> {
        self.ask(Endpoint::recover)
    }

    /// As [`Endpoint::rebuild`].
    ///
    /// # Errors
    /// As there, and [`Error::Closed`].
    pub fn rebuild(&self) -> Result<()> {
        self.ask(Endpoint::rebuild)
    }

    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// Asks the endpoint something that leaves its operations to their futures.
    pub(crate) fn ask<R>(&self, ask: impl FnOnce(&mut Endpoint) -> Result<R>) -> Result<R> {
        let asked = self.owner.0.with(|state, _| ask(state.open()?));
        asked.flatten()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("address", &self.address().ok())
            .finish_non_exhaustive()
    }
}
