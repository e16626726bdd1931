//! Transfers over AWS Elastic Fabric Adapter: any size, many peers, typed errors.
//!
//! - [`Domain`]: an open device with its protection domain, which endpoints share.
//! - [`Region`]: registered memory; a [`Slice`] is a part of it, a [`RemoteRegion`] what a peer may reach.
//! - [`Endpoint`]: one queue pair with any number of peers.
//! - [`Put`], [`Get`], [`Send`]: operations, which are values. They are
//!   [submitted](Endpoint::submit), or added to a [`Batch`], and each ends with one [`Completion`].
//! - [`PageList`]: which pages here belong to which pages at a peer, as one operation.
//! - [`Message`]: bytes that a peer sent.
//! - [`future`]: an endpoint that tasks and threads share; with the feature `tokio`, one for tokio.
//! - [`handshake`]: how two endpoints get to know each other.
//! - [`Connection`]: a queue pair with a single peer, and an id per request.
//!
//! # What holds
//!
//! Order is free on this fabric: operations complete, and data lands, in any order. A completion of a put
//! says that all of its bytes are in the peer's memory. The peer learns of it only by [immediate
//! data](Put::immediate), or by a message that is sent after the completion.
//!
//! Nothing that the device uses can go away under it. Dropping, or leaking, a region, a peer's name, a
//! message or an endpoint at any time is harmless.
//!
//! A failed operation concerns itself alone: the endpoint and all other operations go on. Its [`Failure`]
//! has the root cause, the peer, the place, and the remedy.
//!
//! # How the pieces fit
//!
//! A put goes one way: the endpoint checks it, the `scheduler` accepts it (peer, memory, credit), the
//! `queue` posts it; its completion comes back the same way. The scheduler is pure: it has no I/O and no
//! clock, and tests drive it with a simulated device. The `queue` joins it to the queue pair, and is the only
//! module with `unsafe` code.
#![deny(unsafe_code)]

mod address;
mod config;
mod connection;
mod descriptor;
mod domain;
mod endpoint;
mod error;
mod explain;
mod failure;
pub mod future;
pub mod handshake;
mod operation;
mod pages;
mod peers;
#[allow(unsafe_code)]
mod queue;
mod range;
mod region;
pub mod registration;
mod remote;
mod scheduler;
mod stats;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use address::EndpointAddress;
pub use config::{Config, Loopback, ReceivePool};
pub use connection::{Connection, Posted, RequestCompletion};
pub use descriptor::DescriptorError;
pub use domain::Domain;
pub use efa_verbs::{
    Access, Buffer, CallerMemory, DataPath, Device, DeviceAttributes, Gid, Pages, QpState,
    StatusExplanation, VendorStatus, devices,
};
pub use endpoint::{Closed, Endpoint, connect_over};
pub use error::{Error, Full, Result};
pub use explain::Explanation;
pub use failure::{Failure, FailureKind};
pub use operation::{Await, Completion, Get, Kind, Operation, OperationId, Put, Send};
pub use pages::PageList;
pub use peers::{Gone, PeerId};
pub use queue::{Batch, Message};
pub use region::{Region, Slice};
pub use remote::RemoteRegion;
pub use stats::{Limits, PeerStats, Stats};
