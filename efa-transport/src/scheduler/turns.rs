//! Whose turn it is: round robin over peers, and within a peer over its operations.
//!
//! Two rings share the send queue. *Fresh* operations have posted nothing yet;
//! *streams* have begun and have more requests to post than went in one go. The scheduler
//! ([`crate::scheduler`]) serves the rings alternately, and the credits' reserve is for
//! fresh ones alone.
//!
//! One visit posts at most `quantum` requests of one operation, then the operation goes
//! to the back of its peer's queue, and the peer to the back of the ring. Hence the
//! bound: an operation that is queued behind `k` fresh operations of its own peer,
//! while `p` peers have fresh operations, is served after at most `(k + 1) × p` fresh
//! visits. A fresh visit is followed by at most one visit to a stream, so no more than
//! `2 × quantum × (k + 1) × p` requests are posted before its first. The lengths of the
//! other operations don't matter.

use super::operations::NONE;

/// A place in a list: the ones after and before.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    back: u32,
}

const UNLINKED: Link = Link {
    next: NONE,
    back: NONE,
};

/// A list whose places are told by [`Link`]s.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
    };

    fn is_empty(&self) -> bool {
        self.head == NONE
    }

    fn push_back(&mut self, links: &mut impl Links, at: u32) {
        let back = self.tail;
        *links.link(at) = Link { next: NONE, back };
        match back {
            NONE => self.head = at,
            _ => links.link(back).next = at,
        }
        self.tail = at;
    }

    fn push_front(&mut self, links: &mut impl Links, at: u32) {
        let next = self.head;
        *links.link(at) = Link { next, back: NONE };
        match next {
            NONE => self.tail = at,
            _ => links.link(next).back = at,
        }
        self.head = at;
    }

    fn remove(&mut self, links: &mut impl Links, at: u32) {
        let Link { next, back } = *links.link(at);
        match back {
            NONE => self.head = next,
            _ => links.link(back).next = next,
        }
        match next {
            NONE => self.tail = back,
            _ => links.link(next).back = back,
        }
    }
}

/// Where the links of a list are.
trait Links {
    fn link(&mut self, at: u32) -> &mut Link;
}

/// One peer's operations, and its place in the ring.
#[derive(Clone, Copy, Debug)]
struct Queue {
    operations: List,
    place: Link,
}

const IDLE: Queue = Queue {
    operations: List::EMPTY,
    place: UNLINKED,
};

impl Links for Vec<Queue> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self[at as usize].place
    }
}

impl Links for Vec<Link> {
    fn link(&mut self, at: u32) -> &mut Link {
        &mut self[at as usize]
    }
}

/// One ring of peers that have operations waiting.
#[derive(Debug)]
struct Ring {
    queues: Vec<Queue>,
    peers: List,
}

impl Ring {
    fn push(&mut self, links: &mut Vec<Link>, peer: u32, op: u32) {
        if self.queues.len() <= peer as usize {
            self.queues.resize(peer as usize + 1, IDLE);
        }
        let queue = &mut self.queues[peer as usize];
        let first = queue.operations.is_empty();
        queue.operations.push_back(links, op);
        if first {
            self.peers.push_back(&mut self.queues, peer);
        }
    }

    fn pop(&mut self, links: &mut Vec<Link>) -> Option<u32> {
        let peer = self.peers.head;
        let queue = self.queues.get_mut(peer as usize)?;
        let op = queue.operations.head;
        queue.operations.remove(links, op);
        let more = !queue.operations.is_empty();
        self.peers.remove(&mut self.queues, peer);
        if more {
            self.peers.push_back(&mut self.queues, peer);
        }
        Some(op)
    }

    fn remove(&mut self, links: &mut Vec<Link>, peer: u32, op: u32) {
        let queue = &mut self.queues[peer as usize];
        queue.operations.remove(links, op);
        if queue.operations.is_empty() {
            self.peers.remove(&mut self.queues, peer);
        }
    }

    /// Puts an operation back where [`pop`](Self::pop) took it from, peer and all.
    fn unpop(&mut self, links: &mut Vec<Link>, peer: u32, op: u32) {
        if self.queues.len() <= peer as usize {
            self.queues.resize(peer as usize + 1, IDLE);
        }
        if !self.queues[peer as usize].operations.is_empty() {
            self.peers.remove(&mut self.queues, peer);
        }
        self.queues[peer as usize].operations.push_front(links, op);
        self.peers.push_front(&mut self.queues, peer);
    }

    fn front(&self, peer: u32) -> Option<u32> {
        let head = self.queues.get(peer as usize)?.operations.head;
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
    links: Vec<Link>,
    /// Where each operation waits, if it does.
    class: Vec<Option<Class>>,
    waiting: u32,
}

impl Turns {
    pub(crate) fn new() -> Self {
        let ring = || Ring {
            queues: Vec::new(),
            peers: List::EMPTY,
        };
        Self {
            fresh: ring(),
            stream: ring(),
            links: Vec::new(),
            class: Vec::new(),
            waiting: 0,
        }
    }

    fn ring(&mut self, class: Class) -> (&mut Ring, &mut Vec<Link>) {
        match class {
            Class::Fresh => (&mut self.fresh, &mut self.links),
            Class::Stream => (&mut self.stream, &mut self.links),
        }
    }

    fn enter(&mut self, class: Class, op: u32) {
        if self.links.len() <= op as usize {
            self.links.resize(op as usize + 1, UNLINKED);
            self.class.resize(op as usize + 1, None);
        }
        debug_assert!(self.class[op as usize].is_none(), "it waits already");
        self.class[op as usize] = Some(class);
        self.waiting += 1;
    }

    /// Queues an operation at the back of its peer's queue.
    pub(crate) fn push(&mut self, class: Class, peer: u32, op: u32) {
        self.enter(class, op);
        let (ring, links) = self.ring(class);
        ring.push(links, peer, op);
    }

    /// Queues an operation at the very front: it was taken, and could not be served.
    pub(crate) fn push_front(&mut self, class: Class, peer: u32, op: u32) {
        self.enter(class, op);
        let (ring, links) = self.ring(class);
        ring.unpop(links, peer, op);
    }

    /// Takes the operation whose turn it is; its peer goes to the back of the ring.
    pub(crate) fn pop(&mut self, class: Class) -> Option<u32> {
        let (ring, links) = self.ring(class);
        let op = ring.pop(links)?;
        self.class[op as usize] = None;
        self.waiting -= 1;
        Some(op)
    }

    /// Takes an operation out of whichever queue it waits in, in constant time.
    pub(crate) fn remove(&mut self, peer: u32, op: u32) -> bool {
        let waits = self.class.get_mut(op as usize).and_then(Option::take);
        let Some(class) = waits else {
            return false;
        };
        let (ring, links) = self.ring(class);
        ring.remove(links, peer, op);
        self.waiting -= 1;
        true
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
        !self.fresh.peers.is_empty()
    }

    /// Whether any stream waits.
    pub(crate) fn has_streams(&self) -> bool {
        !self.stream.peers.is_empty()
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
