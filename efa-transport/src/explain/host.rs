//! What the kernel tells about this process.

use rustix::process::{Resource, getrlimit};

/// How much memory the process may lock, which is what registering does to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LockedMemory {
    /// The limit in bytes (`RLIMIT_MEMLOCK`); the largest number where there is none.
    pub(super) limit: u64,
    /// Bytes that registrations have locked.
    pub(super) locked: u64,
    /// Whether the process may exceed the limit (`CAP_IPC_LOCK`).
    pub(super) privileged: bool,
}

impl LockedMemory {
    /// How it is at the moment.
    pub(super) fn current() -> Self {
        let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
        // Rights are a thread's, not the process's.
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self::parse(limit, &status)
    }

    /// From `/proc/thread-self/status`. What is missing there counts as none.
    fn parse(limit: u64, status: &str) -> Self {
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()
        };
        let kib = |name| {
            field(name)
                .and_then(|text| text.parse::<u64>().ok())
                .unwrap_or(0)
        };
        const CAP_IPC_LOCK: u32 = 14;
        let capabilities = field("CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
        LockedMemory {
            limit,
            locked: kib("VmPin").saturating_mul(1024),
            privileged: capabilities.unwrap_or(0) >> CAP_IPC_LOCK & 1 == 1,
        }
    }

    /// Whether the limit is in the way of locking so many more bytes; where nobody knows how many,
    /// whether there is a limit.
    pub(super) fn forbids(&self, wanted: Option<u64>) -> bool {
        // The kernel counts whole pages, of which a range may touch one more at each end.
        let after = wanted.map_or(u64::MAX - 1, |wanted| wanted.saturating_add(8192));
        !self.privileged && self.limit != u64::MAX && self.locked.saturating_add(after) > self.limit
    }
}

/// The mappings of this process: `/proc/self/smaps`, or where that can't be read, the shorter
/// `/proc/self/maps`.
pub(super) fn mappings() -> String {
    std::fs::read_to_string("/proc/self/smaps")
        .or_else(|_| std::fs::read_to_string("/proc/self/maps"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_and_gaps_in_it_are_harmless() {
        let status = "Name:\tx\nVmPin:\t     128 kB\nCapEff:\t000001ffffffffff\n";
        let all = LockedMemory::parse(5, status);
        assert_eq!((all.locked, all.privileged), (128 << 10, true));
        let none = LockedMemory::parse(5, "CapEff:\tnonsense\nVmPin:\n");
        assert_eq!((none.locked, none.privileged), (0, false));
        let one = LockedMemory::parse(5, "CapEff:\t0000000000004000\n");
        assert!(one.privileged);
        assert!(LockedMemory::current().limit > 0);
    }
}
