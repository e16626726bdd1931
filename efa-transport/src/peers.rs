//! The peers of an endpoint: an address, a handle, and a few counters each.

use std::fmt;
use std::num::NonZeroU64;

use crate::address::EndpointAddress;
use crate::ops::NONE;

/// Names a peer of one endpoint.
///
/// It is a plain number: it keeps nothing alive, and using it after the peer has gone is
/// an error, never a mix-up with whoever took its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(NonZeroU64);

impl PeerId {
    /// Nobody's name: there are not that many entries.
    pub(crate) const NOBODY: Self = Self(NonZeroU64::MAX);

    /// One word, so that it is passed, stored and compared as one. A generation is never 0.
    #[inline]
    pub(crate) const fn new(index: u32, generation: u32) -> Self {
        match NonZeroU64::new((generation as u64) << 32 | index as u64) {
            Some(word) => Self(word),
            None => Self::NOBODY,
        }
    }

    #[inline]
    pub(crate) const fn index(self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    const fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }

    /// The next name of the same entry.
    fn after(self) -> Self {
        Self::new(self.index(), self.generation().wrapping_add(1).max(1))
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerId({self})")
    }
}

/// `index.generation`
impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// Why a peer can't be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Gone {
    /// No such peer, or so long ago that its place has been taken.
    #[error("it was never connected, or was disconnected long ago")]
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

/// One peer. `A` is the address handle.
///
/// The two counters are not side by side, or the compiler adds to both at once, by six instructions
/// instead of two.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Peer<A> {
    pub(crate) handle: Option<A>,
    pub(crate) address: EndpointAddress,
    /// Operations and bytes: those that have succeeded, and those under way that say so
    /// ([`Head::counted`](crate::ops::Head)).
    pub(crate) operations: u64,
    /// Which life of the peer this is; 0 where it did not say.
    pub(crate) incarnation: u64,
    pub(crate) bytes: u64,
    /// Of the name by which it can be used: nobody has that before the peer can be, or after it is
    /// gone.
    generation: u32,
    pub(crate) failures: u32,
    /// The lane that was last made for it, which may be somebody else's by now. Once it is gone: operations under way, whose requests may
    /// name the handle. In a free entry: the next one.
    lane_or_count: u32,
    /// Index of what it has granted us.
    pub(crate) grant: u32,
    /// The slot of our table that says what we have taken of it.
    pub(crate) slot: u32,
    gone: Option<Gone>,
    /// Transfers to it are copied by this process.
    pub(crate) local: bool,
    /// Handshakes that have installed it and not ended.
    pub(crate) installs: u8,
    /// What its endpoint can do, if it said so: see [`Peer::KNOWN`].
    pub(crate) capabilities: u8,
}

/// What a new peer is.
#[derive(Debug)]
pub(crate) struct NewPeer<A> {
    pub(crate) address: EndpointAddress,
    pub(crate) handle: Option<A>,
    pub(crate) incarnation: u64,
    pub(crate) local: bool,
    pub(crate) capabilities: u8,
}

impl<A> Peer<A> {
    /// The lane that was last made for a connected peer, and its handle.
    #[inline(always)]
    pub(crate) fn lane_and_handle(&mut self) -> (&mut u32, Option<&A>) {
        (&mut self.lane_or_count, self.handle.as_ref())
    }

    /// The peer said what it can do.
    pub(crate) const KNOWN: u8 = 1 << 7;
    /// It receives writes with immediate data without a posted receive.
    pub(crate) const UNSOLICITED: u8 = 1 << 0;

    fn vacant() -> Self {
        Self {
            handle: None,
            address: EndpointAddress::NOBODY,
            generation: 1,
            operations: 0,
            bytes: 0,
            failures: 0,
            lane_or_count: NONE,
            grant: NONE,
            slot: NONE,
            gone: Some(Gone::Unknown),
            local: false,
            installs: 0,
            capabilities: 0,
            incarnation: 0,
        }
    }

    /// Whether this is the name by which it can be used.
    #[inline(always)]
    fn has(&self, id: PeerId) -> bool {
        self.generation == id.generation()
    }

    /// Whether this will be its name, once it can be used.
    fn is_before(&self, id: PeerId) -> bool {
        PeerId::new(id.index(), self.generation).after() == id
    }

    /// Whether the peer of this name is, or was, the last one here.
    fn is_of(&self, id: PeerId) -> bool {
        self.has(id) || self.was().is_some() && self.has(id.after())
    }

    /// Why the entry's last peer is gone, if it is and no other is on its way.
    fn was(&self) -> Option<Gone> {
        self.gone.filter(|&why| why != Gone::NotReady)
    }

    fn new(new: NewPeer<A>, generation: u32, gone: Option<Gone>) -> Self {
        Self {
            handle: new.handle,
            address: new.address,
            generation,
            operations: 0,
            bytes: 0,
            failures: 0,
            lane_or_count: NONE,
            grant: NONE,
            slot: NONE,
            gone,
            local: new.local,
            installs: 0,
            capabilities: new.capabilities,
            incarnation: new.incarnation,
        }
    }
}

/// All peers of an endpoint.
#[derive(Debug)]
pub(crate) struct Peers<A> {
    entries: Vec<Peer<A>>,
    free: u32,
    connected: u32,
    /// Operations and bytes of peers whose entries were used again.
    past: (u64, u64),
}

impl<A> Peers<A> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            connected: 0,
            past: (0, 0),
        }
    }

    /// Adds a peer that can be used at once.
    pub(crate) fn add(&mut self, new: NewPeer<A>) -> PeerId {
        self.connected += 1;
        let index = self.place();
        let generation = self.entries[index as usize].generation;
        self.entries[index as usize] = Peer::new(new, generation, None);
        PeerId::new(index, generation)
    }

    /// Adds a peer that can be used only once it is [`activate`](Self::activate)d: until
    /// then its name finds nothing.
    pub(crate) fn install(&mut self, new: NewPeer<A>) -> PeerId {
        let index = self.place();
        let generation = self.entries[index as usize].generation;
        let mut entry = Peer::new(new, generation, Some(Gone::NotReady));
        entry.installs = 1;
        self.entries[index as usize] = entry;
        PeerId::new(index, generation).after()
    }

    /// A free entry; its generation counts on.
    fn place(&mut self) -> u32 {
        if let Some(entry) = self.entries.get(self.free as usize) {
            self.past.0 += entry.operations;
            self.past.1 += entry.bytes;
            return std::mem::replace(&mut self.free, entry.lane_or_count);
        }
        let index = self.entries.len() as u32;
        if self.entries.len() == self.entries.capacity() {
            // By an eighth: doubling would leave half of the memory of many peers unused.
            self.entries.reserve_exact(self.entries.len() / 8 + 4);
        }
        self.entries.push(Peer::vacant());
        index
    }

    /// The entry of a peer that is installed and not active yet.
    pub(crate) fn installed(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        self.entries
            .get_mut(id.index() as usize)
            .filter(|entry| entry.gone == Some(Gone::NotReady) && entry.is_before(id))
    }

    /// Makes an installed peer usable.
    pub(crate) fn activate(&mut self, id: PeerId) -> bool {
        let Some(entry) = self.installed(id) else {
            return false;
        };
        entry.generation = id.generation();
        entry.gone = None;
        self.connected += 1;
        true
    }

    /// Takes an installed peer out again that was never active.
    pub(crate) fn forget(&mut self, id: PeerId) -> bool {
        let Some(entry) = self.installed(id) else {
            return false;
        };
        entry.generation = id.after().generation();
        entry.gone = Some(Gone::Disconnected);
        // Nothing could be begun with it.
        self.retire(id.index());
        true
    }

    /// The entry of a connected peer.
    #[inline]
    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer<A>> {
        let entry = self.entries.get(id.index() as usize)?;
        entry.has(id).then_some(entry)
    }

    /// Operations and bytes of all peers, past ones too.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.entries.iter().fold(self.past, |sum, entry| {
            (sum.0 + entry.operations, sum.1 + entry.bytes)
        })
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer<A>> {
        let entry = self.entries.get_mut(id.index() as usize)?;
        entry.has(id).then_some(entry)
    }

    /// The name by which the peer of an entry can be used.
    pub(crate) fn name(&self, index: u32) -> Option<PeerId> {
        let entry = self.entries.get(index as usize)?;
        Some(PeerId::new(index, entry.generation))
    }

    /// Whether `id` names a connected peer.
    #[inline]
    pub(crate) fn is_usable(&self, id: PeerId) -> bool {
        self.get(id).is_some_and(|entry| entry.gone.is_none())
    }

    /// Why `id` names no connected peer.
    #[cold]
    pub(crate) fn gone(&self, id: PeerId) -> Gone {
        let Some(entry) = self.entries.get(id.index() as usize) else {
            return Gone::Unknown;
        };
        match entry.gone {
            Some(Gone::NotReady) if entry.is_before(id) => Gone::NotReady,
            Some(why) if entry.has(id.after()) => why,
            _ => Gone::Unknown,
        }
    }

    /// The entry whatever became of the peer; for operations, which keep it in place.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> Option<&Peer<A>> {
        self.entries.get(index as usize)
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<&mut Peer<A>> {
        self.entries.get_mut(index as usize)
    }

    /// Counts an operation of a peer, which may be gone.
    pub(crate) fn count(&mut self, id: PeerId, bytes: u64) {
        let (operations, total) = self.counts(id);
        *operations += 1;
        *total += bytes;
    }

    /// Takes that back.
    pub(crate) fn uncount(&mut self, id: PeerId, bytes: u64) {
        let (operations, total) = self.counts(id);
        *operations -= 1;
        *total -= bytes;
    }

    /// An entry counts for its last peer until it is used again.
    fn counts(&mut self, id: PeerId) -> (&mut u64, &mut u64) {
        match self.entries.get_mut(id.index() as usize) {
            Some(entry) if entry.is_of(id) => (&mut entry.operations, &mut entry.bytes),
            _ => (&mut self.past.0, &mut self.past.1),
        }
    }

    /// Ends a connection. The handle stays until so many operations have
    /// [`ended`](Self::operation_ended).
    pub(crate) fn remove(&mut self, id: PeerId, why: Gone, under_way: u32) -> bool {
        let Some(entry) = self.get_mut(id) else {
            return false;
        };
        entry.generation = id.after().generation();
        entry.gone = Some(why);
        entry.lane_or_count = under_way;
        self.connected -= 1;
        if under_way == 0 {
            self.retire(id.index());
        }
        true
    }

    /// An operation to this peer has nothing with the device any more.
    #[inline]
    pub(crate) fn operation_ended(&mut self, id: PeerId) {
        if let Some(entry) = self.entries.get_mut(id.index() as usize)
            && !entry.has(id)
        {
            // It is gone, and its entry waits for this one among others.
            entry.lane_or_count -= 1;
            if entry.lane_or_count == 0 {
                self.retire(id.index());
            }
        }
    }

    #[cold]
    fn retire(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.handle = None;
        entry.lane_or_count = self.free;
        self.free = index;
    }

    /// Connected peers.
    pub(crate) fn connected(&self) -> u32 {
        self.connected
    }

    /// Connected peers and their entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer<A>)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.gone.is_none())
            .map(|(index, entry)| (PeerId::new(index as u32, entry.generation), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Gid;
    use std::rc::Rc;

    fn address(n: u32) -> EndpointAddress {
        EndpointAddress::new(Gid::from_bytes([1; 16]), n, 0x4242).unwrap()
    }

    fn peer<A>(n: u32, handle: Option<A>) -> NewPeer<A> {
        NewPeer {
            address: address(n),
            handle,
            incarnation: 0,
            local: false,
            capabilities: 0,
        }
    }

    #[test]
    fn an_installed_peer_can_be_used_only_once_it_is_active() {
        let mut peers: Peers<()> = Peers::new();
        let id = peers.install(peer(1, None));
        assert!(peers.get(id).is_none());
        assert_eq!(peers.gone(id), Gone::NotReady);
        assert!(peers.activate(id));
        assert!(!peers.activate(id));
        assert!(peers.get(id).is_some());
        let other = peers.install(peer(2, None));
        assert!(peers.forget(other));
        assert!(!peers.forget(other));
        assert!(!peers.activate(other));
        let third = peers.add(peer(3, None));
        assert_eq!(third.index(), other.index());
        assert!(peers.get(other).is_none());
        assert_eq!(peers.connected(), 2);
    }

    #[test]
    fn the_handle_outlives_a_disconnect_until_the_last_operation_ended() {
        let mut peers = Peers::new();
        let handle = Rc::new(());
        let id = peers.add(peer(1, Some(handle.clone())));
        assert!(peers.remove(id, Gone::Disconnected, 2));
        assert!(peers.get(id).is_none());
        assert_eq!(peers.gone(id), Gone::Disconnected);
        peers.operation_ended(id);
        assert_eq!(Rc::strong_count(&handle), 2);
        peers.operation_ended(id);
        assert_eq!(Rc::strong_count(&handle), 1);
    }

    #[test]
    fn what_is_counted_for_a_peer_that_is_gone_is_not_the_next_ones() {
        let mut peers: Peers<()> = Peers::new();
        let old = peers.add(peer(1, None));
        peers.count(old, 10);
        peers.count(old, 5);
        assert!(peers.remove(old, Gone::Disconnected, 0));
        peers.uncount(old, 5);
        let new = peers.add(peer(2, None));
        assert_eq!(new.index(), old.index());
        peers.count(old, 7);
        peers.count(new, 1);
        assert_eq!(peers.get(new).unwrap().operations, 1);
        assert_eq!(peers.totals(), (3, 18));
    }

    #[test]
    fn a_stale_name_never_reaches_the_next_peer() {
        let mut peers: Peers<()> = Peers::new();
        let old = peers.add(peer(1, None));
        peers.remove(old, Gone::Restarted, 0);
        assert_eq!(peers.gone(old), Gone::Restarted);
        let new = peers.add(peer(2, None));
        assert_eq!(new.index(), old.index());
        assert!(peers.get(old).is_none());
        assert_eq!(peers.get(new).unwrap().address, address(2));
        assert!(!peers.remove(old, Gone::Disconnected, 0));
        assert_eq!(peers.connected(), 1);
    }

    #[test]
    fn a_peer_costs_no_more_than_its_budget() {
        // Two lanes of the scheduler are 12 bytes each, and the map from senders to peers
        // has 9 bytes for each, twice that right after it grew.
        assert!(size_of::<Peer<std::sync::Arc<()>>>() + 2 * 12 + 2 * 9 <= 128);
    }
}
