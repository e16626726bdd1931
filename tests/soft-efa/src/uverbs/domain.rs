//! Contexts, protection domains and address handles.

use crate::engine::Verb;
use crate::gid::ip_of;

use super::abi::{AhAttr, EfaAllocUcontext, EfaAllocUcontextResp, efa};
use super::context::{Ah, Context, Object, ObjectKind, Pd};
use super::device::Counted;

/// What the destruction of an object tells: events that the program was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) completion_events: u32,
}

impl Context {
    /// `GET_CONTEXT`.
    pub(crate) fn open(&self, request: EfaAllocUcontext) -> Result<EfaAllocUcontextResp, i32> {
        let mut objects = self.objects();
        if objects.is_opened() {
            return Err(libc::EINVAL);
        }
        let profile = self.device.profile();
        let lacks = |flag: u32| request.supported & flag == 0;
        if (profile.max_tx_batch != 0 && lacks(efa::UCONTEXT_TX_BATCH))
            || (profile.min_sq_wr != 0 && lacks(efa::UCONTEXT_MIN_SQ_WR))
        {
            return Err(libc::EOPNOTSUPP);
        }
        self.device.engine()?;
        objects.open(self.count(Counted::Context));
        Ok(EfaAllocUcontextResp {
            cmds_supp_udata_mask: efa::UDATA_QUERY_DEVICE | efa::UDATA_CREATE_AH,
            sub_cqs_per_cq: profile.sub_cqs_per_cq,
            inline_buf_size: profile.inline_buf_size,
            max_llq_size: profile.max_llq_size,
            max_tx_batch: profile.max_tx_batch,
            min_sq_wr: profile.min_sq_wr,
            inline_buf_size_ex: profile.inline_buf_size_ex,
            ..EfaAllocUcontextResp::default()
        })
    }

    /// Takes back a `GET_CONTEXT` whose answer could not be given.
    pub(crate) fn unopen(&self) {
        self.objects().unopen();
    }

    /// Everything but `GET_CONTEXT` needs a context.
    pub(crate) fn require_open(&self) -> Result<(), i32> {
        if self.objects().is_opened() {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Fails where the fault plan says so.
    pub(crate) fn allocation(&self, verb: Verb) -> Result<(), i32> {
        self.device
            .engine()?
            .allocation_fault(verb)
            .map_or(Ok(()), Err)
    }

    /// A new protection domain: its handle and its number on the device.
    pub(crate) fn alloc_pd(&self) -> Result<(u32, u16), i32> {
        self.allocation(Verb::AllocPd)?;
        let number = self.device.take_domain()?;
        let pd = Pd {
            number,
            users: 0,
            _alive: self.count(Counted::Pd),
        };
        Ok((self.objects().insert(Object::Pd(pd)), number))
    }

    /// A new address handle in the domain `pd`: its handle and its number on the device.
    pub(crate) fn create_ah(&self, pd: u32, attr: &AhAttr) -> Result<(u32, u16), i32> {
        if attr.port_num != 1 {
            return Err(libc::EINVAL);
        }
        let mut objects = self.objects();
        let domain = objects.pd_mut(pd)?;
        // Without a global route there is no destination, and the GID table has one entry.
        if attr.is_global == 0 || attr.sgid_index != 0 || ip_of(&attr.dgid).is_none() {
            return Err(libc::EINVAL);
        }
        self.allocation(Verb::CreateAh)?;
        let number = self
            .device
            .engine()?
            .create_ah(domain.number.into(), attr.dgid)?;
        domain.users += 1;
        let ah = Ah {
            pd,
            number,
            _alive: self.count(Counted::Ah),
        };
        Ok((objects.insert(Object::Ah(ah)), number))
    }

    /// Takes a new object away again, of which the program has not learned.
    pub(crate) fn discard(&self, kind: ObjectKind, handle: u32) {
        // Nothing can use it yet.
        let _ = self.destroy(kind, handle);
    }

    /// Destroys an object: `ENOENT` for a handle that is free, `EINVAL` for another kind's,
    /// `EBUSY` for one that others use.
    pub(crate) fn destroy(&self, kind: ObjectKind, handle: u32) -> Result<Reported, i32> {
        let mut objects = self.objects();
        if objects.kind(handle).ok_or(libc::ENOENT)? != kind {
            return Err(libc::EINVAL);
        }
        let busy = match kind {
            ObjectKind::Pd => objects.pd(handle)?.users > 0,
            ObjectKind::Cq => objects.cq(handle)?.users > 0,
            ObjectKind::Mr | ObjectKind::Qp | ObjectKind::Ah => false,
        };
        if busy {
            return Err(libc::EBUSY);
        }
        let engine = self.device.engine()?;
        let mut reported = Reported::default();
        match objects.remove(handle).ok_or(libc::ENOENT)? {
            Object::Pd(pd) => self.device.give_domain(pd.number),
            Object::Mr(mr) => {
                engine.dereg_mr(mr.key);
                objects.pd_mut(mr.pd)?.users -= 1;
            }
            Object::Ah(ah) => {
                let domain = objects.pd_mut(ah.pd)?;
                domain.users -= 1;
                engine.destroy_ah(domain.number.into(), ah.number);
            }
            Object::Qp(qp) => {
                engine.destroy_qp(qp.number);
                objects.pd_mut(qp.pd)?.users -= 1;
                objects.cq_mut(qp.send_cq)?.users -= 1;
                objects.cq_mut(qp.recv_cq)?.users -= 1;
            }
            Object::Cq(cq) => {
                for ring in &cq.rings {
                    engine.destroy_cq(*ring);
                }
                reported.completion_events = cq.withdraw_events(self.process);
            }
        }
        Ok(reported)
    }
}
