//! Posting what waits.

use efa_verbs::{QueuePair, RemoteMemory, Sge};

use super::Core;
use crate::domain::Handle;
use crate::error::Result;
use crate::flow::{Request, Sink};
use crate::ops::Kind;

impl Core {
    /// Posts what waits in the flow, as far as there are credits.
    pub(crate) fn pump(&mut self) -> Result<()> {
        let mut visits = u32::MAX;
        while self.flow.has_waiting() && self.flow.credits.free() > 0 {
            self.pair.session_start()?;
            let mut sink = PairSink {
                pair: &mut self.pair,
            };
            let requests = self.flow.pump(visits, &mut sink);
            if requests == 0 {
                self.pair.session_abort();
                self.flow.commit();
                return Ok(());
            }
            match self.pair.session_complete() {
                Ok(()) => {
                    self.flow.commit();
                    self.flow.stats.requests += u64::from(requests);
                    self.flow.stats.sessions += 1;
                }
                Err(efa_verbs::Error::SendQueueFull { .. }) => {
                    // The credits say otherwise, so this does not happen; were it to, the
                    // next poll tries again.
                    self.flow.roll_back();
                    self.flow.stats.retries += 1;
                    return Ok(());
                }
                Err(error) if self.flow.visits() <= 1 => {
                    self.flow.refuse_front(error.raw_os_error().unwrap_or(0));
                }
                Err(_) => {
                    // One of them is at fault: find it by posting them one at a time.
                    self.flow.roll_back();
                    self.flow.stats.retries += 1;
                    visits = 1;
                }
            }
        }
        Ok(())
    }
}

/// Hands the flow's requests to the open session.
struct PairSink<'a> {
    pair: &'a mut QueuePair,
}

impl Sink<Handle> for PairSink<'_> {
    #[inline]
    fn push(&mut self, request: Request<'_, Handle>) {
        let Some(handle) = &request.peer.handle else {
            // Operations with such peers are carried out by this process.
            debug_assert!(false, "a peer without a handle in the queue");
            return;
        };
        let address = request.peer.address;
        let to = handle
            .ah()
            .destination(address.queue_pair(), address.queue_key());
        let chunk = request.chunk;
        let remote = RemoteMemory {
            addr: chunk.remote,
            rkey: chunk.rkey,
        };
        let local = Sge {
            addr: chunk.local,
            length: chunk.length,
            lkey: chunk.lkey,
        };
        let wr_id = request.wr_id;
        // SAFETY: `Core::pump` has opened a session. The flow's plan for this operation holds
        // clones of its regions and counts in its peer until the completion was polled, the
        // session was rolled back, or the queue pair is gone. What was planned was checked as in
        // `Session::rdma`, by the endpoint, when it was submitted.
        unsafe {
            let immediate = request.immediate;
            let list = [local];
            let push = match request.kind {
                Kind::Put | Kind::PutImmediate => efa_verbs::Request::Write {
                    local,
                    remote,
                    immediate,
                },
                Kind::Get => efa_verbs::Request::Read { local, remote },
                _ => efa_verbs::Request::Send {
                    local: &list,
                    immediate,
                },
            };
            self.pair.push(wr_id, &to, push);
        }
    }
}
