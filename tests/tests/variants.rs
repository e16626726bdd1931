//! Each way to be refused has an error of its own, is reached here, and leaves the endpoint as it
//! was. (`errors.rs` has those that concern a connection.)

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, Test, done, ended, run, under};
use efa_transport::Explanation;
use efa_transport::{
    Await, Config, Domain, Endpoint, EndpointAddress, Error, FailureKind, Full, Gid, Put,
    ReceivePool, Send,
};

#[test]
fn a_setting_that_makes_no_sense_is_named_with_what_it_can_be() {
    run(|t| {
        let domain = t.domain()?;
        type Change = fn(&mut Config);
        let wrong: [(&str, Change); 4] = [
            ("max_operations", |c| c.max_operations = 0),
            ("max_operations", |c| c.max_operations = (1 << 20) + 1),
            ("rnr_retries", |c| c.rnr_retries = Some(8)),
            ("receive_pool", |c| c.receive_pool.size = Some(0)),
        ];
        for (name, change) in wrong {
            let mut config = Config::default();
            change(&mut config);
            match Endpoint::new(&domain, config) {
                Err(error) => {
                    let text = error.to_string();
                    ensure!(text.contains(&format!("Config::{name}")), "{text}");
                }
                Ok(_) => bail!("{name} was accepted"),
            }
        }
        // A pool that the device has no receives for is refused with both numbers.
        let most = domain.attributes().max_rq_wr;
        let config = Config {
            receive_pool: ReceivePool {
                buffers: most + 1,
                size: Some(8),
            },
            ..Config::default()
        };
        match Endpoint::new(&domain, config) {
            Err(Error::Verbs(efa_verbs::Error::LimitExceeded {
                requested, limit, ..
            })) => {
                ensure!((requested, limit) == (u64::from(most) + 1, u64::from(most)));
            }
            other => bail!("{other:?}"),
        }
        Ok(())
    });
}

#[test]
fn too_many_operations_are_back_pressure_and_say_how_many_there_may_be() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            max_operations: 4,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let remote = target.remote()?;
        t.ctl()?.pause()?;
        for tag in 0..4 {
            pair.a.submit(Put::new(pair.ab, &source, remote).tag(tag))?;
        }
        match pair.a.submit(Put::new(pair.ab, &source, remote).tag(4)) {
            Err(error @ Error::Full(Full::Operations { capacity: 4 })) => {
                ensure!(error.is_transient(), "{error}");
            }
            other => bail!("{other:?}"),
        }
        let blocked = pair.a.try_submit(Put::new(pair.ab, &source, remote).tag(4));
        ensure!(
            matches!(blocked, Err(Error::Full(Full::Operations { .. }))),
            "{blocked:?}"
        );
        t.ctl()?.resume()?;
        pair.a.wait_all(None)?;
        let mut tags = Vec::new();
        pair.a.poll(|done| {
            assert!(done.result.is_ok(), "{done:?}");
            tags.push(done.tag);
        })?;
        tags.sort_unstable();
        ensure!(tags == [0, 1, 2, 3], "{tags:?}");
        pair.works(&[2; 100])
    });
}

#[test]
fn message_buffers_in_use_are_back_pressure() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let long = [7; 2000];
        t.ctl()?.pause()?;
        let mut sends = Vec::new();
        let full = loop {
            match pair.a.send(pair.ab, &long) {
                Ok(send) => sends.push(send),
                Err(error) => break error,
            }
            ensure!(sends.len() < 1000, "no end of buffers");
        };
        ensure!(matches!(full, Error::Full(Full::SendBuffers)), "{full:?}");
        ensure!(full.is_transient() && sends.len() == 64);
        t.ctl()?.resume()?;
        for send in sends {
            done(&mut pair.a, send)?;
        }
        let again = pair.a.send(pair.ab, &long)?;
        done(&mut pair.a, again)?;
        Ok(())
    });
}

#[test]
fn a_batch_takes_transfers_to_oneself_too_and_takes_all_of_them_back() {
    under("profile=p5en").run(|t| {
        let mut pair = Pair::introduced(&t.domain()?, Config::default())?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let (ab, remote) = (pair.ab, target.remote()?);
        let own = pair.a.connect(pair.a.address())?;
        let undone = pair.a.batch(|batch| -> Result<()> {
            batch.add(Put::new(own, &source, remote))?;
            batch.add(Put::new(ab, &source, remote))?;
            batch.add(Send::bytes(own, b"to myself"))?;
            ensure!(batch.len() == 3);
            bail!("all of it comes back")
        });
        ensure!(undone.is_err_and(|error| error.to_string() == "all of it comes back"));
        pair.a.poll(|done| panic!("{done:?}"))?;
        ensure!(pair.a.stats().live == 0 && target.to_vec(..)? == [0; 8]);
        ensure!(pair.a.next_message().is_none());
        pair.a.batch(|batch| {
            batch.add(Put::new(own, &source, remote))?;
            batch.add(Send::bytes(own, b"to myself")).map(drop)
        })?;
        pair.a.wait_all(None)?;
        ensure!(target.to_vec(..)? == [1; 8]);
        ensure!(pair.a.wait_message(None)?[..] == *b"to myself");
        ensure!(source.deregister().is_ok(), "something keeps the region");
        Ok(())
    });
}

#[test]
fn immediates_that_could_not_be_counted_are_an_error_of_whoever_counts() {
    under("profile=p5en").run(|t| {
        let mut pair = Pair::introduced(&t.domain()?, Config::default())?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let (ab, remote) = (pair.ab, target.remote()?);
        // As many different values as are counted, and three more.
        const VALUES: u32 = 65_536 + 3;
        let mut next = 0;
        while pair.b.stats().immediates < VALUES.into() {
            pair.a.batch(|batch| {
                while next < VALUES && batch.room() > 0 {
                    batch.add(Put::new(ab, &source, remote).immediate(next))?;
                    next += 1;
                }
                Ok::<_, Error>(())
            })?;
            pair.a
                .poll(|done| assert!(done.result.is_ok(), "{done:?}"))?;
            pair.b.poll(|_| {})?;
        }
        ensure!(pair.b.stats().immediates_lost == 3, "{:?}", pair.b.stats());
        match pair.b.submit(Await::new(0, 1)) {
            Err(Error::ImmediatesLost {
                lost: 3,
                limit: 65_536,
            }) => {}
            other => bail!("{other:?}"),
        }
        // Said once; then it goes on.
        pair.b.submit(Await::new(0, 1))?;
        Ok(())
    });
}

#[test]
fn messages_to_where_none_can_arrive_say_why() {
    under("profile=p4d").run(|t| {
        let domain = t.domain()?;
        let mut a = Endpoint::new(&domain, Config::default())?;
        let mut b = Endpoint::new(&domain, Config::default())?;
        let other = a.connect(b.address())?;
        b.connect(a.address())?;
        let send = a.send(other, b"hello")?;
        let failure = ended(&mut a, send)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::NoLoopback, "{failure}");
        ensure!(failure.to_string().len() > 60, "{failure}");
        let without = Config {
            receive_pool: ReceivePool::NONE,
            ..Config::default()
        };
        let mut c = Endpoint::new(&domain, without)?;
        let own = c.connect(c.address())?;
        let refused = c.send(own, b"hello");
        ensure!(matches!(refused, Err(Error::NoReceivePool)), "{refused:?}");
        Ok(())
    });
}

#[test]
fn disconnecting_fails_what_has_requests_to_post_and_lets_the_rest_end() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            send_depth: 8,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let (source, target) = (pair.region(&[1; 400_000])?, pair.region(&[0; 400_000])?);
        t.ctl()?.pause()?;
        let short = pair
            .a
            .put(pair.ab, source.slice(..100)?, target.remote()?)?;
        let long = pair.a.put(pair.ab, &source, target.remote()?)?;
        pair.a.disconnect(pair.ab)?;
        t.ctl()?.resume()?;
        let failure = ended(&mut pair.a, long)?.result.unwrap_err();
        ensure!(failure.kind() == FailureKind::Disconnected, "{failure}");
        done(&mut pair.a, short)?;
        pair.ab = pair.a.connect(pair.b.address())?;
        pair.works(&[2; 10_000])
    });
}

#[test]
fn what_a_closed_endpoint_had_not_begun_failed_because_it_was_closed() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let waiting = pair.a.submit(Await::new(5, 1).tag(2))?;
        let closed = pair.a.close(std::time::Duration::from_secs(5));
        let ended = closed
            .unfinished()
            .find(|completion| completion.operation == waiting);
        match ended.map(|completion| completion.result.as_ref().map_err(|f| f.kind())) {
            Some(Err(FailureKind::Closed)) => {}
            other => bail!("{other:?}"),
        }
        Ok(())
    });
}

// ---- what is behind a failed verb ---------------------------------------------------------

fn explained(
    t: &Test,
    fault: &str,
    fails: impl FnOnce() -> Result<(), Error>,
) -> Result<Explanation> {
    t.set_faults(fault)?;
    let result = fails();
    t.set_faults("")?;
    let Err(error) = result else {
        bail!("{fault}: it succeeded");
    };
    let Some(explanation) = error.explain() else {
        bail!("{fault}: no explanation of {error}");
    };
    ensure!(
        explanation.cause().ends_with('.') && explanation.remedy().ends_with('.'),
        "{explanation}"
    );
    Ok(explanation)
}

#[test]
fn each_shortage_has_an_explanation_of_its_own() {
    under("profile=p5 max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let make = |domain: &Domain, config| Endpoint::new(domain, config).map(drop);
        let why = explained(t, "enomem=reg_mr:1", || {
            let buffer = efa_transport::Buffer::zeroed(4096)?;
            domain
                .register(buffer, efa_transport::Access::LOCAL)
                .map(drop)
        })?;
        let cause = why.cause();
        ensure!(
            cause.contains("no room for another registration") || cause.contains("may lock"),
            "{why}"
        );
        let why = explained(t, "enomem=create_qp:1", || make(&domain, Config::default()))?;
        ensure!(why.cause().contains("no queue pair left"), "{why}");
        let mut endpoint = Endpoint::new(&domain, Config::default())?;
        let nobody = |number| {
            let gid = soft_efa::gid::gid_of([127, 0, 0, 90].into());
            EndpointAddress::new(Gid::from_bytes(gid), number, 0x4242)
        };
        let address = nobody(1)?;
        let why = explained(t, "enomem=create_ah:1", || {
            endpoint.connect(address).map(drop)
        })?;
        ensure!(why.cause().contains("no address handle left"), "{why}");
        ensure!(why.is_transient());

        // What the device can't do, and whom it can't reach.
        let why = explained(t, "", || {
            let config = efa_verbs::QueuePairConfig {
                unsolicited_write_recv: true,
                ..efa_verbs::QueuePairConfig::default()
            };
            let pair = domain.protection_domain().create_queue_pair(&config);
            pair.map(drop).map_err(Error::from)
        })?;
        ensure!(why.cause().contains("unsolicited"), "{why}");
        let mut foreign = [0; 16];
        foreign[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        let foreign = EndpointAddress::new(Gid::from_bytes(foreign), 1, 0x4242)?;
        let why = explained(t, "", || endpoint.connect(foreign).map(drop))?;
        ensure!(why.cause().contains("can be reached"), "{why}");
        Ok(())
    });
}

#[test]
fn a_missing_write_is_blamed_on_the_device_where_its_generation_has_none() {
    under("profile=p4d").run(|t| {
        let domain = t.domain()?;
        let why = explained(t, "", || {
            let buffer = efa_transport::Buffer::zeroed(64)?;
            let access = efa_transport::Access::REMOTE_WRITE;
            domain.register(buffer, access).map(drop)
        })?;
        ensure!(why.cause().contains("PCI id 0xefa1"), "{why}");
        ensure!(!why.to_string().contains("rdma-core"), "{why}");
        Ok(())
    });
}

#[test]
fn a_missing_direct_path_is_blamed_on_the_device_where_the_library_has_it() {
    under("profile=c5n").run(|t| {
        let domain = t.domain()?;
        let config = Config {
            path: efa_transport::DataPath::Direct,
            ..Config::default()
        };
        let why = explained(t, "", || Endpoint::new(&domain, config).map(drop))?;
        let cause = match efa_verbs::efa_symbol_version() {
            0..4 => "rdma-core is too old",
            _ => "several rings",
        };
        ensure!(why.cause().contains(cause), "{why}");
        Ok(())
    });
}

/// Gives up the right to lock memory beyond the limit, for this thread.
fn without_privilege() -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    // Version and thread; effective, permitted and inheritable, twice 32 bits each.
    let mut header = [VERSION_3, 0];
    let mut sets = [0u32; 6];
    // SAFETY: header and sets are as large as version 3 says, and live for the call.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    ensure!(got == 0, std::io::Error::last_os_error());
    sets[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: the same; the kernel only reads them.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    ensure!(set == 0, std::io::Error::last_os_error());
    Ok(())
}

/// The limit is in the way where registering fails for want of memory and it is too low.
#[test]
fn a_locked_memory_limit_is_named_with_its_size() {
    under("max-rdma-size=4096").run(|t| {
        let limit = libc::rlimit {
            rlim_cur: 64 << 10,
            rlim_max: 64 << 10,
        };
        // SAFETY: a plain struct that lives for the call.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
        ensure!(set == 0, std::io::Error::last_os_error());
        without_privilege()?;
        let domain = t.domain()?;
        t.set_faults("enomem=reg_mr:1")?;
        let buffer = efa_transport::Buffer::zeroed(1 << 20)?;
        let made = domain.register(buffer, efa_transport::Access::LOCAL);
        t.set_faults("")?;
        let Err(error) = made.map(drop) else {
            bail!("it succeeded");
        };
        let Some(why) = error.explain() else {
            bail!("no explanation of {error}");
        };
        let text = why.to_string();
        ensure!(
            text.contains("may lock 64 KiB") && text.contains("wants 1 MiB"),
            "{text}"
        );
        ensure!(text.contains("ulimit -l"), "{text}");
        Ok(())
    });
}
