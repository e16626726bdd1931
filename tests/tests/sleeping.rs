//! Sleeping until something happens, on every side and for every kind of thing; and threads that
//! don't get in each other's way.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use efa_tests::{Pair, done, region, run, under};
use efa_transport::{Await, Completion, Config, Endpoint, Error, PeerId, Put, ReceivePool};
use efa_verbs::DeviceCapabilities;

/// How long an event may take. One that was lost takes for ever.
const LATE: i32 = 30_000;

fn config(spin: Duration) -> Config {
    Config {
        events: true,
        spin,
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        ..Config::default()
    }
}

fn sleepy() -> Config {
    config(Duration::ZERO)
}

/// Polls, and sleeps on the descriptor alone, until `done` says so.
fn sleep_until(
    endpoint: &mut Endpoint,
    mut done: impl FnMut(&mut Endpoint, &[Completion]) -> Result<bool>,
) -> Result<u64> {
    let mut sleeps = 0;
    let mut all = Vec::new();
    loop {
        all.clear();
        endpoint.poll(|completion| all.push(completion))?;
        if done(endpoint, &all)? {
            return Ok(sleeps);
        }
        if endpoint.arm()? {
            let mut poll = libc::pollfd {
                fd: endpoint.as_fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, valid for the call.
            let ready = unsafe { libc::poll(&mut poll, 1, LATE) };
            ensure!(ready == 1, "an event was lost");
            sleeps += 1;
        }
    }
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a plain struct that lives for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How often this thread has gone to sleep by itself.
fn sleeps() -> i64 {
    // SAFETY: all zeros is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it lives for the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw
}

/// Two threads throw a message to and fro. Each sleeps until it comes, so that arming and arriving
/// meet in every order there is.
#[test]
fn no_message_is_missed_between_arming_and_sleeping() {
    run(|t| {
        t.need_loopback()?;
        const ROUNDS: u32 = 500;
        let pair = Pair::on(&t.domain()?, sleepy())?;
        let play = |mut endpoint: Endpoint, peer: PeerId, begins: bool| -> Result<u64> {
            let mut sleeps = 0;
            for round in 0..ROUNDS {
                if begins || round > 0 {
                    endpoint.send(peer, &round.to_be_bytes())?;
                }
                sleeps += sleep_until(&mut endpoint, |endpoint, all| {
                    if let Some(bad) = all.iter().find(|done| done.result.is_err()) {
                        bail!("{bad:?}");
                    }
                    Ok(endpoint.next_message().is_some())
                })?;
            }
            if !begins {
                endpoint.send(peer, b"last")?;
            }
            endpoint.wait_all(Some(Duration::from_secs(30)))?;
            Ok(sleeps)
        };
        let Pair { a, b, ab, ba, .. } = pair;
        let other = std::thread::spawn(move || play(b, ba, false));
        let slept = play(a, ab, true)?;
        let also = other.join().map_err(|_| anyhow!("it panicked"))??;
        ensure!(slept + also > 0, "nobody ever slept");
        Ok(())
    });
}

#[test]
fn a_receiver_sleeps_until_immediates_have_landed() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let pair = Pair::on(&t.domain()?, sleepy())?;
        let (source, target) = (pair.region(&[1; 100])?, pair.region(&[0; 100])?);
        let remote = target.remote()?;
        let Pair {
            mut a, mut b, ab, ..
        } = pair;
        let sender = std::thread::spawn(move || -> Result<()> {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                let put = a.submit(Put::new(ab, &source, remote).immediate(9))?;
                done(&mut a, put)?;
            }
            Ok(())
        });
        let landed = b.submit(Await::new(9, 20).tag(4))?;
        let sleeps = sleep_until(&mut b, |_, all| {
            Ok(all.iter().any(|done| done.operation == landed))
        })?;
        ensure!(sleeps > 3, "it hardly slept: {sleeps}");
        sender.join().map_err(|_| anyhow!("it panicked"))?
    });
}

/// Each policy does what it says: one uses the core while it waits, the other does not.
#[test]
fn waiting_spins_and_then_sleeps_as_it_was_told() {
    under("max-rdma-size=4096").run(|t| {
        let waits = |policy, events| -> Result<(Duration, i64)> {
            let config = Config {
                events,
                ..config(policy)
            };
            let mut pair = Pair::new(t, config)?;
            let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
            t.ctl()?.pause()?;
            let put = pair.a.put(pair.ab, &source, target.remote()?)?;
            let (begun, used, slept) = (Instant::now(), cpu(), sleeps());
            let wait = pair.a.wait(put, Some(Duration::from_millis(400)));
            let (took, used, slept) = (begun.elapsed(), cpu() - used, sleeps() - slept);
            t.ctl()?.resume()?;
            ensure!(matches!(wait, Err(Error::TimedOut(_))), "{wait:?}");
            ensure!(took >= Duration::from_millis(400), "{took:?}");
            done(&mut pair.a, put)?;
            Ok((used, slept))
        };
        let sleep = Duration::from_millis(1);
        let (used, slept) = waits(sleep, true)?;
        ensure!(
            used < Duration::from_millis(50) && (1..20).contains(&slept),
            "asleep it used {used:?} and slept {slept} times"
        );
        // Without events it naps between polls.
        let (used, slept) = waits(sleep, false)?;
        ensure!(
            used < Duration::from_millis(200) && slept > 20,
            "napping it used {used:?} and slept {slept} times"
        );
        for policy in [Duration::MAX, Duration::from_secs(10)] {
            let (_, slept) = waits(policy, true)?;
            ensure!(slept <= 2, "spinning it slept {slept} times");
        }
        Ok(())
    });
}

#[test]
fn a_deadline_ends_an_operation_of_a_program_that_sleeps() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, sleepy())?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        t.ctl()?.pause()?;
        let at = Instant::now() + Duration::from_millis(100);
        let put = Put::new(pair.ab, &source, target.remote()?).deadline(at);
        let put = pair.a.submit(put)?;
        let used = cpu();
        let begun = Instant::now();
        let failure = pair.a.wait(put, None)?.result.unwrap_err();
        t.ctl()?.resume()?;
        ensure!(
            failure.kind() == efa_transport::FailureKind::DeadlineExceeded,
            "{failure}"
        );
        ensure!(begun.elapsed() >= Duration::from_millis(100));
        ensure!(cpu() - used < Duration::from_millis(50));
        Ok(())
    });
}

/// What a post costs a thread, while `count` of them post through endpoints of their own from
/// one shared region: the least of many rounds, in CPU time, so that others on the machine don't
/// count.
fn post_cost(t: &efa_tests::Test, count: usize) -> Result<Duration> {
    const BATCH: u32 = 128;
    const ROUNDS: usize = 30;
    let domain = t.domain()?;
    let shared = region(&domain, &[5; 64])?;
    let begin = Arc::new(Barrier::new(count));
    let threads: Vec<_> = (0..count)
        .map(|_| {
            let (domain, shared, begin) = (domain.clone(), shared.clone(), begin.clone());
            std::thread::spawn(move || -> Result<Duration> {
                let made = Pair::on(&domain, Config::default());
                begin.wait();
                let (mut pair, remote) = (made?, shared.remote()?);
                let mut least = Duration::MAX;
                for _ in 0..ROUNDS {
                    let (peer, used) = (pair.ab, cpu());
                    pair.a.batch(|batch| {
                        for tag in 0..BATCH {
                            batch.add(Put::new(peer, &shared, remote).tag(tag.into()))?;
                        }
                        Ok::<_, Error>(())
                    })?;
                    least = least.min((cpu() - used) / BATCH);
                    pair.a.wait_all(Some(Duration::from_secs(60)))?;
                    pair.a
                        .poll(|done| assert!(done.result.is_ok(), "{done:?}"))?;
                }
                Ok(least)
            })
        })
        .collect();
    let mut most = Duration::ZERO;
    for thread in threads {
        let least = thread.join().map_err(|_| anyhow!("a thread panicked"))?;
        most = most.max(least.context("a thread failed")?);
    }
    Ok(most)
}

/// Threads that share the device and the memory each post through their own endpoint, all at once.
/// What a post costs is printed, not judged: times differ from machine to machine.
#[test]
fn four_threads_post_from_one_region_at_once() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let alone = post_cost(t, 1)?;
        let four = post_cost(t, 4)?;
        println!("a post costs {alone:?} alone and {four:?} with four threads");
        Ok(())
    });
}
