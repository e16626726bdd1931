//! The process that is written to.

use std::io::{self, Read};
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use efa_transport::RemoteRegion;
use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, Operations, ProtectionDomain, QueuePair, QueuePairConfig,
};

/// Memory to be written to, on the device that we use ourselves.
#[derive(Clone, Debug)]
pub struct Target {
    /// Two that serve it: it is two peers.
    pub queue_pairs: [u32; 2],
    pub rkey: u32,
    pub address: u64,
    pub length: u64,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(',').map(str::parse::<u64>);
        let mut next = || {
            parts
                .next()
                .context("a target is QUEUE_PAIR,RKEY,ADDRESS,LENGTH,OTHER_QUEUE_PAIR")?
                .with_context(|| format!("not a number in {text:?}"))
        };
        let (queue_pair, rkey, address, length) = (next()?, next()?, next()?, next()?);
        Ok(Self {
            queue_pairs: [queue_pair.try_into()?, next()?.try_into()?],
            rkey: rkey.try_into()?,
            address,
            length,
        })
    }
}

impl Target {
    /// What may be written, as the transport names it.
    pub fn remote(&self) -> Result<RemoteRegion> {
        Ok(RemoteRegion::new(self.address, self.length, self.rkey)?)
    }
}

/// The domain that everything here uses: of the device that EFA_BENCH_DEVICE names, or the first.
pub fn open() -> Result<ProtectionDomain> {
    let context = match std::env::var("EFA_BENCH_DEVICE") {
        Ok(name) => efa_verbs::open_by_name(&name)?,
        Err(_) => {
            let devices = efa_verbs::devices()?;
            devices.first().context("no EFA device")?.open()?
        }
    };
    Ok(context.alloc_pd()?)
}

/// Brings a queue pair up.
pub fn bring_up(pair: &mut QueuePair) -> Result<()> {
    pair.to_init(DEFAULT_QUEUE_KEY)?;
    pair.to_rtr()?;
    pair.to_rts(0, None)?;
    Ok(())
}

/// Offers `length` bytes until standard input ends.
pub fn serve(length: usize) -> Result<()> {
    let domain = open()?;
    let region = domain.register(
        Buffer::zeroed(length)?,
        Access::LOCAL | Access::REMOTE_WRITE,
    )?;
    // Without a handle for who writes, the device refuses.
    let _handle = domain.create_address_handle(domain.context().gid()?)?;
    let pair = || -> Result<QueuePair> {
        let mut pair = domain.create_queue_pair(&QueuePairConfig {
            operations: Operations::SEND,
            ..QueuePairConfig::default()
        })?;
        bring_up(&mut pair)?;
        Ok(pair)
    };
    let (one, other) = (pair()?, pair()?);
    println!(
        "{},{},{},{length},{}",
        one.number(),
        region.rkey(),
        region.addr(),
        other.number()
    );
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
