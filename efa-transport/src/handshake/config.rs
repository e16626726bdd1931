//! The settings of a handshake.

use std::sync::Arc;
use std::time::Duration;

use super::error::{HandshakeError, HandshakeErrorKind, Step};
use super::info::{Capabilities, Incarnation};
use crate::address::EndpointAddress;

/// The settings of one handshake.
///
/// ```
/// use efa_transport::handshake::{Capabilities, HandshakeConfig};
/// use std::time::Duration;
///
/// let config = HandshakeConfig::default()
///     .timeout(Duration::from_secs(3))
///     .require(Capabilities::RDMA_WRITE)
///     .user_data(b"descriptors of my memory".as_slice());
/// ```
#[derive(Debug, Clone)]
pub struct HandshakeConfig {
    pub(crate) timeout: Duration,
    pub(super) speak_first: bool,
    pub(super) required: Capabilities,
    pub(super) user_data: Arc<[u8]>,
    pub(super) max_user_data: usize,
    pub(super) expected_address: Option<EndpointAddress>,
    pub(super) expected_incarnation: Option<Incarnation>,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        HandshakeConfig {
            timeout: Duration::from_secs(10),
            speak_first: true,
            required: Capabilities::empty(),
            user_data: Arc::new([]),
            max_user_data: 64 << 10,
            expected_address: None,
            expected_incarnation: None,
        }
    }
}

impl HandshakeConfig {
    /// The longest user data that a frame carries, in bytes.
    pub const MAX_USER_DATA: usize = 1 << 20;

    /// The time for the whole handshake, until its last byte is sent. 10 seconds by default;
    /// [`Duration::MAX`] means no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether this side sends its hello at once, or only after the peer's. True by default. A
    /// connector always speaks first and a listener never does.
    ///
    /// One side at least must speak first. Over a channel that blocks, exactly one side should: two
    /// sides that both write more than the channel holds both block.
    pub fn speak_first(mut self, speak_first: bool) -> Self {
        self.speak_first = speak_first;
        self
    }

    /// Capabilities that the peer must have. None by default.
    pub fn require(mut self, required: Capabilities) -> Self {
        self.required = required;
        self
    }

    /// Bytes for the program at the peer: at most [`MAX_USER_DATA`](Self::MAX_USER_DATA), and at
    /// most what the peer accepts.
    pub fn user_data(mut self, user_data: impl Into<Arc<[u8]>>) -> Self {
        self.user_data = user_data.into();
        self
    }

    /// The longest user data to accept, in bytes. A peer that sends more is refused. 65536 by
    /// default, and never above [`MAX_USER_DATA`](Self::MAX_USER_DATA).
    pub fn max_user_data(mut self, max: usize) -> Self {
        self.max_user_data = max.min(Self::MAX_USER_DATA);
        self
    }

    /// Accept only the endpoint at this address.
    pub fn expect_address(mut self, address: EndpointAddress) -> Self {
        self.expected_address = Some(address);
        self
    }

    /// Accept only this incarnation of the peer. A restarted peer is refused with
    /// [`HandshakeErrorKind::PeerRestarted`].
    pub fn expect_incarnation(mut self, incarnation: Incarnation) -> Self {
        self.expected_incarnation = Some(incarnation);
        self
    }

    pub(crate) fn check(&self) -> Result<(), HandshakeError> {
        let length = self.user_data.len();
        if length > Self::MAX_USER_DATA {
            let kind = HandshakeErrorKind::UserDataTooLong {
                length,
                limit: Self::MAX_USER_DATA,
            };
            return Err(HandshakeError::new(Step::Beginning, kind));
        }
        Ok(())
    }
}
