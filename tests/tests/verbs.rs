//! efa-verbs on a device: objects, states, posting and completions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context as _, Result, ensure};
use efa_tests::{Node, Remote, Test, run, under, write};
use efa_verbs::{
    Access, Buffer, DEFAULT_QUEUE_KEY, DeviceCapabilities, Error, Feature, Gid, Limit, Operations,
    QpState, QueuePairConfig, RecvKind, VendorStatus,
};

fn all_operations(t: &Test) -> Result<QueuePairConfig> {
    let can = t.device()?.open()?.attributes().capabilities;
    Ok(QueuePairConfig {
        operations: Operations::supported(can),
        ..QueuePairConfig::default()
    })
}

fn contents(region: &efa_verbs::MemoryRegion) -> Result<Vec<u8>> {
    let mut bytes = vec![0; region.len()];
    region.copy_out(0, &mut bytes)?;
    Ok(bytes)
}

#[test]
fn devices_are_listed_and_open_by_name() {
    run(|t| {
        for device in t.devices()? {
            let context = efa_verbs::open_by_name(device.name())?;
            ensure!(context.device_name() == device.name());
            ensure!(device.guid() != 0);
            let attributes = context.attributes();
            ensure!(attributes.max_sq_wr > 0 && attributes.max_rq_wr > 0);
            ensure!(context.port()?.active);
            ensure!(!context.gid()?.is_zero());
        }
        Ok(())
    });
}

#[test]
fn a_device_that_does_not_exist_is_named_with_those_that_do() {
    run(|t| {
        let name = t.device()?.name().to_owned();
        match efa_verbs::open_by_name("nothing_0") {
            Err(Error::DeviceNotFound {
                name: asked,
                available,
            }) => {
                ensure!(
                    asked == "nothing_0" && available.contains(&name),
                    "{available:?}"
                );
                Ok(())
            }
            other => anyhow::bail!("{other:?}"),
        }
    });
}

#[test]
fn queue_depths_above_the_limit_are_refused_with_both_numbers() {
    run(|t| {
        let context = t.device()?.open()?;
        let domain = context.alloc_pd()?;
        let limits = context.attributes();
        let cases = [
            (limits.max_sq_wr, 1, Limit::SendDepth),
            (1, limits.max_rq_wr, Limit::RecvDepth),
        ];
        for (send_depth, recv_depth, which) in cases {
            let most = send_depth.max(recv_depth);
            let config = QueuePairConfig {
                send_depth: if which == Limit::SendDepth {
                    most + 1
                } else {
                    1
                },
                recv_depth: if which == Limit::RecvDepth {
                    most + 1
                } else {
                    1
                },
                ..QueuePairConfig::default()
            };
            match domain.create_queue_pair(&config) {
                Err(Error::LimitExceeded {
                    what,
                    requested,
                    limit,
                    ..
                }) => {
                    ensure!(what == which, "{what}");
                    ensure!(
                        (requested, limit) == (u64::from(most) + 1, u64::from(most)),
                        "{requested} {limit}"
                    );
                }
                other => anyhow::bail!("{which}: {other:?}"),
            }
            // The limit itself is allowed.
            domain.create_queue_pair(&QueuePairConfig {
                send_depth,
                recv_depth,
                ..QueuePairConfig::default()
            })?;
        }
        Ok(())
    });
}

#[test]
fn a_write_lands_in_remote_memory() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let bytes = t.rng().bytes(100_000);
        let source = a.region(&bytes)?;
        let target = b.region(&vec![0; bytes.len()])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let local = source.sge(0, bytes.len() as u32)?;
        a.write(&to, &[(7, local, Remote::from(&target).at(0))])?;
        ensure!(a.sent_well(1)? == [7]);
        ensure!(contents(&target)? == bytes);
        Ok(())
    });
}

#[test]
fn a_read_fetches_remote_memory() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_READ)?;
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let bytes = t.rng().bytes(100_000);
        let target = a.region(&vec![0; bytes.len()])?;
        let source = b.region(&bytes)?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let local = target.sge(0, bytes.len() as u32)?;
        a.read(&to, &[(8, local, Remote::from(&source).at(0))])?;
        ensure!(a.sent_well(1)? == [8]);
        ensure!(contents(&target)? == bytes);
        Ok(())
    });
}

#[test]
fn a_send_lands_in_a_posted_receive() {
    run(|t| {
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let most = a.context().port()?.max_message_size;
        for length in [1, 100, most] {
            let bytes = t.rng().bytes(length as usize);
            let source = a.region(&bytes)?;
            let target = b.region(&vec![0; bytes.len()])?;
            let to = a.to(b.address()?)?;
            b.receive(&[(5, target.sge(0, length)?)])?;
            a.send(&to, &[(6, source.sge(0, length)?)])?;
            ensure!(a.sent_well(1)? == [6]);
            let got = b.received(1)?[0];
            ensure!(got.status.is_ok() && got.wr_id == 5, "{got:?}");
            ensure!(
                got.byte_len == length && got.kind == RecvKind::Send,
                "{got:?}"
            );
            ensure!(got.src_qp == a.pair().number(), "{got:?}");
            ensure!(contents(&target)? == bytes);
        }
        Ok(())
    });
}

#[test]
fn immediate_data_arrives_as_it_was_given() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 64])?;
        let target = b.region(&[0; 64])?;
        let spare = b.region(&[0; 64])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        b.receive(&[(9, spare.sge(0, 64)?)])?;
        let remote = Remote::from(&target).at(0);
        a.write_imm(&to, 1, source.sge(0, 64)?, remote, 0x0102_0304)?;
        a.sent_well(1)?;
        let got = b.received(1)?[0];
        ensure!(got.immediate == Some(0x0102_0304), "{got:?}");
        ensure!(
            got.kind == RecvKind::WriteWithImmediate && got.byte_len == 64,
            "{got:?}"
        );
        ensure!(contents(&target)? == [1; 64] && contents(&spare)? == [0; 64]);
        Ok(())
    });
}

#[test]
fn unsolicited_writes_with_immediate_data_use_up_no_receive() {
    run(|t| {
        t.need(DeviceCapabilities::UNSOLICITED_WRITE_RECV)?;
        t.need_loopback()?;
        let config = QueuePairConfig {
            unsolicited_write_recv: true,
            recv_depth: 0,
            extra_recv_completions: 16,
            ..all_operations(t)?
        };
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 64])?;
        let target = b.region(&[0; 64])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let remote = Remote::from(&target).at(0);
        a.write_imm(&to, 1, source.sge(0, 64)?, remote, 77)?;
        a.sent_well(1)?;
        let got = b.received(1)?[0];
        ensure!(
            got.unsolicited && got.wr_id == 0 && got.immediate == Some(77),
            "{got:?}"
        );
        Ok(())
    });
}

#[test]
fn completions_behind_one_at_which_the_closure_panics_come_with_the_next_poll() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 8])?;
        let target = b.region(&[0; 8])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let mut rng = t.rng();
        for _ in 0..20 {
            let list = (0..12)
                .map(|id| -> Result<_> { Ok((id, source.sge(0, 8)?, Remote::from(&target).at(0))) })
                .collect::<Result<Vec<_>>>()?;
            a.write(&to, &list)?;
            let mut told = Vec::new();
            while told.len() < 12 {
                let (most, panics) = (rng.below(6) as usize, rng.below(6) as usize);
                let mut few = Vec::new();
                let poll = AssertUnwindSafe(|| {
                    a.pair().poll_send_each(most, |done| {
                        assert!(done.status.is_ok(), "{done:?}");
                        few.push(done.wr_id);
                        if few.len() == panics {
                            std::panic::resume_unwind(Box::new("on purpose"));
                        }
                    })
                });
                match catch_unwind(poll) {
                    Ok(count) => ensure!(count? == few.len() && few.len() <= most),
                    Err(_) => ensure!(few.len() == panics),
                }
                told.extend(few);
            }
            told.sort_unstable();
            ensure!(told == (0..12).collect::<Vec<_>>(), "{told:?}");
        }
        Ok(())
    });
}

#[test]
fn a_session_larger_than_the_free_slots_posts_nothing_and_the_next_one_works() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = QueuePairConfig {
            send_depth: 32,
            ..all_operations(t)?
        };
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 8])?;
        let target = b.region(&[0; 8])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let capacity = a.pair().send_capacity();
        let request =
            |id| -> Result<_> { Ok((id, source.sge(0, 8)?, Remote::from(&target).at(0))) };
        let list = |n: u32| (0..u64::from(n)).map(request).collect::<Result<Vec<_>>>();
        match a.write(&to, &list(capacity + 1)?) {
            Err(error) => match error.downcast_ref::<Error>() {
                Some(Error::SendQueueFull { capacity: told }) => ensure!(*told == capacity),
                other => anyhow::bail!("{other:?}"),
            },
            Ok(()) => anyhow::bail!("{} requests fit into {capacity} slots", capacity + 1),
        }
        ensure!(
            contents(&target)? == [0; 8],
            "a request of the refused session was carried out"
        );
        // Full to the brim, twice: every slot came back.
        for _ in 0..2 {
            a.write(&to, &list(capacity)?)?;
            let mut ids = a.sent_well(capacity as usize)?;
            ids.sort_unstable();
            ensure!(ids == (0..u64::from(capacity)).collect::<Vec<_>>());
        }
        ensure!(contents(&target)? == [1; 8]);
        Ok(())
    });
}

#[test]
fn an_aborted_session_posts_nothing_and_the_next_one_works() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let config = all_operations(t)?;
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 8])?;
        let target = b.region(&[0; 8])?;
        let to = a.to(b.address()?)?;
        b.to(a.address()?)?;
        let (local, remote) = (source.sge(0, 8)?, Remote::from(&target).at(0));
        for _ in 0..100 {
            let pair = a.pair();
            pair.session_start()?;
            // SAFETY: a session is open, and `a` keeps region and handle longer than its queue pair.
            unsafe { pair.push(1, &to, write(local, remote, None)) };
            pair.session_abort();
        }
        a.write(&to, &[(2, local, remote)])?;
        ensure!(a.sent_well(1)? == [2]);
        Ok(())
    });
}

#[test]
fn a_request_that_the_queue_pair_was_not_made_for_is_named() {
    run(|t| {
        let config = QueuePairConfig {
            operations: Operations::SEND,
            ..QueuePairConfig::default()
        };
        let mut a = Node::new(t, &config)?;
        let region = a.region(&[0; 8])?;
        let to = a.to(a.address()?)?;
        let request = (1, region.sge(0, 8)?, Remote::from(&region).at(0));
        let error = a.write(&to, &[request]).unwrap_err();
        match error.downcast_ref::<Error>() {
            Some(Error::OperationNotEnabled { operation, .. }) => {
                ensure!(*operation == Operations::WRITE);
            }
            other => anyhow::bail!("{other:?}"),
        }
        // And the queue pair works on.
        t.need_loopback()?;
        a.receive(&[(2, region.sge(0, 8)?)])?;
        a.send(&to, &[(1, region.sge(0, 8)?)])?;
        a.sent_well(1)?;
        Ok(())
    });
}

#[test]
fn posting_before_rts_is_refused_with_the_state() {
    run(|t| {
        let mut a = Node::reset(&t.device()?.open()?, &QueuePairConfig::default())?;
        for step in 0..3 {
            let state = a.pair().state()?;
            ensure!(state == [QpState::Reset, QpState::Init, QpState::Rtr][step]);
            match a.pair().session_start() {
                Err(Error::InvalidState { state: told, .. }) => ensure!(told == state),
                other => anyhow::bail!("in {state}: {other:?}"),
            }
            match step {
                0 => a.pair().to_init(DEFAULT_QUEUE_KEY)?,
                1 => a.pair().to_rtr()?,
                _ => a.pair().to_rts(0, None)?,
            }
        }
        a.pair().session_start()?;
        a.pair().session_complete()?;
        Ok(())
    });
}

#[test]
fn a_transition_that_is_not_in_the_table_names_both_states() {
    run(|t| {
        let mut a = Node::reset(&t.device()?.open()?, &QueuePairConfig::default())?;
        match a.pair().to_rtr() {
            Err(Error::Transition {
                from, to, source, ..
            }) => {
                ensure!((from, to) == (QpState::Reset, QpState::Rtr));
                ensure!(source.raw_os_error() == Some(libc::EINVAL), "{source}");
            }
            other => anyhow::bail!("{other:?}"),
        }
        ensure!(a.pair().state()? == QpState::Reset);
        ensure!(matches!(a.pair().to_error(), Err(Error::Transition { .. })));
        a.up()?;
        ensure!(a.pair().state()? == QpState::Rts);
        ensure!(matches!(a.pair().to_rtr(), Err(Error::Transition { .. })));
        ensure!(a.pair().state()? == QpState::Rts);
        Ok(())
    });
}

#[test]
fn requests_outstanding_when_the_queue_pair_goes_to_err_are_flushed() {
    run(|t| {
        let config = all_operations(t)?;
        let mut a = Node::new(t, &config)?;
        let region = a.region(&[0; 64])?;
        let list: Vec<_> = (0..10)
            .map(|id| Ok((id, region.sge(0, 64)?)))
            .collect::<Result<_>>()?;
        a.receive(&list)?;
        a.pair().to_error()?;
        ensure!(a.pair().state()? == QpState::Err);
        let mut ids = Vec::new();
        for got in a.received(10)? {
            ensure!(got.status == VendorStatus::FLUSHED, "{got:?}");
            ids.push(got.wr_id);
        }
        ids.sort_unstable();
        ensure!(ids == (0..10).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn nobodys_gid_makes_no_address_handle() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let zero = domain.create_address_handle(Gid::default());
        ensure!(matches!(zero, Err(Error::ZeroGid)), "{zero:?}");
        // A documentation address: no device has it.
        let mut foreign = [0; 16];
        foreign[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        let error = domain
            .create_address_handle(Gid::from_bytes(foreign))
            .unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EINVAL), "{error}");
        Ok(())
    });
}

#[test]
fn remote_access_that_a_p4d_lacks_is_refused_by_name() {
    under("profile=p4d").run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let region = domain.register(Buffer::zeroed(64)?, Access::REMOTE_WRITE);
        match region {
            Err(Error::Unsupported { feature, .. }) => ensure!(feature == Feature::RdmaWrite),
            other => anyhow::bail!("{other:?}"),
        }
        domain.register(Buffer::zeroed(64)?, Access::LOCAL | Access::REMOTE_READ)?;
        let config = QueuePairConfig {
            operations: Operations::WRITE,
            ..QueuePairConfig::default()
        };
        match domain.create_queue_pair(&config) {
            Err(Error::Unsupported {
                device, feature, ..
            }) => {
                ensure!(feature == Feature::RdmaWrite && device == t.device()?.name());
            }
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    });
}

#[test]
fn memory_that_is_not_mapped_is_not_registered() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        // SAFETY: page 1 is never mapped for programs, so the registration must fail; it never
        // comes to an access.
        let region = unsafe { domain.register_raw(0x1000 as *mut u8, 4096, Access::LOCAL) };
        let error = region.unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EFAULT), "{error}");
        Ok(())
    });
}

#[test]
fn a_deregistered_region_gives_its_buffer_back() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let region = domain.register(Buffer::zeroed(5000)?, Access::LOCAL)?;
        region.copy_in(10, b"hello")?;
        let second = region.clone();
        let region = region.deregister().unwrap_err();
        drop(second);
        let buffer = region
            .deregister()
            .map_err(|_| anyhow::anyhow!("still shared"))?
            .context("the buffer is gone")?;
        ensure!(&buffer[10..15] == b"hello" && buffer.len() == 5000);
        Ok(())
    });
}
