//! Transfers over AWS Elastic Fabric Adapter: any size, many peers, typed errors.
#![deny(unsafe_code)]

pub mod address;
pub mod advice;
pub mod diagnosis;
pub mod handshake;
mod hex;
pub mod registration_cache;
pub mod remote;

pub use hex::HexError;
