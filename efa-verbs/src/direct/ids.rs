//! Request ids: which request a completion belongs to.
//!
//! The device gives back 16 bits. The low ones, as many as the queue's depth needs, are a slot in
//! a table that holds the caller's id; the rest are a generation, different each time that the
//! slot is used, so that a second completion of a request is not taken for that of the next one.
//! Free slots are chained, last in, first out: the slots in use are those that are in the cache.

use core::ptr::{self, NonNull};

/// No request.
const FREE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    wr_id: u64,
    /// The id of the request in flight, or [`FREE`], which no 16 bits equal.
    request: u32,
    /// Of a free slot: the id to take after this one's.
    next: u16,
}

/// The ids of one queue.
pub(super) struct Ids {
    /// `mask + 1` slots, owned.
    slots: NonNull<Slot>,
    /// The number of slots, which is the queue's number of entries, less one.
    mask: u32,
    /// The id to take next; the chain begins at its slot.
    head: u16,
    /// Requests ever taken, modulo 2^32; at the same time the queue's producer count.
    taken: u32,
    /// Requests ever given back.
    returned: u32,
}

impl Drop for Ids {
    fn drop(&mut self) {
        let slots = ptr::slice_from_raw_parts_mut(self.slots.as_ptr(), self.mask as usize + 1);
        // SAFETY: `new` took them out of a box of this many.
        drop(unsafe { Box::from_raw(slots) });
    }
}

impl Ids {
    /// `entries` is a power of two up to 65536.
    pub(super) fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && entries <= 1 << 16);
        let slot = |index| Slot {
            wr_id: 0,
            request: FREE,
            next: (index as u16).wrapping_add(1),
        };
        let slots: Box<[Slot]> = (0..entries).map(slot).collect();
        Self {
            slots: NonNull::from(Box::leak(slots)).cast(),
            mask: entries - 1,
            head: 0,
            taken: 0,
            returned: 0,
        }
    }

    #[inline(always)]
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// Requests ever taken: the count of the entry that the next one goes to.
    #[inline(always)]
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Requests in flight.
    #[inline(always)]
    pub(super) fn in_flight(&self) -> u32 {
        self.taken.wrapping_sub(self.returned)
    }

    /// Takes the id for the next entry; `None` when the queue is full.
    #[inline(always)]
    pub(super) fn take(&mut self, wr_id: u64) -> Option<u16> {
        if self.in_flight() > self.mask {
            return None;
        }
        // Fewer are in flight than there are slots, so the chain begins with a free one.
        let id = self.head;
        let slot = slot(self.slots.as_ptr(), self.mask, id);
        // SAFETY: it is a slot of the table, which is nobody else's.
        unsafe {
            self.head = (*slot).next;
            (*slot).wr_id = wr_id;
            (*slot).request = id.into();
        }
        self.taken = self.taken.wrapping_add(1);
        Some(id)
    }

    /// Gives back the id taken last, for an entry that was not posted.
    pub(super) fn untake(&mut self, id: u16) {
        let slot = slot(self.slots.as_ptr(), self.mask, id);
        self.taken = self.taken.wrapping_sub(1);
        // SAFETY: as above.
        unsafe {
            if (*slot).request != u32::from(id) {
                // The device completed what it was never given, and the id is free already.
                self.returned = self.returned.wrapping_sub(1);
                return;
            }
            (*slot).request = FREE;
            (*slot).next = self.head;
        }
        self.head = id;
    }

    /// For giving ids back one after the other.
    #[inline(always)]
    pub(super) fn returns(&mut self) -> Returns<'_> {
        Returns {
            slots: self.slots.as_ptr(),
            mask: self.mask,
            head: self.head,
            given: 0,
            ids: self,
        }
    }
}

/// The slot of an id.
#[inline(always)]
fn slot(slots: *mut Slot, mask: u32, id: u16) -> *mut Slot {
    // SAFETY: a masked index is below the number of slots, `mask + 1`.
    unsafe { slots.add((u32::from(id) & mask) as usize) }
}

/// Gives ids back. [`end`](Self::end) makes it count. What changes with each is in here, so that it
/// stays in registers.
pub(super) struct Returns<'a> {
    slots: *mut Slot,
    mask: u32,
    head: u16,
    given: u32,
    ids: &'a mut Ids,
}

impl Returns<'_> {
    /// The caller's id of a request that is in flight, which then is no more. `None` for an id that
    /// is not in flight.
    #[inline(always)]
    pub(super) fn give(&mut self, id: u16) -> Option<u64> {
        let slot = slot(self.slots, self.mask, id);
        // SAFETY: it is a slot of the table of `ids`, which is exclusively borrowed.
        unsafe {
            if (*slot).request != u32::from(id) {
                return None;
            }
            (*slot).request = FREE;
            (*slot).next = self.head;
            // The next generation of the same slot. A queue of 65536 entries has one generation.
            self.head = id.wrapping_add((self.mask + 1) as u16);
            self.given += 1;
            Some((*slot).wr_id)
        }
    }

    /// Puts the chain's beginning and the count back.
    #[inline(always)]
    pub(super) fn end(self) {
        self.ids.head = self.head;
        self.ids.returned = self.ids.returned.wrapping_add(self.given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    impl Ids {
        pub(in super::super) fn give(&mut self, id: u16) -> Option<u64> {
            let mut returns = self.returns();
            let found = returns.give(id);
            returns.end();
            found
        }
    }

    #[test]
    fn an_id_is_a_slot_and_a_generation() {
        let mut ids = Ids::new(4);
        assert_eq!((ids.take(10), ids.take(11)), (Some(0), Some(1)));
        assert_eq!(ids.give(0), Some(10));
        assert_eq!(ids.give(0), None, "a second completion of the same request");
        assert_eq!(ids.give(4), None, "the generation to come");
        assert_eq!(
            (ids.take(12), ids.take(13), ids.take(14)),
            (Some(4), Some(2), Some(3))
        );
        assert_eq!(ids.take(15), None, "full");
        assert_eq!(ids.give(0), None, "the generation before");
        assert_eq!(ids.give(4), Some(12));
        assert_eq!(ids.give(0xfffc), None);
    }

    #[test]
    fn the_largest_queue_has_room_for_all_its_ids() {
        let mut ids = Ids::new(1 << 16);
        for wr_id in 0..1 << 16 {
            assert_eq!(ids.take(wr_id), Some(wr_id as u16));
        }
        assert_eq!(ids.take(0), None);
        assert_eq!(ids.give(0xffff), Some(0xffff));
        assert_eq!(ids.take(7), Some(0xffff));
        assert_eq!(ids.give(0xffff), Some(7));
    }

    #[test]
    fn what_was_taken_back_can_be_taken_again() {
        let mut ids = Ids::new(4);
        ids.take(1).unwrap();
        let taken = (ids.take(2).unwrap(), ids.take(3).unwrap());
        assert_eq!(ids.give(0), Some(1), "polled in between");
        ids.untake(taken.1);
        ids.untake(taken.0);
        assert_eq!(ids.in_flight(), 0);
        assert_eq!(ids.give(taken.0), None);
        assert_eq!((ids.take(4).unwrap(), ids.take(5).unwrap()), taken);
        assert_eq!((ids.give(taken.1), ids.give(taken.0)), (Some(5), Some(4)));
    }

    proptest::proptest! {
        #[test]
        fn every_request_comes_back_once_in_any_order(
            bits in 0u32..6,
            steps in proptest::collection::vec(proptest::prelude::any::<(u8, u16)>(), 0..500),
        ) {
            let mut ids = Ids::new(1 << bits);
            let mut flying: HashMap<u16, u64> = HashMap::new();
            let mut wr_id = 0;
            for (what, which) in steps {
                match what % 4 {
                    0 | 1 => {
                        wr_id += 1;
                        match ids.take(wr_id) {
                            Some(id) => assert_eq!(flying.insert(id, wr_id), None),
                            None => assert_eq!(flying.len(), 1 << bits),
                        }
                    }
                    2 => {
                        let Some(&id) = flying.keys().nth(which as usize % flying.len().max(1)) else {
                            continue;
                        };
                        assert_eq!(ids.give(id), flying.remove(&id));
                    }
                    _ => assert_eq!(ids.give(which), flying.remove(&which)),
                }
                assert_eq!(ids.in_flight() as usize, flying.len());
            }
        }
    }
}
