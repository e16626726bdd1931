//! Messages, the receive pool, and writes with immediate data.

use std::time::Duration;

use anyhow::{Result, ensure};
use efa_tests::{Pair, Test, done, ended, run, under};
use efa_transport::{Await, Config, Error, Kind, Put, ReceivePool, Send};
use efa_verbs::{DeviceCapabilities, VendorStatus};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn with_pool() -> Config {
    Config {
        receive_pool: Some(ReceivePool {
            buffers: 16,
            size: None,
        }),
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
                let send = pair
                    .a
                    .submit(Send::bytes(pair.ab, &bytes).immediate_TODO(immediate))?;
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
fn a_posted_receive_completes_with_the_bytes_and_the_sender() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[9; 500])?, pair.region(&[0; 4096])?);
        let receive = pair.b.recv(&target, 31)?;
        let send = pair
            .a
            .submit(Send::new(pair.ab, &source).immediate(0xdead_beef))?;
        done(&mut pair.a, send)?;
        let got = done(&mut pair.b, receive)?;
        ensure!(
            got.kind == Kind::Receive && got.tag == 31 && got.bytes == 500,
            "{got:?}"
        );
        ensure!(
            got.peer == Some(pair.ba) && got.immediate == Some(0xdead_beef),
            "{got:?}"
        );
        ensure!(target.to_vec(..500)? == [9; 500] && target.to_vec(500..)? == [0; 3596]);
        Ok(())
    });
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[9; 500])?, pair.region(&[0; 499])?);
        let receive = pair.b.recv(&target, 0)?;
        let send = pair.a.submit(Send::new(pair.ab, &source))?;
        let failure = ended(&mut pair.a, send)?.result.unwrap_err();
        let expected = VendorStatus::REMOTE_BAD_LENGTH.0;
        ensure!(failure.vendor_status() == Some(expected), "{failure}");
        let failure = ended(&mut pair.b, receive)?.result.unwrap_err();
        ensure!(failure.vendor_status().is_some(), "{failure}");
        // Both work on.
        let target = pair.region(&[0; 500])?;
        let receive = pair.b.recv(&target, 0)?;
        let send = pair.a.submit(Send::new(pair.ab, &source))?;
        done(&mut pair.a, send)?;
        done(&mut pair.b, receive)?;
        Ok(())
    });
}

#[test]
fn a_sender_with_few_retries_learns_that_the_receiver_is_not_ready() {
    run(|t| {
        t.need(DeviceCapabilities::RNR_RETRY)?;
        let config = Config {
            rnr_retries: Some(1),
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[9; 50])?, pair.region(&[0; 50])?);
        let send = pair.a.submit(Send::new(pair.ab, &source))?;
        let failure = ended(&mut pair.a, send)?.result.unwrap_err();
        ensure!(
            failure.vendor_status() == Some(VendorStatus::RNR.0),
            "{failure}"
        );
        let receive = pair.b.recv(&target, 0)?;
        let send = pair.a.submit(Send::new(pair.ab, &source))?;
        done(&mut pair.a, send)?;
        done(&mut pair.b, receive)?;
        Ok(())
    });
}

#[test]
fn pools_and_posted_receives_do_not_mix() {
    run(|t| {
        let mut pair = Pair::new(t, with_pool())?;
        let target = pair.region(&[0; 64])?;
        let receive = pair.b.recv(&target, 0);
        ensure!(
            matches!(receive, Err(Error::Receive(ReceiveError::HasPool))),
            "{receive:?}"
        );
        let mut plain = Pair::on(&pair.domain, Config::default())?;
        let message = plain.b.wait_message(PATIENCE);
        ensure!(matches!(message, Err(Error::Receive(ReceiveError::NoPool))));
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
    let both = pair.b.await_immediate(7, 2)?;
    done(&mut pair.b, both)?;
    let one = pair.b.await_immediate(6, 1)?;
    done(&mut pair.b, one)?;
    ensure!(pair.b.immediate_count(6) == 0 && pair.b.immediate_count(7) == 0);
    Ok(())
}

#[test]
fn unsolicited_writes_are_counted_after_their_bytes_have_landed() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE | DeviceCapabilities::UNSOLICITED_WRITE_RECV)?;
        count_arrivals(
            t,
            Config {
                ..Config::default()
            },
        )
    });
}

#[test]
fn solicited_writes_are_counted_after_their_bytes_have_landed() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        count_arrivals(
            t,
            Config {
                receive_pool: Some(ReceivePool {
                    buffers: 64,
                    size: Some(64),
                }),
                ..Config::default()
            },
        )
    });
}

#[test]
fn sides_that_differ_in_unsolicited_receipt_end_in_a_feature_mismatch() {
    under("profile=p5en").run(|t| {
        let mut pair = Pair::new(
            t,
            Config {
                ..Config::default()
            },
        )?;
        let mut other = Pair::on(
            &pair.domain,
            Config {
                ..Config::default()
            },
        )?;
        let target = pair.region(&[0; 64])?;
        let source = pair.region(&[1; 64])?;
        // Without a handshake only the device can tell.
        let peer = pair.a.connect(other.b.address())?;
        other.b.connect(pair.a.address())?;
        let put = pair
            .a
            .submit(Put::new(peer, &source, target.remote()?).immediate(1))?;
        let failure = ended(&mut pair.a, put)?.result.unwrap_err();
        let expected = VendorStatus::FEATURE_MISMATCH.0;
        ensure!(failure.vendor_status() == Some(expected), "{failure}");
        pair.works(&[1; 100])
    });
}

#[test]
fn unsolicited_receipt_is_refused_where_the_device_lacks_it() {
    under("profile=p5").run(|t| {
        let config = Config {
            ..Config::default()
        };
        match Pair::new(t, config)
            .map(drop)
            .map_err(|error| error.downcast::<Error>())
        {
            Err(Ok(error)) => ensure!(error.to_string().contains("unsolicited"), "{error}"),
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    });
}
