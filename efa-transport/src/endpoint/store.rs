//! The endpoint as the handshake sees it.

use super::Endpoint;
use crate::error::{Error, Result};
use crate::handshake::{Capabilities, EndpointInfo, PeerInfo, PeerStore};
use crate::ops::NONE;
use crate::peers::{Gone, NewPeer, Peer, PeerId};

/// A handshake makes the peer's handle first, and lets the peer be used only when it has ours.
///
/// ```no_run
/// use efa_transport::handshake::{HandshakeConfig, connect_over};
/// # use efa_transport::{Endpoint, Region};
/// # fn f(endpoint: &mut Endpoint, region: &Region) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = std::net::TcpStream::connect("peer.example:7000")?;
/// let mine = region.remote()?.to_bytes();
/// let config = HandshakeConfig::default().user_data(mine);
/// let connected = connect_over(stream, endpoint, config)?;
/// let theirs = efa_transport::RemoteRegion::try_from(&connected.info.user_data[..])?;
/// endpoint.put(connected.peer, region.slice(..64)?, theirs, 0)?;
/// # Ok(()) }
/// ```
impl PeerStore for Endpoint {
    type Peer = PeerId;
    type Error = Error;

    fn local(&self) -> EndpointInfo {
        let mut info = EndpointInfo::new(self.address, self.incarnation);
        let operations = self.rules.operations;
        if operations.contains(efa_verbs::Operations::READ) {
            info.capabilities |= Capabilities::RDMA_READ;
        }
        if operations.contains(efa_verbs::Operations::WRITE) {
            info.capabilities |= Capabilities::RDMA_WRITE;
        }
        if self.rules.unsolicited {
            info.capabilities |= Capabilities::UNSOLICITED_WRITE_RECEIVE;
            if let Some(grants) = &self.grants {
                info.immediate_grant = self.config.immediate_grant;
                info.grant_table = grants.region().remote().ok();
            }
        }
        if self.core.has_pool() {
            info.capabilities |= Capabilities::MESSAGES;
            info.max_message = self.rules.max_message;
        }
        info
    }

    fn install(&mut self, peer: &PeerInfo) -> Result<PeerId> {
        let _span = self.span("install");
        let info = &peer.endpoint;
        let address = info.address;
        let (handle, key) = self.reach(address)?;
        let incarnation = info.incarnation.number();
        if let Some(known) = self.connected_at(key)
            && let Some(entry) = self.core.flow.peers.get_mut(known)
            && entry.address == address
            && (entry.incarnation == incarnation || entry.incarnation == 0)
        {
            entry.incarnation = incarnation;
            entry.capabilities = capabilities(info);
            self.exchange_grants(known, info);
            return Ok(known);
        }
        if let Some(&installing) = self.installing.get(&(address, incarnation))
            && let Some(entry) = self.core.flow.peers.installed(installing)
        {
            entry.installs = entry.installs.saturating_add(1);
            return Ok(installing);
        }
        self.bring_up(address)?;
        let local = handle.is_none();
        let peer = self.core.flow.peers.install(NewPeer {
            address,
            handle,
            incarnation,
            local,
            capabilities: capabilities(info),
        });
        self.installing.insert((address, incarnation), peer);
        self.exchange_grants(peer, info);
        Ok(peer)
    }

    fn activate(&mut self, peer: &PeerId) {
        let Some(entry) = self.core.flow.peers.installed(*peer) else {
            return; // it was known already
        };
        let address = entry.address;
        let incarnation = entry.incarnation;
        let Ok((_, key)) = self.reach(address) else {
            return; // can't be: the entry holds the handle
        };
        // Whoever else had that address is dead.
        if let Some(before) = self.connected_at(key) {
            let _ = self.drop_peer(before, Gone::Restarted);
        }
        self.core.flow.peers.activate(*peer);
        self.installing.remove(&(address, incarnation));
        self.sources.insert(key, peer.index());
        tracing::debug!(%peer, ?address, incarnation, "connected by handshake");
    }

    fn forget(&mut self, peer: PeerId) {
        let Some(entry) = self.core.flow.peers.installed(peer) else {
            return; // it is active, or gone
        };
        entry.installs = entry.installs.saturating_sub(1);
        if entry.installs == 0 {
            let key = (entry.address, entry.incarnation);
            let slot = entry.slot;
            self.installing.remove(&key);
            self.core.flow.clear_grant(peer.index());
            self.core.flow.peers.forget(peer);
            if let Some(grants) = &mut self.grants {
                grants.close(slot);
            }
        }
    }
}

impl Endpoint {
    /// Gives the peer a slot of our table, and notes what it has granted us.
    fn exchange_grants(&mut self, peer: PeerId, info: &EndpointInfo) {
        let flow = &mut self.core.flow;
        let Some(entry) = flow.peers.entry_mut(peer.index()) else {
            return;
        };
        if entry.local {
            return;
        }
        if entry.slot == NONE
            && let Some(grants) = &mut self.grants
        {
            entry.slot = grants.open(info.incarnation.number()).unwrap_or(NONE);
        }
        if let Some(grant) = flow.grant_mut(peer.index()) {
            grant.met_again();
        } else if self.rules.unsolicited
            && let Some(table) = info.grant_table
        {
            flow.set_grant(peer.index(), info.immediate_grant, table);
        }
    }
}

fn capabilities(info: &EndpointInfo) -> u8 {
    let mut bits = Peer::<()>::KNOWN;
    if info
        .capabilities
        .contains(Capabilities::UNSOLICITED_WRITE_RECEIVE)
    {
        bits |= Peer::<()>::UNSOLICITED;
    }
    bits
}
