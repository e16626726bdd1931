//! Memory of a peer: [`RemoteRegion`].

use std::fmt;
use std::ops::RangeBounds;

use crate::descriptor::{DescriptorError, wire_form};
use crate::error::Error;
use crate::range::within;

/// A range of memory at a peer that it allows us to read or write.
///
/// The peer makes it from a memory region that it registered, and sends it to us: in the user
/// data of the handshake, in a message, through a file. It grants access for as long as the peer
/// keeps the region registered, and names no peer by itself.
///
/// On the wire it is exactly 20 bytes in network order: address (8), length (8), rkey (4). Its
/// text form is 40 hexadecimal digits, and so can't be taken for an
/// [`EndpointAddress`](crate::address::EndpointAddress), which has 48.
///
/// A value never wraps around: `addr + len` fits in 64 bits, and parts of it are checked.
///
/// ```
/// use efa_transport::RemoteRegion;
///
/// let region = RemoteRegion::new(0x7f00_0000_0000, 4096, 17)?;
/// let second_half = region.slice(2048..)?;
/// assert_eq!((second_half.addr(), second_half.len()), (0x7f00_0000_0800, 2048));
/// assert!(region.slice(..4097).is_err());
/// assert_eq!(region.to_string().parse::<RemoteRegion>()?, region);
/// # Ok::<(), efa_transport::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    addr: u64,
    len: u64,
    rkey: u32,
}

impl RemoteRegion {
    /// Bytes of a descriptor on the wire.
    pub const WIRE_SIZE: usize = 20;

    /// A region of `len` bytes at `addr`, an address in the peer's terms, reachable with `rkey`.
    ///
    /// # Errors
    /// [`DescriptorError::Overflow`] where the region would wrap around.
    pub fn new(addr: u64, len: u64, rkey: u32) -> Result<Self, DescriptorError> {
        addr.checked_add(len)
            .ok_or(DescriptorError::Overflow { addr, len })?;
        Ok(RemoteRegion { addr, len, rkey })
    }

    /// First address, in the peer's terms.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key that the peer's device asks for.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// A part of the region, in bytes from its start.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] where the part is not inside the region or ends before it starts.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Self, Error> {
        match within(range, self.len) {
            Ok(part) => Ok(RemoteRegion {
                addr: self.addr + part.start,
                len: part.end - part.start,
                rkey: self.rkey,
            }),
            Err((start, end)) => Err(Error::OutOfRange {
                start,
                end,
                length: self.len,
            }),
        }
    }

    /// The 20 bytes that go to a peer.
    pub fn to_bytes(&self) -> [u8; Self::WIRE_SIZE] {
        let mut out = [0; Self::WIRE_SIZE];
        out[..8].copy_from_slice(&self.addr.to_be_bytes());
        out[8..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..].copy_from_slice(&self.rkey.to_be_bytes());
        out
    }

    /// Reads the 20 bytes that a peer sent.
    ///
    /// # Errors
    /// [`DescriptorError::Overflow`] where the region would wrap around.
    pub fn from_bytes(bytes: [u8; Self::WIRE_SIZE]) -> Result<Self, DescriptorError> {
        let number = |at: std::ops::Range<usize>| {
            let bytes = bytes[at].iter();
            bytes.fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        Self::new(number(0..8), number(8..16), number(16..20) as u32)
    }
}

wire_form!(RemoteRegion);

impl fmt::Debug for RemoteRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RemoteRegion({:#x} + {}, rkey {:#x})",
            self.addr, self.len, self.rkey
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wire_form_is_address_length_key_in_network_order() {
        let bytes = RemoteRegion::new(0x0102_0304_0506_0708, 0x11, 0xa1b2_c3d4)
            .unwrap()
            .to_bytes();
        assert_eq!(
            bytes,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0x11, 0xa1, 0xb2, 0xc3, 0xd4
            ]
        );
    }

    #[test]
    fn a_region_that_wraps_around_is_refused() {
        assert_eq!(
            RemoteRegion::new(u64::MAX, 1, 0),
            Err(DescriptorError::Overflow {
                addr: u64::MAX,
                len: 1
            })
        );
        assert!(RemoteRegion::from_bytes([0xff; 20]).is_err());
        assert!(RemoteRegion::new(u64::MAX, 0, 0).is_ok());
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn parts_outside_the_region_are_refused() {
        let region = RemoteRegion::new(1000, 10, 1).unwrap();
        assert!(region.slice(0..=u64::MAX).is_err());
        assert!(region.slice(11..).is_err());
        assert!(matches!(
            region.slice(5..4),
            Err(Error::OutOfRange {
                start: 5,
                end: 4,
                length: 10
            })
        ));
        assert_eq!(region.slice(10..).unwrap().len(), 0);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_round_trips_and_refuses_overflow() {
        let region = RemoteRegion::new(1, 2, 3).unwrap();
        let json = serde_json::to_string(&region).unwrap();
        assert_eq!(serde_json::from_str::<RemoteRegion>(&json).unwrap(), region);
        assert!(serde_json::from_str::<RemoteRegion>(&format!("\"{}\"", "f".repeat(40))).is_err());
    }

    proptest! {
        #[test]
        fn every_region_survives_bytes_and_text(addr: u64, len: u64, rkey: u32) {
            match RemoteRegion::new(addr, len, rkey) {
                Ok(region) => {
                    prop_assert_eq!(RemoteRegion::from_bytes(region.to_bytes()).unwrap(), region);
                    prop_assert_eq!(region.to_string().parse::<RemoteRegion>().unwrap(), region);
                }
                Err(error) => {
                    prop_assert!(addr.checked_add(len).is_none());
                    prop_assert_eq!(error, DescriptorError::Overflow { addr, len });
                }
            }
        }

        #[test]
        fn every_part_lies_inside(len in 0u64..1000, start: u64, end: u64, small in 0u64..1100, size in 0u64..1100) {
            let region = RemoteRegion::new(1 << 40, len, 1).unwrap();
            for (start, end) in [(start, end), (small, small.saturating_add(size))] {
                match region.slice(start..end) {
                    Ok(part) => {
                        prop_assert!(part.addr() >= region.addr());
                        prop_assert!(part.addr() + part.len() <= region.addr() + region.len());
                        prop_assert_eq!(part.len(), end - start);
                    }
                    Err(_) => prop_assert!(start > end || end > len),
                }
            }
        }
    }
}
