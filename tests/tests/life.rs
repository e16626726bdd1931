//! The end of operations and endpoints, recovery, sleeping, and transfers to oneself.

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use efa_tests::{Pair, Test, done, ended, region, run, under};
use efa_transport::{Config, Endpoint, Error, FailureKind, Gone, Put, ReceivePool};
use efa_verbs::{DeviceCapabilities, QpState};

#[test]
fn closing_waits_for_what_is_under_way() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes(2_000_000);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let put = pair
            .a
            .submit(Put::new(pair.ab, &source, target.remote()?).tag(3))?;
        let closed = pair.a.close(Duration::from_secs(60));
        ensure!(closed.is_clean(), "{closed:?}");
        ensure!(closed.completions.len() == 1 && closed.completions[0].operation == put);
        ensure!(target.to_vec(..)? == bytes);
        Ok(())
    });
}

#[test]
fn closing_at_its_deadline_says_what_did_not_finish() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        pair.works(&[1; 100])?;
        let (source, target) = (pair.region(&[1; 2_000_000])?, pair.region(&[0; 2_000_000])?);
        t.ctl()?.pause()?;
        for tag in 0..3 {
            pair.a
                .submit(Put::new(pair.ab, &source, target.remote()?).tag(tag))?;
        }
        let began = Instant::now();
        let closed = pair.a.close(Duration::from_millis(200));
        ensure!(
            began.elapsed() < Duration::from_secs(10),
            "{:?}",
            began.elapsed()
        );
        t.ctl()?.resume()?;
        let mut tags: Vec<u64> = closed
            .unfinished()
            .map(|completion| completion.tag)
            .collect();
        tags.sort_unstable();
        ensure!(tags == [0, 1, 2], "{closed:?}");
        Ok(())
    });
}

#[test]
fn an_operation_past_its_deadline_ends_and_the_endpoint_goes_on() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 100])?, pair.region(&[0; 100])?);
        t.ctl()?.pause()?;
        let at = Instant::now() + Duration::from_millis(50);
        let put = Put::new(pair.ab, &source, target.remote()?).deadline(at);
        let put = pair.a.submit(put)?;
        let failure = ended(&mut pair.a, put)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::DeadlineExceeded, "{failure}");
        ensure!(failure.requests_in_flight() == 1, "{failure}");
        t.ctl()?.resume()?;
        for _ in 0..5 {
            pair.works(&[1; 10_000])?;
        }
        ensure!(pair.a.stats().stale_completions == 0);
        Ok(())
    });
}

#[test]
fn a_rebuilt_endpoint_fails_what_was_under_way_and_works_after_connecting_again() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        pair.works(&[1; 10_000])?;
        let (source, target) = (pair.region(&[1; 100_000])?, pair.region(&[0; 100_000])?);
        let before = pair.a.address();
        ensure!(!pair.a.recover()?, "a healthy endpoint was rebuilt");
        t.ctl()?.pause()?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        t.ctl()?.resume()?;
        pair.a.rebuild()?;
        let completion = ended(&mut pair.a, put)?;
        // It may have been quicker than the rebuild.
        if let Err(failure) = completion.result {
            ensure!(failure.kind() == FailureKind::QueuePairLost, "{failure}");
        }
        ensure!(pair.a.address() != before);
        let old = pair.a.put(pair.ab, &source, target.remote()?);
        match old {
            Err(Error::PeerGone { reason, .. }) => ensure!(reason == Gone::Rebuilt),
            other => anyhow::bail!("{other:?}"),
        }
        pair.ab = pair.a.connect(pair.b.address())?;
        pair.ba = pair.b.connect(pair.a.address())?;
        for _ in 0..3 {
            pair.works(&[2; 100_000])?;
        }
        let stats = pair.a.stats();
        ensure!(
            stats.rebuilds == 1 && stats.stale_completions == 0,
            "{stats:?}"
        );
        Ok(())
    });
}

#[test]
fn endpoints_that_come_and_go_never_complete_each_others_operations() {
    under("max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let target = region(&domain, &[0; 50_000])?;
        for round in 0..30u8 {
            // Numbers are reused while requests of the last owner are still under way.
            let mut pair = Pair::on(&domain, Config::default())?;
            let source = pair.region(&[round; 50_000])?;
            pair.a.put(pair.ab, &source, target.remote()?)?;
            if round % 3 == 0 {
                pair.works(&[round; 20_000])?;
                ensure!(pair.a.stats().stale_completions == 0);
            }
        }
        Ok(())
    });
}

fn to_oneself(t: &Test, profile: &str) -> Result<()> {
    let domain = t.domain()?;
    let is = t.soft_efa()?.and_then(|options| options.profile);
    ensure!(is.is_some_and(|name| name.as_str() == profile), "{is:?}");
    let config = Config {
        receive_pool: ReceivePool {
            buffers: 8,
            size: None,
        },
        ..Config::default()
    };
    let mut endpoint = Endpoint::new(&domain, config)?;
    let me = endpoint.connect(endpoint.address())?;
    let can = domain.attributes().capabilities;
    let bytes = t.rng().bytes(300_000);
    let (source, target) = (
        region(&domain, &bytes)?,
        region(&domain, &vec![0; bytes.len()])?,
    );
    if can.contains(DeviceCapabilities::RDMA_WRITE) {
        let put = endpoint.put(me, &source, target.remote()?)?;
        ensure!(done(&mut endpoint, put)?.bytes == 300_000);
        ensure!(target.to_vec(..)? == bytes);
    }
    if can.contains(DeviceCapabilities::RDMA_READ) {
        target.copy_in(0, &vec![0; bytes.len()])?;
        let get = endpoint.get(me, &target, source.remote()?)?;
        done(&mut endpoint, get)?;
        ensure!(target.to_vec(..)? == bytes);
    }
    let send = endpoint.send(me, b"hello, me")?;
    done(&mut endpoint, send)?;
    let message = endpoint.wait_message(Some(Duration::from_secs(30)))?;
    ensure!(&message[..] == b"hello, me");
    Ok(())
}

#[test]
fn a_transfer_to_oneself_works_on_c5n() {
    under("profile=c5n").run(|t| to_oneself(t, "c5n"));
}

#[test]
fn a_transfer_to_oneself_works_on_p4d() {
    under("profile=p4d").run(|t| to_oneself(t, "p4d"));
}

#[test]
fn a_transfer_to_oneself_works_on_p5() {
    under("profile=p5").run(|t| to_oneself(t, "p5"));
}

#[test]
fn a_transfer_to_oneself_works_on_p5en() {
    under("profile=p5en").run(|t| to_oneself(t, "p5en"));
}

#[test]
fn a_transfer_to_oneself_works_on_p6() {
    under("profile=p6").run(|t| {
        if efa_verbs::efa_symbol_version() < 5 {
            let reason = "libefa knows devices of the p6 generation from rdma-core 63 on";
            return Err(efa_tests::skip(reason));
        }
        to_oneself(t, "p6")
    });
}

#[test]
fn a_program_can_sleep_until_something_completes() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        let config = Config {
            events: true,
            spin: Duration::ZERO,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 1000])?, pair.region(&[0; 1000])?);
        for tag in 0..100 {
            let put = pair
                .a
                .submit(Put::new(pair.ab, &source, target.remote()?).tag(tag))?;
            let mut all = Vec::new();
            loop {
                pair.a.poll(|completion| all.push(completion))?;
                if !all.is_empty() {
                    break;
                }
                if pair.a.arm()? {
                    let mut poll = libc::pollfd {
                        fd: pair.a.as_fd().as_raw_fd(),
                        events: libc::POLLIN,
                        revents: 0,
                    };
                    // SAFETY: one entry, valid for the call.
                    let ready = unsafe { libc::poll(&mut poll, 1, 30_000) };
                    ensure!(ready == 1, "the event of put {tag} was lost");
                }
            }
            ensure!(all.len() == 1 && all[0].operation == put);
        }
        // And by the blocking calls, which sleep by themselves.
        for _ in 0..100 {
            pair.works(&[1; 100])?;
        }
        let mut plain = Endpoint::new(&pair.domain, Config::default())?;
        ensure!(matches!(plain.arm(), Err(Error::NoEvents)));
        Ok(())
    });
}

#[test]
fn one_endpoint_per_thread_on_a_shared_domain_with_shared_memory() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let bytes = t.rng().bytes(100_000);
        let source = region(&domain, &bytes)?;
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (domain, source, bytes) = (domain.clone(), source.clone(), bytes.clone());
                std::thread::spawn(move || -> Result<()> {
                    let mut pair = Pair::on(&domain, Config::default())?;
                    for _ in 0..20 {
                        let target = pair.region(&vec![0; bytes.len()])?;
                        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
                        done(&mut pair.a, put)?;
                        ensure!(target.to_vec(..)? == bytes);
                    }
                    ensure!(pair.a.queue_pair().state()? == QpState::Rts);
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        ensure!(domain.address_handles() == 0, "handles outlive their peers");
        Ok(())
    });
}

/// The bytes could be copied; the other endpoint could not be told.
#[test]
fn a_put_with_immediate_to_another_endpoint_of_a_p4d_fails_with_its_cause() {
    under("profile=p4d").run(|t| {
        let domain = t.domain()?;
        let mut a = Endpoint::new(&domain, Config::default())?;
        let mut b = Endpoint::new(&domain, Config::default())?;
        let ab = a.connect(b.address())?;
        b.connect(a.address())?;
        let (source, target) = (region(&domain, &[5; 64])?, region(&domain, &[0; 64])?);
        let put = a.submit(Put::new(ab, &source, target.remote()?).immediate(7))?;
        let failure = ended(&mut a, put)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::NoLoopback, "{failure}");
        b.poll(|_| {})?;
        ensure!(target.to_vec(..)? == [0; 64] && b.immediate_count(7) == 0);
        Ok(())
    });
}
