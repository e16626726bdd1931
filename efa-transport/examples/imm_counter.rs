//! How a receiver learns that data has landed: it counts writes with immediate data.
//!
//! The client writes the layers of a model, each in many pieces and in whatever order the
//! fabric likes. The server works on each layer as soon as all of its pieces are there.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example imm_counter`

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::ensure;
use common::{PATIENCE, Side, meet, pair, pattern};
use efa_transport::{Access, Await, Buffer, Config, Endpoint, PeerId, Put, Region, RemoteRegion};

const LAYERS: u64 = 8;
const PIECES: u64 = 16;
/// Bytes of a piece: 16 KiB.
const PIECE: u64 = 16 << 10;
/// Bytes of a layer.
const LAYER: u64 = PIECES * PIECE;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        // Where the device can't do without, each write with immediate data uses up a
        // receive, so have some buffers posted.
        let config = Config {
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(&domain, config)?;
        let buffer = Buffer::zeroed((LAYERS * LAYER) as usize)?;
        let region = domain.register(buffer, Access::REMOTE_WRITE)?;
        let mine = region.remote()?.to_bytes();
        let (peer, told, stream) = meet(&mut endpoint, stream, &mine)?;
        let theirs = RemoteRegion::try_from(&told[..])?;

        match side {
            Side::Client => client(&mut endpoint, peer, &region, theirs, stream),
            Side::Server => server(&mut endpoint, &region, stream),
        }
    })
}

fn client(
    endpoint: &mut Endpoint,
    peer: PeerId,
    region: &Region,
    theirs: RemoteRegion,
    mut stream: TcpStream,
) -> anyhow::Result<()> {
    for layer in 0..LAYERS {
        region.copy_in(layer * LAYER, &pattern(LAYER as usize, layer as u8))?;
    }
    for layer in 0..LAYERS {
        for piece in 0..PIECES {
            let start = layer * LAYER + piece * PIECE;
            let part = start..start + PIECE;
            let (from, to) = (region.slice(part.clone())?, theirs.slice(part)?);
            // The immediate is the layer's number. Where the server has not kept up, it waits by
            // itself.
            endpoint.submit(Put::new(peer, from, to).immediate(layer as u32).tag(layer))?;
        }
    }
    // All of them end, in whatever order.
    endpoint.wait_all(PATIENCE)?;
    let mut failure = None;
    endpoint.poll(|completion| failure = failure.take().or(completion.result.err()))?;
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    println!("client: {} pieces written", LAYERS * PIECES);
    stream.read_exact(&mut [0])?;
    Ok(())
}

fn server(endpoint: &mut Endpoint, region: &Region, mut stream: TcpStream) -> anyhow::Result<()> {
    let limit = Instant::now() + Duration::from_secs(60);
    // Ask to be told of each layer: "when 16 writes with this number have landed".
    for layer in 0..LAYERS {
        endpoint.submit(Await::new(layer as u32, PIECES).tag(layer).deadline(limit))?;
    }
    // They become complete in whatever order; the tag says which is.
    for _ in 0..LAYERS {
        let completion = endpoint.wait_any(PATIENCE)?;
        completion.result?;
        let layer = completion.tag;
        let got = region.to_vec(layer * LAYER..(layer + 1) * LAYER)?;
        ensure!(
            got == pattern(LAYER as usize, layer as u8),
            "layer {layer} was announced and is not complete"
        );
        println!("server: layer {layer} is here, all {PIECES} pieces");
    }
    stream.write_all(b"!")?;
    Ok(())
}
