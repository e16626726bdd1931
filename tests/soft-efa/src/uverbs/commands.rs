//! Commands with fixed layouts: those that are written to the device file, and the same ones
//! wrapped in the ioctl method `INVOKE_WRITE`.

use std::os::fd::{IntoRawFd, RawFd};
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::engine::Verb;

use super::abi::{self, CreateQpCore, QpCap, access, cmd, qp_mask};
use super::channel::Channel;
use super::context::{Context, ObjectKind};
use super::cq::{CqMade, CqRequest};
use super::device::Counted;
use super::fds::Kind;
use super::process::{self, Process};
use super::qp::{QpMade, QpRequest};
use super::udata::{core_request, must_be_clear};
use super::user::Out;

/// How long a command's request and response are, and which parts it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) request: usize,
    pub(crate) response: usize,
    /// Whether the driver has a part of its own.
    pub(crate) driver: bool,
    pub(crate) run: fn(&Call<'_>) -> Result<(), i32>,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) process: &'static Process,
    pub(crate) context: &'a Context,
    /// The descriptor through which the program calls.
    pub(crate) fd: RawFd,
    pub(crate) request: Vec<u8>,
    pub(crate) response: Out,
    pub(crate) driver_request: Vec<u8>,
    pub(crate) driver_response: Out,
}

macro_rules! shape {
    ($request:ident => $response:ident, $run:ident) => {
        Shape {
            request: size_of::<abi::$request>(),
            response: size_of::<abi::$response>(),
            driver: true,
            run: $run,
        }
    };
    ($request:ident, $run:ident) => {
        Shape {
            request: size_of::<abi::$request>(),
            response: 0,
            driver: false,
            run: $run,
        }
    };
}

/// The command `number` (with the bit for extended ones), or the refusal.
pub(crate) fn shape(number: u32) -> Result<Shape, i32> {
    if number & !(cmd::FLAG_EXTENDED | cmd::MASK) != 0 {
        return Err(libc::EINVAL);
    }
    const EX: u32 = cmd::FLAG_EXTENDED;
    const EX_QUERY_DEVICE: u32 = EX | cmd::QUERY_DEVICE;
    const EX_CREATE_CQ: u32 = EX | cmd::CREATE_CQ;
    const EX_CREATE_QP: u32 = EX | cmd::CREATE_QP;
    const EX_MODIFY_QP: u32 = EX | cmd::MODIFY_QP;
    Ok(match number {
        cmd::GET_CONTEXT => shape!(Response => GetContextResp, get_context),
        cmd::QUERY_DEVICE => Shape {
            driver: false,
            ..shape!(Response => QueryDeviceResp, query_device)
        },
        cmd::QUERY_PORT => Shape {
            driver: false,
            ..shape!(QueryPort => QueryPortResp, query_port)
        },
        cmd::ALLOC_PD => shape!(Response => PdResp, alloc_pd),
        cmd::DEALLOC_PD => shape!(Handle, dealloc_pd),
        cmd::CREATE_AH => shape!(CreateAh => AhResp, create_ah),
        cmd::DESTROY_AH => shape!(Handle, destroy_ah),
        cmd::REG_MR => shape!(RegMr => RegMrResp, reg_mr),
        cmd::DEREG_MR => shape!(Handle, dereg_mr),
        cmd::CREATE_COMP_CHANNEL => Shape {
            driver: false,
            ..shape!(Response => CompChannelResp, create_channel)
        },
        cmd::CREATE_CQ => shape!(CreateCq => CreateCqResp, create_cq),
        cmd::DESTROY_CQ => Shape {
            driver: false,
            ..shape!(DestroyWithEvents => DestroyCqResp, destroy_cq)
        },
        cmd::CREATE_QP => shape!(CreateQp => CreateQpResp, create_qp),
        cmd::QUERY_QP => Shape {
            driver: false,
            ..shape!(QueryQp => QueryQpResp, query_qp)
        },
        cmd::MODIFY_QP => shape!(ModifyQp, modify_qp),
        cmd::DESTROY_QP => Shape {
            driver: false,
            ..shape!(DestroyWithEvents => DestroyQpResp, destroy_qp)
        },
        // Extended requests and responses may be shorter than ours: they end where the first
        // version of the command ended.
        EX_QUERY_DEVICE => Shape {
            response: size_of::<abi::QueryDeviceResp>() + 8,
            ..shape!(ExQueryDevice => ExQueryDeviceResp, ex_query_device)
        },
        EX_CREATE_CQ => shape!(ExCreateCq => ExCreateCqResp, ex_create_cq),
        EX_CREATE_QP => Shape {
            request: size_of::<CreateQpCore>() + 4,
            ..shape!(ExCreateQp => ExCreateQpResp, ex_create_qp)
        },
        EX_MODIFY_QP => Shape {
            request: size_of::<abi::ModifyQp>(),
            ..shape!(ExModifyQp => ExModifyQpResp, ex_modify_qp)
        },
        // Everything else needs something that the driver doesn't have.
        _ => return Err(libc::EOPNOTSUPP),
    })
}

impl Call<'_> {
    fn request<T: FromBytes + IntoBytes + Default>(&self) -> Result<T, i32> {
        core_request(&self.request)
    }

    fn respond<T: IntoBytes + Immutable>(&self, core: &T) -> Result<(), i32> {
        self.response.put_or_zero(core.as_bytes())
    }

    fn respond_driver<T: IntoBytes + Immutable>(&self, driver: &T) -> Result<(), i32> {
        self.driver_response.put(driver.as_bytes())
    }

    /// Answers with a new object, or takes it away again.
    fn hand_over<C, D>(
        &self,
        kind: ObjectKind,
        handle: u32,
        core: &C,
        driver: &D,
    ) -> Result<(), i32>
    where
        C: IntoBytes + Immutable,
        D: IntoBytes + Immutable,
    {
        self.respond(core)
            .and_then(|()| self.respond_driver(driver))
            .inspect_err(|_| self.context.discard(kind, handle))
    }

    fn destroy(&self, kind: ObjectKind) -> Result<(), i32> {
        let request: abi::Handle = self.request()?;
        self.context.destroy(kind, request.handle).map(drop)
    }

    fn channel(&self, fd: i32) -> Result<Option<Arc<Channel>>, i32> {
        if fd < 0 {
            return Ok(None);
        }
        match self.process.fds.get(fd) {
            Some(Kind::Channel(channel)) => Ok(Some(channel)),
            _ => Err(libc::EBADF),
        }
    }
}

fn get_context(call: &Call<'_>) -> Result<(), i32> {
    let request = process::ucontext_request(&call.driver_request);
    let driver = call.context.open(request)?;
    let mut made = None;
    let mut answer = || {
        let (events, fd) = Channel::new()?;
        let fd = fd.into_raw_fd();
        made = Some(fd);
        call.process.fds.insert(
            fd,
            Kind::AsyncEvent {
                _channel: Arc::new(events),
            },
        );
        let resp = abi::GetContextResp {
            async_fd: fd as u32,
            num_comp_vectors: call.context.device.comp_vectors(),
        };
        call.respond(&resp)?;
        call.respond_driver(&driver)
    };
    // Without the answer there is no context.
    answer().inspect_err(|_| {
        call.context.unopen();
        made.inspect(|fd| call.process.take_back(*fd));
    })
}

fn query_device(call: &Call<'_>) -> Result<(), i32> {
    call.context.require_open()?;
    call.respond(&call.context.query_device())
}

fn ex_query_device(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::ExQueryDevice = call.request()?;
    call.context.require_open()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(libc::EINVAL);
    }
    must_be_clear(&call.driver_request)?;
    let resp = abi::ExQueryDeviceResp {
        base: call.context.query_device(),
        response_length: call.response.len.min(size_of::<abi::ExQueryDeviceResp>()) as u32,
        ..abi::ExQueryDeviceResp::default()
    };
    call.respond(&resp)?;
    call.respond_driver(&call.context.query_efa())
}

fn query_port(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::QueryPort = call.request()?;
    call.context.require_open()?;
    let resp = call.context.query_port(request.port_num.into())?;
    call.respond(&resp.legacy)
}

fn alloc_pd(call: &Call<'_>) -> Result<(), i32> {
    call.context.require_open()?;
    must_be_clear(&call.driver_request)?;
    let (handle, number) = call.context.alloc_pd()?;
    let driver = abi::EfaAllocPdResp {
        pdn: number,
        ..abi::EfaAllocPdResp::default()
    };
    call.hand_over(
        ObjectKind::Pd,
        handle,
        &abi::PdResp { pd_handle: handle },
        &driver,
    )
}

fn dealloc_pd(call: &Call<'_>) -> Result<(), i32> {
    call.destroy(ObjectKind::Pd)
}

fn create_ah(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::CreateAh = call.request()?;
    call.context.require_open()?;
    must_be_clear(&call.driver_request)?;
    let (handle, number) = call.context.create_ah(request.pd_handle, &request.attr)?;
    let driver = abi::EfaCreateAhResp {
        address_handle: number,
        ..abi::EfaCreateAhResp::default()
    };
    call.hand_over(
        ObjectKind::Ah,
        handle,
        &abi::AhResp { ah_handle: handle },
        &driver,
    )
}

fn destroy_ah(call: &Call<'_>) -> Result<(), i32> {
    call.destroy(ObjectKind::Ah)
}

fn reg_mr(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::RegMr = call.request()?;
    call.context.require_open()?;
    let made = call.context.reg_mr(
        request.pd_handle,
        request.start,
        request.length,
        request.hca_va,
        request.access_flags,
        &call.driver_request,
    )?;
    let resp = abi::RegMrResp {
        mr_handle: made.handle,
        lkey: made.key,
        rkey: made.key,
    };
    call.hand_over(ObjectKind::Mr, made.handle, &resp, &[0u8; 0])
}

fn dereg_mr(call: &Call<'_>) -> Result<(), i32> {
    call.destroy(ObjectKind::Mr)
}

fn create_channel(call: &Call<'_>) -> Result<(), i32> {
    call.context.require_open()?;
    call.context.allocation(Verb::CreateChannel)?;
    let (channel, fd) = Channel::new()?;
    let channel = channel.counted(call.context.count(Counted::Channel));
    let fd = fd.into_raw_fd();
    call.process
        .fds
        .insert(fd, Kind::Channel(Arc::new(channel)));
    call.respond(&abi::CompChannelResp { fd: fd as u32 })
        .inspect_err(|_| call.process.take_back(fd))
}

fn cq_resp(made: &CqMade) -> abi::CreateCqResp {
    abi::CreateCqResp {
        cq_handle: made.handle,
        cqe: made.entries,
    }
}

fn create_cq(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::CreateCq = call.request()?;
    call.context.require_open()?;
    let made = call.context.create_cq(
        call.fd,
        CqRequest {
            entries: request.cqe,
            user_handle: request.user_handle,
            comp_vector: request.comp_vector,
            flags: 0,
            channel: call.channel(request.comp_channel)?,
            external: None,
            driver: call.driver_request.clone(),
        },
    )?;
    call.hand_over(ObjectKind::Cq, made.handle, &cq_resp(&made), &made.driver)
}

fn ex_create_cq(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::ExCreateCq = call.request()?;
    call.context.require_open()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(libc::EINVAL);
    }
    let made = call.context.create_cq(
        call.fd,
        CqRequest {
            entries: request.cqe,
            user_handle: request.user_handle,
            comp_vector: request.comp_vector,
            flags: request.flags,
            channel: call.channel(request.comp_channel)?,
            external: None,
            driver: call.driver_request.clone(),
        },
    )?;
    let resp = abi::ExCreateCqResp {
        base: cq_resp(&made),
        response_length: call.response.len.min(size_of::<abi::ExCreateCqResp>()) as u32,
        ..abi::ExCreateCqResp::default()
    };
    call.hand_over(ObjectKind::Cq, made.handle, &resp, &made.driver)
}

fn destroy_cq(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::DestroyWithEvents = call.request()?;
    let reported = call.context.destroy(ObjectKind::Cq, request.handle)?;
    call.respond(&abi::DestroyCqResp {
        comp_events_reported: reported.completion_events,
        async_events_reported: 0,
    })
}

fn qp_request(call: &Call<'_>, core: &CreateQpCore, create_flags: u32) -> Result<QpRequest, i32> {
    check_qp_type(core.qp_type)?;
    // There is no shared receive queue that a handle could name.
    if core.is_srq != 0 || core.qp_type == abi::QPT_XRC_TGT {
        return Err(libc::EINVAL);
    }
    Ok(QpRequest {
        pd: core.pd_handle,
        send_cq: core.send_cq_handle,
        recv_cq: core.recv_cq_handle,
        qp_type: core.qp_type,
        cap: core.cap,
        create_flags,
        driver: call.driver_request.clone(),
    })
}

/// What the kernel's core does with types before it asks the driver.
pub(crate) fn check_qp_type(qp_type: u8) -> Result<(), i32> {
    match qp_type {
        abi::QPT_RC
        | abi::QPT_UC
        | abi::QPT_UD
        | abi::QPT_XRC_INI
        | abi::QPT_XRC_TGT
        | abi::QPT_DRIVER => Ok(()),
        // SAFETY: geteuid takes no arguments and can't fail.
        abi::QPT_RAW_PACKET if unsafe { libc::geteuid() } != 0 => Err(libc::EPERM),
        abi::QPT_RAW_PACKET => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

/// The creation flags that the kernel's core knows (`IB_QP_CREATE_*`); the driver refuses all of them.
const CREATE_FLAGS: u32 = 0xf1e;

fn qp_resp(made: &QpMade) -> abi::CreateQpResp {
    abi::CreateQpResp {
        qp_handle: made.handle,
        qpn: made.number.into(),
        cap: made.cap,
        reserved: 0,
    }
}

fn create_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::CreateQp = call.request()?;
    call.context.require_open()?;
    let request = qp_request(call, &request.core, 0)?;
    let made = call.context.create_qp(call.fd, request)?;
    call.hand_over(ObjectKind::Qp, made.handle, &qp_resp(&made), &made.driver)
}

fn ex_create_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::ExCreateQp = call.request()?;
    call.context.require_open()?;
    if request.comp_mask != 0 || request.core.reserved != 0 {
        return Err(libc::EINVAL);
    }
    // An indirection table would count only with its bit in the mask, a source only with its flag.
    if request.create_flags & !CREATE_FLAGS != 0 {
        return Err(libc::EINVAL);
    }
    let qp = qp_request(call, &request.core, request.create_flags)?;
    let made = call.context.create_qp(call.fd, qp)?;
    let resp = abi::ExCreateQpResp {
        base: qp_resp(&made),
        response_length: call.response.len.min(size_of::<abi::ExCreateQpResp>()) as u32,
        ..abi::ExCreateQpResp::default()
    };
    call.hand_over(ObjectKind::Qp, made.handle, &resp, &made.driver)
}

fn query_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::QueryQp = call.request()?;
    call.respond(
        &call
            .context
            .query_qp(request.qp_handle, request.attr_mask)?,
    )
}

fn check_modify(request: &abi::ModifyQp, known: u32) -> Result<(), i32> {
    if request.attr_mask & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // Queue keys with the top bit set are for those who may send raw packets.
    // SAFETY: geteuid takes no arguments and can't fail.
    let privileged = unsafe { libc::geteuid() } == 0;
    if request.attr_mask & qp_mask::QKEY != 0 && request.qkey & 0x8000_0000 != 0 && !privileged {
        return Err(libc::EPERM);
    }
    Ok(())
}

fn modify_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::ModifyQp = call.request()?;
    check_modify(&request, qp_mask::LEGACY)?;
    call.context.modify_qp(&request, &call.driver_request)
}

fn ex_modify_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::ExModifyQp = call.request()?;
    check_modify(&request.base, qp_mask::EXTENDED)?;
    call.context
        .modify_qp(&request.base, &call.driver_request)?;
    let response_length = call.response.len.min(size_of::<abi::ExModifyQpResp>()) as u32;
    call.respond(&abi::ExModifyQpResp {
        comp_mask: 0,
        response_length,
    })
}

fn destroy_qp(call: &Call<'_>) -> Result<(), i32> {
    let request: abi::DestroyWithEvents = call.request()?;
    call.context.destroy(ObjectKind::Qp, request.handle)?;
    call.respond(&abi::DestroyQpResp { events_reported: 0 })
}

/// The access flags that the ioctl methods for memory know.
pub(crate) const MR_FLAGS: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::RELAXED_ORDERING;

/// A capability block from an attribute.
pub(crate) fn cap(bytes: &[u8]) -> Result<QpCap, i32> {
    core_request(bytes)
}
