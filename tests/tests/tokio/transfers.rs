//! Operations, messages and immediates of tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use efa_tests::{Test, run, under};
use efa_transport::{Config, Error, FailureKind, Put, ReceivePool, Send};
use futures_core::Stream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Pair, everywhere};

#[test]
fn tasks_put_get_send_and_wait_for_immediates() {
    run(|t| everywhere(|config| transfers(t, config)));
}

async fn transfers(t: &Test, config: Config) -> Result<()> {
    let pair = Arc::new(Pair::new(t, config).await?);
    let mut tasks = JoinSet::new();
    for number in 1..50u8 {
        let pair = pair.clone();
        tasks.spawn(async move {
            let bytes = vec![number; 100 * usize::from(number)];
            let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
            let remote = target.remote()?;
            let put = Put::new(pair.ab, &source, remote).immediate(number.into());
            ensure!(pair.a.submit(put).await? == bytes.len() as u64);
            pair.b.landed(number.into(), 1).await?;
            ensure!(target.to_vec(..)? == bytes);
            let back = pair.region(&vec![0; bytes.len()])?;
            pair.a.get(pair.ab, &back, remote).await?;
            ensure!(back.to_vec(..)? == bytes);
            let sent = pair.a.submit(Send::bytes(pair.ab, &[number]).immediate(9));
            let message = pair.b.recv().await?;
            ensure!(message.peer() == Some(pair.ba) && message.immediate() == Some(9));
            ensure!(sent.await? == 1);
            Ok(u64::from(message[0]))
        });
    }
    let mut sum = 0;
    while let Some(task) = tasks.join_next().await {
        sum += task??;
    }
    ensure!(sum == (1..50).sum::<u64>(), "each message came once: {sum}");
    pair.a.flush().await?;
    ensure!(pair.a.close(Duration::from_secs(10)).await? == 0);
    Ok(())
}

#[test]
fn messages_are_a_stream_and_bytes_without_a_copy() {
    run(|t| {
        everywhere(async |config| {
            let pool = ReceivePool {
                buffers: 4,
                size: Some(100),
            };
            let pair = Pair::new(
                t,
                Config {
                    receive_pool: pool,
                    ..config
                },
            )
            .await?;
            let sender = tokio::spawn({
                let (a, ab) = (pair.a.clone(), pair.ab);
                async move {
                    for number in 0..20u8 {
                        a.send(ab, &[number; 50]).await?;
                    }
                    Ok::<_, Error>(())
                }
            });
            let mut messages = std::pin::pin!(pair.b.messages());
            let mut next =
                async || std::future::poll_fn(|context| messages.as_mut().poll_next(context)).await;
            let mut kept = Vec::new();
            let mut sum = 0;
            for _ in 0..20 {
                let Some(message) = next().await else {
                    bail!("the stream ended");
                };
                let message = message?;
                let at = message.as_ptr();
                let bytes = Bytes::from(message);
                ensure!(bytes.as_ptr() == at, "it was copied");
                sum += u32::from(bytes[0]);
                // A part keeps the buffer, of which there are four.
                kept.push(bytes.slice(10..20));
                if kept.len() == 3 {
                    kept.clear();
                }
            }
            sender.await??;
            ensure!(sum == (0..20).sum::<u32>());
            ensure!(pair.b.close(Duration::ZERO).await? == 0);
            ensure!(next().await.is_none(), "it goes on");
            Ok(())
        })
    });
}

/// `select!`, timeouts and aborts, with a device that is slow on purpose.
#[test]
fn tasks_that_are_aborted_or_run_out_of_time_harm_nobody() {
    under("max-rdma-size=4096 faults=loss=0.05,dup=0.01,delay=500us:0.3").run(|t| {
        everywhere(async |config| {
            let pair = Arc::new(Pair::new(t, config).await?);
            let mut rng = t.rng();
            let bytes = rng.bytes(20_000);
            let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; 20_000])?);
            let remote = target.remote()?;
            let ended = Arc::new(AtomicU64::new(0));
            let mut tasks = JoinSet::new();
            let mut aborts = Vec::new();
            for number in 0..300u64 {
                let (pair, source, ended) = (pair.clone(), source.clone(), ended.clone());
                let patience = Duration::from_micros(rng.below(3000));
                let abort = tasks.spawn(async move {
                    let mut put = pair.a.put(pair.ab, &source, remote);
                    match number % 4 {
                        0 => drop(timeout(patience, put).await),
                        1 => tokio::select! {
                            _ = tokio::time::sleep(patience) => {}
                            result = &mut put => drop(result?),
                        },
                        // One that is late is awaited all the same.
                        2 => match timeout(patience, &mut put).await {
                            Ok(result) => drop(result?),
                            Err(_) => drop(put.await?),
                        },
                        _ => drop(put.await?),
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, Error>(())
                });
                if number % 8 == 3 {
                    aborts.push(abort);
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            aborts.iter().for_each(|abort| abort.abort());
            let mut aborted = 0;
            while let Some(task) = tasks.join_next().await {
                match task {
                    Ok(result) => result?,
                    Err(error) if error.is_cancelled() => aborted += 1,
                    Err(error) => bail!(error),
                }
            }
            ensure!(ended.load(Ordering::Relaxed) + aborted == 300);
            let last = pair.a.put(pair.ab, &source, remote);
            ensure!(last.await? == 20_000);
            ensure!(pair.a.close(Duration::from_secs(60)).await? == 0);
            ensure!(source.is_idle(), "something holds the memory");
            ensure!(target.to_vec(..)? == bytes);
            Ok(())
        })
    });
}

#[test]
fn an_operation_keeps_its_own_deadline() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        everywhere(async |config| {
            let pair = Pair::new(t, config).await?;
            let region = pair.region(&[1; 100])?;
            t.set_faults("timeout=60s,cut=both")?;
            let soon = Instant::now() + Duration::from_millis(30);
            let put = Put::new(pair.ab, &region, region.remote()?).deadline(soon);
            match pair.a.submit(put).await {
                Err(Error::Failed(failure)) => {
                    ensure!(failure.kind() == FailureKind::DeadlineExceeded);
                }
                other => bail!("{other:?}"),
            }
            t.set_faults("timeout=60s")?;
            Ok(())
        })
    });
}
