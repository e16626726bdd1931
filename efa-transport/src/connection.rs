//! A single peer, one id per request: the simplest way to move bytes.

use std::fmt;

use efa_verbs::QpState;

use crate::address::EndpointAddress;
use crate::chunk::requests;
use crate::config::Config;
use crate::domain::Domain;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::ops::{Completion, Kind};
use crate::peers::PeerId;
use crate::region::Slice;
use crate::remote::RemoteRegion;

/// An endpoint with one peer.
///
/// `put` and `get` cut a transfer into requests and post all of them at once, under one doorbell,
/// or none; each request has an id, counting up from 0, and a completion. What does not fit
/// into the send queue is an error. [`Endpoint`] is the same without those limits.
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
    polled: Vec<Completion>,
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
            polled: Vec::new(),
        })
    }

    /// Connects to the peer: address handle, then RESET, INIT, RTR, RTS. The peer has to
    /// connect to us as well before either posts.
    ///
    /// Where the handle can't be made, the queue pair stays in RESET; where a transition fails,
    /// it goes back there, or the error names the state it is in. Connecting again to the
    /// same address does nothing.
    ///
    /// # Errors
    /// [`Error::Connect`]; [`Error::AlreadyConnected`] to another address.
    pub fn connect(&mut self, address: EndpointAddress) -> Result<()> {
        match self.peer {
            Some((_, known)) if known == address => Ok(()),
            Some((_, known)) => Err(Error::AlreadyConnected { address: known }),
            None => {
                let peer = self.endpoint.connect(address)?;
                self.peer = Some((peer, address));
                Ok(())
            }
        }
    }

    /// Our own address, for the peer.
    pub fn info(&self) -> EndpointAddress {
        self.endpoint.address()
    }

    /// The queue pair's state, asked of the device.
    ///
    /// # Errors
    /// The query fails.
    pub fn state(&self) -> Result<QpState> {
        self.endpoint.state()
    }

    /// Bytes of the largest request.
    pub fn max_message_size(&self) -> u32 {
        self.endpoint.max_request_size()
    }

    /// Writes all of `local` to the beginning of `remote`.
    ///
    /// # Errors
    /// [`Error::NotConnected`]; [`Error::RemoteTooSmall`]; [`Error::QueueFull`] where there are more
    /// requests than free places; [`Error::NotSupported`]. Nothing was posted then.
    pub fn put<'m>(&mut self, local: impl Into<Slice<'m>>, remote: RemoteRegion) -> Result<Posted> {
        let local = local.into();
        if local.len() > remote.len() {
            return Err(Error::RemoteTooSmall {
                local: local.len(),
                remote: remote.len(),
            });
        }
        self.transfer(Kind::Put, local, remote, local.len())
    }

    /// Reads all of `remote` into the beginning of `local`.
    ///
    /// # Errors
    /// As [`put`](Self::put), with [`Error::LocalTooSmall`].
    pub fn get<'m>(&mut self, local: impl Into<Slice<'m>>, remote: RemoteRegion) -> Result<Posted> {
        let local = local.into();
        if remote.len() > local.len() {
            return Err(Error::LocalTooSmall {
                local: local.len(),
                remote: remote.len(),
            });
        }
        self.transfer(Kind::Get, local, remote, remote.len())
    }

    fn transfer(
        &mut self,
        kind: Kind,
        local: Slice<'_>,
        remote: RemoteRegion,
        length: u64,
    ) -> Result<Posted> {
        let Some((peer, address)) = self.peer else {
            return Err(Error::NotConnected {
                state: self.state()?,
            });
        };
        self.endpoint.check(kind)?;
        let max = self.max_message_size();
        let count = requests(length, max);
        let free = self.endpoint.free_depth();
        if count > free.into() {
            return Err(Error::QueueFull {
                wanted: count,
                free,
                depth: self.endpoint.depth(),
            });
        }
        let first = self.next;
        let max = u64::from(max);
        let parts = (0..count).map(|i| {
            let start = i * max;
            let end = (start + max).min(length);
            Ok::<_, Error>((
                first + i,
                local.slice(start..end)?,
                remote.slice(start..end)?,
            ))
        });
        if self.endpoint.address() == address {
            // To itself: copied by this process, which a session can't do.
            for part in parts {
                let (id, local, remote) = part?;
                match kind {
                    Kind::Get => self.endpoint.get(peer, local, remote, id)?,
                    _ => self.endpoint.put(peer, local, remote, id)?,
                };
            }
        } else {
            self.endpoint.post(|session| {
                for part in parts {
                    let (id, local, remote) = part?;
                    match kind {
                        Kind::Get => session.read(peer, local, remote, id)?,
                        _ => session.write(peer, local, remote, id)?,
                    };
                }
                Ok::<_, Error>(())
            })?;
        }
        self.next += count;
        Ok(Posted { first, count })
    }

    /// Takes the completions that are there, in the order in which the requests finished, and
    /// appends them to `out`. Returns how many.
    ///
    /// # Errors
    /// The device can't be polled.
    pub fn poll(&mut self, out: &mut Vec<RequestCompletion>) -> Result<usize> {
        let polled = self.endpoint.poll(&mut self.polled);
        let count = self.polled.len();
        out.extend(self.polled.drain(..).map(|completion| RequestCompletion {
            id: completion.tag,
            result: completion.result,
        }));
        polled?;
        Ok(count)
    }

    /// The peer, as the endpoint names it.
    pub fn peer(&self) -> Option<PeerId> {
        self.peer.map(|(peer, _)| peer)
    }

    /// The endpoint beneath.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The endpoint beneath. What is posted through it completes through
    /// [`poll`](Self::poll) as well, with its tag for an id.
    pub fn endpoint_mut(&mut self) -> &mut Endpoint {
        &mut self.endpoint
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
