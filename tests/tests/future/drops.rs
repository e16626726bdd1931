//! Futures that are dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Result, ensure};
use efa_tests::{Rng, Test, footprint, run, under};
use efa_transport::{Buffer, Config, DataPath, Put};

use crate::world::World;
use crate::{Pair, config, sleepy};

/// Polls a future so many times, and then drops it. Its output, if it has ended by then.
fn poll_and_drop<F: Future>(future: F, times: u32, mut between: impl FnMut()) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        between();
    }
    None
}

/// A receive is dropped before it is polled, while it waits, and when it was handed a message.
#[test]
fn a_dropped_receive_loses_no_message_wherever_it_is_dropped() {
    run(|t| {
        let pair = Pair::on_threads(t, sleepy())?;
        for times in 0..4 {
            for handed in [false, true] {
                let mut sent = None;
                let got = poll_and_drop(pair.b.recv(), times, || {
                    if handed && sent.is_none() {
                        sent = Some(pair.a.send(pair.ab, b"one").wait());
                        // It is with the receiver when nobody else can have it.
                        while pair.b.stats().is_ok_and(|stats| stats.messages == 0) {
                            std::thread::yield_now();
                        }
                    }
                });
                sent.get_or_insert_with(|| pair.a.send(pair.ab, b"one").wait());
                let message = match got {
                    Some(message) => message?,
                    None => pair.b.recv().wait()?,
                };
                ensure!(&message[..] == b"one");
                ensure!(pair.b.try_recv()?.is_none());
            }
        }
        Ok(())
    });
}

#[test]
fn a_dropped_wait_for_immediates_gives_its_counts_back() {
    run(|t| {
        let pair = Pair::on_threads(t, sleepy())?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let mut told = 0;
        let mut tell = |value| -> Result<()> {
            let put = Put::new(pair.ab, &source, target.remote()?).immediate(value);
            pair.a.submit(put).wait()?;
            told += 1;
            while pair.b.stats()?.immediates < told {
                std::thread::yield_now();
            }
            Ok(())
        };
        // It has none of two, one, both, and both while another is there.
        for landed in 0..4 {
            let wait = pair.b.landed(4, 2);
            for _ in 0..landed {
                tell(4)?;
            }
            drop(wait);
            ensure!(pair.b.immediate_count(4)? == landed, "{landed} had landed");
            ensure!(pair.b.landed(4, landed).wait()? == 0);
            ensure!(pair.b.immediate_count(4)? == 0);
        }
        // One that is behind gets what the first gives back.
        let (first, second) = (pair.b.landed(6, 1), pair.b.landed(6, 1));
        tell(6)?;
        drop(first);
        second.wait()?;
        Ok(())
    });
}

/// The device reads and writes what a dropped put and a dropped get have left with it, and memory is there
/// until it is done.
#[test]
fn what_a_dropped_future_left_with_the_device_keeps_its_memory() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        let pair = Pair::on_threads(t, sleepy())?;
        let target = pair.region(&[0; 3000])?;
        t.set_faults("timeout=60s,cut=both")?;
        let source = pair.region(&[7; 3000])?;
        let put = pair.a.put(pair.ab, &source, target.remote()?);
        let lent = pair.a.put_owned(
            pair.ab,
            Buffer::zeroed(100)?,
            target.remote()?.slice(..100)?,
        );
        let objects = t.objects()?;
        drop((put, lent));
        ensure!(!source.is_idle(), "the device may still read it");
        ensure!(
            t.objects()? == objects,
            "a registration is gone: {objects:?}"
        );
        t.set_faults("timeout=60s")?;
        while !source.is_idle() || pair.a.stats()?.free_credits < pair.a.limits().depth {
            std::thread::yield_now();
        }
        let regions = |objects: &std::collections::BTreeMap<String, u64>| {
            objects
                .iter()
                .find(|(name, _)| name.contains("mr"))
                .map(|(_, count)| *count)
        };
        ensure!(
            regions(&t.objects()?) < regions(&objects),
            "the lent buffer is still there"
        );
        Ok(())
    });
}

const MANY: u64 = 10_000;

/// Ten thousand puts at once, of which a third are dropped at random moments.
fn many(t: &Test, path: DataPath) -> Result<()> {
    let mut rng = t.rng();
    let config = Config {
        path,
        max_operations: 4000,
        ..config()
    };
    let (pair, drivers) = Pair::new(t, config)?;
    let bytes = rng.bytes(64 * 64);
    let source = pair.region(&bytes)?;
    let target = pair.region(&vec![0; bytes.len()])?;
    let remote = target.remote()?;
    let mut world = World::new(Rng::new(rng.next_u64()), drivers.into());
    let ended = std::sync::Arc::new(AtomicU64::new(0));
    for at in 0..MANY {
        let part = at % 64 * 64..at % 64 * 64 + 64;
        let put = pair
            .a
            .put(pair.ab, source.slice(part.clone())?, remote.slice(part)?);
        let ended = ended.clone();
        world.spawn_mortal(if at % 3 == 0 { 3 } else { 0 }, async move {
            ensure!(put.await? == 64);
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }
    world.run()?;
    ensure!(ended.load(Ordering::Relaxed) + world.dropped as u64 == MANY);
    ensure!(
        world.dropped as u64 > MANY / 20,
        "{} dropped",
        world.dropped
    );
    let flush = pair.a.flush();
    world.spawn(async move { Ok(flush.await?) });
    world.run()?;
    ensure!(target.to_vec(..)? == bytes);
    // The device is done with those that were dropped, too, once it has said so.
    let idle = pair.a.clone();
    let close = async move {
        ensure!(idle.close(Duration::from_secs(60)).await? == 0);
        Ok(())
    };
    world.spawn(close);
    world.run()?;
    ensure!(source.is_idle(), "something holds the memory");
    Ok(())
}

#[test]
fn ten_thousand_puts_at_once_end_or_were_dropped_and_nothing_is_left() {
    under("max-rdma-size=4096 faults=loss=0.05,dup=0.01").run(|t| {
        many(t, DataPath::Libefa)?;
        let (before, objects) = (footprint()?, t.objects()?);
        many(t, DataPath::Auto)?;
        many(t, DataPath::Libefa)?;
        let (after, left) = (footprint()?, t.objects()?);
        ensure!(after.files == before.files, "{before:?}\n{after:?}");
        ensure!(after.threads == before.threads, "{before:?}\n{after:?}");
        ensure!(left == objects, "{objects:?}\n{left:?}");
        Ok(())
    });
}
