//! What the examples share: two processes that find each other over TCP.
//!
//! Without arguments an example starts its own peer process, so that one command runs all
//! of it. On two machines, start one with `--listen ADDRESS:PORT` and the other with
//! `--connect ADDRESS:PORT`. `--device NAME` chooses a device; the first one is the default.

// Each example uses a part of this.
#![allow(dead_code)]

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use efa_transport::handshake::{Connector, HandshakeConfig};
use efa_transport::{Domain, Endpoint, PeerId};

/// How long anything may take before the example gives up.
pub const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// Which part this process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that listened.
    Server,
    /// The one that connected.
    Client,
}

/// The command line.
#[derive(Default)]
pub struct Options {
    device: Option<String>,
    listen: Option<String>,
    connect: Option<String>,
}

impl Options {
    /// Reads the command line.
    pub fn parse() -> anyhow::Result<Self> {
        let mut options = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let value = args
                .next()
                .with_context(|| format!("{arg} needs a value"))?;
            match arg.as_str() {
                "--device" => options.device = Some(value),
                "--listen" => options.listen = Some(value),
                "--connect" => options.connect = Some(value),
                _ => bail!("unknown option {arg}; there are --device, --listen and --connect"),
            }
        }
        Ok(options)
    }

    /// Opens the device.
    pub fn domain(&self) -> anyhow::Result<Domain> {
        Ok(match &self.device {
            Some(name) => Domain::open(name)?,
            None => Domain::open_first()?,
        })
    }
}

/// Runs `part` in two processes that have a TCP stream between them.
pub fn pair(
    part: impl FnOnce(Side, TcpStream, Domain) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (side, stream, domain, other) = find()?;
    part(side, stream, domain)?;
    other.finish()
}

/// Finds, or starts, the other process. To be told when this one has done its part.
pub fn find() -> anyhow::Result<(Side, TcpStream, Domain, Other)> {
    let options = Options::parse()?;
    if let Some(address) = &options.connect {
        let stream =
            TcpStream::connect(address).with_context(|| format!("connect to {address}"))?;
        return Ok((Side::Client, stream, options.domain()?, Other(None)));
    }
    let listener = TcpListener::bind(options.listen.as_deref().unwrap_or("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let child = match options.listen {
        Some(_) => {
            println!("start the other side with --connect {address}");
            None
        }
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--connect", &address.to_string()]);
            if let Some(device) = &options.device {
                command.args(["--device", device]);
            }
            Some(command.spawn()?)
        }
    };
    let other = Other(child);
    let (stream, _) = listener.accept()?;
    Ok((Side::Server, stream, options.domain()?, other))
}

/// The other process, which is not left behind if this one has started it.
pub struct Other(Option<Child>);

impl Other {
    /// Waits for its end.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let Some(child) = &mut self.0 else {
            return Ok(());
        };
        let status = child.wait()?;
        ensure!(status.success(), "the peer process failed: {status}");
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Shakes hands over the stream: both sides make an address handle for each other, and only then
/// does either go on. Tells the peer `user_data`, and returns what it told. The stream comes back,
/// to be used for anything else.
pub fn meet(
    endpoint: &mut Endpoint,
    stream: TcpStream,
    user_data: &[u8],
) -> anyhow::Result<(PeerId, Vec<u8>, TcpStream)> {
    let config = HandshakeConfig::default().user_data(user_data);
    let connected = Connector::from_stream(stream, config)?.run(endpoint)?;
    Ok((connected.peer, connected.user_data, connected.channel))
}

/// Bytes that can be told from others.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect()
}
