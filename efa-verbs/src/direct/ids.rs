//! Request ids: which request a completion belongs to.
//!
//! The device gives back 16 bits. The low ones, as many as the queue's depth needs, are a slot in
//! a table that holds the caller's id; the rest are a generation, different each time that the
//! slot is used, so that a second completion of a request is not taken for that of the next one.
//! Free ids are a stack, whose used part is as long as requests are in flight: one count serves as
//! that number, as the place of the next free id, and as the check that there is one. Last in, first
//! out: the slots in use are those that are in the cache.

use core::ptr::{self, NonNull};

/// No request.
const FREE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    wr_id: u64,
    /// The id of the request in flight, or [`FREE`], which no 16 bits equal.
    request: u32,
}

/// The ids of one queue.
pub(super) struct Ids {
    /// `mask + 1` slots, owned. As many of them as `taken` says have a request.
    slots: NonNull<Slot>,
    /// `mask + 1` ids, owned. Those from `taken` on are the last ones of slots without a request, each
    /// slot once.
    free: NonNull<u16>,
    /// The number of slots, which is the queue's number of entries, less one.
    mask: u32,
    /// Ids that are taken.
    taken: u32,
    /// Those of them that were taken before the batch that is being built.
    begin: u32,
}

// SAFETY: both tables are owned, and nothing in them belongs to a thread.
unsafe impl Send for Ids {}
// SAFETY: `&self` reaches integers only.
unsafe impl Sync for Ids {}

impl Drop for Ids {
    fn drop(&mut self) {
        let entries = self.mask as usize + 1;
        let slots = ptr::slice_from_raw_parts_mut(self.slots.as_ptr(), entries);
        let free = ptr::slice_from_raw_parts_mut(self.free.as_ptr(), entries);
        // SAFETY: `new` took them out of boxes of this many.
        unsafe {
            drop(Box::from_raw(slots));
            drop(Box::from_raw(free));
        }
    }
}

impl Ids {
    /// `entries` is a power of two up to 65536.
    pub(super) fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && entries <= 1 << 16);
        let slot = Slot {
            wr_id: 0,
            request: FREE,
        };
        let slots: Box<[Slot]> = vec![slot; entries as usize].into();
        // The generation before the first one.
        let free: Box<[u16]> = (0..entries)
            .map(|slot| (slot as u16).wrapping_sub(entries as u16))
            .collect();
        Self {
            slots: NonNull::from(Box::leak(slots)).cast(),
            free: NonNull::from(Box::leak(free)).cast(),
            mask: entries - 1,
            taken: 0,
            begin: 0,
        }
    }

    #[inline(always)]
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// Ids that are taken.
    #[inline(always)]
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes an id; `None` when the queue is full.
    #[inline(always)]
    pub(super) fn take(&mut self, wr_id: u64) -> Option<u16> {
        let at = self.taken;
        if at > self.mask {
            return None;
        }
        // SAFETY: `at` is below the number of ids, and the slot is one of the table.
        let id = unsafe {
            // The next generation of the slot. A queue of 65536 entries has one generation. That this
            // is done here, not when the id comes back, leaves a register to those who poll.
            let last = *self.free.add(at as usize).as_ref();
            let id = last.wrapping_add((self.mask + 1) as u16);
            *slot(self.slots.as_ptr(), self.mask, id) = Slot {
                wr_id,
                request: id.into(),
            };
            id
        };
        self.taken = at + 1;
        Some(id)
    }

    /// Those of them that were taken before the batch that is being built.
    #[inline(always)]
    pub(super) fn begin(&self) -> u32 {
        self.begin
    }

    /// The batch was posted.
    #[inline(always)]
    pub(super) fn end_batch(&mut self) {
        self.begin = self.taken;
    }

    /// Gives the ids of the batch back, which was not posted.
    pub(super) fn undo_batch(&mut self) {
        while self.taken > self.begin {
            self.taken -= 1;
            // SAFETY: `taken` was at most the number of ids, and the slot is one of the table.
            unsafe {
                let id = *self.free.add(self.taken as usize).as_ref();
                (*slot(self.slots.as_ptr(), self.mask, id)).request = FREE;
            }
        }
    }

    /// For giving ids back one after the other. Those of a batch that is being built are not among
    /// them: end or undo it first.
    #[inline(always)]
    pub(super) fn returns(&mut self) -> Returns<'_> {
        Returns {
            slots: self.slots.as_ptr(),
            free: self.free.as_ptr(),
            mask: self.mask,
            taken: self.taken,
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

/// Gives ids back. What changes with each is in here, so that it stays in registers; it is put back
/// on drop.
pub(super) struct Returns<'a> {
    slots: *mut Slot,
    free: *mut u16,
    mask: u32,
    taken: u32,
    ids: &'a mut Ids,
}

impl Returns<'_> {
    /// The caller's id of a request that is in flight, which then is no more. `None` for an id that
    /// is not in flight.
    #[inline(always)]
    pub(super) fn give(&mut self, id: u16) -> Option<u64> {
        let slot = slot(self.slots, self.mask, id);
        // SAFETY: it is a slot of the table of `ids`, which is exclusively borrowed. It has a request,
        // so at least one id is taken, and the count stays inside the stack.
        unsafe {
            if (*slot).request != u32::from(id) {
                return None;
            }
            (*slot).request = FREE;
            self.taken = self.taken.wrapping_sub(1);
            *self.free.add(self.taken as usize) = id;
            Some((*slot).wr_id)
        }
    }
}

impl Drop for Returns<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.ids.taken = self.taken;
        self.ids.begin = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    impl Ids {
        pub(in super::super) fn give(&mut self, id: u16) -> Option<u64> {
            self.returns().give(id)
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
        ids.end_batch();
        let taken = (ids.take(2).unwrap(), ids.take(3).unwrap());
        ids.undo_batch();
        assert_eq!(ids.taken(), 1);
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
                assert_eq!(ids.taken() as usize, flying.len());
            }
        }
    }
}
