//! Whose turn it is: round robin over peers, and within a peer over its operations.
//!
//! Two rings share the send queue. *Fresh* operations have posted nothing yet;
//! *streams* have begun and have more requests to post than went in one go. The flow
//! ([`crate::flow`]) serves the rings alternately, and the credits' reserve is for
//! fresh ones alone.
//!
//! One visit posts at most `quantum` requests of one operation, then the operation goes
//! to the back of its peer's queue, and the peer to the back of the ring. Hence the
//! bound: an operation that is queued behind `k` fresh operations of its own peer,
//! while `p` peers have fresh operations, is served after at most `(k + 1) × p` fresh
//! visits. A fresh visit is followed by at most one visit to a stream, so no more than
//! `2 × quantum × (k + 1) × p` requests are posted before its first. The lengths of the
//! other operations don't matter.

const NONE: u32 = u32::MAX;

/// A queue of one peer's operations, and the peer's place in the ring.
#[derive(Clone, Copy, Debug)]
struct Lane {
    head: u32,
    tail: u32,
    /// Next peer in the ring; meaningful while the lane isn't empty.
    next: u32,
}

const EMPTY: Lane = Lane {
    head: NONE,
    tail: NONE,
    next: NONE,
};

/// One ring of peers that have operations waiting.
#[derive(Debug)]
struct Ring {
    lanes: Vec<Lane>,
    head: u32,
    tail: u32,
}

impl Ring {
    fn push(&mut self, links: &mut [u32], peer: u32, op: u32) {
        if self.lanes.len() <= peer as usize {
            self.lanes.resize(peer as usize + 1, EMPTY);
        }
        links[op as usize] = NONE;
        let lane = &mut self.lanes[peer as usize];
        if lane.head == NONE {
            lane.head = op;
            lane.tail = op;
            self.enter(peer);
        } else {
            links[lane.tail as usize] = op;
            lane.tail = op;
        }
    }

    fn enter(&mut self, peer: u32) {
        self.lanes[peer as usize].next = NONE;
        if self.head == NONE {
            self.head = peer;
        } else {
            self.lanes[self.tail as usize].next = peer;
        }
        self.tail = peer;
    }

    fn leave_front(&mut self) -> u32 {
        let peer = self.head;
        self.head = self.lanes[peer as usize].next;
        if self.head == NONE {
            self.tail = NONE;
        }
        peer
    }

    fn pop(&mut self, links: &[u32]) -> Option<u32> {
        if self.head == NONE {
            return None;
        }
        let peer = self.leave_front();
        let lane = &mut self.lanes[peer as usize];
        let op = lane.head;
        lane.head = links[op as usize];
        if lane.head == NONE {
            lane.tail = NONE;
        } else {
            self.enter(peer);
        }
        Some(op)
    }

    fn unlink_peer(&mut self, peer: u32) {
        let mut before = NONE;
        let mut at = self.head;
        while at != NONE && at != peer {
            before = at;
            at = self.lanes[at as usize].next;
        }
        if at == NONE {
            return;
        }
        let next = self.lanes[peer as usize].next;
        if before == NONE {
            self.head = next;
        } else {
            self.lanes[before as usize].next = next;
        }
        if self.tail == peer {
            self.tail = before;
        }
    }

    fn remove(&mut self, links: &mut [u32], peer: u32, op: u32) -> bool {
        let Some(lane) = self.lanes.get_mut(peer as usize) else {
            return false;
        };
        let mut before = NONE;
        let mut at = lane.head;
        while at != NONE && at != op {
            before = at;
            at = links[at as usize];
        }
        if at == NONE {
            return false;
        }
        let next = links[op as usize];
        if before == NONE {
            lane.head = next;
        } else {
            links[before as usize] = next;
        }
        if lane.tail == op {
            lane.tail = before;
        }
        if lane.head == NONE {
            self.unlink_peer(peer);
        }
        true
    }

    /// Puts an operation back where [`pop`](Self::pop) took it from, peer and all.
    fn unpop(&mut self, links: &mut [u32], peer: u32, op: u32) {
        if self.lanes.len() <= peer as usize {
            self.lanes.resize(peer as usize + 1, EMPTY);
        }
        if self.lanes[peer as usize].head != NONE {
            self.unlink_peer(peer);
        }
        let lane = &mut self.lanes[peer as usize];
        links[op as usize] = lane.head;
        lane.head = op;
        if lane.tail == NONE {
            lane.tail = op;
        }
        lane.next = self.head;
        self.head = peer;
        if self.tail == NONE {
            self.tail = peer;
        }
    }

    fn front(&self, peer: u32) -> Option<u32> {
        let head = self.lanes.get(peer as usize)?.head;
        (head != NONE).then_some(head)
    }
}

/// Which ring an operation waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It has posted nothing.
    Fresh,
    /// It has posted some of its requests.
    Stream,
}

/// Both rings. An operation, named by its slot in the table, is in at most one.
#[derive(Debug)]
pub(crate) struct Turns {
    fresh: Ring,
    stream: Ring,
    links: Vec<u32>,
    waiting: u32,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let ring = || Ring {
            lanes: Vec::new(),
            head: NONE,
            tail: NONE,
        };
        Self {
            fresh: ring(),
            stream: ring(),
            links: Vec::new(),
            waiting: 0,
        }
    }

    fn ring(&mut self, class: Class) -> (&mut Ring, &mut Vec<u32>) {
        match class {
            Class::Fresh => (&mut self.fresh, &mut self.links),
            Class::Stream => (&mut self.stream, &mut self.links),
        }
    }

    /// Queues an operation at the back of its peer's queue.
    pub(crate) fn push(&mut self, class: Class, peer: u32, op: u32) {
        let (ring, links) = self.ring(class);
        if links.len() <= op as usize {
            links.resize(op as usize + 1, NONE);
        }
        ring.push(links, peer, op);
        self.waiting += 1;
    }

    /// Queues an operation at the very front: it was taken, and could not be served.
    pub(crate) fn push_front(&mut self, class: Class, peer: u32, op: u32) {
        let (ring, links) = self.ring(class);
        if links.len() <= op as usize {
            links.resize(op as usize + 1, NONE);
        }
        ring.unpop(links, peer, op);
        self.waiting += 1;
    }

    /// Takes the operation whose turn it is; its peer goes to the back of the ring.
    pub(crate) fn pop(&mut self, class: Class) -> Option<u32> {
        let (ring, links) = self.ring(class);
        let op = ring.pop(links)?;
        self.waiting -= 1;
        Some(op)
    }

    /// Takes an operation out of whichever queue it waits in.
    pub(crate) fn remove(&mut self, peer: u32, op: u32) -> bool {
        if self.links.len() <= op as usize {
            return false;
        }
        let found = self.fresh.remove(&mut self.links, peer, op)
            || self.stream.remove(&mut self.links, peer, op);
        if found {
            self.waiting -= 1;
        }
        found
    }

    /// Some operation of this peer that waits, if any does.
    pub(crate) fn any_of(&self, peer: u32) -> Option<u32> {
        self.fresh.front(peer).or_else(|| self.stream.front(peer))
    }

    /// Whether nothing waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Whether anything fresh waits.
    #[inline]
    pub(crate) fn has_fresh(&self) -> bool {
        self.fresh.head != NONE
    }

    /// Whether any stream waits.
    pub(crate) fn has_streams(&self) -> bool {
        self.stream.head != NONE
    }

    /// Operations that wait.
    pub(crate) fn len(&self) -> u32 {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The obvious implementation.
    #[derive(Default)]
    struct Model {
        ring: VecDeque<(u32, VecDeque<u32>)>,
    }

    impl Model {
        fn push(&mut self, peer: u32, op: u32) {
            match self.ring.iter_mut().find(|(p, _)| *p == peer) {
                Some((_, ops)) => ops.push_back(op),
                None => self.ring.push_back((peer, VecDeque::from([op]))),
            }
        }
        fn pop(&mut self) -> Option<u32> {
            let (peer, mut ops) = self.ring.pop_front()?;
            let op = ops.pop_front().unwrap();
            if !ops.is_empty() {
                self.ring.push_back((peer, ops));
            }
            Some(op)
        }
        fn push_front(&mut self, peer: u32, op: u32) {
            let at = self.ring.iter().position(|(p, _)| *p == peer);
            let mut ops = at.map_or(VecDeque::new(), |at| self.ring.remove(at).unwrap().1);
            ops.push_front(op);
            self.ring.push_front((peer, ops));
        }
        fn remove(&mut self, peer: u32, op: u32) -> bool {
            let Some(at) = self.ring.iter().position(|(p, _)| *p == peer) else {
                return false;
            };
            let ops = &mut self.ring[at].1;
            let Some(i) = ops.iter().position(|&o| o == op) else {
                return false;
            };
            ops.remove(i);
            if ops.is_empty() {
                self.ring.remove(at);
            }
            true
        }
    }

    proptest! {
        #[test]
        fn behaves_as_the_obvious_implementation(
            steps in prop::collection::vec((0u8..8, 0u32..6, 0u32..40), 0..400),
        ) {
            let mut turns = Turns::new();
            let mut model = Model::default();
            let mut home = std::collections::HashMap::new();
            for (what, peer, op) in steps {
                match what {
                    0..=3 => if let std::collections::hash_map::Entry::Vacant(entry) = home.entry(op) {
                        entry.insert(peer);
                        turns.push(Class::Stream, peer, op);
                        model.push(peer, op);
                    },
                    4 | 5 => {
                        let got = turns.pop(Class::Stream);
                        prop_assert_eq!(got, model.pop());
                        if let Some(op) = got { home.remove(&op); }
                    }
                    6 => if let std::collections::hash_map::Entry::Vacant(entry) = home.entry(op) {
                        entry.insert(peer);
                        turns.push_front(Class::Stream, peer, op);
                        model.push_front(peer, op);
                    },
                    _ => if let Some(peer) = home.remove(&op) {
                        prop_assert!(turns.remove(peer, op));
                        prop_assert!(model.remove(peer, op));
                    } else {
                        prop_assert!(!turns.remove(peer, op));
                    },
                }
                prop_assert_eq!(turns.len() as usize, home.len());
                prop_assert_eq!(turns.has_streams(), !home.is_empty());
            }
        }
    }

    #[test]
    fn peers_take_turns_whatever_one_of_them_queues() {
        let mut turns = Turns::new();
        for op in 0..100 {
            turns.push(Class::Fresh, 0, op);
        }
        turns.push(Class::Fresh, 1, 100);
        assert_eq!(turns.pop(Class::Fresh), Some(0));
        assert_eq!(turns.pop(Class::Fresh), Some(100));
    }
}
