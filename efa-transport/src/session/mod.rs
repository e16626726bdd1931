//! Where requests meet the queue pair: the only module of this crate with `unsafe` code.
//!
//! # Why it is sound
//!
//! What a request names must outlive its completion: the local region, and the address
//! handle. [`Core`] owns the queue pair and the [`Flow`], which keeps both. A request is
//! pushed only after the flow has accepted its operation: that has a clone of the region, its
//! own or its [lane](crate::lanes)'s, and the name of a peer, whose handle stays as long as
//! operations with it are under way. The flow lets go of them when the completion has been
//! polled ([`Flow::ending`], [`Flow::complete`]), when a session was not posted
//! ([`Flow::undo`], [`Flow::roll_back`]), or after the queue pair was destroyed
//! ([`Flow::fail_all`]); and `Core` declares the queue pair before the flow, so dropping it
//! destroys them in that order. Leaking a `Core` leaks all of it together.
//!
//! Regions never hand out references to their bytes, so the device's accesses meet none.
//! The receive pool's region is private to this module; a message's bytes are looked at
//! only while the pool's books have the buffer as lent, which is while no receive is posted
//! for it.
//!
//! # What the fast path does
//!
//! A [`Run`] has looked up peer and region, and has the destination and the keys at hand.
//! [`Run::write`] compares lengths, takes a credit and a slot, and makes the three calls of the verbs
//! API with entry points that were resolved when the queue pair was made. [`Session::write`] compares
//! peer and region with those of the last request as well, and begins another run where they differ
//! (`Core::turn`). A completion finds its slot by its id and gives slot and credit back; its lane
//! counts once for all completions in a row. Nothing of it allocates in the long
//! run, locks beyond what libefa locks, touches a shared count per request, looks anything up in a map,
//! or logs.
//!
//! Three rules keep instructions out of the loops, which `cargo xtask bench` counts:
//!
//! - What a request needs of the endpoint is inside [`Core`], so one register leads to all of it.
//! - What is rare is in functions of its own, which take numbers, not references, and after which a
//!   posting loop does not go on: what has an address can't stay in a register, and what lives
//!   across a call takes one of the few that survive calls.
//! - The loop over completions ends where one is unusual, and begins again after it has been dealt
//!   with: so that no call is inside.

mod grants;
mod messages;
mod poll;
mod post;
mod pump;
mod rules;
mod run;

use std::fmt;
use std::mem;

use efa_verbs::{QueuePair, ReceiveRequest, RecvCompletion};

use crate::credit::Credits;
use crate::domain::Handle;
use crate::failure::FailureKind;
use crate::flow::Flow;
use crate::ops::NONE;
use crate::pool::Pool;
use crate::region::Region;
use messages::{BATCH, RECEIVES, Receives};
use run::Current;

pub(crate) use grants::GrantTable;
pub use messages::Message;
pub use post::Session;
pub(crate) use rules::{Rules, check_feature, send_kind};
pub use run::Run;

/// The queue pair with everything that its requests name. See the module.
pub(crate) struct Core {
    pair: QueuePair,
    pub(crate) flow: Flow<Region, Handle>,
    receives: Option<Receives>,
    received: Box<[RecvCompletion; BATCH]>,
    requests: Vec<ReceiveRequest>,
    /// Receives of the caller's that are with the device.
    posted_receives: u32,
    current: Current,
    /// The lane of the last operation whose completion was polled.
    last: u32,
}

impl Core {
    pub(crate) fn new(
        pair: QueuePair,
        flow: Flow<Region, Handle>,
        pool: Option<(Region, u32, u32)>,
    ) -> Self {
        Self {
            pair,
            flow,
            receives: pool.map(|(region, buffers, size)| Receives {
                region,
                size,
                pool: Pool::new(buffers),
            }),
            received: Box::new([RecvCompletion::default(); BATCH]),
            requests: Vec::with_capacity(RECEIVES),
            posted_receives: 0,
            current: Current::NONE,
            last: NONE,
        }
    }

    pub(crate) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// For transitions and arming. Replacing the queue pair is
    /// [`replace_pair`](Self::replace_pair)'s.
    pub(crate) fn pair_mut(&mut self) -> &mut QueuePair {
        &mut self.pair
    }

    /// Destroys the queue pair and its completion queues, takes a new one, and ends all
    /// operations.
    pub(crate) fn replace_pair(&mut self, pair: QueuePair, credits: Credits) {
        // The old one is destroyed here, before anything that its requests name.
        let old = mem::replace(&mut self.pair, pair);
        let number = old.number();
        let destroyed = old.destroy();
        self.posted_receives = 0;
        if let Some(receives) = &mut self.receives {
            match destroyed {
                Ok(()) => receives.pool.reset(),
                // The device may still write them, so nobody may look at them any more.
                Err(_) => receives.pool.abandon(),
            }
        }
        // Regions that nobody else holds are deregistered before their memory is freed, so this is
        // safe whatever became of the queue pair.
        self.flow.fail_all(FailureKind::QueuePairLost, credits);
        if let Err(error) = destroyed {
            tracing::error!(
                number,
                %error,
                "the old queue pair lives on, and with it the buffers that were posted to it"
            );
        }
    }

    /// Destroys the queue pair, and returns the flow with all operations ended.
    pub(crate) fn close(self) -> Flow<Region, Handle> {
        let Self { pair, mut flow, .. } = self;
        drop(pair);
        flow.fail_all(FailureKind::Closed, Credits::new(1, 1));
        flow
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("pair", &self.pair)
            .finish_non_exhaustive()
    }
}
