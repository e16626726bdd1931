//! Handshakes over TCP, on the same machine as those without a runtime.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use ::tokio::net::{TcpStream, lookup_host};
use ::tokio::time::timeout;
use rustix::event::{PollFlags, epoll};

use super::watch::Watch;
use crate::future::Handle;
use crate::handshake::{
    Connected, Connector, HandshakeConfig, HandshakeError, HandshakeErrorKind, Listener, Step,
};

type Met = Result<Connected<TcpStream>, HandshakeError>;

/// A listener, and what tells when it has something to do.
#[derive(Debug)]
pub(super) struct Listening {
    handle: Handle,
    /// None once it was closed.
    listener: Option<Listener>,
    told: Told,
    watch: Watch,
}

/// User data that the listener is to tell from now on.
pub(super) type Told = Arc<Mutex<Option<Arc<[u8]>>>>;

impl Listening {
    pub(super) fn new(
        handle: Handle,
        socket: std::net::TcpListener,
        config: HandshakeConfig,
        told: Told,
    ) -> Result<Self, HandshakeError> {
        let listener = Listener::from_socket(socket, config)?;
        let watch = Watch::new(&listener);
        Ok(Self {
            handle,
            watch: watch.map_err(|source| HandshakeError::io(Step::Listening, source))?,
            listener: Some(listener),
            told,
        })
    }

    pub(super) async fn accept(&mut self) -> Met {
        let failed = |source| HandshakeError::io(Step::Accepting, source);
        let mut closed = pin!(self.handle.closed());
        let Some(listener) = &mut self.listener else {
            return Err(cancelled(Step::Accepting));
        };
        loop {
            if let Some(user_data) = take(&self.told) {
                listener.set_user_data(user_data)?;
            }
            let polled = self.handle.ask(|endpoint| Ok(listener.poll(endpoint)));
            match polled {
                Ok(Some(arrival)) => return arrival.and_then(|met| runtimes(&self.handle, met)),
                Ok(None) => {}
                Err(_) => return Err(cancelled(Step::Accepting)),
            }
            let mut readable = pin!(self.watch.readable(listener.next_timeout()));
            let woken = poll_fn(|context| {
                if closed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                readable.as_mut().poll(context)
            });
            woken.await.map_err(failed)?;
        }
    }
}

fn take(told: &Told) -> Option<Arc<[u8]>> {
    let told = told.lock();
    told.unwrap_or_else(PoisonError::into_inner).take()
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            // A closed endpoint has no handles of pending peers either.
            let _ = self.handle.ask(|endpoint| {
                listener.close(endpoint);
                Ok(())
            });
        }
    }
}

pub(super) fn not_listening() -> HandshakeError {
    let source = io::Error::new(
        io::ErrorKind::NotConnected,
        "the endpoint does not listen: make it by Endpoint::bind",
    );
    HandshakeError::io(Step::Accepting, source)
}

pub(super) async fn connect(handle: &Handle, target: &str, config: HandshakeConfig) -> Met {
    let begun = Instant::now();
    let failed = |source| HandshakeError::io(Step::Resolving, source).to(target);
    let found = match timeout(config.timeout, lookup_host(target)).await {
        Ok(found) => found.map_err(failed)?,
        Err(_) => {
            let kind = HandshakeErrorKind::TimedOut(config.timeout);
            return Err(HandshakeError::new(Step::Resolving, kind).to(target));
        }
    };
    let connector = Connector::to_addresses(target, found, config, begun)?;
    Connecting::new(handle, connector)?.run().await
}

pub(super) async fn over(handle: &Handle, stream: TcpStream, config: HandshakeConfig) -> Met {
    let stream = stream
        .into_std()
        .map_err(|source| HandshakeError::io(Step::Beginning, source))?;
    let connector = Connector::from_stream(stream, config)?;
    Connecting::new(handle, connector)?.run().await
}

/// A connector, and an epoll descriptor over whatever socket it has at the moment.
struct Connecting<'a> {
    handle: &'a Handle,
    /// None once it has ended.
    connector: Option<Connector>,
    epoll: OwnedFd,
    watch: Watch,
}

impl<'a> Connecting<'a> {
    fn new(handle: &'a Handle, connector: Connector) -> Result<Self, HandshakeError> {
        let failed = |source| HandshakeError::io(Step::Beginning, source);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|error| failed(error.into()))?;
        Ok(Self {
            handle,
            connector: Some(connector),
            watch: Watch::new(&epoll).map_err(failed)?,
            epoll,
        })
    }

    async fn run(mut self) -> Met {
        loop {
            let Some(connector) = &mut self.connector else {
                return Err(cancelled(Step::Connecting));
            };
            let polled = self.handle.ask(|endpoint| Ok(connector.poll(endpoint)));
            match polled {
                Ok(Poll::Pending) => {}
                Ok(Poll::Ready(result)) => {
                    self.connector = None;
                    return result.and_then(|met| runtimes(self.handle, met));
                }
                Err(_) => return Err(cancelled(Step::Connecting)),
            }
            let limit = self.aim()?;
            let waited = self.watch.readable(limit).await;
            waited.map_err(|source| HandshakeError::io(Step::Connecting, source))?;
        }
    }

    /// Watches the socket of the moment. Returns how long.
    fn aim(&self) -> Result<Option<Duration>, HandshakeError> {
        let Some(connector) = &self.connector else {
            return Ok(None);
        };
        if let Some((socket, wanted)) = connector.interest() {
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, wanted.contains(PollFlags::IN));
            flags.set(epoll::EventFlags::OUT, wanted.contains(PollFlags::OUT));
            let data = epoll::EventData::new_u64(0);
            // A socket that was closed has left by itself, and its number may be another's by now.
            let aimed = match epoll::modify(&self.epoll, socket, data, flags) {
                Err(rustix::io::Errno::NOENT) => epoll::add(&self.epoll, socket, data, flags),
                aimed => aimed,
            };
            aimed.map_err(|error| HandshakeError::io(Step::Connecting, error.into()))?;
        }
        Ok(connector.next_timeout())
    }
}

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        if let Some(connector) = self.connector.take() {
            let _ = self.handle.ask(|endpoint| {
                connector.cancel(endpoint);
                Ok(())
            });
        }
    }
}

/// The endpoint was closed meanwhile.
fn cancelled(step: Step) -> HandshakeError {
    HandshakeError::new(step, HandshakeErrorKind::Cancelled)
}

/// Makes the connection one of the runtime's.
fn runtimes(handle: &Handle, met: Connected<std::net::TcpStream>) -> Met {
    let stream = met
        .channel
        .set_nonblocking(true)
        .and_then(|()| TcpStream::from_std(met.channel));
    match stream {
        Ok(channel) => Ok(Connected {
            peer: met.peer,
            info: met.info,
            user_data: met.user_data,
            channel,
        }),
        Err(source) => {
            // Nobody learns of the peer.
            let _ = handle.disconnect(met.peer);
            Err(HandshakeError::io(Step::Sending, source))
        }
    }
}
