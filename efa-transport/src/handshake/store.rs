//! What a handshake needs of an endpoint.

use super::info::EndpointInfo;
use crate::peers::PeerId;

/// Keeps the peers of a handshake: an endpoint, a group of endpoints, or a stand-in in a test.
///
/// An address and an incarnation identify a peer. Every successful [`install`](Self::install) is
/// followed by one [`activate`](Self::activate) or one [`forget`](Self::forget) with the same
/// information. Several handshakes with one peer may run at once, for example because both sides
/// connected at the same moment: the store counts its installs.
pub(crate) trait PeerStore {
    /// The name of a peer.
    type Peer;
    /// Why a peer can't be installed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// The endpoint at this moment.
    fn local(&self) -> EndpointInfo;

    /// Makes the peer's address handle, so that the device answers its requests. The peer is not
    /// usable yet.
    ///
    /// A known peer with the same address and incarnation stays the same peer. A peer with
    /// another incarnation at that address stays as it is until `activate`: this hello may be the
    /// older one.
    fn install(&mut self, peer: &EndpointInfo) -> Result<(), Self::Error>;

    /// The peer has our address handle too, so it becomes usable. It is alive: a peer with another
    /// incarnation at the same address is dead. `None` if the peer was removed since `install`, which
    /// is over either way.
    fn activate(&mut self, peer: &EndpointInfo) -> Option<Self::Peer>;

    /// Takes back one `install` that was not activated.
    fn forget(&mut self, peer: &EndpointInfo);
}

/// A peer whose handshake succeeded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected<C, P = PeerId> {
    /// The peer's name at this endpoint.
    pub peer: P,
    /// The peer's endpoint.
    pub info: EndpointInfo,
    /// What the program at the peer added, such as descriptors of its memory.
    pub user_data: Vec<u8>,
    /// The byte channel, at the first byte behind the handshake. Use it, or drop it.
    pub channel: C,
}
