//! One endpoint for many tasks and threads, without a runtime.

mod drops;
mod order;
mod threads;
mod world;

use std::time::Duration;

use anyhow::Result;
use efa_tests::{Test, region};
use efa_transport::future::{Driver, Handle};
use efa_transport::{Config, Domain, Endpoint, PeerId, Region};

/// Two endpoints that are connected to each other.
struct Pair {
    a: Handle,
    b: Handle,
    ab: PeerId,
    ba: PeerId,
    domain: Domain,
}

impl Pair {
    fn new(t: &Test, config: Config) -> Result<(Self, [Driver; 2])> {
        t.need_loopback()?;
        let domain = t.domain()?;
        let make = || Handle::new(Endpoint::new(&domain, config.clone())?);
        let ((a, first), (b, second)) = (make()?, make()?);
        let (ab, ba) = (a.connect(b.address()?)?, b.connect(a.address()?)?);
        let pair = Self {
            a,
            b,
            ab,
            ba,
            domain,
        };
        Ok((pair, [first, second]))
    }

    /// The same with a thread for each driver.
    fn on_threads(t: &Test, config: Config) -> Result<Self> {
        let (pair, drivers) = Self::new(t, config)?;
        for driver in drivers {
            driver.spawn()?;
        }
        Ok(pair)
    }

    fn region(&self, bytes: &[u8]) -> Result<Region> {
        region(&self.domain, bytes)
    }
}

fn config() -> Config {
    Config {
        events: true,
        ..Config::default()
    }
}

/// Never polls longer than it has to, so that much sleeping is tested.
fn sleepy() -> Config {
    Config {
        spin: Duration::ZERO,
        ..config()
    }
}
