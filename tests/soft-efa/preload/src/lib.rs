//! The library that brings soft-efa into a program.
//!
//! Loaded with `LD_PRELOAD`, it defines the C functions by which a program reaches device files and
//! `/sys`. Each asks [`soft_efa::uverbs`] whether descriptor or path is one of soft-efa's and
//! otherwise calls the next definition in load order with the arguments that it got.
//!
//! Nothing unwinds across these functions: a panic inside soft-efa becomes `EIO`.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod descriptors;
mod files;
mod maps;
mod netlink;
mod next;
mod paths;
mod places;
mod stats;
mod variadic;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sets `errno`.
fn set_errno(value: c_int) {
    // SAFETY: the C library's errno is a variable of this thread.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `body` with the caller's `errno` restored afterwards.
fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's errno is a variable of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let result = body();
    set_errno(errno);
    result
}

/// Runs a part of soft-efa that answers for the system: −1 and `errno` where it fails or panics.
fn answer(body: impl FnOnce() -> Result<c_int, i32>) -> c_int {
    let result = keeping_errno(|| catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(libc::EIO)));
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Runs a part of soft-efa that the program does not ask about. A panic leaves `T`'s default.
fn aside<T: Default>(body: impl FnOnce() -> T) -> T {
    keeping_errno(|| catch_unwind(AssertUnwindSafe(body)).unwrap_or_default())
}

/// Reads the environment while it still is what the launcher made it.
extern "C" fn prepare() {
    aside(soft_efa::uverbs::prepare);
}

#[used]
#[unsafe(link_section = ".init_array")]
static PREPARE: extern "C" fn() = prepare;
