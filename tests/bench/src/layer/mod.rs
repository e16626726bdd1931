//! The layers that are measured.
//!
//! `measure_post_*` and `measure_poll_*` are what callgrind counts: functions with such names, not
//! inlined, of which a run uses one each.

mod one_by_one;
mod pages;
mod put;
mod session;

use anyhow::Result;
use efa_transport::{Config, Domain, Endpoint, Loopback, ReceivePool, Region};
use efa_verbs::{Access, Buffer, DataPath};

use crate::DEPTH;
use crate::ring::Ring;
use crate::target::Target;

pub use one_by_one::{Actor, Awaiting, Blocking, OneByOne};
pub use pages::Pages;
pub use put::{PeersInTurns, Put, RegionsInTurns, Same};
pub use session::Session;

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

/// The domain of the device that is measured.
fn domain() -> Result<Domain> {
    Ok(match std::env::var("EFA_BENCH_DEVICE") {
        Ok(name) => Domain::open(&name)?,
        Err(_) => Domain::open_first()?,
    })
}

/// An endpoint for messages, which can sleep.
pub fn talking_endpoint(of: Option<&Domain>) -> Result<(Domain, Endpoint)> {
    let domain = match of {
        Some(domain) => domain.clone(),
        None => domain()?,
    };
    let config = Config {
        path: DataPath::Libefa,
        loopback: Loopback::Device,
        events: true,
        ..Config::default()
    };
    let endpoint = Endpoint::new(&domain, config)?;
    Ok((domain, endpoint))
}

/// An endpoint that only puts, and can sleep or not.
fn endpoint(path: DataPath, events: bool) -> Result<(Domain, Endpoint)> {
    let domain = domain()?;
    let config = Config {
        send_depth: DEPTH,
        receive_pool: ReceivePool::NONE,
        path,
        loopback: Loopback::Device,
        events,
        ..Config::default()
    };
    let endpoint = Endpoint::new(&domain, config)?;
    Ok((domain, endpoint))
}

/// Memory to put from, as much as the target has.
fn region(domain: &Domain, target: &Target) -> Result<Region> {
    let buffer = Buffer::zeroed(target.length as usize)?;
    Ok(domain.register(buffer, Access::LOCAL)?)
}

fn name(path: DataPath) -> &'static str {
    match path {
        DataPath::Direct => "direct",
        _ => "libefa",
    }
}
