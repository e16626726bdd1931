//! GIDs: the address of a device.

use std::fmt;
use std::net::Ipv6Addr;

use efa_sys::ibv_gid;

/// The 16 bytes, in network order, by which other devices reach this one. Looks like an IPv6
/// address and is shown as one, but no IP stack has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether every byte is 0: what an unset table entry holds, and nobody's address.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    pub(crate) fn from_raw(gid: ibv_gid) -> Self {
        // SAFETY: every bit pattern of the union is 16 bytes.
        Self(unsafe { gid.raw })
    }

    pub(crate) fn to_raw(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }
}

impl From<[u8; 16]> for Gid {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl From<Gid> for [u8; 16] {
    fn from(gid: Gid) -> Self {
        gid.0
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from(self.0), f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_the_c_union() {
        let gid = Gid(std::array::from_fn(|i| i as u8));
        assert_eq!(Gid::from_raw(gid.to_raw()), gid);
    }

    #[test]
    fn only_all_zero_is_zero() {
        assert!(Gid::default().is_zero());
        let mut bytes = [0; 16];
        bytes[15] = 1;
        assert!(!Gid(bytes).is_zero());
    }
}
