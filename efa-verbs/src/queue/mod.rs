//! Completion queues. Not public: each belongs to one queue pair.

mod calls;

use std::io;
use std::mem;
use std::ops::Range;
use std::ptr::{self, NonNull};

use efa_sys as sys;

use crate::channel::CompletionChannel;
use crate::completion::{RecvCompletion, SendCompletion};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::status::VendorStatus;
use crate::thread_domain::ThreadDomain;
use crate::types::{Feature, Limit};
use calls::{PollCalls, RecvCalls};

/// Completions of sends that are taken by one call.
const WORK: usize = 32;

/// Completion queue settings.
pub(crate) struct QueueConfig<'a> {
    /// Completions that can be outstanding.
    pub(crate) entries: u32,
    /// For receive completions.
    pub(crate) receives: bool,
    pub(crate) source_gid: bool,
    pub(crate) unsolicited: bool,
    pub(crate) channel: Option<&'a CompletionChannel>,
    pub(crate) domain: Option<&'a ThreadDomain>,
}

/// A completion queue with its entry points.
pub(crate) struct CompletionQueue {
    raw: NonNull<sys::ibv_cq_ex>,
    /// The same, as the older calls take it.
    cq: *mut sys::ibv_cq,
    calls: PollCalls,
    recv: Option<RecvCalls>,
    classic: sys::PollCq,
    /// Where `classic` puts completions.
    work: Box<[sys::ibv_wc]>,
    /// Those of them that were not handed over yet: none, unless the closure that takes them has
    /// panicked.
    left: Range<usize>,
    /// Entries that it really has.
    pub(crate) entries: u32,
    context: Context,
    _channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs lets any thread use a completion queue, one at a time where a thread domain
// turned its lock off; every use here needs `&mut self`.
unsafe impl Send for CompletionQueue {}
// SAFETY: `&self` reaches integers only.
unsafe impl Sync for CompletionQueue {}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if !self.context.process().is_here() {
            return;
        }
        // SAFETY: came from a successful creation and is destroyed once. Its queue pair is gone
        // (see the order of fields in `QueuePair`), its events are acknowledged as they are taken.
        let error = unsafe { sys::ibv_destroy_cq(self.raw_cq()) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!(device = self.context.device_name(), %error, "ibv_destroy_cq failed");
        }
    }
}

impl CompletionQueue {
    pub(crate) fn create(context: &Context, config: &QueueConfig<'_>) -> Result<Self> {
        let name = context.device_name();
        let limit = context.attributes().max_cqe;
        if config.entries > limit {
            return Err(Error::LimitExceeded {
                device: name.to_owned(),
                what: Limit::CompletionQueueDepth,
                requested: config.entries.into(),
                limit: limit.into(),
            });
        }
        // SAFETY: integers and nullable pointers.
        let mut attr: sys::ibv_cq_init_attr_ex = unsafe { mem::zeroed() };
        attr.cqe = config.entries;
        attr.channel = config
            .channel
            .map_or(ptr::null_mut(), CompletionChannel::raw);
        if config.receives {
            attr.wc_flags = [
                sys::IBV_WC_EX_WITH_BYTE_LEN,
                sys::IBV_WC_EX_WITH_IMM,
                sys::IBV_WC_EX_WITH_SRC_QP,
                sys::IBV_WC_EX_WITH_SLID,
            ]
            .iter()
            .fold(0, |flags, &flag| flags | u64::from(flag));
        }
        if let Some(domain) = config.domain {
            attr.comp_mask |= sys::IBV_CQ_INIT_ATTR_MASK_PD;
            attr.parent_domain = domain.raw();
        }
        let mut efa_flags = 0;
        if config.source_gid {
            efa_flags |= u64::from(sys::EFADV_WC_EX_WITH_SGID);
        }
        if config.unsolicited {
            efa_flags |= u64::from(sys::EFADV_WC_EX_WITH_IS_UNSOLICITED);
        }
        let (verb, raw) = if efa_flags == 0 {
            // SAFETY: the context is open; channel and domain outlive the queue.
            ("ibv_create_cq_ex", unsafe {
                sys::ibv_create_cq_ex(context.raw(), &mut attr)
            })
        } else {
            let Some(create) = sys::optional().efadv_create_cq else {
                let config = QueueConfig {
                    channel: None,
                    ..*config
                };
                return Err(unsupported(context, &config));
            };
            // libefa checks the tail of a struct longer than a pointer against its own size, and
            // reads beyond the end of one that is shorter than that: hand it one that is longer
            // than it will ever be, with zeros.
            #[repr(C)]
            struct Padded {
                attr: sys::efadv_cq_init_attr,
                zeros: [u64; 25],
            }
            // SAFETY: integers and nullable pointers only.
            let mut efa: Padded = unsafe { mem::zeroed() };
            efa.attr.wc_flags = efa_flags;
            let length = mem::size_of_val(&efa) as u32;
            // SAFETY: as above; `efa` is as large as the length says.
            let raw = unsafe { create(context.raw(), &mut attr, (&raw mut efa).cast(), length) };
            ("efadv_create_cq", raw)
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EOPNOTSUPP)
                && (efa_flags != 0 || config.channel.is_some())
            {
                return Err(unsupported(context, config));
            }
            let object = format!("{} entries on {name}", config.entries);
            return Err(Error::verb(verb, object, error));
        };
        Self::wrap(context.clone(), raw, config)
    }

    /// Takes the queue over and fetches its entry points.
    fn wrap(
        context: Context,
        raw: NonNull<sys::ibv_cq_ex>,
        config: &QueueConfig<'_>,
    ) -> Result<Self> {
        // SAFETY: nullable function pointers and data pointers.
        let mut found: sys::CqEntry = unsafe { mem::zeroed() };
        // SAFETY: the queue is alive; `found` is valid for the write.
        unsafe { sys::cq_entry(raw.as_ptr(), &mut found) };
        let mut missing = Vec::new();
        let calls = (|| {
            Some(PollCalls {
                wr_id: found.wr_id,
                status: found.status,
                start_poll: need(found.start_poll, "start_poll", &mut missing)?,
                next_poll: need(found.next_poll, "next_poll", &mut missing)?,
                end_poll: need(found.end_poll, "end_poll", &mut missing)?,
                read_vendor_err: need(found.read_vendor_err, "read_vendor_err", &mut missing)?,
            })
        })();
        let recv = if config.receives {
            let mut efa = ptr::null_mut();
            let (mut read_sgid, mut is_unsolicited) = (None, None);
            if config.source_gid || config.unsolicited {
                if let Some(convert) = sys::optional().efadv_cq_from_ibv_cq_ex {
                    // SAFETY: the queue was made by efadv_create_cq, so this part of it exists. A
                    // field is read only if its flag was accepted, so the library has it.
                    unsafe {
                        efa = convert(raw.as_ptr());
                        if config.source_gid {
                            read_sgid = need((*efa).wc_read_sgid, "wc_read_sgid", &mut missing);
                        }
                        if config.unsolicited {
                            is_unsolicited =
                                need((*efa).wc_is_unsolicited, "wc_is_unsolicited", &mut missing);
                        }
                    }
                } else {
                    missing.push("efadv_cq_from_ibv_cq_ex");
                }
            }
            (|| {
                Some(RecvCalls {
                    read_opcode: need(found.read_opcode, "read_opcode", &mut missing)?,
                    read_byte_len: need(found.read_byte_len, "read_byte_len", &mut missing)?,
                    read_imm_data: need(found.read_imm_data, "read_imm_data", &mut missing)?,
                    read_src_qp: need(found.read_src_qp, "read_src_qp", &mut missing)?,
                    read_slid: need(found.read_slid, "read_slid", &mut missing)?,
                    read_wc_flags: need(found.read_wc_flags, "read_wc_flags", &mut missing)?,
                    read_sgid,
                    is_unsolicited,
                    efa,
                })
            })()
        } else {
            None
        };
        let entries = {
            // SAFETY: the queue is alive.
            let cqe = unsafe { sys::cq_cqe(sys::ibv_cq_ex_to_cq(raw.as_ptr())) };
            u32::try_from(cqe).unwrap_or(0)
        };
        // SAFETY: the queue is alive.
        let (cq, classic) = unsafe {
            let cq = sys::ibv_cq_ex_to_cq(raw.as_ptr());
            (cq, sys::poll_cq_entry(cq))
        };
        let classic = need(classic, "poll_cq", &mut missing);
        match (calls, classic) {
            (Some(calls), Some(classic)) if missing.is_empty() => Ok(Self {
                raw,
                cq,
                calls,
                recv,
                classic,
                // SAFETY: integers, and enums that are newtypes of integers.
                work: vec![unsafe { mem::zeroed() }; if config.receives { 0 } else { WORK }].into(),
                left: 0..0,
                entries,
                context,
                _channel: config.channel.cloned(),
            }),
            _ => {
                // SAFETY: the queue was made by the caller and nobody else has it.
                unsafe { sys::ibv_destroy_cq(sys::ibv_cq_ex_to_cq(raw.as_ptr())) };
                Err(Error::MissingEntryPoints { names: missing })
            }
        }
    }

    pub(crate) fn raw_cq(&self) -> *mut sys::ibv_cq {
        self.cq
    }

    /// Asks for an event at the next completion.
    pub(crate) fn arm(&mut self) -> Result<()> {
        // SAFETY: the queue is alive and has a channel, see `QueuePair::arm`.
        match unsafe { sys::ibv_req_notify_cq(self.raw_cq(), 0) } {
            0 => Ok(()),
            error => {
                let error = io::Error::from_raw_os_error(error.abs());
                Err(Error::verb(
                    "ibv_req_notify_cq",
                    self.context.device_name(),
                    error,
                ))
            }
        }
    }

    /// Takes up to `most` completions of sends and gives each to `take`.
    ///
    /// By the older call, which takes several at once: their ids and statuses are all there is to a send,
    /// and start_poll and next_poll cost two calls for each. It frees the queue's lock before anything is
    /// given to `take`.
    #[inline(always)]
    pub(crate) fn poll_send(
        &mut self,
        most: usize,
        mut take: impl FnMut(SendCompletion),
    ) -> Result<usize> {
        let (mut taken, mut stale) = (0, 0);
        while taken < most {
            let mut last = false;
            if self.left.is_empty() {
                let room = (most - taken).min(self.work.len());
                // SAFETY: the queue is alive and exclusively borrowed; there is room for as many.
                let found = unsafe { (self.classic)(self.cq, room as i32, self.work.as_mut_ptr()) };
                let Ok(found) = usize::try_from(found) else {
                    // A completion of a queue pair that is gone was consumed: go on. There cannot be
                    // more of them than the queue has entries.
                    if found == -libc::EINVAL && stale < self.entries {
                        stale += 1;
                        continue;
                    }
                    return Err(self.failed("ibv_poll_cq", found));
                };
                self.left = 0..found;
                last = found < room;
            }
            let end = self.left.end.min(self.left.start + (most - taken));
            let Some(works) = self.work.get(self.left.start..end) else {
                break; // can't be: no more was found than there is room for
            };
            taken += works.len();
            for work in works {
                self.left.start += 1;
                take(SendCompletion {
                    wr_id: work.wr_id,
                    // Zero for success, whatever the verbs status says.
                    status: VendorStatus(work.vendor_err),
                });
            }
            if last {
                break;
            }
        }
        Ok(taken)
    }

    /// Takes completions of receives.
    #[inline]
    pub(crate) fn poll_recv(&mut self, out: &mut [RecvCompletion]) -> Result<usize> {
        let Some(recv) = self.recv else { return Ok(0) };
        let PollCalls {
            wr_id,
            status,
            read_vendor_err,
            ..
        } = self.calls;
        let raw = self.raw.as_ptr();
        self.poll(out, |slot| {
            // SAFETY: `PollCalls::poll` calls this while a completion of the queue is current. Id and
            // status point into the queue, which is alive, and the entry points are its own.
            unsafe {
                let failed = *status != sys::IBV_WC_SUCCESS;
                *slot = recv.read(raw);
                slot.wr_id = *wr_id;
                slot.status = VendorStatus(if failed { read_vendor_err(raw) } else { 0 });
            }
        })
    }

    #[inline]
    fn poll<T>(&mut self, out: &mut [T], take: impl Fn(&mut T)) -> Result<usize> {
        // SAFETY: the queue is alive, and exclusively borrowed.
        unsafe { self.calls.poll(self.raw.as_ptr(), self.entries, out, take) }
            .map_err(|error| self.failed("ibv_start_poll", error))
    }

    #[cold]
    fn failed(&self, verb: &'static str, error: i32) -> Error {
        Error::verb(
            verb,
            self.context.device_name(),
            io::Error::from_raw_os_error(error.abs()),
        )
    }
}

fn need<T>(found: Option<T>, name: &'static str, missing: &mut Vec<&'static str>) -> Option<T> {
    if found.is_none() {
        missing.push(name);
    }
    found
}

/// The flags of a completion queue are asked for only of devices that report the capability, which a
/// library reports only if it knows the flag. So where there is a channel as well, it is the channel that
/// the device has no events for.
#[cold]
fn unsupported(context: &Context, config: &QueueConfig<'_>) -> Error {
    let (feature, advice) = if config.channel.is_some() {
        (
            Feature::CompletionChannel,
            "the device, or its driver, raises none: poll instead, or update the EFA driver",
        )
    } else if config.unsolicited {
        (Feature::UnsolicitedWriteRecv, "it needs a newer rdma-core")
    } else {
        (Feature::SourceGid, "it needs a newer rdma-core")
    };
    Error::Unsupported {
        device: context.device_name().to_owned(),
        feature,
        advice: Some(advice.into()),
    }
}
