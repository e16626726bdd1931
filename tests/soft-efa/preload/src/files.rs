//! Functions that read, write and place: a device file takes commands, and is no file with contents.

use std::ffi::{c_int, c_void};

use soft_efa::uverbs;

use crate::next::call_next;
use crate::{answer, aside, set_errno};

fn is_device(fd: c_int) -> bool {
    uverbs::is_marked(fd) && aside(|| uverbs::is_device_file(fd))
}

/// A command written to a device file, or what else is written to a descriptor of ours; `None` for
/// any other.
fn written(fd: c_int, buf: *const c_void, count: usize) -> Option<isize> {
    if !uverbs::is_marked(fd) {
        return None;
    }
    if aside(|| uverbs::is_event_file(fd)) {
        // Open for reading only.
        set_errno(libc::EBADF);
        return Some(-1);
    }
    let mut ours = true;
    let mut written = 0;
    let failed = answer(|| match uverbs::write(fd, buf as usize, count) {
        Some(result) => result.map(|bytes| {
            written = bytes as isize;
            0
        }),
        None => {
            ours = false;
            Ok(0)
        }
    });
    ours.then_some(if failed == 0 { written } else { -1 })
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, buf: *const c_void, count: usize) -> isize {
    written(fd, buf, count).unwrap_or_else(
        || call_next!(write(fd => c_int, buf => *const c_void, count => usize) -> isize, -1),
    )
}

#[unsafe(no_mangle)]
extern "C" fn writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    if !is_device(fd) {
        return call_next!(writev(
            fd => c_int, parts => *const libc::iovec, count => c_int
        ) -> isize, -1);
    }
    if !(0..=1024).contains(&count) {
        set_errno(libc::EINVAL);
        return -1;
    }
    // Each part is a write of its own, up to the first that fails.
    let mut total = 0;
    for index in 0..count as usize {
        // SAFETY: the program states how many parts there are, and keeps them during the call.
        let part = unsafe { *parts.add(index) };
        if part.iov_len == 0 {
            continue;
        }
        match written(fd, part.iov_base, part.iov_len) {
            Some(bytes) if bytes >= 0 => total += bytes,
            _ if total > 0 => break,
            _ => return -1,
        }
    }
    total
}

/// Defines functions that fail on a device file, as the kernel refuses them there.
macro_rules! refusing {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty, with $errno:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(fd: c_int $(, $arg: $type)*) -> $ret {
            if is_device(fd) {
                set_errno(libc::$errno);
                return -1;
            }
            call_next!($name(fd => c_int $(, $arg => $type)*) -> $ret, -1)
        }
    )*};
}

refusing! {
    fn read(buf: *mut c_void, count: usize) -> isize, with EINVAL;
    fn __read_chk(buf: *mut c_void, count: usize, room: usize) -> isize, with EINVAL;
    fn readv(parts: *const libc::iovec, count: c_int) -> isize, with EINVAL;
    fn pread(buf: *mut c_void, count: usize, at: i64) -> isize, with ESPIPE;
    fn pread64(buf: *mut c_void, count: usize, at: i64) -> isize, with ESPIPE;
    fn __pread_chk(buf: *mut c_void, count: usize, at: i64, room: usize) -> isize, with ESPIPE;
    fn __pread64_chk(buf: *mut c_void, count: usize, at: i64, room: usize) -> isize, with ESPIPE;
    fn preadv(parts: *const libc::iovec, count: c_int, at: i64) -> isize, with ESPIPE;
    fn preadv64(parts: *const libc::iovec, count: c_int, at: i64) -> isize, with ESPIPE;
    fn pwrite(buf: *const c_void, count: usize, at: i64) -> isize, with ESPIPE;
    fn pwrite64(buf: *const c_void, count: usize, at: i64) -> isize, with ESPIPE;
    fn pwritev(parts: *const libc::iovec, count: c_int, at: i64) -> isize, with ESPIPE;
    fn pwritev64(parts: *const libc::iovec, count: c_int, at: i64) -> isize, with ESPIPE;
    fn lseek(offset: i64, whence: c_int) -> i64, with ESPIPE;
    fn lseek64(offset: i64, whence: c_int) -> i64, with ESPIPE;
    fn ftruncate(size: i64) -> c_int, with EINVAL;
    fn ftruncate64(size: i64) -> c_int, with EINVAL;
    fn fallocate(mode: c_int, offset: i64, size: i64) -> c_int, with ENODEV;
    fn fallocate64(mode: c_int, offset: i64, size: i64) -> c_int, with ENODEV;
    fn fsync() -> c_int, with EINVAL;
    fn fdatasync() -> c_int, with EINVAL;
}
