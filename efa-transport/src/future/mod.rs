//! One endpoint for many tasks and threads.

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
