//! The endpoint as the handshake sees it.

use efa_verbs::Operations;

use super::Endpoint;
use crate::error::{Error, Result};
use crate::handshake::{Capabilities, EndpointInfo, PeerInfo, PeerStore};
use crate::peers::{Gone, NewPeer, PeerId};

/// A handshake makes the peer's handle first, and lets the peer be used only when it has ours.
impl PeerStore for Endpoint {
    type Peer = PeerId;
    type Error = Error;

    fn local(&self) -> EndpointInfo {
        let mut info = EndpointInfo::new(self.address, self.incarnation);
        if self.queue.rules.has(Operations::READ) {
            info.capabilities |= Capabilities::RDMA_READ;
        }
        if self.queue.rules.has(Operations::WRITE) {
            info.capabilities |= Capabilities::RDMA_WRITE;
        }
        if !self.queue.receives.is_none() {
            info.capabilities |= Capabilities::MESSAGES;
            info.max_message = self.queue.rules.max_message;
        }
        info
    }

    fn install(&mut self, peer: &PeerInfo) -> Result<PeerId> {
        self.queue.check_process()?;
        let _span = self.span("install");
        let info = &peer.endpoint;
        let address = info.address;
        let handle = self.reach(address)?;
        let incarnation = info.incarnation.number();
        let takes_messages = info.capabilities.contains(Capabilities::MESSAGES);
        let peers = &mut self.queue.scheduler.peers;
        if let Some(known) = peers.connected_at(handle.as_ref(), address)
            && let Some(entry) = peers.get_mut(known)
            && entry.address == address
            && (entry.incarnation == incarnation || entry.incarnation == 0)
        {
            (entry.incarnation, entry.takes_messages) = (incarnation, takes_messages);
            return Ok(known);
        }
        self.bring_up_for(address)?;
        Ok(self.queue.scheduler.peers.install(NewPeer {
            address,
            handle,
            incarnation,
            takes_messages,
        }))
    }

    fn activate(&mut self, peer: &PeerId) {
        // Whoever else had that address is dead.
        if let Err(before) = self.queue.scheduler.peers.activate(*peer) {
            self.queue.scheduler.disconnect(before, Gone::Restarted);
            let activated = self.queue.scheduler.peers.activate(*peer);
            debug_assert!(activated.is_ok());
        }
        tracing::debug!(%peer, "connected by handshake");
    }

    fn forget(&mut self, peer: PeerId) {
        self.queue.scheduler.peers.uninstall(peer);
    }
}
