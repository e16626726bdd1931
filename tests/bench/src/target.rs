//! The process that is written to.

use std::io::{self, Read};
use std::str::FromStr;

use anyhow::{Context, Error, Result};
use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, Operations, ProtectionDomain, QueuePair, QueuePairConfig,
};

/// Memory to be written to, on the device that we use ourselves.
#[derive(Clone, Debug)]
pub struct Target {
    pub queue_pair: u32,
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
                .context("a target is QUEUE_PAIR,RKEY,ADDRESS,LENGTH")?
                .with_context(|| format!("not a number in {text:?}"))
        };
        Ok(Self {
            queue_pair: next()?.try_into()?,
            rkey: next()?.try_into()?,
            address: next()?,
            length: next()?,
        })
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
    let mut pair = domain.create_queue_pair(&QueuePairConfig {
        operations: Operations::SEND,
        ..QueuePairConfig::default()
    })?;
    bring_up(&mut pair)?;
    println!(
        "{},{},{},{length}",
        pair.number(),
        region.rkey(),
        region.addr()
    );
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
