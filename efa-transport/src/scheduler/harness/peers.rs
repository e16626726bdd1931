//! Peers: how they come, restart and go.

use std::rc::{Rc, Weak};

use super::parts::Handle;
use super::world::World;
use crate::address::EndpointAddress;
use crate::failure::FailureKind;
use crate::peers::{Gone, NewPeer, PeerId};
use crate::scheduler::operations::Status;
use efa_verbs::Gid;

/// What the harness knows of a peer.
pub(super) struct PeerModel {
    pub(super) id: PeerId,
    address: EndpointAddress,
    /// Why it can't be used.
    pub(super) gone: Option<Gone>,
    /// Handshakes that have installed it and have not ended.
    handshakes: u32,
    local: bool,
    pub(super) handle: Weak<u16>,
    /// Operations that succeeded, and their bytes.
    pub(super) succeeded: (u64, u64),
}

impl World {
    fn peer(&self, id: PeerId) -> &PeerModel {
        let known = self.peers.iter().find(|peer| peer.id == id);
        known.expect("a peer that never was")
    }

    fn peer_mut(&mut self, id: PeerId) -> &mut PeerModel {
        let known = self.peers.iter_mut().find(|peer| peer.id == id);
        known.expect("a peer that never was")
    }

    /// Why a peer can't be used, if it can't.
    pub(super) fn gone(&self, id: PeerId) -> Option<Gone> {
        let why = self.peer(id).gone?;
        let mut same_place = self
            .peers
            .iter()
            .filter(|peer| peer.id.index() == id.index());
        match same_place.next_back().is_some_and(|last| last.id == id) {
            true => Some(why),
            // Its place has been taken since.
            false => Some(Gone::Unknown),
        }
    }

    pub(super) fn is_local(&self, id: PeerId) -> bool {
        self.peer(id).local
    }

    pub(super) fn handle(&self, id: PeerId) -> Weak<u16> {
        self.peer(id).handle.clone()
    }

    pub(super) fn succeeded(&mut self, id: PeerId, bytes: u64) {
        let peer = self.peer_mut(id);
        peer.succeeded.0 += 1;
        peer.succeeded.1 += bytes;
    }

    /// Some peer, most likely one that can be used.
    pub(super) fn any_peer(&mut self) -> Option<PeerId> {
        let any = self.chance(5);
        let peers = self.peers.iter().filter(|peer| any || peer.gone.is_none());
        let ids: Vec<_> = peers.map(|peer| peer.id).collect();
        (!ids.is_empty()).then(|| ids[self.random.usize(..ids.len())])
    }

    pub(super) fn change_peers(&mut self) {
        match self.random.u32(..10) {
            0..4 => self.connect(),
            4..6 => self.install(),
            6..8 => self.end_handshake(),
            _ => self.disconnect(),
        }
    }

    fn new_peer(&mut self) -> (NewPeer<Handle>, Weak<u16>) {
        let queue_pair = self.random.u32(..6);
        let gid = Gid::from_bytes([1 + (queue_pair / 2) as u8; 16]);
        let address = EndpointAddress::new(gid, queue_pair, 1).unwrap();
        let handle = (queue_pair != 0).then(|| Rc::new((queue_pair / 2) as u16));
        let weak = handle.as_ref().map_or(Weak::new(), Rc::downgrade);
        let new = NewPeer {
            address,
            handle: handle.map(Handle),
            incarnation: self.random.u64(1..3),
            takes_messages: true,
        };
        (new, weak)
    }

    /// Connects a peer, unless it is connected.
    pub(super) fn connect(&mut self) {
        let (new, handle) = self.new_peer();
        let connected = |peer: &&PeerModel| peer.gone.is_none() && peer.address == new.address;
        let known = self.peers.iter().find(connected).map(|peer| peer.id);
        let peers = &mut self.scheduler.peers;
        assert_eq!(peers.connected_at(new.handle.as_ref(), new.address), known);
        if known.is_none() {
            let (address, local) = (new.address, new.handle.is_none());
            let id = peers.add(new);
            self.came(id, address, local, handle);
        }
    }

    fn came(&mut self, id: PeerId, address: EndpointAddress, local: bool, handle: Weak<u16>) {
        assert!(
            self.peers.iter().all(|peer| peer.id != id),
            "a name was used twice"
        );
        self.peers.push(PeerModel {
            id,
            address,
            gone: None,
            handshakes: 0,
            local,
            handle,
            succeeded: (0, 0),
        });
    }

    /// A handshake begins.
    fn install(&mut self) {
        let (new, handle) = self.new_peer();
        let (address, local) = (new.address, new.handle.is_none());
        let id = self.scheduler.peers.install(new);
        if self.peers.iter().all(|peer| peer.id != id) {
            self.came(id, address, local, handle);
        }
        let peer = self.peer_mut(id);
        peer.gone = Some(Gone::NotReady);
        peer.handshakes += 1;
    }

    /// A handshake ends, well or not.
    fn end_handshake(&mut self) {
        let installing = self
            .peers
            .iter()
            .filter(|peer| peer.gone == Some(Gone::NotReady));
        let ids: Vec<_> = installing.map(|peer| peer.id).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.random.usize(..ids.len())];
        if self.chance(40) {
            self.scheduler.peers.uninstall(id);
            let peer = self.peer_mut(id);
            peer.handshakes -= 1;
            if peer.handshakes == 0 {
                peer.gone = Some(Gone::Disconnected);
            }
            return;
        }
        // As the endpoint does it: whoever else had that address is dead.
        if let Err(before) = self.scheduler.peers.activate(id) {
            assert_eq!(self.peer(before).address, self.peer(id).address);
            assert!(self.scheduler.disconnect(before, Gone::Restarted));
            self.removed(before, Gone::Restarted);
            assert_eq!(self.scheduler.peers.activate(id), Ok(()));
        }
        self.peer_mut(id).gone = None;
    }

    fn disconnect(&mut self) {
        let Some(id) = self.any_peer() else { return };
        let there = matches!(self.gone(id), None | Some(Gone::NotReady));
        assert_eq!(self.scheduler.disconnect(id, Gone::Disconnected), there);
        if there {
            self.removed(id, Gone::Disconnected);
        }
    }

    /// A peer is gone: what waited for its turn has failed, the rest goes on.
    pub(super) fn removed(&mut self, id: PeerId, why: Gone) {
        self.peer_mut(id).gone = Some(why);
        for key in self.keys(|operation| operation.peer == Some(id) && operation.is_unposted()) {
            let operation = self.operations.get_mut(&key).unwrap();
            // One whose last request waits for the others ends when these have.
            let slot = self.scheduler.table.find(operation.id).unwrap();
            if self.scheduler.table.slot(slot).status() == Status::Parked {
                operation.interrupt(FailureKind::Disconnected);
            } else {
                assert!(operation.may_be_held());
            }
        }
    }
}
