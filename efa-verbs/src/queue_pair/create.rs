//! Making queue pairs.

use std::ffi::OsStr;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::Mutex;

use efa_sys as sys;

use super::calls::SendCalls;
use super::config::QueuePairConfig;
use super::pair::{Path, Posting, QueuePair, Raw};
use super::rings::{NoRings, Rings, Source};
use crate::channel::CompletionChannel;
use crate::context::Context;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::queue::{CompletionQueue, QueueConfig};
use crate::thread_domain::ThreadDomain;
use crate::types::{DataPath, DeviceCapabilities, Feature, Limit, QpState};

/// The environment variable that decides for [`DataPath::Auto`].
const PATH_VARIABLE: &str = "EFA_DATA_PATH";

impl ProtectionDomain {
    /// Makes a queue pair with completion queues of its own, in state RESET.
    ///
    /// # Errors
    ///
    /// [`Error::LimitExceeded`] for a depth above the device's, [`Error::Unsupported`] for an
    /// operation that it lacks, [`Error::MissingEntryPoints`] when libefa does not provide what was
    /// asked for, [`Error::ForkedProcess`], [`Error::Verb`] otherwise.
    pub fn create_queue_pair(&self, config: &QueuePairConfig) -> Result<QueuePair> {
        QueuePair::create(self.clone(), config)
    }
}

impl QueuePair {
    fn create(domain: ProtectionDomain, config: &QueuePairConfig) -> Result<Self> {
        domain.context().check_process()?;
        check(domain.context(), config)?;
        let mut send_entries = config.send_depth.next_power_of_two();
        loop {
            let pair = Self::create_with(domain.clone(), config, send_entries)?;
            // Some devices have a minimum depth, which only the made queue pair tells. A completion
            // queue must have room for every request.
            if pair.send_capacity <= pair.send_cq.entries {
                return pair.choose_path(config);
            }
            if pair.send_capacity <= send_entries {
                return Err(Error::LimitExceeded {
                    device: domain.context().device_name().to_owned(),
                    what: Limit::CompletionQueueDepth,
                    requested: send_entries.into(),
                    limit: pair.send_cq.entries.into(),
                });
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
        let thread_domain = match config.locks {
            true => None,
            false => ThreadDomain::create(&domain),
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
            let entries = receives_of(config).saturating_add(config.extra_recv_completions);
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
        let raw = Raw::new(raw, context.process());
        let calls = SendCalls::fetch(raw.ptr(), config.operations)?;
        // SAFETY: the queue pair is alive.
        let number = unsafe { sys::qp_num(raw.ptr().as_ptr()) };
        Ok(Self {
            raw,
            path: Path::Libefa(calls),
            posting: Posting::NotReady,
            process: context.process(),
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
            asking: Mutex::new(()),
        })
    }

    /// Takes the rings over where that is wanted and possible.
    fn choose_path(mut self, config: &QueuePairConfig) -> Result<Self> {
        let path = wanted_path(config)?;
        if path != DataPath::Libefa {
            match self.take_rings_over(config) {
                Ok(rings) => self.path = Path::Direct(rings),
                Err(why) if path == DataPath::Direct => {
                    return Err(Error::Unsupported {
                        device: self.domain.context().device_name().to_owned(),
                        feature: Feature::DirectPath,
                        advice: Some(format!("{why}; DataPath::Auto goes without").into()),
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
            operations = %self.operations,
            lockless = self.is_lockless(),
            path = %self.path(),
            "queue pair made"
        );
        Ok(self)
    }

    /// The rings, of which the result must be made the path.
    fn take_rings_over(&self, config: &QueuePairConfig) -> std::result::Result<Rings, NoRings> {
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
        // dropped with the rings; while these are the path, nothing goes through libefa.
        unsafe { Rings::take_over(&source) }
    }
}

/// Buffers of receives that libefa's ring has room for. It keeps their number in 16 bits.
fn recv_buffers(config: &QueuePairConfig) -> Option<u32> {
    config
        .recv_depth
        .max(1)
        .checked_mul(config.max_recv_sge)?
        .checked_next_power_of_two()
        .filter(|&buffers| buffers <= 1 << 15)
}

/// Receives that libefa will let outstanding: as many as its ring has room for, which may be more
/// than was asked for. Each may need a completion.
fn receives_of(config: &QueuePairConfig) -> u32 {
    let buffers = recv_buffers(config).unwrap_or(config.recv_depth);
    (buffers / config.max_recv_sge.max(1)).max(1)
}

/// The configured path; where that is left open, the environment's.
fn wanted_path(config: &QueuePairConfig) -> Result<DataPath> {
    if config.path != DataPath::Auto {
        return Ok(config.path);
    }
    let Some(value) = std::env::var_os(PATH_VARIABLE) else {
        return Ok(DataPath::Auto);
    };
    path_named(&value).ok_or_else(|| Error::InvalidArgument {
        what: PATH_VARIABLE,
        reason: format!("{value:?} is none of auto, libefa and direct"),
    })
}

fn path_named(value: &OsStr) -> Option<DataPath> {
    match value.to_str()? {
        "auto" | "" => Some(DataPath::Auto),
        "libefa" => Some(DataPath::Libefa),
        "direct" => Some(DataPath::Direct),
        _ => None,
    }
}

/// What can be said before libefa is asked.
fn check(context: &Context, config: &QueuePairConfig) -> Result<()> {
    let attributes = context.attributes();
    let device = || context.device_name().to_owned();
    let mut needs = config.operations.needs();
    if config.unsolicited_write_recv {
        needs.push((
            DeviceCapabilities::UNSOLICITED_WRITE_RECV,
            Feature::UnsolicitedWriteRecv,
        ));
    }
    if config.source_gid {
        needs.push((DeviceCapabilities::CQ_WITH_SGID, Feature::SourceGid));
    }
    if let Some((feature, why)) = attributes.missing(&needs) {
        return Err(Error::Unsupported {
            device: device(),
            feature,
            advice: why.map(Into::into),
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
    if recv_buffers(config).is_none() {
        return Err(Error::LimitExceeded {
            device: device(),
            what: Limit::RecvDepth,
            requested: config.recv_depth.into(),
            limit: u64::from((1u32 << 15) / config.max_recv_sge),
        });
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
            advice: Some("use service level 0; others need rdma-core 56 or newer".into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_receive_that_libefa_takes_has_a_completion() {
        // (asked for, buffers each) and what `efa_setup_qp` makes of it.
        for (recv_depth, max_recv_sge, receives) in [
            (0, 1, Some(1)),
            (256, 1, Some(256)),
            (300, 1, Some(512)),
            (256, 2, Some(256)),
            (256, 3, Some(341)),
            (32768, 1, Some(32768)),
            (32768, 2, None),
            (u32::MAX, 3, None),
        ] {
            let config = QueuePairConfig {
                recv_depth,
                max_recv_sge,
                ..QueuePairConfig::default()
            };
            let found = recv_buffers(&config).map(|_| receives_of(&config));
            assert_eq!(found, receives, "{recv_depth} with {max_recv_sge}");
        }
    }

    #[test]
    fn a_path_is_named_by_three_words() {
        for (value, path) in [
            ("", Some(DataPath::Auto)),
            ("auto", Some(DataPath::Auto)),
            ("libefa", Some(DataPath::Libefa)),
            ("direct", Some(DataPath::Direct)),
            ("Direct", None),
            ("fast", None),
        ] {
            assert_eq!(path_named(OsStr::new(value)), path, "{value:?}");
        }
    }
}
