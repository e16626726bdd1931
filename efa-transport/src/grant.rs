//! Grants: how many unsolicited immediates may be on their way to a peer.
//!
//! A write with immediate data that uses up no posted receive makes a completion at the
//! peer, and nothing protects its completion queue from overrun. So every peer that it shook
//! hands with has a *slot* in a table of the receiver's, in memory that peers may read: who
//! it belongs to (an incarnation), and how many of that peer's immediates have been taken out
//! of the completion queue. The sender never has more outstanding than was granted, and
//! reads its slot when it runs low. That needs no message from the receiver, and no order
//! among reads: the count only grows.
//!
//! The table has as many slots as there is room for grants, so all senders together can't
//! overrun the queue. A peer that finds no slot of its own may not send immediates. A
//! program that connects without the handshake has no grant and no limit, and one that is
//! none of ours may do as it likes: the receiver counts what comes without a grant
//! ([`Stats::ungranted`](crate::Stats::ungranted)).
//!
//! A connection may end on one side only, and begin again. So the count is read as a difference: to
//! what was found first, by a sender that comes back to its slot, and to what was found when the
//! slot was opened anew, which the count's upper bits tell, by one that was disconnected.
//!
//! An immediate whose request failed without a word of the peer may have arrived or not. It is
//! counted as outstanding until the peer's count says otherwise. When all that were granted have
//! gone that way, those that wait fail, because nothing may ever come to let them go on.

use crate::failure::FailureKind;
use crate::remote::RemoteRegion;

/// Bytes of a slot: incarnation, and number taken, both little-endian.
pub(crate) const SLOT: u64 = 16;
/// The bits of the number that count; those above tell one opening of a slot from another.
const COUNT_BITS: u32 = 48;

/// Which slot of the peer's table is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not looked up yet.
    Unknown,
    /// None of them.
    Nowhere,
    At(u32),
}

/// What an inquiry found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It could not be made now.
    Nothing,
    /// The read failed, and so would what waits.
    Failed(FailureKind),
    /// No slot is ours.
    NoSlot,
    /// Ours, and how many have been taken.
    Taken(u32, u64),
}

/// What one peer has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The peer's entry.
    pub(crate) peer: u32,
    /// Tells this grant from others that had its index.
    pub(crate) serial: u32,
    table: RemoteRegion,
    limit: u32,
    place: Place,
    /// Posted since the connection was made.
    sent: u64,
    /// Of those, the ones that are known to have been taken.
    taken: u64,
    /// Of the others, those that failed and may have arrived; at most so many.
    doubtful: u64,
    /// The peer's count when it was first seen, and `taken` at that time.
    base: Option<(u64, u64)>,
    /// `sent` at the last handshake.
    met: u64,
    /// `sent` at the last inquiry, so that none is made twice for nothing.
    asked_at: u64,
    asking: bool,
    /// Somebody was refused.
    wanted: bool,
    /// It is on the flow's list.
    pub(crate) listed: bool,
}

impl Grant {
    pub(crate) fn new(peer: u32, serial: u32, limit: u32, table: RemoteRegion) -> Self {
        Self {
            peer,
            serial,
            table,
            limit,
            place: Place::Unknown,
            sent: 0,
            taken: 0,
            doubtful: 0,
            base: None,
            met: 0,
            asked_at: 0,
            asking: false,
            wanted: false,
            listed: false,
        }
    }

    /// Takes one; false where none is left.
    pub(crate) fn take(&mut self) -> bool {
        let known = matches!(self.place, Place::At(_));
        if !known || self.sent - self.taken >= self.limit.into() {
            self.wanted = true;
            return false;
        }
        self.sent += 1;
        true
    }

    /// Gives one back that never arrived.
    pub(crate) fn give_back(&mut self) {
        self.sent = self.sent.saturating_sub(1).max(self.taken);
        self.asked_at = self.asked_at.min(self.sent);
    }

    /// Another handshake with the same peer: it may have opened another slot.
    pub(crate) fn met_again(&mut self) {
        self.met = self.sent;
    }

    /// One failed, and nobody knows whether it arrived.
    pub(crate) fn doubt(&mut self) {
        self.doubtful += 1;
    }

    /// Whether it is time to ask: somebody waits, or half of the grant is used.
    pub(crate) fn wants_inquiry(&self) -> bool {
        if self.asking {
            return false;
        }
        let low = (self.sent - self.taken) * 2 >= self.limit.into() && self.limit > 0;
        self.wanted || (low && self.sent > self.asked_at)
    }

    /// What to read: our slot, or the whole table to find it.
    pub(crate) fn begin_inquiry(&mut self) -> RemoteRegion {
        self.asking = true;
        self.asked_at = self.sent;
        let slot = match self.place {
            Place::At(slot) => u64::from(slot) * SLOT,
            _ => return self.table,
        };
        self.table.slice(slot..slot + SLOT).unwrap_or(self.table)
    }

    /// What an inquiry reads: the first slot, and the bytes.
    pub(crate) fn inquiry(&self) -> (u32, u64) {
        match self.place {
            Place::At(slot) => (slot, SLOT),
            _ => (0, self.table.len()),
        }
    }

    /// The inquiry has ended. True where more may be sent than before.
    pub(crate) fn end_inquiry(&mut self, found: Found) -> bool {
        self.asking = false;
        let (slot, count) = match found {
            Found::Nothing => return false,
            Found::Failed(_) => {
                self.wanted = false;
                return false;
            }
            Found::NoSlot => {
                self.place = Place::Nowhere;
                self.wanted = false;
                return false;
            }
            Found::Taken(slot, count) => (slot, count),
        };
        self.place = Place::At(slot);
        match self.base {
            Some((base, taken)) if base >> COUNT_BITS == count >> COUNT_BITS => {
                let since = taken.saturating_add(count.saturating_sub(base));
                // A count beyond what was sent is another's, or damaged.
                self.taken = since.clamp(self.taken, self.sent);
            }
            // The slot was opened anew. What was outstanding before is nobody's any more.
            Some(_) => {
                let opened = count >> COUNT_BITS << COUNT_BITS;
                self.base = Some((opened, self.met));
                let since = self.met.saturating_add(count - opened);
                self.taken = since.clamp(self.taken, self.sent);
            }
            // Nothing has been sent. The peer may know us from before.
            None => self.base = Some((count, self.taken)),
        }
        self.doubtful = self.doubtful.min(self.sent - self.taken);
        let some = self.sent - self.taken < self.limit.into();
        if some {
            self.wanted = false;
        }
        some
    }

    /// Whether no more can be hoped for: the peer has no slot for us, or all that it granted
    /// may have been lost.
    pub(crate) fn is_denied(&self) -> bool {
        self.place == Place::Nowhere || self.doubtful >= self.limit.into()
    }

    /// Asks again after a denial: a slot may have become free.
    pub(crate) fn ask_anew(&mut self) {
        if self.place == Place::Nowhere {
            self.place = Place::Unknown;
            self.wanted = true;
        }
    }
}

/// Finds our slot in what was read of a table, of which the first slot has this index.
pub(crate) fn find(bytes: &[u8], first: u32, incarnation: u64) -> Found {
    for (i, slot) in bytes.chunks_exact(SLOT as usize).enumerate() {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&slot[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if word(0) == incarnation {
            return Found::Taken(first + i as u32, word(8));
        }
    }
    Found::NoSlot
}

/// Which slots of our own table are whose.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Vec<u32>,
    opened: u64,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            opened: 0,
        }
    }

    /// A free slot, and the number that its count begins with.
    pub(crate) fn take(&mut self) -> Option<(u32, u64)> {
        let slot = self.free.pop()?;
        self.opened += 1;
        Some((slot, self.opened << COUNT_BITS))
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot));
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grant(limit: u32) -> Grant {
        Grant::new(0, 0, limit, RemoteRegion::new(4096, 64, 1).unwrap())
    }

    fn table(slots: &[(u64, u64)]) -> Vec<u8> {
        slots
            .iter()
            .flat_map(|&(who, taken)| [who.to_le_bytes(), taken.to_le_bytes()])
            .flatten()
            .collect()
    }

    #[test]
    fn the_first_thing_is_to_find_ones_slot() {
        let mut grant = grant(2);
        assert!(!grant.take());
        assert!(grant.wants_inquiry());
        assert_eq!(grant.begin_inquiry().len(), 64);
        assert!(!grant.wants_inquiry());
        let bytes = table(&[(1, 9), (0, 0), (7, 0)]);
        assert!(grant.end_inquiry(find(&bytes, 0, 7)));
        assert!(grant.take() && grant.take() && !grant.take());
        let slot = grant.begin_inquiry();
        assert_eq!((slot.addr(), slot.len()), (4096 + 32, 16));
        assert!(grant.end_inquiry(find(&table(&[(7, 1)]), 2, 7)));
        assert!(grant.take() && !grant.take());
    }

    #[test]
    fn without_a_slot_nothing_may_be_sent() {
        let mut grant = grant(2);
        assert!(!grant.take());
        grant.begin_inquiry();
        assert!(!grant.end_inquiry(find(&table(&[(1, 0)]), 0, 7)));
        assert!(grant.is_denied());
        assert!(!grant.take());
        grant.ask_anew();
        assert!(grant.wants_inquiry());
    }

    #[test]
    fn an_inquiry_that_could_not_be_made_is_repeated_and_one_that_failed_is_not() {
        let mut grant = grant(1);
        grant.take();
        grant.begin_inquiry();
        assert!(!grant.end_inquiry(Found::Nothing));
        assert!(grant.wants_inquiry());
        grant.begin_inquiry();
        assert!(!grant.end_inquiry(Found::Failed(FailureKind::Device { vendor_status: 9 })));
        assert!(!grant.wants_inquiry());
    }

    #[test]
    fn a_count_of_an_earlier_connection_is_not_ours() {
        let mut grant = grant(2);
        grant.take();
        grant.begin_inquiry();
        assert!(grant.end_inquiry(Found::Taken(0, 100)));
        assert!(grant.take() && grant.take() && !grant.take());
        assert!(!grant.end_inquiry(Found::Taken(0, 100)));
        assert!(grant.end_inquiry(Found::Taken(0, 101)));
        assert!(grant.take() && !grant.take());
        // The slot was closed and opened: the count begins anew.
        grant.met_again();
        assert!(grant.end_inquiry(Found::Taken(1, 1 << COUNT_BITS)));
        assert!(grant.take() && grant.take() && !grant.take());
        assert!(!grant.end_inquiry(Found::Taken(1, 1 << COUNT_BITS)));
        assert!(grant.end_inquiry(Found::Taken(1, (1 << COUNT_BITS) + 1)));
        assert!(grant.take() && !grant.take());
        // Some were sent before the new count was seen.
        assert!(grant.end_inquiry(Found::Taken(1, (1 << COUNT_BITS) + 3)));
        grant.met_again();
        assert!(grant.take() && grant.take() && !grant.take());
        assert!(grant.end_inquiry(Found::Taken(1, (2 << COUNT_BITS) + 1)));
        assert!(grant.take() && !grant.take());
    }

    #[test]
    fn when_all_may_be_lost_nothing_more_is_hoped_for_until_the_count_moves() {
        let mut grant = grant(2);
        grant.take();
        grant.end_inquiry(Found::Taken(0, 0));
        assert!(grant.take() && grant.take());
        grant.doubt();
        assert!(!grant.is_denied());
        grant.doubt();
        assert!(!grant.end_inquiry(Found::Taken(0, 0)));
        assert!(grant.is_denied());
        assert!(grant.end_inquiry(Found::Taken(0, 1)));
        assert!(!grant.is_denied() && grant.take());
    }

    proptest! {
        /// A peer with a queue of its own: whatever the interleaving, it never holds more
        /// than was granted, and the sender never stops for good.
        #[test]
        fn the_peers_queue_never_holds_more_than_the_grant(
            limit in 1u32..10,
            steps in prop::collection::vec(0u8..8, 0..500),
        ) {
            let mut grant = grant(limit);
            let (mut flying, mut queue, mut taken) = (0u64, 0u64, 0u64);
            let mut reading: Option<Option<u64>> = None;
            for step in steps {
                match step {
                    0..=2 => if grant.take() { flying += 1; },
                    3 => if flying > 0 { flying -= 1; queue += 1; },
                    4 => { taken += queue; queue = 0; }
                    5 => if grant.wants_inquiry() {
                        grant.begin_inquiry();
                        reading = Some(None);
                    },
                    // A read sees the count at some moment between its two ends.
                    6 => if let Some(value @ None) = &mut reading { *value = Some(taken); },
                    _ => if let Some(Some(value)) = reading {
                        grant.end_inquiry(Found::Taken(3, value));
                        reading = None;
                    },
                }
                prop_assert!(flying + queue <= u64::from(limit));
            }
            taken += flying + queue;
            if reading.is_some() { grant.end_inquiry(Found::Nothing); }
            if !grant.take() {
                prop_assert!(grant.wants_inquiry());
                grant.begin_inquiry();
                grant.end_inquiry(Found::Taken(3, taken));
                prop_assert!(grant.take());
            }
        }
    }
}
