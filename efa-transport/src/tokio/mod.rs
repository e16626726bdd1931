//! Endpoints for tasks of a tokio runtime (feature `tokio`).
//!
//! An [`Endpoint`] is a [`future::Handle`](crate::future::Handle) whose driver is a task, with handshakes over
//! [`tokio::net::TcpStream`]. It works on runtimes of one thread and of many, which
//! need `enable_all`, or I/O and time at least. What `future` says about back-pressure and
//! [cancel safety](crate::future#cancel-safety) holds here.
//!
//! ```no_run
//! use efa_transport::handshake::HandshakeConfig;
//! use efa_transport::tokio::Endpoint;
//! use efa_transport::{Config, Domain};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let domain = Domain::open_first()?;
//!     let server = Endpoint::bind(&domain, Config::default(), "0.0.0.0:7000", HandshakeConfig::default()).await?;
//!     // An echo for every client.
//!     tokio::spawn({
//!         let server = server.clone();
//!         async move {
//!             while let Ok(message) = server.recv().await {
//!                 if let Some(peer) = message.peer() {
//!                     let answer = server.send(peer, &message);
//!                     tokio::spawn(async move { answer.await });
//!                 }
//!             }
//!         }
//!     });
//!     loop {
//!         match server.accept().await {
//!             Ok(connected) => println!("{} is here", connected.peer),
//!             Err(error) => eprintln!("{error}"), // concerns one client alone
//!         }
//!     }
//! }
//! ```
//!
//! # Shutting down
//!
//! [`Endpoint::close`](crate::future::Handle::close) lets operations finish. A runtime that shuts down drops
//! the driver, and so closes the endpoint at once; futures that live on elsewhere end with an error.
//! Dropping the last handle does the same.

mod driver;
mod endpoint;
mod meet;
mod messages;
mod watch;

pub use endpoint::Endpoint;
pub use messages::Messages;
