//! The limit of locked memory (`ulimit -l`), which registered memory counts against.
//!
//! Memory isn't really locked here, and in a container the limit is often one that nobody chose
//! and nobody can raise. So it counts where the program, or whoever started it on soft-efa, has
//! lowered it; then the kernel's rule holds, its exception for `CAP_IPC_LOCK` included.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::ring::page_size;

/// The file in the run directory that says what the limit was when the run was made.
pub(crate) const FILE: &str = "lock-limit";

/// Pages of a process that are registered.
#[derive(Debug, Default)]
pub(crate) struct Locked {
    pages: Arc<AtomicU64>,
    /// The limit that the run was made under.
    at_start: OnceLock<u64>,
}

/// Pages that count as long as this lives.
#[derive(Debug)]
pub(crate) struct Charge {
    pages: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.fetch_sub(self.pages, Ordering::Relaxed);
    }
}

impl Locked {
    /// Counts the pages of a range, or refuses them: `ENOMEM`.
    /// `dir` is the run directory.
    pub(crate) fn charge(&self, dir: &Path, start: u64, length: u64) -> Result<Charge, i32> {
        let at_start = *self.at_start.get_or_init(|| limit_of_run(dir));
        let page = page_size();
        let pages = (start % page + length).div_ceil(page);
        let charge = Charge {
            pages,
            of: Arc::clone(&self.pages),
        };
        let before = self.pages.fetch_add(pages, Ordering::Relaxed);
        match limit_that_counts(at_start) {
            Some(limit) if before + pages > limit / page => Err(libc::ENOMEM),
            _ => Ok(charge),
        }
    }
}

/// The limit of this process in bytes; the largest number if there is none.
pub(crate) fn limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` has room for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}

fn limit_of_run(dir: &Path) -> u64 {
    let text = std::fs::read_to_string(dir.join(FILE)).unwrap_or_default();
    // Without the file no limit is a lower one.
    text.trim().parse().unwrap_or(0)
}

fn limit_that_counts(at_start: u64) -> Option<u64> {
    let limit = limit();
    (limit < at_start && !may_lock_all()).then_some(limit)
}

/// Whether the process has `CAP_IPC_LOCK`.
fn may_lock_all() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_as_long_as_they_are_registered() {
        let locked = Locked::default();
        let nowhere = Path::new("/nonexistent");
        let page = page_size();
        let first = locked.charge(nowhere, page - 1, 2).unwrap();
        let second = locked.charge(nowhere, 0, page).unwrap();
        assert_eq!(locked.pages.load(Ordering::Relaxed), 3);
        drop(first);
        assert_eq!(locked.pages.load(Ordering::Relaxed), 1);
        drop(second);
        assert_eq!(locked.pages.load(Ordering::Relaxed), 0);
    }
}
