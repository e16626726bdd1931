//! Two engines in one process exchange data, without libibverbs.

mod faults;
mod formats;
mod fuzz;
mod garbage;
mod rig;
mod speed;
mod status;
mod transfer;
