//! The two layers that are measured.
//!
//! `measure_post` and `measure_poll` are what callgrind counts: functions with these names, not
//! inlined, of which a run uses one each.

use anyhow::{Context, Result, ensure};
use efa_transport::{
    Completion, Config, Domain, Endpoint, EndpointAddress, Error, Loopback, PeerId,
    Put as PutOperation, ReceivePool, Region, RemoteRegion,
};
use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, DataPath, Destination, MemoryRegion, Operations, QueuePair,
    QueuePairConfig, RemoteMemory, Request, SendCompletion, Sge,
};

use crate::DEPTH;
use crate::allocations;
use crate::ring::Ring;
use crate::target::{Target, bring_up, open};

/// A way to write to the target.
pub trait Layer {
    /// The next posts write `batch` times `size` bytes, always the same.
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()>;
    /// Posts a batch.
    fn post(&mut self) -> Result<()>;
    /// Takes up to `most` completions.
    fn poll(&mut self, most: u32) -> Result<u32>;
    /// [`post`](Self::post), counted.
    fn measure_post(&mut self) -> Result<()>;
    /// [`poll`](Self::poll), counted.
    fn measure_poll(&mut self, most: u32) -> Result<u32>;
    /// The completion ring.
    fn ring(&mut self) -> &mut Ring;
    /// How requests really go.
    fn path(&self) -> &'static str;
    /// Memory that each peer takes, beside its address handle.
    fn bytes_per_peer(&self) -> u64 {
        0
    }
}

fn name(path: DataPath) -> &'static str {
    match path {
        DataPath::Direct => "direct",
        _ => "libefa",
    }
}

/// Requests only, through efa-verbs.
pub struct Session {
    // The queue pair goes first.
    pair: QueuePair,
    ring: Ring,
    to: Destination,
    _handle: efa_verbs::AddressHandle,
    region: MemoryRegion,
    target: Target,
    size: u32,
    batch: u32,
    wr_id: u64,
    sum: u64,
}

impl Session {
    /// A queue pair that writes to `target`.
    pub fn new(path: DataPath, target: &Target) -> Result<Self> {
        let domain = open()?;
        let region = domain.register(Buffer::zeroed(target.length as usize)?, Access::LOCAL)?;
        let handle = domain.create_address_handle(domain.context().gid()?)?;
        let mut pair = domain.create_queue_pair(&QueuePairConfig {
            send_depth: DEPTH,
            recv_depth: 0,
            operations: Operations::WRITE,
            path,
            ..QueuePairConfig::default()
        })?;
        bring_up(&mut pair)?;
        Ok(Self {
            ring: Ring::of(&pair)?,
            to: handle.destination(target.queue_pair, DEFAULT_QUEUE_KEY),
            _handle: handle,
            pair,
            region,
            target: target.clone(),
            size: 8,
            batch: 1,
            wr_id: 0,
            sum: 0,
        })
    }

    #[inline(always)]
    fn post_batch(&mut self) -> efa_verbs::Result<()> {
        let (size, addr, lkey) = (self.size, self.region.addr(), self.region.lkey());
        let (target, rkey, to) = (self.target.address, self.target.rkey, self.to);
        let mut wr_id = self.wr_id;
        let there = RemoteMemory { addr: target, rkey };
        let here = Sge {
            addr,
            length: size,
            lkey,
        };
        let write = Request::Write {
            local: here,
            remote: there,
            immediate: None,
        };
        self.pair.session_start()?;
        for _ in 0..self.batch {
            wr_id += 1;
            // SAFETY: a session is open. Region and address handle live in `self` behind the queue
            // pair, and nobody looks at the region's bytes.
            unsafe { self.pair.push(wr_id, &to, write) };
        }
        self.wr_id = wr_id;
        self.pair.session_complete()
    }

    #[inline(always)]
    fn poll_batch(&mut self, most: u32) -> efa_verbs::Result<u32> {
        // What the C program does with completions: it checks them, and looks at their ids.
        let mut sum = self.sum;
        let count = self.pair.poll_send_each(most as usize, |completion| {
            if !completion.status.is_ok() {
                failed(completion);
            }
            sum ^= completion.wr_id;
        })?;
        self.sum = sum;
        Ok(count as u32)
    }
}

#[cold]
fn failed(completion: SendCompletion) {
    panic!("a write failed: {completion:?}");
}

#[inline(never)]
#[unsafe(export_name = "measure_post_session")]
fn measure_post_session(session: &mut Session) -> efa_verbs::Result<()> {
    session.post_batch()
}

#[inline(never)]
#[unsafe(export_name = "measure_poll_session")]
fn measure_poll_session(session: &mut Session, most: u32) -> efa_verbs::Result<u32> {
    session.poll_batch(most)
}

impl Layer for Session {
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()> {
        ensure!(
            u64::from(size) <= self.target.length,
            "the target has only {} bytes",
            self.target.length
        );
        (self.size, self.batch) = (size, batch);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        Ok(self.post_batch()?)
    }

    fn poll(&mut self, most: u32) -> Result<u32> {
        Ok(self.poll_batch(most)?)
    }

    fn measure_post(&mut self) -> Result<()> {
        Ok(measure_post_session(self)?)
    }

    fn measure_poll(&mut self, most: u32) -> Result<u32> {
        Ok(measure_poll_session(self, most)?)
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn path(&self) -> &'static str {
        name(self.pair.path())
    }
}

/// Operations of efa-transport, posted in batches, each of which is a run, and tracked to their
/// completion.
pub struct Put {
    endpoint: Endpoint,
    domain: Domain,
    ring: Ring,
    peer: PeerId,
    region: Region,
    remote: RemoteRegion,
    piece: RemoteRegion,
    size: u32,
    batch: u32,
    sum: u64,
    bytes_per_peer: u64,
}

impl Put {
    /// An endpoint with so many peers, of which the last is the target.
    pub fn new(path: DataPath, target: &Target, peers: u32) -> Result<Self> {
        let domain = match std::env::var("EFA_BENCH_DEVICE") {
            Ok(name) => Domain::open(&name)?,
            Err(_) => Domain::open_first()?,
        };
        let mut endpoint = Endpoint::new(
            &domain,
            Config {
                send_depth: DEPTH,
                receive_pool: ReceivePool::NONE,
                path,
                loopback: Loopback::Device,
                ..Config::default()
            },
        )?;
        let address = |number| EndpointAddress::new(domain.gid(), number, DEFAULT_QUEUE_KEY);
        // Nothing is sent to the others: they only are there.
        let others = (1..).filter(|number| *number != target.queue_pair);
        let before = allocations::live_bytes();
        for number in others.take(peers as usize - 1) {
            endpoint.connect(address(number)?)?;
        }
        let bytes_per_peer = (allocations::live_bytes() - before) / u64::from(peers);
        let peer = endpoint.connect(address(target.queue_pair)?)?;
        let buffer = Buffer::zeroed(target.length as usize)?;
        let remote = RemoteRegion::new(target.address, target.length, target.rkey)?;
        Ok(Self {
            ring: Ring::of(endpoint.queue_pair())?,
            peer,
            region: domain.register(buffer, Access::LOCAL)?,
            remote,
            piece: remote,
            endpoint,
            domain,
            size: 8,
            batch: 1,
            sum: 0,
            bytes_per_peer,
        })
    }

    /// `COUNTED` makes two of this, so that either closure is inlined into its only caller, as that of a
    /// program would be.
    #[inline(always)]
    fn post_batch<const COUNTED: bool>(&mut self) -> efa_transport::Result<()> {
        let (peer, batch, remote) = (self.peer, u64::from(self.batch), self.piece);
        let local = self.region.slice(..u64::from(self.size))?;
        self.endpoint.batch(move |b| {
            for tag in 0..batch {
                b.add(PutOperation::new(peer, local, remote).tag(tag))?;
            }
            Ok::<_, Error>(())
        })
    }

    #[inline(always)]
    fn poll_batch(&mut self) -> efa_transport::Result<u32> {
        let mut sum = self.sum;
        let count = self.endpoint.poll(|completion| {
            if completion.result.is_err() {
                operation_failed(&completion);
            }
            sum ^= completion.tag;
        })?;
        self.sum = sum;
        Ok(count as u32)
    }
}

/// The same, but each of a batch by itself, not in a run. With `TURNS`, each from another region than the
/// one before, two taking turns: what it costs to look up peer and memory anew for each.
pub struct Each<const TURNS: bool> {
    put: Put,
    other: Region,
}

impl<const TURNS: bool> Each<TURNS> {
    /// As [`Put::new`].
    pub fn new(path: DataPath, target: &Target) -> Result<Self> {
        let put = Put::new(path, target, 1)?;
        let buffer = Buffer::zeroed(target.length as usize)?;
        let other = put.domain.register(buffer, Access::LOCAL)?;
        Ok(Self { put, other })
    }

    #[inline(always)]
    fn post_batch<const COUNTED: bool>(&mut self) -> efa_transport::Result<()> {
        let put = &mut self.put;
        let (peer, batch, remote) = (put.peer, u64::from(put.batch), put.piece);
        let local = put.region.slice(..u64::from(put.size))?;
        let other = self.other.slice(..u64::from(put.size))?;
        put.endpoint.batch(move |b| {
            for tag in 0..batch {
                let local = if TURNS && tag & 1 != 0 { other } else { local };
                b.add(PutOperation::new(peer, local, remote).tag(tag))?;
            }
            Ok::<_, Error>(())
        })
    }
}

#[cold]
fn operation_failed(completion: &Completion) {
    panic!("a put failed: {completion:?}");
}

#[inline(never)]
#[unsafe(export_name = "measure_post_put")]
fn measure_post_put(put: &mut Put) -> efa_transport::Result<()> {
    put.post_batch::<true>()
}

#[inline(never)]
#[unsafe(export_name = "measure_poll_put")]
fn measure_poll_put(put: &mut Put) -> efa_transport::Result<u32> {
    put.poll_batch()
}

impl Layer for Put {
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
        Ok(self.poll_batch()?)
    }

    fn measure_post(&mut self) -> Result<()> {
        Ok(measure_post_put(self)?)
    }

    fn measure_poll(&mut self, _most: u32) -> Result<u32> {
        Ok(measure_poll_put(self)?)
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

#[inline(never)]
#[unsafe(export_name = "measure_post_each")]
fn measure_post_each(each: &mut Each<false>) -> efa_transport::Result<()> {
    each.post_batch::<true>()
}

#[inline(never)]
#[unsafe(export_name = "measure_post_turns")]
fn measure_post_turns(each: &mut Each<true>) -> efa_transport::Result<()> {
    each.post_batch::<true>()
}

/// Both are the same, but for the function that is measured.
macro_rules! layer_of_each {
    ($turns:literal, $post:ident) => {
        impl Layer for Each<$turns> {
            fn prepare(&mut self, size: u32, batch: u32) -> Result<()> {
                self.put.prepare(size, batch)
            }

            fn post(&mut self) -> Result<()> {
                Ok(self.post_batch::<false>()?)
            }

            fn poll(&mut self, most: u32) -> Result<u32> {
                self.put.poll(most)
            }

            fn measure_post(&mut self) -> Result<()> {
                Ok($post(self)?)
            }

            fn measure_poll(&mut self, most: u32) -> Result<u32> {
                self.put.measure_poll(most)
            }

            fn ring(&mut self) -> &mut Ring {
                self.put.ring()
            }

            fn path(&self) -> &'static str {
                self.put.path()
            }
        }
    };
}

layer_of_each!(false, measure_post_each);
layer_of_each!(true, measure_post_turns);
