//! Idle is idle.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use efa_tests::alone;
use efa_transport::tokio::Endpoint;
use efa_transport::{Config, ReceivePool};

use crate::runtimes;

/// Sleeps, and forced switches, of all threads of this process, by name.
fn switches(names: &[&str]) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let name = std::fs::read_to_string(path.join("comm"))?;
        if !names.iter().any(|wanted| name.trim().starts_with(wanted)) {
            continue;
        }
        let status = std::fs::read_to_string(path.join("status"))?;
        for line in status.lines().filter(|line| line.contains("ctxt_switches")) {
            let count = line.split_whitespace().last().context("a number")?;
            sum += count.parse::<u64>()?;
        }
    }
    Ok(sum)
}

/// A hundred endpoints whose drivers are on one thread, and tasks that wait for each.
#[test]
fn a_hundred_idle_endpoints_wake_nobody_up() {
    alone().run(|t| {
        t.need_loopback()?;
        const ENDPOINTS: usize = 100;
        let domain = t.domain()?;
        let [runtime, _] = runtimes()?;
        let config = Config {
            send_depth: 8,
            receive_pool: ReceivePool {
                buffers: 2,
                size: Some(64),
            },
            ..Config::default()
        };
        let runner = std::thread::Builder::new().name("idle-runtime".into());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let runner = runner.spawn(move || -> Result<()> {
            runtime.block_on(async {
                let mut endpoints = Vec::new();
                for _ in 0..ENDPOINTS {
                    let endpoint = Endpoint::new(&domain, config.clone())?;
                    let (receiving, waiting) = (endpoint.clone(), endpoint.clone());
                    tokio::spawn(async move { drop(receiving.recv().await) });
                    tokio::spawn(async move { drop(waiting.landed(1, 1).await) });
                    endpoints.push(endpoint);
                }
                // Each has done something, so that its budget for polling is not the first one.
                for endpoint in &endpoints {
                    let own = endpoint.handle().connect(endpoint.address()?)?;
                    endpoint.send(own, b"once").await?;
                }
                // Longer than any of them polls.
                tokio::time::sleep(Duration::from_millis(100)).await;
                ready.send(())?;
                let _ = stopped.await;
                Ok(())
            })
        })?;
        is_ready.recv()?;
        let before = switches(&["idle-runtime"])?;
        std::thread::sleep(Duration::from_secs(2));
        let after = switches(&["idle-runtime"])?;
        drop(stop);
        runner
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))??;
        // One wake-up of each endpoint would be a hundred.
        ensure!(after - before < 10, "{} switches", after - before);
        Ok(())
    });
}
