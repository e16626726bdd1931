//! Immediate counters: how a receiver learns that data has landed.
//!
//! On an unordered fabric, the arrival of one write says nothing about another. The only
//! correct way to know that N writes have landed is to let each carry immediate data and to
//! count. A count is a number of landed writes that nobody has waited for yet; a waiter for
//! N takes N of it. Waiters for one value are served in the order in which they came.

use std::collections::HashMap;

use crate::ops::{NONE, OperationId};

#[derive(Clone, Copy, Debug)]
struct Counter {
    /// Landed and not waited for.
    landed: u64,
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    wanted: u64,
    operation: OperationId,
    next: u32,
}

/// All counters of an endpoint.
#[derive(Debug)]
pub(crate) struct Immediates {
    counters: HashMap<u32, Counter>,
    waiters: Vec<Waiter>,
    free: u32,
    limit: usize,
    lost: u64,
}

impl Immediates {
    /// Counts at most `limit` different values.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            counters: HashMap::new(),
            waiters: Vec::new(),
            free: NONE,
            limit: limit.max(1),
            lost: 0,
        }
    }

    /// A write with this value has landed. Calls `done` for each waiter that is satisfied
    /// and still alive; `done` says whether it was. False where there was no room to count.
    pub(crate) fn landed(&mut self, value: u32, mut done: impl FnMut(OperationId) -> bool) -> bool {
        let full = self.counters.len() >= self.limit;
        match self.counters.get_mut(&value) {
            Some(counter) => counter.landed += 1,
            None if full => {
                self.lost += 1;
                return false;
            }
            None => {
                let counter = Counter {
                    landed: 1,
                    first: NONE,
                    last: NONE,
                };
                self.counters.insert(value, counter);
            }
        }
        self.settle(value, &mut done);
        true
    }

    /// Adds a waiter for `wanted` writes; it may be satisfied at once.
    pub(crate) fn wait(
        &mut self,
        value: u32,
        wanted: u64,
        operation: OperationId,
        mut done: impl FnMut(OperationId) -> bool,
    ) {
        let waiter = Waiter {
            wanted,
            operation,
            next: NONE,
        };
        let index = if self.free == NONE {
            self.waiters.push(waiter);
            self.waiters.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.waiters[index as usize].next;
            self.waiters[index as usize] = waiter;
            index
        };
        let counter = self.counters.entry(value).or_insert(Counter {
            landed: 0,
            first: NONE,
            last: NONE,
        });
        if counter.first == NONE {
            counter.first = index;
        } else {
            self.waiters[counter.last as usize].next = index;
        }
        counter.last = index;
        self.settle(value, &mut done);
    }

    /// Serves the waiters that the count suffices for.
    fn settle(&mut self, value: u32, done: &mut impl FnMut(OperationId) -> bool) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        while counter.first != NONE {
            let index = counter.first;
            let waiter = self.waiters[index as usize];
            if waiter.wanted > counter.landed {
                break;
            }
            counter.first = waiter.next;
            if counter.first == NONE {
                counter.last = NONE;
            }
            self.waiters[index as usize].next = self.free;
            self.free = index;
            // One that was cancelled takes nothing.
            if done(waiter.operation) {
                counter.landed -= waiter.wanted;
            }
        }
        if counter.first == NONE && counter.landed == 0 {
            self.counters.remove(&value);
        }
    }

    /// Takes waiters out that are not alive any more, so that they don't hold up others.
    pub(crate) fn prune(
        &mut self,
        value: u32,
        alive: impl Fn(OperationId) -> bool,
        mut done: impl FnMut(OperationId) -> bool,
    ) {
        let Some(counter) = self.counters.get_mut(&value) else {
            return;
        };
        let mut before = NONE;
        let mut at = counter.first;
        while at != NONE {
            let waiter = self.waiters[at as usize];
            if alive(waiter.operation) {
                before = at;
            } else {
                if before == NONE {
                    counter.first = waiter.next;
                } else {
                    self.waiters[before as usize].next = waiter.next;
                }
                if counter.last == at {
                    counter.last = before;
                }
                self.waiters[at as usize].next = self.free;
                self.free = at;
            }
            at = waiter.next;
        }
        self.settle(value, &mut done);
    }

    /// Writes with this value that have landed and that nobody has waited for.
    pub(crate) fn count(&self, value: u32) -> u64 {
        self.counters
            .get(&value)
            .map_or(0, |counter| counter.landed)
    }

    /// The values that have waiters.
    pub(crate) fn waited_for(&self) -> Vec<u32> {
        self.counters
            .iter()
            .filter(|(_, counter)| counter.first != NONE)
            .map(|(&value, _)| value)
            .collect()
    }

    /// Writes that could not be counted, since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    #[test]
    fn early_arrivals_count() {
        let mut immediates = Immediates::new(10);
        for _ in 0..3 {
            assert!(immediates.landed(7, |_| unreachable!()));
        }
        let mut done = vec![];
        immediates.wait(7, 2, OperationId(1), |op| {
            done.push(op);
            true
        });
        assert_eq!(done, [OperationId(1)]);
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
        immediates.wait(1, 100, OperationId(1), |_| true);
        immediates.wait(1, 1, OperationId(2), |_| true);
        let mut done = vec![];
        immediates.landed(1, |op| {
            done.push(op);
            true
        });
        assert!(done.is_empty());
        immediates.prune(
            1,
            |op| op != OperationId(1),
            |op| {
                done.push(op);
                true
            },
        );
        assert_eq!(done, [OperationId(2)]);
        assert_eq!(immediates.count(1), 0);
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
                    let counted = immediates.landed(value, |op| { got.push(op.0); true });
                    prop_assert!(counted);
                } else {
                    entry.1.push_back((wanted, i as u64));
                    immediates.wait(value, wanted, OperationId(i as u64), |op| {
                        got.push(op.0);
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
