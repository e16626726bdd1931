//! The direct path of a queue pair: its rings, taken over from libefa. See [`crate::direct`].

use std::io;
use std::mem;

use efa_sys as sys;

use crate::direct::{
    CompletionRing, ReceiveRing, ReceiveSide, RingMemory, SendRing, SendSide, Unusable,
};
use crate::queue::CompletionQueue;

/// The first generation of devices spreads a completion queue over several rings, of which
/// efadv_query_cq describes one.
const SEVERAL_RINGS: u32 = 0xefa0;

/// A queue pair's rings. While they exist, nothing is posted or polled through libefa.
pub(super) struct Rings {
    pub(super) send: SendSide,
    /// With a receive queue.
    pub(super) receive: Option<ReceiveSide>,
}

/// Why the rings cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoRings {
    #[error("it needs rdma-core 59, and the loaded libefa is older")]
    Library,
    #[error("{0} failed: {1}")]
    Query(&'static str, io::Error),
    #[error("with a completion channel it needs rdma-core 60, and the loaded libefa is older")]
    Channel,
    #[error(
        "devices of the first generation (PCI id 0xefa0) spread completions over several rings"
    )]
    SeveralRings,
    #[error(transparent)]
    Ring(#[from] Unusable),
}

/// What the rings are taken over from.
pub(super) struct Source<'a> {
    pub(super) qp: *mut sys::ibv_qp,
    pub(super) number: u32,
    pub(super) send_cq: &'a CompletionQueue,
    pub(super) recv_cq: Option<&'a CompletionQueue>,
    pub(super) channel: bool,
    pub(super) source_gid: bool,
    /// PCI id of the device.
    pub(super) part: u32,
}

impl Rings {
    /// Takes the rings over.
    ///
    /// # Safety
    ///
    /// The queue pair and its completion queues are new and outlive the result, and nothing is posted
    /// or polled through libefa.
    pub(super) unsafe fn take_over(source: &Source<'_>) -> Result<Self, NoRings> {
        if source.part == SEVERAL_RINGS {
            return Err(NoRings::SeveralRings);
        }
        let optional = sys::optional();
        let (Some(query_qp), Some(query_cq)) =
            (optional.efadv_query_qp_wqs, optional.efadv_query_cq)
        else {
            return Err(NoRings::Library);
        };
        // SAFETY: integers and pointers, which may be null.
        let (mut sq, mut rq): (sys::efadv_wq_attr, sys::efadv_wq_attr) = unsafe { mem::zeroed() };
        // SAFETY: the queue pair is alive, and both structs are as large as the length says.
        let error = unsafe {
            query_qp(
                source.qp,
                &mut sq,
                &mut rq,
                mem::size_of::<sys::efadv_wq_attr>() as u32,
            )
        };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            return Err(NoRings::Query("efadv_query_qp_wqs", error));
        }
        let completions = |cq: &CompletionQueue| {
            // SAFETY: integers and pointers, which may be null.
            let mut attr: sys::efadv_cq_attr_ex = unsafe { mem::zeroed() };
            // SAFETY: the completion queue is alive, and `attr` as large as the length says. A
            // library that does not know the doorbell leaves it null.
            let error = unsafe {
                query_cq(
                    cq.raw_cq(),
                    &mut attr,
                    mem::size_of::<sys::efadv_cq_attr_ex>() as u32,
                )
            };
            if error != 0 {
                let error = io::Error::from_raw_os_error(error);
                return Err(NoRings::Query("efadv_query_cq", error));
            }
            if source.channel && attr.doorbell.is_null() {
                return Err(NoRings::Channel);
            }
            let memory = RingMemory {
                buffer: attr.buffer,
                entry_size: attr.entry_size,
                entries: attr.num_entries,
                doorbell: attr.doorbell,
                max_batch: 0,
            };
            // EFA's numbers have 16 bits. SAFETY: the memory is the completion queue's, which is
            // new, belongs to this queue pair alone, and outlives the ring.
            unsafe { CompletionRing::new(memory, source.number as u16) }.map_err(NoRings::Ring)
        };
        let receive = match source.recv_cq {
            Some(cq) => Some(ReceiveSide {
                // SAFETY: the caller promises a new queue that outlives the ring and is used by
                // nothing else.
                queue: unsafe { ReceiveRing::new(memory(&rq)) }?,
                completions: completions(cq)?,
                source_gid: source.source_gid,
            }),
            None => None,
        };
        let send = SendSide {
            // SAFETY: as for the receive queue.
            queue: unsafe { SendRing::new(memory(&sq)) }?,
            completions: completions(source.send_cq)?,
        };
        Ok(Self { send, receive })
    }
}

fn memory(attr: &sys::efadv_wq_attr) -> RingMemory {
    RingMemory {
        buffer: attr.buffer,
        entry_size: attr.entry_size,
        entries: attr.num_entries,
        doorbell: attr.doorbell,
        max_batch: attr.max_batch,
    }
}
