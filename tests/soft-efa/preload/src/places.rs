//! Functions that tell where the program is: the working directory, and file systems.

use std::ffi::{c_char, c_int, c_void};

use soft_efa::uverbs;

use crate::aside;
use crate::next::call_next;
use crate::paths::{Target, copy_over, target};
use crate::variadic::bytes_of;

/// Puts the path that the C library gave out in the program's terms.
fn shown(path: *mut c_char) -> *mut c_char {
    if path.is_null() {
        return path;
    }
    match bytes_of(path).and_then(|bytes| aside(|| uverbs::unroute(bytes))) {
        // Shorter than what it replaces, and in the same place.
        Some(visible) => copy_over(path, &visible),
        None => path,
    }
}

#[unsafe(no_mangle)]
extern "C" fn getcwd(room: *mut c_char, size: usize) -> *mut c_char {
    let null = std::ptr::null_mut();
    shown(call_next!(getcwd(room => *mut c_char, size => usize) -> *mut c_char, null))
}

/// The variant for fortified programs.
#[unsafe(no_mangle)]
extern "C" fn __getcwd_chk(room: *mut c_char, size: usize, known: usize) -> *mut c_char {
    let null = std::ptr::null_mut();
    shown(call_next!(__getcwd_chk(
        room => *mut c_char, size => usize, known => usize
    ) -> *mut c_char, null))
}

#[unsafe(no_mangle)]
extern "C" fn get_current_dir_name() -> *mut c_char {
    shown(call_next!(get_current_dir_name() -> *mut c_char, std::ptr::null_mut()))
}

/// The file system that a path in the program's terms is on.
fn mount_of(visible: &[u8]) -> *const c_char {
    if visible.starts_with(b"/dev") {
        c"/dev".as_ptr()
    } else {
        c"/sys".as_ptr()
    }
}

/// Defines the variants of `statfs`, by path and by descriptor, where `$kind` is the struct that
/// they fill: our tree stands for other file systems than the one that it is on.
macro_rules! file_systems {
    ($($by_path:ident $by_fd:ident;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $by_path(path: *const c_char, out: *mut c_void) -> c_int {
            let real = |path: *const c_char| {
                call_next!($by_path(path => *const c_char, out => *mut c_void) -> c_int, -1)
            };
            match target(path) {
                Target::Real => real(path),
                Target::Device(_) => real(c"/dev".as_ptr()),
                Target::Other(other) => {
                    let result = real(other.as_ptr());
                    match aside(|| uverbs::unroute(other.as_bytes())) {
                        Some(visible) if result == 0 => real(mount_of(&visible)),
                        _ => result,
                    }
                }
            }
        }

        #[unsafe(no_mangle)]
        extern "C" fn $by_fd(fd: c_int, out: *mut c_void) -> c_int {
            let is_device = uverbs::is_marked(fd) && aside(|| uverbs::device_index(fd)).is_some();
            let mount = if is_device {
                Some(c"/dev".as_ptr())
            } else {
                aside(|| uverbs::visible_directory(fd)).map(|visible| mount_of(&visible))
            };
            match mount {
                Some(path) => {
                    call_next!($by_path(path => *const c_char, out => *mut c_void) -> c_int, -1)
                }
                None => call_next!($by_fd(fd => c_int, out => *mut c_void) -> c_int, -1),
            }
        }
    )*};
}

file_systems! {
    statfs fstatfs;
    statfs64 fstatfs64;
    statvfs fstatvfs;
    statvfs64 fstatvfs64;
}
