//! The endpoint as the handshake sees it.

use super::Endpoint;
use crate::error::{Error, Result};
use crate::handshake::{Capabilities, EndpointInfo, PeerStore};
use crate::peers::{Gone, NewPeer, PeerId};

impl PeerStore for Endpoint {
    type Peer = PeerId;
    type Error = Error;

    fn local(&self) -> EndpointInfo {
        let mut capabilities = Capabilities::empty();
        let operations = self.rules.operations;
        capabilities.set(
            Capabilities::RDMA_READ,
            operations.contains(efa_verbs::Operations::READ),
        );
        capabilities.set(
            Capabilities::RDMA_WRITE,
            operations.contains(efa_verbs::Operations::WRITE),
        );
        capabilities.set(Capabilities::MESSAGES, self.core.has_pool());
        EndpointInfo {
            address: self.address,
            incarnation: self.incarnation,
            capabilities,
            max_message: if self.core.has_pool() {
                self.rules.max_message
            } else {
                0
            },
        }
    }

    fn install(&mut self, info: &EndpointInfo) -> Result<()> {
        let _span = self.span("install");
        let address = info.address;
        let (handle, key) = self.reach(address)?;
        let incarnation = info.incarnation.number();
        if let Some(known) = self.connected_at(key)
            && let Some(entry) = self.core.flow.peers.get_mut(known)
            && entry.address == address
            && (entry.incarnation == incarnation || entry.incarnation == 0)
        {
            entry.incarnation = incarnation;
            return Ok(());
        }
        if let Some(&installing) = self.installing.get(&(address, incarnation))
            && let Some(entry) = self.core.flow.peers.installed(installing)
        {
            entry.installs = entry.installs.saturating_add(1);
            return Ok(());
        }
        self.bring_up(address)?;
        let local = handle.is_none();
        let peer = self.core.flow.peers.install(NewPeer {
            address,
            handle,
            incarnation,
            local,
            capabilities: 0,
        });
        self.installing.insert((address, incarnation), peer);
        Ok(())
    }

    fn activate(&mut self, info: &EndpointInfo) -> Option<PeerId> {
        let (address, incarnation) = (info.address, info.incarnation.number());
        let (_, key) = self.reach(address).ok()?;
        let Some(peer) = self.installing.remove(&(address, incarnation)) else {
            // Another handshake, or a call of `connect`, made it usable before.
            let known = self.connected_at(key)?;
            let entry = self.core.flow.peers.get_mut(known)?;
            return (entry.incarnation == incarnation).then_some(known);
        };
        // Whoever else had that address is dead.
        if let Some(before) = self.connected_at(key) {
            let _ = self.drop_peer(before, Gone::Restarted);
        }
        self.core.flow.peers.activate(peer);
        self.sources.insert(key, peer.index());
        tracing::debug!(%peer, ?address, incarnation, "connected by handshake");
        Some(peer)
    }

    fn forget(&mut self, info: &EndpointInfo) {
        let key = (info.address, info.incarnation.number());
        let Some(&peer) = self.installing.get(&key) else {
            return; // it is usable, or gone
        };
        let Some(entry) = self.core.flow.peers.installed(peer) else {
            return;
        };
        entry.installs = entry.installs.saturating_sub(1);
        if entry.installs == 0 {
            self.installing.remove(&key);
            self.core.flow.peers.forget(peer);
        }
    }
}
