//! A queue pair with what it needs, for tests of efa-verbs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use efa_verbs::{
    Access, AddressHandle, Buffer, Context, DEFAULT_QUEUE_KEY, Destination, Gid, MemoryRegion,
    ProtectionDomain, QueuePair, QueuePairConfig, ReceiveRequest, RecvCompletion, RemoteMemory,
    Request, SendCompletion, Sge,
};
use serde::{Deserialize, Serialize};

use crate::deadline::scaled;
use crate::test::Test;

/// Longer than a device takes to give up on a peer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a [`Node`] can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The device.
    pub gid: [u8; 16],
    /// The queue pair.
    pub queue_pair: u32,
}

/// Memory of a [`Node`] that another can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// The remote key.
    pub rkey: u32,
}

impl Remote {
    /// What a request names for the bytes from `offset` on.
    pub fn at(&self, offset: u64) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr + offset,
            rkey: self.rkey,
        }
    }
}

impl From<&MemoryRegion> for Remote {
    fn from(region: &MemoryRegion) -> Self {
        Self {
            addr: region.addr(),
            rkey: region.rkey(),
        }
    }
}

/// The request of an RDMA write.
pub fn write(local: Sge, remote: RemoteMemory, immediate: Option<u32>) -> Request<'static> {
    Request::Write {
        local,
        remote,
        immediate,
    }
}

/// The request of an RDMA read.
pub fn read(local: Sge, remote: RemoteMemory) -> Request<'static> {
    Request::Read { local, remote }
}

/// The request of a send.
pub fn send(local: &[Sge], immediate: Option<u32>) -> Request<'_> {
    Request::Send { local, immediate }
}

/// A device with one queue pair. Regions and address handles that it makes live as long as the
/// queue pair, which makes posting sound.
#[derive(Debug)]
pub struct Node {
    // Dropped first: nothing below is in use afterwards.
    pair: QueuePair,
    handles: HashMap<[u8; 16], AddressHandle>,
    regions: Vec<MemoryRegion>,
    domain: ProtectionDomain,
}

impl Node {
    /// A queue pair on the test's first device, in RTS.
    pub fn new(test: &Test, config: &QueuePairConfig) -> Result<Self> {
        let mut node = Self::reset(&test.device()?.open()?, config)?;
        node.up()?;
        Ok(node)
    }

    /// A queue pair on `context`, in RESET.
    pub fn reset(context: &Context, config: &QueuePairConfig) -> Result<Self> {
        let domain = context.alloc_pd()?;
        Ok(Self {
            pair: domain.create_queue_pair(config)?,
            handles: HashMap::new(),
            regions: Vec::new(),
            domain,
        })
    }

    /// Brings the queue pair to RTS.
    pub fn up(&mut self) -> Result<()> {
        self.pair.to_init(DEFAULT_QUEUE_KEY)?;
        self.pair.to_rtr()?;
        self.pair.to_rts(0, None)?;
        Ok(())
    }

    /// The queue pair.
    pub fn pair(&mut self) -> &mut QueuePair {
        &mut self.pair
    }

    /// The device.
    pub fn context(&self) -> &Context {
        self.domain.context()
    }

    /// The protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Where this node can be reached.
    pub fn address(&self) -> Result<Address> {
        Ok(Address {
            gid: self.context().gid()?.to_bytes(),
            queue_pair: self.pair.number(),
        })
    }

    /// Registers memory that holds `bytes`, with everything that the device allows.
    pub fn region(&mut self, bytes: &[u8]) -> Result<MemoryRegion> {
        let can = self.context().attributes().capabilities;
        let mut access = Access::LOCAL;
        if can.contains(efa_verbs::DeviceCapabilities::RDMA_READ) {
            access |= Access::REMOTE_READ;
        }
        if can.contains(efa_verbs::DeviceCapabilities::RDMA_WRITE) {
            access |= Access::REMOTE_WRITE;
        }
        self.region_for(bytes, access)
    }

    /// Registers memory that holds `bytes`.
    pub fn region_for(&mut self, bytes: &[u8], access: Access) -> Result<MemoryRegion> {
        let mut buffer = Buffer::zeroed(bytes.len())?;
        buffer.copy_from_slice(bytes);
        let region = self.domain.register(buffer, access)?;
        self.regions.push(region.clone());
        Ok(region)
    }

    /// The way to another node.
    pub fn to(&mut self, address: Address) -> Result<Destination> {
        let Self {
            handles, domain, ..
        } = self;
        let handle = match handles.entry(address.gid) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(domain.create_address_handle(Gid::from_bytes(address.gid))?)
            }
        };
        Ok(handle.destination(address.queue_pair, DEFAULT_QUEUE_KEY))
    }

    /// Posts RDMA writes as one session.
    pub fn write(&mut self, to: &Destination, list: &[(u64, Sge, RemoteMemory)]) -> Result<()> {
        self.pair.session_start()?;
        for (id, local, remote) in list {
            // SAFETY: a session is open. Regions and handles are kept until the queue pair is gone,
            // and their bytes are only reached by copying.
            unsafe { self.pair.push(*id, to, write(*local, *remote, None)) };
        }
        Ok(self.pair.session_complete()?)
    }

    /// Posts RDMA reads as one session.
    pub fn read(&mut self, to: &Destination, list: &[(u64, Sge, RemoteMemory)]) -> Result<()> {
        self.pair.session_start()?;
        for (id, local, remote) in list {
            // SAFETY: as for `write`.
            unsafe { self.pair.push(*id, to, read(*local, *remote)) };
        }
        Ok(self.pair.session_complete()?)
    }

    /// Posts one RDMA write with immediate data.
    pub fn write_imm(
        &mut self,
        to: &Destination,
        id: u64,
        local: Sge,
        remote: RemoteMemory,
        immediate: u32,
    ) -> Result<()> {
        self.pair.session_start()?;
        // SAFETY: as for `write`.
        unsafe {
            self.pair
                .push(id, to, write(local, remote, Some(immediate)))
        };
        Ok(self.pair.session_complete()?)
    }

    /// Posts sends as one session.
    pub fn send(&mut self, to: &Destination, list: &[(u64, Sge)]) -> Result<()> {
        self.pair.session_start()?;
        for (id, local) in list {
            // SAFETY: as for `write`.
            unsafe { self.pair.push(*id, to, send(&[*local], None)) };
        }
        Ok(self.pair.session_complete()?)
    }

    /// Posts receives.
    pub fn receive(&mut self, list: &[(u64, Sge)]) -> Result<()> {
        let requests: Vec<_> = list
            .iter()
            .map(|&(wr_id, buffer)| ReceiveRequest { wr_id, buffer })
            .collect();
        // SAFETY: as for `write`.
        match unsafe { self.pair.post_recv(&requests) } {
            Ok(_) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    /// Waits for `count` completions of the send side.
    pub fn sent(&mut self, count: usize) -> Result<Vec<SendCompletion>> {
        let mut all = Vec::new();
        wait(|| {
            let mut some = [SendCompletion::default(); 16];
            let most = some.len().min(count - all.len());
            let n = self.pair.poll_send(&mut some[..most])?;
            all.extend_from_slice(&some[..n]);
            Ok(all.len() == count)
        })
        .with_context(|| format!("waiting for {count} send completions"))?;
        Ok(all)
    }

    /// Waits for `count` completions of the send side, all of which must be good.
    pub fn sent_well(&mut self, count: usize) -> Result<Vec<u64>> {
        let all = self.sent(count)?;
        if let Some(bad) = all.iter().find(|completion| !completion.status.is_ok()) {
            bail!("request {} ended with {}", bad.wr_id, bad.status);
        }
        Ok(all.iter().map(|completion| completion.wr_id).collect())
    }

    /// Waits for `count` completions of the receive side.
    pub fn received(&mut self, count: usize) -> Result<Vec<RecvCompletion>> {
        let mut all = Vec::new();
        wait(|| {
            let mut some = [RecvCompletion::default(); 16];
            let most = some.len().min(count - all.len());
            let n = self.pair.poll_recv(&mut some[..most])?;
            all.extend_from_slice(&some[..n]);
            Ok(all.len() == count)
        })
        .with_context(|| format!("waiting for {count} receive completions"))?;
        Ok(all)
    }
}

/// Asks until the answer is yes, with pauses: the device needs the processor, too.
pub(crate) fn wait(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let ends = Instant::now() + scaled(PATIENCE);
    while !done()? {
        if Instant::now() > ends {
            bail!("nothing for {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Whether a message from the device to itself arrives.
pub(crate) fn loopback_works(test: &Test) -> Result<bool> {
    let mut node = Node::new(test, &QueuePairConfig::default())?;
    let region = node.region_for(&[0; 16], Access::LOCAL)?;
    let to = node.to(node.address()?)?;
    node.receive(&[(1, region.sge(0, 8)?)])?;
    node.send(&to, &[(2, region.sge(8, 8)?)])?;
    let all = node.sent(1)?;
    Ok(all.iter().all(|completion| completion.status.is_ok()))
}
