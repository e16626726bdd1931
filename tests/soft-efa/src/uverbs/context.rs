//! An open device file and the objects that were made through it.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::engine::QpKind;

use super::abi::QpCap;
use super::channel::Channel;
use super::device::{Alive, Counted, Device};
use super::fds::lock;
use super::locked::Charge;
use super::process::Process;
use super::ring::{Mapping, Offsets, page_align};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) number: u16,
    pub(crate) users: u32,
    pub(crate) _alive: Alive,
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) pd: u32,
    pub(crate) key: u32,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    /// Its pages, where they count as locked.
    pub(crate) _locked: Option<Charge>,
    pub(crate) _alive: Alive,
}

/// Pages that the program may map: exactly these, by their key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mappable {
    key: u64,
    bytes: u64,
}

impl Mappable {
    pub(crate) fn new(key: u64, bytes: u64) -> Self {
        let bytes = page_align(bytes);
        Self { key, bytes }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    /// The engine's numbers of the rings inside; most devices have one.
    pub(crate) rings: Vec<u16>,
    pub(crate) users: u32,
    pub(crate) user_handle: u64,
    pub(crate) channel: Option<Arc<Channel>>,
    /// Events that were raised.
    pub(crate) raised: Arc<std::sync::atomic::AtomicU32>,
    pub(crate) mappable: Vec<Mappable>,
    /// Must outlive the engine's queues.
    pub(crate) _memory: Vec<Mapping>,
    pub(crate) _alive: Alive,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) pd: u32,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) number: u16,
    pub(crate) kind: QpKind,
    /// The state as the driver knows it: that of the last change.
    pub(crate) state: u8,
    pub(crate) cap: QpCap,
    pub(crate) mappable: Vec<Mappable>,
    /// Must outlive the engine's queue pair.
    pub(crate) _memory: Mapping,
    pub(crate) _alive: Alive,
}

/// An address handle.
#[derive(Debug)]
pub(crate) struct Ah {
    pub(crate) pd: u32,
    pub(crate) number: u16,
    pub(crate) _alive: Alive,
}

/// Anything with a handle.
#[derive(Debug)]
pub(crate) enum Object {
    Pd(Pd),
    Mr(Mr),
    Cq(Cq),
    Qp(Qp),
    Ah(Ah),
}

/// The kinds of [`Object`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Pd,
    Mr,
    Cq,
    Qp,
    Ah,
}

impl Object {
    pub(crate) fn kind(&self) -> ObjectKind {
        match self {
            Self::Pd(_) => ObjectKind::Pd,
            Self::Mr(_) => ObjectKind::Mr,
            Self::Cq(_) => ObjectKind::Cq,
            Self::Qp(_) => ObjectKind::Qp,
            Self::Ah(_) => ObjectKind::Ah,
        }
    }
}

/// The handles of one context. Numbers are shared by all kinds, and the lowest free one is next.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    slots: Vec<Option<Object>>,
    /// The device was opened in the verbs' sense (`GET_CONTEXT`).
    opened: Option<Alive>,
}

macro_rules! accessors {
    ($($name:ident, $name_mut:ident, $variant:ident;)*) => {$(
        pub(crate) fn $name(&self, handle: u32) -> Result<&$variant, i32> {
            match self.any(handle)? {
                Object::$variant(object) => Ok(object),
                _ => Err(libc::EINVAL),
            }
        }

        #[allow(dead_code, reason = "generated alike for every kind")]
        pub(crate) fn $name_mut(&mut self, handle: u32) -> Result<&mut $variant, i32> {
            match self.slots.get_mut(handle as usize).and_then(Option::as_mut) {
                Some(Object::$variant(object)) => Ok(object),
                Some(_) => Err(libc::EINVAL),
                None => Err(libc::ENOENT),
            }
        }
    )*};
}

impl Objects {
    fn any(&self, handle: u32) -> Result<&Object, i32> {
        self.slots
            .get(handle as usize)
            .and_then(Option::as_ref)
            .ok_or(libc::ENOENT)
    }

    accessors! {
        pd, pd_mut, Pd;
        mr, mr_mut, Mr;
        cq, cq_mut, Cq;
        qp, qp_mut, Qp;
    }

    /// The kind of the object with this handle.
    pub(crate) fn kind(&self, handle: u32) -> Option<ObjectKind> {
        self.any(handle).ok().map(Object::kind)
    }

    /// Whether an object has exactly these pages.
    pub(crate) fn is_mappable(&self, asked: Mappable) -> bool {
        self.slots.iter().flatten().any(|object| match object {
            Object::Cq(cq) => cq.mappable.contains(&asked),
            Object::Qp(qp) => qp.mappable.contains(&asked),
            _ => false,
        })
    }

    /// The handles of all objects of a kind.
    pub(crate) fn handles(&self, kind: ObjectKind) -> Vec<u32> {
        let of_kind =
            |slot: &Option<Object>| slot.as_ref().is_some_and(|object| object.kind() == kind);
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| of_kind(slot))
            .map(|(handle, _)| handle as u32)
            .collect()
    }

    pub(crate) fn insert(&mut self, object: Object) -> u32 {
        let free = self.slots.iter().position(Option::is_none);
        let handle = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[handle] = Some(object);
        handle as u32
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<Object> {
        self.slots.get_mut(handle as usize)?.take()
    }

    pub(crate) fn is_opened(&self) -> bool {
        self.opened.is_some()
    }

    pub(crate) fn open(&mut self, alive: Alive) {
        self.opened = Some(alive);
    }

    pub(crate) fn unopen(&mut self) {
        self.opened = None;
    }
}

/// One open device file.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) process: &'static Process,
    pub(crate) device: Arc<Device>,
    pub(crate) offsets: Offsets,
    objects: Mutex<Objects>,
}

impl Context {
    pub(crate) fn new(process: &'static Process, device: Arc<Device>) -> Self {
        Self {
            process,
            device,
            offsets: Offsets::new(),
            objects: Mutex::default(),
        }
    }

    /// The objects, for as long as an operation on them lasts.
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        lock(&self.objects)
    }

    /// Pages of this context's file, through the descriptor by which the program calls.
    pub(crate) fn allocate(&self, fd: RawFd, bytes: u64) -> Result<Mapping, i32> {
        Mapping::new(fd, &self.offsets, bytes)
    }

    pub(crate) fn count(&self, kind: Counted) -> Alive {
        self.device.count(kind)
    }
}

impl Drop for Context {
    /// The program closed its last descriptor: what it left goes in the order that the kernel
    /// keeps, users before what they use.
    fn drop(&mut self) {
        let order = [
            ObjectKind::Qp,
            ObjectKind::Cq,
            ObjectKind::Ah,
            ObjectKind::Mr,
            ObjectKind::Pd,
        ];
        for kind in order {
            let handles = self.objects().handles(kind);
            for handle in handles {
                // Nothing can be busy in this order.
                let _ = self.destroy(kind, handle);
            }
        }
    }
}
