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

    /// A write with this value has landed. Calls `done` for each waiter that is satisfied and still
    /// alive; `done` says whether it was. False where there was no room to count.
    pub(crate) fn landed(&mut self, value: u32, done: impl FnMut(OperationId) -> bool) -> bool {
        if self.counters.len() >= self.limit && !self.counters.contains_key(&value) {
            self.lost += 1;
            return false;
        }
        self.counters.entry(value).or_default().landed += 1;
        self.settle(value, done);
        true
    }

    /// Adds a waiter for `wanted` writes; it may be satisfied at once.
    pub(crate) fn wait(
        &mut self,
        value: u32,
        wanted: u64,
        operation: OperationId,
        done: impl FnMut(OperationId) -> bool,
    ) {
        let counter = self.counters.entry(value).or_default();
        counter.waiters.push_back(Waiter { wanted, operation });
        self.settle(value, done);
    }

    /// A waiter for this value is over: it was cancelled, or ran out of time. It holds up no others.
    ///
    /// Those behind others stay until they come to the front, or until most are over: so ending many
    /// costs no more than a constant time each.
    pub(crate) fn over(
        &mut self,
        value: u32,
        alive: impl Fn(OperationId) -> bool,
        done: impl FnMut(OperationId) -> bool,
    ) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        counter.dead += 1;
        if counter.dead * 2 > counter.waiters.len() {
            counter.waiters.retain(|waiter| alive(waiter.operation));
            counter.dead = 0;
        } else {
            while let Some(first) = counter.waiters.front()
                && !alive(first.operation)
            {
                counter.waiters.pop_front();
                counter.dead = counter.dead.saturating_sub(1);
            }
        }
        self.settle(value, done);
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
    fn settle(&mut self, value: u32, mut done: impl FnMut(OperationId) -> bool) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        while let Some(&waiter) = counter.waiters.front()
            && waiter.wanted <= counter.landed
        {
            counter.waiters.pop_front();
            // One that was cancelled takes nothing.
            if done(waiter.operation) {
                counter.landed -= waiter.wanted;
            } else {
                counter.dead = counter.dead.saturating_sub(1);
            }
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
    use std::collections::{BTreeMap, VecDeque};

    fn id(word: u64) -> OperationId {
        OperationId { word, endpoint: 1 }
    }

    #[test]
    fn early_arrivals_count() {
        let mut immediates = Immediates::new(10);
        for _ in 0..3 {
            assert!(immediates.landed(7, |_| unreachable!()));
        }
        let mut done = vec![];
        immediates.wait(7, 2, id(1), |op| {
            done.push(op);
            true
        });
        assert_eq!(done, [id(1)]);
        assert_eq!(immediates.count(7), 1);
    }

    #[test]
    fn a_flood_of_values_is_bounded_and_said() {
        let mut immediates = Immediates::new(2);
        assert!(immediates.landed(1, |_| true));
        assert!(immediates.landed(2, |_| true));
        assert!(!immediates.landed(3, |_| true));
        assert!(immediates.landed(2, |_| true));
        assert_eq!(immediates.take_lost(), 1);
        assert_eq!(immediates.take_lost(), 0);
    }

    #[test]
    fn a_dead_waiter_holds_nobody_up() {
        let mut immediates = Immediates::new(8);
        immediates.wait(1, 100, id(1), |_| true);
        immediates.wait(1, 1, id(2), |_| true);
        let mut done = vec![];
        immediates.landed(1, |op| {
            done.push(op);
            true
        });
        assert!(done.is_empty());
        immediates.over(
            1,
            |op| op != id(1),
            |op| {
                done.push(op);
                true
            },
        );
        assert_eq!(done, [id(2)]);
        assert_eq!(immediates.count(1), 0);
    }

    #[test]
    fn ending_many_waiters_touches_each_a_few_times_only() {
        let mut immediates = Immediates::new(8);
        const MANY: u64 = 2000;
        for word in 0..MANY {
            immediates.wait(1, 100, id(word), |_| true);
        }
        let looked = std::cell::Cell::new(0u64);
        // From the back: the front one stays alive until the end.
        for gone in (0..MANY).rev() {
            let alive = |op: OperationId| {
                looked.set(looked.get() + 1);
                op.word < gone
            };
            immediates.over(1, alive, |_| true);
        }
        assert!(looked.get() < 8 * MANY, "{} looks", looked.get());
        assert_eq!(immediates.counters.len(), 0);
    }

    proptest! {
        #[test]
        fn waiters_are_served_in_order_and_nothing_is_lost(
            steps in prop::collection::vec((any::<bool>(), 0u32..3, 0u64..5), 0..200),
        ) {
            let mut immediates = Immediates::new(100);
            let mut model: BTreeMap<u32, (u64, VecDeque<(u64, u64)>)> = BTreeMap::new();
            let mut got = vec![];
            let mut want = vec![];
            for (i, (lands, value, wanted)) in steps.into_iter().enumerate() {
                let entry = model.entry(value).or_default();
                if lands {
                    entry.0 += 1;
                    let counted = immediates.landed(value, |op| { got.push(op.word); true });
                    prop_assert!(counted);
                } else {
                    entry.1.push_back((wanted, i as u64));
                    immediates.wait(value, wanted, id(i as u64), |op| {
                        got.push(op.word);
                        true
                    });
                }
                while let Some(&(n, op)) = entry.1.front() {
                    if n > entry.0 { break; }
                    entry.0 -= n;
                    entry.1.pop_front();
                    want.push(op);
                }
                prop_assert_eq!(&got, &want);
                prop_assert_eq!(immediates.count(value), entry.0);
            }
        }
    }
}
