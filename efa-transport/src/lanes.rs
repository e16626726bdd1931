//! Lanes: the peer and the memory that operations of one request share.
//!
//! Short operations come in runs with one peer and one region. All of a run that are under way are
//! in one lane, which keeps the region alive for them: a clone and a count per run, where a clone per
//! operation would take two atomic instructions each. With its last operation goes its clone. The lane
//! that was made for a peer last then rests, since it is likely to be wanted again, unless many do
//! already; others are free.

use std::mem;

use crate::ops::NONE;
use crate::peers::PeerId;

/// What keeps memory alive.
pub(crate) trait Memory: Clone {
    /// Whether both keep the same alive.
    fn is(&self, other: &Self) -> bool;
}

/// One lane.
#[derive(Debug)]
struct Lane<M> {
    /// None where the lane is free.
    peer: Option<PeerId>,
    /// None where bytes were copied when they were posted, and where nobody is in the lane.
    memory: Option<M>,
    /// Operations in it. In a free lane: the next free one.
    count: u32,
    /// It is the one that its peer knows, and may rest when nobody is in it: it is not free then.
    known: bool,
}

/// Lanes that rest at most, 24 KiB of them: what peers that are silent cost is bounded. A peer whose
/// lane does not rest gets a free one, which takes longer.
const MOST_RESTING: u32 = 1024;

/// All lanes of an endpoint: as many as there ever were at once, and those that rest.
#[derive(Debug)]
pub(crate) struct Lanes<M> {
    lanes: Vec<Lane<M>>,
    free: u32,
    resting: u32,
    most_resting: u32,
}

impl<M: Memory> Lane<M> {
    /// Whether this is its memory.
    #[inline(always)]
    fn has(&self, memory: Option<&M>) -> bool {
        match (&self.memory, memory) {
            (Some(ours), Some(theirs)) => ours.is(theirs),
            (None, None) => true,
            _ => false,
        }
    }
}

impl<M: Memory> Lanes<M> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            free: NONE,
            resting: 0,
            most_resting: MOST_RESTING,
        }
    }

    /// A lane with this peer and this memory: the one that the peer knows, or `before`, or a new one,
    /// which the peer knows from now on. Once the caller has said who [`join`](Self::join)s it, it lives
    /// for as long as anybody is in it.
    pub(crate) fn open(
        &mut self,
        known: &mut u32,
        before: u32,
        peer: PeerId,
        memory: Option<&M>,
    ) -> u32 {
        if self.open_known(*known, peer, memory) {
            return *known;
        }
        if self.is(before, peer, memory) {
            return before;
        }
        self.open_new(known, peer, memory)
    }

    /// Whether somebody is in a lane with this peer and this memory.
    #[inline(always)]
    pub(crate) fn is(&self, at: u32, peer: PeerId, memory: Option<&M>) -> bool {
        let lane = self.lanes.get(at as usize);
        lane.is_some_and(|lane| lane.peer == Some(peer) && lane.count != 0 && lane.has(memory))
    }

    /// Whether the lane that this peer knows, or knew, will do: it has this memory, or rests.
    #[inline(always)]
    pub(crate) fn open_known(&mut self, known: u32, peer: PeerId, memory: Option<&M>) -> bool {
        let Some(lane) = self.lanes.get_mut(known as usize) else {
            return false;
        };
        if lane.peer != Some(peer) {
            return false; // it did not rest, and somebody else has it
        }
        if lane.count != 0 {
            return lane.has(memory);
        }
        self.resting -= 1;
        // A lane that rests keeps nothing, so there is nothing to drop: say so.
        mem::forget(mem::replace(&mut lane.memory, memory.cloned()));
        true
    }

    fn open_new(&mut self, known: &mut u32, peer: PeerId, memory: Option<&M>) -> u32 {
        // First: what it knew may be the lane that it gets now.
        self.forget(*known, peer);
        let lane = Lane {
            peer: Some(peer),
            memory: memory.cloned(),
            count: 0,
            known: true,
        };
        let at = match self.lanes.get_mut(self.free as usize) {
            Some(free) => {
                let at = mem::replace(&mut self.free, free.count);
                *free = lane;
                at
            }
            None => {
                self.lanes.push(lane);
                self.lanes.len() as u32 - 1
            }
        };
        *known = at;
        at
    }

    /// A lane is not the one that this peer knows any more, if it was.
    pub(crate) fn forget(&mut self, at: u32, peer: PeerId) {
        if let Some(lane) = self.lanes.get_mut(at as usize)
            && lane.peer == Some(peer)
            && mem::take(&mut lane.known)
            && lane.count == 0
        {
            self.resting -= 1;
            self.end(at);
        }
    }

    /// So many more operations are in a lane. Without any, it ends.
    #[inline]
    pub(crate) fn join(&mut self, at: u32, count: u32) {
        if let Some(lane) = self.lanes.get_mut(at as usize) {
            debug_assert!(lane.peer.is_some(), "a free lane");
            lane.count += count;
            if lane.count == 0 {
                self.end(at);
            }
        }
    }

    /// So many operations of a lane are over.
    #[inline]
    pub(crate) fn leave(&mut self, at: u32, count: u32) {
        if let Some(lane) = self.lanes.get_mut(at as usize) {
            debug_assert!(lane.peer.is_some(), "a free lane");
            lane.count -= count;
            if lane.count == 0 {
                self.end(at);
            }
        }
    }

    /// Nobody is in a lane: it rests, or is free.
    #[inline(never)]
    fn end(&mut self, at: u32) {
        let lane = &mut self.lanes[at as usize];
        lane.memory = None;
        if lane.known && self.resting < self.most_resting {
            self.resting += 1;
        } else {
            (lane.peer, lane.known) = (None, false);
            lane.count = self.free;
            self.free = at;
        }
    }

    /// As if there were so few that this is the most that rest.
    #[cfg(test)]
    pub(crate) fn rest_at_most(&mut self, most: u32) {
        self.most_resting = most;
    }

    /// Checks what must always be true. `known` are peers and the lanes that they know.
    #[cfg(test)]
    pub(crate) fn audit(&self, known: impl Iterator<Item = (PeerId, u32)>) {
        let mut free = std::collections::HashSet::new();
        let mut at = self.free;
        while let Some(lane) = self.lanes.get(at as usize) {
            assert!(lane.peer.is_none() && lane.memory.is_none() && !lane.known);
            assert!(free.insert(at), "a lane is free twice");
            at = lane.count;
        }
        let rests = |lane: &&Lane<M>| lane.peer.is_some() && lane.count == 0;
        let resting = self.lanes.iter().filter(rests);
        assert!(
            resting
                .clone()
                .all(|lane| lane.known && lane.memory.is_none())
        );
        assert_eq!(resting.count() as u32, self.resting);
        assert!(self.resting <= self.most_resting);
        let known: std::collections::HashMap<_, _> = known.collect();
        for (at, lane) in self.lanes.iter().enumerate() {
            assert_eq!(lane.peer.is_none(), free.contains(&(at as u32)));
            if let Some(peer) = lane.peer {
                assert_eq!(lane.known, known.get(&peer) == Some(&(at as u32)));
            }
        }
    }

    /// The peer of the operations in a lane.
    pub(crate) fn peer(&self, at: u32) -> Option<PeerId> {
        self.lanes.get(at as usize)?.peer
    }

    /// What keeps their memory.
    pub(crate) fn memory(&self, at: u32) -> Option<M> {
        self.lanes.get(at as usize)?.memory.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn memory_stays_until_the_last_operation_of_its_lane_is_over() {
        let mut lanes = Lanes::new();
        let (peer, memory, mut known) = (PeerId::new(0, 1), Rc::new(0), NONE);
        let lane = lanes.open(&mut known, NONE, peer, Some(&memory));
        assert_eq!(known, lane);
        lanes.join(lane, 2);
        assert_eq!(lanes.open(&mut known, NONE, peer, Some(&memory)), lane);
        lanes.join(lane, 1);
        lanes.leave(lane, 2);
        assert_eq!(Rc::strong_count(&memory), 2);
        lanes.leave(lane, 1);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn another_peer_or_other_memory_is_another_lane() {
        let mut lanes = Lanes::new();
        let (peer, memory, mut known) = (PeerId::new(0, 1), Rc::new(0), NONE);
        let first = lanes.open(&mut known, NONE, peer, Some(&memory));
        lanes.join(first, 1);
        for (peer, memory) in [
            (PeerId::new(0, 1), Some(&Rc::new(0))),
            (PeerId::new(0, 1), None),
            (PeerId::new(0, 2), Some(&memory)),
        ] {
            let mut known = if peer == PeerId::new(0, 1) {
                known
            } else {
                NONE
            };
            let other = lanes.open(&mut known, first, peer, memory);
            assert_ne!(other, first);
            assert_eq!(lanes.peer(other), Some(peer));
            assert_eq!(lanes.memory(other).is_some(), memory.is_some());
            lanes.join(other, 1);
        }
    }

    #[test]
    fn those_who_take_turns_come_back_to_their_lanes() {
        let mut lanes = Lanes::new();
        let (peer, mut known) = (PeerId::new(0, 1), NONE);
        let (one, two) = (Rc::new(1), Rc::new(2));
        let first = lanes.open(&mut known, NONE, peer, Some(&one));
        lanes.join(first, 1);
        let second = lanes.open(&mut known, NONE, peer, Some(&two));
        lanes.join(second, 1);
        assert_eq!(lanes.open(&mut known, first, peer, Some(&one)), first);
        lanes.join(first, 1);
        assert_eq!(lanes.open(&mut known, first, peer, Some(&two)), second);
        // Only the one that is known rests; the other can be used by anybody.
        assert_eq!(known, second);
        lanes.leave(first, 2);
        assert_eq!(lanes.peer(first), None);
        lanes.leave(second, 1);
        assert_eq!(lanes.peer(second), Some(peer));
        assert_eq!((Rc::strong_count(&one), Rc::strong_count(&two)), (1, 1));
        assert_eq!(lanes.open(&mut known, first, peer, Some(&one)), second);
        assert_eq!(Rc::strong_count(&one), 2);
    }

    #[test]
    fn a_lane_that_nobody_joined_is_used_again() {
        let mut lanes = Lanes::new();
        let (memory, mut known) = (Rc::new(0), NONE);
        let unused = lanes.open(&mut known, NONE, PeerId::new(0, 1), Some(&memory));
        lanes.join(unused, 0);
        assert_eq!(Rc::strong_count(&memory), 1);
        lanes.forget(known, PeerId::new(0, 1));
        assert_eq!(lanes.peer(unused), None);
        let next = lanes.open(&mut NONE.clone(), unused, PeerId::new(1, 1), None);
        assert_eq!(next, unused);
    }

    #[test]
    fn a_lane_that_is_forgotten_is_free_when_nobody_is_in_it() {
        let mut lanes = Lanes::new();
        let (memory, mut known) = (Rc::new(0), NONE);
        let lane = lanes.open(&mut known, NONE, PeerId::new(0, 1), Some(&memory));
        lanes.join(lane, 1);
        lanes.forget(known, PeerId::new(0, 1));
        assert_eq!(lanes.peer(lane), Some(PeerId::new(0, 1)));
        lanes.leave(lane, 1);
        assert_eq!((lanes.peer(lane), Rc::strong_count(&memory)), (None, 1));
    }

    #[test]
    fn peers_that_are_silent_keep_no_lanes_above_a_number() {
        let mut lanes = Lanes::new();
        let memory = Rc::new(0);
        let mut known = vec![NONE; 10_000];
        for round in 0..2 {
            for (index, known) in (0..).zip(&mut known) {
                let lane = lanes.open(known, NONE, PeerId::new(index, 1), Some(&memory));
                lanes.join(lane, 1);
                assert_eq!(lanes.peer(lane), Some(PeerId::new(index, 1)), "{round}");
                lanes.leave(lane, 1);
            }
        }
        assert!(lanes.lanes.len() <= MOST_RESTING as usize + 1);
        assert_eq!(Rc::strong_count(&memory), 1);
        // A lane that somebody else has now is nobody's to forget.
        let before = lanes.resting;
        for (index, known) in (MOST_RESTING..).zip(&known[MOST_RESTING as usize..]) {
            lanes.forget(*known, PeerId::new(index, 1));
        }
        assert_eq!(lanes.resting, before);
        lanes.audit(
            (0..)
                .zip(&known)
                .map(|(index, known)| (PeerId::new(index, 1), *known)),
        );
    }
}
