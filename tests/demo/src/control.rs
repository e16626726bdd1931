//! What the two processes say to each other over TCP.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Nothing that one side does between two messages takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the second process is to do.
#[derive(Debug, Serialize, Deserialize)]
pub enum Order {
    /// Fill the first `length` bytes with those of this seed, and answer with their checksum.
    Fill { seed: u64, length: u64 },
    /// Compare the checksum of the first `length` bytes, and answer with its own.
    Check { length: u64, checksum: String },
    /// That was all for this connection.
    End,
}

/// The second process's answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The checksum that it found.
    pub checksum: String,
    /// Whether it is the one that was expected.
    pub right: bool,
}

/// A connection that carries one message per line.
pub struct Control {
    stream: BufReader<TcpStream>,
}

impl Control {
    /// Uses a connected stream.
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a message.
    pub fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_string(message)?;
        line.push('\n');
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .context("the other process can't be reached any more")
    }

    /// Waits for a message.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let read = self
            .stream
            .read_line(&mut line)
            .context("the other process says nothing")?;
        ensure!(read > 0, "the other process has ended");
        serde_json::from_str(&line)
            .with_context(|| format!("the other process said {line:?}, which is not understood"))
    }

    /// Sends an order and waits for its answer.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.send(order)?;
        self.receive()
    }
}
