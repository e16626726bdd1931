//! Queue pairs.

use std::os::fd::RawFd;

use crate::checks;
use crate::engine::{QpChange, QpKind, QpSpec, Verb};

use super::abi::{
    EfaCreateQp, EfaCreateQpResp, ModifyQp, QPT_DRIVER, QPT_UD, QpCap, QueryQpResp, efa, qp_mask,
};
use super::context::{Context, Mappable, Object, Qp};
use super::device::Counted;
use super::ring::{page_align, page_size};
use super::transitions::{self, is_permitted};

/// A request for a queue pair, whichever way it came in.
#[derive(Debug)]
pub(crate) struct QpRequest {
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) qp_type: u8,
    pub(crate) cap: QpCap,
    /// Creation flags of the kernel's core; EFA has none.
    pub(crate) create_flags: u32,
    /// What libefa added.
    pub(crate) driver: Vec<u8>,
}

/// A queue pair that was made.
#[derive(Debug)]
pub(crate) struct QpMade {
    pub(crate) handle: u32,
    pub(crate) number: u16,
    pub(crate) cap: QpCap,
    pub(crate) driver: EfaCreateQpResp,
}

/// The kernel's page allocator has no larger piece, and the driver wants a receive ring in one.
const MAX_RQ_RING: u32 = 4 << 20;

impl Context {
    /// Makes a queue pair; `fd` is the descriptor through which the program asks.
    pub(crate) fn create_qp(&self, fd: RawFd, request: QpRequest) -> Result<QpMade, i32> {
        let (kind, driver) = self.check_qp(&request)?;
        let sq_bytes = u64::from(driver.sq_ring_size);
        let rq_bytes = u64::from(driver.rq_ring_size);
        let sq_entry_size = checks::send_entry(
            self.device.profile(),
            request.cap.max_send_wr,
            driver.sq_ring_size,
        )?;
        self.allocation(Verb::CreateQp)?;

        let mut objects = self.objects();
        let domain = objects.pd(request.pd)?.number;
        // The first ring of a queue takes sends, the last one receives.
        let send_ring = *objects
            .cq(request.send_cq)?
            .rings
            .first()
            .ok_or(libc::EINVAL)?;
        let recv_rings = &objects.cq(request.recv_cq)?.rings;
        let recv_index = recv_rings.len() - 1;
        let recv_ring = recv_rings[recv_index];

        // Each doorbell has a page, and so a key, of its own.
        let rq_db_at = page_size();
        let sq_at = 2 * page_size();
        let rq_at = sq_at + page_align(sq_bytes);
        let memory = self.allocate(fd, rq_at + page_align(rq_bytes))?;
        let place = |at: u64, bytes: u64| {
            if bytes == 0 {
                std::ptr::null_mut()
            } else {
                memory.at(at)
            }
        };
        let spec = QpSpec {
            pd: domain.into(),
            kind,
            send_cq: send_ring,
            recv_cq: recv_ring,
            sq: place(sq_at, sq_bytes),
            sq_bytes: driver.sq_ring_size,
            sq_entry_size,
            sq_db: memory.at(0).cast(),
            rq: place(rq_at, rq_bytes),
            rq_bytes: driver.rq_ring_size,
            rq_db: memory.at(rq_db_at).cast(),
            unsolicited: driver.flags & efa::QP_UNSOLICITED_WRITE_RECV != 0,
        };
        // SAFETY: rings and doorbells lie in `memory`, which is kept by the object below until
        // `destroy` has taken the queue pair from the engine.
        let number = unsafe { self.device.engine()?.create_qp(spec) }?;
        let mut resp = EfaCreateQpResp {
            sq_db_mmap_key: memory.key(),
            llq_desc_mmap_key: memory.key() + sq_at,
            recv_sub_cq_idx: recv_index as u16,
            ..EfaCreateQpResp::default()
        };
        let mut mappable = vec![
            Mappable::new(resp.sq_db_mmap_key, page_size()),
            Mappable::new(resp.llq_desc_mmap_key, sq_bytes),
        ];
        if rq_bytes != 0 {
            resp.rq_mmap_key = memory.key() + rq_at;
            resp.rq_mmap_size = page_align(rq_bytes);
            resp.rq_db_mmap_key = memory.key() + rq_db_at;
            mappable.push(Mappable::new(resp.rq_db_mmap_key, page_size()));
            mappable.push(Mappable::new(resp.rq_mmap_key, rq_bytes));
        }
        objects.pd_mut(request.pd)?.users += 1;
        objects.cq_mut(request.send_cq)?.users += 1;
        objects.cq_mut(request.recv_cq)?.users += 1;
        let qp = Qp {
            pd: request.pd,
            send_cq: request.send_cq,
            recv_cq: request.recv_cq,
            number,
            kind,
            state: transitions::RESET,
            cap: request.cap,
            mappable,
            _memory: memory,
            _alive: self.count(Counted::Qp),
        };
        let handle = objects.insert(Object::Qp(qp));
        Ok(QpMade {
            handle,
            number,
            cap: request.cap,
            driver: resp,
        })
    }

    fn check_qp(&self, request: &QpRequest) -> Result<(QpKind, EfaCreateQp), i32> {
        let profile = self.device.profile();
        let cap = &request.cap;
        if cap.max_send_wr > profile.max_sq_wr
            || cap.max_recv_wr > profile.max_rq_wr
            || cap.max_send_sge > profile.max_sq_sge.into()
            || cap.max_recv_sge > profile.max_rq_sge.into()
            || cap.max_inline_data > profile.inline_buf_size_ex.into()
        {
            return Err(libc::EINVAL);
        }
        if !matches!(request.qp_type, QPT_DRIVER | QPT_UD) || request.create_flags != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // A request that ends before the flags is as old as libefa without them.
        let driver: EfaCreateQp = super::udata::driver_request(&request.driver, 16)?;
        if driver.comp_mask != 0 || driver.reserved != [0; 5] {
            return Err(libc::EINVAL);
        }
        let supported = if profile.unsolicited_write_recv {
            efa::QP_UNSOLICITED_WRITE_RECV
        } else {
            0
        };
        if driver.flags & !supported != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let kind = match (request.qp_type, driver.driver_qp_type) {
            (QPT_UD, _) => QpKind::Ud,
            (_, efa::QP_DRIVER_TYPE_SRD) => QpKind::Srd,
            _ => return Err(libc::EOPNOTSUPP),
        };
        if page_align(driver.rq_ring_size.into()) as u32 > MAX_RQ_RING {
            return Err(libc::ENOMEM);
        }
        checks::receive_ring(driver.rq_ring_size)?;
        Ok((kind, driver))
    }

    /// Changes a queue pair.
    pub(crate) fn modify_qp(&self, request: &ModifyQp, driver: &[u8]) -> Result<(), i32> {
        const SUPPORTED: u32 = qp_mask::STATE
            | qp_mask::CUR_STATE
            | qp_mask::EN_SQD_ASYNC_NOTIFY
            | qp_mask::PKEY_INDEX
            | qp_mask::PORT
            | qp_mask::QKEY
            | qp_mask::SQ_PSN
            | qp_mask::RNR_RETRY;
        let mut objects = self.objects();
        let qp = objects.qp_mut(request.qp_handle)?;
        let mask = with_address(request)?;
        let has = |bit: u32| mask & bit != 0;
        if (has(qp_mask::CUR_STATE) && request.cur_qp_state > transitions::ERR)
            || (has(qp_mask::STATE) && request.qp_state > transitions::ERR)
        {
            return Err(libc::EINVAL);
        }
        super::udata::must_be_clear(driver)?;
        if mask & !SUPPORTED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let from = if has(qp_mask::CUR_STATE) {
            request.cur_qp_state
        } else {
            qp.state
        };
        let to = if has(qp_mask::STATE) {
            request.qp_state
        } else {
            from
        };
        let srd = qp.kind == QpKind::Srd;
        if !is_permitted(from, to, mask, srd) {
            return Err(libc::EINVAL);
        }
        if has(qp_mask::PKEY_INDEX) && request.pkey_index != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if has(qp_mask::RNR_RETRY) && !self.device.profile().rnr_retry {
            return Err(libc::EOPNOTSUPP);
        }
        // The driver believes what the program states, and the device compares it with its own.
        let engine = self.device.engine()?;
        let really = engine.query_qp(qp.number).ok_or(libc::EINVAL)?.state;
        if has(qp_mask::STATE) && from != checks::qp_state_number(really) {
            return Err(libc::EINVAL);
        }
        let change = QpChange {
            state: if has(qp_mask::STATE) {
                checks::qp_state(to.into())
            } else {
                None
            },
            qkey: has(qp_mask::QKEY).then_some(request.qkey),
            rnr_retry: has(qp_mask::RNR_RETRY).then_some(request.rnr_retry),
            sq_psn: has(qp_mask::SQ_PSN).then_some(request.sq_psn),
        };
        engine.modify_qp(qp.number, change)?;
        qp.state = to;
        Ok(())
    }

    /// Queries a queue pair: only what the driver knows.
    pub(crate) fn query_qp(&self, handle: u32, mask: u32) -> Result<QueryQpResp, i32> {
        const SUPPORTED: u32 = qp_mask::STATE
            | qp_mask::PKEY_INDEX
            | qp_mask::PORT
            | qp_mask::QKEY
            | qp_mask::SQ_PSN
            | qp_mask::CAP
            | qp_mask::RNR_RETRY;
        let objects = self.objects();
        let qp = objects.qp(handle)?;
        if mask & !SUPPORTED != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let now = self
            .device
            .engine()?
            .query_qp(qp.number)
            .ok_or(libc::EINVAL)?;
        Ok(QueryQpResp {
            cap: qp.cap,
            qkey: now.qkey,
            sq_psn: now.sq_psn,
            qp_state: checks::qp_state_number(now.state),
            sq_draining: now.sq_draining.into(),
            port_num: 1,
            rnr_retry: now.rnr_retry,
            // The driver leaves this 0, which is the kernel's word for "all".
            sq_sig_all: 1,
            ..QueryQpResp::default()
        })
    }
}

/// What the kernel's core does with ports and addresses before it asks the driver: the mask that the
/// driver gets to see.
fn with_address(request: &ModifyQp) -> Result<u32, i32> {
    let mut mask = request.attr_mask;
    let valid = |port: u8| if port == 1 { Ok(()) } else { Err(libc::EINVAL) };
    if mask & qp_mask::PORT != 0 {
        valid(request.port_num)?;
    }
    if mask & qp_mask::AV != 0 {
        valid(request.dest.port_num)?;
        let to_rtr = mask & qp_mask::STATE != 0 && request.qp_state == transitions::RTR;
        if !to_rtr {
            mask |= qp_mask::PORT;
        }
    }
    if mask & qp_mask::ALT_PATH != 0 {
        valid(request.alt_port_num)?;
        valid(request.alt_dest.port_num)?;
    }
    // A global address starts from a GID, and there is one.
    if mask & qp_mask::AV != 0 && request.dest.is_global != 0 && request.dest.sgid_index != 0 {
        return Err(libc::EINVAL);
    }
    Ok(mask)
}
