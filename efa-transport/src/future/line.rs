//! A queue from whose middle entries can be removed.

use slab::Slab;

/// First come, first served; whoever gives up leaves from where it is.
#[derive(Debug)]
pub(super) struct Line<T> {
    nodes: Slab<Node<T>>,
    ends: Option<(usize, usize)>,
}

#[derive(Debug)]
struct Node<T> {
    entry: T,
    before: Option<usize>,
    after: Option<usize>,
}

impl<T> Line<T> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Slab::new(),
            ends: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_none()
    }

    /// Adds an entry at the end, and returns its place.
    pub(super) fn push(&mut self, entry: T) -> usize {
        let before = self.ends.map(|(_, last)| last);
        let place = self.nodes.insert(Node {
            entry,
            before,
            after: None,
        });
        if let Some(before) = before {
            self.nodes[before].after = Some(place);
        }
        self.ends = Some((self.ends.map_or(place, |(first, _)| first), place));
        place
    }

    /// The entry that is served next.
    pub(super) fn front(&self) -> Option<&T> {
        self.ends.map(|(first, _)| &self.nodes[first].entry)
    }

    /// Its place.
    pub(super) fn front_place(&self) -> Option<usize> {
        self.ends.map(|(first, _)| first)
    }

    /// Takes the entry that is served next.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.remove(self.front_place()?)
    }

    /// Takes the entry at a place, if there is one.
    pub(super) fn remove(&mut self, place: usize) -> Option<T> {
        let node = self.nodes.try_remove(place)?;
        if let Some(before) = node.before {
            self.nodes[before].after = node.after;
        }
        if let Some(after) = node.after {
            self.nodes[after].before = node.before;
        }
        self.ends = self.ends.and_then(|(first, last)| {
            let first = if first == place {
                node.after
            } else {
                Some(first)
            };
            let last = if last == place {
                node.before
            } else {
                Some(last)
            };
            first.zip(last)
        });
        Some(node.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_leave_in_order_whoever_leaves_early(
            steps in prop::collection::vec((0u8..3, any::<prop::sample::Index>()), 0..200),
        ) {
            let (mut line, mut model) = (Line::new(), Vec::new());
            for (at, (what, which)) in steps.into_iter().enumerate() {
                match what {
                    0 => model.push((line.push(at), at)),
                    1 if model.is_empty() => prop_assert_eq!(line.pop(), None),
                    1 => prop_assert_eq!(line.pop(), Some(model.remove(0).1)),
                    _ if model.is_empty() => prop_assert_eq!(line.remove(at), None),
                    _ => {
                        let (place, entry) = model.remove(which.index(model.len()));
                        prop_assert_eq!(line.remove(place), Some(entry));
                    }
                }
                prop_assert_eq!(line.front(), model.first().map(|(_, entry)| entry));
                prop_assert_eq!(line.is_empty(), model.is_empty());
            }
        }
    }
}
