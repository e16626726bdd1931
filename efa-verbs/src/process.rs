//! Which process an object belongs to, and what libibverbs has to be told before a fork.
//!
//! A forked child inherits the memory in which queue pairs, regions and contexts lie, and the open
//! descriptors behind them. Whatever it did with them would be done to its parent's objects: a posted
//! request takes the parent's next place in the queue, a destroyed queue pair is gone for the parent. So
//! each context remembers the process that opened it. In any other one, everything made of the context
//! refuses its calls, and is leaked, not destroyed, when it is dropped.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard};

use crate::error::{Error, Result};

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTER: Once = Once::new();

/// The process that made something.
///
/// Checking costs one load and a comparison. A child made by `fork` counts as another process, one made
/// by `vfork` or `posix_spawn` does not (it shares its parent's memory until it runs another program),
/// and one made by the bare system call `clone` is not noticed.
///
/// ```
/// let mark = efa_verbs::ProcessMark::here();
/// assert!(mark.is_here());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessMark(u32);

impl ProcessMark {
    /// This process.
    pub fn here() -> Self {
        REGISTER.call_once(|| {
            // SAFETY: the handler only adds to an atomic integer, which any thread may do at any time, also
            // in the child of a program with many threads. It fails for lack of memory only; forks are
            // not noticed then, as if this crate did not look for them.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still the process of the mark.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

/// Runs in the child, in its only thread, before `fork` returns there.
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Held for writing by [`fork_init`], for reading by whatever enters memory in libibverbs' books.
static BOOKS: RwLock<()> = RwLock::new(());

/// To be held while memory is registered or deregistered.
pub(crate) fn registering() -> RwLockReadGuard<'static, ()> {
    BOOKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Makes memory registrations survive `fork` in the parent: `ibv_fork_init`.
///
/// Must be called before the first registration. Needed only before kernel 5.13 or rdma-core 35;
/// with both, the kernel copies registered pages at fork and the call changes nothing.
///
/// # Errors
///
/// [`Error::Verb`]: EINVAL after a registration was made.
pub fn fork_init() -> Result<()> {
    let _alone = BOOKS.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it makes the tree that registrations are entered in, without a lock: no other call of
    // it and no registration runs meanwhile, since all of them take `BOOKS`. A late call is refused.
    match unsafe { efa_sys::ibv_fork_init() } {
        0 => Ok(()),
        error => Err(Error::verb(
            "ibv_fork_init",
            "this process",
            io::Error::from_raw_os_error(error),
        )
        .advise(Some("call it before the first memory registration"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_process_and_has_a_mark_of_its_own() {
        let mark = ProcessMark::here();
        // SAFETY: the child makes no call but the exit, and allocates nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = !mark.is_here() && ProcessMark::here().is_here();
            // SAFETY: ends the child at once, without the test's own exit code.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the child was made above; `status` is valid for the write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(mark.is_here(), "the parent's mark changed");
    }
}
