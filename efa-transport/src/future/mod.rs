//! One endpoint for many tasks and threads.
//!
//! A [`Handle`] is cheap to clone, and every task or thread that has one submits operations, whose results are
//! futures. A [`Driver`] moves the endpoint on: on a thread of its own, in a runtime, or in an event loop.
//! Nothing here knows a runtime; the feature `tokio` adds [`tokio::Endpoint`](crate::tokio::Endpoint).
//!
//! ```no_run
//! use efa_transport::future::Handle;
//! use efa_transport::{Config, Domain, Endpoint};
//! # fn f(address: efa_transport::EndpointAddress) -> Result<(), Box<dyn std::error::Error>> {
//! let domain = Domain::open_first()?;
//! let config = Config { events: true, ..Config::default() };
//! let (handle, driver) = Handle::new(Endpoint::new(&domain, config)?)?;
//! driver.spawn()?;
//!
//! let peer = handle.connect(address)?;
//! std::thread::scope(|scope| {
//!     for name in ["one", "two"] {
//!         let handle = &handle;
//!         scope.spawn(move || handle.send(peer, name.as_bytes()).wait());
//!     }
//! });
//! # Ok(()) }
//! ```
//!
//! # Which to choose
//!
//! | | [`Endpoint`](crate::Endpoint) | [`Handle`] and [`Driver::spawn`] | [`tokio::Endpoint`](crate::tokio::Endpoint) |
//! |---|---|---|---|
//! | who uses it | one thread | any number of threads | any number of tasks |
//! | who polls | the thread | the driver's thread | a task |
//! | an operation's end | [`Completion`](crate::Completion) by tag or name | [`Submitted::wait`] | `.await` |
//! | for | the lowest cost per operation, a loop of your own | programs with threads that block | services |
//!
//! # Back-pressure
//!
//! The endpoint holds as many operations as [`Config::max_operations`](crate::Config::max_operations) says.
//! What finds no room waits in the order of submission, with its future; a dropped future waits no more. So
//! there is no queue beyond what tasks wait for, and none overtakes another. A batch waits until there is
//! room for all of it, and is given it although other operations keep the send queue full.
//!
//! # Cancel safety
//!
//! Every future may be dropped at any moment, in `select!`, by a timeout, when a task is aborted or a runtime
//! shuts down. Memory is held until the device is done with it, whoever is gone.
//!
//! | dropped | what it means |
//! |---|---|
//! | [`Handle::put`], [`get`](Handle::get), [`send`](Handle::send), [`submit`](Handle::submit) | The operation is cancelled. It may or may not have taken effect, wholly or in parts; what the device has already may take effect later. Put to the same bytes again only after [`Region::is_idle`](crate::Region::is_idle) says that the device is done. |
//! | [`Handle::batch`] | The same for each operation. A batch that waits for room is not posted at all. |
//! | [`Handle::landed`] | No immediate is lost: what it had counted, others count. |
//! | [`Handle::recv`] | No message is lost: what it was handed goes to the next one. |
//! | [`Handle::put_owned`], [`get_owned`](Handle::get_owned) | As a put; the buffer is freed when the device is done with it. |
//! | [`Handle::flush`] | Nothing. |
//! | [`Handle::close`] | Nothing: the endpoint closes all the same. |
//!
//! To keep an operation beyond a timeout, keep its future: `timeout(limit, &mut put).await`. A
//! [deadline](crate::Put::deadline) of the operation itself needs no timer of a runtime, and its failure
//! tells how many requests are still with the device.
//!
//! A future that was polled and is kept without being polled again holds nobody up, but for
//! [`Handle::recv`], which may keep one message.

mod arrivals;
mod driver;
mod ending;
mod epochs;
mod handle;
mod lend;
mod line;
mod operations;
mod park;
mod receive;
mod shared;
mod spin;
mod state;
mod stored;
mod submit;
mod submitted;
mod waiting;
mod wake;

pub use driver::{Driver, Turn};
pub use handle::Handle;
pub use lend::{Lent, Returned};
pub use receive::{Close, Flush, Receive};
pub use submitted::{Submitted, SubmittedBatch};
