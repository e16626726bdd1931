//! Where an endpoint can be reached: [`EndpointAddress`].

use std::fmt;

use efa_verbs::Gid;

use crate::descriptor::{DescriptorError, wire_form};

/// The address of an endpoint: everything that a peer needs in order to reach it.
///
/// On the wire it is exactly 24 bytes in network order: GID (16), queue pair number (4), queue
/// key (4). The Python package `efa` exchanges the same bytes, so both can talk to each other. Its
/// text form is 48 hexadecimal digits.
///
/// A value is always plausible: the GID is not zero, the queue pair number fits 16 bits and the
/// queue key is below 0x80000000.
///
/// ```
/// use efa_transport::{EndpointAddress, Gid};
///
/// let gid: Gid = "fe80::7f00:1".parse().unwrap();
/// let address = EndpointAddress::new(gid, 7, EndpointAddress::DEFAULT_QUEUE_KEY)?;
/// let text = address.to_string();
/// assert_eq!(text, "fe8000000000000000000000" .to_owned() + "7f000001" + "00000007" + "00004242");
/// assert_eq!(text.parse::<EndpointAddress>()?, address);
/// assert_eq!(EndpointAddress::from_bytes(address.to_bytes())?, address);
/// # Ok::<(), efa_transport::DescriptorError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointAddress {
    gid: Gid,
    queue_pair: u32,
    queue_key: u32,
}

impl EndpointAddress {
    /// Bytes of an address on the wire.
    pub const WIRE_SIZE: usize = 24;
    /// The queue key used where nobody chose another.
    pub const DEFAULT_QUEUE_KEY: u32 = 0x4242;

    /// An address from its parts.
    ///
    /// # Errors
    /// A zero GID, a queue pair number above 16 bits, or a queue key of 0x80000000 and more.
    pub fn new(gid: Gid, queue_pair: u32, queue_key: u32) -> Result<Self, DescriptorError> {
        if gid.is_zero() {
            return Err(DescriptorError::ZeroGid);
        }
        // The send queue's entry has 16 bits for it: a larger number would silently name
        // another queue pair.
        if queue_pair > 0xffff {
            return Err(DescriptorError::QueuePairNumber(queue_pair));
        }
        if queue_key >= 0x8000_0000 {
            return Err(DescriptorError::QueueKey(queue_key));
        }
        Ok(EndpointAddress {
            gid,
            queue_pair,
            queue_key,
        })
    }

    /// The GID of the device.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The queue pair number.
    pub fn queue_pair(&self) -> u32 {
        self.queue_pair
    }

    /// The queue key. A sender that uses another is ignored by the receiver, without any notice.
    pub fn queue_key(&self) -> u32 {
        self.queue_key
    }

    /// The 24 bytes that go to a peer.
    pub fn to_bytes(&self) -> [u8; Self::WIRE_SIZE] {
        let mut out = [0; Self::WIRE_SIZE];
        out[..16].copy_from_slice(&self.gid.to_bytes());
        out[16..20].copy_from_slice(&self.queue_pair.to_be_bytes());
        out[20..].copy_from_slice(&self.queue_key.to_be_bytes());
        out
    }

    /// Reads the 24 bytes that a peer sent.
    ///
    /// # Errors
    /// As [`EndpointAddress::new`].
    pub fn from_bytes(bytes: [u8; Self::WIRE_SIZE]) -> Result<Self, DescriptorError> {
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[..16]);
        let number = |at: std::ops::Range<usize>| {
            let bytes = bytes[at].iter();
            bytes.fold(0, |sum, &byte| sum << 8 | u32::from(byte))
        };
        Self::new(Gid::from_bytes(gid), number(16..20), number(20..24))
    }
}

wire_form!(EndpointAddress);

impl fmt::Debug for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "EndpointAddress({}, qp {}, qkey {:#x})",
            self.gid, self.queue_pair, self.queue_key
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gid() -> Gid {
        "fe80::1:2".parse().unwrap()
    }

    #[test]
    fn wire_form_is_gid_number_key_in_network_order() {
        let bytes = EndpointAddress::new(gid(), 0x1234, 0x4242)
            .unwrap()
            .to_bytes();
        assert_eq!(bytes[..16], gid().to_bytes());
        assert_eq!(bytes[16..], [0, 0, 0x12, 0x34, 0, 0, 0x42, 0x42]);
    }

    #[test]
    fn implausible_parts_are_refused_by_name() {
        let zero = Gid::from_bytes([0; 16]);
        assert_eq!(
            EndpointAddress::new(zero, 1, 1),
            Err(DescriptorError::ZeroGid)
        );
        assert_eq!(
            EndpointAddress::new(gid(), 0x1_0000, 1),
            Err(DescriptorError::QueuePairNumber(0x1_0000))
        );
        assert_eq!(
            EndpointAddress::new(gid(), 1, 0x8000_0000),
            Err(DescriptorError::QueueKey(0x8000_0000))
        );
        assert_eq!(
            EndpointAddress::try_from(&[1u8; 23][..]),
            Err(DescriptorError::Length {
                expected: 24,
                found: 23
            })
        );
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_uses_text_where_people_read_it_and_refuses_bad_addresses() {
        let address = EndpointAddress::new(gid(), 1, 2).unwrap();
        let json = serde_json::to_string(&address).unwrap();
        assert_eq!(json, format!("\"{address}\""));
        assert_eq!(
            serde_json::from_str::<EndpointAddress>(&json).unwrap(),
            address
        );
        let zero = format!("\"{}\"", "0".repeat(48));
        let error = serde_json::from_str::<EndpointAddress>(&zero)
            .unwrap_err()
            .to_string();
        assert!(error.contains("GID is all zero"), "{error}");
    }

    proptest! {
        #[test]
        fn every_address_survives_bytes_and_text(bytes in any::<[u8; 24]>()) {
            if let Ok(address) = EndpointAddress::from_bytes(bytes) {
                prop_assert_eq!(address.to_bytes(), bytes);
            }
            let mut bytes = bytes;
            bytes[0] |= 1;
            bytes[16] = 0;
            bytes[17] = 0;
            bytes[20] &= 0x7f;
            let address = EndpointAddress::from_bytes(bytes).unwrap();
            prop_assert_eq!(address.to_bytes(), bytes);
            prop_assert_eq!(address.to_string().parse::<EndpointAddress>().unwrap(), address);
        }

        #[test]
        fn parsing_any_text_returns(text in ".{0,60}", digits in "[0-9a-fA-F]{46,50}") {
            let _ = text.parse::<EndpointAddress>();
            if let Ok(address) = digits.parse::<EndpointAddress>() {
                prop_assert_eq!(address.to_string(), digits.to_lowercase());
            }
        }
    }
}
