//! How two endpoints get to know each other before the first request is posted.
//!
//! SRD has no connections, but a peer's device refuses RDMA from a sender for which it holds no address
//! handle. So before either side posts, both must have made the other's handle. The handshake
//! makes sure of that, in two phases over any byte channel:
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
//! Both may also start at once. Beside its [address](crate::address::EndpointAddress) each side sends its
//! [`Incarnation`], its [`Capabilities`], and bytes for the program at the other side,
//! typically the descriptors of memory that may be read or written.
//!
//! - [`Listener`] and [`Connector`] do it over TCP, many at once, without threads.
//! - [`connect_over`] and [`StreamHandshake`] do it over any `Read + Write`.
//! - [`Handshake`] is the state machine itself, without input, output, clock or threads.
//!
//! They all reach the endpoint through the trait [`PeerStore`].
//!
//! The channel is trusted: whoever can write to it can make this endpoint talk to it. Where that
//! matters, run the handshake inside TLS or over a private network.

mod connector;
mod error;
mod info;
mod listener;
mod machine;
mod roster;
mod store;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

pub use connector::{Connector, ConnectorConfig};
pub use error::{FrameError, HandshakeError, Phase, RejectReason};
pub use info::{Capabilities, EndpointInfo, Incarnation, PeerInfo};
pub use listener::{Arrival, Listener, ListenerConfig, ListenerStats};
pub use machine::{Channel, Event, Handshake, HandshakeConfig};
pub use roster::{Roster, RosterKey, Standing};
pub use store::{Connected, PeerStore};
pub use stream::{StreamHandshake, connect_over};
pub use wire::MAX_USER_DATA;
