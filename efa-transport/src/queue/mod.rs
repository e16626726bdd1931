//! Where requests meet the queue pair: the only module of this crate with `unsafe` code.
//!
//! # Why it is sound
//!
//! What a request names must outlive its completion: the local region, and the address handle. [`Queue`]
//! owns the queue pair and the [`Scheduler`], which keeps both. A request is pushed only after the
//! scheduler has accepted its operation: it then holds the region, by a clone and a count, and counts the
//! operation in its peer, whose entry keeps the handle for as long as that count isn't zero. The scheduler
//! lets go of them when the completion has been polled ([`Scheduler::end`], [`Scheduler::complete`]), when
//! a batch was not posted ([`Scheduler::undo`], [`Scheduler::roll_back`]), or after the queue pair was
//! destroyed ([`Scheduler::fail_all`]). `Queue` declares the queue pair before the scheduler, so dropping
//! it destroys them in that order; leaking it leaks all of it together.
//!
//! Regions never hand out references to their bytes, so the device's accesses meet none. The receive
//! pool's region is private to this module; a message's bytes are looked at only while the pool's books
//! have its buffer as taken, which is while no receive is posted for it.

mod batch;
pub(crate) mod connect;
mod message;
mod poll;
mod post;
mod receive;
pub(crate) mod rules;
mod send_buffers;

use std::collections::VecDeque;
use std::fmt;
use std::mem;

use efa_verbs::{ProcessMark, QpState, QueuePair};

use crate::domain::Handle;
use crate::error::{Error, Full, Result};
use crate::failure::FailureKind;
use crate::operation::OperationId;
use crate::peers::{PeerId, Reach};
use crate::region::Region;
use crate::scheduler::{Credits, Memory, Refusal, Scheduler};

pub use batch::Batch;
pub use message::Message;
pub(crate) use message::{OwnPlace, Sender};
pub(crate) use receive::Receives;
pub(crate) use rules::Rules;
pub(crate) use send_buffers::SendBuffers;

impl Memory for Region {
    #[inline]
    fn number(&self) -> u32 {
        Region::number(self)
    }

    fn is_of(&self, domain: usize) -> bool {
        Region::is_of(self, domain)
    }
}

impl Reach for Handle {
    fn number(&self) -> u16 {
        self.ah().number()
    }
}

/// An operation that this process carries out itself.
pub(crate) struct LocalOperation {
    pub(crate) id: OperationId,
    /// For a message: where it will be, once it has arrived.
    pub(crate) place: Option<OwnPlace>,
}

/// The queue pair with everything that its requests name. See the module.
pub(crate) struct Queue {
    pair: QueuePair,
    pub(crate) scheduler: Scheduler<Region, Handle>,
    pub(crate) rules: Rules,
    pub(crate) receives: Receives,
    pub(crate) send_buffers: SendBuffers,
    /// Operations that this process carries out itself.
    pub(crate) local: VecDeque<LocalOperation>,
    /// The process that made the queue pair.
    process: ProcessMark,
}

impl Queue {
    pub(crate) fn new(
        pair: QueuePair,
        rules: Rules,
        scheduler: Scheduler<Region, Handle>,
        receives: Receives,
        send_buffers: SendBuffers,
    ) -> Self {
        Self {
            pair,
            scheduler,
            rules,
            receives,
            send_buffers,
            local: VecDeque::new(),
            process: ProcessMark::here(),
        }
    }

    pub(crate) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// For transitions and arming. Replacing the queue pair is [`replace_pair`](Self::replace_pair)'s.
    pub(crate) fn pair_mut(&mut self) -> &mut QueuePair {
        &mut self.pair
    }

    /// Whether this is the process that made the queue pair. A forked child has a copy of the books, but
    /// shares the queues.
    ///
    /// # Errors
    /// [`Error::Forked`].
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process.is_here() {
            return Ok(());
        }
        Err(Error::Forked)
    }

    /// Whether the queue pair is up.
    pub(crate) fn is_up(&self) -> bool {
        self.pair.known_state() == QpState::Rts
    }

    /// Destroys the queue pair and its completion queues, takes a new one, and ends all operations.
    pub(crate) fn replace_pair(&mut self, pair: QueuePair, rules: Rules, credits: Credits) {
        // The old one is destroyed here, before anything that its requests name.
        let old = mem::replace(&mut self.pair, pair);
        let number = old.number();
        let destroyed = old.destroy();
        self.receives.pair_is_gone(destroyed.is_ok());
        // Regions that nobody else holds are deregistered before their memory is freed, so this is safe
        // whatever became of the queue pair.
        self.scheduler.fail_all(FailureKind::QueuePairLost, credits);
        self.local.clear();
        self.rules = rules;
        if let Err(error) = destroyed {
            tracing::error!(
                number,
                %error,
                "the old queue pair lives on, and with it the buffers that were posted to it"
            );
        }
    }

    /// Destroys the queue pair, and returns the scheduler with all operations ended.
    pub(crate) fn close(self) -> Scheduler<Region, Handle> {
        let Self {
            pair,
            mut scheduler,
            ..
        } = self;
        drop(pair);
        scheduler.fail_all(FailureKind::Closed, Credits::new(1, 1));
        scheduler
    }

    /// Why the scheduler did not accept an operation with this peer.
    #[cold]
    pub(crate) fn refused(&self, refusal: Refusal, peer: PeerId) -> Error {
        match refusal {
            Refusal::QueueFull => Error::Full(Full::SendQueue {
                wanted: 1,
                free: self.scheduler.credits.free(),
                depth: self.scheduler.credits.limit(),
            }),
            Refusal::TableFull => self.table_full(),
            Refusal::Peer(reason) => Error::PeerGone { peer, reason },
            Refusal::Chunk(_) => Error::Overflow,
            Refusal::Empty => Error::EmptyList,
        }
    }

    /// All operations are in use.
    #[cold]
    pub(crate) fn table_full(&self) -> Error {
        Error::Full(Full::Operations {
            capacity: self.scheduler.capacity(),
        })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("pair", &self.pair)
            .finish_non_exhaustive()
    }
}
