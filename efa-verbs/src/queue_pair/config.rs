//! Queue pair settings.

use crate::types::{DataPath, Operations};

/// Queue pair settings. Depths above the device's limits are refused, never clamped.
///
/// ```
/// use efa_verbs::{Operations, QueuePairConfig};
/// let config = QueuePairConfig {
///     send_depth: 512,
///     operations: Operations::WRITE | Operations::READ,
///     ..QueuePairConfig::default()
/// };
/// # let _ = config;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Requests that the send queue holds; made a power of two by rounding up. At least 1.
    pub send_depth: u32,
    /// Receives that the receive queue holds; made a power of two by rounding up. With 0 nothing
    /// can be received.
    pub recv_depth: u32,
    /// Scatter/gather entries of a send. RDMA requests have one.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send.
    pub max_inline: u32,
    /// The kinds of requests that can be posted.
    pub operations: Operations,
    /// Raise completion events on a channel.
    pub completion_channel: bool,
    /// Receive completions of writes with immediate data use up no posted receive. Both sides must
    /// be created so, or requests end as FEATURE_MISMATCH.
    pub unsolicited_write_recv: bool,
    /// Receive completions that can be outstanding beyond `recv_depth`, for unsolicited ones.
    pub extra_recv_completions: u32,
    /// Receive completions carry the GID of senders for which there is no address handle.
    pub source_gid: bool,
    /// Keep libefa's locks. They protect nothing, since a queue pair has one owner at a time, so without
    /// this they are left out where libefa allows it safely (rdma-core 63 and newer). For tests.
    pub locks: bool,
    /// The service level; other than 0 only with rdma-core 56 and newer.
    pub service_level: u8,
    /// How requests are posted and completions polled.
    pub path: DataPath,
}

impl Default for QueuePairConfig {
    /// 256 requests either way, one buffer each, nothing but sends, without a channel.
    fn default() -> Self {
        Self {
            send_depth: 256,
            recv_depth: 256,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            operations: Operations::SEND | Operations::SEND_WITH_IMMEDIATE,
            completion_channel: false,
            unsolicited_write_recv: false,
            extra_recv_completions: 0,
            source_gid: false,
            locks: false,
            service_level: 0,
            path: DataPath::Auto,
        }
    }
}
