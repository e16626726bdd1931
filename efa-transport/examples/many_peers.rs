//! One endpoint that talks to many: a hundred endpoints in the other process, each of which
//! gets its own line, written with one doorbell for all.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example many_peers`

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::ensure;
use common::{PATIENCE, Side, pair};
use efa_transport::{
    Access, Buffer, Config, Domain, Endpoint, EndpointAddress, Error, Put, ReceivePool,
    RemoteRegion,
};

const PEERS: usize = 100;
/// Bytes of a line.
const LINE: u64 = 64;
const ALL_LINES: usize = LINE as usize * PEERS;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| match side {
        Side::Client => hub(&domain, stream),
        Side::Server => crowd(&domain, stream),
    })
}

/// What peer `i` is told.
fn line(i: usize) -> Vec<u8> {
    format!("{:<64}", format!("this is for peer {i}")).into_bytes()
}

/// Where the line of peer `i` is.
fn place(i: usize) -> std::ops::Range<u64> {
    let start = i as u64 * LINE;
    start..start + LINE
}

/// One endpoint, one queue pair, a hundred peers. Each costs about a hundred bytes; address handles
/// are shared by all peers of one device.
fn hub(domain: &Domain, mut stream: TcpStream) -> anyhow::Result<()> {
    let mut endpoint = Endpoint::new(domain, Config::default())?;
    let region = domain.register(Buffer::zeroed(ALL_LINES)?, Access::LOCAL)?;

    // Addresses and memory descriptors have fixed sizes, so they can go over any channel. (The
    // handshake does the same and more: this is how to do without.)
    stream.write_all(&endpoint.address().to_bytes())?;
    let mut peers = Vec::with_capacity(PEERS);
    for i in 0..PEERS {
        let mut address = [0; EndpointAddress::WIRE_SIZE];
        let mut target = [0; RemoteRegion::WIRE_SIZE];
        stream.read_exact(&mut address)?;
        stream.read_exact(&mut target)?;
        let peer = endpoint.connect(EndpointAddress::from_bytes(address)?)?;
        peers.push((peer, RemoteRegion::from_bytes(target)?));
        region.copy_in(place(i).start, &line(i))?;
    }

    // All of them in one batch: they are posted together, or not at all.
    endpoint.batch(|batch| {
        for (i, &(peer, target)) in peers.iter().enumerate() {
            batch.add(Put::new(peer, region.slice(place(i))?, target).tag(i as u64))?;
        }
        Ok::<_, Error>(())
    })?;
    for _ in 0..PEERS {
        endpoint.wait_any(PATIENCE)?.result?;
    }
    let stats = endpoint.stats();
    println!(
        "client: {} writes to {} peers in {} batch",
        stats.operations,
        peers.len(),
        stats.batches
    );
    stream.write_all(b"!")?;
    Ok(())
}

/// A hundred endpoints, as a hundred processes would have them.
fn crowd(domain: &Domain, mut stream: TcpStream) -> anyhow::Result<()> {
    // One region for all: regions belong to the domain, not to an endpoint.
    let region = domain.register(Buffer::zeroed(ALL_LINES)?, Access::REMOTE_WRITE)?;
    // Small queues are enough for endpoints that only receive.
    let small = Config {
        send_depth: 16,
        receive_pool: ReceivePool::NONE,
        ..Config::default()
    };
    let mut endpoints: Vec<_> = (0..PEERS)
        .map(|_| Endpoint::new(domain, small.clone()))
        .collect::<Result<_, _>>()?;

    let mut address = [0; EndpointAddress::WIRE_SIZE];
    stream.read_exact(&mut address)?;
    let hub = EndpointAddress::from_bytes(address)?;
    for (i, endpoint) in endpoints.iter_mut().enumerate() {
        // A device answers only those for whom it has a handle: connect before the hub writes.
        endpoint.connect(hub)?;
        let part = region.remote()?.slice(place(i))?;
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
        let text = String::from_utf8_lossy(got);
        ensure!(got == line(i), "peer {i} got {text:?}");
    }
    println!("server: every peer has its line");
    Ok(())
}
