//! Completion channels: waiting for a descriptor instead of polling.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use efa_tests::{Node, Remote, Test, alone, run, skip, under};
use efa_verbs::{
    DataPath, DeviceCapabilities, Error, Feature, Operations, QueuePairConfig, RecvCompletion,
    SendCompletion,
};

fn config(t: &Test) -> Result<QueuePairConfig> {
    let can = t.device()?.open()?.attributes().capabilities;
    Ok(QueuePairConfig {
        operations: Operations::supported(can),
        completion_channel: true,
        ..QueuePairConfig::default()
    })
}

/// Whether the queue pair's channel becomes readable in time.
fn readable(node: &mut Node, patience: Duration) -> Result<bool> {
    let channel = node
        .pair()
        .completion_channel()
        .context("no channel")?
        .clone();
    let mut poll = libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid struct, as the count says.
    let n = unsafe { libc::poll(&mut poll, 1, patience.as_millis() as i32) };
    ensure!(n >= 0, std::io::Error::last_os_error());
    Ok(n == 1)
}

const SOON: Duration = Duration::from_secs(20);
const A_WHILE: Duration = Duration::from_millis(100);

fn wait_sent(node: &mut Node) -> Result<SendCompletion> {
    let mut one = [SendCompletion::default()];
    loop {
        if node.pair().poll_send(&mut one)? == 1 {
            return Ok(one[0]);
        }
        node.pair().arm()?;
        if node.pair().poll_send(&mut one)? == 1 {
            return Ok(one[0]);
        }
        ensure!(
            readable(node, SOON)?,
            "no event for a completion of the send side"
        );
        ensure!(node.pair().take_events()? > 0, "readable without an event");
    }
}

fn wait_received(node: &mut Node) -> Result<RecvCompletion> {
    let mut one = [RecvCompletion::default()];
    loop {
        if node.pair().poll_recv(&mut one)? == 1 {
            return Ok(one[0]);
        }
        node.pair().arm()?;
        if node.pair().poll_recv(&mut one)? == 1 {
            return Ok(one[0]);
        }
        ensure!(
            readable(node, SOON)?,
            "no event for a completion of the receive side"
        );
        ensure!(node.pair().take_events()? > 0, "readable without an event");
    }
}

#[test]
fn an_event_comes_after_arming_and_only_then() {
    run(|t| {
        t.need_loopback()?;
        let mut node = Node::new(t, &config(t)?)?;
        let region = node.region(&[1; 64])?;
        let to = node.to(node.address()?)?;
        node.receive(&[(1, region.sge(0, 16)?), (2, region.sge(16, 16)?)])?;
        node.send(&to, &[(3, region.sge(32, 16)?)])?;
        node.sent_well(1)?;
        node.received(1)?;
        ensure!(!readable(&mut node, A_WHILE)?, "an event without arming");
        node.pair().arm()?;
        ensure!(
            !readable(&mut node, A_WHILE)?,
            "an event without a completion"
        );
        node.send(&to, &[(4, region.sge(32, 16)?)])?;
        ensure!(readable(&mut node, SOON)?, "no event");
        ensure!(node.pair().take_events()? > 0);
        node.sent_well(1)?;
        node.received(1)?;
        Ok(())
    });
}

fn ping_pong(t: &Test, path: DataPath) -> Result<()> {
    t.need_loopback()?;
    let config = QueuePairConfig { path, ..config(t)? };
    let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
    if path != DataPath::Auto {
        ensure!(a.pair().path() == path);
    }
    let (ours, theirs) = (a.region(&[1; 64])?, b.region(&[2; 64])?);
    let (to_b, to_a) = (a.to(b.address()?)?, b.to(a.address()?)?);
    for round in 0..300 {
        a.receive(&[(round, ours.sge(0, 16)?)])?;
        b.receive(&[(round, theirs.sge(0, 16)?)])?;
        a.send(&to_b, &[(round, ours.sge(16, 16)?)])?;
        ensure!(wait_received(&mut b)?.wr_id == round);
        b.send(&to_a, &[(round, theirs.sge(16, 16)?)])?;
        ensure!(wait_received(&mut a)?.wr_id == round);
        ensure!(wait_sent(&mut a)?.wr_id == round && wait_sent(&mut b)?.wr_id == round);
    }
    Ok(())
}

#[test]
fn no_wakeup_is_lost_in_hundreds_of_rounds() {
    run(|t| ping_pong(t, DataPath::Libefa));
}

#[test]
fn no_wakeup_is_lost_on_the_direct_path() {
    run(|t| {
        let context = t.device()?.open()?;
        let config = QueuePairConfig {
            path: DataPath::Direct,
            ..config(t)?
        };
        match context.alloc_pd()?.create_queue_pair(&config) {
            Ok(_) => ping_pong(t, DataPath::Direct),
            Err(Error::Unsupported {
                feature: Feature::DirectPath,
                ..
            }) => Err(skip(
                "with a completion channel the direct path needs rdma-core 60",
            )),
            Err(error) => Err(error.into()),
        }
    });
}

#[test]
fn arming_without_a_channel_is_an_error() {
    run(|t| {
        let mut node = Node::new(t, &QueuePairConfig::default())?;
        match node.pair().arm() {
            Err(Error::InvalidArgument { what, .. }) => ensure!(what == "completion channel"),
            other => bail!("{other:?}"),
        }
        ensure!(node.pair().take_events()? == 0);
        Ok(())
    });
}

#[test]
fn a_device_without_events_is_named() {
    under("profile=c5n").run(|t| {
        let context = t.device()?.open()?;
        let config = QueuePairConfig {
            completion_channel: true,
            ..QueuePairConfig::default()
        };
        match context.alloc_pd()?.create_queue_pair(&config) {
            Err(Error::Unsupported {
                device,
                feature: Feature::CompletionChannel,
                ..
            }) => {
                ensure!(device == context.device_name());
                Ok(())
            }
            other => bail!("{other:?}"),
        }
    });
}

#[test]
fn a_queue_pair_with_unread_events_can_be_dropped() {
    run(|t| {
        t.need_loopback()?;
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        for _ in 0..20 {
            let mut node = Node::new(t, &config(t)?)?;
            let region = node.region(&[1; 64])?;
            let to = node.to(node.address()?)?;
            node.pair().arm()?;
            let there = Remote::from(&region).at(32);
            node.write(&to, &[(1, region.sge(0, 16)?, there)])?;
            ensure!(readable(&mut node, SOON)?, "no event");
        }
        Ok(())
    });
}

#[test]
fn reading_the_channels_descriptor_takes_nothing_away_and_hangs_no_drop() {
    alone().deadline(Duration::from_secs(60)).run(|t| {
        t.need_loopback()?;
        let mut node = Node::new(t, &config(t)?)?;
        let region = node.region(&[1; 64])?;
        let to = node.to(node.address()?)?;
        let channel = node.pair().completion_channel().context("no channel")?;
        let mut file = std::fs::File::from(channel.as_fd().try_clone_to_owned()?);
        node.pair().arm()?;
        node.receive(&[(1, region.sge(0, 16)?)])?;
        node.send(&to, &[(2, region.sge(16, 16)?)])?;
        ensure!(readable(&mut node, SOON)?, "no event");
        let read = file.read(&mut [0; 64]);
        ensure!(read.is_err(), "it read an event: {read:?}");
        ensure!(readable(&mut node, SOON)?, "the event is gone");
        drop(node);
        Ok(())
    });
}

#[test]
fn a_missing_event_capability_is_named_also_where_more_was_asked_for() {
    under("profile=c5n").run(|t| {
        let context = t.device()?.open()?;
        let source_gid = context
            .attributes()
            .capabilities
            .contains(DeviceCapabilities::CQ_WITH_SGID);
        let config = QueuePairConfig {
            completion_channel: true,
            source_gid,
            ..QueuePairConfig::default()
        };
        let error = context.alloc_pd()?.create_queue_pair(&config).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains("completion events"), "{text}");
        ensure!(!text.contains("RDMA"), "{text}");
        Ok(())
    });
}

#[test]
fn the_direct_path_is_refused_with_the_reason_that_applies() {
    under("profile=c5n").run(|t| {
        let config = QueuePairConfig {
            path: DataPath::Direct,
            ..QueuePairConfig::default()
        };
        let domain = t.device()?.open()?.alloc_pd()?;
        let error = domain.create_queue_pair(&config).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains("several rings"), "{text}");
        ensure!(!text.contains("rdma-core 59"), "{text}");
        Ok(())
    });
}
