//! Registered memory: what can be registered, for how long, and what is said where it can't.

use anyhow::{Context as _, Result, bail, ensure};
use efa_tests::{Pair, alone, done, refused as failed, run, under};
use efa_transport::registration::RegistrationCache;
use efa_transport::{Access, Buffer, CallerMemory, Config, Domain, Error, Region};
use efa_verbs::DeviceCapabilities;

const PAGE: u64 = 4096;

/// Pages of this process with some protection. They stay for its life, so that no mistake here could
/// do harm.
fn pages(count: u64, protection: i32) -> Result<u64> {
    // SAFETY: a new mapping takes nobody's addresses.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            (count * PAGE) as usize,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    ensure!(memory != libc::MAP_FAILED, std::io::Error::last_os_error());
    Ok(memory.expose_provenance() as u64)
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn caller(domain: &Domain) -> CallerMemory {
    // SAFETY: the tests pass on nothing but `pages`, which are never unmapped and that nobody refers to, and
    // memory that the kernel refuses.
    unsafe { CallerMemory::new(domain.protection_domain().clone()) }
}

/// Whether `text` is in the explanation of why the memory can't be registered.
fn refused(domain: &Domain, addr: u64, access: Access, text: &str) -> Result<()> {
    let error = match domain.register_at(&caller(domain), addr, PAGE, access) {
        Ok(_) => bail!("{text}: it was registered"),
        Err(error) => error,
    };
    ensure!(matches!(error, Error::Register { .. }), "{error}");
    let Some(why) = error.explain() else {
        bail!("no explanation of {error}");
    };
    ensure!(why.cause().contains(text), "{why}");
    ensure!(why.cause().contains(&format!("{addr:#x}")), "{why}");
    Ok(())
}

#[test]
fn memory_that_cannot_be_registered_is_explained_by_its_mapping() {
    run(|t| {
        let domain = t.domain()?;
        let reserved = pages(1, libc::PROT_NONE)?;
        refused(
            &domain,
            reserved,
            Access::LOCAL,
            "without the right to read",
        )?;
        refused(
            &domain,
            reserved,
            Access::LOCAL_READ,
            "without the right to read",
        )?;
        let read_only = pages(1, libc::PROT_READ)?;
        refused(&domain, read_only, Access::LOCAL, "for reading only")?;
        refused(&domain, PAGE, Access::LOCAL_READ, "Nothing is mapped")?;
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let kernel = maps.lines().find(|line| line.ends_with("[vvar]"));
        if let Some((start, _)) = kernel.and_then(|line| line.split_once('-')) {
            let start = u64::from_str_radix(start, 16)?;
            refused(&domain, start, Access::LOCAL, "not memory")?;
        }
        Ok(())
    });
}

#[test]
fn each_live_region_has_a_number_of_its_own_that_is_given_again() {
    alone().run(|t| {
        let domain = t.domain()?;
        let region = || domain.register(Buffer::zeroed(64)?, Access::LOCAL);
        let number = |region: &Region| {
            let text = format!("{region:?}");
            let (_, number) = text.split_once("number: ").unwrap_or_default();
            number.split(',').next().unwrap_or_default().to_owned()
        };
        let (a, b) = (region()?, region()?);
        let first = number(&a);
        ensure!(!first.is_empty() && first != number(&b), "{a:?} {b:?}");
        let clone = a.clone();
        ensure!(!a.is_idle() && b.is_idle());
        drop(a);
        ensure!(number(&region()?) != first, "it lives");
        ensure!(clone.is_idle() && clone.deregister().is_ok());
        ensure!(number(&region()?) == first);
        Ok(())
    });
}

#[test]
fn a_full_device_costs_the_oldest_registrations_that_are_not_in_use() {
    under("max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let start = pages(8, READ_WRITE)?;
        let mut cache = RegistrationCache::new(&domain, caller(&domain))?;
        let page = |index: u64| start + index * PAGE;
        let used = cache.get(page(0), PAGE, Access::LOCAL)?;
        cache.get(page(1), PAGE, Access::LOCAL)?;
        cache.get(page(2), PAGE, Access::LOCAL)?;
        // The fourth registration finds no room.
        t.set_faults("enomem=reg_mr@4")?;
        cache.get(page(3), PAGE, Access::LOCAL)?;
        t.set_faults("")?;
        ensure!(cache.stats().evictions == 1, "{:?}", cache.stats());
        // Page 1 was the oldest that nobody used.
        let misses = cache.stats().misses;
        for index in [0, 2, 3] {
            cache.get(page(index), PAGE, Access::LOCAL)?;
        }
        ensure!(cache.stats().misses == misses, "{:?}", cache.stats());
        cache.get(page(1), PAGE, Access::LOCAL)?;
        ensure!(cache.stats().misses == misses + 1, "{:?}", cache.stats());

        // A device that is full of what is in use can't be helped.
        t.set_faults("enomem=reg_mr:1")?;
        let full = cache.get(page(4), PAGE, Access::LOCAL);
        t.set_faults("")?;
        let Err(error) = full else {
            bail!("it was registered");
        };
        ensure!(matches!(error, Error::Register { .. }), "{error}");
        ensure!(
            error.explain().is_some_and(|why| why.is_transient()),
            "{error}"
        );
        ensure!(cache.len() == 1, "{cache:?}");
        ensure!(cache.get(page(0), PAGE, Access::LOCAL)?.region().rkey() == used.region().rkey());
        Ok(())
    });
}

#[test]
fn a_cache_registers_exactly_the_range_and_keeps_to_its_limits() {
    run(|t| {
        let domain = t.domain()?;
        let start = pages(16, READ_WRITE)?;
        let cache = RegistrationCache::new(&domain, caller(&domain))?;
        let mut cache = cache.max_entries(2).max_bytes(4 * PAGE);
        let large = cache.get(start + 100, 2 * PAGE, Access::LOCAL)?;
        ensure!(large.region().addr() == start + 100 && large.region().len() == 2 * PAGE);
        let part = cache.get(start + PAGE, 64, Access::LOCAL_READ)?;
        ensure!(part.region().rkey() == large.region().rkey() && part.slice().len() == 64);
        ensure!(part.slice().offset() == PAGE - 100);
        // One that contains it takes its place, one beyond the limit is not kept.
        let whole = cache.get(start, 4 * PAGE, Access::LOCAL)?;
        ensure!((cache.len(), cache.bytes()) == (1, 4 * PAGE), "{cache:?}");
        let beyond = cache.get(start, 5 * PAGE, Access::LOCAL)?;
        ensure!(beyond.region().len() == 5 * PAGE);
        ensure!((cache.len(), cache.bytes()) == (1, 4 * PAGE), "{cache:?}");
        for index in 8..12 {
            cache.get(start + index * PAGE, PAGE, Access::LOCAL)?;
            ensure!(cache.len() <= 2 && cache.bytes() <= 4 * PAGE, "{cache:?}");
        }
        ensure!(cache.stats().evictions == 3, "{:?}", cache.stats());

        // What was given up is registered for as long as somebody has it.
        let given_up = cache.invalidate(0, u64::MAX);
        ensure!(given_up.len() == 2 && cache.is_empty(), "{cache:?}");
        ensure!(whole.region().is_idle() && given_up.iter().all(Region::is_idle));
        Ok(())
    });
}

#[test]
fn ranges_that_no_memory_can_have_are_errors() {
    run(|t| {
        let domain = t.domain()?;
        let mut cache = RegistrationCache::new(&domain, caller(&domain))?;
        let overflow = cache.get(u64::MAX, 2, Access::LOCAL);
        ensure!(matches!(overflow, Err(Error::Overflow)), "{overflow:?}");
        let empty = cache.get(pages(1, READ_WRITE)?, 0, Access::LOCAL);
        ensure!(matches!(empty, Err(Error::Verbs(_))), "{empty:?}");
        ensure!(cache.invalidate(u64::MAX, u64::MAX).is_empty() && cache.is_empty());
        Ok(())
    });
}

#[test]
fn memory_of_another_domain_is_refused() {
    alone().run(|t| {
        let (one, other) = (t.domain()?, t.domain()?);
        let at = pages(1, READ_WRITE)?;
        let foreign = one.register_at(&caller(&other), at, PAGE, Access::LOCAL);
        ensure!(matches!(foreign, Err(Error::ForeignRegion)), "{foreign:?}");
        let cache = RegistrationCache::new(&one, caller(&other));
        ensure!(matches!(cache, Err(Error::ForeignRegion)), "{cache:?}");
        Ok(())
    });
}

// ---- memory that is for reading only ----------------------------------------------------------

#[test]
fn read_only_memory_is_sent_and_read_by_peers_and_never_written() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_READ)?;
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        let mut pair = Pair::new(t, Config::default())?;
        let at = pages(2, libc::PROT_READ)?;
        let local = |access| {
            pair.domain
                .register_at(&caller(&pair.domain), at, PAGE, access)
        };
        let (source, lent) = (local(Access::LOCAL_READ)?, local(Access::REMOTE_READ)?);
        ensure!(matches!(
            local(Access::REMOTE_WRITE),
            Err(Error::Register { .. })
        ));
        for region in [&source, &lent] {
            let copied = region.copy_in(0, b"x");
            ensure!(copied.is_err(), "{copied:?}");
            ensure!(region.to_vec(..8)? == [0; 8]);
            let again = region.register_again(Access::LOCAL);
            ensure!(again.is_err(), "{again:?}");
        }
        let target = pair.region(&[7; PAGE as usize])?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == [0; PAGE as usize]);
        target.copy_in(0, &[7; PAGE as usize])?;
        let get = pair.a.get(pair.ab, &target, lent.remote()?)?;
        done(&mut pair.a, get)?;
        ensure!(target.to_vec(..)? == [0; PAGE as usize]);
        let into = pair.a.get(pair.ab, &lent, target.remote()?);
        ensure!(matches!(into, Err(Error::ReadOnlyRegion)), "{into:?}");
        Ok(())
    });
}

// ---- when memory is out of use ----------------------------------------------------------------

#[test]
fn memory_is_told_to_be_out_of_use_after_a_cancel_and_after_the_endpoint_is_gone() {
    under("max-rdma-size=4096 faults=timeout=1s").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let at = pages(2, READ_WRITE)?;
        let register = || {
            let memory = caller(&pair.domain);
            pair.domain
                .register_at(&memory, at, 2 * PAGE, Access::LOCAL)
        };
        let (mut first, mut second) = (register()?, register()?);
        let target = pair.region(&[0; 2 * PAGE as usize])?;
        pair.works(&[1; 100])?;

        // Nothing arrives, so the requests stay with the device.
        t.set_faults("timeout=1s,cut=both")?;
        let put = pair.a.put(pair.ab, &first, target.remote()?)?;
        ensure!(pair.a.cancel(put));
        ensure!(pair.a.wait(put, None)?.result.is_err());
        ensure!(!first.is_idle(), "the device still has the requests");
        let mut polls = 0;
        while let Err(used) = first.deregister() {
            first = used;
            pair.a.poll(|_| {})?;
            polls += 1;
        }
        ensure!(polls > 0);

        t.set_faults("timeout=60s,cut=both")?;
        pair.a.put(pair.ab, &second, target.remote()?)?;
        second = second.deregister().err().context("it is in use")?;
        drop(pair);
        ensure!(second.is_idle() && second.deregister().is_ok());
        Ok(())
    });
}

#[test]
fn access_of_peers_is_ended_while_transfers_of_the_same_memory_run() {
    under("profile=p5 max-rdma-size=4096 faults=timeout=1s").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let ours = pair.region(&[3; 100_000])?;
        let target = pair.region(&[0; 100_000])?;
        let lent = ours.register_again(Access::REMOTE_READ)?;
        ensure!(lent.remote()?.rkey() != ours.rkey() && lent.addr() == ours.addr());
        let descriptor = lent.remote()?;
        let get = pair.b.get(pair.ba, &target, descriptor)?;
        done(&mut pair.b, get)?;
        ensure!(target.to_vec(..)? == [3; 100_000]);

        // The transfer's requests are with the device and can't end.
        t.set_faults("timeout=60s,cut=both")?;
        let put = pair.a.put(pair.ab, &ours, target.remote()?)?;
        ensure!(ours.clone().deregister().is_err());
        ensure!(lent.deregister().is_ok(), "the transfer uses it");
        t.set_faults("timeout=60s")?;
        done(&mut pair.a, put)?;
        target.copy_in(0, &[9; 100_000])?;
        let get = pair.b.get(pair.ba, &target, descriptor)?;
        ensure!(failed(&mut pair.b, get)? == 7);
        ensure!(target.to_vec(..)? == [9; 100_000], "bytes were read");
        let Some(mut buffer) = ours.deregister().ok().flatten() else {
            bail!("something keeps the region");
        };
        buffer[0] = 4;
        Ok(())
    });
}
