//! Two engines in one process exchange data, without libibverbs.

mod demand;
mod faults;
mod formats;
mod fuzz;
mod garbage;
mod rig;
mod rings;
mod speed;
mod status;
mod trace;
mod transfer;
