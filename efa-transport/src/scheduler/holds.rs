//! What keeps memory alive while operations use it.
//!
//! Each region has a small number in its domain. Here is a count for each number, and, while the count
//! isn't zero, a clone of the region. So an operation costs an addition and a subtraction, whatever
//! regions its neighbours use, and a shared count is touched only by the first and the last operation
//! of a region.

/// What keeps memory alive, and the number that tells it from all others alive.
pub(crate) trait Memory: Clone {
    fn number(&self) -> u32;
}

#[derive(Debug)]
struct Hold<M> {
    count: u32,
    memory: Option<M>,
}

/// The counts, by number.
#[derive(Debug)]
pub(crate) struct Holds<M> {
    holds: Vec<Hold<M>>,
}

impl<M: Memory> Holds<M> {
    pub(crate) fn new() -> Self {
        Self { holds: Vec::new() }
    }

    /// One more user of this memory. Returns its number, to be given back.
    #[inline]
    pub(crate) fn take(&mut self, memory: &M) -> u32 {
        let number = memory.number();
        match self.holds.get_mut(number as usize) {
            // The clone is alive, so the number is still this memory's.
            Some(hold) if hold.count != 0 => hold.count += 1,
            _ => self.begin(number, memory),
        }
        number
    }

    #[cold]
    fn begin(&mut self, number: u32, memory: &M) {
        let needed = number as usize + 1;
        if self.holds.len() < needed {
            self.holds.resize_with(needed, || Hold {
                count: 0,
                memory: None,
            });
        }
        let hold = &mut self.holds[number as usize];
        hold.count = 1;
        hold.memory = Some(memory.clone());
    }

    /// One user less.
    #[inline]
    pub(crate) fn give(&mut self, number: u32) {
        if let Some(hold) = self.holds.get_mut(number as usize) {
            debug_assert!(hold.count > 0, "given back twice");
            hold.count -= 1;
            if hold.count == 0 {
                release(hold);
            }
        }
    }

    /// The memory that a number stands for, while anyone uses it.
    pub(crate) fn memory(&self, number: u32) -> Option<&M> {
        self.holds.get(number as usize)?.memory.as_ref()
    }

    /// Users of all memory together.
    #[cfg(test)]
    pub(crate) fn users(&self) -> u64 {
        self.holds.iter().map(|hold| u64::from(hold.count)).sum()
    }
}

#[cold]
fn release<M>(hold: &mut Hold<M>) {
    hold.memory = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    impl Memory for Rc<u32> {
        fn number(&self) -> u32 {
            **self
        }
    }

    #[test]
    fn memory_is_kept_from_its_first_user_to_its_last() {
        let mut holds = Holds::new();
        let memory = Rc::new(3);
        let number = holds.take(&memory);
        holds.take(&memory);
        assert_eq!(Rc::strong_count(&memory), 2);
        holds.give(number);
        assert_eq!(Rc::strong_count(&memory), 2);
        holds.give(number);
        assert_eq!(Rc::strong_count(&memory), 1);
    }

    #[test]
    fn a_number_that_is_used_again_stands_for_the_new_memory() {
        let mut holds = Holds::new();
        let old = Rc::new(0);
        let number = holds.take(&old);
        holds.give(number);
        let new = Rc::new(0);
        holds.take(&new);
        assert!(holds.memory(0).is_some_and(|held| Rc::ptr_eq(held, &new)));
    }
}
