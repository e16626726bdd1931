//! What once went wrong, each as a kind: waits without end, silent losses, names that reached others, and
//! what must not be reached through a descriptor or a fork.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, Test, done, ended, introduce, region, run, under};
use efa_transport::{
    Config, DataPath, Endpoint, Error, Full, Put, QpState, ReceivePool, Region, Send,
};
use efa_verbs::DeviceCapabilities;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Ends that must come, and nobody waits for ever.
fn until(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let ends = Instant::now() + Duration::from_secs(60);
    while !done()? {
        ensure!(Instant::now() < ends, "it did not come to an end");
    }
    Ok(())
}

fn pool(buffers: u32) -> Config {
    Config {
        receive_pool: ReceivePool {
            buffers,
            size: None,
        },
        ..Config::default()
    }
}

#[test]
fn what_cannot_end_is_refused_or_ends_with_its_cause() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        // Only a cancelled operation is left, which has told its end already.
        t.ctl()?.pause()?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        ensure!(pair.a.cancel(put) && !pair.a.cancel(put));
        ended(&mut pair.a, put)?.result.unwrap_err();
        let nothing = pair.a.wait_any(None);
        ensure!(
            matches!(nothing, Err(Error::NothingToWaitFor)),
            "{nothing:?}"
        );
        // Its memory is out of use once the device is done with it.
        ensure!(!source.is_idle());
        t.ctl()?.resume()?;
        until(|| {
            pair.a.poll(|_| {})?;
            Ok(source.is_idle())
        })?;
        ensure!(source.deregister().is_ok());
        Ok(())
    });
}

#[test]
fn names_of_another_endpoint_are_errors() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let mut a = Pair::on(&domain, Config::default())?;
        let mut b = Pair::on(&domain, Config::default())?;
        let (source, target) = (a.region(&[1; 64])?, a.region(&[0; 64])?);
        ensure!(a.ab != b.ab);
        for refused in [
            b.a.send(a.ab, b"to another's peer"),
            b.a.put(a.ab, &source, target.remote()?),
            b.a.batch(|batch| batch.add(Put::new(a.ab, &source, target.remote()?))),
        ] {
            ensure!(
                matches!(refused, Err(Error::PeerGone { peer, .. }) if peer == a.ab),
                "{refused:?}"
            );
        }
        let one = a.a.put(a.ab, &source, target.remote()?)?;
        let other = b.a.put(b.ab, &source, target.remote()?)?;
        ensure!(one != other);
        let wait = b.a.wait(one, PATIENCE);
        ensure!(
            matches!(wait, Err(Error::UnknownOperation(id)) if id == one),
            "{wait:?}"
        );
        ensure!(!b.a.cancel(one));
        done(&mut a.a, one)?;
        done(&mut b.a, other)?;
        Ok(())
    });
}

#[test]
fn no_immediate_of_eight_senders_is_lost_on_a_slow_receiver() {
    under("profile=p5en").run(|t| {
        const SENDERS: usize = 8;
        // `EFA_IMMEDIATES=100000` for as many of each sender.
        let each = std::env::var("EFA_IMMEDIATES").ok();
        let each: u64 = each.and_then(|each| each.parse().ok()).unwrap_or(2000);
        let domain = t.domain()?;
        let mut receiver = Endpoint::new(&domain, pool(16))?;
        let (source, target) = (region(&domain, &[1; 8])?, region(&domain, &[0; 8])?);
        let remote = target.remote()?;
        let mut senders = Vec::new();
        for _ in 0..SENDERS {
            let mut sender = Endpoint::new(&domain, Config::default())?;
            let (peer, _) = introduce(&mut sender, &mut receiver)?;
            senders.push((sender, peer, 0u64, 0u64));
        }
        let all = each * SENDERS as u64;
        let ends = Instant::now() + Duration::from_secs(240);
        let mut round = 0u64;
        while senders.iter().any(|&(.., ended)| ended < each) {
            ensure!(Instant::now() < ends, "{:?}", receiver.stats());
            for (sender, peer, begun, ended) in &mut senders {
                sender.batch(|batch| {
                    while *begun < each && batch.room() > 0 {
                        batch.add(Put::new(*peer, &source, remote).immediate(5))?;
                        *begun += 1;
                    }
                    Ok::<_, Error>(())
                })?;
                sender.poll(|done| {
                    assert!(done.result.is_ok(), "{done:?}");
                    *ended += 1;
                })?;
            }
            // It looks now and then only.
            round += 1;
            if round.is_multiple_of(8) {
                receiver.poll(|_| {})?;
            }
        }
        until(|| {
            receiver.poll(|_| {})?;
            Ok(receiver.immediate_count(5) == all)
        })?;
        ensure!(receiver.stats().immediates == all && receiver.stats().immediates_lost == 0);
        let overruns = t.counters()?.get("cq_overruns");
        ensure!(overruns == 0, "completion queues were overrun");
        Ok(())
    });
}

#[test]
fn what_is_sent_to_a_receiver_that_does_not_poll_waits_and_is_not_lost() {
    under("profile=p5en").run(|t| {
        const MANY: u64 = 9000;
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let remote = target.remote()?;
        for _ in 0..MANY {
            pair.a
                .submit(Put::new(pair.ab, &source, remote).immediate(5))?;
        }
        let looks = Instant::now() + Duration::from_secs(1);
        let mut ended = 0;
        while Instant::now() < looks {
            ended += pair
                .a
                .poll(|done| assert!(done.result.is_ok(), "{done:?}"))?;
        }
        // The device holds them back: no more than the pool has buffers have gone.
        ensure!(ended <= 128, "{ended} have ended");
        until(|| {
            pair.b.poll(|_| {})?;
            ended += pair
                .a
                .poll(|done| assert!(done.result.is_ok(), "{done:?}"))?;
            Ok(ended as u64 == MANY && pair.b.immediate_count(5) == MANY)
        })
    });
}

#[test]
fn a_hundred_senders_of_default_configuration_reach_one_receiver() {
    under("profile=p5en").run(|t| {
        let domain = t.domain()?;
        let mut receiver = Endpoint::new(&domain, Config::default())?;
        let (source, target) = (region(&domain, &[1; 8])?, region(&domain, &[0; 8])?);
        let waiting = receiver.await_immediate(1, 100)?;
        let mut senders = Vec::new();
        for _ in 0..100 {
            let mut sender = Endpoint::new(&domain, Config::default())?;
            let (peer, _) = introduce(&mut sender, &mut receiver)?;
            let put = Put::new(peer, &source, target.remote()?).immediate(1);
            senders.push((sender.submit(put)?, sender));
        }
        done(&mut receiver, waiting)?;
        for (put, mut sender) in senders {
            done(&mut sender, put)?;
        }
        Ok(())
    });
}

#[test]
fn kept_messages_hold_senders_back_and_wake_a_sleeping_endpoint_when_dropped() {
    run(|t| {
        let config = Config {
            events: true,
            ..pool(2)
        };
        let mut pair = Pair::new(t, config)?;
        let mut sends = HashSet::new();
        for text in [b"1", b"2", b"3"] {
            sends.insert(pair.a.send(pair.ab, text)?);
        }
        let kept = [
            pair.b.wait_message(PATIENCE)?,
            pair.b.wait_message(PATIENCE)?,
        ];
        let none = pair.b.wait_message(Some(Duration::from_millis(100)));
        ensure!(matches!(none, Err(Error::TimedOut(_))), "{none:?}");
        // Asleep, with no receive posted: another thread wakes it.
        while !pair.b.arm()? {
            pair.b.poll(|_| {})?;
        }
        let dropping = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            let mut texts = kept.map(|message| message.to_vec());
            texts.sort();
            texts
        });
        let mut poll = libc::pollfd {
            fd: pair.b.as_fd().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, valid for the call.
        let ready = unsafe { libc::poll(&mut poll, 1, 30_000) };
        ensure!(ready == 1, "nobody woke it");
        let mut texts = dropping
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))?
            .to_vec();
        let third = pair.b.wait_message(PATIENCE)?;
        texts.push(third.to_vec());
        texts.sort();
        ensure!(texts == [b"1", b"2", b"3"], "{texts:?}");
        for send in sends {
            done(&mut pair.a, send)?;
        }
        // It outlives its endpoint.
        drop(pair.b);
        ensure!(third.len() == 1);
        Ok(())
    });
}

#[test]
fn messages_to_oneself_are_bounded_and_go_on_when_some_are_taken() {
    run(|t| {
        let mut endpoint = Endpoint::new(&t.domain()?, pool(2))?;
        let own = endpoint.connect(endpoint.address())?;
        for _ in 0..3 {
            let sends = [endpoint.send(own, b"1")?, endpoint.send(own, b"2")?];
            let full = endpoint.send(own, b"3");
            ensure!(matches!(full, Err(Error::Full(Full::Messages))), "{full:?}");
            for send in sends {
                done(&mut endpoint, send)?;
            }
            let full = endpoint.submit(Send::bytes(own, b"3"));
            ensure!(matches!(full, Err(Error::Full(Full::Messages))), "{full:?}");
            ensure!(endpoint.wait_message(PATIENCE)?.len() == 1);
            ensure!(endpoint.wait_message(PATIENCE)?.len() == 1);
        }
        Ok(())
    });
}

/// Puts a queue pair into the error state behind its owner's back.
fn break_pair(endpoint: &Endpoint) -> Result<()> {
    let pair = endpoint.queue_pair().as_raw();
    // SAFETY: plain integers.
    let mut attr: efa_sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = efa_sys::IBV_QPS_ERR;
    // SAFETY: the queue pair is alive, `attr` valid for the call.
    let broken = unsafe { efa_sys::ibv_modify_qp(pair, &mut attr, efa_sys::IBV_QP_STATE as i32) };
    ensure!(broken == 0, "ibv_modify_qp: {broken}");
    Ok(())
}

#[test]
fn a_queue_pair_in_error_fails_no_poll_tells_all_ends_and_can_be_rebuilt() {
    for path in [DataPath::Libefa, DataPath::Auto] {
        under("max-rdma-size=4096").run(|t| {
            t.need_soft_efa()?;
            let config = Config {
                path,
                ..Config::default()
            };
            let mut pair = Pair::new(t, config)?;
            let source = pair.region(&vec![1; 1 << 20])?;
            let target = pair.region(&vec![0; 1 << 20])?;
            let mut open = HashSet::new();
            for _ in 0..600 {
                open.insert(pair.a.put(pair.ab, &source, target.remote()?)?);
            }
            break_pair(&pair.a)?;
            until(|| {
                pair.a.poll(|done| assert!(open.remove(&done.operation)))?;
                Ok(open.is_empty())
            })?;
            let message = pair.a.wait_message(PATIENCE);
            ensure!(
                matches!(message, Err(Error::ReceivesStopped)),
                "{message:?}"
            );
            let wait = pair.a.await_immediate(1, 1)?;
            let ended = pair.a.wait(wait, PATIENCE);
            ensure!(matches!(ended, Err(Error::ReceivesStopped)), "{ended:?}");
            ensure!(pair.a.queue_pair().state()? == QpState::Err && pair.a.recover()?);
            let ab = pair.a.connect(pair.b.address())?;
            pair.b.connect(pair.a.address())?;
            pair.ab = ab;
            pair.works(&[3; 1000])
        });
    }
}

#[test]
fn reading_the_endpoints_descriptor_takes_nothing_away() {
    run(|t| {
        let config = Config {
            events: true,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        while !pair.a.arm()? {
            pair.a.poll(|_| {})?;
        }
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        std::thread::sleep(Duration::from_millis(50));
        let copy = pair.a.as_fd().try_clone_to_owned()?;
        let mut bytes = [0u8; 64];
        // SAFETY: the buffer is as long as the call says.
        let read = unsafe { libc::read(copy.as_raw_fd(), bytes.as_mut_ptr().cast(), 64) };
        ensure!(read == -1, "{read} bytes were read");
        done(&mut pair.a, put)?;
        drop(pair);
        Ok(())
    });
}

#[test]
fn times_beyond_what_the_clock_can_tell_are_for_ever() {
    run(|t| {
        let config = Config {
            spin: Duration::MAX,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        for _ in 0..3 {
            let put = pair.a.put(pair.ab, &source, target.remote()?)?;
            pair.a.wait(put, Some(Duration::MAX))?.result?;
        }
        pair.a.put(pair.ab, &source, target.remote()?)?;
        pair.a.wait_all(Some(Duration::MAX))?;
        pair.a.wait_any(Some(Duration::MAX))?.result?;
        ensure!(pair.a.close(Duration::MAX).is_clean());
        Ok(())
    });
}

/// The time that it takes to end so many waiting operations of so many peers.
fn ending(t: &Test, peers: u32, each: u32, one_by_one: bool) -> Result<Duration> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, Config::default())?;
    let (source, target) = (region(&domain, &[1; 8])?, region(&domain, &[0; 8])?);
    let mut names = Vec::new();
    let mut open = Vec::new();
    for number in 1..=peers {
        let address = efa_transport::EndpointAddress::new(domain.gid(), 60_000 - number, 7)?;
        let peer = endpoint.connect(address)?;
        names.push(peer);
        for _ in 0..each {
            open.push(endpoint.put(peer, &source, target.remote()?)?);
        }
    }
    let begun = Instant::now();
    if one_by_one {
        for &operation in open.iter().rev() {
            endpoint.cancel(operation);
        }
    } else {
        for peer in names {
            endpoint.disconnect(peer)?;
        }
    }
    Ok(begun.elapsed())
}

/// Sixteen times as much work may take sixteen times as long, and some more, but not 256 times.
#[test]
fn ending_many_operations_costs_in_proportion_to_their_number() {
    under("").run(|t| {
        let _opened = t.domain()?;
        t.ctl()?.pause()?;
        for one_by_one in [false, true] {
            let little = ending(t, 100, 15, one_by_one)?.max(Duration::from_micros(200));
            let much = ending(t, 1600, 15, one_by_one)?;
            ensure!(much < little * 100, "{little:?} and {much:?}");
        }
        Ok(())
    });
}

/// What a forked child finds out, as its exit status.
fn in_child(mut endpoint: Endpoint, put: Put<'_>) -> i32 {
    let forked = |result: Result<(), Error>| matches!(result, Err(Error::Forked));
    let peer = endpoint.peers().next().map(|(peer, _)| peer);
    let all = forked(endpoint.submit(put).map(drop))
        && forked(endpoint.try_submit(put).map(drop))
        && forked(endpoint.batch(|batch| batch.add(put)).map(drop))
        && forked(endpoint.poll(|_| {}).map(drop))
        && forked(endpoint.wait_any(None).map(drop))
        && forked(endpoint.wait_message(None).map(drop))
        && forked(endpoint.rebuild())
        && peer.is_some_and(|peer| forked(endpoint.send(peer, b"hello").map(drop)));
    // What it inherited is the parent's: this must destroy nothing.
    drop(endpoint);
    i32::from(!all)
}

#[test]
fn a_forked_child_is_refused_and_destroys_nothing() {
    under("").run(|t| {
        let Pair {
            a,
            mut b,
            ab,
            domain,
            ..
        } = Pair::new(t, Config::default())?;
        let mut a = Some(a);
        let (source, target) = (region(&domain, &[1; 4096])?, region(&domain, &[0; 4096])?);
        let remote = target.remote()?;
        // SAFETY: this process has one thread that matters to the child, which does nothing but calls
        // that are refused, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let code = a
                    .take()
                    .map_or(2, |a| in_child(a, Put::new(ab, &source, remote)));
                // SAFETY: ends the child without running what the parent has registered.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = 0;
                // SAFETY: waits for our own child.
                unsafe { libc::waitpid(child, &mut status, 0) };
                ensure!(status == 0, "the child ended with {status:#x}");
            }
        }
        let Some(mut a) = a else { bail!("it is here") };
        for byte in 10..13 {
            source.copy_in(0, &[byte; 4096])?;
            let put = a.submit(Put::new(ab, &source, remote).immediate(1))?;
            done(&mut a, put)?;
            ensure!(target.to_vec(..)? == [byte; 4096]);
        }
        let arrived = b.await_immediate(1, 3)?;
        done(&mut b, arrived)?;
        Ok(())
    });
}

#[test]
fn a_region_is_idle_once_its_operations_are_out_of_the_device() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let source: Region = pair.region(&[1; 100_000])?;
        let target = pair.region(&[0; 100_000])?;
        t.ctl()?.pause()?;
        pair.a.put(pair.ab, &source, target.remote()?)?;
        ensure!(!source.is_idle());
        // With the endpoint go its requests.
        t.ctl()?.resume()?;
        drop(pair.a);
        ensure!(source.is_idle() && source.deregister().is_ok());
        Ok(())
    });
}
