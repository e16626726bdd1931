//! Names of error numbers, as the man pages write them.

use std::fmt;
use std::io;

/// `ENOMEM (Cannot allocate memory)` for an error that carries a number.
pub(crate) struct Named<'a>(pub(crate) &'a io::Error);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(number) = self.0.raw_os_error() else {
            return write!(f, "{}", self.0);
        };
        // `io::Error` appends "(os error N)", which the name says better.
        let text = self.0.to_string();
        let text = text.split(" (os error").next().unwrap_or(&text);
        match name(number) {
            Some(name) => write!(f, "{name} ({text})"),
            None => write!(f, "errno {number} ({text})"),
        }
    }
}

/// The symbolic name of an error number that verbs return.
pub(crate) fn name(number: i32) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => {
            match number {
                $(libc::$name => Some(stringify!($name)),)*
                _ => None,
            }
        };
    }
    names!(
        EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST ENODEV EINVAL
        ENFILE EMFILE ENOTTY ENOSPC EPIPE ERANGE ENOSYS EPROTO EOVERFLOW EOPNOTSUPP ETIMEDOUT
        ECONNREFUSED EPROTONOSUPPORT EADDRNOTAVAIL ENETUNREACH EHOSTUNREACH ENODATA EMSGSIZE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_number_is_named_and_explained() {
        let text = Named(&io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert_eq!(text, "ENOMEM (Cannot allocate memory)");
    }

    #[test]
    fn an_unknown_number_stays_a_number() {
        let text = Named(&io::Error::from_raw_os_error(4095)).to_string();
        assert!(text.starts_with("errno 4095"), "{text}");
    }
}
