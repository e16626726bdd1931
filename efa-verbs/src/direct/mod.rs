//! The direct path: a queue pair's rings in memory, written and polled without libefa.
//!
//! [`efadv_query_qp_wqs`] and [`efadv_query_cq`] (rdma-core 59) tell where the send queue, the
//! receive queue and the completion queue lie. A request then costs as much as filling one 64-byte entry
//! and noting an id, and a completion as much as reading one word of the ring. libefa makes the objects,
//! changes their state and destroys them; it takes no part in between, and nothing may be posted to or
//! polled from such a queue pair through libefa, since each side would count for itself.
//!
//! - **Requests are staged** and go to the queue when their batch is committed. The device may take an
//!   entry as soon as it is written: an entry that has reached the queue can't be taken back, but a batch
//!   must be.
//! - **One flush and one doorbell per batch**, and one more after each `max_batch` entries, since the
//!   device can hold no more that were not announced. The send queue is write-combining device memory:
//!   its entries are written whole and in order.
//! - **Request ids are our own** ([`ids`]): the 16 bits of an entry hold a slot and a generation.
//!   A completion is believed only if the queue pair's number, the kind of queue and the whole id
//!   agree with a request that is in flight; otherwise it is counted as stale and skipped.
//! - **A queue and its completions are one value** ([`SendSide`], [`ReceiveSide`]), so that none is
//!   polled with another's ring.
//! - **No locks**: everything takes `&mut self`.
//!
//! The format of entries is that of `efa_io_defs.h` in rdma-core's `providers/efa`.
//!
//! [`efadv_query_qp_wqs`]: https://man7.org/linux/man-pages/man3/efadv_query_qp_wqs.3.html
//! [`efadv_query_cq`]: https://man7.org/linux/man-pages/man3/efadv_query_cq.3.html

mod completion;
mod entry;
mod ids;
mod memory;
mod receive;
mod send;
mod sides;

#[cfg(test)]
mod tests;

pub(crate) use completion::CompletionRing;
pub(crate) use memory::{RingMemory, Unusable};
pub(crate) use receive::ReceiveRing;
pub(crate) use send::SendRing;
pub(crate) use sides::{ReceiveSide, SendSide};
