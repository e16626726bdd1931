//! The device as a driver meets it, without a virtual machine.

mod commands;
mod fuzz;
mod rig;
mod traffic;
