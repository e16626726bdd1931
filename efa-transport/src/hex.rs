//! The two forms of fixed-size values that peers tell each other: bytes, and hexadecimal digits as text.

use std::fmt;

/// Why text is not the hexadecimal form of a fixed-size value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// The text has the wrong number of characters.
    #[error("{found} characters where {expected} hexadecimal digits are needed")]
    Length {
        /// Digits that the value has.
        expected: usize,
        /// Characters that the text has.
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
}

/// Reads exactly `2 * N` digits, upper or lower case.
pub(crate) fn parse<const N: usize>(text: &str) -> Result<[u8; N], HexError> {
    // The digits are looked at first: "not a digit" says more than a count when the text is
    // something else altogether.
    let mut out = [0u8; N];
    for (position, found) in text.chars().take(2 * N).enumerate() {
        let digit = found
            .to_digit(16)
            .ok_or(HexError::Digit { position, found })?;
        out[position / 2] = out[position / 2] << 4 | digit as u8;
    }
    match text.chars().count() {
        found if found == 2 * N => Ok(out),
        found => Err(HexError::Length {
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
/// `to_bytes` and `from_bytes`, and its error the variants `Length` and `Text`.
macro_rules! wire_form {
    ($value:ident, $error:ident) => {
        impl TryFrom<&[u8]> for $value {
            type Error = $error;

            fn try_from(bytes: &[u8]) -> Result<Self, $error> {
                let length = $error::Length(bytes.len());
                Self::from_bytes(bytes.try_into().map_err(|_| length)?)
            }
        }

        impl std::fmt::Display for $value {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::hex::write(&self.to_bytes(), f)
            }
        }

        impl std::str::FromStr for $value {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, $error> {
                Self::from_bytes($crate::hex::parse(text)?)
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
        let length = |found| HexError::Length { expected: 4, found };
        assert_eq!(error("012"), length(3));
        assert_eq!(error("01234"), length(5));
        let digit = |position, found| HexError::Digit { position, found };
        assert_eq!(error("0é2"), digit(1, 'é'));
        assert_eq!(error("not hexadecimal"), digit(0, 'n'));
        assert_eq!(parse("aBCd"), Ok([0xab, 0xcd]));
    }
}
