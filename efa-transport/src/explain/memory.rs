//! Which part of a range can't be registered, and why.

use std::ops::Range;

use efa_verbs::Access;

use super::explanation::Explanation;

/// The first part of a range that is not as a registration demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    kind: Kind,
    addr: u64,
    /// What is mapped there: a file, a name such as `[vvar]`, or nothing.
    file: String,
    access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing is mapped.
    Hole,
    /// The registers or memory of a device, or of the kernel.
    Device,
    /// Mapped without the right to read: guard pages, and addresses that a GPU's driver reserves.
    NoAccess,
    /// Mapped without the right to write, which the access demands.
    ReadOnly,
    /// A writable, shared mapping of a file. Kernels from 6.5 on pin none of these for writing, unless the
    /// file is in memory.
    SharedFile,
}

impl Fault {
    /// The first fault of a range. `None` where nothing is known, or nothing is wrong.
    pub(super) fn first(mappings: &str, range: Range<u64>, access: Access) -> Option<Self> {
        if mappings.is_empty() || range.is_empty() {
            return None;
        }
        let fault = |kind, addr, file: &str| Fault {
            kind,
            addr,
            file: file.to_owned(),
            access,
        };
        let mut at = range.start;
        let mut shared = None;
        // They are listed in the order of their addresses.
        for map in Mapping::all(mappings).filter(|map| map.end > range.start) {
            if map.start > at {
                break;
            }
            match map.wrong(access) {
                // What is surely wrong goes before what may be.
                Some(Kind::SharedFile) => {
                    shared.get_or_insert(fault(Kind::SharedFile, at, map.file));
                }
                Some(kind) => return Some(fault(kind, at, map.file)),
                None => {}
            }
            at = map.end;
            if at >= range.end {
                return shared;
            }
        }
        Some(fault(Kind::Hole, at, ""))
    }

    pub(super) fn explanation(self) -> Explanation {
        let Self { addr, access, .. } = self;
        let file = match self.file.as_str() {
            "" => String::new(),
            file => format!(" ({file})"),
        };
        match self.kind {
            Kind::Hole => Explanation::new(
                format!("Nothing is mapped at {addr:#x}."),
                "Check address and length, and that the memory was not unmapped before. In a \
                 RegistrationCache, invalidate memory before unmapping it.",
            ),
            Kind::Device => Explanation::new(
                format!(
                    "The addresses at {addr:#x} are not memory, but a device's or the kernel's{file}."
                ),
                "Register a GPU's memory as a dmabuf (Domain::register_dmabuf), or copy the data to \
                 ordinary memory.",
            ),
            Kind::NoAccess => Explanation::new(
                format!(
                    "The addresses at {addr:#x} are mapped without the right to read them{file}, as guard \
                     pages are, and the addresses of a GPU's memory."
                ),
                "Register a GPU's memory as a dmabuf (Domain::register_dmabuf); make ordinary memory \
                 accessible (mprotect) before it is registered.",
            ),
            Kind::ReadOnly => Explanation::new(
                format!(
                    "The memory at {addr:#x} is mapped for reading only{file}, and {access:?} lets it be \
                     written."
                ),
                "Map it writable, or register it with Access::LOCAL_READ or Access::REMOTE_READ.",
            ),
            Kind::SharedFile => Explanation::new(
                format!(
                    "The memory at {addr:#x} is a shared mapping of a file{file}, which kernels from 6.5 on \
                     let no device write."
                ),
                "Use anonymous memory, a memfd or a file in /dev/shm or hugetlbfs; or register it with \
                 Access::LOCAL_READ or Access::REMOTE_READ.",
            ),
        }
    }
}

struct Mapping<'a> {
    start: u64,
    end: u64,
    permissions: &'a str,
    file: &'a str,
    /// Pages that the kernel can't pin, as `smaps` has it.
    special: bool,
}

impl<'a> Mapping<'a> {
    /// From the text of `smaps` or `maps`.
    fn all(text: &'a str) -> impl Iterator<Item = Self> {
        let mut lines = text.lines().peekable();
        std::iter::from_fn(move || {
            let mut map = lines.find_map(Self::parse)?;
            while let Some(line) = lines.next_if(|line| Self::parse(line).is_none()) {
                if let Some(flags) = line.strip_prefix("VmFlags:") {
                    map.special = flags
                        .split_whitespace()
                        .any(|flag| matches!(flag, "io" | "pf"));
                }
            }
            Some(map)
        })
    }

    /// A line such as `7f00-7fff rw-p 00000000 08:01 42 /path`.
    fn parse(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let mut rest = rest.splitn(5, ' ');
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            permissions: rest.next()?,
            file: rest.nth(3).unwrap_or("").trim(),
            special: false,
        })
    }

    fn wrong(&self, access: Access) -> Option<Kind> {
        let may = |right| self.permissions.contains(right);
        let writes = access.contains(Access::LOCAL);
        let in_memory = [
            "/dev/shm/",
            "/dev/zero",
            "/memfd:",
            "/SYSV",
            "/anon_hugepage",
        ];
        let in_memory = in_memory.iter().any(|start| self.file.starts_with(start));
        // Where only `maps` can be read, the name has to do.
        let device = self.file.starts_with("/dev/") || self.file.starts_with("/sys/");
        if self.special || device && !in_memory || self.file.starts_with("[v") {
            Some(Kind::Device)
        } else if !may('r') {
            Some(Kind::NoAccess)
        } else if writes && !may('w') {
            Some(Kind::ReadOnly)
        } else if writes && may('s') && self.file.starts_with('/') && !in_memory {
            Some(Kind::SharedFile)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 rw-p 00000000 00:00 0 \n\
        3000-4000 r--p 00000000 08:01 42                         /lib/a file\n\
        6000-7000 rw-p 00000000 00:00 0\n\
        7000-8000 ---p 00000000 00:00 0\n\
        8000-9000 rw-s 00000000 00:05 17 /dev/nvidia0\n\
        9000-a000 rw-s 00000000 08:01 17 /data/file\n\
        a000-b000 rw-s 00000000 00:01 17 /memfd:pool (deleted)\n\
        b000-c000 ---p 00000000 00:00 0\n\
        Size: 4 kB\n\
        VmFlags: mr mw me\n\
        c000-d000 rw-s 00000000 00:00 0\n\
        Size: 4 kB\n\
        VmFlags: rd wr sh pf io dc\n\
        d000-e000 rw-p 00000000 00:00 0\n\
        VmFlags: rd wr mr mw me ac\n\
        e000-f000 r--p 00000000 00:00 0   [vvar]\n";

    fn first(range: Range<u64>, access: Access) -> Option<(Kind, u64)> {
        Fault::first(MAPS, range, access).map(|fault| (fault.kind, fault.addr))
    }

    #[test]
    fn the_first_bad_page_of_a_range_is_found() {
        let local = |range| first(range, Access::LOCAL);
        assert_eq!(local(0x1000..0x3000), None);
        assert_eq!(local(0x1fff..0x3001), Some((Kind::ReadOnly, 0x3000)));
        assert_eq!(local(0x0..0x1001), Some((Kind::Hole, 0)));
        assert_eq!(local(0x3800..0x6001), Some((Kind::ReadOnly, 0x3800)));
        assert_eq!(local(0xe000..0xf001), Some((Kind::Device, 0xe000)));
        assert_eq!(local(0x1_0000..0x1_0001), Some((Kind::Hole, 0x1_0000)));
        assert_eq!(local(5..5), None);
        assert_eq!(Fault::first("", 0..5, Access::LOCAL), None);
    }

    #[test]
    fn the_access_says_what_is_demanded_of_a_mapping() {
        for access in [Access::LOCAL_READ, Access::REMOTE_READ] {
            assert_eq!(first(0x1000..0x4000, access), None);
            assert_eq!(first(0x9000..0xa000, access), None);
            assert_eq!(
                first(0x7000..0x8000, access),
                Some((Kind::NoAccess, 0x7000))
            );
        }
        let write = Access::REMOTE_WRITE;
        assert_eq!(first(0x1000..0x4000, write), Some((Kind::ReadOnly, 0x3000)));
    }

    #[test]
    fn what_is_no_memory_is_told_from_what_is_for_reading_only() {
        let local = |at: u64| first(at..at + 0x1000, Access::LOCAL).map(|found| found.0);
        assert_eq!(local(0x7000), Some(Kind::NoAccess));
        assert_eq!(local(0x8000), Some(Kind::Device));
        assert_eq!(local(0x9000), Some(Kind::SharedFile));
        assert_eq!(local(0xa000), None);
        assert_eq!(local(0xb000), Some(Kind::NoAccess));
        assert_eq!(local(0xc000), Some(Kind::Device));
        assert_eq!(local(0xd000), None);
        assert_eq!(local(0xe000), Some(Kind::Device));
        // What may be wrong is told only where nothing surely is.
        let both = first(0x9000..0xc000, Access::LOCAL);
        assert_eq!(both, Some((Kind::NoAccess, 0xb000)));
        for at in [0x7000, 0x8000, 0xb000, 0xc000, 0xe000] {
            let fault = Fault::first(MAPS, at..at + 1, Access::LOCAL).unwrap();
            let text = fault.explanation().to_string();
            assert!(
                text.contains("dmabuf") && !text.contains("reading only"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_memory_of_this_process_is_seen_as_it_is() {
        static CONSTANT: [u8; 64] = [7; 64];
        let mut ours = vec![0u8; 100_000];
        let mappings = super::super::host::mappings();
        let start = ours.as_mut_ptr() as u64;
        assert_eq!(
            Fault::first(&mappings, start..start + 100_000, Access::LOCAL),
            None
        );
        let constant = CONSTANT.as_ptr() as u64;
        let of = |access| Fault::first(&mappings, constant..constant + 64, access);
        assert_eq!(of(Access::LOCAL).unwrap().kind, Kind::ReadOnly);
        assert_eq!(of(Access::REMOTE_READ), None);
        let zero = Fault::first(&mappings, 0..1, Access::LOCAL).unwrap();
        assert_eq!((zero.kind, zero.addr), (Kind::Hole, 0));
    }
}
