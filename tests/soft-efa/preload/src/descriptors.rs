//! Functions that close and duplicate descriptors.

use std::ffi::{c_int, c_uint};

use soft_efa::uverbs;

use crate::aside;
use crate::next::call_next;

/// Closes `fd` by `real`, and takes down what it was once it is closed.
fn closing<T>(fd: c_int, real: impl FnOnce() -> T) -> T {
    if !uverbs::is_marked(fd) {
        return real();
    }
    let closed = aside(|| Some(uverbs::closing(fd)));
    let result = real();
    aside(move || drop(closed));
    result
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    closing(fd, || call_next!(close(fd => c_int) -> c_int, -1))
}

/// Takes down every descriptor of ours in a range, after `real` has closed it.
fn closing_range<T>(first: c_uint, last: c_uint, real: impl FnOnce() -> T) -> T {
    let closed: Vec<_> = aside(|| {
        uverbs::own_between(first, last)
            .into_iter()
            .map(uverbs::closing)
            .collect()
    });
    let result = real();
    aside(move || drop(closed));
    result
}

#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    let real =
        || call_next!(close_range(first => c_uint, last => c_uint, flags => c_int) -> c_int, -1);
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        real()
    } else {
        closing_range(first, last, real)
    }
}

#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    let first_or_all = c_uint::try_from(first).unwrap_or(0);
    closing_range(
        first_or_all,
        c_uint::MAX,
        || call_next!(closefrom(first => c_int) -> (), ()),
    );
}

/// After a successful duplication that involves a descriptor of ours.
fn duplicated(old: c_int, new: c_int) -> c_int {
    if new >= 0 && old != new {
        uverbs::netlink::duplicated(old, new);
    }
    if new >= 0 && (uverbs::is_marked(old) || uverbs::is_marked(new)) {
        aside(|| uverbs::duplicated(old, new));
    }
    new
}

#[unsafe(no_mangle)]
extern "C" fn dup(fd: c_int) -> c_int {
    duplicated(fd, call_next!(dup(fd => c_int) -> c_int, -1))
}

#[unsafe(no_mangle)]
extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    duplicated(
        old,
        call_next!(dup2(old => c_int, new => c_int) -> c_int, -1),
    )
}

#[unsafe(no_mangle)]
extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    duplicated(
        old,
        call_next!(dup3(old => c_int, new => c_int, flags => c_int) -> c_int, -1),
    )
}
