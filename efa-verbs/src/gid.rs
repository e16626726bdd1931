//! GIDs: the address of a device.

use std::fmt;
use std::net::{AddrParseError, Ipv6Addr};
use std::str::FromStr;

use efa_sys::ibv_gid;

/// The 16-byte global identifier of an EFA device, in network order, by which other devices reach it.
///
/// It is written like an IPv6 address, which is how the tools of rdma-core print it, but no IP stack
/// has it.
///
/// ```
/// use efa_verbs::Gid;
///
/// let gid: Gid = "fe80::1".parse()?;
/// assert_eq!(gid.to_bytes()[15], 1);
/// assert!(!gid.is_zero());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// A GID from its bytes, in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Whether every byte is 0: what an unset table entry holds, and nobody's address.
    pub fn is_zero(self) -> bool {
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

impl FromStr for Gid {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Ipv6Addr>().map(|ip| Self(ip.octets()))
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
    fn bytes_survive_the_c_union_and_the_text() {
        let gid = Gid(std::array::from_fn(|i| i as u8));
        assert_eq!(Gid::from_raw(gid.to_raw()), gid);
        assert_eq!(gid.to_string().parse(), Ok(gid));
        assert!("fe80::1%eth0".parse::<Gid>().is_err());
    }

    #[test]
    fn only_all_zero_is_zero() {
        assert!(Gid::default().is_zero());
        let mut bytes = [0; 16];
        bytes[15] = 1;
        assert!(!Gid(bytes).is_zero());
    }
}
