//! Functions with a variable number of arguments: exported here, taken apart in C, done here.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use soft_efa::uverbs;

use crate::next::Next;
use crate::paths::{self, Target};
use crate::{answer, aside, set_errno};

/// Exports a name that jumps to the C function, with every register as the caller left it.
macro_rules! export {
    ($($name:ident => $target:ident;)*) => {
        unsafe extern "C" { $(fn $target();)* }
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                ::std::arch::naked_asm!("endbr64", "jmp {}", sym $target);
                #[cfg(target_arch = "aarch64")]
                ::std::arch::naked_asm!("bti c", "b {}", sym $target);
            }
        )*
    };
}

export! {
    open => soft_efa_c_open;
    open64 => soft_efa_c_open64;
    openat => soft_efa_c_openat;
    openat64 => soft_efa_c_openat64;
    ioctl => soft_efa_c_ioctl;
    fcntl => soft_efa_c_fcntl;
    fcntl64 => soft_efa_c_fcntl64;
}

unsafe extern "C" {
    fn soft_efa_c_call_open(
        next: *mut c_void,
        path: *const c_char,
        flags: c_int,
        mode: libc::mode_t,
    ) -> c_int;
    fn soft_efa_c_call_openat(
        next: *mut c_void,
        dirfd: c_int,
        path: *const c_char,
        flags: c_int,
        mode: libc::mode_t,
    ) -> c_int;
    fn soft_efa_c_call_ioctl(
        next: *mut c_void,
        fd: c_int,
        request: c_ulong,
        arg: *mut c_void,
    ) -> c_int;
    fn soft_efa_c_call_fcntl(
        next: *mut c_void,
        fd: c_int,
        command: c_int,
        arg: *mut c_void,
    ) -> c_int;
}

static OPEN: [Next; 4] = [
    Next::new(c"open"),
    Next::new(c"open64"),
    Next::new(c"openat"),
    Next::new(c"openat64"),
];
static IOCTL: Next = Next::new(c"ioctl");
static FCNTL: [Next; 2] = [Next::new(c"fcntl"), Next::new(c"fcntl64")];

/// The address of one of a function's variants.
fn variant(table: &'static [Next], index: c_int) -> Option<*mut c_void> {
    let next = usize::try_from(index)
        .ok()
        .and_then(|index| table.get(index))?
        .get();
    if next.is_null() {
        set_errno(libc::ENOSYS);
        return None;
    }
    Some(next)
}

/// Opens a path by whatever of the `open` family the program called.
fn open_path(
    number: c_int,
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    let with_next = |path: *const c_char| {
        let Some(next) = variant(&OPEN, number) else {
            return -1;
        };
        // SAFETY: `next` is the C library's function of that name, called as its declaration
        // says; the path is the program's own or one that we made.
        unsafe {
            if number < 2 {
                soft_efa_c_call_open(next, path, flags, mode)
            } else {
                soft_efa_c_call_openat(next, dirfd, path, flags, mode)
            }
        }
    };
    match paths::target_at(dirfd, path) {
        Target::Real => with_next(path),
        Target::Device(index) => open_device(index, flags),
        Target::Other(other) => with_next(other.as_ptr()),
    }
}

/// Opens a device file.
pub(crate) fn open_device(index: u32, flags: c_int) -> c_int {
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        set_errno(libc::EEXIST);
        return -1;
    }
    if flags & libc::O_DIRECTORY != 0 {
        set_errno(libc::ENOTDIR);
        return -1;
    }
    answer(|| uverbs::open(index, flags & libc::O_CLOEXEC != 0))
}

#[unsafe(no_mangle)]
extern "C" fn soft_efa_rs_open(
    number: c_int,
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> c_int {
    open_path(number, dirfd, path, flags, mode)
}

/// The variants for fortified programs, which pass no mode.
macro_rules! fortified {
    ($($name:ident => $number:literal $(, $dirfd:ident)?;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($dirfd: c_int,)? path: *const c_char, flags: c_int) -> c_int {
            #[allow(unused_mut, unused_assignments, reason = "only the variants with a directory set it")]
            let mut dir = libc::AT_FDCWD;
            $(dir = $dirfd;)?
            open_path($number, dir, path, flags, 0)
        }
    )*};
}

fortified! {
    __open_2 => 0;
    __open64_2 => 1;
    __openat_2 => 2, dirfd;
    __openat64_2 => 3, dirfd;
}

#[unsafe(no_mangle)]
extern "C" fn soft_efa_rs_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if uverbs::is_marked(fd) {
        let mut ours = true;
        let result = answer(|| match uverbs::ioctl(fd, request, arg as usize) {
            Some(result) => result.map(|()| 0),
            None => {
                ours = false;
                Ok(0)
            }
        });
        if ours {
            return result;
        }
    }
    let Some(next) = variant(std::slice::from_ref(&IOCTL), 0) else {
        return -1;
    };
    // SAFETY: the program's own arguments, to the function that it called.
    unsafe { soft_efa_c_call_ioctl(next, fd, request, arg) }
}

#[unsafe(no_mangle)]
extern "C" fn soft_efa_rs_fcntl(
    number: c_int,
    fd: c_int,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    let Some(next) = variant(&FCNTL, number) else {
        return -1;
    };
    // SAFETY: the program's own arguments, to the function that it called.
    let result = unsafe { soft_efa_c_call_fcntl(next, fd, command, arg) };
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
        && result >= 0
        && (uverbs::is_marked(fd) || uverbs::is_marked(result))
    {
        aside(|| uverbs::duplicated(fd, result));
    }
    result
}

/// A path as the program wrote it.
pub(crate) fn bytes_of<'a>(path: *const c_char) -> Option<&'a [u8]> {
    // A bad pointer is for the kernel to refuse.
    if (path as usize) < 4096 {
        return None;
    }
    // SAFETY: every function that we interpose takes a C string here. It is used during the call
    // only, for which the program keeps it.
    Some(unsafe { CStr::from_ptr(path) }.to_bytes())
}
