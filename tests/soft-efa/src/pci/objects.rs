//! What a driver has made on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::checks;
use crate::engine::{
    Access, Backing, CqSpec, Engine, MrSpec, QpAttributes, QpChange, QpKind, QpSpec, Verb,
};
use crate::profile::Profile;

use super::bars::{Bar, PAGE, Place};
use super::events::{self, EventQueue};
use super::irq::{Interrupts, VECTORS};
use super::layout::{self, CreateAh, CreateCq, CreateEq, CreateQp, ModifyQp, RegMr};
use super::memory::{Mapping, Memory, Piece};
use super::pages::{self, List};
use super::status::Status;

/// User access regions: one for each open context.
const MOST_UARS: u16 = 4096;
/// The place of the receive doorbell in the page that it shares with the send doorbell.
const RQ_DOORBELL: u64 = 64;

struct Cq {
    /// The engine's numbers of the rings inside; most devices have one. The first is the queue's.
    rings: Vec<u16>,
    users: u32,
    eq: Option<u16>,
    memory: Piece,
    _doorbell: Place,
}

struct Qp {
    pd: u16,
    send_cq: u16,
    recv_cq: u16,
    rq: Option<Piece>,
    _sq: Place,
    _doorbells: Place,
}

struct Mr {
    pd: u16,
    mappings: Vec<Arc<Mapping>>,
}

/// A queue pair that was made.
pub(crate) struct QpMade {
    pub(crate) number: u16,
    pub(crate) recv_ring: u16,
    pub(crate) sq_doorbell: u32,
    pub(crate) rq_doorbell: u32,
    pub(crate) sq: u32,
}

/// A completion queue that was made.
pub(crate) struct CqMade {
    pub(crate) number: u16,
    pub(crate) doorbell: u32,
}

/// The objects of a device, and what they are made of.
pub(crate) struct Objects {
    engine: Arc<Engine>,
    profile: Profile,
    memory: Arc<Memory>,
    interrupts: Arc<Interrupts>,
    rings: Arc<Bar>,
    doorbells: Arc<Bar>,
    uars: BTreeSet<u16>,
    /// Protection domains, and how many objects each has.
    pds: BTreeMap<u16, u32>,
    /// Address handles by domain and number, and how often each was made.
    ahs: BTreeMap<(u16, u16), u32>,
    mrs: BTreeMap<u32, Mr>,
    eqs: BTreeMap<u16, Arc<EventQueue>>,
    cqs: BTreeMap<u16, Cq>,
    qps: BTreeMap<u16, Qp>,
}

/// The lowest number that is free.
fn lowest<V>(used: &BTreeMap<u16, V>, limit: u32) -> Result<u16, Status> {
    let mut free = 0u16;
    for number in used.keys() {
        if *number != free {
            break;
        }
        free = free.checked_add(1).ok_or(Status::NO_RESOURCES)?;
    }
    if u32::from(free) < limit {
        Ok(free)
    } else {
        Err(Status::NO_RESOURCES)
    }
}

impl Objects {
    pub(crate) fn new(
        engine: Arc<Engine>,
        profile: Profile,
        memory: Arc<Memory>,
        interrupts: Arc<Interrupts>,
        rings: Arc<Bar>,
        doorbells: Arc<Bar>,
    ) -> Self {
        Self {
            engine,
            profile,
            memory,
            interrupts,
            rings,
            doorbells,
            uars: BTreeSet::new(),
            pds: BTreeMap::new(),
            ahs: BTreeMap::new(),
            mrs: BTreeMap::new(),
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            qps: BTreeMap::new(),
        }
    }

    /// How many objects of each kind live.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("context", self.uars.len()),
            ("pd", self.pds.len()),
            ("mr", self.mrs.len()),
            ("cq", self.cqs.len()),
            ("qp", self.qps.len()),
            ("ah", self.ahs.values().map(|count| *count as usize).sum()),
            ("eq", self.eqs.len()),
        ];
        counts
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count as u64))
            .collect()
    }

    fn allocation(&self, verb: Verb) -> Result<(), Status> {
        match self.engine.allocation_fault(verb) {
            Some(errno) => Err(errno.into()),
            None => Ok(()),
        }
    }

    fn pd(&mut self, number: u16) -> Result<&mut u32, Status> {
        self.pds.get_mut(&number).ok_or(Status::ILLEGAL)
    }

    fn uar(&self, number: u16) -> Result<(), Status> {
        self.uars
            .contains(&number)
            .then_some(())
            .ok_or(Status::ILLEGAL)
    }

    pub(crate) fn alloc_uar(&mut self) -> Result<u16, Status> {
        let free = (0..MOST_UARS).find(|number| !self.uars.contains(number));
        let number = free.ok_or(Status::NO_RESOURCES)?;
        self.uars.insert(number);
        Ok(number)
    }

    pub(crate) fn dealloc_uar(&mut self, number: u16) -> Result<(), Status> {
        self.uars
            .remove(&number)
            .then_some(())
            .ok_or(Status::ILLEGAL)
    }

    pub(crate) fn alloc_pd(&mut self) -> Result<u16, Status> {
        self.allocation(Verb::AllocPd)?;
        let number = lowest(&self.pds, self.profile.max_pd)?;
        self.pds.insert(number, 0);
        Ok(number)
    }

    pub(crate) fn dealloc_pd(&mut self, number: u16) -> Result<(), Status> {
        if *self.pd(number)? > 0 {
            return Err(Status::BUSY);
        }
        self.pds.remove(&number);
        Ok(())
    }

    pub(crate) fn create_ah(&mut self, request: &CreateAh) -> Result<u16, Status> {
        let pd = request.pd.get();
        self.pd(pd)?;
        self.allocation(Verb::CreateAh)?;
        let number = self.engine.create_ah(pd.into(), request.gid)?;
        *self.ahs.entry((pd, number)).or_default() += 1;
        *self.pd(pd)? += 1;
        Ok(number)
    }

    pub(crate) fn destroy_ah(&mut self, pd: u16, number: u16) -> Result<(), Status> {
        let count = self.ahs.get_mut(&(pd, number)).ok_or(Status::ILLEGAL)?;
        *count -= 1;
        if *count == 0 {
            self.ahs.remove(&(pd, number));
        }
        self.engine.destroy_ah(pd.into(), number);
        *self.pd(pd)? -= 1;
        Ok(())
    }

    /// Registers memory; the key serves as local and as remote key.
    pub(crate) fn reg_mr(&mut self, request: &RegMr, list: List) -> Result<u32, Status> {
        let pd = request.pd.get();
        let (iova, length) = (request.iova.get(), request.length.get());
        let access = Access(request.permissions.into());
        let mut allowed = Access::LOCAL_WRITE;
        if self.profile.rdma_read {
            allowed = allowed | Access::REMOTE_READ;
        }
        if self.profile.rdma_write {
            allowed = allowed | Access::REMOTE_WRITE;
        }
        if request.flags & RegMr::PHYSICAL != 0 || !allowed.contains(access) {
            return Err(Status::ILLEGAL);
        }
        self.pd(pd)?;
        checks::region_length(&self.profile, length)?;
        self.allocation(Verb::RegMr)?;
        let region = pages::Region {
            list,
            shift: (request.flags & RegMr::SHIFT).into(),
            iova,
            length,
            // Receives and reads land there, or the writes of peers.
            writable: access.0 & (Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0) != 0,
        };
        let pieces = pages::find(&self.memory, &region).ok_or(Status::ILLEGAL)?;
        let mappings = pieces.owner();
        let spec = MrSpec {
            pd: pd.into(),
            iova,
            length,
            backing: Backing::Runs {
                runs: pieces.runs,
                owner: Box::new(mappings.clone()),
            },
            access,
        };
        // SAFETY: the engine reaches the region's memory by calls that fail for what is not mapped,
        // and the owner keeps it mapped; the driver has said that the device may use it.
        let key = unsafe { self.engine.reg_mr(spec) }?;
        self.mrs.insert(key, Mr { pd, mappings });
        *self.pd(pd)? += 1;
        Ok(key)
    }

    pub(crate) fn dereg_mr(&mut self, key: u32) -> Result<(), Status> {
        let mr = self.mrs.remove(&key).ok_or(Status::ILLEGAL)?;
        self.engine.dereg_mr(key);
        *self.pd(mr.pd)? -= 1;
        Ok(())
    }

    pub(crate) fn create_eq(&mut self, request: &CreateEq) -> Result<u16, Status> {
        let depth = u32::from(request.depth.get());
        let vector = u32::from(request.vector);
        let fits = self.profile.cq_notifications
            && depth.is_power_of_two()
            && depth <= events::MOST_ENTRIES
            && u32::from(request.entry & 0x1f) * 4 == events::ENTRY
            && vector < VECTORS
            && request.events.get() & !1 == 0;
        if !fits {
            return Err(Status::ILLEGAL);
        }
        let number = lowest(&self.eqs, VECTORS - 1)?;
        let address = layout::address(request.low, request.high);
        let queue = EventQueue::new(&self.memory, &self.interrupts, address, depth, vector)
            .ok_or(Status::ILLEGAL)?;
        self.eqs.insert(number, queue);
        Ok(number)
    }

    pub(crate) fn destroy_eq(&mut self, number: u16) -> Result<(), Status> {
        if self.cqs.values().any(|cq| cq.eq == Some(number)) {
            return Err(Status::BUSY);
        }
        self.eqs.remove(&number).map(drop).ok_or(Status::ILLEGAL)
    }

    /// The event queue with this number.
    pub(crate) fn eq(&self, number: u16) -> Option<&Arc<EventQueue>> {
        self.eqs.get(&number)
    }

    pub(crate) fn create_cq(&mut self, request: &CreateCq) -> Result<CqMade, Status> {
        let entry_size = u32::from(request.entry & CreateCq::WORDS) * 4;
        let src_addr = request.entry & CreateCq::SOURCE_ADDRESS != 0;
        let entries = u32::from(request.depth.get());
        let rings = request.rings.get();
        let fits = matches!(entry_size, 16 | 32)
            && !(src_addr && entry_size == 16)
            && entries.is_power_of_two()
            && entries <= self.profile.max_cqe
            && rings == self.profile.sub_cqs_per_cq
            && request.mode & CreateCq::VIRTUAL == 0;
        if !fits {
            return Err(Status::ILLEGAL);
        }
        self.uar(request.uar.get())?;
        let eq = if request.mode & CreateCq::INTERRUPTS != 0 {
            let number = request.eq.get();
            Some((number, self.eq(number).ok_or(Status::ILLEGAL)?.clone()))
        } else {
            None
        };
        if self.cqs.len() >= self.profile.max_cq as usize {
            return Err(Status::NO_RESOURCES);
        }
        self.allocation(Verb::CreateCq)?;
        let ring_bytes = u64::from(entry_size * entries);
        let memory = self
            .memory
            .piece(
                layout::address(request.low, request.high),
                ring_bytes * u64::from(rings),
            )
            .filter(|piece| piece.ptr().addr().is_multiple_of(8))
            .ok_or(Status::ILLEGAL)?;
        let doorbell = self.doorbells.take(PAGE)?;
        let number = Arc::new(AtomicU16::new(0));
        let mut cq = Cq {
            rings: Vec::new(),
            users: 0,
            eq: eq.as_ref().map(|(number, _)| *number),
            memory,
            _doorbell: doorbell,
        };
        for index in 0..rings {
            let notify = eq.as_ref().map(|(_, queue)| {
                let (queue, number) = (queue.clone(), number.clone());
                let notify: Box<dyn Fn() + Send + Sync> =
                    Box::new(move || queue.completion(number.load(Ordering::Acquire)));
                notify
            });
            let spec = CqSpec {
                // SAFETY: the piece has `ring_bytes` for each of the rings.
                ring: unsafe {
                    cq.memory
                        .ptr()
                        .add((ring_bytes * u64::from(index)) as usize)
                },
                entries,
                entry_size,
                src_addr,
                doorbell: self
                    .profile
                    .cq_notifications
                    .then(|| cq._doorbell.at(0).cast()),
                notify,
            };
            // SAFETY: ring and doorbell lie in places that `cq` keeps; it is dropped after the
            // engine has let go of every ring in it.
            match unsafe { self.engine.create_cq(spec) } {
                Ok(ring) => cq.rings.push(ring),
                Err(errno) => {
                    self.forget_cq(&cq);
                    return Err(errno.into());
                }
            }
            number.store(cq.rings[0], Ordering::Release);
        }
        let made = CqMade {
            number: cq.rings[0],
            doorbell: cq._doorbell.offset(),
        };
        self.cqs.insert(made.number, cq);
        Ok(made)
    }

    fn forget_cq(&self, cq: &Cq) {
        for ring in &cq.rings {
            self.engine.destroy_cq(*ring);
        }
    }

    pub(crate) fn destroy_cq(&mut self, number: u16) -> Result<(), Status> {
        if self.cqs.get(&number).ok_or(Status::ILLEGAL)?.users > 0 {
            return Err(Status::BUSY);
        }
        if let Some(cq) = self.cqs.remove(&number) {
            self.forget_cq(&cq);
        }
        Ok(())
    }

    pub(crate) fn create_qp(&mut self, request: &CreateQp) -> Result<QpMade, Status> {
        let kind = match request.kind {
            CreateQp::UD => QpKind::Ud,
            CreateQp::SRD => QpKind::Srd,
            _ => return Err(Status::ILLEGAL),
        };
        let unsolicited = request.flags & CreateQp::UNSOLICITED != 0;
        let (depth, receives) = (request.sq_depth.get(), request.rq_depth.get());
        let (sq_bytes, rq_bytes) = (request.sq_bytes.get(), request.rq_bytes.get());
        let fits = depth <= self.profile.max_sq_wr
            && receives <= self.profile.max_rq_wr
            && request.flags & (CreateQp::SQ_VIRTUAL | CreateQp::RQ_VIRTUAL) == 0
            && (self.profile.unsolicited_write_recv || !unsolicited);
        if !fits {
            return Err(Status::ILLEGAL);
        }
        let sq_entry_size = checks::send_entry(&self.profile, depth, sq_bytes)?;
        checks::receive_ring(rq_bytes)?;
        let number_of = |number: u32| u16::try_from(number).map_err(|_| Status::ILLEGAL);
        let (send_cq, recv_cq) = (
            number_of(request.send_cq.get())?,
            number_of(request.recv_cq.get())?,
        );
        let pd = request.pd.get();
        self.uar(request.uar.get())?;
        self.pd(pd)?;
        // The first ring of a queue takes sends, the last one receives.
        let send_ring = self.cqs.get(&send_cq).ok_or(Status::ILLEGAL)?.rings[0];
        let recv_rings = &self.cqs.get(&recv_cq).ok_or(Status::ILLEGAL)?.rings;
        let recv_index = recv_rings.len() - 1;
        let recv_ring = recv_rings[recv_index];
        let rq = if rq_bytes == 0 {
            None
        } else {
            let piece = self.memory.piece(request.rq_address.get(), rq_bytes.into());
            Some(piece.ok_or(Status::ILLEGAL)?)
        };
        self.allocation(Verb::CreateQp)?;
        let doorbells = self.doorbells.take(PAGE)?;
        let sq = self.rings.take(sq_bytes.into())?;
        let spec = QpSpec {
            pd: pd.into(),
            kind,
            send_cq: send_ring,
            recv_cq: recv_ring,
            sq: if sq_bytes == 0 {
                std::ptr::null_mut()
            } else {
                sq.at(0)
            },
            sq_bytes,
            sq_entry_size,
            sq_db: doorbells.at(0).cast(),
            rq: rq.as_ref().map_or(std::ptr::null_mut(), Piece::ptr),
            rq_bytes,
            rq_db: doorbells.at(RQ_DOORBELL).cast(),
            unsolicited,
        };
        // SAFETY: rings and doorbells lie in places that the object below keeps until the engine
        // has let go of the queue pair.
        let number = unsafe { self.engine.create_qp(spec) }?;
        let made = QpMade {
            number,
            recv_ring: recv_index as u16,
            sq_doorbell: doorbells.offset(),
            rq_doorbell: doorbells.offset() + RQ_DOORBELL as u32,
            sq: sq.offset(),
        };
        let qp = Qp {
            pd,
            send_cq,
            recv_cq,
            rq,
            _sq: sq,
            _doorbells: doorbells,
        };
        self.qps.insert(number, qp);
        *self.pd(pd)? += 1;
        for cq in [send_cq, recv_cq] {
            if let Some(cq) = self.cqs.get_mut(&cq) {
                cq.users += 1;
            }
        }
        Ok(made)
    }

    fn qp(&self, number: u32) -> Result<u16, Status> {
        let number = u16::try_from(number).map_err(|_| Status::ILLEGAL)?;
        self.qps
            .contains_key(&number)
            .then_some(number)
            .ok_or(Status::ILLEGAL)
    }

    pub(crate) fn modify_qp(&mut self, request: &ModifyQp) -> Result<(), Status> {
        let number = self.qp(request.qp.get())?;
        let mask = request.mask.get();
        let has = |bit: u32| mask & bit != 0;
        let now = self.engine.query_qp(number).ok_or(Status::ILLEGAL)?;
        let current = checks::qp_state(request.current.get());
        if mask & !ModifyQp::ALL != 0
            || (has(ModifyQp::RNR_RETRY) && !self.profile.rnr_retry)
            // The device compares the stated state with its own.
            || (has(ModifyQp::CURRENT) && current != Some(now.state))
        {
            return Err(Status::ILLEGAL);
        }
        let state = if has(ModifyQp::STATE) {
            Some(checks::qp_state(request.state.get()).ok_or(Status::ILLEGAL)?)
        } else {
            None
        };
        self.engine.modify_qp(
            number,
            QpChange {
                state,
                qkey: has(ModifyQp::QKEY).then(|| request.qkey.get()),
                rnr_retry: has(ModifyQp::RNR_RETRY).then_some(request.rnr_retry),
                sq_psn: has(ModifyQp::SQ_PSN).then(|| request.sq_psn.get()),
            },
        )?;
        Ok(())
    }

    pub(crate) fn query_qp(&self, number: u32) -> Result<QpAttributes, Status> {
        let number = self.qp(number)?;
        self.engine.query_qp(number).ok_or(Status::ILLEGAL)
    }

    pub(crate) fn destroy_qp(&mut self, number: u32) -> Result<(), Status> {
        let number = self.qp(number)?;
        self.engine.destroy_qp(number);
        if let Some(qp) = self.qps.remove(&number) {
            *self.pd(qp.pd)? -= 1;
            for cq in [qp.send_cq, qp.recv_cq] {
                if let Some(cq) = self.cqs.get_mut(&cq) {
                    cq.users -= 1;
                }
            }
        }
        Ok(())
    }

    /// Destroys what uses memory that the client takes away: the device has no use for a queue that
    /// nobody can read, nor for a region that is not there.
    pub(crate) fn lose(&mut self, gone: &[Arc<Mapping>]) {
        if gone.is_empty() {
            return;
        }
        let lost: Vec<u16> = self
            .cqs
            .iter()
            .filter(|(_, cq)| cq.memory.is_in(gone))
            .map(|(number, _)| *number)
            .collect();
        let qps: Vec<u16> = self
            .qps
            .iter()
            .filter(|(_, qp)| {
                qp.rq.as_ref().is_some_and(|rq| rq.is_in(gone))
                    || lost.contains(&qp.send_cq)
                    || lost.contains(&qp.recv_cq)
            })
            .map(|(number, _)| *number)
            .collect();
        // Before the queue pairs, whose flushed requests would be told of in memory that is gone.
        for number in &lost {
            if let Some(cq) = self.cqs.remove(number) {
                self.forget_cq(&cq);
            }
        }
        for qp in qps {
            // It is there: it was just found.
            let _ = self.destroy_qp(qp.into());
        }
        let is_gone = |own: &Arc<Mapping>| gone.iter().any(|one| Arc::ptr_eq(one, own));
        let mrs: Vec<u32> = self
            .mrs
            .iter()
            .filter(|(_, mr)| mr.mappings.iter().any(is_gone))
            .map(|(key, _)| *key)
            .collect();
        for mr in mrs {
            let _ = self.dereg_mr(mr);
        }
        // A completion queue may still name it; its events go nowhere.
        self.eqs.retain(|_, eq| !eq.is_in(gone));
    }

    /// Destroys everything.
    pub(crate) fn clear(&mut self) {
        // Before the queue pairs: nobody is told of the requests that are flushed.
        for (_, cq) in std::mem::take(&mut self.cqs) {
            self.forget_cq(&cq);
        }
        for (number, qp) in std::mem::take(&mut self.qps) {
            self.engine.destroy_qp(number);
            drop(qp);
        }
        for key in std::mem::take(&mut self.mrs).keys() {
            self.engine.dereg_mr(*key);
        }
        for ((pd, number), count) in std::mem::take(&mut self.ahs) {
            for _ in 0..count {
                self.engine.destroy_ah(pd.into(), number);
            }
        }
        self.eqs.clear();
        self.pds.clear();
        self.uars.clear();
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.clear();
    }
}
