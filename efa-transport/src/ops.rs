//! The operation table: who asked for what, how much of it is with the device, and what
//! keeps its memory alive.
//!
//! A request carries its operation's slot and generation in its id, so a completion finds
//! its operation by an index and one comparison, without a map. A slot is 64 bytes. The
//! table begins with slots for a full send queue, grows by doubling for what is live beside that, and
//! then allocates no more.
//!
//! Layout of a request id, from the lowest bit: slot (20), zero (1), generation (19), request
//! within the operation (23), receive (1). An [`OperationId`] has the same low 40 bits and
//! 24 more of the generation above them; it is itself the request id of an operation that has
//! only one, whose index says nothing. A slot has the id with the bit in the middle set, unless
//! the operation is in a lane: so one comparison tells that a completion is of an operation that
//! lives, and in a lane.

use std::fmt;
use std::mem;

use crate::failure::{Cause, Failure};
use crate::peers::PeerId;

const SLOT_BITS: u32 = 20;
/// In a slot's word: its operation is not in a lane.
pub(crate) const OUTSIDE: u64 = 1 << SLOT_BITS;
const GENERATION: u32 = SLOT_BITS + 1;
const KEY_BITS: u32 = 40;
/// Bits of the index of a request within its operation.
pub(crate) const INDEX_BITS: u32 = 23;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Marks the id of a posted receive.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Most operations that a table can hold.
pub(crate) const MOST_OPERATIONS: u32 = 1 << SLOT_BITS;
/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// Names one operation of one endpoint.
///
/// It is never used again for another operation of that endpoint: a stale id is simply
/// not found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub(crate) u64);

impl OperationId {
    #[inline]
    pub(crate) fn slot(self) -> u32 {
        (self.0 & SLOT_MASK) as u32
    }

    /// The id of the only request of an operation: all of its own.
    #[inline]
    pub(crate) fn only_request(self) -> u64 {
        self.0
    }

    /// The id of this operation's request number `index`.
    #[inline]
    pub(crate) fn request(self, index: u64) -> u64 {
        (self.0 & KEY_MASK) | ((index & INDEX_MASK) << KEY_BITS)
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperationId({self})")
    }
}

/// `slot.generation`
impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.0 >> GENERATION)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Local memory is written to the peer's.
    Put,
    /// The same, and the peer is told by immediate data.
    PutImmediate,
    /// The peer's memory is read into ours.
    Get,
    /// A message.
    Send,
    /// A message with immediate data.
    SendImmediate,
    /// A buffer posted for a message of whichever peer sends next.
    Receive,
    /// Waiting until a number of writes with some immediate value have landed.
    AwaitImmediate,
    /// The endpoint's own: asking a peer whether it has taken immediates. Programs never see it.
    #[doc(hidden)]
    Inquire,
}

/// In lower case, as within a sentence.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Put => "put",
            Kind::PutImmediate => "put with immediate",
            Kind::Get => "get",
            Kind::Send => "send",
            Kind::SendImmediate => "send with immediate",
            Kind::Receive => "receive",
            Kind::AwaitImmediate => "wait for immediates",
            Kind::Inquire => "inquiry",
        })
    }
}

/// The end of one operation. Each operation has exactly one.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub operation: OperationId,
    /// The number that the caller gave it.
    pub tag: u64,
    /// The peer, where the operation has one.
    pub peer: Option<PeerId>,
    /// What it did.
    pub kind: Kind,
    /// Bytes transferred. After a failure: those whose requests are known to have succeeded.
    pub bytes: u64,
    /// Immediate data that came with a received message.
    pub immediate: Option<u32>,
    /// Success, or the root cause of the failure.
    pub result: Result<(), Failure>,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Nobody's slot.
    Free,
    /// Its one request is with the device; peer and memory are those of its lane.
    InLane,
    /// The same, and its end is more than the common one.
    Aside,
    /// All its requests are with the device and none has failed.
    Posted,
    /// It has requests to post, and none has failed.
    Open,
    /// A request failed; the rest will not be posted, those with the device are awaited.
    Failed,
    /// Its completion waits to be taken. The device may still hold requests of a
    /// cancelled one.
    Parked,
    /// Its completion was taken, and the device still holds requests.
    Zombie,
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Op<M> {
    /// The id of the operation in this slot, or of the next one, with [`OUTSIDE`] set unless it is
    /// in a lane.
    word: u64,
    pub(crate) tag: u64,
    pub(crate) length: u64,
    pub(crate) peer: Option<PeerId>,
    pub(crate) memory: Option<M>,
    pub(crate) failure: Option<Box<Cause>>,
    /// Requests with the device. A free slot says 1, what most operations begin with.
    pub(crate) pending: u32,
    pub(crate) link: u32,
    pub(crate) head: Head,
}

/// What the operations of a run have in common: copied as one word.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Head {
    /// While it is in one, its lane. While it is parked, the one parked before it.
    pub(crate) lane_or_back: u32,
    pub(crate) kind: Kind,
    /// [`Status::InLane`] in a free slot, too.
    status: Status,
    /// Immediate data came with the message (kept beside the plan).
    pub(crate) has_immediate: bool,
    /// It was counted in its peer when it began.
    pub(crate) counted: bool,
}

impl Head {
    /// That of a put in this lane.
    pub(crate) const fn of_put(lane: u32) -> Self {
        Self {
            lane_or_back: lane,
            kind: Kind::Put,
            status: Status::InLane,
            has_immediate: false,
            counted: true,
        }
    }
}

impl<M> Op<M> {
    /// The peer's entry, or [`NONE`].
    #[inline]
    pub(crate) fn entry(&self) -> u32 {
        self.peer.map_or(NONE, PeerId::index)
    }

    /// The id of the operation in this slot, or of the next one.
    #[inline(always)]
    pub(crate) fn id(&self) -> OperationId {
        OperationId(self.word & !OUTSIDE)
    }

    /// Where it stands.
    #[inline]
    pub(crate) fn status(&self) -> Status {
        match self.head.status {
            Status::InLane if self.word & OUTSIDE != 0 => Status::Free,
            status => status,
        }
    }

    /// It stands somewhere else now. Only [`Table::release`] frees a slot.
    #[inline(always)]
    pub(crate) fn set_status(&mut self, status: Status) {
        self.head.status = status;
        self.word = match status {
            Status::InLane => self.word & !OUTSIDE,
            _ => self.word | OUTSIDE,
        };
    }

    /// The operation of a free slot begins, in the lane of `head`: as
    /// [`set_status`](Self::set_status), but quicker. `outside` is [`OUTSIDE`].
    #[inline(always)]
    pub(crate) fn enter_lane(&mut self, head: &Head, outside: u64) -> OperationId {
        debug_assert!(self.word & OUTSIDE != 0 && outside == OUTSIDE);
        self.head = *head;
        self.word ^= outside;
        OperationId(self.word)
    }

    /// The operation is over: its id names nothing any more. Wraps after 2^43 uses of one slot.
    #[inline(always)]
    fn end(&mut self) {
        self.word = (self.word | OUTSIDE).wrapping_add(1 << GENERATION);
        self.head.status = Status::InLane;
    }

    /// Whether it lives, and the device may have requests of it now or later.
    pub(crate) fn is_under_way(&self) -> bool {
        match self.status() {
            Status::Free => false,
            Status::Parked => self.pending > 0,
            _ => true,
        }
    }
}

/// All slots of an endpoint.
///
/// Free slots are a list by their `link`, which an operation of one request leaves as it is. So
/// what a session has begun is the list from [`mark`](Self::mark)'s slot to the free one of now,
/// and costs nothing to remember.
#[derive(Debug)]
pub(crate) struct Table<M> {
    slots: Vec<Op<M>>,
    free: u32,
    /// The free slot at the time of the last mark.
    marked: u32,
    live: u32,
    capacity: u32,
    /// Operations of sessions that may be with the device at once.
    reserve: u32,
    parked_head: u32,
    parked_tail: u32,
    parked: u32,
}

/// Slots that the table begins with.
const FIRST_SLOTS: u32 = 16;

impl<M> Table<M> {
    /// A table for at most `capacity` operations, up to `reserve` of which are begun in sessions and with
    /// the device at once.
    pub(crate) fn new(capacity: u32, reserve: u32) -> Self {
        let mut table = Self {
            slots: Vec::new(),
            free: NONE,
            marked: NONE,
            live: 0,
            capacity: capacity.clamp(1, MOST_OPERATIONS),
            reserve: 0,
            parked_head: NONE,
            parked_tail: NONE,
            parked: 0,
        };
        table.set_reserve(reserve);
        table
    }

    /// From now on it is up to so many.
    pub(crate) fn set_reserve(&mut self, reserve: u32) {
        self.reserve = reserve.min(MOST_OPERATIONS);
        self.reserve(0);
    }

    /// The slot that the next operation of a session takes: one that has no memory, link and id set,
    /// and 1 request pending. None where all are taken.
    ///
    /// The caller fills it in, and says how many it took by [`keep`](Self::keep).
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<&mut Op<M>> {
        let op = self.slots.get_mut(self.free as usize)?;
        self.free = op.link;
        Some(op)
    }

    /// Whether [`next`](Self::next) returns one.
    #[inline(always)]
    pub(crate) fn has_next(&self) -> bool {
        (self.free as usize) < self.slots.len()
    }

    /// A session begins.
    #[inline(always)]
    pub(crate) fn mark(&mut self) {
        self.marked = self.free;
    }

    /// The operations that took slots since the mark live.
    #[inline(always)]
    pub(crate) fn keep(&mut self, count: u32) {
        self.live += count;
    }

    /// Takes back the slots that were taken since the mark, once `undo` has emptied them.
    #[cold]
    pub(crate) fn undo(&mut self, mut undo: impl FnMut(&mut Op<M>)) {
        let mut at = self.marked;
        while at != self.free {
            let op = self.op_mut(at);
            undo(op);
            debug_assert!(op.memory.is_none());
            op.end();
            at = op.link;
        }
        self.free = self.marked;
    }

    /// What the last operation does that took a slot since the mark.
    pub(crate) fn begun_last(&self) -> Option<Kind> {
        let (mut at, mut kind) = (self.marked, None);
        while at != self.free {
            let op = self.op(at);
            (at, kind) = (op.link, Some(op.head.kind));
        }
        kind
    }

    /// So many more operations are, or will be, none of those that the reserve is for: makes slots, if
    /// there are too few and there may be more. Not in a session.
    ///
    /// In a session no more begin than there are credits, and those that are in a lane have as many. So
    /// if the others are counted here when they begin, or leave their lane, a session never lacks slots.
    #[inline]
    pub(crate) fn reserve(&mut self, more: u32) {
        if self.len() - self.live < self.reserve + more && self.len() < self.capacity {
            self.grow(self.live + self.reserve + more);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, needed: u32) {
        let first = self.len();
        let end = needed
            .max(first.saturating_mul(2))
            .max(FIRST_SLOTS)
            .min(self.capacity);
        self.slots.reserve_exact((end - first) as usize);
        self.slots.extend((first..end).map(|slot| Op {
            // Generation 1: no request id is ever zero, which is what the device reports for
            // writes that consumed no receive.
            word: 1 << GENERATION | OUTSIDE | u64::from(slot),
            tag: 0,
            length: 0,
            peer: None,
            memory: None,
            failure: None,
            pending: 1,
            link: if slot + 1 < end { slot + 1 } else { self.free },
            head: Head::of_put(NONE),
        }));
        self.free = first;
    }

    /// Puts an operation into a free slot.
    pub(crate) fn insert(
        &mut self,
        kind: Kind,
        status: Status,
        peer: Option<PeerId>,
        tag: u64,
        pending: u32,
    ) -> Option<&mut Op<M>> {
        self.reserve(1);
        let op = self.slots.get_mut(self.free as usize)?;
        self.free = op.link;
        self.live += 1;
        op.set_status(status);
        (op.head.kind, op.peer, op.tag) = (kind, peer, tag);
        (op.pending, op.length, op.link) = (pending, 0, NONE);
        (op.head.has_immediate, op.head.counted) = (false, false);
        Some(op)
    }

    /// Makes a slot free. What it owned must be gone already.
    #[inline]
    pub(crate) fn release(&mut self, slot: u32) {
        let free = self.free;
        if let Some(op) = self.slots.get_mut(slot as usize) {
            debug_assert!(op.memory.is_none() && op.failure.is_none());
            op.end();
            op.pending = 1;
            op.link = free;
            self.free = slot;
            self.live -= 1;
        }
    }

    /// For ending operations that are in a lane and have succeeded: what completions of a busy program
    /// are. All others are for [`awaited`](Self::awaited).
    ///
    /// The caller says how many it ended by [`forget`](Self::forget).
    #[inline(always)]
    pub(crate) fn ending(&mut self) -> Ending<'_, M> {
        Ending {
            slots: &mut self.slots,
            free: self.free,
            put_back: &mut self.free,
        }
    }

    /// The lane of the operation that this request is all of, if it is in one.
    #[inline]
    pub(crate) fn lane(&self, wr_id: u64) -> Option<u32> {
        let op = self.slots.get((wr_id & SLOT_MASK) as usize)?;
        (op.word == wr_id).then_some(op.head.lane_or_back)
    }

    /// Operations that [`ending`](Self::ending) ended don't live any more.
    #[inline(always)]
    pub(crate) fn forget(&mut self, count: u32) {
        self.live -= count;
    }

    /// The slot that a request id names, if that operation still lives.
    #[inline]
    pub(crate) fn resolve(&mut self, wr_id: u64) -> Option<(u32, &mut Op<M>)> {
        let slot = (wr_id & SLOT_MASK) as u32;
        let op = self.slots.get_mut(slot as usize)?;
        // One comparison of slot and generation; the bits above are the request's index.
        if (op.word ^ wr_id) & KEY_MASK & !OUTSIDE != 0 || op.status() == Status::Free {
            return None;
        }
        Some((slot, op))
    }

    /// The operation that a completion is of: one that has a request with the device. A device that
    /// completes a request twice must not end what was ended before.
    #[inline]
    pub(crate) fn awaited(&mut self, wr_id: u64) -> Option<(u32, &mut Op<M>)> {
        self.resolve(wr_id).filter(|(_, op)| op.pending > 0)
    }

    /// The slot of a live operation.
    #[inline]
    pub(crate) fn find(&self, id: OperationId) -> Option<u32> {
        let op = self.slots.get(id.slot() as usize)?;
        (op.id() == id && op.status() != Status::Free).then_some(id.slot())
    }

    #[inline]
    pub(crate) fn id(&self, slot: u32) -> OperationId {
        self.slots[slot as usize].id()
    }

    #[inline]
    pub(crate) fn op(&self, slot: u32) -> &Op<M> {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn op_mut(&mut self, slot: u32) -> &mut Op<M> {
        &mut self.slots[slot as usize]
    }

    /// All slots, free ones too.
    pub(crate) fn slots(&self) -> &[Op<M>] {
        &self.slots
    }

    /// Slots that there are.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Operations that live: posted, waiting, parked, or with requests at the device.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Whether another operation fits.
    pub(crate) fn has_room(&self) -> bool {
        self.free != NONE || self.len() < self.capacity
    }

    /// The most operations that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Puts a finished operation at the end of those whose completion waits.
    pub(crate) fn park(&mut self, slot: u32) {
        let tail = self.parked_tail;
        let op = self.op_mut(slot);
        op.set_status(Status::Parked);
        op.link = NONE;
        op.head.lane_or_back = tail;
        if tail == NONE {
            self.parked_head = slot;
        } else {
            self.op_mut(tail).link = slot;
        }
        self.parked_tail = slot;
        self.parked += 1;
    }

    /// Takes an operation out of those that wait.
    pub(crate) fn unpark(&mut self, slot: u32) {
        let (back, link) = {
            let op = self.op(slot);
            debug_assert_eq!(op.status(), Status::Parked);
            (op.head.lane_or_back, op.link)
        };
        if back == NONE {
            self.parked_head = link;
        } else {
            self.op_mut(back).link = link;
        }
        if link == NONE {
            self.parked_tail = back;
        } else {
            self.op_mut(link).head.lane_or_back = back;
        }
        self.parked -= 1;
    }

    /// The operation whose completion has waited longest.
    #[inline]
    pub(crate) fn first_parked(&self) -> Option<u32> {
        (self.parked_head != NONE).then_some(self.parked_head)
    }

    /// Completions that wait.
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }
}

/// Ends operations one after the other. What changes with each is in here, so that it stays in
/// registers; it is put back on drop.
pub(crate) struct Ending<'a, M> {
    slots: &'a mut [Op<M>],
    free: u32,
    put_back: &'a mut u32,
}

impl<M> Ending<'_, M> {
    /// Ends the operation that this request is all of, if it is in this lane and has succeeded, and
    /// returns its completion but for the peer.
    #[inline(always)]
    pub(crate) fn end(&mut self, wr_id: u64, vendor_status: u32, lane: u32) -> Option<Completion> {
        let slot = (wr_id & SLOT_MASK) as u32;
        let op = self.slots.get_mut(slot as usize)?;
        if op.word != wr_id || op.head.lane_or_back != lane || vendor_status != 0 {
            return None;
        }
        // As `Op::end`, of one whose word and status are known.
        op.word = wr_id.wrapping_add(OUTSIDE + (1 << GENERATION));
        op.link = mem::replace(&mut self.free, slot);
        Some(Completion {
            operation: OperationId(wr_id),
            tag: op.tag,
            peer: None,
            kind: op.head.kind,
            bytes: op.length,
            immediate: None,
            result: Ok(()),
        })
    }
}

impl<M> Drop for Ending<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.put_back = self.free;
    }
}

/// The index of a request within its operation, as far as its id tells: the largest below
/// `position` that has these low bits.
pub(crate) fn request_index(wr_id: u64, position: u64) -> u64 {
    let low = (wr_id >> KEY_BITS) & INDEX_MASK;
    let last = position.saturating_sub(1);
    last.saturating_sub(last.wrapping_sub(low) & INDEX_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert(table: &mut Table<u32>, tag: u64) -> Option<u32> {
        let peer = Some(PeerId::new(0, 1));
        let op = table.insert(Kind::Put, Status::Posted, peer, tag, 1)?;
        Some(op.id().slot())
    }

    fn finish(table: &mut Table<u32>, slot: u32) {
        table.op_mut(slot).pending = 0;
        table.release(slot);
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!(size_of::<Op<std::sync::Arc<()>>>(), 64);
    }

    #[test]
    fn a_stale_id_is_not_found() {
        let mut table = Table::new(4, 1);
        let slot = insert(&mut table, 1).unwrap();
        let old = table.id(slot);
        finish(&mut table, slot);
        assert!(table.resolve(old.request(0)).is_none());
        assert_eq!(insert(&mut table, 2), Some(slot));
        assert_ne!(table.id(slot), old);
        assert!(table.resolve(old.request(0)).is_none());
        assert_eq!(table.find(old), None);
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let mut table = Table::new(2, 1);
        assert!(insert(&mut table, 1).is_some());
        let slot = insert(&mut table, 2).unwrap();
        assert!(!table.has_room());
        assert_eq!(insert(&mut table, 3), None);
        finish(&mut table, slot);
        assert!(insert(&mut table, 3).is_some());
    }

    #[test]
    fn no_request_id_is_zero_and_none_looks_like_a_receive() {
        let mut table = Table::new(2, 1);
        let slot = insert(&mut table, 1).unwrap();
        let id = table.id(slot);
        assert_ne!(id.request(0), 0);
        assert_eq!(id.request(u64::MAX) & RECEIVE, 0);
    }

    proptest! {
        #[test]
        fn the_index_comes_back_from_the_id(position in 1u64.., back in 0u64..(1 << INDEX_BITS)) {
            let index = (position - 1).saturating_sub(back);
            let id = OperationId((7 << GENERATION) | 3);
            prop_assert_eq!(request_index(id.request(index), position), index);
        }

        #[test]
        fn every_live_operation_is_found_and_no_other(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..300),
        ) {
            let mut table = Table::new(16, 4);
            let mut live: Vec<(OperationId, u64)> = Vec::new();
            let mut dead: Vec<OperationId> = Vec::new();
            for (i, (add, which)) in steps.into_iter().enumerate() {
                if add || live.is_empty() {
                    match insert(&mut table, i as u64) {
                        Some(slot) => live.push((table.id(slot), i as u64)),
                        None => prop_assert_eq!(live.len(), 16),
                    }
                } else {
                    let (id, _) = live.swap_remove(which.index(live.len()));
                    finish(&mut table, id.slot());
                    dead.push(id);
                }
                for &(id, tag) in &live {
                    let (slot, op) = table.resolve(id.request(5)).unwrap();
                    prop_assert_eq!((slot, op.tag), (id.slot(), tag));
                }
                for &id in &dead {
                    prop_assert!(table.resolve(id.request(0)).is_none());
                }
                prop_assert_eq!(table.live() as usize, live.len());
            }
        }

        #[test]
        fn parked_completions_come_out_in_order(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut table = Table::new(8, 8);
            let mut model: std::collections::VecDeque<u32> = Default::default();
            for (what, which) in steps {
                match what {
                    0 => if let Some(slot) = insert(&mut table, 0) {
                        table.op_mut(slot).pending = 0;
                        table.park(slot);
                        model.push_back(slot);
                    },
                    1 => {
                        prop_assert_eq!(table.first_parked(), model.front().copied());
                        if let Some(slot) = model.pop_front() {
                            table.unpark(slot);
                            table.release(slot);
                        }
                    }
                    _ => if !model.is_empty() {
                        let slot = model.remove(which.index(model.len())).unwrap();
                        table.unpark(slot);
                        table.release(slot);
                    },
                }
                prop_assert_eq!(table.parked() as usize, model.len());
            }
        }
    }
}
