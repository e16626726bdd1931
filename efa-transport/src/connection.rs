//! A single peer, one id per request: the simplest way to move bytes.

use std::fmt;

use efa_verbs::QpState;

use crate::address::EndpointAddress;
use crate::config::Config;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Full, Result};
use crate::failure::Failure;
use crate::operation::{Get, Operation, Put};
use crate::peers::PeerId;
use crate::region::Slice;
use crate::remote::RemoteRegion;
use crate::scheduler::chunks::requests;

/// A queue pair with one peer.
///
/// `put` and `get` cut a transfer into requests and post all of them at once, under one doorbell, or
/// none; each request has an id, counting up from 0, and a completion. What does not fit into the send
/// queue is an error. [`Endpoint`] is the same without those limits.
///
/// ```no_run
/// use efa_transport::{Access, Buffer, Config, Connection, Domain, EndpointAddress, RemoteRegion};
///
/// # fn f(theirs: EndpointAddress, target: RemoteRegion) -> Result<(), Box<dyn std::error::Error>> {
/// let domain = Domain::open_first()?;
/// let region = domain.register(Buffer::zeroed(1 << 20)?, Access::LOCAL)?;
/// let mut connection = Connection::new(&domain, Config::default())?;
/// println!("I am {}", connection.info());
/// connection.connect(theirs)?; // and the peer must connect to us
///
/// let posted = connection.put(&region, target)?;
/// let mut completions = Vec::new();
/// while completions.len() < posted.count as usize {
///     connection.poll(&mut completions)?;
/// }
/// for completion in completions {
///     completion.result?;
/// }
/// # Ok(()) }
/// ```
pub struct Connection {
    endpoint: Endpoint,
    peer: Option<(PeerId, EndpointAddress)>,
    next: u64,
}

/// The requests that a transfer became: `count` ids from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The first request's id.
    pub first: u64,
    /// How many there are.
    pub count: u64,
}

impl Posted {
    /// The ids.
    pub fn ids(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

/// The end of one request.
#[derive(Debug)]
pub struct RequestCompletion {
    /// The request's id.
    pub id: u64,
    /// Success, or why it failed.
    pub result: std::result::Result<(), Failure>,
}

impl Connection {
    /// Makes a queue pair, in RESET until it is connected.
    ///
    /// # Errors
    /// As [`Endpoint::new`]; [`Error::NoRdma`] where the device's largest request is 0 bytes.
    pub fn new(domain: &Domain, config: Config) -> Result<Self> {
        if domain.attributes().max_rdma_size == 0 {
            return Err(Error::NoRdma {
                device: domain.device_name().to_owned(),
            });
        }
        Ok(Self {
            endpoint: Endpoint::new(domain, config)?,
            peer: None,
            next: 0,
        })
    }

    /// Connects to the peer: address handle, then RESET, INIT, RTR, RTS. The peer has to connect to us as
    /// well before either posts.
    ///
    /// Where the handle can't be made, the queue pair stays in RESET; where a transition fails, it goes
    /// back there, or the error names the state it is in. Connecting again to the same address does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::AlreadyConnected`] to another address.
    pub fn connect(&mut self, address: EndpointAddress) -> Result<()> {
        if let Some((_, known)) = self.peer
            && known != address
        {
            return Err(Error::AlreadyConnected { address: known });
        }
        let peer = self.endpoint.connect(address)?;
        self.peer = Some((peer, address));
        Ok(())
    }

    /// Our own address, for the peer.
    pub fn info(&self) -> EndpointAddress {
        self.endpoint.address()
    }

    /// The queue pair's state, asked of the device.
    ///
    /// # Errors
    /// The query fails: the device may be gone.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.endpoint.queue_pair().state()?)
    }

    /// Bytes of the largest request.
    pub fn max_message_size(&self) -> u32 {
        self.endpoint.limits().max_request
    }

    /// Writes all of `local` to the beginning of `remote`.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::RemoteTooSmall`]; [`Error::Full`] where there are more requests
    /// than free places; [`Error::NotSupported`]. Nothing was posted then.
    pub fn put<'m>(&mut self, local: impl Into<Slice<'m>>, remote: RemoteRegion) -> Result<Posted> {
        let local = local.into();
        if local.len() > remote.len() {
            let (local, remote) = (local.len(), remote.len());
            return Err(Error::RemoteTooSmall { local, remote });
        }
        self.transfer(local.len(), local, remote, |peer, id, local, remote| {
            Put::new(peer, local, remote).tag(id).into()
        })
    }

    /// Reads all of `remote` into the beginning of `local`.
    ///
    /// # Errors
    /// As [`put`](Self::put), with [`Error::LocalTooSmall`].
    pub fn get<'m>(&mut self, local: impl Into<Slice<'m>>, remote: RemoteRegion) -> Result<Posted> {
        let local = local.into();
        if remote.len() > local.len() {
            let (local, remote) = (local.len(), remote.len());
            return Err(Error::LocalTooSmall { local, remote });
        }
        self.transfer(remote.len(), local, remote, |peer, id, local, remote| {
            Get::new(peer, local, remote).tag(id).into()
        })
    }

    /// Posts a transfer of `length` bytes, request by request, in one batch.
    fn transfer<'m>(
        &mut self,
        length: u64,
        local: Slice<'m>,
        remote: RemoteRegion,
        request: impl Fn(PeerId, u64, Slice<'m>, RemoteRegion) -> Operation<'m>,
    ) -> Result<Posted> {
        let Some((peer, _)) = self.peer else {
            let state = self.state()?;
            return Err(Error::NotConnected { state });
        };
        let max = self.max_message_size();
        let (first, count) = (self.next, requests(length, max));
        let part = |index: u64| {
            let start = index * u64::from(max);
            start..(start + u64::from(max)).min(length)
        };
        self.endpoint.batch(|batch| {
            let (free, depth) = (batch.room(), batch.depth());
            if count > free.into() {
                let wanted = count;
                return Err(Error::Full(Full::SendQueue {
                    wanted,
                    free,
                    depth,
                }));
            }
            for index in 0..count {
                let (local, remote) = (local.slice(part(index))?, remote.slice(part(index))?);
                batch.add(request(peer, first + index, local, remote))?;
            }
            Ok(())
        })?;
        self.next += count;
        Ok(Posted { first, count })
    }

    /// Takes the completions that are there, in the order in which the requests finished, and appends
    /// them to `out`. Returns how many.
    ///
    /// # Errors
    /// The device can't be polled.
    pub fn poll(&mut self, out: &mut Vec<RequestCompletion>) -> Result<usize> {
        self.endpoint.poll(|completion| {
            out.push(RequestCompletion {
                id: completion.tag,
                result: completion.result,
            });
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("info", &self.info())
            .field("peer", &self.peer.map(|(_, address)| address))
            .finish_non_exhaustive()
    }
}
