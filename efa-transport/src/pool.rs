//! The books of the receive pool: which buffer is with the device, which holds a message,
//! which is lent to the program.

use std::collections::VecDeque;

use crate::peers::PeerId;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: it can be posted.
    Free,
    /// With the device, which may write it at any moment.
    Posted,
    /// It holds a message that nobody has looked at.
    Ready,
    /// The program looks at its message.
    Lent,
    /// With a queue pair that could not be destroyed, for good.
    Lost,
}

/// Where a message is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In this buffer of the pool: so many bytes.
    Pooled(u32, u32),
    /// It came from this endpoint itself, and has a buffer of its own.
    Own(Vec<u8>),
}

/// A message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) body: Body,
    pub(crate) peer: Option<PeerId>,
    pub(crate) queue_pair: u32,
    pub(crate) gid: Option<crate::address::Gid>,
    pub(crate) immediate: Option<u32>,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Pool {
    places: Vec<Place>,
    free: Vec<u32>,
    ready: VecDeque<Arrived>,
    /// At most one message is lent at a time: it borrows the endpoint.
    lent: Option<u32>,
}

impl Pool {
    pub(crate) fn new(buffers: u32) -> Self {
        Self {
            places: vec![Place::Free; buffers as usize],
            free: (0..buffers).rev().collect(),
            ready: VecDeque::with_capacity(buffers as usize),
            lent: None,
        }
    }

    /// A buffer to be posted.
    pub(crate) fn post(&mut self) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.places[buffer as usize] = Place::Posted;
        Some(buffer)
    }

    /// A posted buffer has come back without a message, or could not be posted. False where
    /// it was not posted at all.
    pub(crate) fn back(&mut self, buffer: u32) -> bool {
        let Some(place) = self.places.get_mut(buffer as usize) else {
            return false;
        };
        if *place != Place::Posted {
            return false;
        }
        *place = Place::Free;
        self.free.push(buffer);
        true
    }

    /// A message has arrived. False where its buffer was not posted.
    pub(crate) fn arrived(&mut self, message: Arrived) -> bool {
        if let Body::Pooled(buffer, _) = message.body {
            match self.places.get_mut(buffer as usize) {
                Some(place) if *place == Place::Posted => *place = Place::Ready,
                _ => return false,
            }
        }
        self.ready.push_back(message);
        true
    }

    /// Lends the oldest message. Whatever was lent before is over, even if its guard was
    /// leaked and so never gave it back: the caller holds the pool exclusively.
    pub(crate) fn lend(&mut self) -> Option<Arrived> {
        self.reclaim();
        let message = self.ready.pop_front()?;
        if let Body::Pooled(buffer, _) = message.body {
            self.places[buffer as usize] = Place::Lent;
            self.lent = Some(buffer);
        }
        Some(message)
    }

    /// Takes back what was lent.
    pub(crate) fn reclaim(&mut self) {
        if let Some(buffer) = self.lent.take() {
            debug_assert_eq!(self.places[buffer as usize], Place::Lent);
            self.places[buffer as usize] = Place::Free;
            self.free.push(buffer);
        }
    }

    /// Whether the program may look at this buffer.
    pub(crate) fn is_lent(&self, buffer: u32) -> bool {
        self.lent == Some(buffer)
    }

    /// The queue pair is gone: nothing is with the device. Messages that had arrived stay.
    pub(crate) fn reset(&mut self) {
        for buffer in 0..self.places.len() as u32 {
            self.back(buffer);
        }
    }

    /// The queue pair has been given up, and could not be destroyed: what is with the device stays there.
    pub(crate) fn abandon(&mut self) {
        for place in &mut self.places {
            if *place == Place::Posted {
                *place = Place::Lost;
            }
        }
    }

    /// Messages that wait.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Buffers that could be posted.
    #[inline]
    pub(crate) fn idle(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(buffer: u32) -> Arrived {
        Arrived {
            body: Body::Pooled(buffer, 5),
            peer: None,
            queue_pair: 1,
            gid: None,
            immediate: None,
        }
    }

    #[test]
    fn a_leaked_guard_loses_no_buffer() {
        let mut pool = Pool::new(1);
        let buffer = pool.post().unwrap();
        assert!(pool.arrived(message(buffer)));
        assert!(pool.lend().is_some());
        assert!(pool.is_lent(buffer));
        // The guard was forgotten: the next call takes the buffer back.
        assert!(pool.lend().is_none());
        assert_eq!(pool.post(), Some(buffer));
    }

    #[test]
    fn a_buffer_that_is_not_posted_takes_no_message() {
        let mut pool = Pool::new(2);
        assert!(!pool.arrived(message(0)));
        assert!(!pool.arrived(message(99)));
        assert!(!pool.back(0));
    }

    #[test]
    fn what_was_abandoned_never_comes_back() {
        let mut pool = Pool::new(2);
        let lost = pool.post().unwrap();
        pool.abandon();
        let other = pool.post().unwrap();
        assert!(!pool.arrived(message(lost)) && !pool.back(lost));
        pool.reset();
        assert_eq!((pool.post(), pool.post()), (Some(other), None));
    }

    proptest! {
        #[test]
        fn every_buffer_is_in_one_place(steps in prop::collection::vec(0u8..6, 0..300)) {
            let mut pool = Pool::new(4);
            let mut posted: Vec<u32> = vec![];
            let (mut ready, mut lent) = (0usize, 0usize);
            for step in steps {
                match step {
                    0 | 1 => match pool.post() {
                        Some(buffer) => { prop_assert!(!posted.contains(&buffer)); posted.push(buffer) }
                        None => prop_assert_eq!(posted.len() + ready + lent, 4),
                    },
                    2 => if let Some(buffer) = posted.pop() {
                        prop_assert!(pool.arrived(message(buffer)));
                        ready += 1;
                    },
                    3 => {
                        lent = 0;
                        if pool.lend().is_some() { ready -= 1; lent = 1; }
                    }
                    4 => { pool.reclaim(); lent = 0; }
                    _ => { pool.reset(); posted.clear(); }
                }
                prop_assert_eq!(pool.ready(), ready);
                prop_assert_eq!(pool.idle(), 4 - posted.len() - ready - lent);
            }
        }
    }
}
