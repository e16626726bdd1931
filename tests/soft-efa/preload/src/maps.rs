//! `mmap`: of a device file, only what the kernel would map.

use std::ffi::{c_int, c_void};

use soft_efa::uverbs;

use crate::{aside, set_errno};

macro_rules! maps {
    ($($name:ident),*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            addr: *mut c_void,
            length: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            if fd >= 0
                && flags & libc::MAP_ANONYMOUS == 0
                && uverbs::is_marked(fd)
                && let Some(Err(errno)) = aside(|| uverbs::mmap(fd, length, flags, offset))
            {
                set_errno(errno);
                return libc::MAP_FAILED;
            }
            // Memory allocators map before anything can be looked up: hence not the next definition.
            // SAFETY: the program's own arguments; the kernel takes them as the function does.
            let mapped = unsafe {
                libc::syscall(libc::SYS_mmap, addr, length, protection, flags, fd, offset)
            };
            mapped as *mut c_void
        }
    )*};
}

maps!(mmap, mmap64);
