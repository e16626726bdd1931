//! Batches: operations that are posted together.

use std::fmt;
use std::mem;

use efa_verbs::{Destination, RemoteMemory, Request, Sge};

use super::Queue;
use super::rules::check_receiver;
use crate::domain::Handle;
use crate::error::{Error, Full, Result};
use crate::operation::{Kind, Operation, OperationId, Payload, Wanted};
use crate::region::Slice;
use crate::remote::RemoteRegion;
use crate::scheduler::{Begin, Begun};

/// Operations that are posted together, with one doorbell: all of them, or none.
///
/// It exists inside the closure of [`Endpoint::batch`](crate::Endpoint::batch) only. Each operation is one
/// request of at most [`Limits::max_request`](crate::Limits::max_request) bytes, with a completion of its
/// own; longer ones, and those of several parts, are for
/// [`Endpoint::submit`](crate::Endpoint::submit). It makes no difference whether neighbours have peers or
/// regions in common.
pub struct Batch<'a> {
    queue: &'a mut Queue,
    /// Credits when the batch began: each request has taken one.
    credits: u32,
    /// Operations on the local list when the batch began.
    local: usize,
}

impl Queue {
    /// Runs `build` with an open session and posts what it added, all or nothing.
    #[inline(always)]
    pub(crate) fn batch<R, E: From<Error>>(
        &mut self,
        build: impl FnOnce(&mut Batch<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.check_process()?;
        self.pair.session_start().map_err(Error::from)?;
        self.scheduler.open();
        let mut guard = Guard(Batch {
            credits: self.scheduler.credits.free(),
            local: self.local.len(),
            queue: self,
        });
        // An error or a panic drops the guard, which aborts.
        let result = build(&mut guard.0)?;
        guard.0.finish()?;
        mem::forget(guard);
        Ok(result)
    }
}

impl Batch<'_> {
    /// Adds an operation. A call that fails adds nothing, and the batch goes on.
    ///
    /// # Errors
    /// [`Error::Full`]; a peer that is gone; lengths that don't fit, or too long for one request
    /// ([`Error::TooLong`]); a region of another domain; an operation that the device lacks; a peer
    /// without a receive pool ([`Error::PeerTakesNoMessages`]); several parts, or an [`Await`](crate::Await) ([`Error::NotInBatch`]).
    #[inline(always)]
    pub fn add<'m>(&mut self, operation: impl Into<Operation<'m>>) -> Result<OperationId> {
        let wanted = operation.into().wanted;
        let id = match wanted.payload {
            Payload::Transfer(local, remote) => self.add_transfer(wanted, local, remote)?,
            _ => self.add_message(wanted)?,
        };
        if let Some(at) = wanted.deadline {
            self.queue.scheduler.set_deadline(id, at);
        }
        Ok(id)
    }

    #[inline(always)]
    fn add_transfer<'m>(
        &mut self,
        wanted: Wanted<'m>,
        local: Slice<'m>,
        remote: RemoteRegion,
    ) -> Result<OperationId> {
        let queue = &mut *self.queue;
        if wanted.kind.takes_a_receive() {
            queue.check_receiver(wanted.kind, wanted.peer)?;
        }
        let Some(length) = queue.rules.request_length(wanted.kind, local, remote) else {
            return self.unusual(copied(&wanted, local, remote));
        };
        let region = local.region();
        let begun = queue.scheduler.begin(Begin {
            kind: wanted.kind,
            peer: wanted.peer,
            memory: Some(region),
            length: length.into(),
            tag: wanted.tag,
        });
        let Some(begun) = begun else {
            return self.unusual(copied(&wanted, local, remote));
        };
        let (id, to) = (begun.operation, destination(&begun));
        let local = Sge {
            addr: local.addr(),
            length,
            lkey: region.lkey(),
        };
        let remote = RemoteMemory {
            addr: remote.addr(),
            rkey: remote.rkey(),
        };
        // SAFETY: a session is open for as long as `Batch` exists. The scheduler has accepted the
        // operation, and keeps the region and the peer's handle until the completion was polled, the
        // batch was undone, or the queue pair is gone (see the module); it takes regions of the queue
        // pair's domain only. The slice is inside its region, which is writable where the device writes
        // it (`request_length`); regions give out no references.
        unsafe {
            let request = match wanted.kind {
                Kind::Get => Request::Read { local, remote },
                kind => Request::Write {
                    local,
                    remote,
                    immediate: (kind == Kind::PutImmediate).then_some(wanted.immediate),
                },
            };
            queue.pair.push(id.word, &to, request);
        }
        Ok(id)
    }

    /// A transfer that [`add_transfer`](Self::add_transfer) did not post: it is one that this process
    /// carries out itself, or there is something wrong with it.
    #[cold]
    fn unusual(&mut self, wanted: Wanted<'_>) -> Result<OperationId> {
        let queue = &mut *self.queue;
        let Payload::Transfer(local, remote) = wanted.payload else {
            return Err(Error::NotInBatch);
        };
        let peer = match queue.scheduler.peer(wanted.peer) {
            Ok(peer) => peer,
            Err(refusal) => return Err(queue.refused(refusal, wanted.peer)),
        };
        if !peer.is_local() {
            // What is wrong in any case comes before what is full.
            queue.rules.check_part(wanted.kind, &local, &remote)?;
            let length = queue.rules.request_length(wanted.kind, local, remote);
            if length.is_none() {
                return Err(queue.rules.wrong(wanted.kind, local, remote));
            }
            let refusal = queue.scheduler.refusal(wanted.peer);
            return Err(queue.refused(refusal, wanted.peer));
        }
        self.add_local(wanted)
    }

    /// Adds an operation that this process carries out itself. The batch has no more operations than
    /// the queue has room, these included: each keeps a credit until the batch ends.
    fn add_local(&mut self, wanted: Wanted<'_>) -> Result<OperationId> {
        if !self.queue.scheduler.credits.take() {
            let (free, depth) = (0, self.depth());
            let wanted = 1;
            return Err(Error::Full(Full::SendQueue {
                wanted,
                free,
                depth,
            }));
        }
        let submitted = self.queue.submit_local(&wanted);
        if submitted.is_err() {
            self.queue.scheduler.credits.give(1);
        }
        submitted
    }

    #[inline(never)]
    fn add_message(&mut self, wanted: Wanted<'_>) -> Result<OperationId> {
        let queue = &mut *self.queue;
        let (local, bytes) = match wanted.payload {
            Payload::Message(local) => {
                queue.rules.check_message(wanted.kind, &local)?;
                (Some(local), [].as_slice())
            }
            Payload::Bytes(bytes) => {
                let length = bytes.len() as u64;
                queue.rules.check_message_length(wanted.kind, length)?;
                (None, bytes)
            }
            _ => return Err(Error::NotInBatch),
        };
        let peer = match queue.scheduler.peer(wanted.peer) {
            Ok(peer) => peer,
            Err(refusal) => return Err(queue.refused(refusal, wanted.peer)),
        };
        if peer.is_local() {
            return self.add_local(wanted);
        }
        check_receiver(wanted.kind, wanted.peer, peer)?;
        if local.is_none() && bytes.len() as u64 > queue.rules.max_inline.into() {
            let region = queue.send_buffers.copy_of(bytes)?;
            let payload = Payload::Message(region.slice(..bytes.len() as u64)?);
            return self.add_message(Wanted { payload, ..wanted });
        }
        let length = local.map_or(bytes.len() as u64, |local| local.len());
        let begun = queue.scheduler.begin(Begin {
            kind: wanted.kind,
            peer: wanted.peer,
            memory: local.map(|local| local.region()),
            length,
            tag: wanted.tag,
        });
        let Some(begun) = begun else {
            let refusal = queue.scheduler.refusal(wanted.peer);
            return Err(queue.refused(refusal, wanted.peer));
        };
        let (id, to) = (begun.operation, destination(&begun));
        let immediate = (wanted.kind == Kind::SendImmediate).then_some(wanted.immediate);
        // SAFETY: as in `add_transfer`; `check_message` has found the region, if there is one, to be of the
        // queue pair's domain. Bytes without a region are copied by the call.
        unsafe {
            match local {
                None => {
                    let request = Request::SendInline { bytes, immediate };
                    queue.pair.push(id.word, &to, request);
                }
                Some(local) => {
                    let local = &[whole(local)];
                    queue
                        .pair
                        .push(id.word, &to, Request::Send { local, immediate });
                }
            }
        }
        Ok(id)
    }

    /// Operations that the batch has so far.
    pub fn len(&self) -> u32 {
        self.credits - self.room()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Operations for which the queue still has room. (The number of operations that live has a limit
    /// of its own, [`Config::max_operations`](crate::Config::max_operations).)
    pub fn room(&self) -> u32 {
        self.queue.scheduler.credits.free()
    }

    /// All requests that the queue has room for.
    pub(crate) fn depth(&self) -> u32 {
        self.queue.scheduler.credits.limit()
    }

    /// Operations that this process carries out itself: they have credits, and no requests.
    #[inline]
    fn local(&self) -> u32 {
        (self.queue.local.len() - self.local) as u32
    }

    /// Posts the batch. Then there is nothing to take back: the guard is to be forgotten.
    #[inline]
    fn finish(&mut self) -> Result<()> {
        let local = self.local();
        let count = self.len() - local;
        let queue = &mut *self.queue;
        if count == 0 {
            queue.pair.session_abort();
        } else {
            let completed = queue.pair.session_complete();
            completed.map_err(|source| not_posted(count, source))?;
            queue.scheduler.batch_posted(count);
        }
        queue.scheduler.credits.give(local);
        Ok(())
    }

    #[cold]
    fn abandon(&mut self) {
        let local = self.local();
        self.queue.pair.session_abort();
        self.queue.local.truncate(self.local);
        self.queue.scheduler.credits.give(local);
        self.queue.scheduler.undo();
    }
}

/// Where the request of an operation goes that has begun.
#[inline]
fn destination(begun: &Begun<'_, Handle>) -> Destination {
    let address = begun.address;
    begun
        .handle
        .ah()
        .destination(address.queue_pair(), address.queue_key())
}

/// All bytes of a slice that is no longer than a message.
fn whole(local: Slice<'_>) -> Sge {
    Sge {
        addr: local.addr(),
        length: local.len() as u32,
        lkey: local.region().lkey(),
    }
}

/// The same operation in a place of its own. What the unusual way takes has an address; the usual way
/// needs none (36 % of a direct post, by `cargo xtask bench`).
#[inline(always)]
fn copied<'a>(wanted: &Wanted<'a>, local: Slice<'a>, remote: RemoteRegion) -> Wanted<'a> {
    Wanted {
        kind: wanted.kind,
        peer: wanted.peer,
        payload: Payload::Transfer(local, remote),
        immediate: wanted.immediate,
        tag: wanted.tag,
        deadline: wanted.deadline,
    }
}

#[cold]
fn not_posted(requests: u32, source: efa_verbs::Error) -> Error {
    Error::PostFailed { requests, source }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("operations", &self.len())
            .finish_non_exhaustive()
    }
}

/// Takes the batch back unless it is finished: on an error, and when a panic unwinds.
struct Guard<'a>(Batch<'a>);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}
