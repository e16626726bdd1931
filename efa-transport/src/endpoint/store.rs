//! The endpoint as the handshake sees it.

use efa_verbs::Operations;

use super::Endpoint;
use crate::error::{Error, Result};
use crate::handshake::{Capabilities, EndpointInfo, PeerStore};
use crate::peers::{Gone, NewPeer, PeerId};

impl PeerStore for Endpoint {
    type Peer = PeerId;
    type Error = Error;

    fn local(&self) -> EndpointInfo {
        let rules = &self.queue.rules;
        let receives = !self.queue.receives.is_none();
        let mut capabilities = Capabilities::empty();
        capabilities.set(Capabilities::RDMA_READ, rules.has(Operations::READ));
        capabilities.set(Capabilities::RDMA_WRITE, rules.has(Operations::WRITE));
        capabilities.set(Capabilities::MESSAGES, receives);
        EndpointInfo {
            address: self.address,
            incarnation: self.incarnation,
            capabilities,
            max_message: self.queue.receives.longest(),
        }
    }

    fn install(&mut self, info: &EndpointInfo) -> Result<()> {
        self.queue.check_process()?;
        let _span = self.span("install");
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
            return Ok(());
        }
        self.bring_up_for(address)?;
        self.queue.scheduler.peers.install(NewPeer {
            address,
            handle,
            incarnation,
            takes_messages,
        });
        Ok(())
    }

    fn activate(&mut self, info: &EndpointInfo) -> Option<PeerId> {
        let (address, incarnation) = (info.address, info.incarnation.number());
        let peers = &mut self.queue.scheduler.peers;
        let Some(peer) = peers.installing(address, incarnation) else {
            // Another handshake, or a call of `connect`, made it usable before.
            let handle = self.reach(address).ok()?;
            let peers = &self.queue.scheduler.peers;
            let known = peers.connected_at(handle.as_ref(), address)?;
            let same = peers.get(known)?.incarnation == incarnation;
            return same.then_some(known);
        };
        // Whoever else had that address is dead.
        if let Err(before) = peers.activate(peer) {
            self.queue.scheduler.disconnect(before, Gone::Restarted);
            self.queue.scheduler.peers.activate(peer).ok()?;
        }
        tracing::debug!(%peer, %address, incarnation, "connected by handshake");
        Some(peer)
    }

    fn forget(&mut self, info: &EndpointInfo) {
        let peers = &mut self.queue.scheduler.peers;
        if let Some(peer) = peers.installing(info.address, info.incarnation.number()) {
            peers.uninstall(peer);
        }
    }
}
