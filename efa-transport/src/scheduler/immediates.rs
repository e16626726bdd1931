//! Immediate counters: how a receiver learns that data has landed.
//!
//! On an unordered fabric, the arrival of one write says nothing about another. The only
//! correct way to know that N writes have landed is to let each carry immediate data and to
//! count. A count is a number of landed writes that nobody has waited for yet; a waiter for
//! N takes N of it. Waiters for one value are served in the order in which they came.

use std::collections::{HashMap, VecDeque};

use crate::operation::OperationId;

/// Different values that are counted.
pub(crate) const MOST_VALUES: usize = 65_536;

/// The operations that wait.
pub(crate) trait Waiters {
    /// Whether this operation still waits. One that was cancelled, or ran out of time, does not.
    fn is_waiting(&self, operation: OperationId) -> bool;

    /// What this operation waits for has arrived.
    fn arrived(&mut self, operation: OperationId);
}

#[derive(Debug, Default)]
struct Counter {
    /// Landed and not waited for.
    landed: u64,
    waiters: VecDeque<Waiter>,
    /// Waiters that were told to be over.
    dead: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    wanted: u64,
    operation: OperationId,
}

/// All counters of an endpoint.
#[derive(Debug)]
pub(crate) struct Immediates {
    counters: HashMap<u32, Counter>,
    limit: usize,
    lost: u64,
}

impl Immediates {
    /// Counts at most `limit` different values.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            counters: HashMap::new(),
            limit: limit.max(1),
            lost: 0,
        }
    }

    /// A write with this value has landed, which may be what some wait for. False where there was no
    /// room to count.
    pub(crate) fn landed(&mut self, value: u32, waiters: &mut impl Waiters) -> bool {
        if self.counters.len() >= self.limit && !self.counters.contains_key(&value) {
            self.lost += 1;
            return false;
        }
        self.counters.entry(value).or_default().landed += 1;
        self.settle(value, waiters);
        true
    }

    /// An operation waits for `wanted` writes from now on; they may have landed already.
    pub(crate) fn wait(
        &mut self,
        value: u32,
        wanted: u64,
        operation: OperationId,
        waiters: &mut impl Waiters,
    ) {
        let counter = self.counters.entry(value).or_default();
        counter.waiters.push_back(Waiter { wanted, operation });
        self.settle(value, waiters);
    }

    /// A waiter for this value is over: it was cancelled, or ran out of time. It holds up no others.
    ///
    /// Those behind others stay until they come to the front, or until most are over: so ending many
    /// costs no more than a constant time each.
    pub(crate) fn over(&mut self, value: u32, waiters: &mut impl Waiters) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        counter.dead += 1;
        if counter.dead * 2 > counter.waiters.len() {
            counter
                .waiters
                .retain(|waiter| waiters.is_waiting(waiter.operation));
            counter.dead = 0;
        }
        self.settle(value, waiters);
    }

    /// A waiter that was served has no use for what it got: it counts again.
    pub(crate) fn give_back(&mut self, value: u32, count: u64, waiters: &mut impl Waiters) {
        if count > 0 {
            self.counters.entry(value).or_default().landed += count;
            self.settle(value, waiters);
        }
    }

    /// All waiters are over.
    pub(crate) fn all_over(&mut self) {
        self.counters.retain(|_, counter| {
            counter.waiters.clear();
            counter.dead = 0;
            counter.landed > 0
        });
    }

    /// Serves the waiters that the count suffices for.
    fn settle(&mut self, value: u32, waiters: &mut impl Waiters) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        while let Some(&first) = counter.waiters.front() {
            if !waiters.is_waiting(first.operation) {
                counter.dead = counter.dead.saturating_sub(1);
            } else if first.wanted <= counter.landed {
                counter.landed -= first.wanted;
                waiters.arrived(first.operation);
            } else {
                break;
            }
            counter.waiters.pop_front();
        }
        if counter.waiters.is_empty() && counter.landed == 0 {
            self.counters.remove(&value);
        }
    }

    /// Writes with this value that have landed and that nobody has waited for.
    pub(crate) fn count(&self, value: u32) -> u64 {
        self.counters
            .get(&value)
            .map_or(0, |counter| counter.landed)
    }

    /// Writes that could not be counted, since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::collections::{BTreeMap, HashSet, VecDeque};

    fn id(word: u64) -> OperationId {
        OperationId { word, endpoint: 1 }
    }

    /// Waiters of which some are over.
    #[derive(Default)]
    struct Operations {
        over: HashSet<OperationId>,
        arrived: Vec<OperationId>,
        looked: Cell<u64>,
    }

    impl Waiters for Operations {
        fn is_waiting(&self, operation: OperationId) -> bool {
            self.looked.set(self.looked.get() + 1);
            !self.over.contains(&operation)
        }
        fn arrived(&mut self, operation: OperationId) {
            self.arrived.push(operation);
        }
    }

    #[test]
    fn early_arrivals_count() {
        let (mut immediates, mut waiters) = (Immediates::new(10), Operations::default());
        for _ in 0..3 {
            assert!(immediates.landed(7, &mut waiters));
        }
        immediates.wait(7, 2, id(1), &mut waiters);
        assert_eq!(waiters.arrived, [id(1)]);
        assert_eq!(immediates.count(7), 1);
    }

    #[test]
    fn a_flood_of_values_is_bounded_and_said() {
        let (mut immediates, mut waiters) = (Immediates::new(2), Operations::default());
        assert!(immediates.landed(1, &mut waiters));
        assert!(immediates.landed(2, &mut waiters));
        assert!(!immediates.landed(3, &mut waiters));
        assert!(immediates.landed(2, &mut waiters));
        assert_eq!(immediates.take_lost(), 1);
        assert_eq!(immediates.take_lost(), 0);
    }

    #[test]
    fn a_waiter_that_is_over_holds_nobody_up() {
        let (mut immediates, mut waiters) = (Immediates::new(8), Operations::default());
        immediates.wait(1, 100, id(1), &mut waiters);
        immediates.wait(1, 1, id(2), &mut waiters);
        immediates.landed(1, &mut waiters);
        assert!(waiters.arrived.is_empty());
        waiters.over.insert(id(1));
        immediates.over(1, &mut waiters);
        assert_eq!(waiters.arrived, [id(2)]);
        assert_eq!(immediates.count(1), 0);
    }

    #[test]
    fn what_is_given_back_serves_the_next() {
        let (mut immediates, mut waiters) = (Immediates::new(8), Operations::default());
        immediates.wait(1, 2, id(1), &mut waiters);
        for _ in 0..2 {
            immediates.landed(1, &mut waiters);
        }
        immediates.wait(1, 1, id(2), &mut waiters);
        assert_eq!(waiters.arrived, [id(1)]);
        immediates.give_back(1, 2, &mut waiters);
        assert_eq!(waiters.arrived, [id(1), id(2)]);
        assert_eq!(immediates.count(1), 1);
    }

    #[test]
    fn one_that_ended_behind_others_holds_nobody_up_when_it_comes_to_the_front() {
        let (mut immediates, mut waiters) = (Immediates::new(8), Operations::default());
        for (word, wanted) in [(1, 1), (2, 100), (3, 1), (4, 1)] {
            immediates.wait(1, wanted, id(word), &mut waiters);
        }
        waiters.over.insert(id(2));
        immediates.over(1, &mut waiters);
        for _ in 0..3 {
            immediates.landed(1, &mut waiters);
        }
        assert_eq!(waiters.arrived, [id(1), id(3), id(4)]);
        assert_eq!(immediates.counters.len(), 0);
    }

    #[test]
    fn ending_many_waiters_touches_each_a_few_times_only() {
        let (mut immediates, mut waiters) = (Immediates::new(8), Operations::default());
        const MANY: u64 = 2000;
        for word in 0..MANY {
            immediates.wait(1, 100, id(word), &mut waiters);
        }
        // From the back: the front one stays alive until the end.
        for word in (0..MANY).rev() {
            waiters.over.insert(id(word));
            immediates.over(1, &mut waiters);
        }
        assert!(
            waiters.looked.get() < 8 * MANY,
            "{} looks",
            waiters.looked.get()
        );
        assert_eq!(immediates.counters.len(), 0);
    }

    proptest! {
        #[test]
        fn waiters_are_served_in_order_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 0u32..3, 0u64..5), 0..200),
        ) {
            let (mut immediates, mut waiters) = (Immediates::new(100), Operations::default());
            let mut model: BTreeMap<u32, (u64, VecDeque<(u64, u64)>)> = BTreeMap::new();
            let mut want = vec![];
            for (i, (lands, value, wanted)) in steps.into_iter().enumerate() {
                let entry = model.entry(value).or_default();
                if lands {
                    entry.0 += 1;
                    prop_assert!(immediates.landed(value, &mut waiters));
                } else {
                    entry.1.push_back((wanted, i as u64));
                    immediates.wait(value, wanted, id(i as u64), &mut waiters);
                }
                while let Some(&(n, op)) = entry.1.front() {
                    if n > entry.0 { break; }
                    entry.0 -= n;
                    entry.1.pop_front();
                    want.push(id(op));
                }
                prop_assert_eq!(&waiters.arrived, &want);
                prop_assert_eq!(immediates.count(value), entry.0);
            }
        }
    }
}
