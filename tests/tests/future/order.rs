//! Whatever the order in which tasks and drivers run.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Rng, Test, under};
use efa_transport::future::{Handle, Submitted};
use efa_transport::{Await, Config, DataPath, Error, FailureKind, Put, ReceivePool};

use crate::world::World;
use crate::{Pair, sleepy};

const PUTS: u64 = 40;
const SENDS: usize = 30;
const VALUE: u32 = 7;

fn tight(path: DataPath) -> Config {
    Config {
        send_depth: 4,
        max_operations: 6,
        receive_pool: ReceivePool {
            buffers: 4,
            size: Some(256),
        },
        path,
        ..sleepy()
    }
}

/// An end that a dropped future never has.
fn expect_end(result: Result<u64, Error>, bytes: u64) -> Result<()> {
    ensure!(result? == bytes);
    Ok(())
}

/// Puts, batches, messages and waits for immediates meet in every order, and some are dropped.
fn one_world(t: &Test, path: DataPath, rng: Rng) -> Result<(usize, usize)> {
    let (pair, drivers) = Pair::new(t, tight(path))?;
    let Pair { a, b, ab, .. } = &pair;
    let (a, b, ab) = (a.clone(), b.clone(), *ab);
    let source = pair.region(&[1; 9000])?;
    let target = pair.region(&[0; 9000])?;
    let remote = target.remote()?;
    let mut world = World::new(rng, drivers.into());
    let (got, landed) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    // Held by every task but the receivers, of which there are more than messages.
    let token = Rc::new(());
    for _ in 0..PUTS {
        let (handle, source, token) = (a.clone(), source.clone(), token.clone());
        world.spawn(async move {
            let _token = token;
            let put = Put::new(ab, &source, remote).immediate(VALUE);
            expect_end(handle.submit(put).await, 9000)
        });
    }
    for at in 0..10u64 {
        let (handle, source, token) = (a.clone(), source.clone(), token.clone());
        world.spawn_mortal(if at % 2 == 0 { 0 } else { 6 }, async move {
            let _token = token;
            let part = source.slice(..64)?;
            let puts = [Put::new(ab, part, remote.slice(..64)?); 3];
            for result in handle.batch(puts).await? {
                expect_end(result, 64)?;
            }
            Ok(())
        });
    }
    for at in 0..SENDS {
        let (handle, token) = (a.clone(), token.clone());
        world.spawn(async move {
            let _token = token;
            expect_end(handle.send(ab, &[at as u8; 200]).await, 200)
        });
    }
    for at in 0..2 * SENDS {
        let (handle, got) = (b.clone(), got.clone());
        // Half of them take their time: none may keep a message from the rest.
        world.spawn_mortal(if at % 2 == 0 { 4 } else { 40 }, async move {
            let message = handle.recv().await;
            match message {
                Ok(message) => ensure!(message.len() == 200),
                // There were more receivers than messages.
                Err(Error::Closed { .. }) => return Ok(()),
                Err(error) => bail!(error),
            }
            got.set(got.get() + 1);
            Ok(())
        });
    }
    for _ in 0..PUTS / 2 {
        let (handle, landed, token) = (b.clone(), landed.clone(), token.clone());
        world.spawn_mortal(8, async move {
            let _token = token;
            handle.landed(VALUE, 2).await?;
            landed.set(landed.get() + 2);
            Ok(())
        });
    }
    // Takes what the others leave, until the end.
    let (handle, more) = (b.clone(), got.clone());
    world.spawn(async move {
        while handle.recv().await.is_ok() {
            more.set(more.get() + 1);
        }
        Ok(())
    });
    let ended = world.run_until(|_| {
        let counted = b.immediate_count(VALUE)? + landed.get();
        Ok(Rc::strong_count(&token) == 1 && counted == PUTS && got.get() == SENDS)
    });
    ended.with_context(|| format!("a: {:?}\nb: {:?}", a.stats(), b.stats()))?;
    let (sender, receiver) = (a.clone(), b.clone());
    world.spawn(async move {
        sender.flush().await?;
        ensure!(receiver.close(Duration::from_secs(10)).await? == 0);
        Ok(())
    });
    world.run()?;
    ensure!(got.get() == SENDS, "{} messages", got.get());
    ensure!(target.to_vec(..64)? == [1; 64]);
    let stats = a.stats()?;
    ensure!(stats.live == 0 || stats.free_credits <= 4);
    Ok((world.dropped, world.sleeps))
}

#[test]
fn no_wake_up_is_lost_whatever_the_order() {
    under("max-rdma-size=4096 faults=delay=200us:0.3,reorder=8").run(|t| {
        let (mut dropped, mut sleeps) = (0, 0);
        for round in 0..24 {
            let path = match round % 2 {
                0 => DataPath::Libefa,
                _ => DataPath::Auto,
            };
            let (more, slept) = one_world(t, path, t.rng())?;
            (dropped, sleeps) = (dropped + more, sleeps + slept);
        }
        ensure!(dropped > 100, "only {dropped} tasks were dropped");
        ensure!(sleeps > 100, "only {sleeps} sleeps");
        Ok(())
    });
}

/// What finds no room begins in the order of submission, whoever is awaited first.
#[test]
fn operations_that_find_no_room_begin_in_order_and_need_not_be_polled() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            max_operations: 1,
            ..sleepy()
        };
        let (pair, drivers) = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[3; 64])?, pair.region(&[0; 64])?);
        let put = || pair.a.put(pair.ab, &source, target.remote().unwrap());
        let mut puts: Vec<Submitted> = (0..50).map(|_| put()).collect();
        let mut world = World::new(t.rng(), drivers.into());
        // From the last to the first: those before it are not polled, and end all the same.
        world.spawn(async move {
            while let Some(put) = puts.pop() {
                put.await?;
            }
            Ok(())
        });
        world.run()?;
        ensure!(pair.a.stats()?.operations == 50);
        Ok(())
    });
}

/// No runtime's timer is there: the driver's sleep ends at the deadline.
#[test]
fn deadlines_hold_without_a_timer_while_an_operation_waits_and_while_it_flies() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        let config = Config {
            max_operations: 1,
            ..sleepy()
        };
        let (pair, drivers) = Pair::new(t, config)?;
        t.set_faults("timeout=60s,cut=both")?;
        let (source, target) = (pair.region(&[3; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        let soon = Instant::now() + Duration::from_millis(100);
        let put = Put::new(pair.ab, &source, remote);
        let flies = pair.a.submit(put.deadline(soon));
        let waits = pair.a.submit(put.deadline(soon));
        let lands = pair.b.submit(Await::new(1, 1).deadline(soon));
        let mut world = World::new(t.rng(), drivers.into());
        world.spawn(async move {
            for late in [waits, flies, lands] {
                match late.await {
                    Err(Error::Failed(failure)) => {
                        ensure!(failure.kind() == FailureKind::DeadlineExceeded, "{failure}");
                    }
                    other => bail!("{other:?}"),
                }
            }
            Ok(())
        });
        world.run()?;
        ensure!(Instant::now() >= soon);
        t.set_faults("timeout=60s")?;
        drop(pair);
        Ok(())
    });
}

/// A batch that waits gets its room although others keep the queue full; and posts nothing if it fails.
#[test]
fn a_batch_finds_room_beside_a_long_put_and_is_all_or_none() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            send_depth: 8,
            ..sleepy()
        };
        let (pair, drivers) = Pair::new(t, config)?;
        let long = pair.region(&vec![5; 4 << 20])?;
        let target = pair.region(&vec![0; 4 << 20])?;
        let remote = target.remote()?;
        let small = pair.region(&[6; 64])?;
        let put = pair.a.put(pair.ab, &long, remote);
        let part = remote.slice(..64)?;
        let (handle, ab, ba) = (pair.a.clone(), pair.ab, pair.ba);
        let depth = handle.limits().depth as usize;
        let mut world = World::new(t.rng(), drivers.into());
        world.spawn(async move {
            let puts = vec![Put::new(ab, &small, part); depth];
            let results = handle.batch(puts).await?;
            ensure!(results.len() == depth);
            for result in results {
                ensure!(result? == 64);
            }
            let before = handle.stats()?;
            ensure!(before.live > 0, "the long put was faster than the batch");
            // The last one can't be: none is posted.
            let mut puts = vec![Put::new(ab, &small, part); 3];
            puts.push(Put::new(ba, &small, part));
            match handle.batch(puts).await {
                Err(Error::PeerGone { .. }) => {}
                other => bail!("{other:?}"),
            }
            match handle
                .batch(vec![Put::new(ab, &small, part); depth + 1])
                .await
            {
                Err(Error::TooLong { .. }) => {}
                other => bail!("{other:?}"),
            }
            put.await?;
            let after = handle.stats()?;
            ensure!(after.operations == 1 + depth as u64, "{after:?}");
            Ok(())
        });
        world.run()?;
        ensure!(target.to_vec(64..)? == vec![5; (4 << 20) - 64]);
        Ok(())
    });
}

/// The task of a handle whose tasks are gone is gone as well.
#[test]
fn closing_lets_operations_finish_and_tells_those_that_did_not() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        let (pair, drivers) = Pair::new(t, sleepy())?;
        let (source, target) = (pair.region(&[3; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        let mut world = World::new(t.rng(), drivers.into());
        let good = pair.a.put(pair.ab, &source, remote);
        let (a, b, ba) = (pair.a.clone(), pair.b.clone(), pair.ba);
        world.spawn(async move {
            let waits = a.landed(1, 1);
            ensure!(a.close(Duration::from_secs(30)).await? == 1);
            ensure!(good.await? == 64);
            ensure!(is_closed(waits.await), "the wait ended otherwise");
            ensure!(matches!(a.recv().await, Err(Error::Closed { .. })));
            ensure!(matches!(
                a.send(ba, b"late").await,
                Err(Error::Closed { .. })
            ));
            Ok(())
        });
        world.run()?;
        t.set_faults("timeout=60s,cut=both")?;
        let task = async move {
            let lost: Vec<_> = (0..5).map(|_| b.put(ba, &source, remote)).collect();
            ensure!(b.close(Duration::from_millis(50)).await? == 5);
            for lost in lost {
                let result = lost.await;
                ensure!(result.is_err(), "{result:?}");
            }
            Ok(())
        };
        world.spawn(task);
        world.run()?;
        t.set_faults("timeout=60s")?;
        Ok(())
    });
}

fn is_closed(result: Result<u64, Error>) -> bool {
    matches!(result, Err(Error::Failed(failure)) if failure.kind() == FailureKind::Closed)
}

#[test]
fn a_handle_needs_events_and_errors_are_the_futures() {
    under("max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let blind = efa_transport::Endpoint::new(&domain, Config::default())?;
        ensure!(matches!(Handle::new(blind), Err(Error::NoEvents)));
        let (pair, drivers) = Pair::new(
            t,
            Config {
                receive_pool: ReceivePool::NONE,
                ..sleepy()
            },
        )?;
        let source = pair.region(&[0; 64])?;
        let remote = source.remote()?;
        let Pair { a, ab, ba, .. } = pair;
        let mut world = World::new(t.rng(), drivers.into());
        world.spawn(async move {
            let gone = a.put(ba, &source, remote).await;
            ensure!(matches!(gone, Err(Error::PeerGone { .. })), "{gone:?}");
            let long = a.put(ab, &source, remote.slice(..8)?).await;
            ensure!(
                matches!(long, Err(Error::RemoteTooSmall { .. })),
                "{long:?}"
            );
            ensure!(matches!(a.recv().await, Err(Error::NoReceivePool)));
            ensure!(matches!(a.landed(1, 1).await, Err(Error::NoReceivePool)));
            Ok(())
        });
        world.run()
    });
}
