//! A software EFA device under the real libibverbs and libefa.

pub mod ctl;
pub mod engine;
pub mod gid;
pub mod launch;
mod needed;
pub mod options;
pub mod profile;
pub mod sysfs;
pub mod uverbs;
