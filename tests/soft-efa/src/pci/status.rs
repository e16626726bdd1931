//! How the device answers a command that it does not carry out.

/// The status of an admin command (`efa_admin_aq_completion_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    pub(crate) const NO_RESOURCES: Self = Self(1);
    pub(crate) const BAD_OPCODE: Self = Self(2);
    pub(crate) const UNSUPPORTED: Self = Self(3);
    pub(crate) const MALFORMED: Self = Self(4);
    pub(crate) const ILLEGAL: Self = Self(5);
    pub(crate) const BUSY: Self = Self(7);
}

impl From<i32> for Status {
    fn from(errno: i32) -> Self {
        match errno {
            libc::EOPNOTSUPP => Self::UNSUPPORTED,
            libc::EINVAL | libc::EFAULT => Self::ILLEGAL,
            // What is left says that the system has none: memory, sockets, ports.
            _ => Self::NO_RESOURCES,
        }
    }
}
