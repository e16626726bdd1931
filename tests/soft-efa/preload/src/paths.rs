//! Functions that take paths.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use soft_efa::uverbs::{self, Route};

use crate::next::call_next;
use crate::variadic::{bytes_of, open_device};
use crate::{aside, set_errno};

/// Where a path of the program leads.
pub(crate) enum Target {
    /// Where it says.
    Real,
    /// To a device file.
    Device(u32),
    /// Elsewhere.
    Other(CString),
}

/// Where `path` leads.
pub(crate) fn target(path: *const c_char) -> Target {
    target_at(libc::AT_FDCWD, path)
}

/// Where `path` leads from the directory `dirfd`.
pub(crate) fn target_at(dirfd: c_int, path: *const c_char) -> Target {
    let Some(bytes) = bytes_of(path) else {
        return Target::Real;
    };
    let route = aside(|| Some(uverbs::route_at(dirfd, bytes))).unwrap_or(Route::Real);
    match route {
        Route::Real => Target::Real,
        Route::Device(index) => Target::Device(index),
        Route::Other(other) => CString::new(other).map_or(Target::Real, Target::Other),
    }
}

/// Defines functions whose path is replaced where it is ours; `device` says what to do with the
/// path of a device file.
macro_rules! replacing {
    ($(
        fn $name:ident($([$before:ident: $before_type:ty])? $({$dir:ident})? path $(, $after:ident: $after_type:ty)*) -> $ret:ty,
        fails with $failed:expr, device $index:ident => $device:expr;
    )*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($before: $before_type,)? $($dir: c_int,)? path: *const c_char $(, $after: $after_type)*) -> $ret {
            let other;
            #[allow(unused_mut, unused_assignments, reason = "only the variants with a directory set it")]
            let mut from = libc::AT_FDCWD;
            $(from = $dir;)?
            let path = match target_at(from, path) {
                Target::Real => path,
                Target::Device($index) => return $device,
                Target::Other(replacement) => {
                    other = replacement;
                    other.as_ptr()
                }
            };
            call_next!($name(
                $($before => $before_type,)? $($dir => c_int,)? path => *const c_char $(, $after => $after_type)*
            ) -> $ret, $failed)
        }
    )*};
}

fn fail<T>(errno: c_int, value: T) -> T {
    set_errno(errno);
    value
}

/// Everybody may read and write a device file, and nobody may execute it.
fn may_access(mode: c_int) -> c_int {
    if mode & libc::X_OK != 0 {
        fail(libc::EACCES, -1)
    } else {
        0
    }
}

type Filter = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
type Compare =
    Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;
type List = *mut *mut *mut libc::dirent;

replacing! {
    fn opendir(path) -> *mut c_void, fails with std::ptr::null_mut(),
        device _index => fail(libc::ENOTDIR, std::ptr::null_mut());
    fn scandir(path, list: List, filter: Filter, compare: Compare) -> c_int, fails with -1,
        device _index => fail(libc::ENOTDIR, -1);
    fn scandir64(path, list: List, filter: Filter, compare: Compare) -> c_int, fails with -1,
        device _index => fail(libc::ENOTDIR, -1);
    fn scandirat({dirfd} path, list: List, filter: Filter, compare: Compare) -> c_int, fails with -1,
        device _index => fail(libc::ENOTDIR, -1);
    fn scandirat64({dirfd} path, list: List, filter: Filter, compare: Compare) -> c_int, fails with -1,
        device _index => fail(libc::ENOTDIR, -1);
    fn chdir(path) -> c_int, fails with -1, device _index => fail(libc::ENOTDIR, -1);
    fn access(path, mode: c_int) -> c_int, fails with -1, device _index => may_access(mode);
    fn eaccess(path, mode: c_int) -> c_int, fails with -1, device _index => may_access(mode);
    fn euidaccess(path, mode: c_int) -> c_int, fails with -1, device _index => may_access(mode);
    fn faccessat({dirfd} path, mode: c_int, flags: c_int) -> c_int, fails with -1,
        device _index => may_access(mode);
    fn readlink(path, buf: *mut c_char, size: usize) -> isize, fails with -1,
        device _index => fail(libc::EINVAL, -1);
    fn readlinkat({dirfd} path, buf: *mut c_char, size: usize) -> isize, fails with -1,
        device _index => fail(libc::EINVAL, -1);
    fn __readlink_chk(path, buf: *mut c_char, size: usize, room: usize) -> isize, fails with -1,
        device _index => fail(libc::EINVAL, -1);
    fn __readlinkat_chk({dirfd} path, buf: *mut c_char, size: usize, room: usize) -> isize, fails with -1,
        device _index => fail(libc::EINVAL, -1);
    fn fopen(path, mode: *const c_char) -> *mut c_void, fails with std::ptr::null_mut(),
        device index => stream_of(index, mode);
    fn fopen64(path, mode: *const c_char) -> *mut c_void, fails with std::ptr::null_mut(),
        device index => stream_of(index, mode);
    fn getxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize, fails with -1,
        device _index => fail(libc::ENODATA, -1);
    fn lgetxattr(path, name: *const c_char, value: *mut c_void, size: usize) -> isize, fails with -1,
        device _index => fail(libc::ENODATA, -1);
    fn listxattr(path, list: *mut c_char, size: usize) -> isize, fails with -1, device _index => 0;
    fn llistxattr(path, list: *mut c_char, size: usize) -> isize, fails with -1, device _index => 0;
    fn chmod(path, mode: libc::mode_t) -> c_int, fails with -1, device _index => 0;
    fn fchmodat({dirfd} path, mode: libc::mode_t, flags: c_int) -> c_int, fails with -1, device _index => 0;
    fn chown(path, owner: libc::uid_t, group: libc::gid_t) -> c_int, fails with -1, device _index => 0;
    fn lchown(path, owner: libc::uid_t, group: libc::gid_t) -> c_int, fails with -1, device _index => 0;
    fn fchownat({dirfd} path, owner: libc::uid_t, group: libc::gid_t, flags: c_int) -> c_int, fails with -1,
        device _index => 0;
    fn inotify_add_watch([fd: c_int] path, mask: u32) -> c_int, fails with -1,
        device _index => fail(libc::ENOENT, -1);
}

fn stream_of(index: u32, mode: *const c_char) -> *mut c_void {
    let fd = open_device(index, libc::O_RDWR | libc::O_CLOEXEC);
    if fd == -1 {
        return std::ptr::null_mut();
    }
    // SAFETY: the descriptor is open, and the mode is the program's string.
    unsafe { libc::fdopen(fd, mode) }.cast()
}

/// Defines the variants of `glob`, whose C library looks at directories by itself: the pattern is
/// replaced, and the results are put back in the program's terms.
macro_rules! globbing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
            found: *mut libc::glob_t,
        ) -> c_int {
            let replacement = match target(pattern) {
                Target::Other(replacement) => Some(replacement),
                Target::Real | Target::Device(_) => None,
            };
            let pattern = replacement.as_ref().map_or(pattern, |other| other.as_ptr());
            let result = call_next!($name(
                pattern => *const c_char,
                flags => c_int,
                on_error => Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
                found => *mut libc::glob_t
            ) -> c_int, libc::GLOB_ABORTED);
            if result == 0 && replacement.is_some() {
                show_found(found, flags);
            }
            result
        }
    )*};
}

globbing! { glob glob64 }

fn show_found(found: *mut libc::glob_t, flags: c_int) {
    // SAFETY: the call that filled the struct succeeded.
    let found = unsafe { &*found };
    let skip = if flags & libc::GLOB_DOOFFS != 0 {
        found.gl_offs
    } else {
        0
    };
    for index in skip..skip + found.gl_pathc {
        // SAFETY: the vector has `gl_offs + gl_pathc` places.
        let path = unsafe { *found.gl_pathv.add(index) };
        if let Some(visible) = bytes_of(path).and_then(|bytes| aside(|| uverbs::unroute(bytes))) {
            // Shorter than what it replaces, and in the same place.
            copy_over(path, &visible);
        }
    }
}

/// Defines the variants of `realpath`: what comes out must be a path that the program can use
/// and that looks like the one it asked for.
macro_rules! resolving {
    ($(fn $name:ident(path $(, $after:ident: $after_type:ty)*) room $room:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char $(, $after: $after_type)*) -> *mut c_char {
            let real = |path: *const c_char| {
                call_next!($name(path => *const c_char $(, $after => $after_type)*) -> *mut c_char,
                    std::ptr::null_mut())
            };
            match target(path) {
                Target::Real => real(path),
                Target::Device(_) => copy_out(bytes_of(path).unwrap_or_default(), $room),
                Target::Other(other) => {
                    let resolved = real(other.as_ptr());
                    if resolved.is_null() {
                        return resolved;
                    }
                    let visible = bytes_of(resolved).and_then(|bytes| aside(|| uverbs::unroute(bytes)));
                    match visible {
                        // Shorter than what it replaces, and in the same place.
                        Some(visible) => copy_over(resolved, &visible),
                        None => resolved,
                    }
                }
            }
        }
    )*};
}

resolving! {
    fn realpath(path, room: *mut c_char) room room;
    fn __realpath_chk(path, room: *mut c_char, size: usize) room room;
    fn canonicalize_file_name(path) room std::ptr::null_mut();
}

pub(crate) fn copy_over(place: *mut c_char, bytes: &[u8]) -> *mut c_char {
    // SAFETY: `place` holds a C string that is longer than `bytes`.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len());
        *place.add(bytes.len()) = 0;
    }
    place
}

/// A copy of `bytes` as a C string in `room`, or in new memory where there is none.
fn copy_out(bytes: &[u8], room: *mut c_char) -> *mut c_char {
    let place = if room.is_null() {
        // SAFETY: allocation; the result is checked.
        unsafe { libc::malloc(bytes.len() + 1) }.cast::<c_char>()
    } else {
        room
    };
    if place.is_null() {
        return place;
    }
    // SAFETY: new memory has the room; the program's has PATH_MAX, which the path fits in.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len());
        *place.add(bytes.len()) = 0;
    }
    place
}

/// The masks of `statx`, in terms of its C declaration.
pub(crate) type StatxMask = c_uint;
