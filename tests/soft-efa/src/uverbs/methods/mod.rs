//! The methods of the attribute ioctls that exist for EFA.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::abi::{self, ATTR_UHW_IN, ATTR_UHW_OUT, DRIVER_NS, QueryPortRespEx, object};
use super::channel::Channel;
use super::commands::{self, Call};
use super::context::ObjectKind;
use super::cq::{CqRequest, ExternalRing};
use super::fds::Kind;
use super::ioctl::{ANY_IN, Attrs, CONST, Carries, FLAGS, Spec, UHW, exactly, growing};
use super::process;
use super::qp::QpRequest;
use super::user::Out;

mod memory;

/// A method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    specs: &'static [Spec],
    /// Whether the driver has a part of its own.
    pub(crate) driver: bool,
    pub(crate) run: fn(&Attrs<'_>) -> Result<(), i32>,
}

impl Method {
    /// Every attribute that the method knows.
    pub(crate) fn specs(&self) -> impl Iterator<Item = Spec> {
        let driver: &[Spec] = if self.driver { &UHW } else { &[] };
        self.specs.iter().chain(driver).copied()
    }

    const fn plain(specs: &'static [Spec], run: fn(&Attrs<'_>) -> Result<(), i32>) -> Self {
        Self {
            specs,
            driver: false,
            run,
        }
    }

    const fn with_driver(specs: &'static [Spec], run: fn(&Attrs<'_>) -> Result<(), i32>) -> Self {
        Self {
            specs,
            driver: true,
            run,
        }
    }
}

pub(super) const fn out(min: u16) -> Carries {
    Carries::Out { min }
}

/// The method with these numbers, if EFA has it.
pub(crate) fn find(object_id: u16, method_id: u16) -> Option<Method> {
    Some(match (object_id, method_id) {
        (object::DEVICE, 0) => Method::with_driver(INVOKE_WRITE, invoke_write),
        (object::DEVICE, 1) => Method::plain(INFO_HANDLES, info_handles),
        (object::DEVICE, 2) => Method::plain(QUERY_PORT, query_port),
        (object::DEVICE, 3) => Method::with_driver(GET_CONTEXT, get_context),
        (object::DEVICE, 4) => Method::plain(QUERY_CONTEXT, query_context),
        (object::DEVICE, 5) => Method::plain(QUERY_GID_TABLE, query_gid_table),
        (object::DEVICE, 6) => Method::plain(QUERY_GID_ENTRY, query_gid_entry),
        (object::DEVICE, 7) => Method::plain(QUERY_PORT_SPEED, query_port_speed),
        (object::PD, 0) => Method::plain(PD_DESTROY, pd_destroy),
        (object::CQ, 0) => Method::with_driver(CQ_CREATE, cq_create),
        (object::CQ, 1) => Method::plain(CQ_DESTROY, cq_destroy),
        (object::QP, 0) => Method::with_driver(QP_CREATE, qp_create),
        (object::QP, 1) => Method::plain(QP_DESTROY, qp_destroy),
        (object::AH, 0) => Method::plain(AH_DESTROY, ah_destroy),
        (object::MR, 1) => Method::plain(MR_DESTROY, mr_destroy),
        (object::MR, 2) => Method::plain(memory::MR_ADVISE, memory::mr_advise),
        (object::MR, 3) => Method::plain(memory::MR_QUERY, memory::mr_query),
        (object::MR, 4) => Method::plain(memory::MR_REG_DMABUF, memory::mr_reg_dmabuf),
        (object::MR, 5) => Method::plain(memory::MR_REG, memory::mr_reg),
        (object::MR, DRIVER_NS) => Method::plain(memory::EFA_MR_QUERY, memory::efa_mr_query),
        (object::ASYNC_EVENT, 0) => Method::plain(ASYNC_EVENT_ALLOC, async_event_alloc),
        _ => return None,
    })
}

const INVOKE_WRITE: &[Spec] = &[
    Spec::may(
        0,
        Carries::In {
            min: 4,
            max: u16::MAX,
            extends: false,
        },
    ),
    Spec::may(1, out(0)),
    Spec::must(2, CONST),
];

fn invoke_write(attrs: &Attrs<'_>) -> Result<(), i32> {
    let number = u32::try_from(attrs.number(2)).map_err(|_| libc::EINVAL)?;
    let shape = commands::shape(number)?;
    let request = attrs.data(0)?;
    let response = attrs.room(1);
    // Extended commands grow, so that their handlers look for themselves.
    let fixed = number & abi::cmd::FLAG_EXTENDED == 0;
    if fixed && (request.len() < shape.request || response.len < shape.response) {
        return Err(libc::ENOSPC);
    }
    (shape.run)(&Call {
        process: attrs.process,
        context: attrs.context,
        fd: attrs.fd,
        request,
        response,
        driver_request: attrs.data(ATTR_UHW_IN)?,
        driver_response: attrs.room(ATTR_UHW_OUT),
    })?;
    attrs.mark_written(1)
}

const INFO_HANDLES: &[Spec] = &[
    Spec::must(0, CONST),
    Spec::must(1, out(4)),
    Spec::may(2, out(4)),
];

fn info_handles(attrs: &Attrs<'_>) -> Result<(), i32> {
    if !attrs.has(2) {
        return Err(libc::EINVAL);
    }
    let kind = match u16::try_from(attrs.number(0)) {
        Ok(object::PD) => ObjectKind::Pd,
        Ok(object::CQ) => ObjectKind::Cq,
        Ok(object::QP) => ObjectKind::Qp,
        Ok(object::AH) => ObjectKind::Ah,
        Ok(object::MR) => ObjectKind::Mr,
        // These have no handles.
        Ok(object::DEVICE | object::COMP_CHANNEL | object::ASYNC_EVENT) => {
            return attrs.answer(1, &0u32.to_ne_bytes());
        }
        _ => return Err(libc::ENOENT),
    };
    let mut handles = attrs.context.objects().handles(kind);
    // What has no room is not counted either.
    handles.truncate(attrs.room(2).len / 4);
    attrs.answer(2, handles.as_bytes())?;
    attrs.answer(1, &(handles.len() as u32).to_ne_bytes())
}

/// The answer may be as short as the first version of the struct.
const QUERY_PORT: &[Spec] = &[Spec::must(0, CONST), Spec::must(1, out(48))];

fn query_port(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    let resp: QueryPortRespEx = attrs.context.query_port(attrs.number(0))?;
    attrs.answer_or_zero(1, resp.as_bytes())
}

const QUERY_PORT_SPEED: &[Spec] = &[Spec::must(0, CONST), Spec::must(1, out(8))];

/// In units of 100 Mb/s.
fn query_port_speed(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    if attrs.number(0) != 1 {
        return Err(libc::EINVAL);
    }
    let speed = u64::from(attrs.context.device.profile().link_gbps) * 10;
    attrs.answer(1, &speed.to_ne_bytes())
}

const GET_CONTEXT: &[Spec] = &[
    Spec::may(0, out(4)),
    Spec::may(1, out(8)),
    // Descriptors for vendor devices; EFA has no use for them.
    Spec::may(2, ANY_IN),
];

fn get_context(attrs: &Attrs<'_>) -> Result<(), i32> {
    /// Optional access flags are understood.
    const CORE_SUPPORT_OPTIONAL_MR_ACCESS: u64 = 1;
    let request = process::ucontext_request(&attrs.data(ATTR_UHW_IN)?);
    let vectors = attrs.context.device.comp_vectors();
    attrs.answer(0, &vectors.to_ne_bytes())?;
    attrs.answer(1, &CORE_SUPPORT_OPTIONAL_MR_ACCESS.to_ne_bytes())?;
    let driver = attrs.context.open(request)?;
    // Without the answer there is no context.
    attrs
        .room(ATTR_UHW_OUT)
        .put(driver.as_bytes())
        .inspect_err(|_| attrs.context.unopen())
}

const QUERY_CONTEXT: &[Spec] = &[Spec::may(0, out(4)), Spec::may(1, out(8))];

/// The driver doesn't implement it.
fn query_context(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    Err(libc::EOPNOTSUPP)
}

const QUERY_GID_TABLE: &[Spec] = &[
    Spec::must(0, CONST),
    Spec::may(1, FLAGS),
    Spec::must(2, out(0)),
    Spec::must(3, out(8)),
];

fn query_gid_table(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    attrs.flags(1, 0)?;
    let size = usize::try_from(attrs.number(0)).map_err(|_| libc::EINVAL)?;
    let room = attrs.room(2);
    let entry = attrs.context.gid_entry(1, 0)?;
    if size == 0 || !room.len.is_multiple_of(size) || room.len < size {
        return Err(libc::EINVAL);
    }
    Out { len: size, ..room }.put_or_zero(entry.as_bytes())?;
    attrs.mark_written(2)?;
    attrs.answer(3, &1u64.to_ne_bytes())
}

const QUERY_GID_ENTRY: &[Spec] = &[
    Spec::must(0, CONST),
    Spec::must(1, CONST),
    Spec::must(2, FLAGS),
    Spec::must(3, out(32)),
];

fn query_gid_entry(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    attrs.flags(2, 0)?;
    let entry = attrs.context.gid_entry(attrs.number(0), attrs.number(1))?;
    attrs.answer_or_zero(3, entry.as_bytes())
}

const PD_DESTROY: &[Spec] = &[Spec::must(0, Carries::Destroys(ObjectKind::Pd))];
const AH_DESTROY: &[Spec] = &[Spec::must(0, Carries::Destroys(ObjectKind::Ah))];
const MR_DESTROY: &[Spec] = &[Spec::must(0, Carries::Destroys(ObjectKind::Mr))];
const CQ_DESTROY: &[Spec] = &[
    Spec::must(0, Carries::Destroys(ObjectKind::Cq)),
    Spec::must(1, out(8)),
];
const QP_DESTROY: &[Spec] = &[
    Spec::must(0, Carries::Destroys(ObjectKind::Qp)),
    Spec::must(1, out(4)),
];

fn pd_destroy(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs
        .context
        .destroy(ObjectKind::Pd, attrs.handle(0))
        .map(drop)
}

fn ah_destroy(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs
        .context
        .destroy(ObjectKind::Ah, attrs.handle(0))
        .map(drop)
}

fn mr_destroy(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs
        .context
        .destroy(ObjectKind::Mr, attrs.handle(0))
        .map(drop)
}

fn cq_destroy(attrs: &Attrs<'_>) -> Result<(), i32> {
    let reported = attrs.context.destroy(ObjectKind::Cq, attrs.handle(0))?;
    let resp = abi::DestroyCqResp {
        comp_events_reported: reported.completion_events,
        async_events_reported: 0,
    };
    attrs.answer(1, resp.as_bytes())
}

fn qp_destroy(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.destroy(ObjectKind::Qp, attrs.handle(0))?;
    attrs.answer(1, abi::DestroyQpResp::default().as_bytes())
}

const CQ_CREATE: &[Spec] = &[
    Spec::must(0, Carries::NewHandle),
    Spec::must(1, exactly(4)),
    Spec::must(2, exactly(8)),
    Spec::may(3, Carries::ChannelFd),
    Spec::must(4, exactly(4)),
    Spec::may(5, FLAGS),
    Spec::must(6, out(4)),
    Spec::may(7, Carries::AsyncFd),
    Spec::may(8, exactly(8)),
    Spec::may(9, exactly(8)),
    Spec::may(10, Carries::RawFd),
    Spec::may(11, exactly(8)),
];

fn cq_create(attrs: &Attrs<'_>) -> Result<(), i32> {
    const TIMESTAMP_AND_OVERRUN: u32 = 3;
    attrs.context.require_open()?;
    let flags = attrs.flags(5, TIMESTAMP_AND_OVERRUN)?;
    let external = external_ring(attrs)?;
    let made = attrs.context.create_cq(
        attrs.fd,
        CqRequest {
            entries: attrs.number32(1),
            user_handle: attrs.number(2),
            comp_vector: attrs.number32(4),
            flags,
            channel: attrs.channel(3)?,
            external,
            driver: attrs.data(ATTR_UHW_IN)?,
        },
    )?;
    let answer = || {
        attrs.answer(6, &made.entries.to_ne_bytes())?;
        attrs.room(ATTR_UHW_OUT).put(made.driver.as_bytes())?;
        attrs.answer_handle(0, made.handle.into())
    };
    answer().inspect_err(|_| attrs.context.discard(ObjectKind::Cq, made.handle))
}

/// Where a completion ring in the program's own memory is.
fn external_ring(attrs: &Attrs<'_>) -> Result<Option<ExternalRing>, i32> {
    const VA: u16 = 8;
    const LENGTH: u16 = 9;
    const FD: u16 = 10;
    const OFFSET: u16 = 11;
    match (
        attrs.has(VA),
        attrs.has(LENGTH),
        attrs.has(FD),
        attrs.has(OFFSET),
    ) {
        (false, false, false, false) => Ok(None),
        (false, true, true, true) => Ok(Some(ExternalRing {
            fd: attrs.raw_fd(FD)?,
            offset: attrs.number(OFFSET),
            length: attrs.number(LENGTH),
        })),
        // The program's ordinary memory isn't contiguous, and the driver wants it to be.
        _ => Err(libc::EINVAL),
    }
}

const QP_CREATE: &[Spec] = &[
    Spec::must(0, Carries::NewHandle),
    Spec::may(1, Carries::Absent),
    Spec::may(2, Carries::Uses(ObjectKind::Pd)),
    Spec::may(3, Carries::Absent),
    Spec::may(4, Carries::Uses(ObjectKind::Cq)),
    Spec::may(5, Carries::Uses(ObjectKind::Cq)),
    Spec::may(6, Carries::Absent),
    Spec::must(7, exactly(8)),
    Spec::must(8, growing(20)),
    Spec::must(9, CONST),
    Spec::may(10, FLAGS),
    Spec::may(11, exactly(4)),
    Spec::may(12, Carries::AsyncFd),
    Spec::must(13, out(20)),
    Spec::must(14, out(4)),
];

fn qp_create(attrs: &Attrs<'_>) -> Result<(), i32> {
    const SQ_SIG_ALL: u32 = 1 << 12;
    /// Scattered checksums and stripped VLAN tags: the core knows them, but not of datagrams.
    const OF_PACKETS: u32 = 1 << 8 | 1 << 9;
    const CREATE_FLAGS: u32 = 1 << 1 | 1 << 11 | SQ_SIG_ALL;
    attrs.context.require_open()?;
    let cap = commands::cap(&attrs.data(8)?)?;
    let qp_type = u8::try_from(attrs.number(9)).map_err(|_| libc::EINVAL)?;
    commands::check_qp_type(qp_type)?;
    if !attrs.has(2) || !attrs.has(4) || !attrs.has(5) {
        return Err(libc::ENOENT);
    }
    let known = match qp_type {
        abi::QPT_UD => CREATE_FLAGS,
        _ => CREATE_FLAGS | OF_PACKETS,
    };
    let flags = attrs.flags(10, known)?;
    if attrs.has(11) {
        return Err(if qp_type == abi::QPT_UD {
            libc::EPERM
        } else {
            libc::EOPNOTSUPP
        });
    }
    let made = attrs.context.create_qp(
        attrs.fd,
        QpRequest {
            pd: attrs.handle(2),
            send_cq: attrs.handle(4),
            recv_cq: attrs.handle(5),
            qp_type,
            cap,
            create_flags: flags & !SQ_SIG_ALL,
            driver: attrs.data(ATTR_UHW_IN)?,
        },
    )?;
    let answer = || {
        attrs.answer(13, made.cap.as_bytes())?;
        attrs.answer(14, &u32::from(made.number).to_ne_bytes())?;
        attrs.room(ATTR_UHW_OUT).put(made.driver.as_bytes())?;
        attrs.answer_handle(0, made.handle.into())
    };
    answer().inspect_err(|_| attrs.context.discard(ObjectKind::Qp, made.handle))
}

const ASYNC_EVENT_ALLOC: &[Spec] = &[Spec::must(0, Carries::NewFd)];

fn async_event_alloc(attrs: &Attrs<'_>) -> Result<(), i32> {
    attrs.context.require_open()?;
    let (events, fd) = Channel::new()?;
    let fd = fd.into_raw_fd();
    attrs.process.fds.insert(
        fd,
        Kind::AsyncEvent {
            _channel: Arc::new(events),
        },
    );
    attrs
        .answer_handle(0, fd as u64)
        .inspect_err(|_| attrs.process.take_back(fd))
}
