//! Whatever a program asks: no crash, no hang, nothing written but the answer, and the device goes
//! on.

mod arena;
mod calls;
mod noise;
mod questions;
mod queues;
mod sequences;
mod world;
