//! The next definition of a function in load order.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that we define and that others define, too.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address; null where nobody else defines it.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a C string; RTLD_NEXT is about the library that this code is in.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// The next definition of `$name` as a function of the given type, or `None`.
macro_rules! next {
    ($name:ident as $type:ty) => {{
        static NEXT: $crate::next::Next = $crate::next::Next::new(
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes())
            {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte inside"),
            },
        );
        let address = NEXT.get();
        if address.is_null() {
            None
        } else {
            // SAFETY: this is the C library's function of that name (or of a library that wraps
            // it), and the type is its declaration's.
            Some(unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, $type>(address) })
        }
    }};
}

/// Calls the next definition of `$name`, or fails with `ENOSYS` where there is none.
macro_rules! call_next {
    ($name:ident($($arg:expr => $type:ty),*) -> $ret:ty, $failed:expr) => {
        match $crate::next::next!($name as unsafe extern "C" fn($($type),*) -> $ret) {
            // SAFETY: the arguments are the program's own (or replacements that are as good), and
            // it called this very function with them.
            Some(next) => unsafe { next($($arg),*) },
            None => {
                $crate::set_errno(libc::ENOSYS);
                $failed
            }
        }
    };
}

pub(crate) use {call_next, next};
