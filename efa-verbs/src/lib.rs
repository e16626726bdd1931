//! Sound ownership over AWS EFA verbs objects.
//!
//! [`Device`] ▸ [`Context`] ▸ [`ProtectionDomain`] ▸ {[`MemoryRegion`], [`AddressHandle`],
//! [`QueuePair`]}: children hold their parents, so destruction happens in the right order by
//! construction. A queue pair owns its completion queues alone. Registered memory is never handed out
//! as a slice. There is one error type, [`Error`]: the verb that failed, on what, with which error
//! number, and what to do about it.
//!
//! There is no policy here: no connecting, no chunking, no bookkeeping of requests. Posting is
//! `unsafe`, because nothing here keeps alive what a request names; `efa-transport` builds the safe
//! interface on top.
//!
//! ```no_run
//! use efa_verbs::{Access, Buffer, Operations, QueuePairConfig, DEFAULT_QUEUE_KEY};
//!
//! let context = efa_verbs::open_by_name("efa_0")?;
//! println!("{} is {}", context.device_name(), context.gid()?);
//! let domain = context.alloc_pd()?;
//! let region = domain.register(Buffer::zeroed(1 << 20)?, Access::LOCAL | Access::REMOTE_WRITE)?;
//! let mut pair = domain.create_queue_pair(&QueuePairConfig {
//!     operations: Operations::WRITE,
//!     ..QueuePairConfig::default()
//! })?;
//! pair.to_init(DEFAULT_QUEUE_KEY)?;
//! pair.to_rtr()?;
//! pair.to_rts(0, None)?;
//! println!("queue pair {} with rkey {:#x}", pair.number(), region.rkey());
//! # Ok::<(), efa_verbs::Error>(())
//! ```

mod attributes;
mod buffer;
mod caller_memory;
mod channel;
mod completion;
mod context;
mod copies;
mod device;
mod direct;
mod domain;
mod errno;
mod error;
mod gid;
mod handle;
mod process;
mod queue;
mod queue_pair;
mod region;
mod request;
mod status;
mod thread_domain;
mod types;

pub use attributes::{DeviceAttributes, PortAttributes};
pub use buffer::{Buffer, Pages};
pub use caller_memory::CallerMemory;
pub use channel::CompletionChannel;
pub use completion::{RecvCompletion, RecvKind, SendCompletion};
pub use context::{Context, devices, open_by_name};
pub use device::Device;
pub use domain::ProtectionDomain;
pub use error::{Error, Result, VerbError};
pub use gid::Gid;
pub use handle::AddressHandle;
pub use process::{ProcessMark, fork_init};
pub use queue_pair::{DEFAULT_QUEUE_KEY, QueuePair, QueuePairConfig};
pub use region::{MemoryRegion, RegionWatch};
pub use request::{Destination, ReceiveRequest, RemoteMemory, Request, Sge};
pub use status::{CompletionOf, Side, StatusExplanation, VendorStatus};
pub use types::{Access, DataPath, DeviceCapabilities, Feature, Limit, Operations, QpState};

/// What the loaded rdma-core offers: the highest `EFA_1.x` symbol version, as `x`. 4 and above have
/// the direct path.
pub fn efa_symbol_version() -> u32 {
    efa_sys::efa_symbol_version()
}
