//! A software EFA device under the real libibverbs and libefa.
//!
//! [`launch`] starts programs on it, [`options`] says what its devices are like, [`ctl`] talks to
//! running ones. Inside the program [`uverbs`] plays the kernel and [`engine`] the card; the
//! library that puts them there is the package `soft-efa-preload`. What a user needs to know is in
//! the README beside this crate.

mod checks;
pub mod ctl;
pub mod engine;
#[cfg(test)]
mod fuzz;
pub mod gid;
pub mod launch;
mod needed;
pub mod options;
pub mod pci;
pub mod profile;
pub mod stats;
pub mod sysfs;
pub mod uverbs;
