//! Puts that are awaited one by one: with a blocking wait, as futures of a shared endpoint, and, for
//! comparison, by an actor that owns the endpoint and is told of them through a channel.
//!
//! Each does on one thread what a program does on several: what is counted is the work, without the switches
//! between threads that an actor has beside it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use anyhow::{Context as _, Result, ensure};
use efa_transport::future::{Driver, Handle, Submitted};
use efa_transport::{Endpoint, EndpointAddress, OperationId, PeerId, Region, RemoteRegion};
use efa_verbs::{DEFAULT_QUEUE_KEY, DataPath};
use tokio::sync::{mpsc, oneshot};

use super::{Layer, name};
use crate::ring::Ring;
use crate::target::Target;

/// What all of them put, and where.
pub struct What {
    peer: PeerId,
    region: Region,
    remote: RemoteRegion,
    size: u64,
    batch: usize,
    ring: Ring,
    path: DataPath,
}

impl What {
    fn new(path: DataPath, target: &Target) -> Result<(Endpoint, Self)> {
        let (domain, mut endpoint) = super::endpoint(path, true)?;
        let [number, _] = target.queue_pairs;
        let address = EndpointAddress::new(domain.gid(), number, DEFAULT_QUEUE_KEY)?;
        let what = Self {
            peer: endpoint.connect(address)?,
            region: super::region(&domain, target)?,
            remote: target.remote()?,
            size: 8,
            batch: 1,
            ring: Ring::of(endpoint.queue_pair())?,
            path: endpoint.limits().path,
        };
        Ok((endpoint, what))
    }

    fn put(&self) -> efa_transport::Result<efa_transport::Put<'_>> {
        let (local, remote) = (
            self.region.slice(..self.size)?,
            self.remote.slice(..self.size)?,
        );
        Ok(efa_transport::Put::new(self.peer, local, remote))
    }
}

/// A half of what is measured, in a function that callgrind finds.
type Measured<W> = fn(&mut OneByOne<W>) -> Result<()>;

/// How puts are begun, and how their results come.
pub trait Way: Sized {
    /// [`Layer::measure_post`] and [`Layer::measure_poll`] of it.
    const MEASURED: [Measured<Self>; 2];
    /// Takes the endpoint.
    fn new(endpoint: Endpoint) -> Result<Self>;
    /// Begins a batch of puts.
    fn begin(&mut self, what: &What) -> Result<()>;
    /// Takes the results of those that have ended, in the order in which they began.
    fn end(&mut self) -> Result<u32>;
}

/// A way, and what it puts.
pub struct OneByOne<W> {
    way: W,
    what: What,
}

macro_rules! measured {
    ($way:ident, $post:literal, $poll:literal) => {{
        #[inline(never)]
        #[unsafe(export_name = $post)]
        fn post(this: &mut OneByOne<$way>) -> Result<()> {
            this.way.begin(&this.what)
        }

        #[inline(never)]
        #[unsafe(export_name = $poll)]
        fn poll(this: &mut OneByOne<$way>) -> Result<()> {
            let ended = this.way.end()?;
            ensure!(ended as usize == this.what.batch, "{ended} have ended");
            Ok(())
        }
        [post, poll]
    }};
}

/// [`Endpoint::wait`] after [`Endpoint::submit`].
pub struct Blocking {
    endpoint: Endpoint,
    operations: Vec<OperationId>,
}

impl Way for Blocking {
    const MEASURED: [Measured<Self>; 2] =
        measured!(Blocking, "measure_post_blocking", "measure_poll_blocking");

    fn new(endpoint: Endpoint) -> Result<Self> {
        let operations = Vec::with_capacity(64);
        Ok(Self {
            endpoint,
            operations,
        })
    }

    fn begin(&mut self, what: &What) -> Result<()> {
        for _ in 0..what.batch {
            self.operations.push(self.endpoint.submit(what.put()?)?);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<u32> {
        let mut ended = 0;
        for operation in self.operations.drain(..) {
            self.endpoint.wait(operation, None)?.result?;
            ended += 1;
        }
        Ok(ended)
    }
}

struct Woken;

impl Wake for Woken {
    fn wake(self: Arc<Self>) {}
}

/// `.await` on futures of a [`Handle`], with the turn of the driver that ends them. As a task would be, each
/// is polled once before it has ended, and once after.
pub struct Awaiting {
    handle: Handle,
    driver: Driver,
    puts: Vec<Submitted>,
    waker: Waker,
}

impl Way for Awaiting {
    const MEASURED: [Measured<Self>; 2] =
        measured!(Awaiting, "measure_post_awaiting", "measure_poll_awaiting");

    fn new(endpoint: Endpoint) -> Result<Self> {
        let (handle, driver) = Handle::new(endpoint)?;
        Ok(Self {
            handle,
            driver,
            puts: Vec::with_capacity(64),
            waker: Waker::from(Arc::new(Woken)),
        })
    }

    fn begin(&mut self, what: &What) -> Result<()> {
        let mut context = Context::from_waker(&self.waker);
        for _ in 0..what.batch {
            let mut put = self.handle.submit(what.put()?);
            if let Poll::Ready(early) = Pin::new(&mut put).poll(&mut context) {
                anyhow::bail!("it has ended before it was driven: {early:?}");
            }
            self.puts.push(put);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<u32> {
        self.driver.turn();
        let mut context = Context::from_waker(&self.waker);
        let mut ended = 0;
        while let Some(put) = self.puts.get_mut(ended) {
            match Pin::new(put).poll(&mut context) {
                Poll::Ready(bytes) => bytes?,
                Poll::Pending => break,
            };
            ended += 1;
        }
        self.puts.drain(..ended);
        Ok(ended as u32)
    }
}

struct Request {
    peer: PeerId,
    region: Region,
    remote: RemoteRegion,
    size: u64,
    reply: oneshot::Sender<efa_transport::Result<u64>>,
}

/// What programs write that have no [`Handle`]: an actor that owns the endpoint, a bounded channel of
/// requests, and a channel for each reply.
pub struct Actor {
    endpoint: Endpoint,
    requests: mpsc::Sender<Request>,
    mailbox: mpsc::Receiver<Request>,
    replies: slab::Slab<oneshot::Sender<efa_transport::Result<u64>>>,
    puts: Vec<oneshot::Receiver<efa_transport::Result<u64>>>,
}

impl Way for Actor {
    const MEASURED: [Measured<Self>; 2] =
        measured!(Actor, "measure_post_actor", "measure_poll_actor");

    fn new(endpoint: Endpoint) -> Result<Self> {
        let (requests, mailbox) = mpsc::channel(64);
        Ok(Self {
            endpoint,
            requests,
            mailbox,
            replies: slab::Slab::with_capacity(64),
            puts: Vec::with_capacity(64),
        })
    }

    fn begin(&mut self, what: &What) -> Result<()> {
        for _ in 0..what.batch {
            let (reply, put) = oneshot::channel();
            let request = Request {
                peer: what.peer,
                region: what.region.clone(),
                remote: what.remote,
                size: what.size,
                reply,
            };
            self.requests
                .try_send(request)
                .ok()
                .context("the channel is full")?;
            self.puts.push(put);
        }
        // The actor's part.
        while let Ok(request) = self.mailbox.try_recv() {
            let local = request.region.slice(..request.size)?;
            let remote = request.remote.slice(..request.size)?;
            let tag = self.replies.insert(request.reply) as u64;
            let put = efa_transport::Put::new(request.peer, local, remote).tag(tag);
            self.endpoint.submit(put)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<u32> {
        let replies = &mut self.replies;
        self.endpoint.poll(|completion| {
            let reply = replies.remove(completion.tag as usize);
            let result = completion.result.map(|()| completion.bytes);
            // Whoever has asked may be gone.
            let _ = reply.send(result.map_err(efa_transport::Error::Failed));
        })?;
        let mut ended = 0;
        for put in self.puts.iter_mut() {
            match put.try_recv() {
                Ok(bytes) => bytes?,
                Err(_) => break,
            };
            ended += 1;
        }
        self.puts.drain(..ended);
        Ok(ended as u32)
    }
}

impl<W: Way> OneByOne<W> {
    /// An endpoint that puts to `target`.
    pub fn new(path: DataPath, target: &Target) -> Result<Self> {
        let (endpoint, what) = What::new(path, target)?;
        let way = W::new(endpoint)?;
        Ok(Self { way, what })
    }
}

impl<W: Way> Layer for OneByOne<W> {
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()> {
        (self.what.size, self.what.batch) = (size.into(), batch as usize);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        self.way.begin(&self.what)
    }

    fn poll(&mut self, _most: u32) -> Result<u32> {
        self.way.end()
    }

    fn measure_post(&mut self) -> Result<()> {
        let [post, _] = W::MEASURED;
        post(self)
    }

    fn measure_poll(&mut self, most: u32) -> Result<u32> {
        let [_, poll] = W::MEASURED;
        poll(self).map(|()| most)
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.what.ring
    }

    fn path(&self) -> &'static str {
        name(self.what.path)
    }
}
