//! The books of the receive pool: which buffer is with the device, and which holds a message.

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nowhere: it can be posted.
    Free,
    /// With the device, which may write it at any moment.
    Posted,
    /// It holds a message, which waits or which the program has.
    Taken,
    /// With a queue pair that could not be destroyed, for good.
    Lost,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Books {
    places: Vec<Place>,
    free: Vec<u32>,
    posted: u32,
}

impl Books {
    pub(crate) fn new(buffers: u32) -> Self {
        Self {
            places: vec![Place::Free; buffers as usize],
            free: (0..buffers).rev().collect(),
            posted: 0,
        }
    }

    /// A buffer to be posted.
    pub(crate) fn post(&mut self) -> Option<u32> {
        let buffer = self.free.pop()?;
        self.places[buffer as usize] = Place::Posted;
        self.posted += 1;
        Some(buffer)
    }

    /// A posted buffer has come back without a message, or could not be posted. False where it was not
    /// posted at all.
    pub(crate) fn back(&mut self, buffer: u32) -> bool {
        if !self.leaves_device(buffer, Place::Free) {
            return false;
        }
        self.free.push(buffer);
        true
    }

    /// A message has arrived in this buffer. False where it was not posted.
    pub(crate) fn arrived(&mut self, buffer: u32) -> bool {
        self.leaves_device(buffer, Place::Taken)
    }

    fn leaves_device(&mut self, buffer: u32, to: Place) -> bool {
        match self.places.get_mut(buffer as usize) {
            Some(place) if *place == Place::Posted => {
                *place = to;
                self.posted -= 1;
                true
            }
            _ => false,
        }
    }

    /// The message in this buffer is gone.
    pub(crate) fn returned(&mut self, buffer: u32) {
        if let Some(place) = self.places.get_mut(buffer as usize)
            && *place == Place::Taken
        {
            *place = Place::Free;
            self.free.push(buffer);
        }
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
        self.posted = 0;
    }

    /// Buffers that could be posted.
    #[inline]
    pub(crate) fn idle(&self) -> usize {
        self.free.len()
    }

    /// Buffers that are with the device.
    pub(crate) fn posted(&self) -> u32 {
        self.posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_buffer_that_is_not_posted_takes_no_message() {
        let mut books = Books::new(2);
        assert!(!books.arrived(0));
        assert!(!books.arrived(99));
        assert!(!books.back(0));
    }

    #[test]
    fn what_was_abandoned_never_comes_back() {
        let mut books = Books::new(2);
        let lost = books.post().unwrap();
        books.abandon();
        let other = books.post().unwrap();
        assert!(!books.arrived(lost) && !books.back(lost));
        books.reset();
        assert_eq!((books.post(), books.post()), (Some(other), None));
    }

    proptest! {
        #[test]
        fn every_buffer_is_in_one_place(steps in prop::collection::vec(0u8..6, 0..300)) {
            let mut books = Books::new(4);
            let (mut posted, mut taken): (Vec<u32>, Vec<u32>) = (vec![], vec![]);
            for step in steps {
                match step {
                    0 | 1 => match books.post() {
                        Some(buffer) => {
                            prop_assert!(!posted.contains(&buffer) && !taken.contains(&buffer));
                            posted.push(buffer);
                        }
                        None => prop_assert_eq!(posted.len() + taken.len(), 4),
                    },
                    2 => if let Some(buffer) = posted.pop() {
                        prop_assert!(books.arrived(buffer));
                        taken.push(buffer);
                    },
                    3 => if let Some(buffer) = taken.pop() {
                        books.returned(buffer);
                        books.returned(buffer);
                    },
                    4 => if let Some(buffer) = posted.pop() {
                        prop_assert!(books.back(buffer) && !books.back(buffer));
                    },
                    _ => { books.reset(); posted.clear(); }
                }
                prop_assert_eq!(books.idle(), 4 - posted.len() - taken.len());
                prop_assert_eq!(books.posted() as usize, posted.len());
            }
        }
    }
}
