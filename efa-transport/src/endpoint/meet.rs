//! Handshakes of an endpoint: what the parts of [`handshake`](crate::handshake) offer in public.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::task::Poll;
use std::time::Duration;

use super::Endpoint;
use crate::handshake::{Connected, Connector, HandshakeConfig, HandshakeError, Listener, run_over};

impl Listener {
    /// Does what can be done now, and returns the next handshake that has ended, if any. A failure
    /// concerns one client alone; its error names the client.
    ///
    /// # Errors
    /// Why a handshake failed, or why a client could not be accepted.
    pub fn poll(
        &mut self,
        endpoint: &mut Endpoint,
    ) -> Option<Result<Connected<TcpStream>, HandshakeError>> {
        self.poll_in(endpoint)
    }

    /// Waits for the next handshake to end, at most for `timeout`; `None` if none has.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn accept(
        &mut self,
        endpoint: &mut Endpoint,
        timeout: Option<Duration>,
    ) -> Option<Result<Connected<TcpStream>, HandshakeError>> {
        self.accept_in(endpoint, timeout)
    }

    /// Ends all pending handshakes and stops listening. A listener that is dropped instead leaves
    /// the address handles of pending peers at the endpoint.
    pub fn close(self, endpoint: &mut Endpoint) {
        self.close_in(endpoint);
    }
}

impl Connector {
    /// Does what can be done now. After [`Poll::Ready`] the handshake is over.
    ///
    /// # Errors
    /// Why the handshake failed. The error names the target, and has the last error of each of its
    /// addresses.
    pub fn poll(
        &mut self,
        endpoint: &mut Endpoint,
    ) -> Poll<Result<Connected<TcpStream>, HandshakeError>> {
        self.poll_in(endpoint)
    }

    /// Waits until the handshake has ended.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn run(self, endpoint: &mut Endpoint) -> Result<Connected<TcpStream>, HandshakeError> {
        self.run_in(endpoint)
    }

    /// Ends the handshake. A connector that is dropped instead may leave the peer's address handle
    /// at the endpoint.
    pub fn cancel(self, endpoint: &mut Endpoint) {
        self.cancel_in(endpoint);
    }
}

/// Runs a handshake over a byte channel to its end: a pipe, a TLS session, a Unix socket, a tunnel.
/// For a TCP connection use [`Connector::from_stream`], which keeps its deadline whatever the peer
/// does.
///
/// Exactly one side should speak first ([`HandshakeConfig::speak_first`]). The deadline is checked
/// whenever the channel returns. A channel that may block without limit needs a timeout of its own, such as
/// [`UnixStream::set_read_timeout`](std::os::unix::net::UnixStream::set_read_timeout) and
/// `set_write_timeout`. A channel that does not block is tried every millisecond.
///
/// # Errors
/// Why the handshake failed. The endpoint has forgotten the peer, and the channel is closed.
///
/// ```no_run
/// use efa_transport::handshake::HandshakeConfig;
/// use efa_transport::{Endpoint, Region, RemoteRegion, connect_over};
/// use std::time::Duration;
/// # fn f(endpoint: &mut Endpoint, region: &Region) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = std::os::unix::net::UnixStream::connect("/run/peer")?;
/// stream.set_read_timeout(Some(Duration::from_millis(100)))?;
/// stream.set_write_timeout(Some(Duration::from_millis(100)))?;
/// let config = HandshakeConfig::default().user_data(region.remote()?.to_bytes());
/// let connected = connect_over(stream, endpoint, config)?;
/// let theirs = RemoteRegion::try_from(&connected.user_data[..])?;
/// endpoint.put(connected.peer, region.slice(..64)?, theirs)?;
/// # Ok(()) }
/// ```
pub fn connect_over<C: Read + Write>(
    channel: C,
    endpoint: &mut Endpoint,
    config: HandshakeConfig,
) -> Result<Connected<C>, HandshakeError> {
    run_over(channel, endpoint, config)
}
