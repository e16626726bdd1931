//! Which shared libraries a program was linked with, as its ELF file says.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// A dynamic section, or a name, longer than this is not one.
const MOST: u64 = 1 << 16;

/// A 64-bit ELF file of this machine's byte order.
struct Elf {
    file: File,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl Elf {
    fn open(path: &Path) -> Option<Self> {
        let elf = Self {
            file: File::open(path).ok()?,
        };
        let ident: [u8; 6] = elf.bytes(0)?;
        let order = if cfg!(target_endian = "big") { 2 } else { 1 };
        (ident == [0x7f, b'E', b'L', b'F', 2, order]).then_some(elf)
    }

    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    }

    fn half(&self, at: u64) -> Option<u64> {
        Some(u16::from_ne_bytes(self.bytes(at)?).into())
    }

    fn long(&self, at: u64) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(at)?))
    }

    fn segments(&self) -> Option<Vec<Segment>> {
        let (table, size, count) = (self.long(32)?, self.half(54)?, self.half(56)?);
        (0..count)
            .map(|index| {
                let at = table.checked_add(index * size)?;
                Some(Segment {
                    kind: u32::from_ne_bytes(self.bytes(at)?),
                    offset: self.long(at.checked_add(8)?)?,
                    address: self.long(at.checked_add(16)?)?,
                    size: self.long(at.checked_add(32)?)?,
                })
            })
            .collect()
    }

    /// The string at `at`.
    fn name(&self, at: u64) -> Option<String> {
        let mut name = vec![0; 256];
        let read = self.file.read_at(&mut name, at).ok()?;
        let end = name[..read].iter().position(|byte| *byte == 0)?;
        name.truncate(end);
        String::from_utf8(name).ok()
    }
}

/// The libraries that the program at `path` names; `None` for anything but a dynamically linked
/// program of this machine.
pub(crate) fn libraries(path: &Path) -> Option<Vec<String>> {
    let elf = Elf::open(path)?;
    let segments = elf.segments()?;
    let dynamic = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let (mut names, mut table) = (Vec::new(), None);
    for index in 0..dynamic.size.min(MOST) / 16 {
        let at = dynamic.offset.checked_add(index * 16)?;
        match (elf.long(at)?, elf.long(at.checked_add(8)?)?) {
            (DT_NULL, _) => break,
            (DT_NEEDED, offset) => names.push(offset),
            (DT_STRTAB, address) => table = Some(address),
            _ => {}
        }
    }
    let address = table?;
    let home = segments.iter().find(|segment| {
        segment.kind == PT_LOAD
            && address
                .checked_sub(segment.address)
                .is_some_and(|offset| offset < segment.size)
    })?;
    let strings = home.offset.checked_add(address - home.address)?;
    names
        .into_iter()
        .map(|offset| elf.name(strings.checked_add(offset)?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_names_the_c_library() {
        let names = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(
            names.iter().any(|name| name.starts_with("libc.so")),
            "{names:?}"
        );
    }

    #[test]
    fn what_is_no_program_names_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(libraries(file.path()), None);
        std::fs::write(file.path(), b"#!/bin/sh\n").unwrap();
        assert_eq!(libraries(file.path()), None);
        // Cut off after the header of a real one.
        let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(64);
        std::fs::write(file.path(), bytes).unwrap();
        assert_eq!(libraries(file.path()), None);
    }
}
