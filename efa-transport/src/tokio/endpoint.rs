//! The endpoint that tasks share.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, PoisonError};

use ::tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use ::tokio::sync::Mutex;

use super::driver;
use super::meet::{self, Listening, Told};
use super::messages::Messages;
use crate::config::Config;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::future::Handle;
use crate::handshake::{Connected, HandshakeConfig, HandshakeError};

/// An endpoint for tasks: a [`Handle`] whose driver is a task of the runtime in which it was made. See the
/// [module](crate::tokio).
///
/// Cloning it is cheap. Operations, messages and the rest are the handle's, to which it dereferences:
/// [`put`](Handle::put), [`get`](Handle::get), [`send`](Handle::send), [`recv`](Handle::recv),
/// [`landed`](Handle::landed), [`close`](Handle::close).
#[derive(Clone, Debug)]
pub struct Endpoint {
    handle: Handle,
    listening: Option<Arc<Mutex<Listening>>>,
    address: Option<SocketAddr>,
    told: Told,
}

impl Endpoint {
    /// Makes an endpoint that does not listen. [`Config::events`] is taken to be set.
    ///
    /// # Errors
    /// As [`Endpoint::new`](crate::Endpoint::new); [`Error::Io`] where no runtime is there, or the system lacks
    /// descriptors.
    ///
    /// # Panics
    /// In a runtime without I/O. Futures panic in a runtime without time.
    pub fn new(domain: &Domain, config: Config) -> Result<Self> {
        let events = true;
        let endpoint = crate::Endpoint::new(domain, Config { events, ..config })?;
        Self::from_endpoint(endpoint)
    }

    /// The same with an endpoint that exists, as [`Handle::new`].
    ///
    /// # Errors
    /// [`Error::NoEvents`], [`Error::Io`].
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn from_endpoint(endpoint: crate::Endpoint) -> Result<Self> {
        let (handle, driver) = Handle::new(endpoint)?;
        driver::spawn(driver)?;
        Ok(Self {
            handle,
            listening: None,
            address: None,
            told: Told::default(),
        })
    }

    /// Makes an endpoint that also listens for handshakes at a TCP address: a host with a port, which the
    /// system chooses where it is 0.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::Io`] where the address can't be bound.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub async fn bind(
        domain: &Domain,
        config: Config,
        address: impl ToSocketAddrs,
        handshake: HandshakeConfig,
    ) -> Result<Self> {
        let socket = TcpListener::bind(address).await?.into_std()?;
        let mut endpoint = Self::new(domain, config)?;
        endpoint.address = Some(socket.local_addr()?);
        let listening = Listening::new(
            endpoint.handle.clone(),
            socket,
            handshake,
            endpoint.told.clone(),
        );
        let listening = listening.map_err(std::io::Error::other)?;
        endpoint.listening = Some(Arc::new(Mutex::new(listening)));
        Ok(endpoint)
    }

    /// Where it listens.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The next client whose handshake has ended, well or not. A failure concerns that client alone.
    ///
    /// Handshakes go on, many at once, while any task is in this call.
    ///
    /// # Errors
    /// Why the handshake failed; the endpoint does not listen, or is closed.
    ///
    /// # Cancel safety
    /// Nothing is lost: handshakes go on in the next call.
    pub async fn accept(&self) -> Result<Connected<TcpStream>, HandshakeError> {
        match &self.listening {
            Some(listening) => listening.lock().await.accept().await,
            None => Err(meet::not_listening()),
        }
    }

    /// Replaces the user data for clients that come from now on.
    ///
    /// # Errors
    /// The user data is too long; the endpoint does not listen.
    pub fn set_user_data(&self, user_data: impl Into<Arc<[u8]>>) -> Result<(), HandshakeError> {
        if self.listening.is_none() {
            return Err(meet::not_listening());
        }
        let user_data = user_data.into();
        HandshakeConfig::default()
            .user_data(user_data.clone())
            .check()?;
        let told = self.told.lock();
        *told.unwrap_or_else(PoisonError::into_inner) = Some(user_data);
        Ok(())
    }

    /// Shakes hands with the endpoint that listens at `target`, a host with a port. The addresses of a name are
    /// tried in turn, and a target that nobody listens at yet is tried again, until the timeout of the
    /// configuration.
    ///
    /// # Errors
    /// As [`Connector::run`](crate::handshake::Connector::run).
    ///
    /// # Cancel safety
    /// The handshake ends, and this endpoint has forgotten the peer. If the peer had finished before, requests
    /// to this side fail, as with any peer that is gone.
    pub async fn connect(
        &self,
        target: &str,
        config: HandshakeConfig,
    ) -> Result<Connected<TcpStream>, HandshakeError> {
        meet::connect(&self.handle, target, config).await
    }

    /// Shakes hands over a connection that exists. Either side may speak first.
    ///
    /// # Errors
    /// As [`Connector::run`](crate::handshake::Connector::run).
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect); the connection is closed.
    pub async fn shake_hands(
        &self,
        stream: TcpStream,
        config: HandshakeConfig,
    ) -> Result<Connected<TcpStream>, HandshakeError> {
        meet::over(&self.handle, stream, config).await
    }

    /// The messages that arrive, as a stream.
    pub fn messages(&self) -> Messages {
        Messages::new(self.handle.recv())
    }

    /// The handle, which knows no runtime.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Deref for Endpoint {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl From<Endpoint> for Handle {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.handle
    }
}

impl TryFrom<crate::Endpoint> for Endpoint {
    type Error = Error;

    fn try_from(endpoint: crate::Endpoint) -> Result<Self> {
        Self::from_endpoint(endpoint)
    }
}
