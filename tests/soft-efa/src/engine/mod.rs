//! The NIC: everything that happens after a program has made its objects.
//!
//! One [`Engine`] stands for one device in one process. The kernel side of soft-efa makes
//! objects through it (memory regions, address handles, completion queues, queue pairs) and hands
//! it the shared pages that libefa writes: send and receive rings and doorbells. A thread of the
//! engine watches the doorbells, carries requests as SRD over UDP sockets (one per queue pair,
//! whose port is the queue pair's number) and writes completion entries.
//!
//! Errors of the object calls are `errno` values, since that is what the kernel interface above
//! reports.

mod ah;
mod bits;
mod counters;
mod cq;
mod entry;
mod faults;
mod flow;
mod inbox;
mod memory;
mod message;
pub(crate) mod net;
mod nic;
mod outbox;
mod qp;
mod requester;
mod responder;
mod ring;
mod thread;
mod wire;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::profile::Profile;
use crate::stats;

pub use faults::{FaultPlan, FaultPlanError, Verb};
pub use memory::{Access, Backing, MrSpec};

/// Receives the lines of the event trace.
pub type TraceSink = Arc<dyn Fn(&str) + Send + Sync>;

/// What an engine needs to know about its device.
pub struct EngineConfig {
    /// The index of the device in the process's list; part of its name in messages.
    pub device_index: u32,
    /// The address on which queue pairs are bound.
    pub ip: Ipv4Addr,
    /// The device's GID, which carries `ip`.
    pub gid: [u8; 16],
    /// Capabilities and limits.
    pub profile: Profile,
    /// Seeds every random decision: reordering and faults.
    pub seed: u64,
    /// The faults to begin with.
    pub faults: FaultPlan,
    /// Where trace lines go; `None` makes none.
    pub trace: Option<TraceSink>,
    /// The longest RDMA request in bytes.
    pub max_rdma_size: u32,
    /// The longest send in bytes.
    pub mtu: u32,
    /// The lowest queue pair number; `None` lets the system choose.
    pub first_qp: Option<u16>,
    /// Where the numbers for `hw_counters` go.
    pub stats: Option<stats::Writer>,
}

/// The service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Scalable reliable datagrams.
    Srd,
    /// Unreliable datagrams.
    Ud,
}

/// The state of a queue pair, in verbs' terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Made, not configured.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Sends drain: what was posted goes on, nothing new starts.
    Sqd,
    /// A send failed in a way that stops the send queue. EFA never enters it by itself.
    Sqe,
    /// Everything posted is flushed.
    Err,
}

/// The receiver-not-ready retry count that means "for ever": the device's own, too.
pub const RNR_FOREVER: u8 = 7;

/// A change of a queue pair, already validated against the driver's state table.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpChange {
    /// The new state.
    pub state: Option<QpState>,
    /// The queue key that senders must present.
    pub qkey: Option<u32>,
    /// How often a request is repeated when the receiver isn't ready.
    pub rnr_retry: Option<u8>,
    /// The first sequence number. Reported by a query; the engine numbers messages itself.
    pub sq_psn: Option<u32>,
}

/// What a query of a queue pair tells.
#[derive(Clone, Copy, Debug)]
pub struct QpAttributes {
    /// The state.
    pub state: QpState,
    /// The queue key.
    pub qkey: u32,
    /// The receiver-not-ready retry count; [`RNR_FOREVER`] unless it was set.
    pub rnr_retry: u8,
    /// The first sequence number as it was set.
    pub sq_psn: u32,
    /// The send queue is in SQD and still has requests outstanding.
    pub sq_draining: bool,
}

/// A completion queue to make.
pub struct CqSpec {
    /// The ring, `entries * entry_size` zeroed bytes.
    pub ring: *mut u8,
    /// Entries in the ring, a power of two.
    pub entries: u32,
    /// Bytes of an entry: 16 or 32.
    pub entry_size: u32,
    /// Receive completions of unknown senders carry their GID (needs 32-byte entries).
    pub src_addr: bool,
    /// The consumer doorbell, where there is one. It is what arms the queue, and what lets the
    /// engine notice an overrun.
    pub doorbell: Option<*mut u32>,
    /// Raises the completion event. Called from the engine's thread with the engine locked: it
    /// must not call the engine, and must not block.
    pub notify: Option<Box<dyn Fn() + Send + Sync>>,
}

/// A queue pair to make.
pub struct QpSpec {
    /// The protection domain, by the number that memory regions and address handles use too.
    pub pd: u32,
    /// The service.
    pub kind: QpKind,
    /// The completion queue of sends.
    pub send_cq: u16,
    /// The completion queue of receives.
    pub recv_cq: u16,
    /// The send ring; null where `sq_bytes` is 0.
    pub sq: *mut u8,
    /// Bytes of the send ring.
    pub sq_bytes: u32,
    /// Bytes of a send entry: 64 or 128.
    pub sq_entry_size: u32,
    /// The send doorbell.
    pub sq_db: *mut u32,
    /// The receive ring; null where `rq_bytes` is 0.
    pub rq: *mut u8,
    /// Bytes of the receive ring.
    pub rq_bytes: u32,
    /// The receive doorbell.
    pub rq_db: *mut u32,
    /// Writes with immediate data complete here without a posted receive.
    pub unsolicited: bool,
}

/// One device of one process.
pub struct Engine {
    shared: Arc<thread::Shared>,
}

impl Engine {
    /// Starts the device: from now on queue pairs can be made.
    ///
    /// # Errors
    ///
    /// Whatever the system says when the poller, the scratch memory or the thread can't be made.
    pub fn start(config: EngineConfig) -> io::Result<Arc<Self>> {
        let shared = thread::start(config)?;
        Ok(Arc::new(Self { shared }))
    }

    /// Registers memory and returns its key, which serves as local and as remote key.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a range that wraps around, `EFAULT` for one that isn't mapped, `ENOMEM` when
    /// the device has no region left.
    ///
    /// # Safety
    ///
    /// The device reads and (where `access` permits) writes the range until the key is
    /// deregistered, whenever a request or a peer says so.
    pub unsafe fn reg_mr(&self, spec: MrSpec) -> Result<u32, i32> {
        self.shared.with(|nic| nic.reg_mr(spec))
    }

    /// Deregisters a key; unknown keys are ignored. When this returns the device doesn't touch the
    /// memory any more.
    pub fn dereg_mr(&self, key: u32) {
        self.shared.with(|nic| nic.dereg_mr(key));
    }

    /// Makes an address handle for `gid` in a protection domain. The same GID in the same domain
    /// gives the same number, which then takes as many [`destroy_ah`](Self::destroy_ah).
    ///
    /// # Errors
    ///
    /// `EINVAL` for a GID that is not a soft-efa device's, `ENOMEM` when the device has no handle
    /// left.
    pub fn create_ah(&self, pd: u32, gid: [u8; 16]) -> Result<u16, i32> {
        self.shared.with(|nic| nic.create_ah(pd, gid))
    }

    /// Destroys an address handle. Requests that still name it are flushed.
    pub fn destroy_ah(&self, pd: u32, ahn: u16) {
        self.shared.with(|nic| nic.destroy_ah(pd, ahn));
    }

    /// Makes a completion queue and returns its index.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a ring that makes no sense, `ENOMEM` when the device has none left.
    ///
    /// # Safety
    ///
    /// Ring and doorbell stay mapped and writable until [`destroy_cq`](Self::destroy_cq) returns.
    pub unsafe fn create_cq(&self, spec: CqSpec) -> Result<u16, i32> {
        self.shared.with(|nic| nic.create_cq(spec))
    }

    /// Destroys a completion queue. When this returns the engine doesn't touch its memory any
    /// more, nor calls its `notify`.
    pub fn destroy_cq(&self, index: u16) {
        self.shared.with(|nic| nic.destroy_cq(index));
    }

    /// Makes a queue pair and returns its number, the UDP port that it is bound to.
    ///
    /// # Errors
    ///
    /// `EINVAL` for unknown completion queues or rings that make no sense; what the system says
    /// when it gives no socket.
    ///
    /// # Safety
    ///
    /// Rings and doorbells stay mapped and writable until [`destroy_qp`](Self::destroy_qp)
    /// returns.
    pub unsafe fn create_qp(&self, spec: QpSpec) -> Result<u16, i32> {
        self.shared.with(|nic| nic.create_qp(spec))
    }

    /// Changes a queue pair. The transition has been validated by the caller.
    ///
    /// # Errors
    ///
    /// `EINVAL` where there is no such queue pair.
    pub fn modify_qp(&self, qpn: u16, change: QpChange) -> Result<(), i32> {
        self.shared.with(|nic| nic.modify_qp(qpn, change))
    }

    /// The state of a queue pair; [`QpState::Err`] where there is none.
    pub fn qp_state(&self, qpn: u16) -> QpState {
        self.query_qp(qpn).map_or(QpState::Err, |qp| qp.state)
    }

    /// The attributes of a queue pair.
    pub fn query_qp(&self, qpn: u16) -> Option<QpAttributes> {
        self.shared.with(|nic| nic.query_qp(qpn))
    }

    /// Destroys a queue pair: flushes what is outstanding into its completion queues, then
    /// leaves them alone. When this returns the engine doesn't touch its rings any more.
    pub fn destroy_qp(&self, qpn: u16) {
        self.shared.with(|nic| nic.destroy_qp(qpn));
    }

    /// What has happened so far, by name.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        self.shared.with(|nic| nic.counters())
    }

    /// Replaces the fault plan. Requests under way meet the new one.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.shared.with(|nic| nic.set_faults(plan));
    }

    /// The fault plan in force.
    pub fn faults(&self) -> FaultPlan {
        self.shared.with(|nic| nic.faults().clone())
    }

    /// Stops the device (as if it hung: no packet, no completion) or lets it go on.
    pub fn set_paused(&self, paused: bool) {
        self.shared.with(|nic| nic.set_paused(paused));
    }

    /// Whether an allocation verb shall fail now, and with which errno. To be asked once before
    /// each of them.
    pub fn allocation_fault(&self, verb: Verb) -> Option<i32> {
        self.shared.with(|nic| nic.allocation_fault(verb))
    }

    /// To be called in the child after a fork: gives back the inherited sockets, so that the
    /// numbers of the parent's queue pairs don't stay taken. In the child every other call finds a
    /// device without objects.
    pub fn after_fork_in_child(&self) {
        self.shared.after_fork_in_child();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Keeps something alive for as long as a memory region refers to it.
pub type Owner = Box<dyn Any + Send>;

#[cfg(test)]
mod tests;
