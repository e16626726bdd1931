//! Endpoints with what they need, for tests of efa-transport.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use efa_transport::handshake::{PeerInfo, PeerStore};
use efa_transport::{
    Access, Buffer, Completion, Config, Domain, Endpoint, FailureKind, OperationId, PeerId, Region,
};

use crate::deadline::scaled;
use crate::test::Test;

/// Longer than a device takes to give up on a peer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two endpoints of this process, connected to each other through the device.
#[derive(Debug)]
pub struct Pair {
    /// One end.
    pub a: Endpoint,
    /// The other end.
    pub b: Endpoint,
    /// What `a` calls `b`.
    pub ab: PeerId,
    /// What `b` calls `a`.
    pub ba: PeerId,
    /// Where both are.
    pub domain: Domain,
}

impl Pair {
    /// Two endpoints on the test's first device; skips the test where that drops what it sends
    /// to itself.
    pub fn new(test: &Test, config: Config) -> Result<Self> {
        let domain = test.domain()?;
        test.need_loopback()?;
        Self::on(&domain, config)
    }

    /// Two endpoints in `domain`.
    pub fn on(domain: &Domain, config: Config) -> Result<Self> {
        let mut a = Endpoint::new(domain, config.clone())?;
        let mut b = Endpoint::new(domain, config)?;
        let ab = a.connect(b.address())?;
        let ba = b.connect(a.address())?;
        Ok(Self {
            a,
            b,
            ab,
            ba,
            domain: domain.clone(),
        })
    }

    /// Two endpoints in `domain` that have shaken hands, so that each knows the other's
    /// incarnation and what it has granted.
    pub fn introduced(domain: &Domain, config: Config) -> Result<Self> {
        let mut a = Endpoint::new(domain, config.clone())?;
        let mut b = Endpoint::new(domain, config)?;
        let (ab, ba) = introduce(&mut a, &mut b)?;
        Ok(Self {
            a,
            b,
            ab,
            ba,
            domain: domain.clone(),
        })
    }

    /// A region that holds `bytes`, with all access that the device allows.
    pub fn region(&self, bytes: &[u8]) -> Result<Region> {
        region(&self.domain, bytes)
    }

    /// A put of `bytes` from `a` to `b` that must arrive: shows that both still work.
    pub fn works(&mut self, bytes: &[u8]) -> Result<()> {
        let source = self.region(bytes)?;
        let target = self.region(&vec![0; bytes.len()])?;
        let put = self.a.put(self.ab, &source, target.remote()?, 0)?;
        done(&mut self.a, put)?;
        ensure!(target.to_vec(..)? == bytes, "the data differs");
        Ok(())
    }
}

/// What an endpoint tells its peers in a handshake.
pub fn info_of(endpoint: &Endpoint) -> PeerInfo {
    PeerInfo {
        endpoint: endpoint.local(),
        user_data: Vec::new(),
    }
}

/// A handshake between two endpoints of this process, without a channel.
pub fn introduce(a: &mut Endpoint, b: &mut Endpoint) -> Result<(PeerId, PeerId)> {
    let ab = a.install(&info_of(b))?;
    let ba = b.install(&info_of(a))?;
    PeerStore::activate(a, &ab);
    PeerStore::activate(b, &ba);
    Ok((ab, ba))
}

/// A region that holds `bytes`, with all access that the device allows.
pub fn region(domain: &Domain, bytes: &[u8]) -> Result<Region> {
    let mut buffer = Buffer::zeroed(bytes.len())?;
    buffer.copy_from_slice(bytes);
    let can = domain.attributes().capabilities;
    let mut access = Access::LOCAL;
    if can.contains(efa_verbs::DeviceCapabilities::RDMA_READ) {
        access |= Access::REMOTE_READ;
    }
    if can.contains(efa_verbs::DeviceCapabilities::RDMA_WRITE) {
        access |= Access::REMOTE_WRITE;
    }
    Ok(domain.register(buffer, access)?)
}

/// Waits for the end of an operation, good or bad.
pub fn ended(endpoint: &mut Endpoint, operation: OperationId) -> Result<Completion> {
    let completion = endpoint.wait(operation, Some(scaled(PATIENCE)));
    completion.with_context(|| format!("operation {operation}"))
}

/// Waits for the good end of an operation.
pub fn done(endpoint: &mut Endpoint, operation: OperationId) -> Result<Completion> {
    let completion = ended(endpoint, operation)?;
    if let Err(failure) = &completion.result {
        anyhow::bail!("{failure}");
    }
    Ok(completion)
}

/// Waits for an operation that must fail at the device, and returns the device's status.
pub fn refused(endpoint: &mut Endpoint, operation: OperationId) -> Result<u32> {
    let completion = ended(endpoint, operation)?;
    match &completion.result {
        Ok(()) => anyhow::bail!("it succeeded"),
        Err(failure) => match failure.kind() {
            FailureKind::Device { vendor_status } => Ok(vendor_status),
            other => anyhow::bail!("{other:?}: {failure}"),
        },
    }
}
