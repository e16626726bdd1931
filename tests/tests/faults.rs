//! What once went wrong, each as a kind: waits without end, names that reached others, times beyond the
//! clock, and what a fork must not reach. (`immediates.rs` has silent losses, `costs.rs` costs out of
//! proportion.)

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, done, ended, region, run, under};
use efa_transport::{Await, Config, Endpoint, Error, Put, Region};
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
        let arrived = b.submit(Await::new(1, 3))?;
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
