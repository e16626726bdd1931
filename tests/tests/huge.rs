//! Transfers and numbers of peers that no allocation may grow with. An allocator that counts tells.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Pair, done, region, skip, under};
use efa_transport::{
    Access, Config, Endpoint, EndpointAddress, FailureKind, Gid, Put, Region, RemoteRegion,
};

/// The system's allocator, which counts the bytes that this program's own code has.
struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> u64 {
    LIVE.load(Ordering::Relaxed)
}

/// Addresses that nothing stands behind until they are used, as registered memory. They stay for
/// the life of the process, so that no mistake here could do harm.
fn reserved(pair: &Pair, length: u64, access: Access) -> Result<Region> {
    // SAFETY: a new mapping takes nobody's addresses.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            usize::try_from(length)?,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(skip(
            "this system does not let so many addresses be reserved",
        ));
    }
    // SAFETY: the mapping is never removed, and nobody has a reference into it.
    let caller = unsafe { efa_verbs::CallerMemory::new(pair.domain.protection_domain().clone()) };
    let start = memory.expose_provenance() as u64;
    Ok(pair.domain.register_at(&caller, start, length, access)?)
}

/// No device registers 200 GiB at once, so the transfer is a list of four.
const PART: u64 = 50 << 30;
/// Nothing that is live at a time may be more than this beside what was there.
const SMALL: u64 = 64 << 10;

/// 52 million requests, more than a request id has numbers for.
#[test]
fn a_transfer_of_200_gib_is_legal_costs_no_memory_and_starves_nobody() {
    under("max-rdma-size=4096").run(|t| {
        t.not_in_a_guest("the real kernel pins what is registered, and 200 GiB are not there")?;
        let config = Config {
            send_depth: 64,
            ..Config::default()
        };
        let quantum = 8; // requests of one operation in a row
        let mut pair = Pair::new(t, config)?;
        let source = reserved(&pair, PART, Access::LOCAL_READ)?;
        let target = reserved(&pair, PART, Access::LOCAL | Access::REMOTE_WRITE)?;
        let (small, other) = (pair.region(&[7; 8])?, pair.region(&[0; 8])?);
        pair.works(&[1; 100_000])?;

        let before = live();
        let begun = Instant::now();
        let remote = target.remote()?;
        let parts = [(source.slice(..)?, remote); 4];
        let huge = pair.a.submit(Put::parts(pair.ab, &parts).tag(1))?;
        ensure!(
            begun.elapsed() < Duration::from_secs(1),
            "planning it took {:?}",
            begun.elapsed()
        );
        let mut most = 0;
        for round in 0..50u64 {
            for _ in 0..10 {
                pair.a.poll(|_| {})?;
                most = most.max(live().saturating_sub(before));
            }
            // The bound that is documented with Config::quantum: nobody else waits, so the short
            // one is posted at once, or after one turn of the long one.
            let posted = pair.a.stats().requests;
            let short = pair
                .a
                .submit(Put::new(pair.ab, &small, other.remote()?).tag(round))?;
            while pair.a.stats().waiting > 1 {
                pair.a.poll(|_| {})?;
            }
            let before_it = pair.a.stats().requests - posted;
            ensure!(
                before_it <= 2 * quantum + 1,
                "round {round}: {before_it} requests were posted before the short one's"
            );
            done(&mut pair.a, short)?;
        }
        ensure!(most <= SMALL, "{most} bytes more than before");
        ensure!(pair.a.stats().live == 1, "200 GiB were moved");
        ensure!(other.to_vec(..)? == [7; 8]);
        ensure!(pair.a.cancel(huge));
        let failure = pair.a.wait(huge, None)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::Cancelled, "{failure}");
        pair.works(&[2; 100_000])
    });
}

#[test]
fn a_peer_costs_no_more_memory_than_its_budget() {
    under("max-rdma-size=4096").run(|t| {
        const PEERS: u32 = 10_000;
        const BUDGET: u64 = 128;
        let domain = t.domain()?;
        let mut endpoint = Endpoint::new(&domain, Config::default())?;
        let addresses: Vec<_> = (0..PEERS)
            .map(|i| {
                let host = 100 + (i % 4) as u8;
                let gid = Gid::from_bytes(soft_efa::gid::gid_of([127, 0, 0, host].into()));
                EndpointAddress::new(gid, 1000 + i, 0x4242)
            })
            .collect::<Result<_, _>>()?;
        // Four handles, and what is made once.
        for address in &addresses[..4] {
            endpoint.connect(*address)?;
        }
        let before = live();
        for address in &addresses[4..] {
            endpoint.connect(*address)?;
        }
        let each = (live() - before) / u64::from(PEERS - 4);
        ensure!(endpoint.peers().count() == PEERS as usize);
        ensure!(each <= BUDGET, "{each} bytes per peer");
        Ok(())
    });
}

/// Small operations over and over use the same memory.
#[test]
fn a_busy_endpoint_allocates_nothing_more() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let memory = region(&pair.domain, &[1; 64])?;
        let remote: RemoteRegion = memory.remote()?;
        let mut all = Vec::with_capacity(64);
        let mut round = |pair: &mut Pair| -> Result<()> {
            for tag in 0..16 {
                pair.a.submit(Put::new(pair.ab, &memory, remote).tag(tag))?;
            }
            let ends = Instant::now() + Duration::from_secs(60);
            while pair.a.stats().live > 0 {
                if Instant::now() > ends {
                    bail!("never ended");
                }
                all.clear();
                pair.a.poll(|completion| all.push(completion))?;
                let failed = all.iter().find(|completion| completion.result.is_err());
                ensure!(failed.is_none(), "{failed:?}");
            }
            Ok(())
        };
        for _ in 0..20 {
            round(&mut pair).context("warming up")?;
        }
        let before = live();
        for _ in 0..200 {
            round(&mut pair)?;
        }
        ensure!(live() == before, "{before} bytes, then {}", live());
        Ok(())
    });
}
