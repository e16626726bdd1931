//! A file of any size through two small windows: the client fills one while the other is
//! on its way, and the server is told of each by immediate data.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example stream_file`
//!
//! It streams its own executable. The server writes what it gets to a temporary file, and compares
//! a check sum in the end.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, ensure};
use common::{PATIENCE, Side, meet, pair};
use efa_transport::{Access, Await, Buffer, Config, Endpoint, PeerId, Put, Region, RemoteRegion};

/// Bytes of a window: 256 KiB.
const WINDOW: u64 = 256 << 10;
const WINDOWS: u64 = 2;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        // The client is told by messages which windows are free; a pool takes them.
        let config = Config {
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(&domain, config)?;
        let buffer = Buffer::zeroed((WINDOW * WINDOWS) as usize)?;
        let region = domain.register(buffer, Access::REMOTE_WRITE)?;
        let file = File::open(std::env::current_exe()?)?;

        // Beside its memory, each tells the length of its file; the client's counts.
        let mut mine = region.remote()?.to_bytes().to_vec();
        mine.extend_from_slice(&file.metadata()?.len().to_be_bytes());
        let (peer, told, stream) = meet(&mut endpoint, stream, &mine)?;
        let (theirs, length) = told
            .split_at_checked(RemoteRegion::WIRE_SIZE)
            .context("the peer told too little")?;
        let theirs = RemoteRegion::try_from(theirs)?;

        match side {
            Side::Client => client(&mut endpoint, peer, &region, theirs, file, stream),
            Side::Server => {
                let length = u64::from_be_bytes(length.try_into()?);
                server(&mut endpoint, peer, &region, length, stream)
            }
        }
    })
}

/// FNV-1a, to compare files by.
fn sum(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The windows, one after the other: number, place in the region, and bytes of the file.
fn windows(total: u64) -> impl Iterator<Item = (u32, std::ops::Range<u64>)> {
    (0..total.div_ceil(WINDOW)).map(move |turn| {
        let window = turn % WINDOWS;
        let start = window * WINDOW;
        let count = WINDOW.min(total - turn * WINDOW);
        (window as u32, start..start + count)
    })
}

fn client(
    endpoint: &mut Endpoint,
    peer: PeerId,
    region: &Region,
    theirs: RemoteRegion,
    mut file: File,
    mut stream: TcpStream,
) -> anyhow::Result<()> {
    let total = file.metadata()?.len();
    let mut buffer = vec![0; WINDOW as usize];
    let mut check = 0;
    let mut flying: Vec<_> = Vec::new();
    for (turn, (window, part)) in windows(total).enumerate() {
        if turn as u64 >= WINDOWS {
            // The server has written a window to its file, so that it is free there; and the put
            // from it has completed, so that it is free here.
            let message = endpoint.wait_message(PATIENCE)?;
            ensure!(&message[..] == b"free", "unexpected message");
            drop(message);
            endpoint.wait(flying.remove(0), PATIENCE)?.result?;
        }
        let bytes = &mut buffer[..(part.end - part.start) as usize];
        file.read_exact(bytes)?;
        check = sum(check, bytes);
        region.copy_in(part.start, bytes)?;
        let (from, to) = (region.slice(part.clone())?, theirs.slice(part)?);
        flying.push(endpoint.submit(Put::new(peer, from, to).immediate(window))?);
    }
    for put in flying {
        endpoint.wait(put, PATIENCE)?.result?;
    }
    println!("client: streamed {total} bytes through {WINDOWS} windows of {WINDOW}");
    stream.write_all(&check.to_be_bytes())?;
    stream.read_exact(&mut [0])?;
    Ok(())
}

fn server(
    endpoint: &mut Endpoint,
    peer: PeerId,
    region: &Region,
    total: u64,
    mut stream: TcpStream,
) -> anyhow::Result<()> {
    let path = std::env::temp_dir().join(format!("efa-stream-{}", std::process::id()));
    let mut file = File::create_new(&path)?;
    // It has no name any more, and goes when it is closed, whatever happens.
    std::fs::remove_file(&path)?;
    let mut check = 0;
    for (window, part) in windows(total) {
        // One write with the window's number has landed: all of its bytes are here.
        let landed = endpoint.submit(Await::new(window, 1))?;
        endpoint.wait(landed, PATIENCE)?.result?;
        let bytes = region.to_vec(part)?;
        check = sum(check, &bytes);
        file.write_all(&bytes)?;
        let send = endpoint.send(peer, b"free")?;
        endpoint.wait(send, PATIENCE)?.result?;
    }
    let mut expected = [0; 8];
    stream.read_exact(&mut expected)?;
    ensure!(check == u64::from_be_bytes(expected), "the file differs");
    println!("server: {total} bytes arrived, and they are right");
    stream.write_all(b"!")?;
    Ok(())
}
