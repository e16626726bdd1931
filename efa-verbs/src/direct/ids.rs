//! Request ids: which request a completion belongs to.
//!
//! The device gives back 16 bits. The low ones, as many as the queue's depth needs, are a slot in
//! a table that holds the caller's id; the rest are a generation, different each time that the
//! slot is used, so that a second completion of a request is not taken for that of the next one.
//! Free ids are a stack, whose used part is as long as requests are in flight: one count serves as
//! that number, as the place of the next free id, and as the check that there is one. Last in, first
//! out: the slots in use are those that are in the cache.

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
    /// A power of two of slots. As many of them as `taken` says have a request.
    slots: Box<[Slot]>,
    /// As many ids. Those from `taken` on are the last ones of slots without a request, each slot once.
    free: Box<[u16]>,
    /// The number of slots, less one.
    mask: u32,
    /// Ids that are taken.
    taken: u32,
    /// Those of them that were taken before the batch that is being built.
    begin: u32,
}

impl Ids {
    /// `entries` is a power of two up to 65536.
    pub(super) fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && entries <= 1 << 16);
        let slot = Slot {
            wr_id: 0,
            request: FREE,
        };
        Self {
            slots: vec![slot; entries as usize].into(),
            // The generation before the first one.
            free: (0..entries)
                .map(|slot| (slot as u16).wrapping_sub(entries as u16))
                .collect(),
            mask: entries - 1,
            taken: 0,
            begin: 0,
        }
    }

    /// Entries of the queue, less one.
    #[inline]
    pub(super) fn mask(&self) -> u32 {
        self.mask
    }

    /// Ids that are taken.
    #[inline]
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Those of them that were taken before the batch that is being built.
    #[inline]
    pub(super) fn begin(&self) -> u32 {
        self.begin
    }

    /// Takes an id; `None` when the queue is full.
    #[inline]
    pub(super) fn take(&mut self, wr_id: u64) -> Option<u16> {
        let last = *self.free.get(self.taken as usize)?;
        // The next generation of the slot. A queue of 65536 entries has one generation.
        let id = last.wrapping_add((self.mask + 1) as u16);
        *self.slot(id) = Slot {
            wr_id,
            request: id.into(),
        };
        self.taken += 1;
        Some(id)
    }

    /// For giving ids back one after the other. Those of a batch that is being built are not among
    /// them: end or undo it first.
    #[inline]
    pub(super) fn returns(&mut self) -> Returns<'_> {
        Returns {
            slots: &mut self.slots,
            free: &mut self.free,
            mask: self.mask,
            count: self.taken,
            taken: &mut self.taken,
            begin: &mut self.begin,
        }
    }

    /// The batch was posted.
    #[inline]
    pub(super) fn end_batch(&mut self) {
        self.begin = self.taken;
    }

    /// Gives the ids of the batch back, which was not posted.
    pub(super) fn undo_batch(&mut self) {
        while self.taken > self.begin {
            self.taken -= 1;
            let id = self.free[self.taken as usize];
            self.slot(id).request = FREE;
        }
    }

    #[inline]
    fn slot(&mut self, id: u16) -> &mut Slot {
        slot(&mut self.slots, self.mask, id)
    }
}

/// The slot of an id.
#[inline]
fn slot(slots: &mut [Slot], mask: u32, id: u16) -> &mut Slot {
    debug_assert_eq!(slots.len(), mask as usize + 1);
    // SAFETY: a masked index is below the number of slots, which `new` makes `mask + 1`. A check costs
    // 5 % of posting on the direct path.
    unsafe { slots.get_unchecked_mut((u32::from(id) & mask) as usize) }
}

/// Gives ids back. The new count is noted when this is dropped: a barrier between a completion and what
/// is read after it makes the compiler read again whatever is not a local variable.
pub(super) struct Returns<'a> {
    slots: &'a mut [Slot],
    free: &'a mut [u16],
    mask: u32,
    count: u32,
    taken: &'a mut u32,
    begin: &'a mut u32,
}

impl Returns<'_> {
    /// The caller's id of a request that is in flight, which then is no more. `None` for an id that
    /// is not in flight.
    #[inline]
    pub(super) fn give_back(&mut self, id: u16) -> Option<u64> {
        let slot = slot(self.slots, self.mask, id);
        if slot.request != u32::from(id) {
            return None;
        }
        slot.request = FREE;
        self.count = self.count.wrapping_sub(1);
        // SAFETY: as many slots have a request as there are ids taken, and this one had one: so the count
        // was above 0, and at most the number of ids. A check costs 7 % of polling on the direct path.
        unsafe { *self.free.get_unchecked_mut(self.count as usize) = id };
        Some(slot.wr_id)
    }
}

impl Drop for Returns<'_> {
    #[inline]
    fn drop(&mut self) {
        (*self.taken, *self.begin) = (self.count, self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn give_back(ids: &mut Ids, id: u16) -> Option<u64> {
        ids.returns().give_back(id)
    }

    #[test]
    fn an_id_is_a_slot_and_a_generation() {
        let mut ids = Ids::new(4);
        assert_eq!((ids.take(10), ids.take(11)), (Some(0), Some(1)));
        assert_eq!(give_back(&mut ids, 0), Some(10));
        assert_eq!(
            give_back(&mut ids, 0),
            None,
            "a second completion of the same request"
        );
        assert_eq!(give_back(&mut ids, 4), None, "the generation to come");
        assert_eq!(
            (ids.take(12), ids.take(13), ids.take(14)),
            (Some(4), Some(2), Some(3))
        );
        assert_eq!(ids.take(15), None, "full");
        assert_eq!(give_back(&mut ids, 0), None, "the generation before");
        assert_eq!(give_back(&mut ids, 4), Some(12));
        assert_eq!(give_back(&mut ids, 0xfffc), None);
    }

    #[test]
    fn the_largest_queue_has_room_for_all_its_ids() {
        let mut ids = Ids::new(1 << 16);
        for wr_id in 0..1 << 16 {
            assert_eq!(ids.take(wr_id), Some(wr_id as u16));
        }
        assert_eq!(ids.take(0), None);
        assert_eq!(give_back(&mut ids, 0xffff), Some(0xffff));
        assert_eq!(ids.take(7), Some(0xffff));
        assert_eq!(give_back(&mut ids, 0xffff), Some(7));
    }

    #[test]
    fn what_was_taken_back_can_be_taken_again() {
        let mut ids = Ids::new(4);
        ids.take(1).unwrap();
        ids.end_batch();
        let taken = (ids.take(2).unwrap(), ids.take(3).unwrap());
        ids.undo_batch();
        assert_eq!(ids.taken(), 1);
        assert_eq!(give_back(&mut ids, taken.0), None);
        assert_eq!((ids.take(4).unwrap(), ids.take(5).unwrap()), taken);
        assert_eq!(
            (give_back(&mut ids, taken.1), give_back(&mut ids, taken.0)),
            (Some(5), Some(4))
        );
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
                        assert_eq!(give_back(&mut ids, id), flying.remove(&id));
                    }
                    _ => assert_eq!(give_back(&mut ids, which), flying.remove(&which)),
                }
                assert_eq!(ids.taken() as usize, flying.len());
            }
        }
    }
}
