//! Queue pairs.
//!
//! A queue pair owns its completion queues and shares them with no other: before rdma-core 61 and
//! 63, libefa books a stale completion of a destroyed queue pair on whichever one has its number now,
//! down to writing out of bounds. With queues that die with their queue pair, none can be stale.

mod config;
mod create;
mod entry;
mod receive;
mod rings;
mod session;
mod state;

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Mutex;

use efa_sys as sys;

pub use config::{DataPath, Operation, Operations, QueuePairConfig};
pub use receive::ReceiveRequest;
pub use session::RemoteMemory;
pub use state::{DEFAULT_QUEUE_KEY, QpState};

use crate::channel::CompletionChannel;
use crate::completion::{Each, Received, RecvCompletion, SendCompletion, TakeSend, VendorStatus};
use crate::direct;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::queue::CompletionQueue;
use crate::thread_domain::ThreadDomain;
use entry::SendEntry;
use rings::Rings;

/// The C queue pair, destroyed on drop: first of all that a [`QueuePair`] owns.
struct Raw {
    ptr: NonNull<sys::ibv_qp>,
    /// It is gone, or will not go.
    ended: bool,
}

impl Raw {
    fn destroy(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.ended, true) {
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

/// Where requests of some kind go. Nowhere, if the queue pair was not created for them.
///
/// Not an enum: the compiler would load it to compare it twice.
#[derive(Clone, Copy, Default)]
struct Way {
    /// Through libefa, which has the entry points.
    libefa: bool,
    /// To the rings, which there are.
    ring: bool,
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
    raw: Raw,
    send: SendEntry,
    /// The direct path. Its pointers are into what the queue pair and the completion queues mapped.
    rings: Option<Rings>,
    /// Where requests of each kind go.
    ways: [Way; Operation::ALL.len()],
    send_cq: CompletionQueue,
    /// `None`: nothing can be received, and the send queue's serves as the other one.
    recv_cq: Option<CompletionQueue>,
    thread_domain: Option<ThreadDomain>,
    channel: Option<CompletionChannel>,
    domain: ProtectionDomain,
    number: u32,
    send_capacity: u32,
    recv_capacity: u32,
    operations: Operations,
    max_inline: u32,
    max_send_sge: u32,
    state: QpState,
    /// Something was posted since it was made.
    used: bool,
    /// Taken while the kernel is asked for the state.
    asking: Mutex<()>,
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
        if self.session_is_open() {
            // Destroying a held lock is undefined, and the requests were not completed.
            self.session_abort();
        }
    }
}

impl QueuePair {
    /// Destroys the queue pair, and then its completion queues, as dropping it does.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the kernel could not destroy it: the device may go on writing what was
    /// posted for it to write, for as long as the regions stay registered.
    pub fn destroy(mut self) -> Result<()> {
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
        match self.rings {
            Some(_) => DataPath::Direct,
            None => DataPath::Libefa,
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

    /// Takes completions of sends, writes and reads, at most as many as `out` is long; returns how
    /// many. They come in any order.
    ///
    /// # Errors
    ///
    /// [`Error::SessionOpen`] during a session (libefa would wait for the session's lock forever);
    /// [`Error::Verb`] when libefa cannot poll. Completions of nothing that is in flight are skipped.
    #[inline(always)]
    pub fn poll_send(&mut self, out: &mut [SendCompletion]) -> Result<usize> {
        let most = out.len();
        let mut slots = out.iter_mut();
        self.poll_send_each(most, |completion| {
            if let Some(slot) = slots.next() {
                *slot = completion;
            }
        })
    }

    /// Takes up to `most` completions of sends, writes and reads and gives each to `take`; returns
    /// how many. No lock of libefa's is held while `take` runs.
    ///
    /// # Errors
    ///
    /// As for [`poll_send`](Self::poll_send). Completions that were taken before are with `take`.
    #[inline(always)]
    pub fn poll_send_each(
        &mut self,
        most: usize,
        take: impl FnMut(SendCompletion),
    ) -> Result<usize> {
        self.poll_send_into(most, &mut Each(take))
    }

    /// [`poll_send_each`](Self::poll_send_each) for what must be inlined, which the compiler does with
    /// closures only as it likes.
    ///
    /// # Errors
    ///
    /// As for [`poll_send_each`](Self::poll_send_each).
    #[inline(always)]
    pub fn poll_send_into(&mut self, most: usize, taker: &mut impl TakeSend) -> Result<usize> {
        if self.session_is_open() {
            return Err(self.session_open());
        }
        let Some(rings) = &mut self.rings else {
            return self.send_cq.poll_send(most, taker);
        };
        let Rings { send, sent, .. } = rings;
        Ok(sent.poll_send(send, most, taker))
    }

    /// Takes completions of receives, at most as many as `out` is long; returns how many. They come
    /// in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when libefa cannot poll.
    #[inline]
    pub fn poll_recv(&mut self, out: &mut [RecvCompletion]) -> Result<usize> {
        let Some(rings) = &mut self.rings else {
            return match &mut self.recv_cq {
                Some(cq) => cq.poll_recv(out),
                None => Ok(0),
            };
        };
        let source_gid = rings.source_gid;
        let Some((recv, received)) = &mut rings.recv else {
            return Ok(0);
        };
        let most = out.len();
        let mut slots = out.iter_mut();
        Ok(received.poll_receive(recv, most, |found| {
            if let Some(slot) = slots.next() {
                *slot = received_completion(found, source_gid);
            }
        }))
    }

    /// Asks for an event on the channel at the next completion. To wait: arm, poll once more (a
    /// completion that came before raises no event), then wait for the channel's descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a channel, [`Error::Verb`] when it fails.
    pub fn arm(&mut self) -> Result<()> {
        if self.channel.is_none() {
            return Err(Error::InvalidArgument {
                what: "completion channel",
                reason: "the queue pair was created without one".into(),
            });
        }
        if let Some(rings) = &mut self.rings {
            rings.sent.arm();
            if let Some((_, received)) = &mut rings.recv {
                received.arm();
            }
            return Ok(());
        }
        self.send_cq.arm()?;
        self.recv_cq.as_mut().map_or(Ok(()), CompletionQueue::arm)
    }

    /// Takes the events that are on the channel; returns how many. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the channel cannot be read.
    pub fn take_events(&mut self) -> Result<usize> {
        let Some(channel) = &self.channel else {
            return Ok(0);
        };
        let send_cq = self.send_cq.raw_cq();
        let rings = &mut self.rings;
        channel.drain(|cq| {
            // libefa counts events for itself; whoever rings the doorbells must as well.
            if let Some(rings) = rings {
                match &mut rings.recv {
                    Some((_, received)) if cq != send_cq => received.event_taken(),
                    _ => rings.sent.event_taken(),
                }
            }
        })
    }

    /// The C object, for calls that this crate does not make. Posting or polling through it would
    /// upset the bookkeeping of either path.
    pub fn as_raw(&self) -> *mut sys::ibv_qp {
        self.raw()
    }

    #[inline(always)]
    fn way(&self, operation: Operation) -> Way {
        self.ways[operation as usize]
    }

    /// The rings' send queue.
    ///
    /// # Safety
    ///
    /// Some way is to the rings.
    #[inline(always)]
    unsafe fn rings_unchecked(&mut self) -> &mut Rings {
        // SAFETY: `set_ways` names this way only with `rings` set, which stays so.
        unsafe { self.rings.as_mut().unwrap_unchecked() }
    }

    /// Says where requests of each kind go from now on.
    fn set_ways(&mut self) {
        let ring = self.rings.is_some();
        let way = Way {
            libefa: !ring,
            ring,
        };
        for operation in Operation::ALL {
            // The entry points of these kinds were found, see `SendEntry::fetch`.
            if self.operations.contains(operation.into()) {
                self.ways[operation as usize] = way;
            }
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.ptr.as_ptr()
    }

    #[cold]
    fn session_open(&self) -> Error {
        Error::SessionOpen {
            queue_pair: self.number,
        }
    }

    fn describe(&self) -> String {
        format!(
            "queue pair {} on {}",
            self.number,
            self.domain.context().device_name()
        )
    }
}

#[inline]
fn received_completion(found: direct::Received, source_gid: bool) -> RecvCompletion {
    RecvCompletion {
        wr_id: found.wr_id,
        status: VendorStatus(found.status.into()),
        byte_len: found.length,
        received: if found.write {
            Received::WriteWithImmediate
        } else {
            Received::Send
        },
        unsolicited: found.unsolicited,
        immediate: found.immediate,
        src_qp: found.source.into(),
        src_handle: found.handle,
        src_gid: (source_gid && found.handle.is_none() && found.gid != [0; 16])
            .then_some(Gid(found.gid)),
    }
}
