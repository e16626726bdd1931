//! Messages, and the arrival of writes with immediate data.

use efa_verbs::{RecvCompletion, RecvKind};

use super::{Endpoint, source_key};
use crate::error::{Error, Result};
use crate::flow::Flow;
use crate::ops::{Kind, NONE, OperationId, RECEIVE};
use crate::peers::PeerId;
use crate::region::LocalSlice;
use crate::session::{Core, Message};

impl Endpoint {
    /// Posts a buffer for one message, of whichever peer sends next. Its completion tells the
    /// number of bytes and the sender.
    ///
    /// On a device without unsolicited receipt, a write with immediate data uses up a posted
    /// receive: it then completes with the immediate data and zero bytes.
    ///
    /// # Errors
    /// The endpoint has a receive pool, which takes every message; the receive queue is full;
    /// a region of another domain, or one that is read-only.
    pub fn recv<'m>(&mut self, local: impl Into<LocalSlice<'m>>, tag: u64) -> Result<OperationId> {
        self.activate()?;
        self.core.post_receive(&self.rules, local.into(), tag)
    }

    /// The oldest message in the receive pool. Poll (or wait) to let messages come in.
    ///
    /// ```no_run
    /// # fn f(endpoint: &mut efa_transport::Endpoint) -> Result<(), efa_transport::Error> {
    /// endpoint.poll(&mut Vec::new())?;
    /// while let Some(message) = endpoint.next_message() {
    ///     println!("{} bytes from {:?}", message.len(), message.peer());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn next_message(&mut self) -> Option<Message<'_>> {
        self.core.next_message()
    }

    /// Messages that wait in the receive pool.
    pub fn messages(&self) -> usize {
        self.core.messages()
    }

    /// Starts an operation that completes when `count` writes with this immediate value have
    /// landed here: every byte of them is then readable.
    ///
    /// Writes that landed earlier, and that no other such operation took, count. This is the
    /// only correct way to learn of remote arrival: on an unordered fabric, a later write says
    /// nothing about an earlier one.
    ///
    /// # Errors
    /// [`Error::ImmediatesLost`] where values arrived that there was no room to count: any
    /// count may be too low then. Too many operations.
    pub fn await_immediate(&mut self, value: u32, count: u64, tag: u64) -> Result<OperationId> {
        self.activate()?;
        let lost = self.immediates.take_lost();
        if lost > 0 {
            return Err(Error::ImmediatesLost {
                lost,
                limit: self.immediates.limit(),
            });
        }
        let id = self
            .core
            .flow
            .begin_waiting(Kind::AwaitImmediate, tag)
            .map_err(|refused| self.core.refused(refused, None))?;
        let flow = &mut self.core.flow;
        self.immediates
            .wait(value, count, id, |waiter| arrived(flow, waiter));
        Ok(id)
    }

    /// Writes with this immediate value that have landed and that no
    /// [`await_immediate`](Self::await_immediate) has taken.
    pub fn immediate_count(&self, value: u32) -> u64 {
        self.immediates.count(value)
    }

    // ---- inner ----------------------------------------------------------------------

    /// Takes receive completions. Returns how many there were.
    pub(super) fn poll_receives(&mut self) -> Result<usize> {
        let mut events = 0;
        for _ in 0..8 {
            let count = self.core.poll_recv()?;
            for at in 0..count {
                let done = self.core.received(at);
                self.take_receive(&done);
            }
            events += count;
            if count < Core::BATCH {
                break;
            }
        }
        if self.core.needs_refill() && self.core.pair().known_state() == efa_verbs::QpState::Rts {
            self.core.refill()?;
        }
        Ok(events)
    }

    fn take_receive(&mut self, done: &RecvCompletion) {
        let peer = self.sender(done);
        let written = done.status.is_ok() && done.kind == RecvKind::WriteWithImmediate;
        if written {
            self.landed(done.immediate.unwrap_or(0));
            if done.unsolicited {
                self.taken(done);
            }
        } else if done.status.is_ok() {
            self.core.flow.stats.messages += 1;
        }
        // An unsolicited one used up no receive.
        if !done.unsolicited && done.wr_id & RECEIVE != 0 && !self.core.book_receive(done, peer) {
            self.core.flow.stats.stale_completions += 1;
        }
    }

    /// An unsolicited completion has left the queue: its sender may send another.
    fn taken(&mut self, done: &RecvCompletion) {
        let mut granted = false;
        for peer in self.senders(done) {
            let slot = self.core.flow.peers.entry(peer.index());
            let slot = slot.map_or(NONE, |entry| entry.slot);
            // A slot of another life of the sender, which is dead, may count as well: nobody
            // reads that one.
            if slot != NONE
                && let Some(grants) = &self.grants
            {
                grants.taken(slot);
                granted = true;
            }
        }
        if !granted {
            self.core.flow.stats.ungranted += 1;
        }
    }

    /// A write with immediate data has landed.
    pub(super) fn landed(&mut self, value: u32) {
        let flow = &mut self.core.flow;
        flow.stats.immediates += 1;
        if !self
            .immediates
            .landed(value, |waiter| arrived(flow, waiter))
        {
            flow.stats.immediates_lost += 1;
        }
    }

    /// Takes operations out of the counters that were cancelled or ran out of time.
    pub(super) fn prune_immediates(&mut self) {
        for value in self.immediates.waited_for() {
            let flow = std::cell::RefCell::new(&mut self.core.flow);
            self.immediates.prune(
                value,
                |waiter| flow.borrow().is_waiting(waiter),
                |waiter| arrived(*flow.borrow_mut(), waiter),
            );
        }
    }

    /// The peer that a receive completion came from. `None` also where it may be one of two
    /// lives of the same endpoint.
    fn sender(&self, done: &RecvCompletion) -> Option<PeerId> {
        let mut senders = self.senders(done);
        let sender = senders.next();
        if senders.next().is_some() {
            return None;
        }
        sender
    }

    /// Who may have sent this: the peer that is connected from there, and those whose handshake
    /// may have ended on their side already.
    fn senders(&self, done: &RecvCompletion) -> impl Iterator<Item = PeerId> {
        let from = done.src_handle.map(|handle| (handle, done.src_qp));
        let key = from.map(|(handle, number)| source_key(handle, number));
        let connected = key.and_then(|key| self.connected_at(key));
        let installing = self.installing.values().copied().filter(move |peer| {
            let entry = self.core.flow.peers.entry(peer.index());
            let handle = entry.and_then(|entry| Some((entry.handle.as_ref()?, entry.address)));
            from.is_some_and(|(number, queue_pair)| {
                handle.is_some_and(|(handle, address)| {
                    handle.ah().number() == number && address.queue_pair() == queue_pair
                })
            })
        });
        connected.into_iter().chain(installing)
    }
}

/// Ends a waiting operation. False where it is over already.
fn arrived(
    flow: &mut Flow<crate::region::Region, crate::domain::Handle>,
    waiter: OperationId,
) -> bool {
    let waiting = flow.is_waiting(waiter);
    if waiting {
        flow.local_end(waiter, None);
    }
    waiting
}
