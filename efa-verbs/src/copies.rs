//! Copies of registered memory take turns where their bytes overlap.
//!
//! The same bytes may be part of several regions: of different domains, owned in one and named by
//! address in another. So what keeps copies apart is the addresses that they touch, not the region that
//! they go through. A copy enters its range in the list below and waits until no earlier one in the list
//! overlaps it, unless both only read. The list has as many entries as there are copies at the moment;
//! its lock is held for looking through it, never during a copy. Since each copy waits for earlier ones
//! only, and for none while it holds another range, the earliest never waits and none waits for ever.
//!
//! Two mappings of the same memory at different addresses are different ranges here, as they are to the
//! language.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The copies that run or wait, in the order in which they came.
static COPIES: Mutex<List> = Mutex::new(List {
    next: 0,
    entries: Vec::new(),
    waiting: 0,
});
static CHANGED: Condvar = Condvar::new();

struct List {
    next: u64,
    entries: Vec<Entry>,
    /// How many of them wait.
    waiting: usize,
}

struct Entry {
    number: u64,
    bytes: Range<usize>,
    writes: bool,
}

impl List {
    /// Whether an earlier copy is in the way of this one.
    fn is_blocked(&self, number: u64, bytes: &Range<usize>, writes: bool) -> bool {
        self.entries
            .iter()
            .take_while(|entry| entry.number < number)
            .any(|entry| {
                (writes || entry.writes)
                    && entry.bytes.start < bytes.end
                    && bytes.start < entry.bytes.end
            })
    }
}

fn list() -> MutexGuard<'static, List> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy has these bytes until this is dropped.
pub(crate) struct Copying(u64);

impl Copying {
    /// Waits until no other copy writes the bytes.
    pub(crate) fn reading(bytes: Range<usize>) -> Self {
        Self::begin(bytes, false)
    }

    /// Waits until no other copy reads or writes the bytes.
    pub(crate) fn writing(bytes: Range<usize>) -> Self {
        Self::begin(bytes, true)
    }

    fn begin(bytes: Range<usize>, writes: bool) -> Self {
        let mut list = list();
        let number = list.next;
        list.next += 1;
        list.entries.push(Entry {
            number,
            bytes: bytes.clone(),
            writes,
        });
        if list.is_blocked(number, &bytes, writes) {
            list.waiting += 1;
            list = CHANGED
                .wait_while(list, |list| list.is_blocked(number, &bytes, writes))
                .unwrap_or_else(PoisonError::into_inner);
            list.waiting -= 1;
        }
        Self(number)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let mut list = list();
        // Numbers only grow, and entries keep their order.
        if let Ok(at) = list
            .entries
            .binary_search_by_key(&self.0, |entry| entry.number)
        {
            list.entries.remove(at);
        }
        if list.waiting > 0 {
            CHANGED.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    // Addresses of nothing, far from each other, so that the tests don't meet.
    const PLENTY: Duration = Duration::from_secs(60);

    #[test]
    fn copies_of_other_bytes_and_readers_of_the_same_do_not_wait() {
        let _writing = Copying::writing(100..200);
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let _before = Copying::writing(50..100);
            let _after = Copying::writing(200..300);
            let _one = Copying::reading(300..400);
            let _other = Copying::reading(350..450);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(PLENTY).expect("it waited");
    }

    #[test]
    fn a_writer_is_alone_with_its_bytes_and_not_starved_by_readers() {
        const BASE: usize = 1 << 20;
        let (inside, readers) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for worker in 0..4 {
                let (inside, readers) = (&inside, &readers);
                scope.spawn(move || {
                    for round in 0..500 {
                        if worker < 2 {
                            // Of two ranges that overlap in part.
                            let start = BASE + 64 * worker;
                            let _writing = Copying::writing(start..start + 128);
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "{round}");
                            assert_eq!(readers.load(Ordering::SeqCst), 0, "{round}");
                            inside.fetch_sub(1, Ordering::SeqCst);
                        } else {
                            let _reading = Copying::reading(BASE + 100..BASE + 101);
                            readers.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(inside.load(Ordering::SeqCst), 0, "{round}");
                            readers.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(list().waiting, 0);
    }
}
