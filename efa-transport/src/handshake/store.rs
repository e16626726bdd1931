//! The seam between a handshake and the endpoint whose peers it makes.

use super::info::{EndpointInfo, PeerInfo};

/// Who keeps the peers: the endpoint, or a stand-in for it in a test.
///
/// Every successful [`install`](Self::install) is followed by exactly one
/// [`activate`](Self::activate) or one [`forget`](Self::forget). Several handshakes with the same
/// peer may be under way at once, for instance because both sides connected at the same moment: the
/// store counts.
pub trait PeerStore {
    /// How the store names a peer.
    type Peer;
    /// Why a peer can't be installed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What the endpoint is, at this moment.
    fn local(&self) -> EndpointInfo;

    /// Makes sure that the peer's address handle exists, so that its requests are answered. Nothing
    /// may be posted to the peer yet.
    ///
    /// An endpoint that is known already at the same address and with the same incarnation is the
    /// same peer. One with another incarnation stays as it is for now: the greeting may be older
    /// than the peer that is known.
    ///
    /// # Errors
    /// Whatever keeps the address handle from being made. The handshake fails, and the peer is sent
    /// the error's text.
    fn install(&mut self, peer: &PeerInfo) -> Result<Self::Peer, Self::Error>;

    /// The peer has our address handle too: requests may be posted to it. It is alive, so any other
    /// incarnation at the same address is dead from now on.
    fn activate(&mut self, peer: &Self::Peer);

    /// Takes back one `install` that was not activated.
    fn forget(&mut self, peer: Self::Peer);
}

/// A peer with which a handshake has succeeded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected<P, C> {
    /// The peer, as the store names it.
    pub peer: P,
    /// What the peer said about itself.
    pub info: PeerInfo,
    /// The byte channel, at the first byte behind the handshake. Use it as you like, or drop it.
    pub channel: C,
}
