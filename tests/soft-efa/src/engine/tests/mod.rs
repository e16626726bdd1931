//! Two engines in one process exchange data, without libibverbs.

mod rig;
mod transfer;
