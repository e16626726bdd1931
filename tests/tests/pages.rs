//! Page tables: many pages as one operation.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, Test, done, run, under};
use efa_transport::future::Handle;
use efa_transport::{
    Await, Completion, Config, Endpoint, Error, FailureKind, Get, PageList, Put, Region,
};

const PAGE: u64 = 4096;
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Numbers from 0 in some order.
fn shuffled(t: &Test, count: u64) -> Vec<u64> {
    let (mut rng, mut numbers) = (t.rng(), (0..count).collect::<Vec<_>>());
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, rng.below(at as u64 + 1) as usize);
    }
    numbers
}

/// Whether page `ours` of one is page `theirs` of the other, for all pairs.
fn same(pairs: &[(u64, u64)], here: &Region, there: &Region) -> Result<()> {
    let (here, there) = (here.to_vec(..)?, there.to_vec(..)?);
    let page = |bytes: &[u8], at: u64| bytes[(at * PAGE) as usize..][..PAGE as usize].to_vec();
    for &(ours, theirs) in pairs {
        ensure!(
            page(&here, ours) == page(&there, theirs),
            "{ours}, {theirs}"
        );
    }
    Ok(())
}

/// Waits at `at` while `by` makes progress too.
fn both(
    at: &mut Endpoint,
    by: &mut Endpoint,
    operation: efa_transport::OperationId,
) -> Result<Completion> {
    let late = Instant::now() + Duration::from_secs(60);
    loop {
        by.poll(drop)?;
        match at.wait(operation, Some(Duration::from_millis(1))) {
            Err(Error::TimedOut(_)) if Instant::now() < late => {}
            completion => return Ok(completion?),
        }
    }
}

#[test]
fn pages_in_any_order_are_one_operation_and_its_immediate_comes_once_after_all() {
    under("max-rdma-size=8192 faults=loss=0.02,dup=0.05,reorder=32").run(|t| {
        const PAGES: u64 = 1500;
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes((PAGES * PAGE) as usize);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let pairs: Vec<_> = (0..PAGES).rev().zip(shuffled(t, PAGES)).collect();
        let pages = PageList::new(&source, target.remote()?, PAGE, pairs.iter().copied())?;
        ensure!((pages.len(), pages.bytes()) == (PAGES as usize, PAGES * PAGE));
        for value in 7..9 {
            let put = pair
                .a
                .submit(Put::pages(pair.ab, &pages).immediate(value))?;
            let all = pair.b.submit(Await::new(value, 1))?;
            let told = both(&mut pair.b, &mut pair.a, all)?;
            told.result?;
            same(&pairs, &source, &target)?;
            let completion = done(&mut pair.a, put)?;
            ensure!(completion.bytes == PAGES * PAGE && completion.tag == 0);
            pair.b.poll(drop)?;
            ensure!(pair.b.immediate_count(value) == 0, "it came twice");
        }
        // And back, into other memory.
        let back = pair.region(&vec![0; bytes.len()])?;
        let pages = PageList::new(&back, target.remote()?, PAGE, pairs.iter().copied())?;
        let get = pair.a.submit(Get::pages(pair.ab, &pages))?;
        ensure!(done(&mut pair.a, get)?.bytes == PAGES * PAGE);
        ensure!(back.to_vec(..)? == bytes);
        drop(pages);
        ensure!(back.is_idle(), "something holds the memory");
        Ok(())
    });
}

/// Parts of any length, from several regions, some longer than a request.
#[test]
fn parts_of_several_regions_are_one_operation() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes(40_000);
        let (one, other) = (pair.region(&bytes)?, pair.region(&bytes)?);
        let target = pair.region(&vec![0; 80_000])?;
        let remote = target.remote()?;
        let parts = [
            (one.slice(..30_000)?, remote.slice(40_000..70_000)?),
            (other.slice(..10)?, remote.slice(..10)?),
            (one.slice(30_000..)?, remote.slice(70_000..)?),
            (other.slice(10..10)?, remote.slice(..0)?),
            (other.slice(10..)?, remote.slice(10..40_000)?),
        ];
        let pages = PageList::parts(parts)?;
        let put = pair.a.submit(Put::pages(pair.ab, &pages))?;
        ensure!(done(&mut pair.a, put)?.bytes == 80_000);
        ensure!(target.to_vec(..40_000)? == bytes && target.to_vec(40_000..)? == bytes);
        Ok(())
    });
}

#[test]
fn a_transfer_of_pages_to_oneself_is_copied() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let own = pair.a.connect(pair.a.address())?;
        let bytes = t.rng().bytes(16 * PAGE as usize);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let pairs: Vec<_> = (0..16).zip(shuffled(t, 16)).collect();
        let pages = PageList::new(&source, target.remote()?, PAGE, pairs.iter().copied())?;
        let put = pair.a.submit(Put::pages(own, &pages))?;
        ensure!(done(&mut pair.a, put)?.bytes == 16 * PAGE);
        same(&pairs, &source, &target)
    });
}

#[test]
fn what_is_wrong_with_a_list_is_told_and_nothing_is_posted() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 40_000])?, pair.region(&[0; 20_000])?);
        let remote = target.remote()?;
        let list = |page, pairs: &[(u64, u64)]| {
            PageList::new(&source, remote, page, pairs.iter().copied()).map(drop)
        };
        ensure!(matches!(list(PAGE, &[]), Err(Error::EmptyList)));
        for page in [0, 20_001, u64::MAX] {
            ensure!(
                matches!(list(page, &[(0, 0)]), Err(Error::PageSize { .. })),
                "{page}"
            );
        }
        for (pairs, told) in [
            (
                [(0, 0), (9, 0)],
                "part 1 of the list: there is no local page 9: there are 9",
            ),
            (
                [(8, 4), (0, 0)],
                "part 0 of the list: there is no remote page 4: there are 4",
            ),
            (
                [(0, u64::MAX), (0, 0)],
                "no remote page 18446744073709551615",
            ),
        ] {
            let Err(error) = list(PAGE, &pairs) else {
                bail!("{pairs:?}");
            };
            ensure!(error.to_string().contains(told), "{error}");
        }
        // A great many, of which all but the first few are wrong.
        let endless = PageList::new(&source, remote, PAGE, (0..u64::MAX).map(|at| (at, 0)));
        ensure!(
            matches!(endless, Err(Error::Part { at: 9, .. })),
            "{endless:?}"
        );
        let unequal = PageList::parts([(source.slice(..10)?, remote.slice(..11)?)]);
        ensure!(matches!(unequal, Err(Error::Part { at: 0, .. })));
        ensure!(matches!(PageList::parts([]), Err(Error::EmptyList)));
        let pages = PageList::new(&source, remote, PAGE, [(0, 0)])?;
        let added = pair.a.batch(|batch| batch.add(Put::pages(pair.ab, &pages)));
        ensure!(matches!(added, Err(Error::NotInBatch)), "{added:?}");
        let foreign = t.domain()?.register(
            efa_transport::Buffer::zeroed(40_000)?,
            efa_transport::Access::LOCAL,
        )?;
        let pages = PageList::new(&foreign, remote, PAGE, [(0, 0)])?;
        let put = pair.a.submit(Put::pages(pair.ab, &pages));
        ensure!(matches!(put, Err(Error::ForeignRegion)), "{put:?}");
        ensure!(pair.a.stats().requests == 0);
        Ok(())
    });
}

/// A page whose key is worth nothing fails the operation, and its failure tells the place.
#[test]
fn a_page_that_fails_is_told_by_its_place_and_the_endpoint_goes_on() {
    run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[1; 40_960])?, pair.region(&[0; 40_960])?);
        let remote = target.remote()?;
        let nobody = efa_transport::RemoteRegion::new(remote.addr(), PAGE, remote.rkey() ^ 0x5a5a)?;
        let parts = (0..10u64).map(|at| {
            let to = match at {
                6 => nobody,
                _ => remote.slice(at * PAGE..(at + 1) * PAGE)?,
            };
            Ok((source.slice(at * PAGE..(at + 1) * PAGE)?, to))
        });
        let parts = parts.collect::<Result<Vec<_>, Error>>()?;
        let pages = PageList::parts(parts)?;
        let put = pair.a.submit(Put::pages(pair.ab, &pages).immediate(3))?;
        let Err(failure) = pair.a.wait(put, LIMIT)?.result else {
            bail!("it succeeded");
        };
        ensure!(failure.offset() == Some(6 * PAGE), "{failure}");
        pair.b.poll(drop)?;
        ensure!(pair.b.immediate_count(3) == 0, "it was told all the same");
        pair.works(&[5; 100])?;
        Ok(())
    });
}

#[test]
fn a_cancelled_transfer_of_pages_keeps_its_memory_until_the_device_is_done() {
    under("max-rdma-size=4096 faults=timeout=60s").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let length = 4000 * PAGE as usize;
        let (source, target) = (
            pair.region(&vec![1; length])?,
            pair.region(&vec![0; length])?,
        );
        t.set_faults("timeout=60s,cut=both")?;
        let pairs = (0..4000).map(|at| (at, at));
        let pages = PageList::new(&source, target.remote()?, PAGE, pairs)?;
        let soon = Instant::now() + Duration::from_millis(20);
        let put = pair.a.submit(Put::pages(pair.ab, &pages).deadline(soon))?;
        drop(pages);
        let Err(failure) = pair.a.wait(put, LIMIT)?.result else {
            bail!("it succeeded");
        };
        ensure!(failure.kind() == FailureKind::DeadlineExceeded, "{failure}");
        ensure!(!source.is_idle(), "the device may still read it");
        t.set_faults("timeout=60s")?;
        while !source.is_idle() {
            pair.a.poll(drop)?;
        }
        Ok(())
    });
}

/// A list outlives the caller's where a future waits for room.
#[test]
fn futures_of_pages_wait_for_room_with_lists_of_their_own() {
    run(|t| {
        let config = Config {
            events: true,
            max_operations: 2,
            ..Config::default()
        };
        let Pair {
            a, b, ab, domain, ..
        } = Pair::new(t, config)?;
        let bytes = t.rng().bytes(64 * PAGE as usize);
        let source = efa_tests::region(&domain, &bytes)?;
        let target = efa_tests::region(&domain, &vec![0; bytes.len()])?;
        let (handle, driver) = Handle::new(a)?;
        driver.spawn()?;
        let mut puts = Vec::new();
        for at in 0..16u64 {
            let pairs = (4 * at..4 * at + 4).map(|page| (page, page));
            let pages = PageList::new(&source, target.remote()?, PAGE, pairs)?;
            puts.push(handle.submit(Put::pages(ab, &pages)));
        }
        for put in puts {
            ensure!(put.wait()? == 4 * PAGE);
        }
        ensure!(target.to_vec(..)? == bytes);
        drop(b);
        Ok(())
    });
}
