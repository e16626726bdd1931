//! What the queue module does: posting what waits, polling, deadlines, and a new queue pair.

use super::model::{FLUSHED, key};
use super::parts::{Posted, Session};
use super::world::World;
use crate::failure::FailureKind;
use crate::peers::Gone;
use crate::scheduler::Credits;
use crate::scheduler::operations::RECEIVE;

impl World {
    /// Posts what waits, to a device that refuses sessions now and then.
    pub(super) fn pump(&mut self) {
        let mut visits = u32::MAX;
        while self.scheduler.has_waiting() && self.scheduler.credits.free() > 0 {
            let mut session = Session::default();
            let requests = self.scheduler.pump(visits, &mut session);
            assert_eq!(requests as usize, session.0.len());
            if requests == 0 {
                self.scheduler.commit();
                return;
            }
            match self.random.u32(..12) {
                // As where the send queue is full.
                0 => {
                    self.scheduler.roll_back();
                    return;
                }
                1 if self.scheduler.visits() > 1 => {
                    self.scheduler.roll_back();
                    visits = 1;
                }
                1 => {
                    self.scheduler.refuse_front(22);
                    let key = key(session.0[0].wr_id);
                    self.operations.get_mut(&key).unwrap().refuse(22);
                }
                _ => {
                    self.scheduler.commit();
                    self.scheduler.posted(requests);
                    self.posted(session.0);
                }
            }
        }
    }

    /// A session went to the device.
    pub(super) fn posted(&mut self, session: Vec<Posted>) {
        self.requests += session.len() as u64;
        for posted in session {
            assert_eq!(posted.wr_id & RECEIVE, 0);
            let operation = self.operations.get_mut(&key(posted.wr_id));
            operation.expect("posted after its end").post(&posted);
            self.in_flight.push(posted);
        }
    }

    /// The device completes some of its requests.
    pub(super) fn device(&mut self) {
        for _ in 0..self.random.u32(..=self.limit) {
            if self.in_flight.is_empty() {
                return;
            }
            let posted = self
                .in_flight
                .swap_remove(self.random.usize(..self.in_flight.len()));
            let failing = if posted.immediate.is_some() { 20 } else { 5 };
            let status = match self.chance(failing) {
                true => [FLUSHED, FLUSHED, 7, 13, 14, 15, 99][self.random.usize(..7)],
                false => 0,
            };
            self.note(posted.wr_id ^ u64::from(status));
            self.completed.push_back((posted, status));
        }
    }

    /// A round, whose completions the program takes, or which are parked.
    pub(super) fn poll(&mut self) {
        let takes = self.chance(60);
        let mut taken = vec![];
        let round = self.random.usize(..20).min(self.completed.len());
        let completed: Vec<_> = self.completed.drain(..round).collect();
        self.scheduler.credits.note_used();
        for (posted, status) in &completed {
            let operation = self.operations.get_mut(&key(posted.wr_id)).unwrap();
            let ended = match *status {
                0 if takes => self.scheduler.end(posted.wr_id),
                _ => None,
            };
            match ended {
                Some(completion) => {
                    assert!(operation.plain && !operation.is_over());
                    taken.push(completion);
                }
                None => self.scheduler.complete(posted.wr_id, *status),
            }
        }
        match takes {
            true => self.scheduler.ended(taken.len() as u32),
            false => self.scheduler.peers.sweep(),
        }
        // The round is over: now the model.
        for (posted, status) in completed {
            let key = key(posted.wr_id);
            let gone = self.operations[&key]
                .peer
                .is_some_and(|peer| self.gone(peer).is_some());
            let operation = self.operations.get_mut(&key).unwrap();
            operation.complete(posted.chunk, status, gone);
            if operation.taken && operation.pending == 0 {
                self.is_finished(key);
            }
        }
        while let Some(completion) = takes.then(|| self.scheduler.take_parked()).flatten() {
            taken.push(completion);
        }
        for completion in taken {
            self.check(&completion);
        }
    }

    /// Ends what should be over by now.
    pub(super) fn expire(&mut self) {
        while let Some(interrupted) = self.scheduler.expire(self.now) {
            let late = self.operations.iter().filter_map(|(&key, operation)| {
                let at = operation.deadline.filter(|&at| at <= self.now)?;
                (!operation.is_over()).then_some((at, operation.id, key))
            });
            let (_, _, key) = late.min().expect("nothing is late");
            self.interrupted(key, FailureKind::DeadlineExceeded, interrupted.awaited);
        }
        let is_late = |at| at <= self.now;
        assert!(
            self.keys(|it| !it.is_over() && it.deadline.is_some_and(is_late))
                .is_empty()
        );
    }

    /// The queue pair is destroyed, and there is a new one.
    pub(super) fn rebuild(&mut self) {
        let depth = self.random.u32(1..64);
        self.queue_pair_lost(FailureKind::QueuePairLost, Credits::new(depth, depth));
        self.limit = depth;
        self.waiters_over();
        for peer in self.scheduler.peers.names() {
            assert!(self.scheduler.disconnect(peer, Gone::Rebuilt));
            self.removed(peer, Gone::Rebuilt);
        }
    }

    pub(super) fn queue_pair_lost(&mut self, kind: FailureKind, credits: Credits) {
        self.in_flight.clear();
        self.completed.clear();
        self.scheduler.fail_all(kind, credits);
        self.local.clear();
        for operation in self.operations.values_mut() {
            operation.pending = 0;
            operation.interrupt(kind);
        }
        for key in self.keys(|operation| operation.taken) {
            self.is_finished(key);
        }
    }
}
