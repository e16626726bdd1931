//! One endpoint that talks to many: a hundred endpoints in the other process, each of which
//! gets its own line, written with one doorbell for all.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example many_peers`

mod common;

use std::io::{Read, Write};

use anyhow::ensure;
use common::{PATIENCE, Side, pair};
use efa_transport::{Access, Buffer, Config, Endpoint, EndpointAddress, Error, RemoteRegion};

const PEERS: usize = 100;
const LINE: u64 = 64;

fn line(i: usize) -> Vec<u8> {
    format!("{:<64}", format!("this is for peer {i}")).into_bytes()
}

fn main() -> anyhow::Result<()> {
    pair(|side, mut stream, domain| {
        // One region for all: regions belong to the domain, not to an endpoint.
        let size = LINE as usize * PEERS;
        match side {
            Side::Server => {
                let region = domain.register(Buffer::zeroed(size)?, Access::REMOTE_WRITE)?;
                let small = Config {
                    send_depth: 16,
                    receive_depth: 16,
                    immediate_room: 16,
                    immediate_grant: 16,
                    ..Config::default()
                };
                let mut endpoints: Vec<_> = (0..PEERS)
                    .map(|_| Endpoint::new(&domain, small.clone()))
                    .collect::<Result<_, _>>()?;
                let mut address = [0; EndpointAddress::WIRE_SIZE];
                stream.read_exact(&mut address)?;
                let hub = EndpointAddress::from_bytes(address)?;
                for (i, endpoint) in endpoints.iter_mut().enumerate() {
                    endpoint.connect(hub)?;
                    let start = i as u64 * LINE;
                    let part = region.remote()?.slice(start..start + LINE)?;
                    stream.write_all(&endpoint.address().to_bytes())?;
                    stream.write_all(&part.to_bytes())?;
                }
                println!(
                    "server: {PEERS} endpoints share {} address handle",
                    domain.address_handles()
                );
                stream.read_exact(&mut [0])?;
                let got = region.to_vec(..)?;
                for (i, got) in got.chunks(LINE as usize).enumerate() {
                    ensure!(
                        got == line(i),
                        "peer {i} got {:?}",
                        String::from_utf8_lossy(got)
                    );
                }
                println!("server: every peer has its line");
            }
            Side::Client => {
                let mut endpoint = Endpoint::new(&domain, Config::default())?;
                let region = domain.register(Buffer::zeroed(size)?, Access::LOCAL)?;
                stream.write_all(&endpoint.address().to_bytes())?;
                let mut peers = Vec::new();
                for i in 0..PEERS {
                    let mut address = [0; EndpointAddress::WIRE_SIZE];
                    let mut target = [0; RemoteRegion::WIRE_SIZE];
                    stream.read_exact(&mut address)?;
                    stream.read_exact(&mut target)?;
                    let peer = endpoint.connect(EndpointAddress::from_bytes(address)?)?;
                    peers.push((peer, RemoteRegion::from_bytes(target)?));
                    region.copy_in(i as u64 * LINE, &line(i))?;
                }
                endpoint.post(|session| {
                    for (i, &(peer, target)) in peers.iter().enumerate() {
                        let start = i as u64 * LINE;
                        session.write(
                            peer,
                            region.slice(start..start + LINE)?,
                            target,
                            i as u64,
                        )?;
                    }
                    Ok::<_, Error>(())
                })?;
                for _ in 0..PEERS {
                    endpoint.wait_any(PATIENCE)?.result?;
                }
                let stats = endpoint.stats();
                println!(
                    "client: {} writes to {} peers in {} session",
                    stats.operations,
                    endpoint.peer_count(),
                    stats.sessions
                );
                stream.write_all(b"!")?;
            }
        }
        Ok(())
    })
}
