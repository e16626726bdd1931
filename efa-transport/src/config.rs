//! What an endpoint is to be like.

use std::time::Duration;

use efa_verbs::DataPath;

use crate::error::{Error, Result};
use crate::ops::MOST_OPERATIONS;

/// The settings of an [`Endpoint`](crate::Endpoint).
///
/// What can't be is refused when the endpoint is made: depths above the device's limits with both
/// numbers, and what makes no sense on any device by [`check`](Self::check). Nothing is ever
/// clamped. Queues get as many places as asked for, or more where the device rounds up.
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
    /// Requests that may be with the device at once; 256 if not set. A transfer of any size flows
    /// through, even with a depth of 1.
    pub send_depth: u32,
    /// Messages that can be waited for at once; 256 if not set. A pool needs as many as it has
    /// buffers.
    pub receive_depth: u32,
    /// Operations that may live at once: under way, waiting for the queue, or finished and
    /// not taken. 1 to 2²⁰; 65536 if not set. Memory is used for as many as there ever were at
    /// once, 64 bytes each.
    pub max_operations: u32,
    /// The queue key, below 2³¹; 0x4242 if not set. Peers learn it from the address.
    pub queue_key: u32,
    /// How often a message is repeated while the receiver has no buffer; 7 is for ever.
    /// None, the default, leaves it to the device. Needs the capability.
    pub rnr_retries: Option<u8>,
    /// Largest RDMA request in bytes, if it is to be smaller than the device's `max_rdma_size`
    /// (about 1 GiB), which is the default.
    pub max_request: Option<u32>,
    /// Most requests of one operation that are posted in a row while others wait; at least 1, and 8
    /// if not set. It is what fairness is measured in: where `p` peers have operations that have
    /// posted nothing yet, and `k` of those of its own peer came before, an operation waits while
    /// at most `2 × quantum × (k + 1) × p` requests of others are posted, however long those are.
    /// An eighth of the send queue, 64 places at most, is kept for operations that begin, so
    /// that they need not even wait for a completion.
    pub quantum: u32,
    /// Whether writes with immediate data that arrive here use up no posted receive. It must be the same on
    /// both sides. None, the default: wherever the device can.
    pub unsolicited: Option<bool>,
    /// Completions of unsolicited writes that there is room for, shared out among peers; 4096 if not
    /// set. As many peers as there are grants in it can send such writes.
    pub immediate_room: u32,
    /// How many of those each peer may have outstanding: 1 to `immediate_room`, and 64 if not set.
    pub immediate_grant: u32,
    /// Different immediate values that are counted though nobody waits for them yet; 65536 if not
    /// set.
    pub max_immediates: usize,
    /// Buffers for messages, posted and reposted by the endpoint. None, the default: the program
    /// posts its own.
    pub receive_pool: Option<ReceivePool>,
    /// Buffers for messages that are sent from plain slices and are too long to go inline; 64 if not
    /// set. Each is made when it is first needed.
    pub send_buffers: u32,
    /// Whether to have a completion channel, so that a program can sleep. False if not set.
    pub events: bool,
    /// How the blocking calls wait.
    pub wait: WaitPolicy,
    /// How requests are posted. By default directly, without libefa, where that is possible.
    pub path: DataPath,
    /// Leave out libefa's locks where that is safe. True if not set.
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

impl Config {
    /// Checks what makes no sense on any device. [`Endpoint::new`](crate::Endpoint::new) does so,
    /// too.
    ///
    /// ```
    /// use efa_transport::Config;
    ///
    /// let config = Config { immediate_room: 16, immediate_grant: 64, ..Config::default() };
    /// let text = config.check().unwrap_err().to_string();
    /// assert!(text.contains("immediate_grant"), "{text}");
    /// ```
    ///
    /// # Errors
    /// The setting, and what it may be.
    pub fn check(&self) -> Result<()> {
        let wrong = |what, reason: String| {
            Err(Error::Verbs(efa_verbs::Error::InvalidArgument {
                what,
                reason,
            }))
        };
        if self.max_operations == 0 || self.max_operations > MOST_OPERATIONS {
            let (is, most) = (self.max_operations, MOST_OPERATIONS);
            let reason = format!("it is {is}, and can be 1 to {most}");
            return wrong("Config::max_operations", reason);
        }
        if self.quantum == 0 {
            let reason = "it is 0, so that nothing would ever be posted";
            return wrong("Config::quantum", reason.into());
        }
        if self.rnr_retries.is_some_and(|retries| retries > 7) {
            let reason = "it can be 0 to 7, and 7 is for ever";
            return wrong("Config::rnr_retries", reason.into());
        }
        if self.immediate_grant == 0 || self.immediate_grant > self.immediate_room {
            let (is, room) = (self.immediate_grant, self.immediate_room);
            let reason = format!(
                "it is {is}, and can be 1 to immediate_room, which is {room}: a peer with a grant \
                 beyond the room could overrun the completion queue"
            );
            return wrong("Config::immediate_grant", reason);
        }
        if self.receive_pool.is_some_and(|pool| pool.buffers == 0) {
            let reason = "it has 0 buffers; leave the pool out where no message is expected";
            return wrong("Config::receive_pool", reason.into());
        }
        Ok(())
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
