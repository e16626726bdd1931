//! Submitting operations, at once or when there is room.

use std::time::Instant;

use super::operations::{Operations, Outcome, Progress};
use super::state::State;
use super::stored::Stored;
use super::waiting::Waiting;
use super::wake::Wakes;
use crate::endpoint::Endpoint;
use crate::error::{Error, Full, Result};
use crate::failure::{Cause, Failure, FailureKind};
use crate::operation::{Operation, OperationId, Payload, Wanted};
use crate::queue::Batch;

impl State {
    /// The endpoint, if it takes operations.
    fn accepting(&mut self) -> Result<&mut Endpoint> {
        if self.closing.is_some() {
            return Err(Error::Closed { cause: None });
        }
        self.open()
    }

    /// Submits an operation, or lets it wait for room. Returns its slot.
    pub(super) fn submit(&mut self, wanted: &Wanted<'_>, wakes: &mut Wakes) -> Result<usize> {
        let key = self.operations.next();
        let awaited = match wanted.payload {
            Payload::Count(count) => Some((wanted.immediate, count)),
            _ => None,
        };
        let first = self.waiting.is_empty();
        let endpoint = self.accepting()?;
        if first {
            let tag = key as u64;
            let wanted = Wanted { tag, ..*wanted };
            match endpoint.submit(Operation { wanted }) {
                Ok(id) => {
                    self.operations.begin(Progress::Flying(id), awaited);
                    if awaited.is_some() {
                        self.look_for_landed(id, wakes);
                    }
                    return Ok(key);
                }
                Err(Error::Full(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let place = self.waiting.push(Waiting {
            operations: vec![(key, Stored::of(wanted))],
            is_batch: false,
        });
        Ok(self.operations.begin(Progress::Waiting(place), awaited))
    }

    /// What has landed already needs no driver.
    fn look_for_landed(&mut self, id: OperationId, wakes: &mut Wakes) {
        if let Some(endpoint) = &mut self.endpoint
            && let Some(completion) = endpoint.take_completion(id)
        {
            self.operations.complete(completion, wakes);
        }
    }

    /// Posts a batch, or lets it wait until there is room for all of it. Returns the slots.
    pub(super) fn submit_batch(
        &mut self,
        batch: &[Wanted<'_>],
        wakes: &mut Wakes,
    ) -> Result<Vec<usize>> {
        let first = self.waiting.is_empty();
        let endpoint = self.accepting()?;
        check_length(endpoint, batch.len())?;
        // Slots come first: their numbers are the tags.
        let operations = &mut self.operations;
        let begin = |_: &Wanted<'_>| operations.begin(Progress::Waiting(usize::MAX), None);
        let keys: Vec<_> = batch.iter().map(begin).collect();
        if first {
            let Some(endpoint) = &mut self.endpoint else {
                return Ok(keys);
            };
            let posted = post_together(endpoint, &mut self.operations, &keys, |to, at| {
                let tag = keys[at] as u64;
                let wanted = Wanted { tag, ..batch[at] };
                to.add(Operation { wanted })
            });
            match posted {
                Ok(()) => return Ok(keys),
                Err(Error::Full(_)) => {}
                Err(error) => {
                    for key in keys {
                        self.operations.remove(key, wakes);
                    }
                    return Err(error);
                }
            }
        }
        let stored = batch.iter().map(Stored::of);
        let was_empty = self.waiting.is_empty();
        let place = self.waiting.push(Waiting {
            operations: keys.iter().copied().zip(stored).collect(),
            is_batch: true,
        });
        for &key in &keys {
            self.operations.slots[key].progress = Progress::Waiting(place);
        }
        if was_empty {
            // It finds no room now, either; but what is to be held back is held back from now on.
            self.admit(wakes);
        }
        Ok(keys)
    }

    /// Submits those that wait, in their order, as far as there is room.
    pub(super) fn admit(&mut self, wakes: &mut Wakes) {
        while let (Some(first), Some(endpoint)) = (self.waiting.front(), &mut self.endpoint) {
            let keys: Vec<_> = first.operations.iter().map(|(key, _)| *key).collect();
            let operations = &mut self.operations;
            let admitted = match first.is_batch {
                true => post_together(endpoint, operations, &keys, |to, at| {
                    let (key, stored) = &first.operations[at];
                    stored.with(*key as u64, |operation| to.add(operation))
                }),
                false => first.operations.iter().try_for_each(|(key, stored)| {
                    let submitted =
                        stored.with(*key as u64, |operation| endpoint.submit(operation));
                    operations.slots[*key].progress = Progress::Flying(submitted?);
                    Ok(())
                }),
            };
            match admitted {
                Err(Error::Full(full)) => return self.hold_back(full),
                Ok(()) => {}
                // The first of a batch has the error for all of it.
                Err(error) => {
                    let mut error = Some(Box::new(error));
                    for key in keys {
                        let error = error.take();
                        let error = error.unwrap_or_else(|| Box::new(Error::NothingToWaitFor));
                        operations.end(key, Outcome::Refused(error), wakes);
                    }
                }
            }
            let first = self.waiting.pop();
            if first.is_some_and(|first| first.is_batch) {
                // What waits inside the endpoint has its turn before the next batch.
                break;
            }
        }
        if let Some(endpoint) = &mut self.endpoint
            && endpoint.hold_back(false)
        {
            // The next poll has something to post, and no event says so.
            self.attention = true;
        }
    }

    /// While a batch is first in line, and lacks places in the send queue alone, what waits inside the
    /// endpoint stays there: else there might never be enough of them at once.
    fn hold_back(&mut self, full: Full) {
        let batch = self.waiting.front().is_some_and(|first| first.is_batch);
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.hold_back(batch && matches!(full, Full::SendQueue { .. }));
        }
    }

    /// Ends those whose time is over while they wait.
    pub(super) fn expire(&mut self, wakes: &mut Wakes) {
        if self.waiting.next_deadline().is_none() {
            return;
        }
        let now = Instant::now();
        while let Some(expired) = self.waiting.expire(now) {
            self.fail(expired, FailureKind::DeadlineExceeded, wakes);
        }
    }

    /// Ends operations that the endpoint never had.
    pub(super) fn fail(&mut self, waiting: Waiting, kind: FailureKind, wakes: &mut Wakes) {
        for (key, stored) in waiting.operations {
            let peer = self.endpoint.as_ref().map(|it| it.peer(stored.peer()));
            let address = peer.and_then(|peer| Some(peer.ok()?.address));
            let cause = Cause::new(kind, stored.kind(), address);
            self.operations
                .end(key, Outcome::Failed(Failure(Box::new(cause))), wakes);
        }
    }
}

fn check_length(endpoint: &Endpoint, length: usize) -> Result<()> {
    let limit = u64::from(endpoint.limits().depth.min(endpoint.max_operations()));
    match length as u64 {
        0 => Err(Error::EmptyList),
        length if length > limit => Err(Error::TooLong {
            what: "a batch",
            length,
            limit,
        }),
        _ => Ok(()),
    }
}

/// Posts operations, all or none, and notes their names in their slots.
fn post_together(
    endpoint: &mut Endpoint,
    operations: &mut Operations,
    keys: &[usize],
    mut add: impl FnMut(&mut Batch<'_>, usize) -> Result<OperationId>,
) -> Result<()> {
    let ids: Vec<_> = endpoint.batch(|batch| {
        let ids = (0..keys.len()).map(|at| add(batch, at));
        ids.collect::<Result<_>>()
    })?;
    for (&key, id) in keys.iter().zip(ids) {
        operations.slots[key].progress = Progress::Flying(id);
    }
    Ok(())
}
