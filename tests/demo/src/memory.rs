//! Bytes that can be told apart, and checksums of them.

use std::fmt::Write as _;

use anyhow::Result;
use efa_tests::Rng;
use efa_transport::Region;
use sha2::{Digest, Sha256};

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// Fills the region's first `length` bytes with those of a seed.
pub fn fill(region: &Region, seed: u64, length: u64) -> Result<()> {
    let mut random = Rng::new(seed);
    let mut piece = vec![0; PIECE];
    each_piece(length, |offset, length| {
        let piece = &mut piece[..length];
        random.fill(piece);
        Ok(region.copy_in(offset, piece)?)
    })
}

/// SHA-256 of the region's first `length` bytes.
pub fn checksum(region: &Region, length: u64) -> Result<String> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    each_piece(length, |offset, length| {
        let piece = &mut piece[..length];
        region.copy_out(offset, piece)?;
        hash.update(&piece);
        Ok(())
    })?;
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

fn each_piece(length: u64, mut work: impl FnMut(u64, usize) -> Result<()>) -> Result<()> {
    let mut offset = 0;
    while offset < length {
        let piece = usize::try_from(length - offset).map_or(PIECE, |rest| rest.min(PIECE));
        work(offset, piece)?;
        offset += piece as u64;
    }
    Ok(())
}
