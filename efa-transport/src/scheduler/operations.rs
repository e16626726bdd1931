//! The operation table: who asked for what, and how much of it is with the device.
//!
//! A completion finds its operation by an index and one comparison, without a map. The table begins
//! with slots for a full send queue, grows by doubling, and then allocates no more.
//!
//! Layout of a request id, from the lowest bit: slot (20), zero (1), generation (19), request within the
//! operation (23), receive (1). The id of an operation has the same low 40 bits and 24 more of the
//! generation above them; it is itself the request id of an operation that has only one.
//!
//! The bit in the middle is a slot's own: it is set unless the operation in it is *plain*, that is, of one
//! request, with the device, and nothing unusual is known of it. So one comparison tells that a completion
//! is of a living, plain operation; all others take the longer way.

use crate::failure::Cause;
use crate::operation::{Completion, Kind, OperationId};
use crate::peers::PeerId;

const SLOT_BITS: u32 = 20;
/// In a slot's word: its operation is not plain.
const UNUSUAL: u64 = 1 << SLOT_BITS;
const GENERATION: u32 = SLOT_BITS + 1;
const KEY_BITS: u32 = 40;
/// Bits of the index of a request within its operation.
const INDEX_BITS: u32 = 23;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Marks the id of a posted receive.
pub(crate) const RECEIVE: u64 = 1 << 63;
/// Most operations that a table can hold.
pub(crate) const MOST_OPERATIONS: u32 = 1 << SLOT_BITS;
/// No slot, no number.
pub(crate) const NONE: u32 = u32::MAX;
/// Slots that the table begins with.
const FIRST_SLOTS: u32 = 16;

/// What an operation's word says, for display.
pub(crate) fn slot_and_generation(word: u64) -> (u64, u64) {
    (word & SLOT_MASK, word >> GENERATION)
}

/// The id of request number `index` of the operation with this word.
#[inline]
pub(crate) fn request_id(word: u64, index: u64) -> u64 {
    (word & KEY_MASK) | ((index & INDEX_MASK) << KEY_BITS)
}

/// The index of a request within its operation, as far as its id tells: the largest below `position`
/// that has these low bits.
pub(crate) fn request_index(wr_id: u64, position: u64) -> u64 {
    let low = (wr_id >> KEY_BITS) & INDEX_MASK;
    let last = position.saturating_sub(1);
    last.saturating_sub(last.wrapping_sub(low) & INDEX_MASK)
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Nobody's slot.
    Free,
    /// Its only request is with the device, and nothing unusual is known of it.
    Plain,
    /// All its requests are with the device and none has failed.
    Posted,
    /// It has requests to post, or waits for something else, and nothing has failed.
    Open,
    /// A request failed; the rest will not be posted, those with the device are awaited.
    Failed,
    /// Its completion waits to be taken. The device may still hold requests of a cancelled one.
    Parked,
    /// Its completion was taken, and the device still holds requests.
    Zombie,
}

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The id of the operation in this slot, or of the next one, with [`UNUSUAL`] set unless the
    /// operation is plain.
    word: u64,
    pub(crate) tag: u64,
    pub(crate) length: u64,
    /// Or [`PeerId::NOBODY`].
    peer: PeerId,
    pub(crate) failure: Option<Box<Cause>>,
    /// Requests with the device. A free slot says 1, what most operations begin with.
    pub(crate) pending: u32,
    /// In a free slot: the next one. In a parked one: the one parked after it.
    link: u32,
    /// In a parked one: the one parked before it.
    back: u32,
    /// The number of the memory of its only request, or [`NONE`]. Others hold theirs in their plan.
    pub(crate) hold: u32,
    pub(crate) immediate: u32,
    pub(crate) kind: Kind,
    /// [`Status::Plain`] in a free slot, too, which its word tells from a plain operation.
    status: Status,
}

impl Slot {
    /// The peer, where the operation has one.
    #[inline]
    pub(crate) fn peer(&self) -> Option<PeerId> {
        (self.peer != PeerId::NOBODY).then_some(self.peer)
    }

    /// The word of the operation in this slot, or of the next one.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.word & !UNUSUAL
    }

    #[inline]
    pub(crate) fn status(&self) -> Status {
        match self.status {
            Status::Plain if self.word & UNUSUAL != 0 => Status::Free,
            status => status,
        }
    }

    /// It stands somewhere else now, and is plain no more. Only [`Table::release`] frees a slot.
    pub(crate) fn set_status(&mut self, status: Status) {
        self.status = status;
        self.word |= UNUSUAL;
    }

    /// The operation is over: its id names nothing any more. Wraps after 2^43 uses of one slot.
    fn end(&mut self) {
        self.word = (self.word | UNUSUAL).wrapping_add(1 << GENERATION);
        self.status = Status::Plain;
        self.pending = 1;
    }

    /// Whether the device may have requests of it now or later.
    #[cfg(test)]
    pub(crate) fn is_in_flight(&self) -> bool {
        match self.status() {
            Status::Free => false,
            Status::Parked => self.pending > 0,
            _ => true,
        }
    }
}

/// A new operation of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    pub(crate) tag: u64,
    pub(crate) length: u64,
    pub(crate) hold: u32,
}

/// A plain operation that has ended well.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) hold: u32,
    pub(crate) peer: PeerId,
    pub(crate) tag: u64,
    pub(crate) length: u64,
    pub(crate) kind: Kind,
}

/// All slots of an endpoint.
///
/// Free slots are a list by their `link`, which an operation leaves as it is until it is parked. So what a
/// batch has begun is the list from [`mark`](Self::mark)'s slot to the free one of now.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    free: u32,
    /// The free slot at the time of the last mark.
    marked: u32,
    live: u32,
    zombies: u32,
    capacity: u32,
    /// Tells the endpoint's operations from those of others.
    endpoint: u32,
    parked_head: u32,
    parked_tail: u32,
    parked: u32,
}

impl Table {
    /// A table for at most `capacity` operations.
    pub(crate) fn new(endpoint: u32, capacity: u32) -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            marked: NONE,
            live: 0,
            zombies: 0,
            capacity: capacity.clamp(1, MOST_OPERATIONS),
            endpoint,
            parked_head: NONE,
            parked_tail: NONE,
            parked: 0,
        }
    }

    /// Makes slots for `more` operations, where there are too few and there may be more.
    #[inline]
    pub(crate) fn reserve(&mut self, more: u32) {
        if self.len() - self.live < more && self.len() < self.capacity {
            self.grow(self.live + more);
        }
    }

    #[cold]
    fn grow(&mut self, needed: u32) {
        let first = self.len();
        let end = needed
            .max(first.saturating_mul(2))
            .max(FIRST_SLOTS)
            .min(self.capacity);
        self.slots.reserve_exact((end - first) as usize);
        self.slots.extend((first..end).map(|slot| Slot {
            // Generation 1: no request id is ever zero.
            word: 1 << GENERATION | UNUSUAL | u64::from(slot),
            tag: 0,
            length: 0,
            peer: PeerId::NOBODY,
            failure: None,
            pending: 1,
            link: if slot + 1 < end { slot + 1 } else { self.free },
            back: NONE,
            hold: NONE,
            immediate: 0,
            kind: Kind::Put,
            status: Status::Plain,
        }));
        self.free = first;
    }

    // ---- batches --------------------------------------------------------------------

    /// A batch of at most `most` operations begins.
    #[inline]
    pub(crate) fn mark(&mut self, most: u32) {
        self.reserve(most);
        self.marked = self.free;
    }

    /// Whether another operation fits without making slots.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        self.free != NONE
    }

    /// Begins an operation whose only request is posted now, and returns its word. The caller counts it
    /// by [`begun`](Self::begun).
    #[inline]
    pub(crate) fn begin(&mut self, plain: Plain) -> Option<u64> {
        let slot = self.slots.get_mut(self.free as usize)?;
        self.free = slot.link;
        slot.tag = plain.tag;
        slot.length = plain.length;
        slot.peer = plain.peer;
        slot.hold = plain.hold;
        slot.kind = plain.kind;
        let word = slot.word ^ UNUSUAL;
        slot.word = word;
        Some(word)
    }

    /// So many more operations live, which [`begin`](Self::begin) has begun.
    #[inline]
    pub(crate) fn begun(&mut self, count: u32) {
        self.live += count;
    }

    /// So many operations live no more, which [`end_plain`](Self::end_plain) has ended.
    #[inline]
    pub(crate) fn ended(&mut self, count: u32) {
        self.live -= count;
    }

    /// Ends a plain operation that has succeeded. `None` for all others. The caller counts it by
    /// [`ended`](Self::ended).
    #[inline]
    pub(crate) fn end_plain(&mut self, wr_id: u64) -> Option<Ended> {
        let at = (wr_id & SLOT_MASK) as u32;
        let slot = self.slots.get_mut(at as usize)?;
        if slot.word != wr_id {
            return None;
        }
        // As `Slot::end`, of one whose word and pending requests are known.
        slot.word = wr_id.wrapping_add(UNUSUAL + (1 << GENERATION));
        slot.link = self.free;
        self.free = at;
        Some(Ended {
            hold: slot.hold,
            peer: slot.peer,
            tag: slot.tag,
            length: slot.length,
            kind: slot.kind,
        })
    }

    /// Slots that were taken since the mark.
    #[cold]
    pub(crate) fn since_mark(&self) -> Vec<u32> {
        let (mut at, mut taken) = (self.marked, Vec::new());
        while at != self.free {
            taken.push(at);
            at = self.slots[at as usize].link;
        }
        taken
    }

    // ---- all others -----------------------------------------------------------------

    /// Puts an operation into a free slot.
    pub(crate) fn insert(
        &mut self,
        kind: Kind,
        status: Status,
        peer: Option<PeerId>,
        tag: u64,
    ) -> Option<u32> {
        self.reserve(1);
        let at = self.free;
        let slot = self.slots.get_mut(at as usize)?;
        self.free = slot.link;
        self.live += 1;
        slot.set_status(status);
        (slot.kind, slot.tag) = (kind, tag);
        slot.peer = peer.unwrap_or(PeerId::NOBODY);
        (slot.pending, slot.length) = (0, 0);
        (slot.hold, slot.immediate) = (NONE, 0);
        Some(at)
    }

    /// Makes a slot free. What it owned must be gone already.
    pub(crate) fn release(&mut self, at: u32) {
        let free = self.free;
        if let Some(slot) = self.slots.get_mut(at as usize) {
            debug_assert!(slot.status() != Status::Free && slot.failure.is_none());
            self.zombies -= u32::from(slot.status == Status::Zombie);
            slot.end();
            slot.link = free;
            self.free = at;
            self.live -= 1;
        }
    }

    /// The completion of this operation was taken, and the device still holds requests of it.
    pub(crate) fn haunt(&mut self, at: u32) {
        self.slot_mut(at).set_status(Status::Zombie);
        self.zombies += 1;
    }

    /// The slot of the operation that a completion is of: one that has a request with the device. A
    /// device that completes a request twice must not end what was ended before.
    pub(crate) fn awaited(&mut self, wr_id: u64) -> Option<u32> {
        let at = (wr_id & SLOT_MASK) as u32;
        let slot = self.slots.get(at as usize)?;
        // The bits above the key are the request's index.
        let same = (slot.word ^ wr_id) & KEY_MASK & !UNUSUAL == 0;
        (same && slot.status() != Status::Free && slot.pending > 0).then_some(at)
    }

    /// The slot of a live operation.
    #[inline]
    pub(crate) fn find(&self, id: OperationId) -> Option<u32> {
        let at = (id.word & SLOT_MASK) as u32;
        let slot = self.slots.get(at as usize)?;
        let found = id.endpoint == self.endpoint && slot.word() == id.word;
        (found && slot.status() != Status::Free).then_some(at)
    }

    #[inline]
    pub(crate) fn id(&self, at: u32) -> OperationId {
        self.id_of(self.slots[at as usize].word())
    }

    /// The id of the operation with this word.
    #[inline]
    pub(crate) fn id_of(&self, word: u64) -> OperationId {
        OperationId {
            word,
            endpoint: self.endpoint,
        }
    }

    #[inline]
    pub(crate) fn slot(&self, at: u32) -> &Slot {
        &self.slots[at as usize]
    }

    #[inline]
    pub(crate) fn slot_mut(&mut self, at: u32) -> &mut Slot {
        &mut self.slots[at as usize]
    }

    /// Slots that there are.
    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Operations that live: posted, waiting, parked, or with requests at the device.
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// Operations whose completion is still to come or to be taken.
    pub(crate) fn incomplete(&self) -> u32 {
        self.live - self.zombies
    }

    /// Whether another operation fits.
    pub(crate) fn has_room(&self) -> bool {
        self.free != NONE || self.len() < self.capacity
    }

    /// The most operations that fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    // ---- completions that wait ------------------------------------------------------

    /// Puts a finished operation at the end of those whose completion waits.
    pub(crate) fn park(&mut self, at: u32) {
        let tail = self.parked_tail;
        let slot = self.slot_mut(at);
        slot.set_status(Status::Parked);
        (slot.link, slot.back) = (NONE, tail);
        if tail == NONE {
            self.parked_head = at;
        } else {
            self.slot_mut(tail).link = at;
        }
        self.parked_tail = at;
        self.parked += 1;
    }

    /// Takes an operation out of those that wait.
    pub(crate) fn unpark(&mut self, at: u32) {
        let slot = self.slot(at);
        debug_assert_eq!(slot.status, Status::Parked);
        let (back, link) = (slot.back, slot.link);
        if back == NONE {
            self.parked_head = link;
        } else {
            self.slot_mut(back).link = link;
        }
        if link == NONE {
            self.parked_tail = back;
        } else {
            self.slot_mut(link).back = back;
        }
        self.parked -= 1;
    }

    /// The operation whose completion has waited longest.
    #[inline]
    pub(crate) fn first_parked(&self) -> Option<u32> {
        (self.parked_head != NONE).then_some(self.parked_head)
    }

    /// Completions that wait.
    #[inline]
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// Checks what must always be true.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let used = |slot: &&Slot| slot.status() != Status::Free;
        assert_eq!(self.slots.iter().filter(used).count() as u32, self.live);
        let zombies = |slot: &&Slot| slot.status == Status::Zombie;
        let zombies = self.slots.iter().filter(zombies).count() as u32;
        assert_eq!(zombies, self.zombies);
        let mut free = vec![false; self.slots.len()];
        let mut at = self.free;
        while let Some(slot) = self.slots.get(at as usize) {
            assert!(slot.status() == Status::Free && slot.pending == 1);
            let before = std::mem::replace(&mut free[at as usize], true);
            assert!(!before, "a slot is free twice");
            at = slot.link;
        }
        let free = free.iter().filter(|free| **free).count();
        assert_eq!(free as u32, self.len() - self.live);
    }
}

impl Ended {
    /// The completion of the operation.
    #[inline]
    pub(crate) fn completion(self, operation: OperationId) -> Completion {
        Completion {
            operation,
            tag: self.tag,
            peer: Some(self.peer),
            kind: self.kind,
            bytes: self.length,
            result: Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert(table: &mut Table, tag: u64) -> Option<u32> {
        let at = table.insert(Kind::Put, Status::Posted, Some(PeerId::test(0, 1)), tag)?;
        table.slot_mut(at).pending = 1;
        Some(at)
    }

    fn plain(tag: u64) -> Plain {
        Plain {
            kind: Kind::Put,
            peer: PeerId::test(0, 1),
            tag,
            length: 8,
            hold: 0,
        }
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert!(size_of::<Slot>() <= 64);
    }

    #[test]
    fn a_stale_id_or_that_of_another_endpoint_is_not_found() {
        let mut table = Table::new(1, 4);
        let at = insert(&mut table, 1).unwrap();
        let old = table.id(at);
        assert_eq!(table.find(old), Some(at));
        let foreign = OperationId { endpoint: 2, ..old };
        assert_eq!(table.find(foreign), None);
        table.release(at);
        assert_eq!(table.awaited(request_id(old.word, 0)), None);
        assert_eq!(insert(&mut table, 2), Some(at));
        assert_ne!(table.id(at), old);
        assert_eq!(table.find(old), None);
    }

    #[test]
    fn a_plain_operation_ends_once_and_an_unusual_one_the_longer_way() {
        let mut table = Table::new(1, 4);
        table.mark(2);
        let first = table.begin(plain(1)).unwrap();
        let second = table.begin(plain(2)).unwrap();
        table.begun(2);
        let at = table.find(table.id_of(second)).unwrap();
        table.slot_mut(at).set_status(Status::Failed);
        assert_eq!(table.end_plain(first).unwrap().tag, 1);
        table.ended(1);
        assert!(table.end_plain(first).is_none());
        assert!(table.end_plain(second).is_none());
        assert_eq!(table.awaited(second), Some(at));
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let mut table = Table::new(1, 2);
        assert!(insert(&mut table, 1).is_some());
        let at = insert(&mut table, 2).unwrap();
        assert!(!table.has_room());
        assert_eq!(insert(&mut table, 3), None);
        table.release(at);
        assert!(insert(&mut table, 3).is_some());
    }

    #[test]
    fn no_request_id_is_zero_and_none_looks_like_a_receive() {
        let mut table = Table::new(1, 2);
        let at = insert(&mut table, 1).unwrap();
        let word = table.id(at).word;
        assert_ne!(request_id(word, 0), 0);
        assert_eq!(request_id(word, u64::MAX) & RECEIVE, 0);
    }

    proptest! {
        #[test]
        fn the_index_comes_back_from_the_id(position in 1u64.., back in 0u64..(1 << INDEX_BITS)) {
            let index = (position - 1).saturating_sub(back);
            let id = request_id((7 << GENERATION) | 3, index);
            prop_assert_eq!(request_index(id, position), index);
        }

        #[test]
        fn every_live_operation_is_found_and_no_other(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut table = Table::new(1, 16);
            let mut live: Vec<(OperationId, u64)> = Vec::new();
            let mut dead: Vec<OperationId> = Vec::new();
            for (i, (what, which)) in steps.into_iter().enumerate() {
                let tag = i as u64;
                if what == 0 {
                    table.mark(1);
                    match table.begin(plain(tag)) {
                        Some(word) => {
                            table.begun(1);
                            live.push((table.id_of(word), tag));
                        }
                        None => prop_assert_eq!(live.len(), 16),
                    }
                } else if what == 1 || live.is_empty() {
                    match insert(&mut table, tag) {
                        Some(at) => live.push((table.id(at), tag)),
                        None => prop_assert_eq!(live.len(), 16),
                    }
                } else {
                    let (id, tag) = live.swap_remove(which.index(live.len()));
                    match table.end_plain(id.word) {
                        Some(ended) => {
                            table.ended(1);
                            prop_assert_eq!(ended.tag, tag);
                        }
                        None => {
                            let at = table.find(id).unwrap();
                            table.release(at);
                        }
                    }
                    dead.push(id);
                }
                table.audit();
                for &(id, tag) in &live {
                    let at = table.awaited(request_id(id.word, 5)).unwrap();
                    prop_assert_eq!(table.slot(at).tag, tag);
                    prop_assert_eq!(table.find(id), Some(at));
                }
                for &id in &dead {
                    prop_assert_eq!(table.awaited(request_id(id.word, 0)), None);
                }
            }
        }

        #[test]
        fn parked_completions_come_out_in_order(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut table = Table::new(1, 8);
            let mut model: std::collections::VecDeque<u32> = Default::default();
            for (what, which) in steps {
                match what {
                    0 => if let Some(at) = insert(&mut table, 0) {
                        table.park(at);
                        model.push_back(at);
                    },
                    1 => {
                        prop_assert_eq!(table.first_parked(), model.front().copied());
                        if let Some(at) = model.pop_front() {
                            table.unpark(at);
                            table.release(at);
                        }
                    }
                    _ => if !model.is_empty() {
                        let at = model.remove(which.index(model.len())).unwrap();
                        table.unpark(at);
                        table.release(at);
                    },
                }
                prop_assert_eq!(table.parked() as usize, model.len());
            }
        }
    }
}
