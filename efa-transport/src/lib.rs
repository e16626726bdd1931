//! Transfers over AWS Elastic Fabric Adapter: any size, many peers, typed errors.
//!
//! - [`Domain`]: an open device, and what its endpoints share.
//! - [`Region`]: memory that the device can reach.
//! - [`Endpoint`]: a queue pair with any number of peers. Its operations are of any size, and
//!   each has one [`Completion`].
//! - [`Session`]: many short requests, posted together by [`Endpoint::post`], which is the fastest
//!   way; those with one peer and one region in a [`Run`].
//! - [`Connection`]: the same for a single peer, one id per request.
//! - [`handshake`]: how two endpoints get to know each other.
//!
//! # What holds
//!
//! Order is free on this fabric: operations complete, and data lands, in any order. A
//! completion of a put says that all of its bytes are in the peer's memory. The peer learns of
//! it only by [immediate data](Endpoint::put_with_immediate), or by a message that is sent
//! after the completion.
//!
//! Nothing that the device uses can go away under it. Dropping, or leaking, a region, a peer's
//! name or an endpoint at any time is harmless.
//!
//! A failed operation concerns itself alone: the endpoint and all other operations go on. Its
//! [`Failure`] has the root cause, the peer, the place, and advice.
//!
//! # How the pieces fit
//!
//! The pure parts have no I/O and are driven by tests with a simulated device: cutting
//! transfers into requests, counting credits, the operation table, taking turns, immediate
//! counters, the receive pool's books. One module, `session`, joins them to the queue pair, and is
//! the only one with `unsafe` code.
#![deny(unsafe_code)]

pub mod address;
pub mod advice;
mod chunk;
mod config;
mod connect;
mod connection;
mod credit;
pub mod diagnosis;
mod domain;
mod endpoint;
mod error;
mod failure;
mod flow;
mod grant;
pub mod handshake;
mod hex;
mod immediate;
mod lanes;
mod ops;
mod peers;
mod pool;
mod region;
pub mod registration_cache;
pub mod remote;
#[allow(unsafe_code)]
mod session;
mod stats;
mod turn;

pub use address::{EndpointAddress, Gid};
pub use advice::Advice;
pub use config::{Config, Loopback, ReceivePool, WaitPolicy};
pub use connection::{Connection, Posted, RequestCompletion};
pub use domain::Domain;
pub use efa_verbs::{
    Access, Buffer, CompletionChannel, DataPath, Device, DeviceAttributes, Pages, QpState, devices,
};
pub use endpoint::{Closed, Endpoint, connect_over};
pub use error::{Blocked, Error, ReceiveError, Result};
pub use failure::{Failure, FailureKind};
pub use hex::HexError;
pub use ops::{Completion, Kind, OperationId};
pub use peers::{Gone, PeerId};
pub use region::{LocalSlice, Region};
pub use remote::RemoteRegion;
pub use session::{Message, Run, Session};
pub use stats::{PeerStats, Stats};
