//! Who is connected: the part of a [`PeerStore`] that has nothing to do with a device.

use std::collections::HashMap;
use std::convert::Infallible;

use super::info::{EndpointInfo, PeerInfo};
use super::store::PeerStore;
use crate::address::EndpointAddress;

/// Names a peer in a [`Roster`]. It stays unequal to the keys of all other peers, earlier and later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RosterKey {
    slot: u32,
    generation: u32,
}

/// What has become of a peer in a [`Roster`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// A handshake is under way.
    Pending,
    /// Both sides have each other's address handle.
    Active,
    /// Another incarnation has taken over its address: the peer has restarted, and this one is dead.
    Superseded,
    /// It was forgotten or removed.
    Gone,
}

#[derive(Debug)]
struct Entry {
    endpoint: EndpointInfo,
    /// Installs that were neither activated nor forgotten.
    pending: u32,
    active: bool,
    superseded: bool,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

/// Counts handshakes and tells incarnations apart, as a [`PeerStore`] must.
///
/// It makes no address handles: it serves tests, and programs that keep several endpoints behind
/// one handshake.
///
/// ```
/// use efa_transport::address::{EndpointAddress, Gid};
/// use efa_transport::handshake::{EndpointInfo, Incarnation, PeerInfo, PeerStore, Roster, Standing};
///
/// let gid: Gid = "fe80::1".parse().unwrap();
/// let endpoint = |qp| EndpointInfo::new(EndpointAddress::new(gid, qp, 0x4242).unwrap(), Incarnation::random());
/// let mut roster = Roster::new(endpoint(1));
///
/// let peer = PeerInfo { endpoint: endpoint(2), user_data: Vec::new() };
/// let before = roster.install(&peer)?;
/// roster.activate(&before);
///
/// // The peer restarts and gets its old queue pair number again.
/// let peer = PeerInfo { endpoint: endpoint(2), user_data: Vec::new() };
/// let after = roster.install(&peer)?;
/// assert_eq!(roster.standing(before), Standing::Active);
/// roster.activate(&after);
/// assert_eq!(roster.standing(before), Standing::Superseded);
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Debug)]
pub struct Roster {
    local: EndpointInfo,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_address: HashMap<EndpointAddress, Vec<u32>>,
}

impl Roster {
    /// An empty roster of the endpoint `local`.
    pub fn new(local: EndpointInfo) -> Self {
        Roster {
            local,
            slots: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
        }
    }

    /// The endpoint was rebuilt: handshakes from now on introduce this one.
    pub fn set_local(&mut self, local: EndpointInfo) {
        self.local = local;
    }

    /// What has become of a peer.
    pub fn standing(&self, key: RosterKey) -> Standing {
        match self.entry(key) {
            None => Standing::Gone,
            Some(entry) if entry.superseded => Standing::Superseded,
            Some(entry) if entry.active => Standing::Active,
            Some(_) => Standing::Pending,
        }
    }

    /// The active peer at an address.
    pub fn active_at(&self, address: EndpointAddress) -> Option<RosterKey> {
        self.by_address.get(&address)?.iter().find_map(|&slot| {
            let at = &self.slots[slot as usize];
            let entry = at.entry.as_ref()?;
            (entry.active && !entry.superseded).then_some(RosterKey {
                slot,
                generation: at.generation,
            })
        })
    }

    /// What a peer said about its endpoint, as long as it is known.
    pub fn endpoint(&self, key: RosterKey) -> Option<&EndpointInfo> {
        self.entry(key).map(|entry| &entry.endpoint)
    }

    /// How many peers there are, whatever their standing.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes a peer that was activated. A handshake with it that is still under way keeps it pending.
    pub fn remove(&mut self, key: RosterKey) {
        if let Some(entry) = self.entry_mut(key) {
            entry.active = false;
            self.free_unused(key);
        }
    }

    fn entry(&self, key: RosterKey) -> Option<&Entry> {
        let slot = self.slots.get(key.slot as usize)?;
        slot.entry
            .as_ref()
            .filter(|_| slot.generation == key.generation)
    }

    fn entry_mut(&mut self, key: RosterKey) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        slot.entry
            .as_mut()
            .filter(|_| slot.generation == key.generation)
    }

    fn free_unused(&mut self, key: RosterKey) {
        let Some(entry) = self
            .entry(key)
            .filter(|entry| entry.pending == 0 && !entry.active)
        else {
            return;
        };
        let address = entry.endpoint.address;
        let slot = &mut self.slots[key.slot as usize];
        slot.entry = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.slot);
        if let Some(there) = self.by_address.get_mut(&address) {
            there.retain(|&other| other != key.slot);
            if there.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

impl PeerStore for Roster {
    type Peer = RosterKey;
    type Error = Infallible;

    fn local(&self) -> EndpointInfo {
        self.local
    }

    fn install(&mut self, peer: &PeerInfo) -> Result<RosterKey, Infallible> {
        let there = self.by_address.entry(peer.endpoint.address).or_default();
        for &slot in there.iter() {
            let at = &mut self.slots[slot as usize];
            if let Some(entry) = &mut at.entry
                && entry.endpoint.incarnation == peer.endpoint.incarnation
            {
                entry.pending += 1;
                return Ok(RosterKey {
                    slot,
                    generation: at.generation,
                });
            }
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        there.push(slot);
        let at = &mut self.slots[slot as usize];
        at.entry = Some(Entry {
            endpoint: peer.endpoint,
            pending: 1,
            active: false,
            superseded: false,
        });
        Ok(RosterKey {
            slot,
            generation: at.generation,
        })
    }

    fn activate(&mut self, peer: &RosterKey) {
        let Some(entry) = self.entry_mut(*peer) else {
            return;
        };
        entry.pending = entry.pending.saturating_sub(1);
        entry.active = true;
        entry.superseded = false;
        let address = entry.endpoint.address;
        for &slot in self.by_address.get(&address).into_iter().flatten() {
            if slot != peer.slot
                && let Some(entry) = &mut self.slots[slot as usize].entry
            {
                entry.superseded = true;
            }
        }
    }

    fn forget(&mut self, peer: RosterKey) {
        if let Some(entry) = self.entry_mut(peer) {
            entry.pending = entry.pending.saturating_sub(1);
            self.free_unused(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Gid;
    use crate::handshake::Incarnation;

    fn endpoint(queue_pair: u32, incarnation: u64) -> EndpointInfo {
        let gid = Gid::from_bytes([7; 16]);
        let address = EndpointAddress::new(gid, queue_pair, 1).unwrap();
        EndpointInfo::new(address, Incarnation::from_number(incarnation).unwrap())
    }

    fn peer(queue_pair: u32, incarnation: u64) -> PeerInfo {
        PeerInfo {
            endpoint: endpoint(queue_pair, incarnation),
            user_data: Vec::new(),
        }
    }

    #[test]
    fn crossing_handshakes_make_one_peer_that_outlives_the_failure_of_one() {
        let mut roster = Roster::new(endpoint(1, 1));
        let Ok(first) = roster.install(&peer(2, 5));
        let Ok(second) = roster.install(&peer(2, 5));
        assert_eq!(first, second);
        roster.activate(&first);
        roster.forget(second);
        assert_eq!(roster.standing(first), Standing::Active);
        assert_eq!(roster.active_at(peer(2, 5).endpoint.address), Some(first));
        roster.remove(first);
        assert_eq!(roster.standing(first), Standing::Gone);
        assert!(roster.is_empty());
    }

    #[test]
    fn a_late_greeting_of_a_dead_incarnation_does_not_disturb_the_living() {
        let mut roster = Roster::new(endpoint(1, 1));
        let Ok(alive) = roster.install(&peer(2, 6));
        roster.activate(&alive);
        let Ok(dead) = roster.install(&peer(2, 5));
        assert_ne!(alive, dead);
        roster.forget(dead);
        assert_eq!(roster.standing(alive), Standing::Active);
        assert_eq!(roster.len(), 1);
    }

    #[test]
    fn a_key_is_not_reused_for_the_next_peer_in_its_place() {
        let mut roster = Roster::new(endpoint(1, 1));
        let Ok(old) = roster.install(&peer(2, 5));
        roster.forget(old);
        let Ok(new) = roster.install(&peer(3, 5));
        assert_ne!(old, new);
        assert_eq!(roster.standing(old), Standing::Gone);
        assert!(roster.endpoint(old).is_none());
    }
}
