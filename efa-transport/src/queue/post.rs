//! Posting what waits, and accepting what is longer than one request.

use efa_verbs::{QueuePair, RemoteMemory, Sge};

use super::rules::{check_receiver, length};
use super::{LocalOperation, OwnPlace, Queue};
use crate::domain::Handle;
use crate::error::{Error, Full, Result};
use crate::operation::{Kind, OperationId, Payload, Wanted};
use crate::pages::PageList;
use crate::peers::PeerId;
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;
use crate::scheduler::plan::Plannable;
use crate::scheduler::{Piece, Request, Scheduler, Sink};

/// Turns of what waits, of several requests each, in which a new operation is posted at once. The polls that
/// follow post the rest, so that whoever submits a long operation is not kept.
const VISITS: u32 = 8;

/// Bytes of one step of a transfer that this process copies.
const LOCAL_STEP: u32 = 1 << 20;

impl Queue {
    /// Checks an operation, whatever its size.
    pub(crate) fn check(&self, wanted: &Wanted<'_>) -> Result<()> {
        let peer = match self.scheduler.peer(wanted.peer) {
            Ok(peer) => peer,
            Err(refusal) => return Err(self.refused(refusal, wanted.peer)),
        };
        check_receiver(wanted.kind, wanted.peer, peer)?;
        match wanted.payload {
            Payload::Message(local) => self.rules.check_message(wanted.kind, &local),
            Payload::Bytes(bytes) => {
                let length = bytes.len() as u64;
                self.rules.check_message_length(wanted.kind, length)
            }
            Payload::Transfer(..) | Payload::Parts(_) | Payload::Count(_) => {
                if !peer.is_local() {
                    self.rules.check(wanted.kind)?;
                }
                for (local, remote) in parts(&wanted.payload) {
                    self.rules.check_part(wanted.kind, local, remote)?;
                }
                Ok(())
            }
            Payload::Pages(pages) => {
                if !peer.is_local() {
                    self.rules.check(wanted.kind)?;
                }
                let mut regions = pages.regions().iter();
                regions.try_for_each(|region| self.rules.check_region(wanted.kind, region))
            }
        }
    }

    /// Checks that a peer, if it is there, takes what needs a receive.
    pub(super) fn check_receiver(&self, kind: Kind, id: PeerId) -> Result<()> {
        match self.scheduler.peer(id) {
            Ok(peer) => check_receiver(kind, id, peer),
            Err(_) => Ok(()), // it is refused for that
        }
    }

    /// Whether a checked operation is one request that may go into the queue now, without overtaking
    /// one that waits.
    pub(crate) fn goes_at_once(&self, wanted: &Wanted<'_>) -> bool {
        let single = match &wanted.payload {
            Payload::Transfer(local, remote) => {
                length(wanted.kind, local, remote) <= self.rules.max_request.into()
            }
            Payload::Parts(_) | Payload::Pages(_) | Payload::Count(_) => false,
            Payload::Message(_) => true,
            Payload::Bytes(bytes) => bytes.len() as u64 <= self.rules.max_inline.into(),
        };
        single && self.scheduler.credits.free() > 0 && !self.scheduler.has_fresh()
    }

    /// Accepts a checked operation of any size, from regions, and posts what there is room for.
    pub(crate) fn submit(&mut self, wanted: &Wanted<'_>) -> Result<OperationId> {
        let max = match wanted.payload {
            Payload::Message(_) => Some(u32::MAX),
            _ => None,
        };
        let what = plannable(wanted, max);
        let accepted = match wanted.payload {
            Payload::Pages(pages) => {
                hold_pages(&mut self.scheduler, pages);
                self.scheduler.submit_list(what, pages.list())
            }
            _ => {
                let pieces = hold_pieces(&mut self.scheduler, wanted);
                self.scheduler.submit(what, pieces)
            }
        };
        let id = accepted.map_err(|refusal| self.refused(refusal, wanted.peer))?;
        self.pump_some(VISITS)?;
        Ok(id)
    }

    /// Accepts an operation that this process carries out itself.
    pub(crate) fn submit_local(&mut self, wanted: &Wanted<'_>) -> Result<OperationId> {
        match wanted.payload {
            Payload::Transfer(local, remote) => {
                self.rules.check_part(wanted.kind, &local, &remote)?;
                self.plan_local(wanted, None)
            }
            Payload::Parts(_) | Payload::Pages(_) | Payload::Count(_) => {
                self.plan_local(wanted, None)
            }
            Payload::Message(_) => {
                let place = self.own_place()?;
                self.plan_local(wanted, Some(place))
            }
            Payload::Bytes(bytes) => {
                let place = self.own_place()?;
                let region = self.send_buffers.copy_of(bytes)?;
                let payload = Payload::Message(region.slice(..bytes.len() as u64)?);
                self.plan_local(&Wanted { payload, ..*wanted }, Some(place))
            }
        }
    }

    /// A place for a message to oneself. It is refused at once where there is none: the same thread
    /// that sends has to take messages before another has room.
    fn own_place(&self) -> Result<OwnPlace> {
        let full = || match self.receives.is_none() {
            true => Error::NoReceivePool,
            false => Error::Full(Full::Messages),
        };
        self.receives.own_place().ok_or_else(full)
    }

    fn plan_local(&mut self, wanted: &Wanted<'_>, place: Option<OwnPlace>) -> Result<OperationId> {
        let what = plannable(wanted, Some(LOCAL_STEP));
        let accepted = match wanted.payload {
            Payload::Pages(pages) => {
                hold_pages(&mut self.scheduler, pages);
                self.scheduler.submit_local_list(what, pages.list())
            }
            _ => {
                let pieces = hold_pieces(&mut self.scheduler, wanted);
                self.scheduler.submit_local(what, pieces)
            }
        };
        let id = accepted.map_err(|refusal| self.refused(refusal, wanted.peer))?;
        self.local.push_back(LocalOperation { id, place });
        Ok(id)
    }

    /// Posts what waits in the scheduler, as far as there are credits.
    pub(crate) fn pump(&mut self) -> Result<()> {
        self.pump_some(u32::MAX)
    }

    /// The same, in at most so many turns.
    fn pump_some(&mut self, most: u32) -> Result<()> {
        let mut visits = most;
        while self.scheduler.has_waiting() && self.scheduler.credits.free() > 0 {
            self.pair.session_start()?;
            let mut sink = PairSink {
                pair: &mut self.pair,
            };
            let requests = self.scheduler.pump(visits, &mut sink);
            if requests == 0 {
                self.pair.session_abort();
                self.scheduler.commit();
                return Ok(());
            }
            match self.pair.session_complete() {
                Ok(()) => {
                    self.scheduler.commit();
                    self.scheduler.posted(requests);
                    if most != u32::MAX {
                        return Ok(());
                    }
                }
                Err(efa_verbs::Error::SendQueueFull { .. }) => {
                    // The credits say otherwise, so this does not happen; were it to, the next poll
                    // tries again.
                    self.scheduler.roll_back();
                    self.scheduler.stats.retries += 1;
                    return Ok(());
                }
                Err(error) if self.scheduler.visits() <= 1 => {
                    self.scheduler
                        .refuse_front(error.raw_os_error().unwrap_or(0));
                }
                Err(_) => {
                    // One of them is at fault: find it by posting them one at a time.
                    self.scheduler.roll_back();
                    self.scheduler.stats.retries += 1;
                    visits = 1;
                }
            }
        }
        Ok(())
    }
}

fn plannable(wanted: &Wanted<'_>, max: Option<u32>) -> Plannable {
    Plannable {
        kind: wanted.kind,
        peer: wanted.peer,
        tag: wanted.tag,
        immediate: wanted.immediate,
        max,
    }
}

/// The parts of a transfer; none of a message.
fn parts<'p, 'a>(
    payload: &'p Payload<'a>,
) -> impl Iterator<Item = (&'p Slice<'a>, &'p RemoteRegion)> {
    let (one, many) = match payload {
        Payload::Transfer(local, remote) => (Some((local, remote)), [].as_slice()),
        Payload::Parts(parts) => (None, *parts),
        Payload::Pages(_) | Payload::Message(_) | Payload::Bytes(_) | Payload::Count(_) => {
            (None, [].as_slice())
        }
    };
    one.into_iter()
        .chain(many.iter().map(|(local, remote)| (local, remote)))
}

/// Holds the memory of a list, which was found to be of the domain.
fn hold_pages(scheduler: &mut Scheduler<Region, Handle>, pages: &PageList) {
    for region in pages.regions() {
        scheduler.hold(region);
    }
}

/// The pieces of an operation from regions, whose memory is held from now on.
fn hold_pieces<'w>(
    scheduler: &mut Scheduler<Region, Handle>,
    wanted: &'w Wanted<'_>,
) -> impl Iterator<Item = Piece> + use<'w> {
    let message = match &wanted.payload {
        Payload::Message(local) => Some(Piece {
            hold: local.region().number(),
            local: local.addr(),
            lkey: local.region().lkey(),
            rkey: 0,
            remote: 0,
            length: local.len(),
        }),
        _ => None,
    };
    if let Payload::Message(local) = &wanted.payload {
        scheduler.hold(local.region());
    }
    for (local, _) in parts(&wanted.payload) {
        scheduler.hold(local.region());
    }
    let kind = wanted.kind;
    let pieces = parts(&wanted.payload).map(move |(local, remote)| Piece {
        hold: local.region().number(),
        local: local.addr(),
        lkey: local.region().lkey(),
        rkey: remote.rkey(),
        remote: remote.addr(),
        length: length(kind, local, remote),
    });
    message.into_iter().chain(pieces)
}

/// Hands the scheduler's requests to the open session.
struct PairSink<'a> {
    pair: &'a mut QueuePair,
}

impl Sink<Handle> for PairSink<'_> {
    #[inline]
    fn push(&mut self, request: Request<'_, Handle>) {
        // SAFETY: `Queue::pump` has opened a session. The scheduler's plan for this operation holds its
        // regions and counts in its peer until the completion was polled, the session was rolled back,
        // or the queue pair is gone. What was planned was checked by `Queue::check`: the slices are
        // inside regions of the queue pair's domain, writable where they are written. (The parts of a
        // `PageList` were inside its regions when it was made, it keeps these, and neither changes.)
        unsafe { push(self.pair, request) }
    }
}

/// Adds a request to the open session.
///
/// # Safety
///
/// A session is open. Until the request's completion was polled, the session was aborted, or the queue
/// pair was destroyed: the peer's handle stays alive, and the local bytes stay registered in the queue
/// pair's domain, writable for a get, and without Rust references that the device's accesses would
/// violate.
unsafe fn push(pair: &mut QueuePair, request: Request<'_, Handle>) {
    let Some(handle) = &request.peer.handle else {
        // Operations with such peers are carried out by this process.
        debug_assert!(false, "a peer without a handle in the queue");
        return;
    };
    let address = request.peer.address;
    let to = handle
        .ah()
        .destination(address.queue_pair(), address.queue_key());
    let chunk = request.chunk;
    let remote = RemoteMemory {
        addr: chunk.remote,
        rkey: chunk.rkey,
    };
    let local = Sge {
        addr: chunk.local,
        length: chunk.length,
        lkey: chunk.lkey,
    };
    let immediate = request.immediate;
    let requested = match request.kind {
        Kind::Put | Kind::PutImmediate => efa_verbs::Request::Write {
            local,
            remote,
            immediate,
        },
        Kind::Get => efa_verbs::Request::Read { local, remote },
        _ => efa_verbs::Request::Send {
            local: &[local],
            immediate,
        },
    };
    // SAFETY: the caller's promise.
    unsafe { pair.push(request.wr_id, &to, requested) };
}
