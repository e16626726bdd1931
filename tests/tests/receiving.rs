//! Messages, the receive pool, and writes with immediate data.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use efa_tests::{Pair, Test, done, ended, introduce, region, run};
use efa_transport::{Await, Config, Endpoint, Error, Kind, Put, ReceivePool, Send};
use efa_verbs::{DeviceCapabilities, VendorStatus};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn with_pool() -> Config {
    Config {
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        ..Config::default()
    }
}

#[test]
fn a_pool_takes_any_number_of_messages_of_any_length() {
    run(|t| {
        let mut pair = Pair::new(t, with_pool())?;
        let most = pair.a.limits().max_message as usize;
        let inline = pair.a.limits().max_inline as usize;
        let mut rng = t.rng();
        let lengths = [0, 1, inline, inline + 1, 1000, most - 1, most];
        // More than the pool has buffers: each is posted again once it was read.
        for round in 0..20 {
            for length in lengths {
                let bytes = rng.bytes(length);
                let immediate = (round % 2 == 0).then_some(length as u32 + 7);
                let mut send = Send::bytes(pair.ab, &bytes);
                if let Some(value) = immediate {
                    send = send.immediate(value);
                }
                let send = pair.a.submit(send)?;
                done(&mut pair.a, send)?;
                let message = pair.b.wait_message(PATIENCE)?;
                ensure!(message[..] == bytes[..], "{length} bytes differ");
                ensure!(message.peer() == Some(pair.ba), "{message:?}");
                ensure!(message.immediate() == immediate, "{message:?}");
            }
        }
        ensure!(pair.b.stats().messages == 140);
        let none = pair.b.wait_message(Some(Duration::from_millis(20)));
        ensure!(matches!(none, Err(Error::TimedOut(_))));
        Ok(())
    });
}

#[test]
fn a_message_longer_than_the_device_takes_is_refused_with_the_limit() {
    run(|t| {
        let mut pair = Pair::new(t, with_pool())?;
        let most = pair.a.limits().max_message;
        let bytes = vec![0; most as usize + 1];
        match pair.a.send(pair.ab, &bytes) {
            Err(Error::TooLong { length, limit, .. }) => {
                ensure!((length, limit) == (u64::from(most) + 1, u64::from(most)));
            }
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    });
}

#[test]
fn a_message_from_a_region_arrives_with_its_immediate_and_its_sender() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let source = pair.region(&[9; 500])?;
        let send = Send::new(pair.ab, &source).immediate(0xdead_beef);
        let send = pair.a.submit(send)?;
        done(&mut pair.a, send)?;
        let got = pair.b.wait_message(PATIENCE)?;
        ensure!(
            got[..] == [9; 500] && got.peer() == Some(pair.ba),
            "{got:?}"
        );
        ensure!(got.immediate() == Some(0xdead_beef), "{got:?}");
        ensure!(got.source_queue_pair() == pair.a.address().queue_pair());
        Ok(())
    });
}

#[test]
fn a_message_too_long_for_the_pool_fails_at_its_sender_and_is_counted_at_the_receiver() {
    run(|t| {
        let short = Config {
            receive_pool: ReceivePool {
                buffers: 4,
                size: Some(499),
            },
            ..Config::default()
        };
        let mut pair = Pair::new(t, short)?;
        let source = pair.region(&[9; 500])?;
        // More than there are buffers: each comes back.
        for round in 1..=10 {
            let send = pair.a.submit(Send::new(pair.ab, &source))?;
            let failure = ended(&mut pair.a, send)?.result.unwrap_err();
            let expected = VendorStatus::REMOTE_BAD_LENGTH.0;
            ensure!(failure.vendor_status() == Some(expected), "{failure}");
            ensure!(!failure.to_string().contains("max_rdma_size"), "{failure}");
            let ends = Instant::now() + Duration::from_secs(60);
            while pair.b.stats().messages_lost < round {
                ensure!(Instant::now() < ends, "{:?}", pair.b.stats());
                pair.b.poll(|_| {})?;
            }
        }
        // Both work on.
        let send = pair.a.submit(Send::new(pair.ab, source.slice(..499)?))?;
        done(&mut pair.a, send)?;
        ensure!(pair.b.wait_message(PATIENCE)?[..] == [9; 499]);
        Ok(())
    });
}

#[test]
fn a_sender_with_few_retries_learns_that_the_receiver_is_not_ready() {
    run(|t| {
        t.need(DeviceCapabilities::RNR_RETRY)?;
        let config = Config {
            rnr_retries: Some(1),
            receive_pool: ReceivePool {
                buffers: 1,
                size: None,
            },
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let first = pair.a.send(pair.ab, b"first")?;
        done(&mut pair.a, first)?;
        // Its buffer is kept, so that none is left.
        let message = pair.b.wait_message(PATIENCE)?;
        let send = pair.a.send(pair.ab, b"second")?;
        let failure = ended(&mut pair.a, send)?.result.unwrap_err();
        ensure!(
            failure.vendor_status() == Some(VendorStatus::RNR.0),
            "{failure}"
        );
        drop(message);
        pair.b.poll(|_| {})?;
        let send = pair.a.send(pair.ab, b"third")?;
        done(&mut pair.a, send)?;
        ensure!(pair.b.wait_message(PATIENCE)?[..] == *b"third");
        Ok(())
    });
}

#[test]
fn an_endpoint_without_a_pool_waits_for_nothing_and_its_peers_are_refused_at_once() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let mut a = Endpoint::new(&domain, Config::default())?;
        let without = Config {
            receive_pool: ReceivePool::NONE,
            ..Config::default()
        };
        let mut b = Endpoint::new(&domain, without)?;
        let (ab, _) = introduce(&mut a, &mut b)?;
        let (source, target) = (region(&domain, &[1; 64])?, region(&domain, &[0; 64])?);
        let put = Put::new(ab, &source, target.remote()?);
        for refused in [
            a.send(ab, b"hello"),
            a.submit(Send::new(ab, &source)),
            a.submit(put.immediate(1)),
            a.try_submit(put.immediate(1)),
            a.batch(|batch| batch.add(put.immediate(1))),
            a.batch(|batch| batch.add(Send::bytes(ab, b"hello"))),
        ] {
            ensure!(
                matches!(refused, Err(Error::PeerTakesNoMessages { peer }) if peer == ab),
                "{refused:?}"
            );
        }
        // All else works.
        let put = a.submit(put)?;
        done(&mut a, put)?;
        let message = b.wait_message(PATIENCE);
        ensure!(matches!(message, Err(Error::NoReceivePool)), "{message:?}");
        let wait = b.submit(Await::new(1, 1));
        ensure!(matches!(wait, Err(Error::NoReceivePool)), "{wait:?}");
        Ok(())
    });
}

/// Many writes with immediate data; the receiver waits for their number and then finds every byte.
fn count_arrivals(t: &Test, config: Config) -> Result<()> {
    const WRITES: usize = 40;
    const LENGTH: usize = 20_000;
    let mut pair = Pair::new(t, config)?;
    let bytes = t.rng().bytes(WRITES * LENGTH);
    let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
    let remote = target.remote()?;
    let waiting = pair.b.submit(Await::new(5, WRITES as u64).tag(77))?;
    let mut puts = Vec::new();
    for i in 0..WRITES as u64 {
        let part = i * LENGTH as u64..(i + 1) * LENGTH as u64;
        let (local, remote) = (source.slice(part.clone())?, remote.slice(part)?);
        loop {
            match pair
                .a
                .submit(Put::new(pair.ab, local, remote).immediate(5).tag(i))
            {
                Ok(put) => break puts.push(put),
                Err(Error::Full(_)) => {
                    pair.a.poll(|_| {})?;
                    pair.b.poll(|_| {})?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    // The sender's completions are not looked at before.
    let arrived = done(&mut pair.b, waiting)?;
    ensure!(arrived.kind == Kind::AwaitImmediate && arrived.tag == 77);
    ensure!(
        target.to_vec(..)? == bytes,
        "the count was reached before the data was there"
    );
    for put in puts {
        done(&mut pair.a, put)?;
    }
    // Those that nobody waited for are kept, by value.
    let small = pair.region(&[1; 8])?;
    for value in [6, 7, 7] {
        let put = pair
            .a
            .submit(Put::new(pair.ab, &small, remote).immediate(value))?;
        done(&mut pair.a, put)?;
    }
    let both = pair.b.submit(Await::new(7, 2))?;
    done(&mut pair.b, both)?;
    let one = pair.b.submit(Await::new(6, 1))?;
    done(&mut pair.b, one)?;
    ensure!(pair.b.immediate_count(6) == 0 && pair.b.immediate_count(7) == 0);
    Ok(())
}

#[test]
fn writes_with_immediates_are_counted_after_their_bytes_have_landed() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        count_arrivals(
            t,
            Config {
                receive_pool: ReceivePool {
                    buffers: 64,
                    size: Some(64),
                },
                ..Config::default()
            },
        )
    });
}
