//! Endpoint settings.

use std::time::Duration;

use efa_verbs::DataPath;

use crate::address::EndpointAddress;
use crate::error::{Error, Result};
use crate::scheduler::MOST_OPERATIONS;

/// The settings of an [`Endpoint`](crate::Endpoint).
///
/// A setting that can't be is refused when the endpoint is made, with the value and the limit. Nothing
/// is ever clamped. Queues get as many places as asked for, or more where the device rounds up.
///
/// ```
/// use efa_transport::Config;
///
/// let config = Config {
///     send_depth: 512,
///     ..Config::default()
/// };
/// # let _ = config;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requests that may be with the device at once; 256 if not set. A transfer of any size flows
    /// through, even with a depth of 1.
    pub send_depth: u32,
    /// Buffers for what peers send: each message, and each write with immediate data, takes one.
    pub receive_pool: ReceivePool,
    /// Operations that may live at once: in flight, waiting for the queue, or finished and not taken.
    /// 1 to 2²⁰; 65536 if not set. Memory is used for as many as there ever were at once, 64 bytes each.
    pub max_operations: u32,
    /// The queue key, below 2³¹; 0x4242 if not set. Peers learn it from the address.
    pub queue_key: u32,
    /// How often the device repeats a request that finds no receive buffer at the peer: 0 to 7, and 7 is
    /// for ever. None, the default, leaves it to the device, which goes on for ever. Needs the
    /// capability.
    pub rnr_retries: Option<u8>,
    /// Bytes of the largest RDMA request, if smaller than the device's `max_rdma_size` (about 1 GiB),
    /// which is the default.
    pub max_request: Option<u32>,
    /// Whether to have a completion channel, so that the program can sleep until something completes.
    /// False if not set: then waiting calls nap between polls.
    pub events: bool,
    /// How long waiting calls poll without pause before they sleep; 50 µs if not set.
    /// [`Duration::MAX`] never sleeps: the lowest latency, and a whole core.
    pub spin: Duration,
    /// How requests are posted: directly, without libefa, where that is possible, if not set.
    pub path: DataPath,
    /// Who moves the bytes of transfers within this process.
    pub loopback: Loopback,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            send_depth: 256,
            receive_pool: ReceivePool::default(),
            max_operations: 65_536,
            queue_key: EndpointAddress::DEFAULT_QUEUE_KEY,
            rnr_retries: None,
            max_request: None,
            events: false,
            spin: Duration::from_micros(50),
            path: DataPath::Auto,
            loopback: Loopback::Auto,
        }
    }
}

impl Config {
    /// Checks what makes no sense on any device.
    pub(crate) fn check(&self) -> Result<()> {
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
        if self.rnr_retries.is_some_and(|retries| retries > 7) {
            let reason = "it can be 0 to 7, and 7 is for ever";
            return wrong("Config::rnr_retries", reason.into());
        }
        if self.receive_pool.buffers > 0 && self.receive_pool.size == Some(0) {
            let reason = "its buffers have 0 bytes; set 0 buffers where nothing is to be received";
            return wrong("Config::receive_pool", reason.into());
        }
        Ok(())
    }
}

/// Buffers that an endpoint keeps posted, for messages and for writes with immediate data.
///
/// While all are in use, senders are held back by the device. A message keeps its buffer until the
/// program drops it; a write with immediate data, until the next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivePool {
    /// How many; 128 if not set. 0: the endpoint receives nothing. A handshake tells peers so, and what
    /// they send is refused at their side.
    pub buffers: u32,
    /// Bytes of each. None, the default: the longest message that the device has, about 8 KiB.
    pub size: Option<u32>,
}

impl ReceivePool {
    /// No pool.
    pub const NONE: Self = Self {
        buffers: 0,
        size: None,
    };
}

impl Default for ReceivePool {
    fn default() -> Self {
        Self {
            buffers: 128,
            size: None,
        }
    }
}

/// Who moves the bytes of a transfer whose both ends are in this process and domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loopback {
    /// The endpoint's own transfers to itself are copied by the CPU, as are transfers to other endpoints
    /// of the same domain where the device is known not to loop back (p4d).
    #[default]
    Auto,
    /// The device, always.
    Device,
}
