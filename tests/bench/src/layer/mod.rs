//! The layers that are measured.
//!
//! `measure_post_*` and `measure_poll_*` are what callgrind counts: functions with such names, not
//! inlined, of which a run uses one each.

mod put;
mod session;

use anyhow::Result;
use efa_verbs::DataPath;

use crate::ring::Ring;

pub use put::{PeersInTurns, Put, RegionsInTurns, Same};
pub use session::Session;

/// A way to write to the target.
pub trait Layer {
    /// The next posts write `batch` times `size` bytes, always the same.
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()>;
    /// Posts a batch.
    fn post(&mut self) -> Result<()>;
    /// Takes up to `most` completions.
    fn poll(&mut self, most: u32) -> Result<u32>;
    /// [`post`](Self::post), counted.
    fn measure_post(&mut self) -> Result<()>;
    /// [`poll`](Self::poll), counted.
    fn measure_poll(&mut self, most: u32) -> Result<u32>;
    /// The completion ring.
    fn ring(&mut self) -> &mut Ring;
    /// How requests really go.
    fn path(&self) -> &'static str;
    /// Memory that each peer takes, beside its address handle.
    fn bytes_per_peer(&self) -> u64 {
        0
    }
}

fn name(path: DataPath) -> &'static str {
    match path {
        DataPath::Direct => "direct",
        _ => "libefa",
    }
}
