//! Whatever goes wrong ends in the error that names it, and the endpoint goes on working.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, ensure};
use efa_tests::{Node, Pair, Remote, Test, done, ended, refused, region, run, under};
use efa_transport::{
    Access, Await, Buffer, Config, Connection, Domain, Endpoint, EndpointAddress, Error,
    FailureKind, Full, Get, Gid, Gone, Put, RemoteRegion, Send,
};
use efa_verbs::{DeviceCapabilities, Limit, Operations, QpState, QueuePairConfig, VendorStatus};

const BYTES: [u8; 3000] = [7; 3000];

fn pair(t: &Test) -> Result<Pair> {
    t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
    Pair::new(t, Config::default())
}

#[test]
fn an_error_inside_a_session_posts_nothing_and_the_endpoint_goes_on() {
    run(|t| {
        let mut pair = pair(t)?;
        let (source, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        let free = pair.a.stats().free_credits;
        let ab = pair.ab;
        let result: Result<(), anyhow::Error> = pair.a.batch(|batch| {
            batch.add(Put::new(ab, &source, remote).tag(1))?;
            batch.add(Put::new(ab, &source, remote).tag(2))?;
            anyhow::bail!("changed my mind")
        });
        ensure!(result.unwrap_err().to_string() == "changed my mind");
        ensure!(pair.a.stats().free_credits == free && pair.a.stats().live == 0);
        pair.works(&BYTES)?;
        ensure!(
            target.to_vec(..)? == [0; 64],
            "an aborted write was carried out"
        );
        Ok(())
    });
}

#[test]
fn a_panic_inside_a_session_posts_nothing_and_the_endpoint_goes_on() {
    run(|t| {
        let mut pair = pair(t)?;
        let (source, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        let free = pair.a.stats().free_credits;
        let ab = pair.ab;
        for _ in 0..3 {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                pair.a.batch(|batch| -> Result<(), Error> {
                    batch.add(Put::new(ab, &source, remote).tag(1))?;
                    panic!("this panic is part of the test")
                })
            }));
            ensure!(unwound.is_err());
        }
        ensure!(pair.a.stats().free_credits == free && pair.a.stats().live == 0);
        pair.works(&BYTES)?;
        ensure!(
            target.to_vec(..)? == [0; 64],
            "an aborted write was carried out"
        );
        Ok(())
    });
}

#[test]
fn a_batch_refuses_what_is_wrong_and_goes_on() {
    under("max-rdma-size=4096").run(|t| {
        let mut pair = pair(t)?;
        let source = pair.region(&[1; 8192])?;
        let target = pair.region(&[0; 8192])?;
        let fixed = pair
            .domain
            .register(Buffer::zeroed(64)?, Access::LOCAL_READ)?;
        let foreign = region(&t.domain()?, &[1; 64])?;
        let (ab, remote) = (pair.ab, target.remote()?);
        let gone = pair
            .a
            .connect(EndpointAddress::new(pair.domain.gid(), 4000, 0x4242)?)?;
        pair.a.disconnect(gone)?;
        pair.a.batch(|batch| -> Result<()> {
            let room = batch.room();
            let long = batch.add(Put::new(ab, source.slice(0..4097)?, remote));
            ensure!(
                matches!(long, Err(Error::TooLong { limit: 4096, .. })),
                "{long:?}"
            );
            let long = batch.add(Get::new(ab, &source, remote.slice(..4097)?));
            ensure!(
                matches!(long, Err(Error::TooLong { limit: 4096, .. })),
                "{long:?}"
            );
            let small = batch.add(Put::new(ab, source.slice(0..9)?, remote.slice(..8)?));
            ensure!(
                matches!(small, Err(Error::RemoteTooSmall { .. })),
                "{small:?}"
            );
            let small = batch.add(Get::new(ab, source.slice(0..7)?, remote.slice(..8)?));
            ensure!(
                matches!(small, Err(Error::LocalTooSmall { .. })),
                "{small:?}"
            );
            let parts = batch.add(Put::parts(ab, &[(source.slice(..8)?, remote)]));
            ensure!(matches!(parts, Err(Error::NotInBatch)), "{parts:?}");
            let wait = batch.add(Await::new(7, 1));
            ensure!(matches!(wait, Err(Error::NotInBatch)), "{wait:?}");
            let read = batch.add(Get::new(ab, &fixed, remote.slice(..8)?));
            ensure!(matches!(read, Err(Error::ReadOnlyRegion)), "{read:?}");
            let nothing = batch.add(Put::new(ab, &foreign, remote));
            ensure!(matches!(nothing, Err(Error::ForeignRegion)), "{nothing:?}");
            let nothing = batch.add(Send::new(ab, &foreign));
            ensure!(matches!(nothing, Err(Error::ForeignRegion)), "{nothing:?}");
            let nothing = batch.add(Put::new(gone, source.slice(..8)?, remote));
            ensure!(
                matches!(
                    nothing,
                    Err(Error::PeerGone {
                        reason: Gone::Disconnected,
                        ..
                    })
                ),
                "{nothing:?}"
            );
            ensure!(batch.is_empty() && batch.room() == room);
            batch.add(Put::new(ab, source.slice(..4096)?, remote).tag(1))?;
            // An error that is kept to oneself takes nothing back.
            let kept = batch.add(Put::new(ab, source.slice(4096..)?, remote.slice(4096..)?));
            ensure!(kept.is_ok() && batch.len() == 2 && batch.room() == room - 2);
            Ok(())
        })?;
        pair.a.wait_all(None)?;
        let mut all = Vec::new();
        pair.a.poll(|completion| all.push(completion))?;
        ensure!(
            all.len() == 2 && all.iter().all(|done| done.result.is_ok()),
            "{all:?}"
        );
        ensure!(target.to_vec(..)? == [1; 8192]);
        pair.works(&BYTES)
    });
}

#[test]
fn a_batch_with_a_full_queue_keeps_what_it_has() {
    run(|t| {
        let mut pair = pair(t)?;
        let source = pair.region(&[1; 64])?;
        let target = pair.region(&[0; 64])?;
        let (ab, remote) = (pair.ab, target.remote()?);
        let foreign = region(&t.domain()?, &[1; 64])?;
        let depth = pair.a.limits().depth;
        pair.a.batch(|batch| {
            for tag in 0..depth {
                ensure!(batch.room() == depth - tag);
                batch.add(Put::new(ab, &source, remote).tag(tag.into()))?;
            }
            for _ in 0..2 {
                let full = batch.add(Put::new(ab, &source, remote));
                ensure!(
                    matches!(full, Err(Error::Full(Full::SendQueue { free: 0, .. }))),
                    "{full:?}"
                );
            }
            // What is wrong in any case comes first.
            let nothing = batch.add(Put::new(ab, &foreign, remote));
            ensure!(matches!(nothing, Err(Error::ForeignRegion)), "{nothing:?}");
            anyhow::Ok(())
        })?;
        ensure!(pair.a.stats().free_credits == 0 && pair.a.stats().queue_full == 2);
        let mut told = 0;
        while told < depth {
            told += pair.a.poll(|done| assert!(done.result.is_ok()))? as u32;
        }
        pair.works(&BYTES)
    });
}

#[test]
fn a_panic_inside_a_batch_posts_nothing_and_the_endpoint_goes_on() {
    run(|t| {
        let mut pair = pair(t)?;
        let (source, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        let (ab, remote) = (pair.ab, target.remote()?);
        let free = pair.a.stats().free_credits;
        for _ in 0..3 {
            let unwound = catch_unwind(AssertUnwindSafe(|| {
                pair.a.batch(|batch| -> Result<(), Error> {
                    batch.add(Put::new(ab, &source, remote).tag(1))?;
                    batch.add(Put::new(ab, &source, remote).tag(2))?;
                    panic!("this panic is part of the test")
                })
            }));
            ensure!(unwound.is_err());
        }
        ensure!(pair.a.stats().free_credits == free && pair.a.stats().live == 0);
        let stats = pair.a.peer(ab)?;
        ensure!((stats.operations, stats.bytes) == (0, 0), "{stats:?}");
        pair.works(&BYTES)?;
        ensure!(
            target.to_vec(..)? == [0; 64],
            "an aborted write was carried out"
        );
        ensure!(source.deregister().is_ok(), "something keeps the region");
        Ok(())
    });
}

#[test]
fn posting_before_connecting_is_refused_with_the_state() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let mut a = Connection::new(&domain, Config::default())?;
        ensure!(a.state()? == QpState::Reset);
        let local = region(&domain, &[1; 8])?;
        let target = region(&domain, &[0; 8])?;
        match a.put(&local, target.remote()?) {
            Err(Error::NotConnected { state }) => ensure!(state == QpState::Reset),
            other => anyhow::bail!("{other:?}"),
        }
        let mut b = Connection::new(&domain, Config::default())?;
        a.connect(b.info())?;
        b.connect(a.info())?;
        let posted = a.put(&local, target.remote()?)?;
        let mut all = Vec::new();
        while all.is_empty() {
            a.poll(&mut all)?;
            std::thread::yield_now();
        }
        ensure!(posted.count == 1 && all[0].result.is_ok());
        Ok(())
    });
}

#[test]
fn a_gid_of_nobody_leaves_the_queue_pair_in_reset() {
    run(|t| {
        let domain = t.domain()?;
        // All zeros is not even an address.
        ensure!(EndpointAddress::new(Gid::from_bytes([0; 16]), 1, 0x4242).is_err());
        let mut foreign = [0; 16];
        foreign[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        let nobody = EndpointAddress::new(Gid::from_bytes(foreign), 1, 0x4242)?;
        let mut a = Connection::new(&domain, Config::default())?;
        match a.connect(nobody) {
            Err(Error::Connect {
                address,
                state,
                source,
                ..
            }) => {
                ensure!(address == nobody && state == QpState::Reset);
                ensure!(source.raw_os_error() == Some(libc::EINVAL), "{source}");
            }
            other => anyhow::bail!("{other:?}"),
        }
        ensure!(a.state()? == QpState::Reset);
        // And then to somebody.
        a.connect(a.info())?;
        ensure!(a.state()? == QpState::Rts);
        Ok(())
    });
}

#[test]
fn connecting_twice_does_nothing_and_to_another_is_refused() {
    run(|t| {
        let domain = t.domain()?;
        let (mut a, b) = (
            Connection::new(&domain, Config::default())?,
            Connection::new(&domain, Config::default())?,
        );
        a.connect(b.info())?;
        a.connect(b.info())?;
        match a.connect(a.info()) {
            Err(Error::AlreadyConnected { address }) => ensure!(address == b.info()),
            other => anyhow::bail!("{other:?}"),
        }
        ensure!(a.state()? == QpState::Rts);
        Ok(())
    });
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    run(|t| {
        let name = t.device()?.name().to_owned();
        match Domain::open("efa_that_is_not_there") {
            Err(Error::Verbs(efa_verbs::Error::DeviceNotFound {
                name: asked,
                available,
            })) => {
                ensure!(asked == "efa_that_is_not_there" && available.contains(&name));
            }
            other => anyhow::bail!("{other:?}"),
        }
        Domain::open(&name)?;
        Ok(())
    });
}

#[test]
fn without_any_device_the_error_says_so() {
    run(|t| match t.role() {
        "main" => {
            t.need_soft_efa()?;
            t.not_in_a_guest("a virtual machine's devices can't be hidden from a process")?;
            let child = t.spawn_changed("without", |command| {
                efa_tests::take_off(command);
                // A machine with real devices must not get in the way.
                command.env("SYSFS_PATH", "/nonexistent");
            })?;
            let text: String = child.channel().recv()?;
            ensure!(
                text.contains("no EFA device") || text.contains("there is none"),
                "{text}"
            );
            child.finish()
        }
        _ => {
            let error = Domain::open_first().map(drop).unwrap_err();
            t.parent().send(&error.to_string())
        }
    });
}

#[test]
fn a_device_without_rdma_write_refuses_puts_by_name_and_does_the_rest() {
    // Two of them, because such a device drops what it sends to itself.
    under("profile=p4d devices=2").run(|t| {
        let devices = t.devices()?;
        let (here, there) = (
            Domain::new(&devices[0].open()?)?,
            Domain::new(&devices[1].open()?)?,
        );
        let mut a = Endpoint::new(&here, Config::default())?;
        let mut b = Endpoint::new(&there, Config::default())?;
        let ab = a.connect(b.address())?;
        b.connect(a.address())?;
        let (local, remote) = (region(&here, &[0; 64])?, region(&there, &[5; 64])?);
        match a.put(ab, &local, remote.remote()?) {
            Err(error @ Error::NotSupported { .. }) => {
                let text = error.to_string();
                ensure!(
                    text.contains("RDMA write") && text.contains("efa_0"),
                    "{text}"
                );
            }
            other => anyhow::bail!("{other:?}"),
        }
        let get = a.get(ab, &local, remote.remote()?)?;
        done(&mut a, get)?;
        ensure!(local.to_vec(..)? == [5; 64]);
        let send = a.submit(Send::new(ab, local.slice(..10)?))?;
        done(&mut a, send)?;
        ensure!(b.wait_message(None)?[..] == [5; 10]);
        // Memory that peers could write is refused as well.
        match here.register(Buffer::zeroed(8)?, Access::REMOTE_WRITE) {
            Err(Error::Verbs(efa_verbs::Error::Unsupported { feature, .. })) => {
                ensure!(feature == efa_verbs::Feature::RdmaWrite);
            }
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    });
}

#[test]
fn a_device_without_rdma_refuses_connections_and_sends_messages() {
    under("profile=c5n").run(|t| {
        let domain = t.domain()?;
        match Connection::new(&domain, Config::default()) {
            Err(Error::NoRdma { device }) => ensure!(device == domain.device_name()),
            other => anyhow::bail!("{other:?}"),
        }
        let mut pair = Pair::on(&domain, Config::default())?;
        let local = pair.region(&[3; 64])?;
        let nothing = RemoteRegion::new(0x10000, 64, 1)?;
        let put = pair.a.put(pair.ab, &local, nothing);
        ensure!(matches!(put, Err(Error::NoRdma { .. })), "{put:?}");
        let send = pair.a.submit(Send::new(pair.ab, &local))?;
        done(&mut pair.a, send)?;
        ensure!(pair.b.wait_message(None)?[..] == [3; 64]);
        Ok(())
    });
}

#[test]
fn queue_depths_above_the_limit_are_refused_with_both_numbers() {
    run(|t| {
        let domain = t.domain()?;
        let most = domain.attributes().max_sq_wr;
        let config = Config {
            send_depth: most + 1,
            ..Config::default()
        };
        match Endpoint::new(&domain, config) {
            Err(Error::Verbs(efa_verbs::Error::LimitExceeded {
                what,
                requested,
                limit,
                ..
            })) => {
                ensure!(what == Limit::SendDepth);
                ensure!((requested, limit) == (u64::from(most) + 1, u64::from(most)));
            }
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    });
}

#[test]
fn a_wrong_rkey_ends_as_a_refused_address() {
    run(|t| {
        let mut pair = pair(t)?;
        let (local, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        let right = target.remote()?;
        let wrong = RemoteRegion::new(right.addr(), right.len(), right.rkey() ^ 0x5555)?;
        let put = pair.a.put(pair.ab, &local, wrong)?;
        let status = refused(&mut pair.a, put)?;
        ensure!(status == VendorStatus::BAD_ADDRESS.0, "{status}");
        let get = pair.a.get(pair.ab, &local, wrong)?;
        let status = refused(&mut pair.a, get)?;
        ensure!(status == VendorStatus::BAD_ADDRESS.0, "{status}");
        ensure!(target.to_vec(..)? == [0; 64]);
        pair.works(&BYTES)
    });
}

#[test]
fn a_remote_range_outside_its_region_ends_as_a_refused_address() {
    run(|t| {
        let mut pair = pair(t)?;
        let (local, target) = (pair.region(&[1; 64])?, pair.region(&[0; 64])?);
        let right = target.remote()?;
        for (addr, what) in [
            (right.addr() + 1, "a byte beyond the end"),
            (right.addr() - 1, "a byte before the start"),
            (right.addr() + (1 << 40), "far away"),
        ] {
            let wrong = RemoteRegion::new(addr, right.len(), right.rkey())?;
            let put = pair.a.put(pair.ab, &local, wrong)?;
            let failed = ended(&mut pair.a, put)?;
            let failure = failed.result.unwrap_err();
            let status = VendorStatus::BAD_ADDRESS.0;
            ensure!(failure.vendor_status() == Some(status), "{what}: {failure}");
            ensure!(
                failure.peer_address() == Some(pair.b.address()),
                "{failure}"
            );
        }
        ensure!(target.to_vec(..)? == [0; 64]);
        pair.works(&BYTES)
    });
}

#[test]
fn memory_without_the_access_for_it_is_not_touched() {
    run(|t| {
        let mut pair = pair(t)?;
        let local = pair.region(&[1; 64])?;
        let readable = pair
            .domain
            .register(Buffer::zeroed(64)?, Access::LOCAL | Access::REMOTE_READ)?;
        let put = pair.a.put(pair.ab, &local, readable.remote()?)?;
        ensure!(refused(&mut pair.a, put)? == VendorStatus::BAD_ADDRESS.0);
        ensure!(readable.to_vec(..)? == [0; 64]);
        let writable = pair
            .domain
            .register(Buffer::zeroed(64)?, Access::REMOTE_WRITE)?;
        let get = pair.a.get(pair.ab, &local, writable.remote()?)?;
        ensure!(refused(&mut pair.a, get)? == VendorStatus::BAD_ADDRESS.0);
        ensure!(local.to_vec(..)? == [1; 64]);
        pair.works(&BYTES)
    });
}

#[test]
fn memory_of_another_domain_is_refused_before_anything_is_posted() {
    run(|t| {
        let mut pair = pair(t)?;
        let foreign = region(&t.domain()?, &[1; 64])?;
        let target = pair.region(&[0; 64])?;
        let put = pair.a.put(pair.ab, &foreign, target.remote()?);
        ensure!(matches!(put, Err(Error::ForeignRegion)), "{put:?}");
        let get = pair.a.get(pair.ab, &foreign, target.remote()?);
        ensure!(matches!(get, Err(Error::ForeignRegion)), "{get:?}");
        let read_only = pair
            .domain
            .register(Buffer::zeroed(64)?, Access::LOCAL_READ)?;
        let get = pair.a.get(pair.ab, &read_only, target.remote()?);
        ensure!(matches!(get, Err(Error::ReadOnlyRegion)), "{get:?}");
        ensure!(pair.a.stats().live == 0);
        pair.works(&BYTES)
    });
}

/// Only efa-verbs lets a request name memory that is not registered.
#[test]
fn unregistered_local_memory_ends_as_an_invalid_key() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = QueuePairConfig {
            operations: Operations::SEND | Operations::WRITE,
            ..QueuePairConfig::default()
        };
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let (source, target) = (a.region(&[1; 64])?, b.region(&[0; 64])?);
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let good = source.sge(0, 64)?;
        let remote = Remote::from(&target).at(0);
        let mut wrong_key = good;
        wrong_key.lkey ^= 0x5555;
        let mut outside = good;
        outside.addr += 1;
        for bad in [wrong_key, outside] {
            a.write(&to, &[(1, bad, remote)])?;
            let status = a.sent(1)?[0].status;
            ensure!(status == VendorStatus::INVALID_LKEY, "{status}");
        }
        a.write(&to, &[(2, good, remote)])?;
        a.sent_well(1)?;
        Ok(())
    });
}

#[test]
fn a_peer_without_a_handle_for_us_refuses_rdma_until_it_connects() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
        // The handle is one per device and domain, so the ends need two domains.
        t.need_loopback()?;
        let (here, there) = (t.domain()?, t.domain()?);
        let mut a = Endpoint::new(&here, Config::default())?;
        let mut b = Endpoint::new(&there, Config::default())?;
        let ab = a.connect(b.address())?;
        b.bring_up()?;
        let (local, target) = (region(&here, &[1; 64])?, region(&there, &[0; 64])?);
        let put = a.put(ab, &local, target.remote()?)?;
        let failure = ended(&mut a, put)?.result.unwrap_err();
        let expected = VendorStatus::UNKNOWN_PEER.0;
        ensure!(
            failure.kind()
                == FailureKind::Device {
                    vendor_status: expected
                },
            "{failure}"
        );
        let advice = failure
            .explain()
            .map(|why| why.to_string())
            .unwrap_or_default();
        ensure!(advice.contains("connect"), "{advice}");
        b.connect(a.address())?;
        let put = a.put(ab, &local, target.remote()?)?;
        done(&mut a, put)?;
        ensure!(target.to_vec(..)? == [1; 64]);
        Ok(())
    });
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_both() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let mut a = Connection::new(&domain, Config::default())?;
        let mut b = Connection::new(&domain, Config::default())?;
        a.connect(b.info())?;
        b.connect(a.info())?;
        let (small, large) = (region(&domain, &[0; 63])?, region(&domain, &[0; 64])?);
        match a.put(&large, small.remote()?) {
            Err(Error::RemoteTooSmall { local, remote }) => ensure!((local, remote) == (64, 63)),
            other => anyhow::bail!("{other:?}"),
        }
        match a.get(&small, large.remote()?) {
            Err(Error::LocalTooSmall { local, remote }) => ensure!((local, remote) == (63, 64)),
            other => anyhow::bail!("{other:?}"),
        }
        ensure!(matches!(small.slice(..64), Err(Error::OutOfRange { .. })));
        ensure!(large.remote()?.slice(1..66).is_err());
        ensure!(
            RemoteRegion::new(u64::MAX - 10, 20, 1).is_err(),
            "an address wraps around"
        );
        Ok(())
    });
}

#[test]
fn more_requests_than_free_places_post_nothing_and_say_both() {
    under("max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let config = Config {
            send_depth: 16,
            ..Config::default()
        };
        let mut a = Connection::new(&domain, config.clone())?;
        let mut b = Connection::new(&domain, config)?;
        a.connect(b.info())?;
        b.connect(a.info())?;
        let depth = 16;
        let length = 4096 * (u64::from(depth) + 1);
        let (local, target) = (
            region(&domain, &vec![1; length as usize])?,
            region(&domain, &vec![0; length as usize])?,
        );
        match a.put(&local, target.remote()?) {
            Err(Error::Full(Full::SendQueue {
                wanted,
                free,
                depth: told,
            })) => {
                ensure!(wanted == u64::from(depth) + 1 && free == depth && told == depth);
            }
            other => anyhow::bail!("{other:?}"),
        }
        // What fits exactly is taken.
        let posted = a.put(local.slice(..4096 * u64::from(depth))?, target.remote()?)?;
        ensure!(posted.count == u64::from(depth));
        let mut all = Vec::new();
        while all.len() < depth as usize {
            a.poll(&mut all)?;
            std::thread::yield_now();
        }
        for completion in all {
            completion.result?;
        }
        Ok(())
    });
}

#[test]
fn a_full_queue_is_back_pressure_for_try_put_and_posts_nothing() {
    under("max-rdma-size=4096").run(|t| {
        let config = Config {
            send_depth: 16,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let bytes = t.rng().bytes(4096 * 100);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        let small = pair.region(&[0; 8])?;
        let other = pair.region(&[0; 8])?;
        let remote_small = other.remote()?;
        t.ctl()?.pause()?;
        let long = pair.a.put(pair.ab, &source, target.remote()?)?;
        // Long operations leave some room to short ones, but not without end.
        let mut short = Vec::new();
        let blocked = loop {
            match pair.a.try_submit(Put::new(pair.ab, &small, remote_small)) {
                Ok(operation) => short.push(operation),
                Err(error) => break error,
            }
            ensure!(
                short.len() <= pair.a.limits().depth as usize,
                "more than fits"
            );
        };
        let operations = pair.a.stats().live;
        t.ctl()?.resume()?;
        ensure!(
            matches!(blocked, Error::Full(Full::SendQueue { .. } | Full::Waiting)),
            "{blocked:?}"
        );
        ensure!(
            operations as usize == short.len() + 1,
            "{operations} operations"
        );
        for operation in short {
            done(&mut pair.a, operation)?;
        }
        // The long one flows through the short queue all the same.
        done(&mut pair.a, long)?;
        ensure!(target.to_vec(..)? == bytes);
        pair.works(&BYTES)
    });
}

#[test]
fn a_disconnected_peer_is_refused_by_its_old_name() {
    run(|t| {
        let mut pair = pair(t)?;
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        let old = pair.ab;
        pair.a.disconnect(old)?;
        match pair.a.put(old, &source, target.remote()?) {
            Err(Error::PeerGone { peer, reason }) => {
                ensure!(peer == old && reason == Gone::Disconnected);
            }
            other => anyhow::bail!("{other:?}"),
        }
        pair.ab = pair.a.connect(pair.b.address())?;
        ensure!(pair.ab != old);
        pair.works(&BYTES)
    });
}
