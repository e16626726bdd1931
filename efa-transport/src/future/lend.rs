//! Transfers of buffers that are lent to the endpoint.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use efa_verbs::{Access, Buffer};

use super::handle::Handle;
use super::park;
use super::shared::Owner;
use super::submitted::Submitted;
use crate::error::Result;
use crate::peers::PeerId;
use crate::region::Region;
use crate::remote::RemoteRegion;

/// A buffer that comes back, and what became of its transfer.
#[derive(Debug)]
pub struct Returned {
    /// The buffer. None where it could not be registered, which frees it.
    pub buffer: Option<Buffer>,
    /// Bytes that were transferred, or why they were not.
    pub result: Result<u64>,
}

/// A transfer with a buffer of its own, as a future. It ends when the transfer has ended and the device is
/// done with the buffer, which comes back.
///
/// # Cancel safety
/// As for [`Submitted`]. The buffer is freed when the device is done with it.
#[derive(Debug)]
#[must_use = "dropping it cancels the operation, and frees the buffer"]
pub struct Lent {
    owner: Arc<Owner>,
    transfer: Option<Submitted>,
    region: Option<Region>,
    result: Option<Result<u64>>,
    place: Option<usize>,
}

impl Handle {
    /// Writes all of a buffer to the beginning of `remote`. The buffer is registered for this transfer alone,
    /// which costs two calls of the kernel: for buffers that are used again, use regions.
    ///
    /// ```no_run
    /// # use efa_transport::{Buffer, PeerId, RemoteRegion, future::Handle};
    /// # async fn f(handle: Handle, peer: PeerId, to: RemoteRegion) -> Result<(), efa_transport::Error> {
    /// let mut buffer = Buffer::zeroed(4096)?;
    /// buffer.fill(7);
    /// let returned = handle.put_owned(peer, buffer, to).await;
    /// returned.result?;
    /// let buffer = returned.buffer; // to be used again
    /// # let _ = buffer;
    /// # Ok(()) }
    /// ```
    pub fn put_owned(&self, peer: PeerId, buffer: Buffer, remote: RemoteRegion) -> Lent {
        self.lend(buffer, |region| self.put(peer, region, remote))
    }

    /// Reads all of `remote` into the beginning of a buffer, as [`put_owned`](Self::put_owned) writes one.
    pub fn get_owned(&self, peer: PeerId, buffer: Buffer, remote: RemoteRegion) -> Lent {
        self.lend(buffer, |region| self.get(peer, region, remote))
    }

    fn lend(&self, buffer: Buffer, transfer: impl FnOnce(&Region) -> Submitted) -> Lent {
        let owner = self.owner().clone();
        let place = None;
        match self.domain().register_private(buffer, Access::LOCAL) {
            Ok(region) => Lent {
                owner,
                transfer: Some(transfer(&region)),
                region: Some(region),
                result: None,
                place,
            },
            Err(error) => Lent {
                owner,
                transfer: None,
                region: None,
                result: Some(Err(error)),
                place,
            },
        }
    }
}

impl Lent {
    /// Waits for the end on this thread, which needs no runtime.
    pub fn wait(mut self) -> Returned {
        let owner = self.owner.clone();
        park::wait(&owner, &mut self, None).unwrap_or_else(Self::nothing)
    }

    /// What comes after the end.
    fn nothing() -> Returned {
        Returned {
            buffer: None,
            result: Err(crate::Error::NothingToWaitFor),
        }
    }

    fn returned(&mut self, buffer: Option<Buffer>) -> Returned {
        match self.result.take() {
            Some(result) => Returned { buffer, result },
            None => Self::nothing(),
        }
    }
}

impl Future for Lent {
    type Output = Returned;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Returned> {
        let this = self.get_mut();
        if let Some(transfer) = &mut this.transfer {
            let Poll::Ready(result) = Pin::new(transfer).poll(context) else {
                return Poll::Pending;
            };
            (this.result, this.transfer) = (Some(result), None);
        }
        let Some(region) = this.region.take() else {
            return Poll::Ready(this.returned(None));
        };
        let (place, kept) = (&mut this.place, &mut this.region);
        // The endpoint lets go of regions under the lock only: so nothing is missed between looking and
        // waiting.
        let back = this.owner.0.with(|state, wakes| match region.deregister() {
            Ok(buffer) => {
                state.reclaimers.leave(place, wakes);
                Poll::Ready(buffer)
            }
            Err(used) => {
                *kept = Some(used);
                state.reclaimers.join(place, context.waker(), wakes);
                Poll::Pending
            }
        });
        match back {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(buffer)) => Poll::Ready(this.returned(buffer)),
            Err(error) => {
                this.result = Some(Err(error));
                Poll::Ready(this.returned(None))
            }
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let place = &mut self.place;
        if place.is_some() {
            let _ = self
                .owner
                .0
                .with(|state, wakes| state.reclaimers.leave(place, wakes));
        }
    }
}
