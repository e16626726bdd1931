//! Two processes: one writes into the other's memory, reads it back, and both check it.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example put_get`

mod common;

use std::io::{Read, Write};

use anyhow::ensure;
use common::{PATIENCE, Side, meet, pair, pattern};
use efa_transport::{Access, Buffer, Config, Endpoint, RemoteRegion};

const BYTES: u64 = 4 << 20;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        let mut endpoint = Endpoint::new(&domain, Config::default())?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = domain.register(Buffer::zeroed(BYTES as usize)?, access)?;

        let mine = region.remote()?.to_bytes();
        let (peer, info, mut stream) = meet(&mut endpoint, stream, &mine)?;
        let theirs = RemoteRegion::try_from(&info.user_data[..])?;

        match side {
            Side::Client => {
                let data = pattern(BYTES as usize, 1);
                region.copy_in(0, &data)?;
                let put = endpoint.put(peer, &region, theirs, 1)?;
                endpoint.wait(put, PATIENCE)?.result?;
                println!("client: put {BYTES} bytes");

                let back = domain.register(Buffer::zeroed(BYTES as usize)?, Access::LOCAL)?;
                let get = endpoint.get(peer, &back, theirs, 2)?;
                endpoint.wait(get, PATIENCE)?.result?;
                ensure!(back.to_vec(..)? == data, "what came back differs");
                println!("client: got them back, and they are right");

                // The put has completed, so the server may look.
                stream.write_all(b"!")?;
            }
            Side::Server => {
                stream.read_exact(&mut [0])?;
                ensure!(
                    region.to_vec(..)? == pattern(BYTES as usize, 1),
                    "what arrived differs"
                );
                println!("server: {BYTES} bytes arrived, and they are right");
            }
        }
        Ok(())
    })
}
