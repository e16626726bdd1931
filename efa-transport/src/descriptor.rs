//! What peers tell each other of themselves, addresses and remote regions: their two forms, bytes in
//! network order and hexadecimal digits.

use std::fmt;

/// Why a descriptor (an [`EndpointAddress`](crate::EndpointAddress) or a
/// [`RemoteRegion`](crate::RemoteRegion)) is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorError {
    /// The wrong number of bytes.
    #[error("{found} bytes where a descriptor of this kind has {expected}")]
    Length {
        /// Bytes of the descriptor.
        expected: usize,
        /// Bytes that there are.
        found: usize,
    },
    /// The text has the wrong number of characters.
    #[error("{found} characters where {expected} hexadecimal digits are needed")]
    Digits {
        /// Digits of the descriptor.
        expected: usize,
        /// Characters of the text.
        found: usize,
    },
    /// A character is not a hexadecimal digit.
    #[error("{found:?} at position {position} is not a hexadecimal digit")]
    Digit {
        /// Position of the character, counted in characters from 0.
        position: usize,
        /// The character.
        found: char,
    },
    /// The GID is all zero, which no device has.
    #[error(
        "the GID is all zero: the peer's device had no GID when it made this address, or the address was \
         never filled in"
    )]
    ZeroGid,
    /// The queue pair number does not fit the 16 bits that EFA has for it.
    #[error(
        "queue pair number {0:#x} is above 0xffff, the largest that EFA has: these bytes are not an EFA \
         address, or not in network order"
    )]
    QueuePairNumber(u32),
    /// The queue key has its top bit set.
    #[error(
        "queue key {0:#x} is not below 0x80000000: these bytes are not an EFA address, or not in network \
         order"
    )]
    QueueKey(u32),
    /// A remote region would go beyond the end of the 64-bit address space.
    #[error(
        "a remote region of {len} bytes at {addr:#x} ends beyond the 64-bit address space: the descriptor \
         is damaged"
    )]
    Overflow {
        /// First address.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Reads exactly `2 * N` digits, upper or lower case.
pub(crate) fn parse<const N: usize>(text: &str) -> Result<[u8; N], DescriptorError> {
    // The digits are looked at first: "not a digit" says more than a count when the text is
    // something else altogether.
    let mut out = [0u8; N];
    for (position, found) in text.chars().take(2 * N).enumerate() {
        let digit = found
            .to_digit(16)
            .ok_or(DescriptorError::Digit { position, found })?;
        out[position / 2] = out[position / 2] << 4 | digit as u8;
    }
    match text.chars().count() {
        found if found == 2 * N => Ok(out),
        found => Err(DescriptorError::Digits {
            expected: 2 * N,
            found,
        }),
    }
}

/// Writes two lower-case digits per byte.
pub(crate) fn write(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Gives a type both forms, in every way that Rust and serde have for them. It has `WIRE_SIZE`,
/// `to_bytes` and `from_bytes`.
macro_rules! wire_form {
    ($value:ident) => {
        impl TryFrom<&[u8]> for $value {
            type Error = $crate::descriptor::DescriptorError;

            fn try_from(bytes: &[u8]) -> Result<Self, $crate::descriptor::DescriptorError> {
                let length = $crate::descriptor::DescriptorError::Length {
                    expected: Self::WIRE_SIZE,
                    found: bytes.len(),
                };
                Self::from_bytes(bytes.try_into().map_err(|_| length)?)
            }
        }

        impl std::fmt::Display for $value {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::descriptor::write(&self.to_bytes(), f)
            }
        }

        impl std::str::FromStr for $value {
            type Err = $crate::descriptor::DescriptorError;

            fn from_str(text: &str) -> Result<Self, $crate::descriptor::DescriptorError> {
                Self::from_bytes($crate::descriptor::parse(text)?)
            }
        }

        /// Digits in formats that people read, bytes elsewhere.
        #[cfg(feature = "serde")]
        impl serde::Serialize for $value {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match serializer.is_human_readable() {
                    true => serializer.collect_str(self),
                    false => self.to_bytes().serialize(serializer),
                }
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $value {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = if deserializer.is_human_readable() {
                    <std::borrow::Cow<'de, str>>::deserialize(deserializer)?.parse()
                } else {
                    Self::from_bytes(<[u8; Self::WIRE_SIZE]>::deserialize(deserializer)?)
                };
                value.map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use wire_form;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_what_is_wrong_with_it() {
        let error = |text| parse::<2>(text).unwrap_err();
        let length = |found| DescriptorError::Digits { expected: 4, found };
        assert_eq!(error("012"), length(3));
        assert_eq!(error("01234"), length(5));
        let digit = |position, found| DescriptorError::Digit { position, found };
        assert_eq!(error("0é2"), digit(1, 'é'));
        assert_eq!(error("not hexadecimal"), digit(0, 'n'));
        assert_eq!(parse("aBCd"), Ok([0xab, 0xcd]));
    }
}
