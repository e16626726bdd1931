//! Registers ranges of the caller's memory by address.

use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::region::MemoryRegion;
use crate::types::Access;

/// Registers ranges of memory that the program keeps, by address.
///
/// [`ProtectionDomain::register_raw`] asks for a promise at each call. A cache of registrations is
/// told ranges by someone else, so here the promise is made once, for all of them.
///
/// ```no_run
/// use efa_verbs::{Access, CallerMemory};
///
/// let domain = efa_verbs::open_by_name("efa_0")?.alloc_pd()?;
/// let memory: &'static mut [u8] = vec![0; 1 << 20].leak();
/// let range = (memory.as_mut_ptr() as u64, memory.len() as u64);
/// // SAFETY: the only range that is ever passed on is leaked memory, whose one reference ended above.
/// let registrar = unsafe { CallerMemory::new(domain) };
/// let region = registrar.register(range.0, range.1, Access::LOCAL)?;
/// assert_eq!(region.addr(), range.0);
/// # Ok::<(), efa_verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct CallerMemory {
    domain: ProtectionDomain,
}

impl CallerMemory {
    /// # Safety
    ///
    /// Every range that is ever passed to [`register`](Self::register) must keep the promise of
    /// [`ProtectionDomain::register_raw`] until its region is deregistered, which
    /// [`MemoryRegion::watch`] tells. Ranges may overlap. The pointer that the address comes from was
    /// exposed (`ptr.expose_provenance()`, or a cast to an integer). Hand the value only to code that
    /// sees to all of it.
    pub unsafe fn new(domain: ProtectionDomain) -> Self {
        Self { domain }
    }

    /// The domain in which it registers.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Registers `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`], and [`Error::InvalidArgument`] for a range that no memory
    /// of this process can have.
    pub fn register(&self, addr: u64, len: u64, access: Access) -> Result<MemoryRegion> {
        let invalid = || Error::InvalidArgument {
            what: "range",
            reason: format!("{len} bytes at {addr:#x} are not within the address space"),
        };
        addr.checked_add(len).ok_or_else(invalid)?;
        let start = usize::try_from(addr).map_err(|_| invalid())?;
        let len = usize::try_from(len).map_err(|_| invalid())?;
        let ptr = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: whoever made this value promised it for every range.
        unsafe { self.domain.register_raw(ptr, len, access) }
    }
}
