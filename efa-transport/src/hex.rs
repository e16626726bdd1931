//! Fixed-size hexadecimal text, the printed form of addresses and remote regions.

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
    // something else altogether, unless it is far too long to be worth reading.
    let mut out = [0u8; N];
    let mut count = 0;
    for (position, found) in text.chars().take(2 * N).enumerate() {
        let digit = found
            .to_digit(16)
            .ok_or(HexError::Digit { position, found })?;
        out[position / 2] = out[position / 2] << 4 | digit as u8;
        count += 1;
    }
    let found = text.chars().count();
    if count != 2 * N || found != count {
        return Err(HexError::Length {
            expected: 2 * N,
            found,
        });
    }
    Ok(out)
}

/// Writes two lower-case digits per byte.
pub(crate) fn write(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}
