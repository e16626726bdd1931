//! Lanes: the peer and the memory that operations of one request share.
//!
//! Short operations come in runs with one peer and one region. All of a run that are under way are
//! in one lane, which keeps the region alive for them: a clone and a count per run, where a clone per
//! operation would take two atomic instructions each. A lane ends with its last operation, and with
//! it goes its clone.

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
    /// None where bytes were copied when they were posted.
    memory: Option<M>,
    /// Operations in it. In a free lane: the next free one.
    count: u32,
}

/// All lanes of an endpoint: as many as there ever were at once.
#[derive(Debug)]
pub(crate) struct Lanes<M> {
    lanes: Vec<Lane<M>>,
    free: u32,
}

impl<M: Memory> Lanes<M> {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            free: NONE,
        }
    }

    /// A lane with this peer and this memory: one of `known`, or a new one. Once the caller has said
    /// who [`join`](Self::join)s it, it lives for as long as anybody is in it.
    #[inline(always)]
    pub(crate) fn open(&mut self, known: [u32; 2], peer: PeerId, memory: Option<&M>) -> u32 {
        if let Some(at) = known.into_iter().find(|&at| self.is(at, peer, memory)) {
            return at;
        }
        let at = self.free;
        match self.lanes.get_mut(at as usize) {
            Some(lane) => {
                lane.peer = Some(peer);
                // A free lane keeps nothing, so there is nothing to drop: say so.
                mem::forget(mem::replace(&mut lane.memory, memory.cloned()));
                self.free = mem::take(&mut lane.count);
                at
            }
            None => self.grow(peer, memory),
        }
    }

    #[cold]
    fn grow(&mut self, peer: PeerId, memory: Option<&M>) -> u32 {
        self.lanes.push(Lane {
            peer: Some(peer),
            memory: memory.cloned(),
            count: 0,
        });
        self.lanes.len() as u32 - 1
    }

    /// Whether a lane has this peer and this memory.
    #[inline(always)]
    fn is(&self, at: u32, peer: PeerId, memory: Option<&M>) -> bool {
        self.lanes.get(at as usize).is_some_and(|lane| {
            lane.peer == Some(peer)
                && match (&lane.memory, memory) {
                    (Some(ours), Some(theirs)) => ours.is(theirs),
                    (None, None) => true,
                    _ => false,
                }
        })
    }

    /// So many more operations are in a lane. Without any, it ends.
    #[inline]
    pub(crate) fn join(&mut self, at: u32, count: u32) {
        if let Some(lane) = self.lanes.get_mut(at as usize) {
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
            lane.count -= count;
            if lane.count == 0 {
                self.end(at);
            }
        }
    }

    #[inline(never)]
    fn end(&mut self, at: u32) {
        let lane = &mut self.lanes[at as usize];
        lane.peer = None;
        lane.memory = None;
        lane.count = self.free;
        self.free = at;
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
        let (peer, memory) = (PeerId::new(0, 1), Rc::new(0));
        let lane = lanes.open([NONE; 2], peer, Some(&memory));
        lanes.join(lane, 2);
        assert_eq!(lanes.open([NONE, lane], peer, Some(&memory)), lane);
        lanes.join(lane, 1);
        lanes.leave(lane, 2);
        assert_eq!(Rc::strong_count(&memory), 2);
        lanes.leave(lane, 1);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn another_peer_or_other_memory_is_another_lane() {
        let mut lanes = Lanes::new();
        let (peer, memory) = (PeerId::new(0, 1), Rc::new(0));
        let first = lanes.open([NONE; 2], peer, Some(&memory));
        lanes.join(first, 1);
        for (peer, memory) in [
            (PeerId::new(0, 2), Some(&memory)),
            (PeerId::new(0, 1), Some(&Rc::new(0))),
            (PeerId::new(0, 1), None),
        ] {
            let other = lanes.open([first, NONE], peer, memory);
            assert_ne!(other, first);
            assert_eq!(lanes.peer(other), Some(peer));
            assert_eq!(lanes.memory(other).is_some(), memory.is_some());
            lanes.join(other, 1);
        }
    }

    #[test]
    fn a_lane_that_nobody_joined_is_used_again() {
        let mut lanes = Lanes::new();
        let memory = Rc::new(0);
        let unused = lanes.open([NONE; 2], PeerId::new(0, 1), Some(&memory));
        lanes.join(unused, 0);
        assert_eq!(Rc::strong_count(&memory), 1);
        assert_eq!(lanes.peer(unused), None);
        let next = lanes.open([unused; 2], PeerId::new(1, 1), None);
        assert_eq!(next, unused);
    }
}
