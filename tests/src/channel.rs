//! How the processes of a test talk to each other.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Nothing between two processes of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A two-way stream of messages.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let patience = super::deadline::scaled(PATIENCE);
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream })
    }

    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("can't reach the test at {}", path.display()))?;
        Ok(Self::new(stream)?)
    }

    /// Sends one message.
    pub fn send<T: Serialize>(&self, message: &T) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        let length = u32::try_from(text.len())?.to_be_bytes();
        let mut stream = &self.stream;
        stream
            .write_all(&length)
            .and_then(|()| stream.write_all(&text))
            .context("the other process of the test can't be told")
    }

    /// The next message if one is there already.
    pub fn try_recv<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let mut poll = libc::pollfd {
            fd: self.stream.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, valid for the call.
        match unsafe { libc::poll(&mut poll, 1, 0) } {
            0 => Ok(None),
            _ => self.recv().map(Some),
        }
    }

    /// Waits for the next message.
    pub fn recv<T: DeserializeOwned>(&self) -> Result<T> {
        let mut stream = &self.stream;
        let mut length = [0; 4];
        stream
            .read_exact(&mut length)
            .context("the other process of the test says nothing")?;
        let length = u32::from_be_bytes(length) as usize;
        if length > 1 << 26 {
            bail!("the other process of the test sends {length} bytes at once");
        }
        let mut text = vec![0; length];
        stream.read_exact(&mut text)?;
        serde_json::from_slice(&text).with_context(|| {
            format!(
                "the other process of the test said {}",
                String::from_utf8_lossy(&text)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let (a, b) = (Channel::new(a).unwrap(), Channel::new(b).unwrap());
        a.send(&"one").unwrap();
        a.send(&vec![1u8; 70]).unwrap();
        assert_eq!(b.recv::<String>().unwrap(), "one");
        assert_eq!(b.try_recv::<Vec<u8>>().unwrap(), Some(vec![1; 70]));
        assert_eq!(b.try_recv::<String>().unwrap(), None);
        drop(a);
        assert!(b.recv::<String>().is_err());
    }
}
