//! What newer releases of rdma-core add. With an older one each test says which it needs.

use anyhow::{Result, bail, ensure};
use efa_tests::{Node, Test, run, skip, under};
use efa_verbs::{
    DataPath, Error, Limit, Operations, QueuePairConfig, Request, SendCompletion,
    efa_symbol_version,
};

fn inline(bytes: &[u8], immediate: Option<u32>) -> Request<'_> {
    Request::SendInline { bytes, immediate }
}

fn config(t: &Test) -> Result<QueuePairConfig> {
    let can = t.device()?.open()?.attributes().capabilities;
    Ok(QueuePairConfig {
        operations: Operations::supported(can),
        ..QueuePairConfig::default()
    })
}

/// The p6 generation's PCI id is known to libefa since about when it has wide entries.
fn need_p6(t: &Test) -> Result<()> {
    if efa_symbol_version() < 5 {
        return Err(skip(
            "libefa knows devices of the p6 generation from rdma-core 63 on",
        ));
    }
    t.need_loopback()
}

/// Sends back and forth until every slot of the queues was used a few times.
fn exercise(node: &mut Node) -> Result<()> {
    let region = node.region(&[7; 128])?;
    let to = node.to(node.address()?)?;
    let rounds = 3 * u64::from(node.pair().send_capacity());
    for id in 0..rounds {
        node.receive(&[(id, region.sge(64, 64)?)])?;
        node.send(&to, &[(id, region.sge(0, 64)?)])?;
        ensure!(node.sent_well(1)? == [id]);
        ensure!(node.received(1)?[0].wr_id == id);
    }
    Ok(())
}

#[test]
fn locks_are_off_where_that_is_safe_and_on_elsewhere() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        for locks in [true, false] {
            let config = QueuePairConfig {
                locks,
                ..config(t)?
            };
            let pair = domain.create_queue_pair(&config)?;
            ensure!(pair.is_lockless() == (!locks && efa_symbol_version() >= 5));
        }
        Ok(())
    });
}

#[test]
fn a_queue_pair_without_locks_works() {
    run(|t| {
        t.need_loopback()?;
        if efa_symbol_version() < 5 {
            return Err(skip(
                "libefa can leave out its locks safely from rdma-core 63 on",
            ));
        }
        let config = QueuePairConfig {
            path: DataPath::Libefa,
            send_depth: 32,
            recv_depth: 32,
            ..config(t)?
        };
        let mut node = Node::new(t, &config)?;
        ensure!(node.pair().is_lockless());
        exercise(&mut node)
    });
}

#[test]
fn wide_entries_carry_more_inline_data_in_a_shorter_queue() {
    under("profile=p6").run(|t| {
        need_p6(t)?;
        let context = t.device()?.open()?;
        let attributes = context.attributes();
        let wide = u32::from(attributes.inline_buf_size_ex);
        if wide <= u32::from(attributes.inline_buf_size) {
            return Err(skip("wider send entries need rdma-core 63"));
        }
        let config = QueuePairConfig {
            max_inline: wide,
            send_depth: 16,
            ..config(t)?
        };

        // The limit is that of the wide entries.
        let deep = QueuePairConfig {
            send_depth: attributes.max_sq_wr,
            ..config.clone()
        };
        match context.alloc_pd()?.create_queue_pair(&deep) {
            Err(Error::LimitExceeded {
                what: Limit::SendDepth,
                limit,
                ..
            }) => {
                ensure!(limit < u64::from(attributes.max_sq_wr), "{limit}");
            }
            other => bail!("{other:?}"),
        }

        let mut node = Node::new(t, &config)?;
        let region = node.region(&[0; 256])?;
        let to = node.to(node.address()?)?;
        let bytes: Vec<u8> = (1..).take(wide as usize).collect();
        node.receive(&[(1, region.sge(0, 256)?)])?;
        let pair = node.pair();
        pair.session_start()?;
        // SAFETY: a session is open, and the node keeps its address handles.
        unsafe { pair.push(2, &to, inline(&bytes, Some(5))) };
        pair.session_complete()?;
        node.sent_well(1)?;
        let got = node.received(1)?[0];
        ensure!(got.byte_len == wide && got.immediate == Some(5), "{got:?}");
        let mut arrived = vec![0; wide as usize];
        region.copy_out(0, &mut arrived)?;
        ensure!(arrived == bytes);

        // One byte more is refused, and the queue pair goes on working.
        let too_many = vec![0; wide as usize + 1];
        let pair = node.pair();
        pair.session_start()?;
        // SAFETY: as above.
        unsafe { pair.push(3, &to, inline(&too_many, None)) };
        match pair.session_complete() {
            Err(Error::LimitExceeded {
                what: Limit::InlineData,
                requested,
                limit,
                ..
            }) => {
                ensure!((requested, limit) == (u64::from(wide) + 1, u64::from(wide)));
            }
            other => bail!("{other:?}"),
        }
        exercise(&mut node)
    });
}

#[test]
fn a_device_with_a_minimum_depth_has_room_for_every_completion() {
    under("profile=p6").run(|t| {
        need_p6(t)?;
        let config = QueuePairConfig {
            send_depth: 1,
            ..config(t)?
        };
        let mut node = Node::new(t, &config)?;
        let capacity = node.pair().send_capacity();
        let region = node.region(&[1; 64])?;
        let to = node.to(node.address()?)?;
        let ids: Vec<u64> = (0..u64::from(capacity)).collect();
        for &id in &ids {
            node.receive(&[(id, region.sge(32, 8)?)])?;
        }
        let list = ids
            .iter()
            .map(|&id| Ok((id, region.sge(0, 8)?)))
            .collect::<Result<Vec<_>>>()?;
        node.send(&to, &list)?;
        // Everything completes before the first poll takes something.
        node.received(capacity as usize)?;
        std::thread::sleep(std::time::Duration::from_millis(100));
        let mut all = vec![SendCompletion::default(); capacity as usize + 1];
        let n = node.pair().poll_send(&mut all)?;
        let mut found: Vec<_> = all[..n].iter().map(|completion| completion.wr_id).collect();
        found.sort_unstable();
        ensure!(found == ids, "{found:?}");
        Ok(())
    });
}
