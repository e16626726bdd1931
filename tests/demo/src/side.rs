//! The two processes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use efa_transport::handshake::{Connected, Connector, HandshakeConfig, Listener};
use efa_transport::{
    Access, Buffer, Completion, Config, Domain, Endpoint, Loopback, PeerId, Region, RemoteRegion,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::control::{Answer, Control, Order};
use crate::memory;
use crate::steps::{BUFFER, CUT, Direction, WHOLE};
use crate::table::{self, Row};

/// A handshake on one machine takes milliseconds.
const GREETING: Duration = Duration::from_secs(60);

/// No transfer of the demo takes a tenth of this, not even on a busy software device.
const TRANSFER: Duration = Duration::from_secs(60);

/// Device, buffer and endpoint of one process.
struct Side {
    endpoint: Endpoint,
    region: Region,
}

impl Side {
    /// `cut` is the longest request, where it is to be shorter than the device's own.
    fn new(domain: &Domain, region: &Region, cut: Option<u32>) -> Result<Self> {
        let config = Config {
            max_request: cut,
            // Through the device in any case: that is what is being shown.
            loopback: Loopback::Device,
            ..Config::default()
        };
        Ok(Self {
            endpoint: Endpoint::new(domain, config)?,
            region: region.clone(),
        })
    }
}

/// The device, and a buffer that the other process may read and write.
fn open(device: Option<&str>) -> Result<(Domain, Region)> {
    let domain = match device {
        Some(name) => Domain::open(name),
        None => Domain::open_first(),
    }?;
    let access = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let bytes = usize::try_from(BUFFER).context("the buffer does not fit into memory")?;
    let region = domain.register(Buffer::zeroed(bytes)?, access)?;
    Ok((domain, region))
}

/// The first process, before the second one is there.
pub struct Waiting {
    domain: Domain,
    region: Region,
    listener: Listener,
}

impl Waiting {
    /// Opens the device and listens on the loopback interface.
    pub fn new(device: Option<&str>) -> Result<Self> {
        let (domain, region) = open(device)?;
        let listener = Listener::bind("127.0.0.1:0", HandshakeConfig::default())
            .context("can't listen on the loopback interface")?;
        Ok(Self {
            domain,
            region,
            listener,
        })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.domain.device_name()
    }

    /// Where the second process is to connect.
    pub fn address(&self) -> Result<String> {
        Ok(self.listener.local_addr()?.to_string())
    }

    /// Waits for the second process and makes the transfers; true if every byte was right.
    pub fn run(&mut self) -> Result<bool> {
        let transfers = (WHOLE.len() + 1) * Direction::BOTH.len();
        let progress = progress(transfers);
        progress.suspend(|| println!("{}", table::header()));
        let mut verified = true;
        for (cut, sizes) in [(None, &WHOLE[..]), (Some(CUT), &[BUFFER][..])] {
            let side = Side::new(&self.domain, &self.region, cut)?;
            let mut first = First::greet(side, &mut self.listener)?;
            for (index, size) in sizes.iter().enumerate() {
                for direction in Direction::BOTH {
                    progress.set_message(format!("{} of {size} bytes", direction.name()));
                    let seed = (index as u64) << 8 | u64::from(cut.is_some()) << 1;
                    let row = first.transfer(direction, *size, seed)?;
                    verified &= row.verified;
                    progress.suspend(|| println!("{}", row.line()));
                    progress.inc(1);
                }
            }
            first.control.send(&Order::End)?;
        }
        progress.finish_and_clear();
        Ok(verified)
    }
}

fn progress(transfers: usize) -> ProgressBar {
    // Hidden by itself where standard error is no terminal.
    let bar = ProgressBar::new(transfers as u64);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:20} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// The first process, connected.
struct First {
    side: Side,
    peer: PeerId,
    control: Control,
    remote: RemoteRegion,
}

impl First {
    fn greet(mut side: Side, listener: &mut Listener) -> Result<Self> {
        let arrival = listener
            .accept(&mut side.endpoint, Some(GREETING))
            .ok_or_else(|| anyhow!("the second process does not connect"))?;
        let Connected { peer, channel, .. } =
            arrival.context("the handshake with the second process failed")?;
        let mut control = Control::new(channel)?;
        let remote: String = control.receive()?;
        Ok(Self {
            side,
            peer,
            control,
            remote: remote.parse().context("the second process's buffer")?,
        })
    }

    /// Makes one transfer and has it checked on both sides.
    fn transfer(&mut self, direction: Direction, length: u64, seed: u64) -> Result<Row> {
        let region = self.side.region.clone();
        // Both buffers are filled each time, with different bytes: what was there before can't
        // pass for what was transferred.
        let (ours, theirs) = (seed | 1 << 32, seed | 2 << 32);
        memory::fill(&region, ours, length)?;
        let filled = self.control.ask(&Order::Fill {
            seed: theirs,
            length,
        })?;
        let before = memory::checksum(&region, length)?;

        let requests = self.side.endpoint.stats().requests;
        let started = Instant::now();
        let completion = self.carry_out(direction, length)?;
        let time = started.elapsed();
        if let Err(failure) = completion.result {
            bail!(
                "{} of {length} bytes failed: {failure}{}",
                direction.name(),
                self.same_host()
            );
        }

        let expected = match direction {
            Direction::Put => before,
            Direction::Get => filled.checksum,
        };
        let found = memory::checksum(&region, length)?;
        let answer = self.control.ask(&Order::Check {
            length,
            checksum: found.clone(),
        })?;
        Ok(Row {
            operation: direction.name(),
            bytes: length,
            requests: self.side.endpoint.stats().requests - requests,
            time,
            verified: found == expected && answer.checksum == expected && answer.right,
        })
    }

    fn carry_out(&mut self, direction: Direction, length: u64) -> Result<Completion> {
        let region = self.side.region.clone();
        let local = region.slice(..length)?;
        let remote = self.remote.slice(..length)?;
        let endpoint = &mut self.side.endpoint;
        let operation = match direction {
            Direction::Put => endpoint.put(self.peer, local, remote)?,
            Direction::Get => endpoint.get(self.peer, local, remote)?,
        };
        match endpoint.wait(operation, Some(TRANSFER)) {
            Ok(completion) => Ok(completion),
            Err(error) => Err(anyhow!("{error}{}", self.same_host())),
        }
    }

    /// What to think of a failure on real hardware, where both processes share the device.
    fn same_host(&self) -> String {
        if std::env::var_os(soft_efa::launch::DIR_VAR).is_some() {
            return String::new();
        }
        format!(
            "\nBoth processes of the demo use {}, and some EFA devices drop what they send to \
             themselves (those of p4d, PCI id 0xefa1, do). If so, nothing is wrong with this \
             machine: transfers between two hosts work. The security group must allow all \
             traffic to and from itself.",
            self.side.endpoint.domain().device_name()
        )
    }
}

/// Plays the second process.
pub fn second(device: Option<&str>, first: &str) -> Result<()> {
    let first: SocketAddr = first.parse().context("the first process's address")?;
    let (domain, region) = open(device)?;
    for cut in [None, Some(CUT)] {
        let mut side = Side::new(&domain, &region, cut)?;
        let connector = Connector::new(first, HandshakeConfig::default())?;
        let connected = connector
            .run(&mut side.endpoint)
            .context("the handshake with the first process failed")?;
        let mut control = Control::new(connected.channel)?;
        control.send(&side.region.remote()?.to_string())?;
        obey(&side, &mut control)?;
    }
    Ok(())
}

fn obey(side: &Side, control: &mut Control) -> Result<()> {
    loop {
        let (length, expected) = match control.receive()? {
            Order::Fill { seed, length } => {
                memory::fill(&side.region, seed, length)?;
                (length, None)
            }
            Order::Check { length, checksum } => (length, Some(checksum)),
            Order::End => return Ok(()),
        };
        let checksum = memory::checksum(&side.region, length)?;
        control.send(&Answer {
            right: expected.is_none_or(|expected| expected == checksum),
            checksum,
        })?;
    }
}
