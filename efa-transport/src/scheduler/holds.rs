//! What keeps memory alive while operations use it.
//!
//! Each region has a small number in the process. Here is a count for each number, and, while the count
//! isn't zero, a clone of the region. So an operation costs an addition and a subtraction, whatever
//! regions its neighbours use, and a shared count is touched only by the first and the last operation
//! of a region.

/// What keeps memory alive.
pub(crate) trait Memory: Clone {
    /// Tells it from all others alive.
    fn number(&self) -> u32;
    /// Whether the device of the domain with this identity may use it.
    fn is_of(&self, domain: usize) -> bool;
}

/// The counts, and what they keep, by number.
#[derive(Debug)]
pub(crate) struct Holds<M> {
    domain: usize,
    counts: Vec<u32>,
    memory: Vec<Option<M>>,
}

impl<M: Memory> Holds<M> {
    /// Nothing but memory of this domain is held.
    pub(crate) fn new(domain: usize) -> Self {
        Self {
            domain,
            counts: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// One more user of the memory with this number, which is to be given back. False where it is of
    /// another domain: then there is no user more.
    #[inline]
    pub(crate) fn take(&mut self, number: u32, memory: &M) -> bool {
        match self.counts.get_mut(number as usize) {
            // Its clone is alive, so the number is still this memory's, and it was found to be of the
            // domain.
            Some(count) if *count != 0 => {
                *count += 1;
                true
            }
            _ => self.begin(number, memory),
        }
    }

    #[cold]
    fn begin(&mut self, number: u32, memory: &M) -> bool {
        if !memory.is_of(self.domain) {
            return false;
        }
        let at = number as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
            self.memory.resize_with(at + 1, || None);
        }
        self.counts[at] = 1;
        self.memory[at] = Some(memory.clone());
        true
    }

    /// One user less of the memory with this number; nothing where there is no such number.
    #[inline]
    pub(crate) fn give(&mut self, number: u32) {
        if let Some(count) = self.counts.get_mut(number as usize) {
            debug_assert!(*count > 0, "given back twice");
            *count -= 1;
            if *count == 0 {
                self.release(number);
            }
        }
    }

    #[cold]
    fn release(&mut self, number: u32) {
        self.memory[number as usize] = None;
    }

    /// The memory that a number stands for, while anyone uses it.
    pub(crate) fn memory(&self, number: u32) -> Option<&M> {
        self.memory.get(number as usize)?.as_ref()
    }

    /// Users of all memory together.
    #[cfg(test)]
    pub(crate) fn users(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    impl Memory for Rc<u32> {
        fn number(&self) -> u32 {
            **self
        }

        fn is_of(&self, _: usize) -> bool {
            true
        }
    }

    #[test]
    fn memory_is_kept_from_its_first_user_to_its_last() {
        let mut holds = Holds::new(0);
        let memory = Rc::new(3);
        let number = *memory;
        assert!(holds.take(number, &memory) && holds.take(number, &memory));
        assert_eq!(Rc::strong_count(&memory), 2);
        holds.give(number);
        assert_eq!(Rc::strong_count(&memory), 2);
        holds.give(number);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn a_number_that_is_used_again_stands_for_the_new_memory() {
        let mut holds = Holds::new(0);
        let old = Rc::new(0);
        assert!(holds.take(0, &old));
        holds.give(0);
        let new = Rc::new(0);
        assert!(holds.take(0, &new));
        assert!(holds.memory(0).is_some_and(|held| Rc::ptr_eq(held, &new)));
    }
}
