//! The peers of an endpoint: an address, a handle, and a few counters each.
//!
//! A peer's life: [`add`](Peers::add)ed, or [`install`](Peers::install)ed by a handshake and then
//! [`activate`](Peers::activate)d; [`remove`](Peers::remove)d, however it came and whatever ended it. Its
//! entry, and in it the address handle, stays until the last of its operations has nothing with the
//! device any more.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::EndpointAddress;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// Names a peer of one endpoint.
///
/// It is a plain number: it keeps nothing alive. No two peers of a process ever have the same name, so
/// using it after the peer has gone, or at another endpoint, is an error and never a mix-up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(NonZeroU64);

/// What the next peer of this process is told apart by.
static SERIAL: AtomicU64 = AtomicU64::new(1);

impl PeerId {
    /// Nobody's name: there are not that many entries.
    pub(crate) const NOBODY: Self = Self(NonZeroU64::MAX);

    fn new(index: u32) -> Self {
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            if let Some(name) = NonZeroU64::new(serial << INDEX_BITS | u64::from(index)) {
                return Self(name);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn test(index: u32, serial: u64) -> Self {
        Self(NonZeroU64::new(serial << INDEX_BITS | u64::from(index)).expect("a serial"))
    }

    /// The entry of the peer with this name.
    #[inline]
    pub(crate) fn index(self) -> u32 {
        (self.0.get() & INDEX_MASK) as u32
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
    }
}

/// `index.serial`
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.0.get() >> INDEX_BITS)
    }
}

/// Why a peer can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Gone {
    /// No such peer at this endpoint, or so long ago that its place has been taken.
    #[error("it is another endpoint's peer, or was disconnected long ago")]
    Unknown,
    /// `disconnect` was called.
    #[error("it was disconnected")]
    Disconnected,
    /// Another incarnation of it has connected: the process restarted.
    #[error("its process restarted, and the new one has another identity")]
    Restarted,
    /// The handshake with it has not finished: it may not have a handle for us yet.
    #[error("the handshake with it has not finished")]
    NotReady,
    /// Our own queue pair was rebuilt, so the peer knows an address that is gone.
    #[error("this endpoint was rebuilt, so the peer knows an outdated address of it")]
    Rebuilt,
}

/// What a peer is reached by: an address handle.
pub(crate) trait Reach {
    /// The device's number for it, by which receive completions name their sender.
    fn number(&self) -> u16;
}

/// What is known of a new peer.
#[derive(Debug)]
pub(crate) struct NewPeer<A> {
    pub(crate) address: EndpointAddress,
    /// None where transfers to it are copied by this process.
    pub(crate) handle: Option<A>,
    /// Which life of the peer this is; 0 where it did not say.
    pub(crate) incarnation: u64,
    /// Whether it has a receive pool; true where it did not say.
    pub(crate) takes_messages: bool,
}

/// Where an entry's peer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// So many handshakes have installed it and not ended.
    Installing(u32),
    Connected,
    /// It is gone. The entry may wait for operations.
    Gone(Gone),
}

/// What is counted of a peer's operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerCounts {
    /// Operations that have begun.
    begun: u64,
    /// Those of them that have, and will have, nothing with the device any more.
    ended: u64,
    /// Bytes of those that have begun, but for those that have failed.
    bytes: u64,
    failed: u64,
}

impl PeerCounts {
    /// An operation of so many bytes begins.
    #[inline]
    pub(crate) fn begin(&mut self, bytes: u64) {
        self.begun += 1;
        self.bytes += bytes;
    }

    /// An operation of so many bytes has failed.
    pub(crate) fn fail(&mut self, bytes: u64) {
        self.failed += 1;
        self.bytes -= bytes;
    }

    /// An operation of so many bytes, which has ended, never was.
    pub(crate) fn take_back(&mut self, bytes: u64) {
        self.begun -= 1;
        self.ended -= 1;
        self.bytes -= bytes;
    }

    /// Operations that have, or may have, requests with the device.
    pub(crate) fn in_flight(&self) -> u64 {
        self.begun - self.ended
    }

    /// Operations that have succeeded, and those in flight that have not failed; and their bytes.
    pub(crate) fn good(&self) -> (u64, u64) {
        (self.begun - self.failed, self.bytes)
    }

    /// Operations that have failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }
}

/// One peer. `A` is the address handle.
#[derive(Debug)]
pub(crate) struct Peer<A> {
    /// The name by which requests reach it, or [`PeerId::NOBODY`] where none do.
    reachable: PeerId,
    pub(crate) handle: Option<A>,
    pub(crate) address: EndpointAddress,
    /// Its name, whether it can be used or not.
    name: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) counts: PeerCounts,
    life: Life,
    pub(crate) takes_messages: bool,
}

impl<A> Peer<A> {
    fn with_life(mut self, life: Life) -> Self {
        self.set_life(life);
        self
    }

    fn set_life(&mut self, life: Life) {
        self.life = life;
        self.reachable = match life {
            Life::Connected if self.handle.is_some() => self.name,
            _ => PeerId::NOBODY,
        };
    }

    /// Transfers to it are copied by this process.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        self.handle.is_none()
    }
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Peers<A> {
    entries: Vec<Peer<A>>,
    /// Entries without a peer.
    free: Vec<u32>,
    /// Entries whose peer is gone, and which wait for operations.
    leaving: Vec<u32>,
    /// Connected peers by where their messages come from.
    sources: HashMap<Source, u32>,
    /// Peers whose handshake has not finished.
    installing: HashMap<(EndpointAddress, u64), u32>,
    connected: u32,
    /// Operations and bytes of peers whose entries were used again.
    past: (u64, u64),
}

/// Where messages come from: the number of the handle for the sender, and its queue pair.
///
/// A peer that transfers are copied to has no handle; nothing is received from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source(u32);

impl Source {
    fn new(handle: Option<u16>, queue_pair: u32) -> Self {
        Self(u32::from(handle.unwrap_or(u16::MAX)) << 16 | (queue_pair & 0xffff))
    }
}

fn source<A: Reach>(handle: Option<&A>, address: EndpointAddress) -> Source {
    Source::new(handle.map(A::number), address.queue_pair())
}

impl<A: Reach> Peers<A> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            leaving: Vec::new(),
            sources: HashMap::new(),
            installing: HashMap::new(),
            connected: 0,
            past: (0, 0),
        }
    }

    // ---- coming ---------------------------------------------------------------------

    /// The connected peer at an address, if there is one. Its queue key may differ.
    pub(crate) fn connected_at(
        &self,
        handle: Option<&A>,
        address: EndpointAddress,
    ) -> Option<PeerId> {
        let &index = self.sources.get(&source(handle, address))?;
        Some(self.entries[index as usize].name)
    }

    /// Adds a peer that can be used at once.
    pub(crate) fn add(&mut self, new: NewPeer<A>) -> PeerId {
        let source = source(new.handle.as_ref(), new.address);
        let name = self.place(new, Life::Connected);
        self.sources.insert(source, name.index());
        self.connected += 1;
        name
    }

    /// Adds a peer that can be used only once it is [`activate`](Self::activate)d: until then its name
    /// finds nothing.
    pub(crate) fn install(&mut self, new: NewPeer<A>) -> PeerId {
        let key = (new.address, new.incarnation);
        if let Some(&index) = self.installing.get(&key)
            && let entry = &mut self.entries[index as usize]
            && let Life::Installing(handshakes) = &mut entry.life
        {
            *handshakes = handshakes.saturating_add(1);
            return entry.name;
        }
        let name = self.place(new, Life::Installing(1));
        self.installing.insert(key, name.index());
        name
    }

    /// The peer with this address and incarnation whose handshake has not finished.
    pub(crate) fn installing(&self, address: EndpointAddress, incarnation: u64) -> Option<PeerId> {
        let &index = self.installing.get(&(address, incarnation))?;
        Some(self.entries[index as usize].name)
    }

    fn place(&mut self, new: NewPeer<A>, life: Life) -> PeerId {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        let name = PeerId::new(index);
        let entry = Peer {
            reachable: PeerId::NOBODY,
            handle: new.handle,
            address: new.address,
            name,
            incarnation: new.incarnation,
            counts: PeerCounts::default(),
            life,
            takes_messages: new.takes_messages,
        };
        let entry = entry.with_life(life);
        match self.entries.get_mut(index as usize) {
            Some(old) => {
                let good = old.counts.good();
                self.past = (self.past.0 + good.0, self.past.1 + good.1);
                *old = entry;
            }
            None => {
                if self.entries.len() == self.entries.capacity() {
                    // By an eighth: doubling would leave half of the memory of many peers unused.
                    self.entries.reserve_exact(self.entries.len() / 8 + 4);
                }
                self.entries.push(entry);
            }
        }
        name
    }

    /// Makes an installed peer usable. Returns the one that had its address before, which is dead and
    /// to be removed first; then nothing has happened yet.
    pub(crate) fn activate(&mut self, id: PeerId) -> Result<(), PeerId> {
        let Some(entry) = self.installed(id) else {
            return Ok(()); // it was known already
        };
        let (key, source) = (
            (entry.address, entry.incarnation),
            source(entry.handle.as_ref(), entry.address),
        );
        if let Some(&before) = self.sources.get(&source) {
            return Err(self.entries[before as usize].name);
        }
        let entry = &mut self.entries[id.index() as usize];
        entry.set_life(Life::Connected);
        self.installing.remove(&key);
        self.sources.insert(source, id.index());
        self.connected += 1;
        Ok(())
    }

    /// One of the handshakes that installed this peer has failed.
    pub(crate) fn uninstall(&mut self, id: PeerId) {
        let Some(entry) = self.installed(id) else {
            return; // it is active, or gone
        };
        if let Life::Installing(handshakes) = &mut entry.life {
            *handshakes -= 1;
            if *handshakes == 0 {
                self.remove(id, Gone::Disconnected);
            }
        }
    }

    fn installed(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        self.entry_of(id)
            .filter(|entry| matches!(entry.life, Life::Installing(_)))
    }

    fn entry_of(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        self.entries
            .get_mut(id.index() as usize)
            .filter(|entry| entry.name == id)
    }

    // ---- being there ----------------------------------------------------------------

    /// The entry of a connected peer that requests reach, and its handle.
    #[inline]
    pub(crate) fn reach(&mut self, id: PeerId) -> Option<(&mut PeerCounts, EndpointAddress, &A)> {
        let entry = self.entries.get_mut(id.index() as usize)?;
        if entry.reachable != id {
            return None;
        }
        Some((&mut entry.counts, entry.address, entry.handle.as_ref()?))
    }

    /// The entry of a connected peer.
    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer<A>> {
        let entry = self.entries.get(id.index() as usize)?;
        (entry.name == id && entry.life == Life::Connected).then_some(entry)
    }

    /// The same, to change.
    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        let entry = self.entries.get_mut(id.index() as usize)?;
        (entry.name == id && entry.life == Life::Connected).then_some(entry)
    }

    /// The entry of an operation's peer, which stays in its place for as long as the operation lives,
    /// whatever becomes of the peer.
    #[inline]
    pub(crate) fn entry(&self, id: PeerId) -> Option<&Peer<A>> {
        self.entries.get(id.index() as usize)
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn entry_mut(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        self.entries.get_mut(id.index() as usize)
    }

    /// Why `id` names no connected peer.
    #[cold]
    pub(crate) fn gone(&self, id: PeerId) -> Gone {
        match self.entries.get(id.index() as usize) {
            Some(entry) if entry.name == id => match entry.life {
                Life::Gone(why) => why,
                _ => Gone::NotReady,
            },
            _ => Gone::Unknown,
        }
    }

    /// Who has sent something from this queue pair behind this handle. `None` also where it may be one
    /// of two lives of the same endpoint.
    pub(crate) fn sender(&self, handle: u16, queue_pair: u32) -> Option<PeerId> {
        let from = Source::new(Some(handle), queue_pair);
        let connected = self.sources.get(&from).copied();
        // Those whose handshake may have ended on their side already.
        let installing = self.installing.values().copied().filter(|&index| {
            let entry = &self.entries[index as usize];
            entry.handle.is_some() && source(entry.handle.as_ref(), entry.address) == from
        });
        let mut senders = connected.into_iter().chain(installing);
        let sender = senders.next()?;
        if senders.next().is_some() {
            return None;
        }
        Some(self.entries[sender as usize].name)
    }

    /// Operations and bytes of all peers, past ones too.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.entries.iter().fold(self.past, |sum, entry| {
            let good = entry.counts.good();
            (sum.0 + good.0, sum.1 + good.1)
        })
    }

    /// Connected peers and their entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer<A>)> {
        self.entries
            .iter()
            .filter(|entry| entry.life == Life::Connected)
            .map(|entry| (entry.name, entry))
    }

    /// Operations in flight with all peers.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> u64 {
        let counts = self.entries.iter().map(|entry| entry.counts.in_flight());
        counts.sum()
    }

    /// Connected peers.
    #[cfg(test)]
    pub(crate) fn connected(&self) -> u32 {
        self.connected
    }

    // ---- going ----------------------------------------------------------------------

    /// Ends a peer, connected or installing. False where there is no such peer.
    pub(crate) fn remove(&mut self, id: PeerId, why: Gone) -> bool {
        let Some(entry) = self.entry_of(id) else {
            return false;
        };
        let key = (entry.address, entry.incarnation);
        let source = source(entry.handle.as_ref(), entry.address);
        let (life, idle) = (entry.life, entry.counts.in_flight() == 0);
        if matches!(life, Life::Gone(_)) {
            return false;
        }
        entry.set_life(Life::Gone(why));
        if life == Life::Connected {
            self.sources.remove(&source);
            self.connected -= 1;
        } else {
            self.installing.remove(&key);
        }
        if idle {
            self.retire(id.index());
        } else {
            self.leaving.push(id.index());
        }
        true
    }

    /// All peers, connected and installing.
    pub(crate) fn names(&self) -> Vec<PeerId> {
        self.entries
            .iter()
            .filter(|entry| !matches!(entry.life, Life::Gone(_)))
            .map(|entry| entry.name)
            .collect()
    }

    /// An operation with this peer has nothing with the device any more.
    #[inline]
    pub(crate) fn ended(&mut self, id: PeerId) {
        if let Some(entry) = self.entries.get_mut(id.index() as usize) {
            debug_assert!(entry.counts.in_flight() > 0, "an operation ended twice");
            entry.counts.ended += 1;
        }
    }

    /// Lets go of the handles of peers that are gone and have no operations any more. To be called when
    /// operations have [`ended`](Self::ended).
    #[inline]
    pub(crate) fn sweep(&mut self) {
        if !self.leaving.is_empty() {
            self.sweep_leaving();
        }
    }

    #[cold]
    fn sweep_leaving(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.leaving.get(at) {
            if self.entries[index as usize].counts.in_flight() == 0 {
                self.leaving.swap_remove(at);
                self.retire(index);
            } else {
                at += 1;
            }
        }
    }

    fn retire(&mut self, index: u32) {
        self.entries[index as usize].handle = None;
        self.free.push(index);
    }

    /// Checks what must always be true.
    #[cfg(test)]
    pub(crate) fn audit(&self) {
        let connected = self.iter().count() as u32;
        assert_eq!(
            (connected, self.sources.len() as u32),
            (self.connected, self.connected)
        );
        let in_flight = |&index: &u32| self.entries[index as usize].counts.in_flight();
        assert!(self.leaving.iter().all(|index| in_flight(index) > 0));
        let mut idle: Vec<u32> = self.free.iter().chain(&self.leaving).copied().collect();
        idle.sort_unstable();
        let gone = |(_, entry): &(u32, &Peer<A>)| matches!(entry.life, Life::Gone(_));
        let all = (0..).zip(&self.entries).filter(gone);
        assert_eq!(idle, all.map(|(index, _)| index).collect::<Vec<_>>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use efa_verbs::Gid;
    use std::rc::Rc;

    impl Reach for Rc<u32> {
        fn number(&self) -> u16 {
            **self as u16
        }
    }

    fn address(n: u32) -> EndpointAddress {
        EndpointAddress::new(Gid::from_bytes([1; 16]), n, 0x4242).unwrap()
    }

    fn peer(n: u32) -> NewPeer<Rc<u32>> {
        NewPeer {
            address: address(n),
            handle: Some(Rc::new(n)),
            incarnation: u64::from(n),
            takes_messages: true,
        }
    }

    #[test]
    fn an_installed_peer_can_be_used_only_once_it_is_active() {
        let mut peers = Peers::new();
        let id = peers.install(peer(1));
        assert!(peers.get(id).is_none());
        assert_eq!(peers.gone(id), Gone::NotReady);
        assert_eq!(peers.activate(id), Ok(()));
        assert!(peers.get(id).is_some());
        let other = peers.install(peer(2));
        assert_eq!(peers.install(peer(2)), other);
        peers.uninstall(other);
        assert_eq!(peers.gone(other), Gone::NotReady);
        peers.uninstall(other);
        assert_eq!(peers.gone(other), Gone::Disconnected);
        assert_eq!(peers.activate(other), Ok(()));
        assert!(peers.get(other).is_none());
        let third = peers.add(peer(3));
        assert_eq!(third.index(), other.index());
        assert!(peers.get(other).is_none());
        assert_eq!(peers.connected(), 2);
        peers.audit();
    }

    #[test]
    fn a_new_life_at_the_same_address_ends_the_old_one_first() {
        let mut peers = Peers::new();
        let old = peers.add(peer(1));
        let new = peers.install(NewPeer {
            incarnation: 9,
            ..peer(1)
        });
        assert_eq!(peers.sender(1, 1), None, "it may be either");
        assert_eq!(peers.activate(new), Err(old));
        assert!(peers.remove(old, Gone::Restarted));
        assert_eq!(peers.activate(new), Ok(()));
        assert_eq!(
            (peers.sender(1, 1), peers.gone(old)),
            (Some(new), Gone::Restarted)
        );
        peers.audit();
    }

    #[test]
    fn the_handle_outlives_the_peer_until_its_last_operation_ended() {
        let mut peers = Peers::new();
        let handle = Rc::new(1);
        let id = peers.add(NewPeer {
            handle: Some(handle.clone()),
            ..peer(1)
        });
        peers.get_mut(id).unwrap().counts.begin(10);
        peers.get_mut(id).unwrap().counts.begin(10);
        assert!(peers.remove(id, Gone::Disconnected));
        assert!(!peers.remove(id, Gone::Rebuilt));
        assert_eq!(peers.gone(id), Gone::Disconnected);
        peers.ended(id);
        peers.sweep();
        assert_eq!(Rc::strong_count(&handle), 2);
        peers.ended(id);
        peers.sweep();
        assert_eq!(Rc::strong_count(&handle), 1);
        assert_eq!(peers.totals(), (2, 20));
        peers.audit();
    }

    #[test]
    fn a_name_reaches_neither_the_next_peer_nor_one_of_another_endpoint() {
        let (mut peers, mut others) = (Peers::new(), Peers::new());
        let old = peers.add(peer(1));
        let foreign = others.add(peer(1));
        assert_eq!(
            (old.index(), peers.gone(foreign)),
            (foreign.index(), Gone::Unknown)
        );
        assert!(peers.get(foreign).is_none());
        peers.remove(old, Gone::Restarted);
        assert_eq!(peers.gone(old), Gone::Restarted);
        let new = peers.add(peer(2));
        assert_eq!(new.index(), old.index());
        assert!(peers.get(old).is_none());
        assert_eq!(peers.get(new).unwrap().address, address(2));
        assert!(!peers.remove(old, Gone::Disconnected));
    }

    #[test]
    fn a_peer_costs_no_more_than_its_budget() {
        // The map from senders to peers has 9 bytes for each, twice that right after it grew.
        assert!(size_of::<Peer<Rc<u32>>>() + 2 * 9 <= 128);
    }
}
