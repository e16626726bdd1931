//! [`QueuePair`]: what it owns, and its destruction.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Mutex;

use efa_sys as sys;

use super::calls::SendCalls;
use super::rings::Rings;
use crate::channel::CompletionChannel;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::process::ProcessMark;
use crate::queue::CompletionQueue;
use crate::request::Refusal;
use crate::thread_domain::ThreadDomain;
use crate::types::{DataPath, Operations, QpState};

/// The C queue pair, destroyed on drop: first of all that a [`QueuePair`] owns.
pub(super) struct Raw {
    ptr: NonNull<sys::ibv_qp>,
    process: ProcessMark,
    /// It is gone, or can't be destroyed.
    ended: bool,
}

impl Raw {
    /// Takes a new queue pair over, made in the process of `process`.
    pub(super) fn new(ptr: NonNull<sys::ibv_qp>, process: ProcessMark) -> Self {
        Self {
            ptr,
            process,
            ended: false,
        }
    }

    pub(super) fn ptr(&self) -> NonNull<sys::ibv_qp> {
        self.ptr
    }

    fn destroy(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.ended, true) || !self.process.is_here() {
            return Ok(());
        }
        // SAFETY: came from a successful creation and is destroyed once, see `ended`, with its send
        // queue's lock free (`QueuePair::drop` and `QueuePair::destroy` close an open session first).
        match unsafe { sys::ibv_destroy_qp(self.ptr.as_ptr()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::warn!(%error, "ibv_destroy_qp failed");
        }
    }
}

/// How requests get into the send queue.
pub(super) enum Path {
    /// Through libefa's entry points.
    Libefa(SendCalls),
    /// Into the rings. Their pointers are into memory that the queue pair and the completion queues have
    /// mapped.
    Direct(Rings),
}

/// The state of posting.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Posting {
    /// The queue pair is not in RTS.
    NotReady,
    /// No session is open.
    Ready,
    /// A session is open.
    Open,
    /// A session is open that can't be completed.
    Refused(Refusal),
}

/// An SRD queue pair with completion queues of its own.
///
/// Everything that changes it takes `&mut self`, so no two threads are ever in its queues at once.
/// Posting is `unsafe`, since nothing here keeps the memory and the address handles alive that
/// requests name; `efa-transport` does.
///
/// Dropping it destroys the queue pair, and then its completion queues. Requests that are still
/// outstanding are given up by the device; when `drop` returns, it touches their memory no more,
/// unless the kernel could not destroy the queue pair, which [`destroy`](Self::destroy) tells and
/// `drop` only logs. Memory is safe even then: a region's is freed after its deregistration only.
pub struct QueuePair {
    // In this order: the queue pair goes before its completion queues, they before the thread
    // domain and the channel, all before the protection domain.
    pub(super) raw: Raw,
    pub(super) path: Path,
    pub(super) posting: Posting,
    pub(super) process: ProcessMark,
    pub(super) send_cq: CompletionQueue,
    /// `None`: nothing can be received, and the send queue's serves as the other one.
    pub(super) recv_cq: Option<CompletionQueue>,
    pub(super) thread_domain: Option<ThreadDomain>,
    pub(super) channel: Option<CompletionChannel>,
    pub(super) domain: ProtectionDomain,
    pub(super) number: u32,
    pub(super) send_capacity: u32,
    pub(super) recv_capacity: u32,
    pub(super) operations: Operations,
    pub(super) max_inline: u32,
    pub(super) max_send_sge: u32,
    pub(super) state: QpState,
    /// Something was posted since it was made.
    pub(super) used: bool,
    /// Taken while the kernel is asked for the state.
    pub(super) asking: Mutex<()>,
}

// SAFETY: libibverbs lets any thread use a queue pair, one at a time where its locks are off; every
// use that touches its queues needs `&mut self`. It may change threads with a session open: the lock
// that a session holds is a `pthread_spinlock_t`, which in glibc, the only C library that efa-sys
// builds for, belongs to no thread.
unsafe impl Send for QueuePair {}
// SAFETY: `&self` reaches plain fields, and the query of the state, which notes its answer in the C
// struct and so is done under `asking` (see `QueuePair::state`).
unsafe impl Sync for QueuePair {}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("state", &self.state)
            .field("send_capacity", &self.send_capacity)
            .field("recv_capacity", &self.recv_capacity)
            .finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Destroying a held lock is undefined, and the requests were not completed.
        self.session_abort();
    }
}

impl QueuePair {
    /// Destroys the queue pair, and then its completion queues, as dropping it does.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the kernel could not destroy it: the device may go on writing what was
    /// posted for it to write, for as long as the regions stay registered. [`Error::ForkedProcess`].
    pub fn destroy(mut self) -> Result<()> {
        self.check_process()?;
        self.session_abort();
        self.raw
            .destroy()
            .map_err(|error| Error::verb("ibv_destroy_qp", self.describe(), error))
    }

    /// The number by which peers address it; 16 bits on EFA.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Requests that can be outstanding on the send queue. A slot is free again once its completion
    /// was polled.
    #[inline]
    pub fn send_capacity(&self) -> u32 {
        self.send_capacity
    }

    /// Receives that can be outstanding.
    #[inline]
    pub fn recv_capacity(&self) -> u32 {
        self.recv_capacity
    }

    /// The kinds of requests that it was created for.
    #[inline]
    pub fn operations(&self) -> Operations {
        self.operations
    }

    /// Bytes of inline data of a send.
    #[inline]
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// How requests are posted and completions polled: [`DataPath::Libefa`] or
    /// [`DataPath::Direct`].
    pub fn path(&self) -> DataPath {
        match self.path {
            Path::Direct(_) => DataPath::Direct,
            Path::Libefa(_) => DataPath::Libefa,
        }
    }

    /// Whether libefa's locks are off.
    pub fn is_lockless(&self) -> bool {
        self.thread_domain.is_some()
    }

    /// The channel on which completion events arrive, if it was created with one.
    pub fn completion_channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_ref()
    }

    /// The C object, for calls that this crate does not make. Posting or polling through it would
    /// upset the bookkeeping of either path.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.raw()
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.ptr.as_ptr()
    }

    /// Fails in a process that was forked from the one that made the queue pair.
    #[inline]
    pub(super) fn check_process(&self) -> Result<()> {
        match self.process.is_here() {
            true => Ok(()),
            false => Err(self.forked()),
        }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::ForkedProcess {
            device: self.domain.context().device_name().to_owned(),
        }
    }

    #[cold]
    pub(super) fn session_open(&self) -> Error {
        Error::SessionOpen {
            queue_pair: self.number,
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "queue pair {} on {}",
            self.number,
            self.domain.context().device_name()
        )
    }
}
