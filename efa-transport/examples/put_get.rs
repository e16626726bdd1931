//! Two processes: the client writes into the server's memory and reads it back; both check it.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example put_get`

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::ensure;
use common::{PATIENCE, Side, meet, pair, pattern};
use efa_transport::{
    Access, Buffer, Config, Domain, Endpoint, Get, PeerId, Put, Region, RemoteRegion,
};

/// 4 MiB. Any size will do: what is longer than the device's largest request is cut, and what does
/// not fit into its queue flows through it.
const BYTES: usize = 4 << 20;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        // A queue pair, and memory that the peer may read and write.
        let mut endpoint = Endpoint::new(&domain, Config::default())?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.register(Buffer::zeroed(BYTES)?, access)?;

        // Each tells the other where its memory is: 20 bytes of address, length and key.
        let mine = region.remote()?.to_bytes();
        let (peer, told, stream) = meet(&mut endpoint, stream, &mine)?;
        let theirs = RemoteRegion::try_from(&told[..])?;

        match side {
            Side::Client => client(&domain, &mut endpoint, peer, &region, theirs, stream),
            Side::Server => server(&region, stream),
        }
    })
}

fn client(
    domain: &Domain,
    endpoint: &mut Endpoint,
    peer: PeerId,
    region: &Region,
    theirs: RemoteRegion,
    mut stream: TcpStream,
) -> anyhow::Result<()> {
    let data = pattern(BYTES, 1);
    region.copy_in(0, &data)?;

    // The last argument is a number of ours, which comes back with the completion.
    let put = endpoint.submit(Put::new(peer, region, theirs).tag(1))?;
    // The first `?` is for the waiting, the second for what became of the put.
    endpoint.wait(put, PATIENCE)?.result?;
    println!("client: put {BYTES} bytes");

    let back = domain.register(Buffer::zeroed(BYTES)?, Access::LOCAL)?;
    let get = endpoint.submit(Get::new(peer, &back, theirs).tag(2))?;
    endpoint.wait(get, PATIENCE)?.result?;
    ensure!(back.to_vec(..)? == data, "what came back differs");
    println!("client: got them back, and they are right");

    // The put has completed, so its bytes are there; only now may the server look. (The example
    // `imm_counter` shows how it learns that without another channel.)
    stream.write_all(b"!")?;
    Ok(())
}

/// Nothing here moves a byte: the devices do it by themselves.
fn server(region: &Region, mut stream: TcpStream) -> anyhow::Result<()> {
    stream.read_exact(&mut [0])?;
    let arrived = region.to_vec(..)?;
    ensure!(arrived == pattern(BYTES, 1), "what arrived differs");
    println!("server: {BYTES} bytes arrived, and they are right");
    Ok(())
}
