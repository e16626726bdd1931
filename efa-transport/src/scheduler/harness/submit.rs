//! What a program asks for.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::model::{Operation, key};
use super::parts::{DOMAIN, FOREIGN, Posted, Token};
use super::world::{LOCAL_STEP, VALUES, World};
use crate::operation::{Kind, OperationId};
use crate::peers::PeerId;
use crate::scheduler::plan::Plannable;
use crate::scheduler::{Begin, Chunk, ChunkError, List, Memory, Piece, Refusal, Unknown};

impl World {
    /// Memory that the program has already, or new memory, which it may or may not keep.
    fn any_memory(&mut self) -> (u64, Token) {
        if !self.kept.is_empty() && self.chance(60) {
            return self.kept[self.random.usize(..self.kept.len())].clone();
        }
        let token = self.registry.register(DOMAIN);
        self.serials += 1;
        self.memory.push((self.serials, token.downgrade()));
        if self.chance(40) {
            self.kept.push((self.serials, token.clone()));
        }
        (self.serials, token)
    }

    pub(super) fn forget_memory(&mut self) {
        if !self.kept.is_empty() {
            let at = self.random.usize(..self.kept.len());
            self.kept.swap_remove(at);
        }
    }

    fn any_kind(&mut self) -> Kind {
        let kinds = [
            Kind::Put,
            Kind::Get,
            Kind::PutImmediate,
            Kind::Send,
            Kind::SendImmediate,
        ];
        kinds[self.random.usize(..kinds.len())]
    }

    pub(super) fn is_full(&self) -> bool {
        self.operations.len() as u32 == self.capacity
    }

    pub(super) fn begun(&mut self, operation: Operation) {
        assert!(
            !self.finished.contains(&operation.id),
            "an id was used twice"
        );
        let before = self.operations.insert(key(operation.id.word), operation);
        assert!(before.is_none());
    }

    pub(super) fn maybe_deadline(&mut self, id: OperationId) {
        if self.chance(self.deadlines) {
            let longest = if self.chance(20) { 50 } else { 5000 };
            let at = self.now + Duration::from_millis(self.random.u64(..longest));
            self.scheduler.set_deadline(id, at);
            self.operations.get_mut(&key(id.word)).unwrap().deadline = Some(at);
        }
    }

    /// An operation of any size.
    pub(super) fn submit(&mut self) {
        let Some(peer) = self.any_peer() else { return };
        self.submit_to(peer);
    }

    fn submit_to(&mut self, peer: PeerId) -> Option<OperationId> {
        let gone = self.gone(peer);
        let local = self.is_local(peer);
        let kind = self.any_kind();
        self.tags += 1;
        let message = matches!(kind, Kind::Send | Kind::SendImmediate);
        let max = match (local, message) {
            (true, _) => Some(LOCAL_STEP),
            (_, true) => Some(u32::MAX),
            _ => None,
        };
        let step = max.unwrap_or(self.max_request);
        let pieces = match message {
            true => 1,
            false => self.random.u64(..4),
        };
        let mut expected = match pieces {
            0 => Err(Refusal::Empty),
            _ => Ok(()),
        };
        let (mut chunks, mut memory, mut held) = (vec![], vec![], Vec::<Piece>::new());
        let listed = pieces > 0 && !message && self.chance(40);
        for at in 0..pieces {
            let length = self.any_length();
            let (serial, token) = self.any_memory();
            memory.push(serial);
            // A list holds each memory once.
            let known = listed && held.iter().any(|it| it.hold == token.number());
            let mut piece = Piece {
                hold: match known {
                    true => token.number(),
                    false => self.scheduler.hold(&token),
                },
                local: at << 40,
                lkey: serial as u32,
                rkey: 2,
                remote: at << 41,
                length,
            };
            if length > 0 && !listed && self.chance(1) {
                piece.remote = u64::MAX;
                expected = expected.and(Err(Refusal::Chunk(ChunkError::Remote)));
            } else {
                cut(&piece, step, &mut chunks);
            }
            held.push(piece);
        }
        if self.is_full() {
            expected = Err(Refusal::TableFull);
        }
        if let Some(gone) = gone {
            expected = Err(Refusal::Peer(gone));
        }
        let immediate = self.random.u32(..VALUES as u32);
        let tag = self.tags;
        let what = Plannable {
            kind,
            peer,
            tag,
            immediate,
            max,
        };
        let list = listed.then(|| Arc::new(List::new(held.clone()).unwrap()));
        let submitted = match (local, list) {
            (true, Some(list)) => self.scheduler.submit_local_list(what, &list),
            (false, Some(list)) => self.scheduler.submit_list(what, &list),
            (true, None) => self.scheduler.submit_local(what, held),
            (false, None) => self.scheduler.submit(what, held),
        };
        assert_eq!(submitted.map(|_| ()), expected);
        let id = submitted.ok()?;
        let mut operation = Operation::new(id, kind, Some(peer), tag);
        (operation.immediate, operation.local) = (immediate, local);
        (operation.chunks, operation.memory) = (chunks, memory);
        self.begun(operation);
        if local {
            self.local.push_back(id);
        }
        self.maybe_deadline(id);
        Some(id)
    }

    fn any_length(&mut self) -> u64 {
        let max = u64::from(self.max_request);
        match self.random.u32(..4) {
            0 => 0,
            1 => self.random.u64(..10),
            2 => max * self.random.u64(..20),
            _ => self.random.u64(..max * 30),
        }
    }

    /// A batch, posted or given up, with operations for the device and for this process.
    pub(super) fn batch(&mut self) {
        let local_before = self.local.len();
        let mut ids: Vec<OperationId> = vec![];
        let mut posted: Vec<Posted> = vec![];
        let mut places = 0;
        self.scheduler.open();
        for _ in 0..self.random.u32(..12) {
            let Some(peer) = self.any_peer() else { break };
            if self.gone(peer).is_none() && self.is_local(peer) {
                // It has no request, and keeps a credit until the batch ends.
                if self.scheduler.credits.take() {
                    let id = self.submit_to(peer);
                    places += u32::from(id.is_some());
                    self.scheduler.credits.give(id.is_none().into());
                    ids.extend(id);
                }
            } else if let Some(request) = self.begin(peer) {
                ids.push(self.operations[&key(request.wr_id)].id);
                posted.push(request);
            }
        }
        self.scheduler.credits.give(places);
        if self.chance(25) {
            self.scheduler.undo();
            self.local.truncate(local_before);
            for id in ids {
                self.operations.remove(&key(id.word));
                self.finished.insert(id);
                assert_eq!(self.scheduler.take(id).map(|_| ()), Err(Unknown));
            }
        } else if !posted.is_empty() {
            self.scheduler.batch_posted(posted.len() as u32);
            self.posted(posted);
        }
    }

    /// An operation of one request for the open batch.
    fn begin(&mut self, peer: PeerId) -> Option<Posted> {
        let kind = self.any_kind();
        let memory = self.chance(85).then(|| self.any_memory());
        let length = self.random.u32(..1000);
        self.tags += 1;
        let refusal = match self.gone(peer) {
            Some(gone) => Some(Refusal::Peer(gone)),
            None if self.scheduler.credits.free() == 0 => Some(Refusal::QueueFull),
            None if self.is_full() => Some(Refusal::TableFull),
            None => None,
        };
        let handle = self.handle(peer);
        if self.chance(2) {
            let foreign = self.registry.register(FOREIGN);
            let begun = self.scheduler.begin(Begin {
                kind,
                peer,
                memory: Some(&foreign),
                length: 0,
                tag: 0,
            });
            assert!(begun.is_none(), "memory of another domain");
        }
        let begun = self.scheduler.begin(Begin {
            kind,
            peer,
            memory: memory.as_ref().map(|(_, token)| token),
            length: length.into(),
            tag: self.tags,
        });
        let Some(begun) = begun else {
            assert_eq!(Some(self.scheduler.refusal(peer)), refusal);
            return None;
        };
        assert_eq!(refusal, None);
        assert!(std::ptr::eq(Rc::as_ptr(&begun.handle.0), handle.as_ptr()));
        let id = begun.operation;
        let chunk = Chunk {
            local: 0,
            lkey: 0,
            rkey: 0,
            remote: 0,
            length,
        };
        let mut operation = Operation::new(id, kind, Some(peer), self.tags);
        operation.plain = true;
        operation.immediate = 9;
        operation.chunks.push(chunk);
        operation.memory.extend(memory.map(|(serial, _)| serial));
        self.begun(operation);
        self.maybe_deadline(id);
        let immediate = matches!(kind, Kind::PutImmediate | Kind::SendImmediate).then_some(9);
        Some(Posted {
            wr_id: id.word,
            kind,
            immediate,
            chunk,
            handle,
        })
    }
}

/// Cuts a piece into requests, the plainest way.
fn cut(piece: &Piece, max: u32, chunks: &mut Vec<Chunk>) {
    let mut at = 0;
    loop {
        let length = (piece.length - at).min(max.into()) as u32;
        chunks.push(Chunk {
            local: piece.local + at,
            lkey: piece.lkey,
            rkey: piece.rkey,
            remote: piece.remote + at,
            length,
        });
        at += u64::from(length);
        if at >= piece.length {
            return;
        }
    }
}
