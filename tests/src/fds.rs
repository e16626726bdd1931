//! What a process holds, to see whether something leaks.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};

/// The open files and mappings of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Open files by what they are, for example `socket` or a path.
    pub files: BTreeMap<String, usize>,
    /// Number of memory mappings by file; `""` is anonymous memory.
    pub mappings: BTreeMap<String, usize>,
    /// Threads.
    pub threads: usize,
}

/// Counts open files, mappings and threads of this process.
pub fn footprint() -> Result<Footprint> {
    let mut files = BTreeMap::new();
    let list = fs::read_dir("/proc/self/fd").context("can't list the open files")?;
    for entry in list {
        // The descriptor of the listing itself is gone when it is looked up, or is counted every
        // time.
        let Ok(target) = fs::read_link(entry?.path()) else {
            continue;
        };
        // socket:[1234] is a socket whatever its number.
        let target = target.to_string_lossy();
        let kind = target.split(":[").next().unwrap_or_default();
        *files.entry(kind.to_owned()).or_default() += 1;
    }
    let mut mappings = BTreeMap::new();
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        // Address, access, offset, device, inode, and perhaps a path with blanks in it.
        let path = line
            .split_whitespace()
            .skip(5)
            .collect::<Vec<_>>()
            .join(" ");
        *mappings.entry(path).or_default() += 1;
    }
    let threads = fs::read_dir("/proc/self/task")?.count();
    Ok(Footprint {
        files,
        mappings,
        threads,
    })
}

impl Footprint {
    /// All open files.
    pub fn open_files(&self) -> usize {
        self.files.values().sum()
    }

    /// The mappings of files and devices. Anonymous memory is left out: the allocator may grow
    /// its arenas whenever it likes.
    pub fn mapped_files(&self) -> BTreeMap<&str, usize> {
        self.mappings
            .iter()
            .filter(|(path, _)| path.starts_with('/'))
            .map(|(path, count)| (path.as_str(), *count))
            .collect()
    }
}
