//! Queue pairs.
//!
//! A queue pair owns its completion queues and shares them with no other: before rdma-core 61 and
//! 63, libefa books a stale completion of a destroyed queue pair on whichever one has its number now,
//! down to writing out of bounds. With queues that die with their queue pair, none can be stale.

mod calls;
mod config;
mod create;
mod pair;
mod poll;
mod receive;
mod rings;
mod session;
mod state;

pub use config::QueuePairConfig;
pub use pair::QueuePair;
pub use state::DEFAULT_QUEUE_KEY;
