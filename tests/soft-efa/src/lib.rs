//! A software EFA device under the real libibverbs and libefa.

pub mod gid;
pub mod options;
pub mod profile;
