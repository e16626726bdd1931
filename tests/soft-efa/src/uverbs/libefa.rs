//! Which hardware the loaded libefa knows.
//!
//! libefa refuses devices whose PCI id is not in its table. Where the hardware is left open,
//! soft-efa therefore shows an older one to an older libefa.

use std::ffi::{CStr, c_int, c_void};

use crate::profile::{PCI_VENDOR, Profile, ProfileName};

/// Whether a libefa is loaded and none that is loaded knows the PCI id of the default profile.
pub(crate) fn is_older() -> bool {
    let mut found = Found::default();
    // SAFETY: `visit` gets the address of `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found.knows_some && !found.knows_newest
}

#[derive(Default)]
struct Found {
    knows_some: bool,
    knows_newest: bool,
}

/// An entry of a provider's table: vendor and device, two 16-bit numbers side by side.
fn table_entry(name: ProfileName) -> [u16; 2] {
    [PCI_VENDOR, Profile::of(name).pci_device]
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and `data` is what `is_older` passed.
    let (info, found) = unsafe { (&*info, &mut *data.cast::<Found>()) };
    let name = if info.dlpi_name.is_null() {
        &[]
    } else {
        // SAFETY: the loader's names are C strings.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
    };
    // The program itself, too: libefa can be linked into it.
    let candidate = name.is_empty() || name.windows(6).any(|at| at == b"libefa");
    if !candidate || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader says how many headers there are.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_R == 0 {
            continue;
        }
        let start = (info.dlpi_addr + header.p_vaddr) as *const u8;
        // SAFETY: a readable segment of a loaded object, as long as the file's part of it. The
        // program may write to it meanwhile; the bytes are only compared.
        let bytes = unsafe { std::slice::from_raw_parts(start, header.p_filesz as usize) };
        found.knows_some |= contains(bytes, table_entry(ProfileName::C5n));
        found.knows_newest |= contains(bytes, table_entry(ProfileName::P5en));
    }
    0
}

/// Compares number by number: a library that watches memory may check what `memcmp` gets, and the
/// program's data has gaps that it wouldn't like.
fn contains(bytes: &[u8], entry: [u16; 2]) -> bool {
    let mut previous = 0;
    // Tables are aligned to two bytes at least.
    bytes.chunks_exact(2).any(|pair| {
        let number = u16::from_ne_bytes([pair[0], pair[1]]);
        let found = [previous, number] == entry;
        previous = number;
        found
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_at_even_places() {
        let entry = table_entry(ProfileName::P5en);
        assert!(contains(&[0, 0, 0x0f, 0x1d, 0xa3, 0xef, 0, 0], entry));
        assert!(!contains(&[0, 0x0f, 0x1d, 0xa3, 0xef, 0, 0, 0], entry));
        assert!(!contains(&[0x0f, 0x1d, 0xa2, 0xef], entry));
    }
}
