//! The page lists by which the driver says where a memory region is.
//!
//! Up to four pages stand in the command. More stand in a list in the guest's memory, or, where
//! that list has no contiguous memory itself, in pages that chunks of pointers name: up to 510
//! pointers, then a link to the next chunk.

use super::memory::{Memory, Pieces};

/// Pages that stand in the command itself.
pub(crate) const INLINE: usize = 4;
/// Bytes of a chunk that names pages of the list.
const CHUNK: u64 = 4096;
/// Pointers of a full chunk.
const POINTERS: u64 = 510;
/// Bytes of the link behind them: a length and an address.
const LINK: u64 = 12;
/// Entries in one page of the list.
const ENTRIES: u64 = CHUNK / 8;
/// Entries that are read at once.
const BATCH: usize = 512;

/// Where the list is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// In the command.
    Inline([u64; INLINE]),
    /// In one piece, at this address.
    Direct(u64),
    /// In pages; the first chunk of pointers to them has this length and address.
    Chunks(u32, u64),
}

/// A memory region as the driver describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// Where its pages are listed.
    pub(crate) list: List,
    /// The size of a page: `1 << shift`.
    pub(crate) shift: u32,
    /// The address by which requests name the first byte.
    pub(crate) iova: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// The device shall be able to write it.
    pub(crate) writable: bool,
}

/// Reads the list and finds the memory. `None` for a list that makes no sense or names memory that
/// is not the guest's.
pub(crate) fn find(memory: &Memory, region: &Region) -> Option<Pieces> {
    let page = 1u64.checked_shl(region.shift)?;
    let skip = region.iova & (page - 1);
    let covered = skip.checked_add(region.length)?;
    let pages = covered.div_ceil(page);
    region.iova.checked_add(region.length)?;
    if region.length == 0 || page < 4096 {
        return None;
    }
    let mut gather = Gather {
        memory,
        page,
        skip,
        left: region.length,
        writable: region.writable,
        pieces: Pieces::default(),
    };
    match region.list {
        List::Inline(entries) => {
            for entry in entries.get(..usize::try_from(pages).ok()?)? {
                gather.page(*entry)?;
            }
        }
        List::Direct(address) => gather.entries(address, pages)?,
        List::Chunks(length, address) => gather.chunks(length, address, pages)?,
    }
    Some(gather.pieces)
}

struct Gather<'a> {
    memory: &'a Memory,
    page: u64,
    /// Bytes of the next page that do not belong to the region.
    skip: u64,
    /// Bytes of the region that are still to be found.
    left: u64,
    writable: bool,
    pieces: Pieces,
}

impl Gather<'_> {
    fn page(&mut self, address: u64) -> Option<()> {
        if address & (self.page - 1) != 0 {
            return None;
        }
        let bytes = (self.page - self.skip).min(self.left);
        let start = address.checked_add(self.skip)?;
        self.skip = 0;
        self.left -= bytes;
        self.memory
            .gather(start, bytes, self.writable, &mut self.pieces)
            .then_some(())
    }

    fn entries(&mut self, mut address: u64, mut count: u64) -> Option<()> {
        let mut bytes = [0; BATCH * 8];
        while count > 0 {
            let now = count.min(BATCH as u64);
            let part = &mut bytes[..now as usize * 8];
            if !self.memory.read(address, part) {
                return None;
            }
            for entry in part.chunks_exact(8) {
                let mut word = [0; 8];
                word.copy_from_slice(entry);
                self.page(u64::from_le_bytes(word))?;
            }
            count -= now;
            address = address.checked_add(now * 8)?;
        }
        Some(())
    }

    /// Each round takes pages off `left`, so that a chain which runs in a circle ends, too.
    fn chunks(&mut self, mut length: u32, mut address: u64, pages: u64) -> Option<()> {
        let mut left = pages;
        let mut bytes = [0; CHUNK as usize];
        loop {
            let lists = left.div_ceil(ENTRIES);
            let here = lists.min(POINTERS);
            if u64::from(length) != here * 8 + LINK {
                return None;
            }
            let chunk = &mut bytes[..length as usize];
            if !self.memory.read(address, chunk) {
                return None;
            }
            let (pointers, link) = chunk.split_at(here as usize * 8);
            for pointer in pointers.chunks_exact(8) {
                let mut word = [0; 8];
                word.copy_from_slice(pointer);
                let entries = left.min(ENTRIES);
                self.entries(u64::from_le_bytes(word), entries)?;
                left -= entries;
            }
            if left == 0 {
                return Some(());
            }
            let word = |at: usize| {
                u32::from_le_bytes([link[at], link[at + 1], link[at + 2], link[at + 3]])
            };
            length = word(0);
            address = u64::from(word(4)) | u64::from(word(8)) << 32;
        }
    }
}
