//! A file of any size through two small windows: the client fills one while the other is
//! on its way, and the server is told of each by immediate data.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example stream_file`
//!
//! It streams its own executable. The server checks the bytes that it gets.

mod common;

use std::fs::File;
use std::io::{Read, Write};

use anyhow::ensure;
use common::{PATIENCE, Side, meet, pair};
use efa_transport::{Access, Buffer, Config, Endpoint, RemoteRegion};

const WINDOW: u64 = 256 << 10;
const WINDOWS: u64 = 2;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        let config = Config {
            receive_pool: Some(Default::default()),
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(&domain, config)?;
        let region = domain.register(
            Buffer::zeroed((WINDOW * WINDOWS) as usize)?,
            Access::REMOTE_WRITE,
        )?;
        let mine = region.remote()?.to_bytes();
        let (peer, info, mut stream) = meet(&mut endpoint, stream, &mine)?;
        let theirs = RemoteRegion::try_from(&info.user_data[..])?;
        let mut file = File::open(std::env::current_exe()?)?;
        let total = file.metadata()?.len();
        let mut window = 0;
        let mut moved = 0;

        match side {
            Side::Client => {
                let mut buffer = vec![0; WINDOW as usize];
                while moved < total {
                    if moved >= WINDOW * WINDOWS {
                        // The server has written a window to disk, so it is free again.
                        let message = endpoint.wait_message(PATIENCE)?;
                        ensure!(&message[..] == b"free", "unexpected message");
                    }
                    let count = WINDOW.min(total - moved);
                    file.read_exact(&mut buffer[..count as usize])?;
                    let start = window * WINDOW;
                    let part = start..start + count;
                    region.copy_in(start, &buffer[..count as usize])?;
                    let put = endpoint.put_with_immediate(
                        peer,
                        region.slice(part.clone())?,
                        theirs.slice(part)?,
                        window as u32,
                        0,
                    )?;
                    endpoint.wait(put, PATIENCE)?.result?;
                    moved += count;
                    window = (window + 1) % WINDOWS;
                }
                println!("client: streamed {moved} bytes through {WINDOWS} windows of {WINDOW}");
                stream.read_exact(&mut [0])?;
            }
            Side::Server => {
                let mut buffer = vec![0; WINDOW as usize];
                while moved < total {
                    let landed = endpoint.await_immediate(window as u32, 1, 0)?;
                    endpoint.wait(landed, PATIENCE)?.result?;
                    let count = WINDOW.min(total - moved);
                    file.read_exact(&mut buffer[..count as usize])?;
                    let start = window * WINDOW;
                    ensure!(
                        region.to_vec(start..start + count)? == buffer[..count as usize],
                        "the bytes from {moved} on differ"
                    );
                    let send = endpoint.send_bytes(peer, b"free", None, 0)?;
                    endpoint.wait(send, PATIENCE)?.result?;
                    moved += count;
                    window = (window + 1) % WINDOWS;
                }
                println!("server: {moved} bytes arrived, and they are right");
                stream.write_all(b"!")?;
            }
        }
        Ok(())
    })
}
