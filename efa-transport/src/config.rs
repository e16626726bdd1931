//! What an endpoint is to be like.

use std::time::Duration;

use efa_verbs::DataPath;

/// The settings of an [`Endpoint`](crate::Endpoint). Depths above the device's limits are
/// refused, with both numbers; nothing is ever clamped.
///
/// ```
/// use efa_transport::{Config, ReceivePool};
///
/// let config = Config {
///     send_depth: 512,
///     receive_pool: Some(ReceivePool::default()),
///     ..Config::default()
/// };
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests that may be with the device at once.
    pub send_depth: u32,
    /// Messages that can be waited for at once. A pool needs as many as it has buffers.
    pub receive_depth: u32,
    /// Operations that may live at once: under way, waiting for the queue, or finished and
    /// not taken. At most 2²⁰.
    pub max_operations: u32,
    /// The queue key. Peers learn it from the address.
    pub queue_key: u32,
    /// How often a message is repeated while the receiver has no buffer; 7 is for ever.
    /// None leaves the device's default. Needs the capability.
    pub rnr_retries: Option<u8>,
    /// Largest RDMA request in bytes, if smaller than the device's `max_rdma_size`.
    pub max_request: Option<u32>,
    /// Most requests of one operation that are posted in a row while others wait.
    pub quantum: u32,
    /// Whether writes with immediate data that arrive here use up no posted receive. It must be the same on
    /// both sides. None: wherever the device can.
    pub unsolicited: Option<bool>,
    /// Completions of unsolicited writes that there is room for, shared out among peers.
    pub immediate_room: u32,
    /// How many of those each peer may have outstanding.
    pub immediate_grant: u32,
    /// Different immediate values that are counted though nobody waits for them yet.
    pub max_immediates: usize,
    /// Buffers for messages, posted and reposted by the endpoint.
    pub receive_pool: Option<ReceivePool>,
    /// Buffers for messages that are sent from plain slices and are too long to go inline.
    pub send_buffers: u32,
    /// Whether to have a completion channel, so that a program can sleep.
    pub events: bool,
    /// How the blocking calls wait.
    pub wait: WaitPolicy,
    /// How requests are posted.
    pub path: DataPath,
    /// Leave out libefa's locks where that is safe.
    pub lockless: bool,
    /// How transfers to this process itself are done.
    pub loopback: Loopback,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_depth: 256,
            receive_depth: 256,
            max_operations: 65_536,
            queue_key: crate::address::EndpointAddress::DEFAULT_QUEUE_KEY,
            rnr_retries: None,
            max_request: None,
            quantum: 8,
            unsolicited: None,
            immediate_room: 4096,
            immediate_grant: 64,
            max_immediates: 65_536,
            receive_pool: None,
            send_buffers: 64,
            events: false,
            wait: WaitPolicy::default(),
            path: DataPath::Auto,
            lockless: true,
            loopback: Loopback::Auto,
        }
    }
}

/// Buffers that an endpoint keeps posted for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivePool {
    /// How many.
    pub buffers: u32,
    /// Bytes of each; None for the longest message that the device has.
    pub size: Option<u32>,
}

impl Default for ReceivePool {
    /// 64 buffers for messages of any size.
    fn default() -> Self {
        Self {
            buffers: 64,
            size: None,
        }
    }
}

/// How the blocking calls wait for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitPolicy {
    /// Poll without pause: the lowest latency, and a whole core.
    Spin,
    /// Poll for this long, then sleep until something happens. Without a completion channel
    /// ([`Config::events`]) the sleep is a short nap between polls.
    SpinThenSleep(Duration),
}

impl Default for WaitPolicy {
    /// 50 µs of polling, then sleep.
    fn default() -> Self {
        Self::SpinThenSleep(Duration::from_micros(50))
    }
}

/// Who moves the bytes of a transfer whose both ends are in this process and domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loopback {
    /// The endpoint's own transfers to itself are copied by the CPU, as are transfers to
    /// other endpoints of the same domain where the device is known not to loop back (p4d).
    #[default]
    Auto,
    /// The device, always.
    Device,
}
