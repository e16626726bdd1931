//! What is made is given back.

use std::time::Duration;

use anyhow::{Result, ensure};
use efa_tests::{Node, Pair, Remote, Test, alone, footprint};
use efa_transport::{Config, ReceivePool};
use efa_verbs::{DeviceCapabilities, Operations, QueuePairConfig};

const ROUNDS: usize = 1000;

/// Open, make everything, connect, write, drop everything.
fn round(t: &Test, bytes: &[u8]) -> Result<()> {
    let config = QueuePairConfig {
        send_depth: 16,
        recv_depth: 16,
        operations: Operations::SEND | Operations::WRITE,
        ..QueuePairConfig::default()
    };
    let mut node = Node::new(t, &config)?;
    let source = node.region(bytes)?;
    let target = node.region(&vec![0; bytes.len()])?;
    let to = node.to(node.address()?)?;
    let local = source.sge(0, bytes.len() as u32)?;
    node.write(&to, &[(1, local, Remote::from(&target).at(0))])?;
    node.sent_well(1)?;
    Ok(())
}

/// The same with the transport: two endpoints that connect to each other.
fn transport_round(t: &Test, bytes: &[u8]) -> Result<()> {
    let config = Config {
        send_depth: 16,
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        ..Config::default()
    };
    Pair::new(t, config)?.works(bytes)
}

fn leaves_nothing(t: &Test, round: fn(&Test, &[u8]) -> Result<()>) -> Result<()> {
    t.need(DeviceCapabilities::RDMA_WRITE)?;
    t.need_loopback()?;
    let bytes = t.rng().bytes(3000);
    // What is made once and kept (the provider, the engine's thread, the allocator) comes first.
    for _ in 0..5 {
        round(t, &bytes)?;
    }
    let on_soft_efa = t.soft_efa()?.is_some();
    let objects = || {
        if on_soft_efa {
            t.objects()
        } else {
            Ok(Default::default())
        }
    };
    let (before, objects_before) = (footprint()?, objects()?);
    for _ in 0..ROUNDS {
        round(t, &bytes)?;
    }
    let (after, objects_after) = (footprint()?, objects()?);
    ensure!(
        objects_before == objects_after,
        "{objects_before:?}\n{objects_after:?}"
    );
    ensure!(
        before.files == after.files,
        "{:?}\n{:?}",
        before.files,
        after.files
    );
    ensure!(before.threads == after.threads);
    ensure!(
        before.mapped_files() == after.mapped_files(),
        "{:?}\n{:?}",
        before.mappings,
        after.mappings
    );
    // Anonymous memory may be split and joined by the allocator, but not a thousand times.
    let anonymous =
        |footprint: &efa_tests::Footprint| footprint.mappings.get("").copied().unwrap_or(0);
    ensure!(
        anonymous(&after) <= anonymous(&before) + 20,
        "{} anonymous mappings, then {}",
        anonymous(&before),
        anonymous(&after)
    );
    Ok(())
}

#[test]
fn a_thousand_queue_pairs_later_files_mappings_and_objects_are_as_before() {
    alone()
        .deadline(Duration::from_secs(600))
        .run(|t| leaves_nothing(t, round));
}

#[test]
fn a_thousand_connections_later_files_mappings_and_objects_are_as_before() {
    alone()
        .deadline(Duration::from_secs(600))
        .run(|t| leaves_nothing(t, transport_round));
}
