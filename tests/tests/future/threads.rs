//! Threads without a runtime: several submitters on one queue pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use efa_tests::{run, under};
use efa_transport::{Buffer, Error, Put};

use crate::{Pair, config, sleepy};

#[test]
fn threads_share_a_queue_pair_and_wait_each_for_its_own() {
    run(|t| {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 100;
        for config in [config(), sleepy()] {
            let pair = Pair::on_threads(t, config)?;
            let (mine, theirs) = (AtomicU64::new(0), AtomicU64::new(0));
            std::thread::scope(|scope| {
                let work = |thread: u64| -> Result<()> {
                    for round in 0..ROUNDS {
                        let bytes = [(thread * ROUNDS + round) as u8; 100];
                        let source = pair.region(&bytes)?;
                        let target = pair.region(&[0; 100])?;
                        let put = Put::new(pair.ab, &source, target.remote()?);
                        ensure!(pair.a.submit(put.immediate(5)).wait()? == 100);
                        ensure!(target.to_vec(..)? == bytes);
                        let back = pair.region(&[0; 100])?;
                        pair.a.get(pair.ab, &back, target.remote()?).wait()?;
                        ensure!(back.to_vec(..)? == bytes);
                        let sent = pair.a.send(pair.ab, &bytes);
                        let message = pair.b.recv().wait()?;
                        theirs.fetch_add(u64::from(message[0]), Ordering::Relaxed);
                        mine.fetch_add(u64::from(bytes[0]), Ordering::Relaxed);
                        sent.wait()?;
                        pair.b.landed(5, 1).wait()?;
                    }
                    Ok(())
                };
                let threads: Vec<_> = (0..THREADS)
                    .map(|thread| scope.spawn(move || work(thread)))
                    .collect();
                for thread in threads {
                    thread.join().map_err(|_| anyhow!("it panicked"))??;
                }
                Ok::<_, anyhow::Error>(())
            })?;
            // Any thread may have got any message, and each came once.
            ensure!(mine.into_inner() == theirs.into_inner());
            pair.a.flush().wait()?;
            ensure!(pair.a.close(Duration::from_secs(10)).wait()? == 0);
        }
        Ok(())
    });
}

#[test]
fn a_wait_that_takes_too_long_ends_and_the_operation_goes_on() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        let pair = Pair::on_threads(t, sleepy())?;
        let (source, target) = (pair.region(&[9; 50])?, pair.region(&[0; 50])?);
        t.set_faults("timeout=60s,cut=both")?;
        let mut put = pair.a.put(pair.ab, &source, target.remote()?);
        ensure!(put.wait_timeout(Duration::from_millis(50)).is_none());
        let mut message = pair.b.recv();
        ensure!(message.wait_timeout(Duration::from_millis(20)).is_none());
        t.set_faults("timeout=60s")?;
        ensure!(put.wait()? == 50);
        ensure!(target.to_vec(..)? == [9; 50]);
        Ok(())
    });
}

#[test]
fn a_driver_thread_ends_with_the_last_handle() {
    run(|t| {
        let (pair, [first, second]) = Pair::new(t, sleepy())?;
        let (first, second) = (first.spawn()?, second.spawn()?);
        let waiting = pair.b.landed(1, 1);
        drop(pair);
        first.join().map_err(|_| anyhow!("it panicked"))??;
        ensure!(!second.is_finished(), "a future is left, and is a handle");
        drop(waiting);
        second.join().map_err(|_| anyhow!("it panicked"))??;
        Ok(())
    });
}

#[test]
fn a_driver_that_is_dropped_ends_all_futures() {
    run(|t| {
        let (pair, drivers) = Pair::new(t, sleepy())?;
        let (landed, mut message) = (pair.a.landed(1, 1), pair.a.recv());
        ensure!(message.wait_timeout(Duration::from_millis(1)).is_none());
        drop(drivers);
        ensure!(landed.wait().is_err());
        ensure!(matches!(message.wait(), Err(Error::Closed { .. })));
        ensure!(matches!(pair.a.address(), Err(Error::Closed { .. })));
        Ok(())
    });
}

#[test]
fn a_lent_buffer_comes_back_with_the_result() {
    run(|t| {
        let pair = Pair::on_threads(t, config())?;
        let target = pair.region(&[0; 5000])?;
        let mut buffer = Buffer::zeroed(5000)?;
        buffer.fill(8);
        let returned = pair.a.put_owned(pair.ab, buffer, target.remote()?).wait();
        ensure!(returned.result? == 5000);
        ensure!(target.to_vec(..)? == vec![8; 5000]);
        let mut buffer = returned.buffer.ok_or_else(|| anyhow!("no buffer"))?;
        buffer.fill(0);
        let returned = pair.a.get_owned(pair.ab, buffer, target.remote()?).wait();
        ensure!(returned.result? == 5000);
        let buffer = returned.buffer.ok_or_else(|| anyhow!("no buffer"))?;
        ensure!(buffer[..] == [8; 5000]);
        // One that fails comes back as well.
        let short = target.remote()?.slice(..10)?;
        let returned = pair.a.put_owned(pair.ab, buffer, short).wait();
        ensure!(returned.result.is_err());
        ensure!(
            returned
                .buffer
                .is_some_and(|buffer| buffer[..] == [8; 5000])
        );
        Ok(())
    });
}
