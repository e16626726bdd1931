//! Tests of the handshake. `EFA_FUZZ_CASES` sets how many random cases each of them tries.

mod bytes;
mod pair;
mod tcp;

use super::*;
use crate::address::{EndpointAddress, Gid};

/// The number of random cases: from the environment, or `default`.
fn cases(default: u64) -> u64 {
    match std::env::var("EFA_FUZZ_CASES") {
        Ok(text) => text.parse().expect("EFA_FUZZ_CASES is not a number"),
        Err(_) => default,
    }
}

fn endpoint(host: u8, queue_pair: u32, incarnation: u64) -> EndpointInfo {
    let address = EndpointAddress::new(Gid::from_bytes([host; 16]), queue_pair, 0x4242).unwrap();
    EndpointInfo::new(address, Incarnation::from_number(incarnation).unwrap())
}

/// A small generator of random numbers (xorshift64*), so that a seed replays exactly.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random((seed ^ 0x9e37_79b9_7f4a_7c15).max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`, which is not 0.
    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
