//! Queue pairs.
//!
//! A queue pair owns its completion queues and shares them with no other: before rdma-core 61 and
//! 63, libefa books a stale completion of a destroyed queue pair on whichever one has its number now,
//! down to writing out of bounds. With queues that die with their queue pair, none can be stale.

mod config;
mod rings;
mod session;
mod state;

use std::fmt;
use std::io;
use std::mem;
use std::ptr::NonNull;

use efa_sys as sys;

pub use config::{DataPath, Operation, Operations, QueuePairConfig};
pub use session::{ReceiveRequest, RemoteMemory};
pub use state::{DEFAULT_QUEUE_KEY, QpState};

use crate::attributes::Capabilities;
use crate::channel::CompletionChannel;
use crate::completion::{Received, RecvCompletion, SendCompletion, VendorStatus};
use crate::context::Context;
use crate::direct;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Feature, Limit, Result};
use crate::gid::Gid;
use crate::queue::{CompletionQueue, QueueConfig};
use crate::thread_domain::ThreadDomain;
use rings::{Rings, Source};
use session::SendEntry;

/// The C queue pair, destroyed on drop: first of all that a [`QueuePair`] owns.
struct Raw(NonNull<sys::ibv_qp>);

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: came from a successful creation and is destroyed once, with its send queue's lock
        // free (`QueuePair::drop` closes an open session first).
        let error = unsafe { sys::ibv_destroy_qp(self.0.as_ptr()) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!(%error, "ibv_destroy_qp failed");
        }
    }
}

/// An SRD queue pair with completion queues of its own.
///
/// Everything that changes it takes `&mut self`, so no two threads are ever in its queues at once.
/// Posting is `unsafe`, since nothing here keeps the memory and the address handles alive that
/// requests name; `efa-transport` does.
///
/// Dropping it destroys the queue pair, and then its completion queues. Requests that are still
/// outstanding are given up by the device; when `drop` returns, it touches their memory no more.
pub struct QueuePair {
    // In this order: the queue pair goes before its completion queues, they before the thread
    // domain and the channel, all before the protection domain.
    raw: Raw,
    send: SendEntry,
    /// The direct path. Its pointers are into what the queue pair and the completion queues mapped.
    rings: Option<Rings>,
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
}

// SAFETY: libibverbs lets any thread use a queue pair, one at a time where its locks are off; every
// use that touches its queues needs `&mut self`.
unsafe impl Send for QueuePair {}
// SAFETY: `&self` reaches plain fields and the query of the state, which is a system call.
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
    pub(crate) fn create(domain: ProtectionDomain, config: &QueuePairConfig) -> Result<Self> {
        check(domain.context(), config)?;
        let mut send_entries = config.send_depth.next_power_of_two();
        loop {
            let pair = Self::create_with(domain.clone(), config, send_entries)?;
            // Some devices have a minimum depth, which only the made queue pair tells. A completion
            // queue must have room for every request.
            if pair.send_capacity <= pair.send_cq.entries {
                return pair.choose_path(config);
            }
            send_entries = pair.send_capacity;
        }
    }

    fn create_with(
        domain: ProtectionDomain,
        config: &QueuePairConfig,
        send_entries: u32,
    ) -> Result<Self> {
        let context = domain.context().clone();
        let channel = if config.completion_channel {
            Some(CompletionChannel::create(context.clone())?)
        } else {
            None
        };
        let thread_domain = if config.lockless {
            ThreadDomain::create(&domain)
        } else {
            None
        };
        let receives = config.recv_depth > 0 || config.unsolicited_write_recv;
        let queue = |entries, receives| QueueConfig {
            entries,
            receives,
            source_gid: receives && config.source_gid,
            unsolicited: receives && config.unsolicited_write_recv,
            channel: channel.as_ref(),
            domain: thread_domain.as_ref(),
        };
        let send_cq = CompletionQueue::create(&context, &queue(send_entries, false))?;
        let recv_cq = if receives {
            let entries = config
                .recv_depth
                .max(1)
                .next_power_of_two()
                .saturating_add(config.extra_recv_completions);
            Some(CompletionQueue::create(&context, &queue(entries, true))?)
        } else {
            None
        };

        // SAFETY: integers and nullable pointers.
        let mut attr: sys::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        attr.send_cq = send_cq.raw_cq();
        attr.recv_cq = recv_cq.as_ref().unwrap_or(&send_cq).raw_cq();
        attr.cap.max_send_wr = config.send_depth;
        // libefa makes rings of at least one entry, and divides by the number of buffers.
        attr.cap.max_recv_wr = config.recv_depth.max(1);
        attr.cap.max_send_sge = config.max_send_sge;
        attr.cap.max_recv_sge = config.max_recv_sge;
        attr.cap.max_inline_data = config.max_inline;
        attr.qp_type = sys::IBV_QPT_DRIVER;
        attr.sq_sig_all = 1;
        attr.comp_mask = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.pd = thread_domain
            .as_ref()
            .map_or(domain.raw(), ThreadDomain::raw);
        attr.send_ops_flags = config.operations.bits().into();
        // SAFETY: integers only.
        let mut efa: sys::efadv_qp_init_attr = unsafe { mem::zeroed() };
        efa.driver_qp_type = sys::EFADV_QP_DRIVER_TYPE_SRD;
        if config.unsolicited_write_recv {
            efa.flags |= sys::EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV as u16;
        }
        efa.sl = config.service_level;
        // SAFETY: the context is open, the completion queues and domains are alive and outlive the
        // queue pair, and `efa` is as large as the length says.
        let raw = unsafe {
            sys::efadv_create_qp_ex(
                context.raw(),
                &mut attr,
                &mut efa,
                mem::size_of_val(&efa) as u32,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            return Err(refused(&context, config, io::Error::last_os_error()));
        };
        let raw = Raw(raw);
        let send = SendEntry::fetch(raw.0, config.operations)?;
        // SAFETY: the queue pair is alive.
        let number = unsafe { sys::qp_num(raw.0.as_ptr()) };
        Ok(Self {
            raw,
            send,
            rings: None,
            send_capacity: attr.cap.max_send_wr.max(config.send_depth),
            recv_capacity: match &recv_cq {
                // Never more than the completion queue can take.
                Some(cq) if config.recv_depth > 0 => {
                    attr.cap.max_recv_wr.max(config.recv_depth).min(cq.entries)
                }
                _ => 0,
            },
            send_cq,
            recv_cq,
            thread_domain,
            channel,
            domain,
            number,
            operations: config.operations,
            max_inline: config.max_inline,
            max_send_sge: config.max_send_sge,
            state: QpState::Reset,
            used: false,
        })
    }

    /// Takes the rings over where that is wanted and possible.
    fn choose_path(mut self, config: &QueuePairConfig) -> Result<Self> {
        if config.path != DataPath::Libefa {
            let source = Source {
                qp: self.raw(),
                number: self.number,
                send_cq: &self.send_cq,
                recv_cq: self.recv_cq.as_ref(),
                channel: self.channel.is_some(),
                source_gid: config.source_gid,
                part: self.domain.context().attributes().vendor_part_id,
            };
            // SAFETY: queue pair and completion queues were made just now, belong together, and are
            // dropped with the rings. With `rings` set, every function below uses those.
            match unsafe { Rings::take_over(&source) } {
                Ok(rings) => self.rings = Some(rings),
                Err(why) if config.path == DataPath::Direct => {
                    tracing::debug!(queue_pair = self.number, %why, "no direct path");
                    return Err(Error::Unsupported {
                        device: self.domain.context().device_name().to_owned(),
                        feature: Feature::DirectPath,
                        advice: Some(
                            "it needs rdma-core 59 (60 with a completion channel) and 64-byte send \
                             entries; use DataPath::Auto to go without",
                        ),
                    });
                }
                Err(why) => tracing::debug!(queue_pair = self.number, %why, "no direct path"),
            }
        }
        tracing::debug!(
            queue_pair = self.number,
            device = self.domain.context().device_name(),
            send = self.send_capacity,
            recv = self.recv_capacity,
            operations = ?self.operations,
            lockless = self.is_lockless(),
            path = ?self.path(),
            "queue pair made"
        );
        Ok(self)
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
    #[inline]
    pub fn poll_send(&mut self, out: &mut [SendCompletion]) -> Result<usize> {
        if self.session_is_open() {
            return Err(self.session_open());
        }
        let Some(rings) = &mut self.rings else {
            return self.send_cq.poll_send(out);
        };
        let most = out.len();
        let mut slots = out.iter_mut();
        Ok(rings
            .sent
            .poll_send(&mut rings.send, most, |wr_id, status| {
                if let Some(slot) = slots.next() {
                    let status = VendorStatus(status.into());
                    *slot = SendCompletion { wr_id, status };
                }
            }))
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

    pub(crate) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.0.as_ptr()
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

/// What can be said before libefa is asked.
fn check(context: &Context, config: &QueuePairConfig) -> Result<()> {
    let attributes = context.attributes();
    let device = || context.device_name().to_owned();
    let mut needs = config.operations.needs();
    if config.unsolicited_write_recv {
        needs.push((
            Capabilities::UNSOLICITED_WRITE_RECV,
            Feature::UnsolicitedWriteRecv,
        ));
    }
    if config.source_gid {
        needs.push((Capabilities::CQ_WITH_SGID, Feature::SourceGid));
    }
    if let Some(feature) = attributes.capabilities.missing(&needs) {
        let advice = match feature {
            Feature::RdmaWrite => Some(
                "RDMA write needs a device of the p5 generation or newer and rdma-core 46 or newer",
            ),
            Feature::RdmaRead => Some("RDMA read needs a device of the p4d generation or newer"),
            _ => None,
        };
        return Err(Error::Unsupported {
            device: device(),
            feature,
            advice,
        });
    }
    for (what, value) in [
        ("send_depth", config.send_depth),
        ("max_send_sge", config.max_send_sge),
        ("max_recv_sge", config.max_recv_sge),
    ] {
        if value == 0 {
            return Err(Error::InvalidArgument {
                what,
                reason: "must be at least 1".into(),
            });
        }
    }
    let inline = attributes
        .inline_buf_size
        .max(attributes.inline_buf_size_ex);
    for (what, requested, limit) in [
        (
            Limit::SendDepth,
            config.send_depth,
            max_send_depth(context, config),
        ),
        (Limit::RecvDepth, config.recv_depth, attributes.max_rq_wr),
        (
            Limit::SendSge,
            config.max_send_sge,
            attributes.max_sq_sge.into(),
        ),
        (
            Limit::RecvSge,
            config.max_recv_sge,
            attributes.max_rq_sge.into(),
        ),
        (Limit::InlineData, config.max_inline, inline.into()),
    ] {
        if requested > limit {
            let (requested, limit) = (requested.into(), limit.into());
            return Err(Error::LimitExceeded {
                device: device(),
                what,
                requested,
                limit,
            });
        }
    }
    Ok(())
}

/// The deepest send queue for what is asked: wider entries halve it.
fn max_send_depth(context: &Context, config: &QueuePairConfig) -> u32 {
    let attributes = context.attributes();
    if config.max_inline <= attributes.inline_buf_size.into() {
        return attributes.max_sq_wr;
    }
    let Some(ask) = sys::optional().efadv_get_max_sq_depth else {
        return attributes.max_sq_wr;
    };
    let mut attr = sys::efadv_sq_depth_attr {
        max_send_sge: config.max_send_sge,
        max_rdma_sge: 1,
        max_inline_data: config.max_inline,
        ..Default::default()
    };
    // SAFETY: the context is open, and `attr` is as large as the length says.
    let depth = unsafe { ask(context.raw(), &mut attr, mem::size_of_val(&attr) as u32) };
    // Negative: an error number. Creation will report it better.
    u32::try_from(depth).unwrap_or(attributes.max_sq_wr)
}

#[cold]
fn refused(context: &Context, config: &QueuePairConfig, error: io::Error) -> Error {
    if config.service_level != 0 && error.raw_os_error() == Some(libc::EINVAL) {
        return Error::Unsupported {
            device: context.device_name().to_owned(),
            feature: Feature::ServiceLevel,
            advice: Some("use service level 0"),
        };
    }
    let advice = match error.raw_os_error() {
        Some(libc::ENOMEM) => Some("the device has no queue pair left, or not enough memory"),
        _ => None,
    };
    let object = format!(
        "a queue pair with {} sends and {} receives on {}",
        config.send_depth,
        config.recv_depth,
        context.device_name()
    );
    Error::verb("efadv_create_qp_ex", object, error).advise(advice)
}
