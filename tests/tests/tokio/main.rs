//! Endpoints for tasks of tokio: on a runtime of one thread and on one of several.

mod handshakes;
mod idle;
mod shutdown;
mod transfers;

use std::future::Future;

use anyhow::{Context, Result};
use efa_tests::{Test, region};
use efa_transport::handshake::HandshakeConfig;
use efa_transport::tokio::Endpoint;
use efa_transport::{Config, DataPath, Domain, PeerId, Region};
use tokio::runtime::{Builder, Runtime};

/// The kinds of runtime.
fn runtimes() -> Result<[Runtime; 2]> {
    Ok([
        Builder::new_current_thread().enable_all().build()?,
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?,
    ])
}

/// Runs a test on both kinds of runtime and on both data paths.
fn everywhere<F: Future<Output = Result<()>>>(test: impl Fn(Config) -> F) -> Result<()> {
    for path in [DataPath::Libefa, DataPath::Auto] {
        for runtime in runtimes()? {
            let config = Config {
                path,
                ..Config::default()
            };
            let done = runtime.block_on(test(config));
            done.with_context(|| format!("on {path:?}, {:?}", runtime.handle().runtime_flavor()))?;
        }
    }
    Ok(())
}

/// Two endpoints that have shaken hands.
struct Pair {
    a: Endpoint,
    b: Endpoint,
    ab: PeerId,
    ba: PeerId,
    domain: Domain,
}

impl Pair {
    async fn new(t: &Test, config: Config) -> Result<Self> {
        t.need_loopback()?;
        let domain = t.domain()?;
        let a = Endpoint::new(&domain, config.clone())?;
        let b = listening(&domain, config).await?;
        let target = b.listens_at().context("it listens")?.to_string();
        let (there, here) = tokio::join!(b.accept(), a.connect(&target, handshake()));
        Ok(Self {
            ab: here?.peer,
            ba: there?.peer,
            a,
            b,
            domain,
        })
    }

    fn region(&self, bytes: &[u8]) -> Result<Region> {
        region(&self.domain, bytes)
    }
}

async fn listening(domain: &Domain, config: Config) -> Result<Endpoint> {
    let local = "127.0.0.1:0";
    Ok(Endpoint::bind(domain, config, local, handshake()).await?)
}

fn handshake() -> HandshakeConfig {
    HandshakeConfig::default()
}
