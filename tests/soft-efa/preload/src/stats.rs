//! The `stat` family: a device file must look like one.

use std::ffi::{c_char, c_int};

use soft_efa::sysfs::{UVERBS_BASE_MINOR, UVERBS_MAJOR};
use soft_efa::uverbs;

use crate::aside;
use crate::next::next;
use crate::paths::{StatxMask, Target, target, target_at};
use crate::variadic::bytes_of;

/// The device whose file `fd` is, unless it certainly is none.
fn device_at(fd: c_int) -> Option<u32> {
    if uverbs::is_marked(fd) {
        aside(|| uverbs::device_index(fd))
    } else {
        None
    }
}

/// What `stat` tells about the file of device `index`. On 64-bit systems `stat` and `stat64` are
/// the same struct.
fn device_stat(index: u32) -> libc::stat {
    // SAFETY: all zeros is a value of this C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_mode = libc::S_IFCHR | 0o666;
    stat.st_rdev = libc::makedev(UVERBS_MAJOR, UVERBS_BASE_MINOR + index);
    stat.st_ino = 0xefa0_0000 + u64::from(index);
    stat.st_dev = 6;
    stat.st_nlink = 1;
    stat.st_blksize = 4096;
    stat
}

fn put_device(index: u32, out: *mut libc::stat) -> c_int {
    // SAFETY: the program passed this place for the answer.
    unsafe { out.write(device_stat(index)) };
    0
}

/// What to ask where the C library is older than the function, or newer than its ancestor.
fn by_system_call(dirfd: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
    // SAFETY: the arguments are the program's own; the struct is the kernel's on these
    // architectures.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, dirfd, path, out, flags) };
    result as c_int
}

macro_rules! stat_paths {
    ($(fn $name:ident, flags $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, out: *mut libc::stat) -> c_int {
            let other;
            let path = match target(path) {
                Target::Real => path,
                Target::Device(index) => return put_device(index, out),
                Target::Other(replacement) => {
                    other = replacement;
                    other.as_ptr()
                }
            };
            match next!($name as unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int) {
                // SAFETY: the program's own arguments, or a path that we made.
                Some(next) => unsafe { next(path, out) },
                None => by_system_call(libc::AT_FDCWD, path, out, $flags),
            }
        }
    )*};
}

stat_paths! {
    fn stat, flags 0;
    fn stat64, flags 0;
    fn lstat, flags libc::AT_SYMLINK_NOFOLLOW;
    fn lstat64, flags libc::AT_SYMLINK_NOFOLLOW;
}

/// The ancestors of glibc before 2.33, with the version of the struct in front.
macro_rules! versioned_stat_paths {
    ($(fn $name:ident, flags $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
            let other;
            let path = match target(path) {
                Target::Real => path,
                Target::Device(index) => return put_device(index, out),
                Target::Other(replacement) => {
                    other = replacement;
                    other.as_ptr()
                }
            };
            match next!($name as unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int) {
                // SAFETY: the program's own arguments, or a path that we made.
                Some(next) => unsafe { next(version, path, out) },
                None => by_system_call(libc::AT_FDCWD, path, out, $flags),
            }
        }
    )*};
}

versioned_stat_paths! {
    fn __xstat, flags 0;
    fn __xstat64, flags 0;
    fn __lxstat, flags libc::AT_SYMLINK_NOFOLLOW;
    fn __lxstat64, flags libc::AT_SYMLINK_NOFOLLOW;
}

macro_rules! stat_descriptors {
    ($(fn $name:ident($($version:ident: $version_type:ty)?);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($version: $version_type,)? fd: c_int, out: *mut libc::stat) -> c_int {
            if let Some(index) = device_at(fd) {
                return put_device(index, out);
            }
            match next!($name as unsafe extern "C" fn($($version_type,)? c_int, *mut libc::stat) -> c_int) {
                // SAFETY: the program's own arguments.
                Some(next) => unsafe { next($($version,)? fd, out) },
                None => by_system_call(fd, c"".as_ptr(), out, libc::AT_EMPTY_PATH),
            }
        }
    )*};
}

stat_descriptors! {
    fn fstat();
    fn fstat64();
    fn __fxstat(version: c_int);
    fn __fxstat64(version: c_int);
}

/// Whether a call with a directory and a path is about the descriptor itself.
fn is_about_descriptor(path: *const c_char, flags: c_int) -> bool {
    flags & libc::AT_EMPTY_PATH != 0 && bytes_of(path).is_none_or(<[u8]>::is_empty)
}

macro_rules! stat_at {
    ($(fn $name:ident($($version:ident: $version_type:ty)?);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            $($version: $version_type,)?
            dirfd: c_int,
            path: *const c_char,
            out: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            if is_about_descriptor(path, flags)
                && let Some(index) = device_at(dirfd)
            {
                return put_device(index, out);
            }
            let other;
            let path = match target_at(dirfd, path) {
                Target::Real => path,
                Target::Device(index) => return put_device(index, out),
                Target::Other(replacement) => {
                    other = replacement;
                    other.as_ptr()
                }
            };
            match next!($name as unsafe extern "C" fn(
                $($version_type,)? c_int, *const c_char, *mut libc::stat, c_int
            ) -> c_int) {
                // SAFETY: the program's own arguments, or a path that we made.
                Some(next) => unsafe { next($($version,)? dirfd, path, out, flags) },
                None => by_system_call(dirfd, path, out, flags),
            }
        }
    )*};
}

stat_at! {
    fn fstatat();
    fn fstatat64();
    fn __fxstatat(version: c_int);
    fn __fxstatat64(version: c_int);
}

#[unsafe(no_mangle)]
extern "C" fn statx(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mask: StatxMask,
    out: *mut libc::statx,
) -> c_int {
    let about_descriptor = is_about_descriptor(path, flags);
    let device = if about_descriptor {
        device_at(dirfd)
    } else {
        None
    };
    let other;
    let (path, device) = match (device, target_at(dirfd, path)) {
        (Some(index), _) | (None, Target::Device(index)) => (path, Some(index)),
        (None, Target::Real) => (path, None),
        (None, Target::Other(replacement)) => {
            other = replacement;
            (other.as_ptr(), None)
        }
    };
    if let Some(index) = device {
        let stat = device_stat(index);
        // SAFETY: all zeros is a value of this C struct.
        let mut answer: libc::statx = unsafe { std::mem::zeroed() };
        answer.stx_mask = libc::STATX_BASIC_STATS;
        answer.stx_blksize = 4096;
        answer.stx_nlink = 1;
        answer.stx_mode = stat.st_mode as u16;
        answer.stx_ino = stat.st_ino;
        answer.stx_rdev_major = UVERBS_MAJOR;
        answer.stx_rdev_minor = UVERBS_BASE_MINOR + index;
        answer.stx_dev_minor = 6;
        // SAFETY: the program passed this place for the answer.
        unsafe { out.write(answer) };
        return 0;
    }
    type Statx =
        unsafe extern "C" fn(c_int, *const c_char, c_int, StatxMask, *mut libc::statx) -> c_int;
    match next!(statx as Statx) {
        // SAFETY: the program's own arguments, or a path that we made.
        Some(next) => unsafe { next(dirfd, path, flags, mask, out) },
        // SAFETY: as above, for a C library before 2.28.
        None => unsafe { libc::syscall(libc::SYS_statx, dirfd, path, flags, mask, out) as c_int },
    }
}
