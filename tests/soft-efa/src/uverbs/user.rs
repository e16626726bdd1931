//! The program's memory, as a system call sees it: a bad address is `EFAULT`, not a fault.

use zerocopy::{FromBytes, IntoBytes};

/// A buffer that the program named for an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Out {
    pub(crate) addr: u64,
    pub(crate) len: usize,
}

impl Out {
    /// Writes as much of `bytes` as there is room for.
    pub(crate) fn put(self, bytes: &[u8]) -> Result<(), i32> {
        write(self.addr, &bytes[..bytes.len().min(self.len)])
    }

    /// Writes as much of `bytes` as there is room for, and zeros over the rest of the room.
    pub(crate) fn put_or_zero(self, bytes: &[u8]) -> Result<(), i32> {
        self.put(bytes)?;
        match self.len.checked_sub(bytes.len()) {
            Some(rest) if rest > 0 => write(self.addr + bytes.len() as u64, &vec![0; rest]),
            _ => Ok(()),
        }
    }

    /// The part behind the first `len` bytes.
    pub(crate) fn after(self, len: usize) -> Self {
        Self {
            addr: self.addr.wrapping_add(len as u64),
            len: self.len.saturating_sub(len),
        }
    }
}

/// Copies `len` bytes from the program.
pub(crate) fn read(addr: u64, len: usize) -> Result<Vec<u8>, i32> {
    let mut bytes = vec![0; len];
    if len > 0 {
        check(addr, len)?;
        // SAFETY: `check` found every page of the range readable, and `bytes` is as long; a bad
        // pointer may even lead into it, hence no claim that the two are apart. Threads
        // of the program may write the range meanwhile or unmap it, as they may during a real
        // system call; the contents are validated after the copy, and unmapping memory that is
        // an argument of a call in progress is a fault of the program's own.
        unsafe { std::ptr::copy(addr as *const u8, bytes.as_mut_ptr(), len) };
    }
    Ok(bytes)
}

/// Copies one value from the program.
pub(crate) fn read_value<T: FromBytes>(addr: u64) -> Result<T, i32> {
    let bytes = read(addr, size_of::<T>())?;
    T::read_from_bytes(&bytes).map_err(|_| libc::EFAULT)
}

/// Copies bytes to the program.
pub(crate) fn write(addr: u64, bytes: &[u8]) -> Result<(), i32> {
    if bytes.is_empty() {
        return Ok(());
    }
    check(addr, bytes.len())?;
    // SAFETY: `check` found every page of the range mapped. The program named it as the place for
    // an answer, so it is writable and nobody else uses it during the call.
    unsafe { std::ptr::copy(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    Ok(())
}

/// Copies one value to the program.
pub(crate) fn write_value<T: IntoBytes + zerocopy::Immutable>(
    addr: u64,
    value: &T,
) -> Result<(), i32> {
    write(addr, value.as_bytes())
}

/// Checks that every page of the range can be read, by a call that fails instead of faulting.
///
/// The copies themselves are plain ones, so that tools which watch memory accesses (valgrind,
/// sanitizers) see what is initialised.
fn check(addr: u64, len: usize) -> Result<(), i32> {
    const PAGE: u64 = 4096;
    let last = addr.checked_add(len as u64 - 1).ok_or(libc::EFAULT)?;
    if addr < PAGE {
        return Err(libc::EFAULT);
    }
    let mut scratch = [0u8; 64];
    let mut at = addr;
    loop {
        // One byte of each of up to 64 pages.
        let mut remote = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 64];
        let mut count = 0;
        while count < remote.len() && at <= last {
            remote[count] = libc::iovec {
                iov_base: at as *mut libc::c_void,
                iov_len: 1,
            };
            count += 1;
            match (at | (PAGE - 1)).checked_add(1) {
                Some(next) => at = next,
                None => return Err(libc::EFAULT),
            }
        }
        if count == 0 {
            return Ok(());
        }
        let local = libc::iovec {
            iov_base: scratch.as_mut_ptr().cast(),
            iov_len: count,
        };
        // SAFETY: both vectors are initialised up to their counts, `local` names `scratch`, and
        // the remote addresses are looked at by the kernel only, which reports bad ones.
        let got = unsafe {
            libc::process_vm_readv(
                libc::getpid(),
                &raw const local,
                1,
                remote.as_ptr(),
                count as u64,
                0,
            )
        };
        if got == -1 {
            return match std::io::Error::last_os_error().raw_os_error() {
                // A sandbox that forbids the call: trust the program.
                Some(libc::EPERM | libc::ENOSYS) => Ok(()),
                _ => Err(libc::EFAULT),
            };
        }
        if got as usize != count {
            return Err(libc::EFAULT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_efault() {
        for addr in [0, 8, 1 << 46, u64::MAX - 3, u64::MAX] {
            assert_eq!(read(addr, 16), Err(libc::EFAULT), "{addr:#x}");
            assert_eq!(write(addr, &[0; 16]), Err(libc::EFAULT), "{addr:#x}");
        }
        assert_eq!(read(0, 0), Ok(vec![]));
    }

    #[test]
    fn long_ranges_are_checked_to_their_end() {
        let data = vec![7u8; 300 * 4096];
        let copy = read(data.as_ptr() as u64, data.len()).unwrap();
        assert_eq!(copy, data);
    }

    #[test]
    fn an_answer_fills_its_room_and_no_more() {
        let mut room = [0xffu8; 8];
        let out = Out {
            addr: room.as_mut_ptr() as u64,
            len: 6,
        };
        out.put_or_zero(&[1, 2]).unwrap();
        assert_eq!(room, [1, 2, 0, 0, 0, 0, 0xff, 0xff]);
        out.put(&[9; 20]).unwrap();
        assert_eq!(room, [9, 9, 9, 9, 9, 9, 0xff, 0xff]);
    }
}
