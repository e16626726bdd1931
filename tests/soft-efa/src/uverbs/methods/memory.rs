//! The methods of memory regions.

use super::out;
use crate::uverbs::abi::DRIVER_NS;
use crate::uverbs::commands;
use crate::uverbs::context::ObjectKind;
use crate::uverbs::ioctl::{Attrs, CONST, Carries, FLAGS, Spec, exactly};
use crate::uverbs::mr::MrMade;

pub(super) const MR_QUERY: &[Spec] = &[
    Spec::must(0, Carries::Uses(ObjectKind::Mr)),
    Spec::must(1, out(4)),
    Spec::must(2, out(4)),
    Spec::must(3, out(8)),
    Spec::may(4, out(8)),
];

pub(super) fn mr_query(attrs: &Attrs<'_>) -> Result<(), i32> {
    let (key, length, iova) = {
        let objects = attrs.context.objects();
        let mr = objects.mr(attrs.handle(0))?;
        (mr.key, mr.length, mr.iova)
    };
    attrs.answer(1, &key.to_ne_bytes())?;
    attrs.answer(2, &key.to_ne_bytes())?;
    attrs.answer(3, &length.to_ne_bytes())?;
    attrs.answer(4, &iova.to_ne_bytes())
}

pub(super) const MR_REG_DMABUF: &[Spec] = &[
    Spec::must(0, Carries::NewHandle),
    Spec::must(1, Carries::Uses(ObjectKind::Pd)),
    Spec::must(2, exactly(8)),
    Spec::must(3, exactly(8)),
    Spec::must(4, exactly(8)),
    Spec::must(5, exactly(4)),
    Spec::must(6, FLAGS),
    Spec::must(7, out(4)),
    Spec::must(8, out(4)),
];

pub(super) fn mr_reg_dmabuf(attrs: &Attrs<'_>) -> Result<(), i32> {
    let flags = attrs.flags(6, commands::MR_FLAGS)?;
    let fd = attrs.number32(5) as i32;
    let made = attrs.context.reg_dmabuf_mr(
        attrs.handle(1),
        fd,
        attrs.number(2),
        attrs.number(3),
        attrs.number(4),
        flags,
    )?;
    hand_over_mr(attrs, made, 7, 8)
}

pub(super) const MR_REG: &[Spec] = &[
    Spec::must(0, Carries::NewHandle),
    Spec::must(1, Carries::Uses(ObjectKind::Pd)),
    Spec::may(2, Carries::Absent),
    Spec::must(3, exactly(8)),
    Spec::may(4, exactly(8)),
    Spec::must(5, exactly(8)),
    Spec::must(6, FLAGS),
    Spec::may(7, Carries::RawFd),
    Spec::may(8, exactly(8)),
    Spec::must(9, out(4)),
    Spec::must(10, out(4)),
];

pub(super) fn mr_reg(attrs: &Attrs<'_>) -> Result<(), i32> {
    const ADDR: u16 = 4;
    const FD: u16 = 7;
    const FD_OFFSET: u16 = 8;
    const KNOWN: u32 = commands::MR_FLAGS | ((1 << 10) - 1);
    let flags = attrs.flags(6, KNOWN)?;
    let (pd, iova, length) = (attrs.handle(1), attrs.number(3), attrs.number(5));
    let made = match (attrs.has(ADDR), attrs.has(FD), attrs.has(FD_OFFSET)) {
        (true, false, false) => {
            attrs
                .context
                .reg_mr(pd, attrs.number(ADDR), length, iova, flags, &[])?
        }
        (false, true, true) => attrs.context.reg_dmabuf_mr(
            pd,
            attrs.raw_fd(FD)?,
            attrs.number(FD_OFFSET),
            length,
            iova,
            flags,
        )?,
        _ => return Err(libc::EINVAL),
    };
    hand_over_mr(attrs, made, 9, 10)
}

fn hand_over_mr(attrs: &Attrs<'_>, made: MrMade, lkey: u16, rkey: u16) -> Result<(), i32> {
    let answer = || {
        attrs.answer(lkey, &made.key.to_ne_bytes())?;
        attrs.answer(rkey, &made.key.to_ne_bytes())?;
        attrs.answer_handle(0, made.handle.into())
    };
    answer().inspect_err(|_| attrs.context.discard(ObjectKind::Mr, made.handle))
}

pub(super) const MR_ADVISE: &[Spec] = &[
    Spec::must(0, Carries::Uses(ObjectKind::Pd)),
    Spec::must(1, CONST),
    Spec::must(2, FLAGS),
    Spec::must(
        3,
        Carries::In {
            min: 16,
            max: u16::MAX,
            extends: false,
        },
    ),
];

/// Advice is for paging on demand, which the driver doesn't do.
pub(super) fn mr_advise(_: &Attrs<'_>) -> Result<(), i32> {
    Err(libc::EOPNOTSUPP)
}

pub(super) const EFA_MR_QUERY: &[Spec] = &[
    Spec::must(DRIVER_NS, Carries::Uses(ObjectKind::Mr)),
    Spec::must(DRIVER_NS + 1, out(2)),
    Spec::must(DRIVER_NS + 2, out(2)),
    Spec::must(DRIVER_NS + 3, out(2)),
    Spec::must(DRIVER_NS + 4, out(2)),
];

/// Which interconnect a region is reached through. soft-efa has one, number 0, for every use.
pub(super) fn efa_mr_query(attrs: &Attrs<'_>) -> Result<(), i32> {
    let validity: u16 = {
        let profile = attrs.context.device.profile();
        1 | if profile.rdma_read { 2 } else { 0 } | if profile.rdma_write { 4 } else { 0 }
    };
    for id in 2..=4 {
        attrs.answer(DRIVER_NS + id, &0u16.to_ne_bytes())?;
    }
    attrs.answer(DRIVER_NS + 1, &validity.to_ne_bytes())
}
