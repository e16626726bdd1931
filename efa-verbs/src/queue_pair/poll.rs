//! Polling completions, and waiting for them.

use super::pair::{Path, Posting, QueuePair};
use crate::completion::{RecvCompletion, SendCompletion};
use crate::error::{Error, Result};
use crate::queue::CompletionQueue;

impl QueuePair {
    /// Takes completions of sends, writes and reads, at most as many as `out` is long; returns how
    /// many. They come in any order.
    ///
    /// # Errors
    ///
    /// As for [`poll_send_each`](Self::poll_send_each).
    #[inline]
    pub fn poll_send(&mut self, out: &mut [SendCompletion]) -> Result<usize> {
        let most = out.len();
        let mut slots = out.iter_mut();
        self.poll_send_each(most, |completion| {
            if let Some(slot) = slots.next() {
                *slot = completion;
            }
        })
    }

    /// Takes up to `most` completions of sends, writes and reads and gives each to `take`; returns
    /// how many. They come in any order. No lock of libefa's is held while `take` runs.
    ///
    /// # Errors
    ///
    /// [`Error::SessionOpen`] during a session (libefa would wait for the session's lock forever);
    /// [`Error::Verb`] when libefa cannot poll; [`Error::ForkedProcess`]. Completions of nothing that is
    /// in flight are skipped. Completions that were taken before an error are with `take`.
    // Not inlined, polling a single completion costs 10 % more, on the direct path 20 %. The same goes for
    // what this calls.
    #[inline(always)]
    pub fn poll_send_each(
        &mut self,
        most: usize,
        take: impl FnMut(SendCompletion),
    ) -> Result<usize> {
        if matches!(self.posting, Posting::Open | Posting::Refused(_)) {
            return Err(self.session_open());
        }
        self.check_process()?;
        match &mut self.path {
            Path::Libefa(_) => self.send_cq.poll_send(most, take),
            Path::Direct(rings) => Ok(rings.send.poll(most, take)),
        }
    }

    /// Takes completions of receives, at most as many as `out` is long; returns how many. They come
    /// in any order.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when libefa cannot poll; [`Error::ForkedProcess`].
    #[inline]
    pub fn poll_recv(&mut self, out: &mut [RecvCompletion]) -> Result<usize> {
        self.check_process()?;
        match &mut self.path {
            Path::Libefa(_) => match &mut self.recv_cq {
                Some(cq) => cq.poll_recv(out),
                None => Ok(0),
            },
            Path::Direct(rings) => {
                let Some(receive) = &mut rings.receive else {
                    return Ok(0);
                };
                let most = out.len();
                let mut slots = out.iter_mut();
                Ok(receive.poll(most, |completion| {
                    if let Some(slot) = slots.next() {
                        *slot = completion;
                    }
                }))
            }
        }
    }

    /// Asks for an event on the channel at the next completion. To wait: arm, poll once more (a
    /// completion that came before raises no event), then wait for the channel's descriptor.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a channel, [`Error::Verb`] when it fails,
    /// [`Error::ForkedProcess`].
    pub fn arm(&mut self) -> Result<()> {
        self.check_process()?;
        if self.channel.is_none() {
            return Err(Error::InvalidArgument {
                what: "completion channel",
                reason: "the queue pair was created without one".into(),
            });
        }
        match &mut self.path {
            Path::Libefa(_) => {
                self.send_cq.arm()?;
                self.recv_cq.as_mut().map_or(Ok(()), CompletionQueue::arm)
            }
            Path::Direct(rings) => {
                rings.send.completions.arm();
                if let Some(receive) = &mut rings.receive {
                    receive.completions.arm();
                }
                Ok(())
            }
        }
    }

    /// Takes the events that are on the channel; returns how many. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the channel cannot be read; [`Error::ForkedProcess`].
    pub fn take_events(&mut self) -> Result<usize> {
        self.check_process()?;
        let Some(channel) = &self.channel else {
            return Ok(0);
        };
        let send_cq = self.send_cq.raw_cq();
        let path = &mut self.path;
        channel.drain(|cq| {
            // libefa counts events for itself; whoever rings the doorbells must as well.
            if let Path::Direct(rings) = path {
                match &mut rings.receive {
                    Some(receive) if cq != send_cq => receive.completions.event_taken(),
                    _ => rings.send.completions.event_taken(),
                }
            }
        })
    }
}
