//! Dropping anything right after posting is harmless: the device's objects live until the
//! completion, or until the queue pair is gone. soft-efa's object counts prove it.

use anyhow::{Result, ensure};
use efa_tests::{Pair, Test, done, under};
use efa_transport::{Config, Endpoint, FailureKind};

const LENGTH: usize = 100_000;

fn count(t: &Test, kind: &str) -> Result<u64> {
    Ok(t.objects()?.get(kind).copied().unwrap_or(0))
}

#[test]
fn a_region_dropped_after_posting_lives_until_the_completion() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes(LENGTH);
        let target = pair.region(&vec![0; LENGTH])?;
        let without = count(t, "mr")?;
        // The device stands still, so that the requests are under way while the region goes.
        t.ctl()?.pause()?;
        let source = pair.region(&bytes)?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        drop(source);
        ensure!(
            count(t, "mr")? == without + 1,
            "the region is gone while it is in use"
        );
        t.ctl()?.resume()?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == bytes);
        ensure!(count(t, "mr")? == without, "the region was kept");
        Ok(())
    });
}

#[test]
fn a_peer_disconnected_after_posting_keeps_its_handle_until_the_completion() {
    under("max-rdma-size=1000000").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        // The other end has the same device as its peer, in the same domain: one handle for both.
        pair.b.disconnect(pair.ba)?;
        let ah = count(t, "ah")?;
        ensure!(ah == 1, "{ah} handles");
        let bytes = t.rng().bytes(LENGTH);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; LENGTH])?);
        t.ctl()?.pause()?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        pair.a.disconnect(pair.ab)?;
        ensure!(
            count(t, "ah")? == 1,
            "the handle is gone while it is in use"
        );
        t.ctl()?.resume()?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == bytes);
        ensure!(count(t, "ah")? == 0, "the handle was kept");
        Ok(())
    });
}

#[test]
fn an_endpoint_dropped_after_posting_takes_everything_with_it_and_nothing_else() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        pair.works(&[1; 100])?;
        let target = pair.region(&vec![0; LENGTH])?;
        // Memory that an endpoint registers for itself goes with it.
        let without = count(t, "mr")?;
        let other = Endpoint::new(&pair.domain, Config::default())?;
        let own = count(t, "mr")? - without;
        drop(other);
        let (qp, cq, mr) = (count(t, "qp")?, count(t, "cq")?, count(t, "mr")?);
        let source = pair.region(&vec![9; LENGTH])?;
        t.ctl()?.pause()?;
        pair.a.put(pair.ab, &source, target.remote()?)?;
        drop(source);
        ensure!(count(t, "mr")? == mr + 1);
        drop(pair.a);
        t.ctl()?.resume()?;
        ensure!(count(t, "qp")? == qp - 1, "the queue pair lives on");
        ensure!(count(t, "cq")? < cq, "the completion queues live on");
        ensure!(count(t, "mr")? == mr - own, "the region lives on");
        // The other endpoint is as before.
        let mut again = Pair::on(&pair.domain, Config::default())?;
        again.works(&[2; 1000])?;
        ensure!(pair.b.queue_pair().state()? == efa_verbs::QpState::Rts);
        Ok(())
    });
}

#[test]
fn a_cancelled_operation_keeps_its_memory_until_the_device_is_done() {
    under("max-rdma-size=1000000").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let target = pair.region(&vec![0; LENGTH])?;
        let without = count(t, "mr")?;
        t.ctl()?.pause()?;
        let source = pair.region(&vec![9; LENGTH])?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        drop(source);
        ensure!(pair.a.cancel(put));
        let failure = pair.a.wait(put, None)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::Cancelled, "{failure}");
        ensure!(failure.requests_in_flight() == 1, "{failure}");
        ensure!(
            count(t, "mr")? == without + 1,
            "the region is gone while it is in use"
        );
        t.ctl()?.resume()?;
        let ends = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while count(t, "mr")? != without {
            ensure!(std::time::Instant::now() < ends, "the region was kept");
            pair.a.poll(|_| {})?;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    });
}
