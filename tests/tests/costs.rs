//! What grows with the number of peers and operations grows no faster than that number.

use std::time::Duration;

use anyhow::{Result, ensure};
use efa_tests::{alone, region, under};
use efa_transport::{Await, Config, Domain, Endpoint, EndpointAddress, Gid, OperationId, PeerId};

/// By how much the larger case is larger.
const TIMES: u32 = 8;
/// What is as many times as costly as it is large stays below; what scans all for each comes to 64.
const BOUND: u32 = 4 * TIMES;

/// Processor time of this thread: other programs of this machine don't add to it.
fn cpu() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The least time that `work` takes on what `prepare` makes, of a few.
fn least<T>(
    mut prepare: impl FnMut() -> Result<T>,
    mut work: impl FnMut(&mut T) -> Result<()>,
) -> Result<Duration> {
    let mut least = Duration::MAX;
    for _ in 0..3 {
        let mut made = prepare()?;
        let before = cpu();
        work(&mut made)?;
        least = least.min(cpu() - before);
    }
    Ok(least)
}

fn grows_with_its_number(small: Duration, large: Duration) -> Result<()> {
    ensure!(
        large <= small * BOUND,
        "{small:?}, and {large:?} for {TIMES} times as many"
    );
    Ok(())
}

/// An endpoint with so many peers that are not there, and so many operations that wait.
fn busy(domain: &Domain, peers: u32, operations: u32) -> Result<Endpoint> {
    let mut endpoint = Endpoint::new(domain, Config::default())?;
    for number in 0..peers {
        let host = 100 + (number % 4) as u8;
        let gid = Gid::from_bytes(soft_efa::gid::gid_of([127, 0, 0, host].into()));
        endpoint.connect(EndpointAddress::new(gid, 1000 + number, 0x4242)?)?;
    }
    for value in 0..operations {
        endpoint.submit(Await::new(value, 1))?;
    }
    Ok(endpoint)
}

const PEERS: u32 = 500;
const OPERATIONS: u32 = 7500;

#[test]
fn the_cost_of_a_rebuild_grows_with_the_number_of_peers_and_operations_not_with_its_square() {
    alone().run(|t| {
        t.need_soft_efa()?;
        let domain = t.domain()?;
        let cost = |times: u32| {
            least(
                || busy(&domain, PEERS * times, OPERATIONS * times),
                |endpoint| {
                    endpoint.rebuild()?;
                    ensure!(endpoint.peers().count() == 0);
                    Ok(())
                },
            )
        };
        grows_with_its_number(cost(1)?, cost(TIMES)?)
    });
}

#[test]
fn the_cost_of_a_cancel_does_not_grow_with_the_number_of_operations_that_wait() {
    alone().run(|t| {
        let domain = t.domain()?;
        // Each waits for a value of its own, or all for the same one.
        for distinct in [true, false] {
            let cost = |times: u32| {
                least(
                    || {
                        let mut endpoint = Endpoint::new(&domain, Config::default())?;
                        let waits = (0..OPERATIONS * times)
                            .map(|i| endpoint.submit(Await::new(if distinct { i } else { 0 }, 1)))
                            .collect::<Result<Vec<_>, _>>()?;
                        Ok((endpoint, waits))
                    },
                    |(endpoint, waits)| {
                        // From the back: the one in front waits on until the end.
                        for wait in waits.iter().rev() {
                            ensure!(endpoint.cancel(*wait), "{wait} was over");
                        }
                        Ok(())
                    },
                )
            };
            grows_with_its_number(cost(1)?, cost(TIMES)?)?;
        }
        Ok(())
    });
}

/// Operations to each peer, so that the device has some and others wait behind them.
const EACH: u32 = 15;

#[test]
fn the_cost_of_ending_transfers_grows_with_their_number_not_with_its_square() {
    under("").run(|t| {
        let domain = t.domain()?;
        let (source, target) = (region(&domain, &[1; 8])?, region(&domain, &[0; 8])?);
        t.ctl()?.pause()?;
        let prepare = |peers: u32| {
            let mut endpoint = Endpoint::new(&domain, Config::default())?;
            let mut names = Vec::new();
            let mut open = Vec::new();
            for number in 1..=peers {
                let address = EndpointAddress::new(domain.gid(), 60_000 - number, 7)?;
                let peer = endpoint.connect(address)?;
                names.push(peer);
                for _ in 0..EACH {
                    open.push(endpoint.put(peer, &source, target.remote()?)?);
                }
            }
            Ok((endpoint, names, open))
        };
        let disconnect = |(endpoint, peers, _): &mut (Endpoint, Vec<PeerId>, Vec<OperationId>)| {
            for &peer in peers.iter() {
                endpoint.disconnect(peer)?;
            }
            Ok(())
        };
        let cancel = |(endpoint, _, open): &mut (Endpoint, Vec<PeerId>, Vec<OperationId>)| {
            for &operation in open.iter().rev() {
                endpoint.cancel(operation);
            }
            Ok(())
        };
        for work in [&disconnect as &dyn Fn(&mut _) -> Result<()>, &cancel] {
            let cost = |times: u32| least(|| prepare(PEERS / 5 * times), work);
            grows_with_its_number(cost(1)?, cost(TIMES)?)?;
        }
        Ok(())
    });
}
