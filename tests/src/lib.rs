//! Integration tests that run the same on AWS and on soft-efa.
//!
//! The tests live in `tests/`; this library is what they share. A test is a closure that gets a
//! [`Test`] and returns an [`anyhow::Result`]:
//!
//! ```no_run
//! #[test]
//! fn the_first_device_has_a_name() {
//!     efa_tests::run(|t| {
//!         assert!(!t.device()?.name().is_empty());
//!         Ok(())
//!     });
//! }
//! ```
//!
//! The harness sees to it that
//!
//! - no test can hang: a watchdog ends the process at the test's deadline ([`Setup::deadline`]);
//! - no test is silently green: one that can't run returns [`skip`], which is recorded with its
//!   reason in the file that `EFA_TEST_SKIPS` names, and with `EFA_TEST_HARDWARE=1` a missing
//!   device is a failure;
//! - processes are cheap to write: [`Test::spawn`] starts the same test again in another process,
//!   where [`Test::role`] tells it which part to play. The two talk over a [`Channel`];
//! - a test has the device that it needs: [`under`] runs it in a process of its own on a
//!   soft-efa with other options;
//! - randomness is repeatable: [`Test::rng`] starts from `EFA_TEST_SEED`, and a failure prints
//!   the seed.

mod channel;
mod child;
mod deadline;
mod fds;
mod guest;
mod rng;
mod setup;
mod skips;
mod soft;
mod test;
mod transport;
mod verbs;

pub use channel::Channel;
pub use child::Process;
pub use fds::{Footprint, footprint};
pub use rng::Rng;
pub use setup::{Setup, alone, here, run, under};
pub use skips::{Skip, skip};
pub use soft::{preload_library, soft_efa_dir, take_off};
pub use test::{Counters, Test};
pub use transport::{Pair, done, ended, introduce, refused, region};
pub use verbs::{Address, Node, Remote, read, send, write};

/// The example of the workspace's README compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
