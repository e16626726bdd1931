//! What goes wrong while many operations are under way concerns those that it must, and no other;
//! and queues as small as they can be carry everything.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use efa_tests::{Pair, Test, under};
use efa_transport::{
    Completion, Config, Error, FailureKind, Get, OperationId, Put, ReceivePool, Region, Send,
};

const LENGTH: usize = 4096;

/// Operations of every kind under way at once, and the memory that they work on.
struct Many {
    pair: Pair,
    source: Region,
    target: Region,
    open: HashSet<OperationId>,
}

impl Many {
    fn new(t: &Test, config: Config) -> Result<Self> {
        let pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[7; LENGTH])?, pair.region(&[0; LENGTH])?);
        Ok(Self {
            pair,
            source,
            target,
            open: HashSet::new(),
        })
    }

    /// Begins operations of one request each, `count` of each kind that needs no receiver.
    fn begin(&mut self, count: u64) -> Result<()> {
        let remote = self.target.remote()?;
        for tag in 0..count {
            let Pair { a, ab, .. } = &mut self.pair;
            self.open
                .insert(a.submit(Put::new(*ab, &self.source, remote).tag(tag))?);
            self.open
                .insert(a.submit(Get::new(*ab, &self.source, remote).tag(tag))?);
        }
        Ok(())
    }

    /// Waits until all have ended, each exactly once.
    fn end(&mut self) -> Result<Vec<Completion>> {
        let mut all = Vec::new();
        let ends = Instant::now() + Duration::from_secs(60);
        while !self.open.is_empty() {
            ensure!(Instant::now() < ends, "never ended: {:?}", self.open);
            let mut some = Vec::new();
            self.pair.a.poll(|completion| some.push(completion))?;
            for completion in some {
                ensure!(
                    self.open.remove(&completion.operation),
                    "twice, or never begun: {completion:?}"
                );
                all.push(completion);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let mut more = Vec::new();
        self.pair.a.poll(|completion| more.push(completion))?;
        ensure!(more.is_empty(), "{more:?}");
        ensure!(self.pair.a.stats().live == 0 && self.pair.a.stats().stale_completions == 0);
        Ok(all)
    }
}

fn failures(all: &[Completion]) -> Vec<u32> {
    all.iter()
        .filter_map(|completion| completion.result.as_ref().err())
        .map(|failure| failure.vendor_status().unwrap_or(0))
        .collect()
}

#[test]
fn every_status_among_many_operations_under_way_ends_its_own_alone() {
    under("max-rdma-size=4096").run(|t| {
        let mut many = Many::new(t, Config::default())?;
        for status in (1..=15).chain([18]) {
            t.ctl()?.pause()?;
            let fifth = many.pair.a.stats().requests + 5;
            t.set_faults(&format!("status={status}@{fifth}"))?;
            many.begin(8)?;
            t.ctl()?.resume()?;
            let all = many.end()?;
            t.set_faults("")?;
            let failed = failures(&all);
            ensure!(
                failed == [status],
                "status {status} among 16 operations: {failed:?}"
            );
        }
        many.pair.works(&[1; 50_000])
    });
}

#[test]
fn a_device_that_stops_for_a_while_loses_nothing() {
    under("max-rdma-size=4096").run(|t| {
        let mut many = Many::new(t, Config::default())?;
        for _ in 0..3 {
            many.begin(10)?;
            t.ctl()?.pause()?;
            many.begin(10)?;
            for _ in 0..20 {
                many.pair.a.poll(|_| {})?;
            }
            t.ctl()?.resume()?;
            // Those that were polled away while it stood still have ended too.
            let ends = Instant::now() + Duration::from_secs(60);
            while many.pair.a.stats().live > 0 {
                ensure!(Instant::now() < ends);
                many.pair.a.poll(|_| {})?;
            }
            many.open.clear();
        }
        let stats = many.pair.a.stats();
        ensure!(stats.operations == 120 && stats.failed == 0, "{stats:?}");
        Ok(())
    });
}

#[test]
fn a_cut_link_fails_what_is_under_way_and_nothing_afterwards() {
    under("max-rdma-size=4096 faults=timeout=400ms").run(|t| {
        let mut many = Many::new(t, Config::default())?;
        for cut in ["both", "out", "in"] {
            t.ctl()?.pause()?;
            t.set_faults(&format!("timeout=400ms,cut={cut}"))?;
            many.begin(8)?;
            t.ctl()?.resume()?;
            let failed = failures(&many.end()?);
            ensure!(failed.len() == 16, "cut={cut}: {failed:?}");
            ensure!(
                failed.iter().all(|status| [13, 15].contains(status)),
                "cut={cut}: {failed:?}"
            );
            t.set_faults("timeout=400ms")?;
            many.begin(8)?;
            let failed = failures(&many.end()?);
            ensure!(failed.is_empty(), "after cut={cut}: {failed:?}");
        }
        Ok(())
    });
}

#[test]
fn a_cut_link_that_heals_in_time_fails_nothing() {
    under("max-rdma-size=4096 faults=timeout=20s").run(|t| {
        let mut many = Many::new(t, Config::default())?;
        t.set_faults("timeout=20s,cut=both")?;
        many.begin(20)?;
        std::thread::sleep(Duration::from_millis(300));
        t.set_faults("timeout=20s")?;
        let failed = failures(&many.end()?);
        ensure!(failed.is_empty(), "{failed:?}");
        ensure!(t.counters()?.get("packets_cut") > 0);
        Ok(())
    });
}

#[test]
fn a_slow_device_with_a_full_queue_loses_nothing() {
    under("max-rdma-size=4096 faults=slow=2000").run(|t| {
        let config = Config {
            send_depth: 8,
            ..Config::default()
        };
        let mut many = Many::new(t, config)?;
        many.begin(60)?;
        ensure!(many.pair.a.stats().waiting > 0, "nothing had to wait");
        let failed = failures(&many.end()?);
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    });
}

/// Requests that the device still holds when the queue pair goes into the error state come back
/// flushed, and a rebuilt endpoint works.
#[test]
fn a_queue_pair_in_the_error_state_is_recovered_with_operations_under_way() {
    under("max-rdma-size=4096").run(|t| {
        let mut many = Many::new(t, Config::default())?;
        ensure!(!many.pair.a.recover()?);
        t.ctl()?.pause()?;
        many.begin(5)?;
        let peer = many.pair.ab;
        let before = many.pair.a.address();
        many.pair.a.rebuild()?;
        t.ctl()?.resume()?;
        let all = many.end()?;
        ensure!(all.len() == 10);
        for completion in &all {
            let kind = completion.result.as_ref().map_err(|failure| failure.kind());
            ensure!(kind == Err(FailureKind::QueuePairLost), "{completion:?}");
        }
        ensure!(many.pair.a.address() != before);
        let put = many.pair.a.put(peer, &many.source, many.target.remote()?);
        ensure!(matches!(put, Err(Error::PeerGone { .. })), "{put:?}");
        many.pair.ab = many.pair.a.connect(many.pair.b.address())?;
        many.pair.ba = many.pair.b.connect(many.pair.a.address())?;
        many.begin(5)?;
        ensure!(failures(&many.end()?).is_empty());
        Ok(())
    });
}

// ---- queues as small as they can be -----------------------------------------------------

fn smallest() -> Config {
    Config {
        send_depth: 1,
        receive_pool: ReceivePool {
            buffers: 1,
            size: None,
        },
        max_operations: 4,
        ..Config::default()
    }
}

/// No completion was ever written over one that had not been polled.
fn nothing_overran(t: &Test) -> Result<()> {
    let counters = t.counters()?;
    ensure!(counters.get("cq_overruns") == 0, "{counters:?}");
    Ok(())
}

/// Begins an operation as soon as there is room, and waits for it while both ends poll. Returns
/// what has completed at the other end.
fn by_and_by(
    pair: &mut Pair,
    mut begin: impl FnMut(&mut Pair) -> Result<OperationId, Error>,
) -> Result<Vec<Completion>> {
    let ends = Instant::now() + Duration::from_secs(60);
    let mut there = Vec::new();
    let operation = loop {
        match begin(pair) {
            Ok(operation) => break operation,
            Err(error) if error.is_transient() && Instant::now() < ends => {
                pair.a.poll(|_| {})?;
                pair.b.poll(|completion| there.push(completion))?;
            }
            Err(error) => return Err(error.into()),
        }
    };
    loop {
        pair.b.poll(|completion| there.push(completion))?;
        match pair.a.wait(operation, Some(Duration::from_micros(200))) {
            Err(Error::TimedOut(_)) if Instant::now() < ends => {}
            ended => {
                ended?.result?;
                pair.b.poll(|completion| there.push(completion))?;
                return Ok(there);
            }
        }
    }
}

#[test]
fn the_smallest_queues_carry_operations_of_every_kind() {
    under("profile=p5en max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let mut pair = Pair::introduced(&domain, smallest())?;
        let bytes = t.rng().bytes(100_000);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let remote = target.remote()?;
        by_and_by(&mut pair, |p| p.a.put(p.ab, &source, remote))?;
        ensure!(target.to_vec(..)? == bytes);
        let back = pair.region(&vec![0; bytes.len()])?;
        by_and_by(&mut pair, |p| p.a.get(p.ab, &back, remote))?;
        ensure!(back.to_vec(..)? == bytes);
        for value in 0..50 {
            let small = source.slice(..64)?;
            by_and_by(&mut pair, |p| {
                p.a.submit(Put::new(p.ab, small, remote).immediate(value % 3))
            })?;
        }
        let counted: u64 = (0..3).map(|value| pair.b.immediate_count(value)).sum();
        ensure!(counted == 50, "{counted} of 50 immediates were counted");
        for length in [10u64, 2000] {
            let text = source.slice(..length)?;
            by_and_by(&mut pair, |p| p.a.submit(Send::new(p.ab, text)))?;
            let got = pair.b.wait_message(Some(Duration::from_secs(60)))?;
            ensure!(got[..] == bytes[..length as usize], "{got:?}");
        }
        nothing_overran(t)
    });
}

#[test]
fn a_pool_of_one_buffer_takes_any_number_of_messages() {
    under("profile=p5en").run(|t| {
        let config = Config {
            receive_pool: ReceivePool {
                buffers: 1,
                size: None,
            },
            ..smallest()
        };
        let mut pair = Pair::new(t, config)?;
        for i in 0..100u32 {
            let text = i.to_be_bytes();
            by_and_by(&mut pair, |p| p.a.send(p.ab, &text))?;
            let message = pair.b.wait_message(Some(Duration::from_secs(60)))?;
            ensure!(message[..] == text, "{message:?}");
        }
        nothing_overran(t)
    });
}

/// The completion queue is as large as what may be under way, not larger: whatever arrives and
/// ends while nobody polls must fit.
#[test]
fn completion_queues_hold_all_that_may_be_under_way_while_nobody_polls() {
    under("profile=p5en max-rdma-size=4096").run(|t| {
        for depth in [1, 2, 16, 32] {
            let config = Config {
                send_depth: depth,
                receive_pool: ReceivePool {
                    buffers: depth,
                    size: None,
                },
                ..Config::default()
            };
            let mut pair = Pair::introduced(&t.domain()?, config)?;
            let target = pair.region(&[0; 4096])?;
            let remote = target.remote()?;
            let source = pair.region(&[1; 4096])?;
            for _ in 0..depth {
                pair.a.submit(Send::new(pair.ab, source.slice(..8)?))?;
                pair.a
                    .submit(Put::new(pair.ab, &source, remote).immediate(1))?;
                pair.a.put(pair.ab, &source, remote)?;
            }
            // The sender goes on by itself, as far as it may; the receiver looks only then.
            let looks = Instant::now() + Duration::from_millis(300);
            while Instant::now() < looks {
                pair.a.poll(|_| {})?;
            }
            nothing_overran(t)?;
            let ends = Instant::now() + Duration::from_secs(60);
            let mut messages = 0;
            while pair.a.stats().live > 0 || messages < depth {
                ensure!(Instant::now() < ends, "{messages} received");
                pair.a.poll(|_| {})?;
                pair.b.poll(|_| {})?;
                while let Some(message) = pair.b.next_message() {
                    ensure!(message[..] == [1; 8], "{message:?}");
                    messages += 1;
                }
            }
            ensure!(pair.b.immediate_count(1) == u64::from(depth));
            ensure!(pair.a.stats().failed == 0, "{:?}", pair.a.stats());
            nothing_overran(t)?;
        }
        Ok(())
    });
}
