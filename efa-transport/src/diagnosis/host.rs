//! What the kernel tells about this process.

use std::ops::Range;

use rustix::process::{Resource, getrlimit};

use super::Diagnosis;

/// How much memory the process may lock, which is what registering does to it.
///
/// ```
/// let locked = efa_transport::diagnosis::LockedMemory::current();
/// println!("{} of {} bytes locked", locked.locked, locked.limit);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockedMemory {
    /// The limit in bytes (`RLIMIT_MEMLOCK`); the largest number where there is none.
    pub limit: u64,
    /// Bytes that registrations have locked.
    pub locked: u64,
    /// Bytes that a registration asked for, where that is known.
    pub wanted: Option<u64>,
    /// Whether the process may exceed the limit (`CAP_IPC_LOCK`).
    pub privileged: bool,
}

impl LockedMemory {
    /// How it is at the moment.
    pub fn current() -> Self {
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
            wanted: None,
            privileged: capabilities.unwrap_or(0) >> CAP_IPC_LOCK & 1 == 1,
        }
    }

    /// Whether the limit is in the way of locking so many more bytes; where nobody knows how many,
    /// whether there is a limit.
    pub fn forbids(&self, wanted: Option<u64>) -> bool {
        // The kernel counts whole pages, of which a range may touch one more at each end.
        let after = wanted.map_or(u64::MAX - 1, |wanted| wanted.saturating_add(8192));
        !self.privileged && self.limit != u64::MAX && self.locked.saturating_add(after) > self.limit
    }
}

pub(super) struct Host {
    pub(super) locked: LockedMemory,
    /// The text of `/proc/self/maps`.
    pub(super) maps: String,
}

impl Host {
    pub(super) fn current() -> Self {
        Host {
            locked: LockedMemory::current(),
            maps: std::fs::read_to_string("/proc/self/maps").unwrap_or_default(),
        }
    }

    /// The first part of a range that the device can't write, if there is one.
    pub(super) fn first_fault(&self, memory: Range<u64>) -> Option<Diagnosis> {
        if self.maps.is_empty() || memory.is_empty() {
            return None;
        }
        let mut at = memory.start;
        // Mappings are listed in the order of their addresses.
        for map in self.maps.lines().filter_map(Mapping::parse) {
            if map.end <= at {
                continue;
            }
            if map.start > at {
                break;
            }
            if !map.writable {
                return Some(Diagnosis::ReadOnlyMapping {
                    addr: at,
                    file: map.file.to_owned(),
                });
            }
            at = map.end;
            if at >= memory.end {
                return None;
            }
        }
        Some(Diagnosis::NotMapped { addr: at })
    }
}

struct Mapping<'a> {
    start: u64,
    end: u64,
    writable: bool,
    file: &'a str,
}

impl<'a> Mapping<'a> {
    /// A line such as `7f00-7fff rw-p 00000000 08:01 42 /path`.
    fn parse(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut rest = rest.splitn(5, ' ');
        let permissions = rest.next()?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            writable: permissions.as_bytes().get(1) == Some(&b'w'),
            file: rest.nth(3).unwrap_or("").trim(),
        })
    }
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

    #[test]
    fn the_first_bad_page_of_a_range_is_found() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n\
                    3000-4000 r--p 00000000 08:01 42                         /lib/a file\n\
                    6000-7000 rw-p 00000000 00:00 0\n";
        let locked = LockedMemory::parse(u64::MAX, "");
        let host = Host {
            locked,
            maps: maps.into(),
        };
        assert_eq!(host.first_fault(0x1000..0x3000), None);
        assert_eq!(
            host.first_fault(0x1fff..0x3001),
            Some(Diagnosis::ReadOnlyMapping {
                addr: 0x3000,
                file: "/lib/a file".into()
            })
        );
        assert_eq!(
            host.first_fault(0x0..0x1001),
            Some(Diagnosis::NotMapped { addr: 0 })
        );
        assert_eq!(
            host.first_fault(0x6800..0x7001),
            Some(Diagnosis::NotMapped { addr: 0x7000 })
        );
        assert_eq!(
            host.first_fault(0x9000..0x9001),
            Some(Diagnosis::NotMapped { addr: 0x9000 })
        );
        assert_eq!(host.first_fault(5..5), None);
    }

    #[test]
    fn the_memory_of_this_process_is_seen_as_it_is() {
        static CONSTANT: [u8; 64] = [7; 64];
        let mut ours = vec![0u8; 100_000];
        let host = Host::current();
        let start = ours.as_mut_ptr() as u64;
        assert_eq!(host.first_fault(start..start + 100_000), None);
        let constant = CONSTANT.as_ptr() as u64;
        assert!(matches!(
            host.first_fault(constant..constant + 64),
            Some(Diagnosis::ReadOnlyMapping { .. })
        ));
        assert!(matches!(
            host.first_fault(0..1),
            Some(Diagnosis::NotMapped { addr: 0 })
        ));
    }
}
