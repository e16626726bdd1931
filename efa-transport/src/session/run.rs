//! Runs: requests in a row with one peer, from or to one region.

use std::fmt;
use std::ops::Range;

use efa_verbs::{Destination, RemoteMemory, Request, Sge};

use super::rules::{
    INQUIRE, READ, WRITE, WRITE_IMMEDIATE, check_feature, kind_of, length_of, wrong,
};
use super::{Core, Rules};
use crate::address::EndpointAddress;
use crate::domain::Handle;
use crate::error::{Blocked, Error, Result};
use crate::flow;
use crate::ops::{Kind, NONE, OperationId};
use crate::peers::PeerId;
use crate::region::{LocalSlice, Region};
use crate::remote::RemoteRegion;

/// What the run that goes on has: what its requests say, and what tells it from others.
///
/// In [`Core`], not in a [`Session`](super::Session), so that one pointer leads to all that a request needs.
pub(super) struct Current {
    pub(super) run: flow::Run,
    /// The identity of its region; 0 without.
    pub(super) memory: usize,
    pub(super) lkey: u32,
    pub(super) to: Destination,
    /// The lane of the last run but one in a session: those who take turns come back to it.
    before: u32,
}

impl Current {
    pub(super) const NONE: Self = Self {
        run: flow::Run::NONE,
        memory: 0,
        lkey: 0,
        to: Destination::NOWHERE,
        before: NONE,
    };

    #[inline(always)]
    fn set(&mut self, address: EndpointAddress, handle: &Handle, region: Option<&Region>) {
        self.to = handle
            .ah()
            .destination(address.queue_pair(), address.queue_key());
        (self.memory, self.lkey) =
            region.map_or((0, 0), |region| (region.identity(), region.lkey()));
    }
}

impl Core {
    /// From now on operations are with this peer, and from or to this region. False where that can't
    /// be.
    ///
    /// In several functions, so that the usual one, at the beginning of a session, calls none.
    #[inline(never)]
    pub(super) fn turn(&mut self, domain: usize, peer: PeerId, region: &Region) -> bool {
        if self.current.run.peer() != PeerId::NOBODY {
            return self.turn_on(domain, peer, region);
        }
        self.turn_known(domain, peer, region) || self.turn_new(domain, peer, Some(region))
    }

    /// The same, where a run goes on.
    #[inline(never)]
    fn turn_on(&mut self, domain: usize, peer: PeerId, region: &Region) -> bool {
        self.end_run();
        let last = self.current.run.lane();
        if self.turn_known(domain, peer, region) {
            self.current.before = last;
            return true;
        }
        self.turn_new(domain, peer, Some(region))
    }

    /// The same, where no lane has to be made, or false.
    #[inline(always)]
    fn turn_known(&mut self, domain: usize, peer: PeerId, region: &Region) -> bool {
        let current = &mut self.current;
        let (run, before) = (&mut current.run, current.before);
        if !region.is_of(domain) {
            return false;
        }
        let Some((address, handle)) = self.flow.run_known(run, before, peer, region) else {
            return false;
        };
        current.set(address, handle, Some(region));
        true
    }

    /// The same, in all cases.
    #[inline(never)]
    pub(super) fn turn_new(
        &mut self,
        domain: usize,
        peer: PeerId,
        region: Option<&Region>,
    ) -> bool {
        self.end_run();
        if region.is_some_and(|region| !region.is_of(domain)) {
            return false;
        }
        let current = &mut self.current;
        let last = current.run.lane();
        let (run, before) = (&mut current.run, current.before);
        let Some((address, handle)) = self.flow.run(run, before, peer, region) else {
            return false;
        };
        current.before = last;
        current.set(address, handle, region);
        true
    }

    /// No operation follows in the current run.
    #[inline(always)]
    pub(super) fn end_run(&mut self) {
        self.flow.run_ended(&mut self.current.run);
    }

    /// Begins an operation of the current run, which is with this peer.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        peer: PeerId,
        kind: Kind,
        tag: u64,
        length: u64,
    ) -> Result<OperationId> {
        let begun = self.flow.begin(&mut self.current.run, kind, tag, length);
        begun.ok_or_else(|| self.not_begun(peer))
    }

    /// Begins an operation of the current run, which is with this peer, and pushes its request: between
    /// `local` and the beginning of `remote`, of which [`length_of`] has told the length. `to` tells where
    /// it goes.
    ///
    /// # Safety
    ///
    /// A session is open. What `to` returns is the destination of the current run; the slice at `addr` is
    /// of its region, whose key is `lkey`, and the device may write it if `WHAT` is a read.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn add_rdma<const WHAT: u8>(
        &mut self,
        rules: &Rules,
        peer: PeerId,
        to: impl FnOnce(&Current) -> Destination,
        (addr, length, lkey): (u64, u64, impl FnOnce(&Current) -> u32),
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        if WHAT == WRITE_IMMEDIATE {
            check_feature(&self.flow, rules, peer)?;
            if !self.flow.take_grant(peer.index()) {
                return Err(Error::WouldBlock(Blocked::Grant));
            }
        }
        let run = &mut self.current.run;
        let Some(id) = self.flow.begin(run, kind_of(WHAT), tag, length) else {
            if WHAT == WRITE_IMMEDIATE {
                self.flow.return_grant(peer.index());
            }
            return Err(self.not_begun(peer));
        };
        if WHAT == INQUIRE {
            self.flow.set_aside(id);
        }
        let request = id.only_request();
        let (to, lkey) = (to(&self.current), lkey(&self.current));
        let local = Sge {
            addr,
            length: length as u32,
            lkey,
        };
        let remote = RemoteMemory {
            addr: remote.addr(),
            rkey: remote.rkey(),
        };
        // SAFETY: a session is open, as the caller says. The operation is in the lane of the run, which
        // has a clone of the region and the name of the peer, whose handle the flow keeps as long; both
        // stay until the completion was polled, the session was undone, or the queue pair is gone (see
        // the module). `turn` has found the region to be of the queue pair's domain. The device writes it
        // only where the caller says that it may, and the region gives out no references.
        unsafe {
            let push = match WHAT {
                READ | INQUIRE => Request::Read { local, remote },
                _ => Request::Write {
                    local,
                    remote,
                    immediate: (WHAT == WRITE_IMMEDIATE).then_some(immediate),
                },
            };
            self.pair.push(request, &to, push);
        }
        Ok(id)
    }
}

/// Requests with one peer from or to one region, within a session: see
/// [`Session::run`](super::Session::run).
///
/// Ranges are of that region, in bytes. Messages are sent by the session itself. A call that fails adds nothing, and the run goes on.
pub struct Run<'a> {
    pub(super) core: &'a mut Core,
    pub(super) rules: &'a Rules,
    pub(super) region: &'a Region,
    pub(super) peer: PeerId,
    // Copies, which stay in registers: the current run's, the region's, the rules'.
    pub(super) to: Destination,
    pub(super) lkey: u32,
    pub(super) addr: u64,
    pub(super) length: u64,
    pub(super) write_end: u64,
}

impl Run<'_> {
    /// Adds an RDMA write of a part of the region to the beginning of `remote`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::QueueFull`], [`Error::TooManyOperations`]; lengths that don't fit;
    /// a device without RDMA write.
    #[inline(always)]
    pub fn write(
        &mut self,
        local: Range<u64>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE }>(local, remote, 0, tag)
    }

    /// Adds an RDMA write that also tells the peer `immediate` once its bytes have landed.
    ///
    /// # Errors
    /// As [`write`](Self::write); and the peer has granted no more
    /// ([`Error::WouldBlock`]), or differs in the feature ([`Error::FeatureMismatch`]).
    #[inline]
    pub fn write_with_immediate(
        &mut self,
        local: Range<u64>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ WRITE_IMMEDIATE }>(local, remote, immediate, tag)
    }

    /// Adds an RDMA read of all of `remote` into the beginning of a part of the region.
    ///
    /// # Errors
    /// As [`write`](Self::write), for a device without RDMA read; [`Error::ReadOnlyRegion`].
    #[inline(always)]
    pub fn read(
        &mut self,
        local: Range<u64>,
        remote: RemoteRegion,
        tag: u64,
    ) -> Result<OperationId> {
        self.rdma::<{ READ }>(local, remote, 0, tag)
    }

    #[inline(always)]
    fn rdma<const WHAT: u8>(
        &mut self,
        local: Range<u64>,
        remote: RemoteRegion,
        immediate: u32,
        tag: u64,
    ) -> Result<OperationId> {
        if local.start > local.end || local.end > self.length {
            return Err(Error::OutOfRange {
                start: local.start,
                end: local.end,
                length: self.length,
            });
        }
        let (addr, length) = (self.addr + local.start, local.end - local.start);
        let local = LocalSlice::of_parts(self.region, addr, length);
        let (length, fits) = length_of::<WHAT>(self.rules, self.write_end, local, remote);
        if !fits {
            let (kind, ends) = (kind_of(WHAT), (local.parts(), remote.parts()));
            return Err(wrong(self.rules, kind, ends.0, ends.1));
        }
        let (to, lkey) = (self.to, self.lkey);
        let local = (addr, length, |_: &Current| lkey);
        // SAFETY: a session is open for as long as `Run` exists. It has the core exclusively, so the
        // current run is still the one that it was made of; its bytes are inside the region, writable
        // where they are written.
        unsafe {
            self.core
                .add_rdma::<WHAT>(self.rules, self.peer, |_| to, local, remote, immediate, tag)
        }
    }

    /// As [`Session::room`](super::Session::room).
    pub fn room(&self) -> u32 {
        self.core.flow.credits.free()
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("peer", &self.peer)
            .field("region", self.region)
            .finish_non_exhaustive()
    }
}
