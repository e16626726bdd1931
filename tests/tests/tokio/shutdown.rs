//! The end: of an endpoint, of a runtime, of the last handle.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Footprint, alone, footprint, run, under};
use efa_transport::Error;
use tokio::runtime::Builder;

use crate::{Pair, everywhere, handshake, runtimes};

#[test]
fn closing_ends_accepting_receiving_and_the_stream_of_messages() {
    run(|t| {
        everywhere(async |config| {
            let pair = Pair::new(t, config).await?;
            pair.a.send(pair.ab, b"before").await?;
            let (b, accepting) = (pair.b.clone(), pair.b.clone());
            let receiving = tokio::spawn(async move {
                let mut received = 0;
                loop {
                    match b.recv().await {
                        Ok(_) => received += 1,
                        Err(Error::Closed { cause: None }) => return Ok(received),
                        Err(error) => bail!(error),
                    }
                }
            });
            let accepting = tokio::spawn(async move { accepting.accept().await.map(drop) });
            tokio::task::yield_now().await;
            ensure!(pair.b.close(Duration::from_secs(10)).await? == 0);
            ensure!(receiving.await?? == 1);
            ensure!(accepting.await?.is_err());
            ensure!(pair.b.closed().await? == 0);
            let target = pair.b.listens_at().context("it listened")?.to_string();
            let quick = handshake().timeout(Duration::from_millis(100));
            ensure!(pair.a.connect(&target, quick).await.is_err());
            Ok(())
        })
    });
}

/// A runtime ends in the middle. What lives on elsewhere ends with an error.
#[test]
fn a_runtime_that_shuts_down_ends_what_was_in_flight() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        for runtime in runtimes()? {
            let pair = runtime.block_on(Pair::new(t, Default::default()))?;
            let region = pair.region(&[1; 10_000])?;
            t.set_faults("timeout=60s,cut=both")?;
            let flying = pair.a.put(pair.ab, &region, region.remote()?);
            let (a, ab) = (pair.a.clone(), pair.ab);
            let own = region.clone();
            runtime.spawn(async move { a.put(ab, &own, own.remote()?).await });
            let waiting = pair.b.recv();
            runtime.shutdown_background();
            t.set_faults("timeout=60s")?;
            let other = Builder::new_current_thread().build()?;
            other.block_on(async {
                ensure!(flying.await.is_err());
                ensure!(matches!(waiting.await, Err(Error::Closed { .. })));
                let late = pair.a.put(pair.ab, &region, region.remote()?).await;
                ensure!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
                Ok(())
            })?;
            drop(pair);
            ensure!(region.is_idle(), "something holds the memory");
        }
        Ok(())
    });
}

#[test]
fn without_a_runtime_it_is_an_error() {
    run(|t| {
        let made = efa_transport::tokio::Endpoint::new(&t.domain()?, Default::default());
        ensure!(matches!(made, Err(Error::Io(_))));
        Ok(())
    });
}

#[test]
fn a_hundred_endpoints_later_nothing_is_left() {
    alone().run(|t| {
        for runtime in runtimes()? {
            let round = async || -> Result<()> {
                let pair = Pair::new(t, Default::default()).await?;
                let region = pair.region(&[1; 100])?;
                pair.a.put(pair.ab, &region, region.remote()?).await?;
                // An accept and a receive that never end are dropped with the rest.
                let (accepting, receiving) = (pair.b.clone(), pair.b.clone());
                let tasks = [
                    tokio::spawn(async move { drop(accepting.accept().await) }),
                    tokio::spawn(async move { drop(receiving.recv().await) }),
                ];
                tokio::task::yield_now().await;
                for task in tasks {
                    task.abort();
                    let _ = task.await;
                }
                drop(pair);
                Ok(())
            };
            runtime.block_on(async {
                for _ in 0..3 {
                    round().await?;
                }
                // Drivers that are left alone end on their own; so this is a matter of time.
                let settled = async |wanted: Option<Footprint>| loop {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let now = footprint()?;
                    match &wanted {
                        Some(wanted) if wanted.files != now.files => {}
                        _ => return Ok::<_, anyhow::Error>(now),
                    }
                };
                let before = settled(None).await?;
                for _ in 0..100 {
                    round().await?;
                }
                let after = settled(Some(before.clone()));
                let after = tokio::time::timeout(Duration::from_secs(30), after).await;
                ensure!(after.is_ok(), "{before:?}\n{:?}", footprint()?);
                Ok(())
            })?;
        }
        Ok(())
    });
}
