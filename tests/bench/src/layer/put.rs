//! Operations of efa-transport, posted in batches and tracked to their completion.

use std::marker::PhantomData;

use anyhow::{Context, Result};
use efa_transport::{Completion, Endpoint, EndpointAddress, Error, PeerId, Region, RemoteRegion};
use efa_verbs::{DEFAULT_QUEUE_KEY, DataPath};

use super::{Layer, name};
use crate::allocations;
use crate::ring::Ring;
use crate::target::Target;

/// Which of two peers and regions each put of a batch has.
pub trait Turns: Sized {
    /// Which peer the put with this number goes to.
    fn peer(number: u64) -> usize;
    /// Which region the put with this number comes from.
    fn region(number: u64) -> usize;
    /// [`Layer::measure_post`] of these.
    fn measure_post(put: &mut Put<Self>) -> efa_transport::Result<()>;
    /// [`Layer::measure_poll`] of these.
    fn measure_poll(put: &mut Put<Self>) -> efa_transport::Result<u32>;
}

/// All go to one peer from one region.
pub struct Same;
/// Each is from another region than the one before.
pub struct RegionsInTurns;
/// Each goes to another peer than the one before.
pub struct PeersInTurns;

macro_rules! turns {
    ($turns:ident, $peer:expr, $region:expr, $post:literal, $poll:literal) => {
        impl Turns for $turns {
            #[inline(always)]
            fn peer(number: u64) -> usize {
                $peer(number)
            }

            #[inline(always)]
            fn region(number: u64) -> usize {
                $region(number)
            }

            fn measure_post(put: &mut Put<Self>) -> efa_transport::Result<()> {
                #[inline(never)]
                #[unsafe(export_name = $post)]
                fn counted(put: &mut Put<$turns>) -> efa_transport::Result<()> {
                    put.post_batch::<true>()
                }
                counted(put)
            }

            fn measure_poll(put: &mut Put<Self>) -> efa_transport::Result<u32> {
                #[inline(never)]
                #[unsafe(export_name = $poll)]
                fn counted(put: &mut Put<$turns>) -> efa_transport::Result<u32> {
                    put.poll_batch::<true>()
                }
                counted(put)
            }
        }
    };
}

const fn first(_: u64) -> usize {
    0
}

const fn alternate(number: u64) -> usize {
    (number & 1) as usize
}

turns!(Same, first, first, "measure_post_same", "measure_poll_same");
turns!(
    RegionsInTurns,
    first,
    alternate,
    "measure_post_regions",
    "measure_poll_regions"
);
turns!(
    PeersInTurns,
    alternate,
    first,
    "measure_post_peers",
    "measure_poll_peers"
);

/// An endpoint that puts, by the one way to do it.
pub struct Put<T> {
    endpoint: Endpoint,
    ring: Ring,
    peers: [PeerId; 2],
    regions: [Region; 2],
    remote: RemoteRegion,
    piece: RemoteRegion,
    size: u32,
    batch: u32,
    sum: u64,
    bytes_per_peer: u64,
    turns: PhantomData<T>,
}

impl<T: Turns> Put<T> {
    /// An endpoint that has so many peers beside the two of the target.
    pub fn new(path: DataPath, target: &Target, others: u32) -> Result<Self> {
        let (domain, mut endpoint) = super::endpoint(path, false)?;
        let address = |number| EndpointAddress::new(domain.gid(), number, DEFAULT_QUEUE_KEY);
        // Nothing is sent to the others: they only are there.
        let numbers = (1..).filter(|number| !target.queue_pairs.contains(number));
        let before = allocations::live_bytes();
        for number in numbers.take(others as usize) {
            endpoint.connect(address(number)?)?;
        }
        let bytes_per_peer = (allocations::live_bytes() - before) / u64::from(others.max(1));
        let [one, other] = target.queue_pairs;
        let peers = [
            endpoint.connect(address(one)?)?,
            endpoint.connect(address(other)?)?,
        ];
        let regions = [
            super::region(&domain, target)?,
            super::region(&domain, target)?,
        ];
        let remote = target.remote()?;
        Ok(Self {
            ring: Ring::of(endpoint.queue_pair())?,
            peers,
            regions,
            remote,
            piece: remote,
            endpoint,
            size: 8,
            batch: 1,
            sum: 0,
            bytes_per_peer,
            turns: PhantomData,
        })
    }

    /// `COUNTED` makes two of this, so that either closure is inlined into its only caller, as that of a
    /// program would be.
    #[inline(always)]
    fn post_batch<const COUNTED: bool>(&mut self) -> efa_transport::Result<()> {
        let (peers, remote, batch) = (self.peers, self.piece, u64::from(self.batch));
        let size = u64::from(self.size);
        let [one, other] = &self.regions;
        let locals = [one.slice(..size)?, other.slice(..size)?];
        self.endpoint.batch(move |b| {
            for tag in 0..batch {
                let (peer, local) = (peers[T::peer(tag)], locals[T::region(tag)]);
                b.add(efa_transport::Put::new(peer, local, remote).tag(tag))?;
            }
            Ok::<_, Error>(())
        })
    }

    #[inline(always)]
    fn poll_batch<const COUNTED: bool>(&mut self) -> efa_transport::Result<u32> {
        let mut sum = self.sum;
        let count = self.endpoint.poll(|completion| {
            if completion.result.is_err() {
                failed(&completion);
            }
            sum ^= completion.tag;
        })?;
        self.sum = sum;
        Ok(count as u32)
    }
}

#[cold]
fn failed(completion: &Completion) {
    panic!("a put failed: {completion:?}");
}

impl<T: Turns> Layer for Put<T> {
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()> {
        self.piece = self
            .remote
            .slice(..u64::from(size))
            .with_context(|| format!("the target is too small for {size} bytes"))?;
        (self.size, self.batch) = (size, batch);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        Ok(self.post_batch::<false>()?)
    }

    fn poll(&mut self, _most: u32) -> Result<u32> {
        Ok(self.poll_batch::<false>()?)
    }

    fn measure_post(&mut self) -> Result<()> {
        Ok(T::measure_post(self)?)
    }

    fn measure_poll(&mut self, _most: u32) -> Result<u32> {
        Ok(T::measure_poll(self)?)
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn path(&self) -> &'static str {
        name(self.endpoint.limits().path)
    }

    fn bytes_per_peer(&self) -> u64 {
        self.bytes_per_peer
    }
}
