//! Which descriptors are ours.
//!
//! Every `close`, `ioctl` or `write` of the program asks. So the first answer is a bit in an
//! array; the table behind it is looked at only for descriptors that have been ours.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::channel::Channel;
use super::context::Context;

const WORDS: usize = 1024;
static MARKS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// A descriptor beyond the array has been ours: then every one beyond it is looked up.
static HIGH: AtomicU64 = AtomicU64::new(0);

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether `fd` may be ours. Never wrong for a descriptor that is.
pub(crate) fn is_marked(fd: RawFd) -> bool {
    match place(fd) {
        Some((word, bit)) => word.load(Ordering::Relaxed) & bit != 0,
        None => fd >= 0 && HIGH.load(Ordering::Relaxed) != 0,
    }
}

fn mark(fd: RawFd) {
    match place(fd) {
        Some((word, bit)) => drop(word.fetch_or(bit, Ordering::Relaxed)),
        None => HIGH.store(1, Ordering::Relaxed),
    }
}

fn unmark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Locks a mutex whose data is valid at every instruction that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The inode behind `fd`, asked of the kernel itself.
pub(crate) fn inode(fd: RawFd) -> Option<(u64, u64)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` has room for what the call writes. The plain function would come back to
    // us, who answer for our own descriptors.
    if unsafe { libc::syscall(libc::SYS_fstat, fd, stat.as_mut_ptr()) } == -1 {
        return None;
    }
    // SAFETY: zeroed is a valid value already, and the call succeeded.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev, stat.st_ino))
}

/// What a descriptor of ours is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// A device file.
    Device(Arc<Context>),
    /// A completion channel of a device file.
    Channel(Arc<Channel>),
    /// The file of asynchronous events. A queue pair or queue can name it; nothing is ever
    /// reported in it, as the driver reports nothing either while the device lives.
    AsyncEvent {
        /// Keeps the other end open, so that reading it waits.
        _channel: Arc<Channel>,
    },
}

#[derive(Debug)]
struct Entry {
    inode: (u64, u64),
    kind: Kind,
}

/// The descriptors of this process.
#[derive(Debug, Default)]
pub(crate) struct Table(Mutex<HashMap<RawFd, Entry>>);

impl Table {
    /// Remembers `fd`.
    pub(crate) fn insert(&self, fd: RawFd, kind: Kind) {
        if let Some(inode) = inode(fd) {
            let old = lock(&self.0).insert(fd, Entry { inode, kind });
            mark(fd);
            // A descriptor that was closed behind our back; dropped without the lock.
            drop(old);
        }
    }

    /// What `fd` is, if it still is what it was.
    pub(crate) fn get(&self, fd: RawFd) -> Option<Kind> {
        if !is_marked(fd) {
            return None;
        }
        let (known, kind) = {
            let table = lock(&self.0);
            let entry = table.get(&fd)?;
            (entry.inode, entry.kind.clone())
        };
        if inode(fd) == Some(known) {
            return Some(kind);
        }
        // It was closed in a way that we don't see, and the number is somebody else's now.
        drop(kind);
        self.remove(fd);
        None
    }

    /// Forgets `fd`; what it was is dropped by the caller, who may have to close first.
    pub(crate) fn remove(&self, fd: RawFd) -> Option<Kind> {
        if !is_marked(fd) {
            return None;
        }
        let removed = lock(&self.0).remove(&fd);
        unmark(fd);
        removed.map(|entry| entry.kind)
    }

    /// A descriptor of the program by which `channel` can be read.
    pub(crate) fn of_channel(&self, channel: &Arc<Channel>) -> Option<RawFd> {
        let table = lock(&self.0);
        table.iter().find_map(|(fd, entry)| match &entry.kind {
            Kind::Channel(other) if Arc::ptr_eq(other, channel) => Some(*fd),
            _ => None,
        })
    }

    /// Every descriptor that we know.
    pub(crate) fn all(&self) -> Vec<(RawFd, Kind)> {
        lock(&self.0)
            .iter()
            .map(|(fd, entry)| (*fd, entry.kind.clone()))
            .collect()
    }
}
