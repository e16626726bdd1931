//! How two endpoints get to know each other before the first request is posted.
//!
//! SRD has no connections, but a device refuses RDMA from a sender for which it holds no address
//! handle. So before either side posts, both must have made the other's handle. The handshake makes
//! sure of that, in two phases over a byte channel:
//!
//! ```text
//!      one side                                  other side
//!  hello: address, incarnation, capabilities ─▶
//!                                                makes the handle for the one side
//!                                            ◀─ hello, and ready: "I hold your handle"
//!  makes the handle for the other side
//!  ready                                     ─▶
//!  may post                                      may post
//! ```
//!
//! Both may also start at once. Beside its [address](crate::address::EndpointAddress) each side sends
//! its [`Incarnation`], its [`Capabilities`], and bytes for the program at the other side, typically
//! the descriptors of memory that may be read or written.
//!
//! - [`Listener`] and [`Connector`] do it over TCP, many at once, without threads.
//! - [`connect_over`](crate::connect_over) does it over any `Read + Write`.
//!
//! Every step has a deadline, until the last byte is sent.
//!
//! The channel is trusted: whoever can write to it can make this endpoint talk to it. Where that
//! matters, run the handshake inside TLS or over a private network.

mod config;
mod connector;
mod deadline;
mod error;
mod info;
mod listener;
mod machine;
mod store;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub use config::HandshakeConfig;
pub use connector::Connector;
#[cfg(feature = "tokio")]
pub(crate) use error::Step;
pub use error::{HandshakeError, HandshakeErrorKind, RejectReason};
pub use info::{Capabilities, EndpointInfo, Incarnation};
pub use listener::Listener;
pub use store::Connected;
pub(crate) use store::PeerStore;
pub(crate) use stream::run_over;
