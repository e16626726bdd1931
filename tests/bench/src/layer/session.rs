//! Requests only, through efa-verbs.

use anyhow::{Result, ensure};
use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, DataPath, Destination, MemoryRegion, Operations, QueuePair,
    QueuePairConfig, RemoteMemory, Request, SendCompletion, Sge,
};

use super::{Layer, name};
use crate::DEPTH;
use crate::ring::Ring;
use crate::target::{Target, bring_up, open};

/// A queue pair and what its requests name.
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
            to: handle.destination(target.queue_pairs[0], DEFAULT_QUEUE_KEY),
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
