//! A set of packet numbers.

/// Packets of a message, one bit each. Messages of up to 64 packets need no allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    first: u64,
    more: Vec<u64>,
}

impl Bits {
    /// An empty set for `len` packets.
    pub(super) fn new(len: u32) -> Self {
        Self {
            first: 0,
            more: vec![0; (len.div_ceil(64).max(1) - 1) as usize],
        }
    }

    /// The 64 bits from `word * 64` on; nothing is set beyond the end.
    pub(super) fn word(&self, word: u32) -> u64 {
        match word {
            0 => self.first,
            word => self.more.get(word as usize - 1).copied().unwrap_or(0),
        }
    }

    pub(super) fn has(&self, bit: u32) -> bool {
        self.word(bit / 64) >> (bit % 64) & 1 != 0
    }

    /// Adds a packet. False if it was there, or is beyond the end.
    pub(super) fn set(&mut self, bit: u32) -> bool {
        let word = match bit / 64 {
            0 => &mut self.first,
            word => match self.more.get_mut(word as usize - 1) {
                Some(word) => word,
                None => return false,
            },
        };
        let mask = 1 << (bit % 64);
        let new = *word & mask == 0;
        *word |= mask;
        new
    }

    pub(super) fn clear(&mut self) {
        self.first = 0;
        self.more.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_new_once() {
        let mut bits = Bits::new(130);
        for bit in [0, 63, 64, 129] {
            assert!(!bits.has(bit));
            assert!(bits.set(bit));
            assert!(!bits.set(bit));
            assert!(bits.has(bit));
        }
        assert_eq!(bits.word(0), 1 | 1 << 63);
        assert_eq!(bits.word(2), 2);
        assert!(!bits.set(1000));
        assert!(!bits.has(1000));
        bits.clear();
        assert!(!bits.has(64));
        assert!(Bits::new(0).set(0));
    }
}
