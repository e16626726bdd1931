//! Memory, address handles and the device.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use crate::operation::Kind;
use crate::peers::Reach;
use crate::scheduler::{Chunk, Memory, Request, Sink};

/// Registered memory. Its number is used again when nobody has it any more, as a region's.
#[derive(Clone, Debug)]
pub(super) struct Token(Rc<Numbered>);

#[derive(Debug)]
pub(super) struct Numbered {
    number: u32,
    domain: usize,
    free: Rc<RefCell<Vec<u32>>>,
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.free.borrow_mut().push(self.number);
    }
}

impl Memory for Token {
    fn number(&self) -> u32 {
        self.0.number
    }

    fn is_of(&self, domain: usize) -> bool {
        self.0.domain == domain
    }
}

impl Token {
    pub(super) fn downgrade(&self) -> Weak<Numbered> {
        Rc::downgrade(&self.0)
    }

    pub(super) fn is(&self, other: &Weak<Numbered>) -> bool {
        std::ptr::eq(Rc::as_ptr(&self.0), other.as_ptr())
    }
}

/// The domain of the endpoint, and another.
pub(super) const DOMAIN: usize = 70;
pub(super) const FOREIGN: usize = 71;

/// Numbers memory.
#[derive(Default)]
pub(super) struct Registry {
    free: Rc<RefCell<Vec<u32>>>,
    next: u32,
}

impl Registry {
    pub(super) fn register(&mut self, domain: usize) -> Token {
        let free = self.free.borrow_mut().pop();
        let number = free.unwrap_or(self.next);
        self.next = self.next.max(number + 1);
        let free = self.free.clone();
        Token(Rc::new(Numbered {
            number,
            domain,
            free,
        }))
    }
}

/// An address handle.
#[derive(Debug)]
pub(super) struct Handle(pub(super) Rc<u16>);

impl Reach for Handle {
    fn number(&self) -> u16 {
        *self.0
    }
}

/// A request that was pushed.
pub(super) struct Posted {
    pub(super) wr_id: u64,
    pub(super) kind: Kind,
    pub(super) immediate: Option<u32>,
    pub(super) chunk: Chunk,
    pub(super) handle: Weak<u16>,
}

/// The requests of a session that is open.
#[derive(Default)]
pub(super) struct Session(pub(super) Vec<Posted>);

impl Sink<Handle> for Session {
    fn push(&mut self, request: Request<'_, Handle>) {
        let handle = request
            .peer
            .handle
            .as_ref()
            .expect("posted without a handle");
        self.0.push(Posted {
            wr_id: request.wr_id,
            kind: request.kind,
            immediate: request.immediate,
            chunk: request.chunk,
            handle: Rc::downgrade(&handle.0),
        });
    }
}
