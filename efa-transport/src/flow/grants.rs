//! What peers have granted, and asking them for more.

use std::collections::VecDeque;

use super::{Flow, GRANT_SERIAL, GrantId};
use crate::failure::FailureKind;
use crate::grant::{Found, Grant};
use crate::lanes::Memory;
use crate::ops::{NONE, Status};
use crate::peers::PeerId;
use crate::remote::RemoteRegion;
use crate::turn::Class;

impl<M: Memory, A> Flow<M, A> {
    /// Notes what a peer has granted.
    pub(crate) fn set_grant(&mut self, entry: u32, limit: u32, table: RemoteRegion) {
        self.clear_grant(entry);
        self.grant_serial = self.grant_serial.wrapping_add(1) & GRANT_SERIAL;
        let grant = Some(Grant::new(entry, self.grant_serial, limit, table));
        let at = match self.free_grants.pop() {
            Some(at) => {
                self.grants[at as usize] = grant;
                at
            }
            None => {
                self.grants.push(grant);
                self.grants.len() as u32 - 1
            }
        };
        if let Some(entry) = self.peers.entry_mut(entry) {
            entry.grant = at;
        }
    }

    /// Forgets what a peer has granted.
    pub(crate) fn clear_grant(&mut self, entry: u32) {
        let Some(entry) = self.peers.entry_mut(entry) else {
            return;
        };
        let at = std::mem::replace(&mut entry.grant, NONE);
        if let Some(grant) = self.grants.get_mut(at as usize)
            && grant.take().is_some()
        {
            self.free_grants.push(at);
        }
    }

    /// Takes one of the immediates that the peer has granted. True also where it grants
    /// nothing and limits nothing.
    pub(crate) fn take_grant(&mut self, entry: u32) -> bool {
        let at = self.peers.entry(entry).map_or(NONE, |entry| entry.grant);
        take_grant_of(&mut self.grants, &mut self.hungry, at)
    }

    /// Gives one back that never arrived.
    pub(crate) fn return_grant(&mut self, entry: u32) {
        if let Some(grant) = self.grant_mut(entry) {
            grant.give_back();
        }
    }

    /// What a peer has granted.
    pub(crate) fn grant_mut(&mut self, entry: u32) -> Option<&mut Grant> {
        let at = self.peers.entry(entry)?.grant;
        self.grants.get_mut(at as usize)?.as_mut()
    }

    /// Puts a grant on the list of those to ask about.
    fn list_grant(&mut self, at: u32) {
        if let Some(Some(grant)) = self.grants.get_mut(at as usize)
            && grant.wants_inquiry()
            && !grant.listed
        {
            grant.listed = true;
            self.hungry.push_back(at);
        }
    }

    /// Whether any peer should be asked, or has answered.
    #[inline]
    pub(crate) fn has_inquiries(&self) -> bool {
        !self.hungry.is_empty() || !self.inquired.is_empty()
    }

    /// The next grant to ask about: its name, the peer, and what to read.
    pub(crate) fn next_inquiry(&mut self) -> Option<(GrantId, PeerId, RemoteRegion)> {
        while let Some(at) = self.hungry.pop_front() {
            let Some(Some(grant)) = self.grants.get_mut(at as usize) else {
                continue;
            };
            grant.listed = false;
            if !grant.wants_inquiry() {
                continue;
            }
            let Some(peer) = self.peers.name(grant.peer) else {
                continue;
            };
            if !self.peers.is_usable(peer) {
                continue; // not yet, or not any more
            }
            let id = GrantId {
                at,
                serial: grant.serial,
            };
            return Some((id, peer, grant.begin_inquiry()));
        }
        None
    }

    /// An inquiry was posted.
    pub(crate) fn inquiring(&mut self) {
        self.inquiries += 1;
    }

    /// An inquiry that has ended: its tag, and why the read failed, if it did.
    pub(crate) fn take_inquired(&mut self) -> Option<(u64, Option<FailureKind>)> {
        self.inquired.pop()
    }

    /// What a grant's inquiry has read: the first slot, and the bytes.
    pub(crate) fn inquiry(&self, id: GrantId) -> Option<(u32, u64)> {
        let grant = self.grants.get(id.at as usize)?.as_ref()?;
        (grant.serial == id.serial).then(|| grant.inquiry())
    }

    /// What an inquiry has found.
    pub(crate) fn answered(&mut self, id: GrantId, found: Found) {
        let at = id.at;
        let Some(Some(grant)) = self.grants.get_mut(at as usize) else {
            return;
        };
        if grant.serial != id.serial {
            return; // the peer has gone, and another has its index
        }
        let more = grant.end_inquiry(found);
        let hopeless = match found {
            Found::Failed(kind) => Some(kind),
            _ => grant.is_denied().then_some(FailureKind::NotGranted),
        };
        let entry = grant.peer;
        self.list_grant(at);
        if more || hopeless.is_some() {
            // Those that wait for this peer: on with them, or off.
            for _ in 0..self.starved.len() {
                let Some(id) = self.starved.pop_front() else {
                    break;
                };
                let Some(slot) = self.table.find(id) else {
                    continue;
                };
                if self.table.op(slot).entry() != entry {
                    self.starved.push_back(id);
                } else if let Some(kind) = hopeless {
                    self.interrupt(id, kind);
                } else if self.table.op(slot).status() == Status::Open {
                    self.turns.push(Class::Fresh, entry, slot);
                }
            }
        }
    }

    /// Operations of the program's: all but inquiries.
    pub(crate) fn operations(&self) -> u32 {
        self.table.live() - self.inquiries
    }

    pub(super) fn end_inquiry(&mut self, slot: u32) {
        let op = self.table.op_mut(slot);
        let failure = op.failure.take().map(|cause| cause.kind);
        self.inquired.push((op.tag, failure));
        self.inquiries -= 1;
        self.uncount(slot);
        self.device_done(slot);
        self.table.release(slot);
    }
}

/// Takes one of a grant, and lists it where its peer should be asked.
pub(super) fn take_grant_of(
    grants: &mut [Option<Grant>],
    hungry: &mut VecDeque<u32>,
    at: u32,
) -> bool {
    let Some(Some(grant)) = grants.get_mut(at as usize) else {
        return true;
    };
    let taken = grant.take();
    if !taken {
        grant.ask_anew();
    }
    if grant.wants_inquiry() && !grant.listed {
        grant.listed = true;
        hungry.push_back(at);
    }
    taken
}
