//! Which registrations cover which addresses.

use std::collections::BTreeMap;
use std::ops::Range;

/// Registrations, by numbers of the caller's, with their addresses and access (as a set of bits).
///
/// Within one access none contains another, so that both starts and ends ascend, and the one before an
/// address reaches furthest beyond it.
#[derive(Debug, Default)]
pub(super) struct Table {
    by_access: BTreeMap<u32, BTreeMap<u64, Entry>>,
    entries: usize,
    bytes: u64,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    end: u64,
    id: usize,
    used: u64,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Counted once for each registration that contains them.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One that contains the range and allows at least the access, and where it begins.
    pub(super) fn find(&mut self, range: &Range<u64>, access: u32) -> Option<(usize, u64)> {
        self.clock += 1;
        for (&allowed, entries) in &mut self.by_access {
            if allowed & access == access
                && let Some((&start, entry)) = entries.range_mut(..=range.start).next_back()
                && entry.end >= range.end
            {
                entry.used = self.clock;
                return Some((entry.id, start));
            }
        }
        None
    }

    /// Removes those that a registration of this range would make superfluous: inside of it, with no
    /// other access than its.
    pub(super) fn take_inside(&mut self, range: &Range<u64>, access: u32) -> Vec<usize> {
        self.take(|allowed, start, entry| {
            allowed & access == allowed && range.start <= start && entry.end <= range.end
        })
    }

    /// Adds a registration that [`find`](Self::find) found none for and that has none
    /// [inside](Self::take_inside).
    pub(super) fn insert(&mut self, range: Range<u64>, access: u32, id: usize) {
        let entry = Entry {
            end: range.end,
            id,
            used: self.clock,
        };
        let entries = self.by_access.entry(access).or_default();
        entries.insert(range.start, entry);
        self.entries += 1;
        self.bytes += range.end - range.start;
    }

    /// Removes those with any byte of the range.
    pub(super) fn take_overlapping(&mut self, range: Range<u64>) -> Vec<usize> {
        self.take(|_, start, entry| start < range.end && range.start < entry.end)
    }

    /// Removes the one that was not used for longest, of those that `may` go.
    pub(super) fn take_oldest(&mut self, may: impl Fn(usize) -> bool) -> Option<usize> {
        let all = self.by_access.values().flat_map(BTreeMap::values);
        let oldest = all
            .filter(|entry| may(entry.id))
            .min_by_key(|entry| entry.used)?
            .id;
        self.take(|_, _, entry| entry.id == oldest).pop()
    }

    /// Removes those for which `which` holds, of access, start and entry. It looks at all of them,
    /// which is nothing beside the registration or deregistration that it is done for.
    fn take(&mut self, which: impl Fn(u32, u64, &Entry) -> bool) -> Vec<usize> {
        let mut taken = Vec::new();
        for (&access, entries) in &mut self.by_access {
            entries.retain(|&start, entry| {
                let goes = which(access, start, entry);
                if goes {
                    self.entries -= 1;
                    self.bytes -= entry.end - start;
                    taken.push(entry.id);
                }
                !goes
            });
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_weaker_access_is_served_by_a_stronger_one_and_not_the_other_way() {
        let mut table = Table::default();
        table.insert(0..100, 0b11, 7);
        assert_eq!(table.find(&(10..20), 0b01), Some((7, 0)));
        assert_eq!(table.find(&(10..20), 0b00), Some((7, 0)));
        assert_eq!(table.find(&(10..20), 0b111), None);
        assert_eq!(table.find(&(10..101), 0b11), None);
    }

    #[test]
    fn what_a_new_one_contains_is_superfluous_unless_it_allows_more() {
        let mut table = Table::default();
        table.insert(100..110, 1, 0);
        table.insert(120..130, 3, 1);
        table.insert(135..145, 1, 2);
        assert_eq!(table.take_inside(&(90..140), 1), [0]);
        assert_eq!((table.len(), table.bytes()), (2, 20));
    }

    #[test]
    fn the_oldest_goes_first_of_those_that_may() {
        let mut table = Table::default();
        for id in 0..3 {
            let range = id as u64 * 100..id as u64 * 100 + 10;
            assert_eq!(table.find(&range, 1), None);
            table.insert(range, 1, id);
        }
        assert!(table.find(&(0..10), 1).is_some());
        assert_eq!(table.take_oldest(|id| id != 1), Some(2));
        assert_eq!(table.take_oldest(|_| true), Some(1));
        assert_eq!(table.take_oldest(|id| id != 0), None);
        assert_eq!((table.len(), table.bytes()), (1, 10));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Get(Range<u64>, u32),
        TakeOverlapping(Range<u64>),
        TakeOldest,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..200u64, 1..80u64).prop_map(|(start, length)| start..start + length);
        prop_oneof![
            12 => (range(), 0..8u32).prop_map(|(range, access)| Step::Get(range, access)),
            3 => range().prop_map(Step::TakeOverlapping),
            1 => Just(Step::TakeOldest),
        ]
    }

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn the_table_finds_what_a_list_of_all_finds(steps in prop::collection::vec(step(), 1..80)) {
            let mut table = Table::default();
            let mut list: Vec<(Range<u64>, u32, usize)> = Vec::new();
            for (id, step) in steps.into_iter().enumerate() {
                let gone = match step {
                    Step::Get(range, access) => {
                        let serves = |entry: &&(Range<u64>, u32, usize)| {
                            entry.1 & access == access
                                && entry.0.start <= range.start
                                && entry.0.end >= range.end
                        };
                        match table.find(&range, access) {
                            Some((found, start)) => {
                                let entry = list.iter().find(|entry| entry.2 == found);
                                let entry = entry.filter(serves);
                                prop_assert_eq!(entry.map(|entry| entry.0.start), Some(start));
                                Vec::new()
                            }
                            None => {
                                prop_assert_eq!(list.iter().find(serves), None);
                                let gone = table.take_inside(&range, access);
                                table.insert(range.clone(), access, id);
                                list.push((range, access, id));
                                gone
                            }
                        }
                    }
                    Step::TakeOverlapping(range) => {
                        let gone = table.take_overlapping(range.clone());
                        let left = list.iter().filter(|entry| !gone.contains(&entry.2));
                        for (left, ..) in left {
                            prop_assert!(left.end <= range.start || range.end <= left.start);
                        }
                        gone
                    }
                    Step::TakeOldest => {
                        let gone = table.take_oldest(|_| true);
                        prop_assert_eq!(gone.is_none(), list.is_empty());
                        Vec::from_iter(gone)
                    }
                };
                list.retain(|entry| !gone.contains(&entry.2));
                prop_assert_eq!(table.len(), list.len());
                let bytes: u64 = list.iter().map(|(range, ..)| range.end - range.start).sum();
                prop_assert_eq!(table.bytes(), bytes);
            }
        }
    }
}
