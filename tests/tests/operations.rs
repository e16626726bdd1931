//! Operations: one completion each, of any size, fair to each other.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use anyhow::ensure;
use efa_tests::{Pair, done, ended, run, under};
use efa_transport::{
    Await, Completion, Config, DataPath, EndpointAddress, Error, Full, Get, Kind, OperationId, Put,
    ReceivePool, Region, RemoteRegion,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn an_operation_completes_once_whatever_the_number_of_its_requests() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let mut rng = t.rng();
        let mut open = Vec::new();
        for tag in 0..50u64 {
            let length = rng.below(100_000) as usize;
            let bytes = rng.bytes(length + 1);
            let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; length + 1])?);
            let put = tag % 2 == 0;
            let id = if put {
                pair.a.submit(
                    Put::new(pair.ab, source.slice(..length as u64)?, target.remote()?).tag(tag),
                )?
            } else {
                pair.a.submit(
                    Get::new(
                        pair.ab,
                        target.slice(..length as u64)?,
                        source.remote()?.slice(..length as u64)?,
                    )
                    .tag(tag),
                )?
            };
            open.push((id, put, bytes, source, target, length as u64));
        }
        let mut all: Vec<Completion> = Vec::new();
        while all.len() < open.len() {
            all.push(pair.a.wait_any(PATIENCE)?);
        }
        // Nothing comes after that.
        std::thread::sleep(Duration::from_millis(50));
        pair.a.poll(|completion| all.push(completion))?;
        let ids: HashSet<OperationId> = all.iter().map(|completion| completion.operation).collect();
        ensure!(
            ids.len() == open.len() && all.len() == open.len(),
            "{} of {}",
            ids.len(),
            all.len()
        );
        for completion in all {
            let (id, put, bytes, _, target, length) = &open[completion.tag as usize];
            ensure!(completion.operation == *id && completion.peer == Some(pair.ab));
            ensure!(completion.kind == if *put { Kind::Put } else { Kind::Get });
            ensure!(completion.bytes == *length, "{completion:?}");
            completion.result?;
            ensure!(target.to_vec(..length)? == bytes[..*length as usize]);
        }
        let again = pair.a.wait(open[0].0, PATIENCE);
        ensure!(
            matches!(again, Err(Error::UnknownOperation(id)) if id == open[0].0),
            "{again:?}"
        );
        ensure!(matches!(
            pair.a.wait_any(PATIENCE),
            Err(Error::NothingToWaitFor)
        ));
        let stats = pair.a.stats();
        ensure!(stats.operations == 50 && stats.failed == 0, "{stats:?}");
        ensure!(
            stats.bytes == open.iter().map(|open| open.5).sum::<u64>(),
            "{stats:?}"
        );
        Ok(())
    });
}

#[test]
fn a_list_of_pairs_is_one_operation() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes(50_000);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; 50_000])?);
        // Scattered, in another order, some of them empty.
        let pieces = [
            (0u64, 20_000u64, 100u64),
            (40_000, 0, 5000),
            (30_000, 100, 1),
            (5, 5, 0),
        ];
        let mut pairs = Vec::new();
        for (from, to, length) in pieces {
            pairs.push((
                source.slice(from..from + length)?,
                target.remote()?.slice(to..to + length)?,
            ));
        }
        let put = pair.a.submit(Put::parts(pair.ab, &pairs).tag(9))?;
        let completion = done(&mut pair.a, put)?;
        ensure!(
            completion.tag == 9 && completion.bytes == 5101,
            "{completion:?}"
        );
        let got = target.to_vec(..)?;
        let mut expected = vec![0; 50_000];
        for (from, to, length) in pieces {
            let (from, to, length) = (from as usize, to as usize, length as usize);
            expected[to..to + length].copy_from_slice(&bytes[from..from + length]);
        }
        ensure!(got == expected);
        let empty = pair.a.submit(Put::parts(pair.ab, &[]));
        ensure!(matches!(empty, Err(Error::EmptyList)), "{empty:?}");
        Ok(())
    });
}

#[test]
fn waiting_with_a_deadline_leaves_the_operation_alone() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[5; 100])?, pair.region(&[0; 100])?);
        t.ctl()?.pause()?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        let short = Duration::from_millis(50);
        let waited = pair.a.wait(put, Some(short));
        ensure!(
            matches!(waited, Err(Error::TimedOut(told)) if told == short),
            "{waited:?}"
        );
        let waited = pair.a.wait_any(Some(short));
        ensure!(matches!(waited, Err(Error::TimedOut(_))), "{waited:?}");
        t.ctl()?.resume()?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == [5; 100]);
        Ok(())
    });
}

#[test]
fn a_transfer_flows_through_a_queue_of_the_smallest_depth() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            send_depth: 1,
            receive_pool: ReceivePool {
                buffers: 1,
                size: None,
            },
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let depth = pair.a.limits().depth;
        let bytes = t.rng().bytes(1_000_000);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == bytes);
        let stats = pair.a.stats();
        ensure!(stats.requests == 1_000_000u64.div_ceil(4096), "{stats:?}");
        ensure!(stats.depth_high_water <= depth, "{stats:?}");
        let back = pair.region(&vec![0; bytes.len()])?;
        let get = pair.a.get(pair.ab, &back, target.remote()?)?;
        done(&mut pair.a, get)?;
        ensure!(back.to_vec(..)? == bytes);
        Ok(())
    });
}

/// Requests of one operation in a row.
const QUANTUM: u64 = 8;

/// The bound: requests that are posted between the start of a short operation and its completion,
/// while a long one wants all the room. The short one waits for at most one turn of the long one
/// to be posted, and then takes its time in the device, while what it overtakes or
/// meets there, a queue full at most, is replaced.
#[test]
fn a_long_put_does_not_starve_a_short_one() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            send_depth: 64,
            ..Config::default()
        };
        let bound = QUANTUM + 4 * u64::from(config.send_depth);
        let mut pair = Pair::new(t, config)?;
        const LONG: usize = 24 << 20;
        let source = pair.region(&vec![1; LONG])?;
        let target = pair.region(&vec![0; LONG])?;
        let (small, other) = (pair.region(&[2; 8])?, pair.region(&[0; 8])?);
        let long = pair.a.put(pair.ab, &source, target.remote()?)?;
        for round in 0..5 {
            for _ in 0..20 {
                pair.a.poll(|_| {})?;
            }
            let before = pair.a.stats().requests;
            let short = pair
                .a
                .submit(Put::new(pair.ab, &small, other.remote()?).tag(1))?;
            done(&mut pair.a, short)?;
            let meanwhile = pair.a.stats().requests - before;
            ensure!(
                meanwhile <= bound,
                "round {round}: {meanwhile} requests, the bound is {bound}"
            );
        }
        ensure!(
            pair.a.stats().live == 1,
            "the long one was over before the test"
        );
        done(&mut pair.a, long)?;
        ensure!(other.to_vec(..)? == [2; 8]);
        Ok(())
    });
}

#[test]
fn a_peer_that_does_not_answer_holds_up_nobody_else() {
    under("max-rdma-size=4096 faults=timeout=1s,cut=out:127.0.0.77").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        // A device that no packet reaches.
        let gid = soft_efa::gid::gid_of("127.0.0.77".parse()?);
        let gid = efa_transport::Gid::from_bytes(gid);
        let nobody = pair.a.connect(EndpointAddress::new(gid, 999, 0x4242)?)?;
        let (source, target) = (pair.region(&[1; 40_000])?, pair.region(&[0; 40_000])?);
        let lost = pair.a.put(nobody, &source, target.remote()?)?;
        for _ in 0..20 {
            pair.works(&[3; 30_000])?;
        }
        // Those were done while the lost one still waited: it ends by the device's patience.
        let failure = ended(&mut pair.a, lost)?.result.unwrap_err();
        let status = failure.vendor_status();
        ensure!(status == Some(15), "{failure}");
        ensure!(
            failure
                .peer_address()
                .is_some_and(|address| address.gid() == gid),
            "{failure}"
        );
        pair.works(&[4; 30_000])
    });
}

#[test]
fn both_directions_at_once_do_not_mix() {
    run(|t| {
        t.need(
            efa_verbs::DeviceCapabilities::RDMA_READ | efa_verbs::DeviceCapabilities::RDMA_WRITE,
        )?;
        let mut pair = Pair::new(t, Config::default())?;
        let mut rng = t.rng();
        for _ in 0..10 {
            let (x, y) = (rng.bytes(70_000), rng.bytes(70_000));
            let (source_a, source_b) = (pair.region(&x)?, pair.region(&y)?);
            let (target_a, target_b) = (pair.region(&[0; 70_000])?, pair.region(&[0; 70_000])?);
            let there = pair.a.put(pair.ab, &source_a, target_b.remote()?)?;
            let back = pair.b.put(pair.ba, &source_b, target_a.remote()?)?;
            done(&mut pair.a, there)?;
            done(&mut pair.b, back)?;
            ensure!(target_a.to_vec(..)? == y && target_b.to_vec(..)? == x);
        }
        Ok(())
    });
}

#[test]
fn short_operations_share_a_lane_and_each_is_told_of_once() {
    for path in [DataPath::Libefa, DataPath::Auto] {
        under("").run(|t| {
            let config = Config {
                path,
                ..Config::default()
            };
            let mut pair = Pair::new(t, config)?;
            let bytes = t.rng().bytes(4096);
            let (first, second) = (pair.region(&bytes)?, pair.region(&bytes)?);
            let target = pair.region(&[0; 4096])?;
            let remote = target.remote()?;
            let mut told = HashSet::new();
            for round in 0..50 {
                let ids: Vec<OperationId> = pair.a.batch(|batch| {
                    // Runs of three with either region.
                    (0..12u64)
                        .map(|i| {
                            let region = if i / 3 % 2 == 0 { &first } else { &second };
                            let part = i * 64..(i + 1) * 64;
                            batch.add(
                                Put::new(pair.ab, region.slice(part.clone())?, remote.slice(part)?)
                                    .tag(round * 12 + i),
                            )
                        })
                        .collect::<Result<_, Error>>()
                })?;
                let before = told.len();
                while told.len() < before + ids.len() {
                    pair.a.poll(|completion| {
                        assert!(completion.result.is_ok(), "{completion:?}");
                        assert_eq!((completion.peer, completion.bytes), (Some(pair.ab), 64));
                        let place = (completion.tag - round * 12) as usize;
                        assert_eq!(completion.operation, ids[place]);
                        assert!(told.insert(completion.tag), "told twice: {completion:?}");
                    })?;
                }
            }
            ensure!(target.to_vec(..768)? == bytes[..768]);
            let stats = pair.a.peer(pair.ab)?;
            ensure!(
                stats.operations == 600 && stats.bytes == 600 * 64 && stats.in_flight == 0,
                "{stats:?}"
            );
            // Nothing of them is left that would keep the memory.
            ensure!(first.deregister().is_ok() && second.deregister().is_ok());
            Ok(())
        });
    }
}

#[test]
fn requests_of_all_kinds_and_regions_share_a_batch() {
    for path in [DataPath::Libefa, DataPath::Auto] {
        under("").run(|t| {
            let config = Config {
                path,
                ..Config::default()
            };
            let mut pair = Pair::new(t, config)?;
            let bytes = t.rng().bytes(4096);
            let (first, second) = (pair.region(&bytes)?, pair.region(&bytes)?);
            let back = pair.region(&[0; 4096])?;
            let target = pair.region(&[0; 4096])?;
            let (ab, remote) = (pair.ab, target.remote()?);
            let part = |i: u64| i * 256..(i + 1) * 256;
            let watched = pair.b.submit(Await::new(77, 2))?;
            for round in 0..20 {
                let mut told = HashSet::new();
                let posted: u32 = pair.a.batch(|batch| -> anyhow::Result<u32> {
                    let put = |region, i| -> anyhow::Result<Put> {
                        let region: &Region = region;
                        Ok(Put::new(ab, region.slice(part(i))?, remote.slice(part(i))?).tag(i))
                    };
                    for i in 0..4 {
                        batch.add(put(&first, i)?)?;
                    }
                    // Another region, and the first one again.
                    batch.add(put(&second, 4)?)?;
                    batch.add(put(&first, 5)?)?;
                    batch.add(put(&first, 6)?)?;
                    if round < 2 {
                        batch.add(put(&second, 7)?.immediate(77))?;
                    }
                    Ok(batch.len())
                })?;
                ensure!(posted == if round < 2 { 8 } else { 7 });
                while told.len() < posted as usize {
                    pair.a.poll(|done| {
                        assert!(done.result.is_ok(), "{done:?}");
                        assert_eq!((done.peer, done.bytes), (Some(ab), 256));
                        assert!(told.insert(done.tag), "told twice: {done:?}");
                    })?;
                }
            }
            done(&mut pair.b, watched)?;
            let all = 8 * 256;
            ensure!(target.to_vec(..all)? == bytes[..all as usize]);
            // Reads, into the places that the writes came from.
            pair.a.batch(|batch| {
                for i in 0..8 {
                    let (here, there) = (back.slice(part(i))?, remote.slice(part(i))?);
                    batch.add(Get::new(ab, here, there).tag(i))?;
                }
                Ok::<_, Error>(())
            })?;
            pair.a.wait_all(None)?;
            pair.a
                .poll(|done| assert!(done.result.is_ok(), "{done:?}"))?;
            ensure!(back.to_vec(..all)? == bytes[..all as usize]);
            for region in [first, second, back] {
                ensure!(region.deregister().is_ok(), "something keeps the region");
            }
            Ok(())
        });
    }
}

#[test]
fn a_batch_has_room_for_copies_and_requests_together() {
    under("").run(|t| {
        let config = Config {
            send_depth: 8,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[7; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        let (to_b, depth) = (pair.ab, pair.a.limits().depth);
        let to_itself = pair.a.connect(pair.a.address())?;
        for given_up in [true, false, true, false] {
            let posted = pair.a.batch(|batch| {
                // Those to itself are copied, and have no requests.
                for number in 0..depth {
                    assert_eq!((batch.len(), batch.room()), (number, depth - number));
                    let peer = if number < depth / 2 { to_itself } else { to_b };
                    batch.add(Put::new(peer, &source, remote))?;
                }
                assert_eq!((batch.len(), batch.room()), (depth, 0));
                for peer in [to_itself, to_b] {
                    let refused = batch.add(Put::new(peer, &source, remote));
                    assert!(
                        matches!(refused, Err(Error::Full(Full::SendQueue { .. }))),
                        "{refused:?}"
                    );
                }
                match given_up {
                    true => Err(Error::EmptyList), // any error
                    false => Ok(batch.len()),
                }
            });
            ensure!(posted.is_err() == given_up);
            let mut ended = 0;
            while !given_up && ended < depth {
                pair.a.poll(|done| {
                    assert!(done.result.is_ok(), "{done:?}");
                    ended += 1;
                })?;
            }
            let stats = pair.a.stats();
            ensure!((stats.free_credits, stats.live) == (depth, 0), "{stats:?}");
        }
        ensure!(target.to_vec(..)? == [7; 64]);
        Ok(())
    });
}

#[test]
fn failures_among_operations_of_a_batch_are_told_as_often_as_they_are_counted() {
    for path in [DataPath::Libefa, DataPath::Auto] {
        under("").run(|t| {
            let config = Config {
                path,
                ..Config::default()
            };
            let mut pair = Pair::new(t, config)?;
            let (first, second) = (pair.region(&[1; 64])?, pair.region(&[2; 64])?);
            let target = pair.region(&[0; 64])?;
            let remote = target.remote()?;
            let nowhere = RemoteRegion::new(remote.addr(), remote.len(), remote.rkey() ^ 0xff00)?;
            let ab = pair.ab;
            let mut rng = t.rng();
            for _ in 0..30 {
                let mut wrong = HashSet::new();
                let count = pair.a.batch(|batch| -> anyhow::Result<u64> {
                    let count = rng.below(20) + 1;
                    for tag in 0..count {
                        let region = if rng.one_in(2) { &first } else { &second };
                        let remote = if rng.one_in(3) {
                            wrong.insert(tag);
                            nowhere
                        } else {
                            remote
                        };
                        batch.add(Put::new(ab, region, remote).tag(tag))?;
                    }
                    Ok(count)
                })?;
                let (mut told, mut counted) = (HashSet::new(), 0);
                while counted < count {
                    let before = told.len();
                    let taken = pair.a.poll(|done| {
                        assert!(told.insert(done.tag), "told twice: {done:?}");
                        assert_eq!(done.peer, Some(ab));
                        assert_eq!(done.result.is_err(), wrong.contains(&done.tag), "{done:?}");
                    })?;
                    ensure!(told.len() - before == taken, "{taken} were counted");
                    counted += taken as u64;
                }
                ensure!(
                    told.len() as u64 == count
                        && pair.a.stats().free_credits == pair.a.limits().depth
                );
            }
            ensure!(pair.a.stats().live == 0);
            ensure!(first.deregister().is_ok() && second.deregister().is_ok());
            Ok(())
        });
    }
}

#[test]
fn a_panic_while_completions_are_taken_loses_none_of_the_others() {
    for path in [DataPath::Libefa, DataPath::Auto] {
        under("").run(|t| {
            let config = Config {
                path,
                ..Config::default()
            };
            let mut pair = Pair::new(t, config)?;
            let source = pair.region(&[7; 64])?;
            let target = pair.region(&[0; 64])?;
            let remote = target.remote()?;
            pair.a.batch(|batch| {
                for tag in 0..8 {
                    batch.add(Put::new(pair.ab, &source, remote).tag(tag))?;
                }
                Ok::<_, Error>(())
            })?;
            let (mut told, mut panicked) = (HashSet::new(), false);
            while told.len() < 8 {
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    pair.a.poll(|completion| {
                        assert!(told.insert(completion.tag));
                        if told.len() == 3 {
                            // Without the hook's message: this one is on purpose.
                            resume_unwind(Box::new("enough"));
                        }
                    })
                }));
                match polled {
                    Ok(polled) => drop(polled?),
                    Err(_) => panicked = true,
                }
            }
            ensure!(panicked && pair.a.stats().live == 0);
            ensure!(pair.a.stats().free_credits == pair.a.limits().depth);
            ensure!(pair.a.stats().operations == 8 && source.deregister().is_ok());
            Ok(())
        });
    }
}
