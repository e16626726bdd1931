//! Request ids: which request a completion belongs to.
//!
//! The device gives back 16 bits. The low ones, as many as the queue's depth needs, are a slot in
//! a table that holds the caller's id; the rest are a generation, different each time that the
//! slot is used. Free ids wait in a ring, first in, first out, so that a slot rests as long as
//! possible before it is used again. That ring needs no counters of its own: an id is taken with
//! each entry posted and given back with each completion.

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
    /// The ids to use next, at the position of their entry in the queue.
    next: Box<[u16]>,
    slots: Box<[Slot]>,
    /// Entries in the queue, less one. Both tables have as many.
    mask: u32,
    /// Requests ever taken, modulo 2^32; at the same time the queue's producer count.
    taken: u32,
    /// Requests ever given back.
    returned: u32,
}

impl Ids {
    /// `entries` is a power of two up to 65536.
    pub(super) fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two() && entries <= 1 << 16);
        Self {
            next: (0..entries).map(|id| id as u16).collect(),
            slots: vec![
                Slot {
                    wr_id: 0,
                    request: FREE
                };
                entries as usize
            ]
            .into(),
            mask: entries - 1,
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
        let position = (self.taken & self.mask) as usize;
        // SAFETY: both tables have `mask + 1` entries, and both indexes are masked.
        let id = unsafe { *self.next.get_unchecked(position) };
        // SAFETY: as above.
        let slot = unsafe {
            self.slots
                .get_unchecked_mut((u32::from(id) & self.mask) as usize)
        };
        *slot = Slot {
            wr_id,
            request: u32::from(id),
        };
        self.taken = self.taken.wrapping_add(1);
        Some(id)
    }

    /// Gives back what was taken last, `count` times: a batch that was not posted.
    pub(super) fn untake(&mut self, count: u32) {
        debug_assert!(count <= self.in_flight());
        for _ in 0..count {
            self.taken = self.taken.wrapping_sub(1);
            // The id is still at its position: positions ahead of `returned` are not written.
            let id = self.next[(self.taken & self.mask) as usize];
            self.slots[(u32::from(id) & self.mask) as usize].request = FREE;
        }
    }

    /// The caller's id of a request that is in flight, which then is no more. `None` for an id that
    /// is not in flight.
    #[inline(always)]
    pub(super) fn give(&mut self, id: u16) -> Option<u64> {
        // SAFETY: the table has `mask + 1` entries, and the index is masked.
        let slot = unsafe {
            self.slots
                .get_unchecked_mut((u32::from(id) & self.mask) as usize)
        };
        if slot.request != u32::from(id) {
            return None;
        }
        slot.request = FREE;
        let wr_id = slot.wr_id;
        let position = (self.returned & self.mask) as usize;
        // The next generation of the same slot. A queue of 65536 entries has one generation.
        // SAFETY: as above.
        unsafe {
            *self.next.get_unchecked_mut(position) =
                id.wrapping_add(self.mask.wrapping_add(1) as u16);
        }
        self.returned = self.returned.wrapping_add(1);
        Some(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn an_id_is_a_slot_and_a_generation() {
        let mut ids = Ids::new(4);
        assert_eq!((ids.take(10), ids.take(11)), (Some(0), Some(1)));
        assert_eq!(ids.give(0), Some(10));
        assert_eq!(ids.give(0), None, "a second completion of the same request");
        assert_eq!(ids.give(4), None, "the generation to come");
        assert_eq!(
            (ids.take(12), ids.take(13), ids.take(14)),
            (Some(2), Some(3), Some(4))
        );
        assert_eq!(ids.take(15), None, "full");
        assert_eq!(ids.give(0), None, "the generation before");
        assert_eq!(ids.give(4), Some(14));
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
        ids.untake(2);
        assert_eq!(ids.in_flight(), 1);
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
