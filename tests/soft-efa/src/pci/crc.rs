//! The checksum of admin entries: CRC-16 with the polynomial 0x8005, bits in reverse order.

const START: u16 = 0xffff;

/// The checksum of an entry whose checksum field is zero.
pub(crate) fn of(entry: &[u8]) -> u16 {
    entry.iter().fold(START, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| {
            if crc & 1 != 0 {
                crc >> 1 ^ 0xa001
            } else {
                crc >> 1
            }
        })
    }) ^ START
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_one() {
        // CRC-16/USB's check value.
        assert_eq!(of(b"123456789"), 0xb4c8);
        assert_eq!(of(&[]), 0);
    }
}
