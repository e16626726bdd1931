//! Many peers on one queue pair, many queue pairs, many devices.

use anyhow::{Result, ensure};
use efa_tests::{done, region, under};
use efa_transport::{Config, Domain, Endpoint, EndpointAddress, PeerId, Put, ReceivePool, Region};

fn small() -> Config {
    Config {
        send_depth: 32,
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        max_operations: 1024,
        ..Config::default()
    }
}

struct Member {
    endpoint: Endpoint,
    inbox: Region,
    peers: Vec<PeerId>,
}

const LINE: usize = 512;

/// What member `from` writes to member `to`.
fn line(from: usize, to: usize) -> [u8; LINE] {
    let mut line = [0; LINE];
    for (i, byte) in line.iter_mut().enumerate() {
        *byte = (from * 31 + to * 17 + i) as u8;
    }
    line
}

#[test]
fn more_than_a_hundred_queue_pairs_on_many_devices_exchange_data_all_with_all() {
    under("devices=15").run(|t| {
        const EACH: usize = 7;
        let mut members = Vec::new();
        let mut domains = Vec::new();
        for device in t.devices()? {
            domains.push(Domain::new(&device.open()?)?);
        }
        let count = domains.len() * EACH;
        ensure!(count >= 100);
        for domain in &domains {
            for _ in 0..EACH {
                members.push(Member {
                    endpoint: Endpoint::new(domain, small())?,
                    inbox: region(domain, &vec![0; count * LINE])?,
                    peers: Vec::new(),
                });
            }
        }
        let addresses: Vec<EndpointAddress> = members
            .iter()
            .map(|member| member.endpoint.address())
            .collect();
        let inboxes = members
            .iter()
            .map(|member| member.inbox.remote())
            .collect::<Result<Vec<_>, _>>()?;
        for member in &mut members {
            for address in &addresses {
                member.peers.push(member.endpoint.connect(*address)?);
            }
            // One handle per device, whatever the number of peers behind it.
            ensure!(member.endpoint.peers().count() == count);
        }
        for domain in &domains {
            ensure!(
                domain.address_handles() <= domains.len(),
                "{}",
                domain.address_handles()
            );
        }
        let mut open = Vec::new();
        for (from, member) in members.iter_mut().enumerate() {
            let mut lines = Vec::new();
            for to in 0..count {
                lines.extend_from_slice(&line(from, to));
            }
            let source = region(member.endpoint.domain(), &lines)?;
            let place = |at: usize| (at * LINE) as u64..((at + 1) * LINE) as u64;
            for (to, inbox) in inboxes.iter().enumerate() {
                let part = source.slice(place(to))?;
                let target = inbox.slice(place(from))?;
                open.push((
                    from,
                    member
                        .endpoint
                        .submit(Put::new(member.peers[to], part, target).tag(to as u64))?,
                ));
            }
        }
        for (from, operation) in open {
            done(&mut members[from].endpoint, operation)?;
        }
        for (to, member) in members.iter().enumerate() {
            let got = member.inbox.to_vec(..)?;
            for (from, got) in got.chunks(LINE).enumerate() {
                ensure!(got == line(from, to), "from {from} to {to}");
            }
        }
        Ok(())
    });
}

/// Resident memory of this process in bytes.
fn resident() -> Result<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).unwrap_or("0").parse()?;
    Ok(pages * 4096)
}

#[test]
fn ten_thousand_peers_share_a_few_handles_and_little_memory() {
    under("max-rdma-size=4096").run(|t| {
        const PEERS: u32 = 10_000;
        let domain = t.domain()?;
        let mut endpoint = Endpoint::new(&domain, small())?;
        let gids: Vec<_> = (100..104)
            .map(|i| efa_transport::Gid::from_bytes(soft_efa::gid::gid_of([127, 0, 0, i].into())))
            .collect();
        let before = resident()?;
        let mut peers = Vec::with_capacity(PEERS as usize);
        for i in 0..PEERS {
            let gid = gids[i as usize % gids.len()];
            let address = EndpointAddress::new(gid, 1000 + i, 0x4242)?;
            peers.push(endpoint.connect(address)?);
        }
        let each = resident()?.saturating_sub(before) / PEERS as usize;
        ensure!(
            endpoint.peers().count() == PEERS as usize && domain.address_handles() == gids.len()
        );
        ensure!(t.objects()?["ah"] == gids.len() as u64);
        // The budget is 128 bytes beyond the handle; tables grow in steps.
        ensure!(each <= 256, "{each} bytes per peer");
        // And back.
        for peer in peers {
            endpoint.disconnect(peer)?;
        }
        ensure!(endpoint.peers().count() == 0 && domain.address_handles() == 0);
        ensure!(t.objects()?.get("ah").copied().unwrap_or(0) == 0);
        Ok(())
    });
}
