//! Registered memory.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::BitOr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock};

use efa_sys as sys;

use crate::attributes::Capabilities;
use crate::buffer::Buffer;
use crate::device::registering;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Feature, Limit, Result};

/// What the local device and peers may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// The local device may read: the source of sends and writes.
    pub const LOCAL_READ: Self = Self(0);
    /// The local device may read and write: also the target of receives and RDMA reads.
    pub const LOCAL: Self = Self(sys::IBV_ACCESS_LOCAL_WRITE);
    /// Peers may read, given the rkey.
    pub const REMOTE_READ: Self = Self(sys::IBV_ACCESS_REMOTE_READ);
    /// Peers may write, given the rkey. Includes [`Access::LOCAL`], without which no memory can
    /// be written by a peer.
    pub const REMOTE_WRITE: Self = Self(sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_LOCAL_WRITE);

    /// The bits, as `ibv_reg_mr` takes them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether everything that `other` allows is allowed.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The capabilities that a device needs for this.
    fn needs(self) -> Vec<(Capabilities, Feature)> {
        let mut needs = Vec::new();
        if self.contains(Self::REMOTE_READ) {
            needs.push((Capabilities::RDMA_READ, Feature::RdmaRead));
        }
        if self.contains(Self::REMOTE_WRITE) {
            needs.push((Capabilities::RDMA_WRITE, Feature::RdmaWrite));
        }
        needs
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::from(if self.contains(Self::LOCAL) {
            "LOCAL"
        } else {
            "LOCAL_READ"
        });
        if self.contains(Self::REMOTE_READ) {
            text.push_str(" | REMOTE_READ");
        }
        if self.contains(Self::REMOTE_WRITE) {
            text.push_str(" | REMOTE_WRITE");
        }
        write!(f, "Access({text})")
    }
}

/// A scatter/gather entry: a piece of a local region, as requests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub length: u32,
    /// Local key of the region.
    pub lkey: u32,
}

// Lists of `Sge` are handed to C as lists of `ibv_sge`.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<sys::ibv_sge>());
    assert!(std::mem::offset_of!(Sge, addr) == std::mem::offset_of!(sys::ibv_sge, addr));
    assert!(std::mem::offset_of!(Sge, length) == std::mem::offset_of!(sys::ibv_sge, length));
    assert!(std::mem::offset_of!(Sge, lkey) == std::mem::offset_of!(sys::ibv_sge, lkey));
};

enum Memory {
    /// Freed after deregistration.
    Owned(Buffer),
    /// The caller's.
    Raw(NonNull<u8>),
    /// That of another region, which stays registered for as long.
    Shared(MemoryRegion),
    /// Not addressable by the CPU, as far as this crate knows.
    DmaBuf,
}

/// Copies in and out of memory of the caller's: any two regions of it may have bytes in common, since
/// whoever registers ranges by address, a cache above all, can't see to it that they have none.
static RAW_COPIES: RwLock<()> = RwLock::new(());

struct Inner {
    mr: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    /// Address that requests use.
    iova: u64,
    len: usize,
    access: Access,
    /// Copies in and out of the same region by different threads must not race with each other. For
    /// memory of the caller's, see [`RAW_COPIES`].
    copies: RwLock<()>,
    /// Dropped by hand, after deregistration and only if that succeeded.
    memory: ManuallyDrop<Memory>,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs lets any thread use and deregister a region. The bytes are only reached
// through `copy_in` and `copy_out`, which take the lock.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    /// Deregisters; on success the memory may be freed.
    fn deregister(&self) -> io::Result<()> {
        let _registering = registering();
        // SAFETY: `mr` came from a registration, and is not used after the call that succeeds: that
        // is the only one, in `drop` or in `MemoryRegion::deregister`, which then prevents `drop`. One
        // that fails leaves the registration as it was.
        match unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.deregister() {
            // SAFETY: the memory is dropped here only, and the device has let go of it.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            // The device may go on using the bytes: leak them rather than reuse them.
            Err(error) => tracing::error!(
                %error,
                addr = self.iova,
                len = self.len,
                "ibv_dereg_mr failed: the memory is leaked"
            ),
        }
    }
}

/// Memory that the device can reach. Clones are handles to the same registration.
///
/// It is deregistered when the last clone is dropped, and only then is owned memory freed. Its bytes
/// are never handed out as a slice, since the device or a peer may write them at any moment:
/// [`copy_in`](Self::copy_in) and [`copy_out`](Self::copy_out) go through raw pointers, and
/// [`deregister`](Self::deregister) returns the buffer.
#[derive(Clone)]
pub struct MemoryRegion(Arc<Inner>);

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("addr", &format_args!("{:#x}", self.0.iova))
            .field("len", &self.0.len)
            .field("lkey", &self.0.lkey)
            .field("rkey", &self.0.rkey)
            .field("access", &self.0.access)
            .finish()
    }
}

impl MemoryRegion {
    pub(crate) fn register(
        domain: ProtectionDomain,
        buffer: Buffer,
        access: Access,
    ) -> Result<Self> {
        let (ptr, len) = (buffer.base(), buffer.len());
        // SAFETY: the buffer's bytes are mapped for as long as it lives, which `Inner` makes longer
        // than the registration.
        let mr = unsafe { reg_mr(&domain, ptr, len, access) }?;
        Ok(Self::new(
            domain,
            mr,
            ptr.as_ptr() as u64,
            len,
            access,
            Memory::Owned(buffer),
        ))
    }

    /// # Safety
    ///
    /// See [`ProtectionDomain::register_raw`].
    pub(crate) unsafe fn register_raw(
        domain: ProtectionDomain,
        ptr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        let Some(ptr) = NonNull::new(ptr) else {
            return Err(Error::InvalidArgument {
                what: "address",
                reason: "a region cannot start at a null pointer".into(),
            });
        };
        // SAFETY: the caller promises that the bytes outlive the registration.
        let mr = unsafe { reg_mr(&domain, ptr, len, access) }?;
        Ok(Self::new(
            domain,
            mr,
            ptr.as_ptr() as u64,
            len,
            access,
            Memory::Raw(ptr),
        ))
    }

    pub(crate) fn register_dmabuf(
        domain: ProtectionDomain,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        check(&domain, len, access)?;
        if iova.checked_add(len as u64).is_none() {
            return Err(Error::InvalidArgument {
                what: "iova",
                reason: format!("{len} bytes from {iova:#x} on exceed 64-bit addresses"),
            });
        }
        let registering = registering();
        // SAFETY: the domain is alive and the descriptor open during the call; the kernel takes its
        // own reference to the dmabuf.
        let mr = unsafe {
            sys::ibv_reg_dmabuf_mr(
                domain.raw(),
                offset,
                len,
                iova,
                fd.as_raw_fd(),
                access.bits() as i32,
            )
        };
        let Some(mr) = NonNull::new(mr) else {
            let error = io::Error::last_os_error();
            if let Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOTTY | libc::ENOSYS) =
                error.raw_os_error()
            {
                return Err(Error::Unsupported {
                    device: domain.context().device_name().to_owned(),
                    feature: Feature::DmaBuf,
                    advice: Some("it needs kernel 5.12 or newer with dmabuf support in the driver"),
                });
            }
            let object = format!(
                "{len} bytes of a dmabuf on {}",
                domain.context().device_name()
            );
            return Err(Error::verb("ibv_reg_dmabuf_mr", object, error));
        };
        drop(registering);
        // `mr.addr` is the offset, not an address: `iova` is what requests use.
        Ok(Self::new(domain, mr, iova, len, access, Memory::DmaBuf))
    }

    fn new(
        domain: ProtectionDomain,
        mr: NonNull<sys::ibv_mr>,
        iova: u64,
        len: usize,
        access: Access,
        memory: Memory,
    ) -> Self {
        // SAFETY: `mr` was just returned by a successful registration.
        let (lkey, rkey) = unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) };
        let region = Self(Arc::new(Inner {
            mr,
            lkey,
            rkey,
            iova,
            len,
            access,
            copies: RwLock::new(()),
            memory: ManuallyDrop::new(memory),
            domain,
        }));
        // Only now: where the program's logging panics, the memory goes after the registration.
        tracing::debug!(addr = iova, len, lkey, rkey, ?access, "registered");
        region
    }

    /// The key by which local requests name the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// The key by which a peer names the region.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// The address of the first byte, as requests and peers name it.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0.iova
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the region has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// What the device and peers may do with it.
    #[inline]
    pub fn access(&self) -> Access {
        self.0.access
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// Pointer to the first byte; null for a dmabuf. Reading and writing through it is up to the
    /// caller: the device, peers and other threads may write the same bytes.
    pub fn as_ptr(&self) -> *mut u8 {
        match &*self.0.memory {
            Memory::Owned(buffer) => buffer.base().as_ptr(),
            Memory::Raw(ptr) => ptr.as_ptr(),
            Memory::Shared(region) => region.as_ptr(),
            Memory::DmaBuf => ptr::null_mut(),
        }
    }

    /// The `length` bytes from `offset` on, as a local request names them.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when that is not within the region.
    #[inline]
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge> {
        self.check_range(offset, length as usize)?;
        Ok(Sge {
            addr: self.0.iova + offset as u64,
            length,
            lkey: self.0.lkey,
        })
    }

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// A transfer that reads the same bytes meanwhile may see old and new ones mixed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when they do not fit, for a dmabuf, and for memory of the caller's
    /// that was registered without [`Access::LOCAL`].
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check_range(offset, bytes.len())?;
        if !self.is_mapped_writable() {
            return Err(Error::InvalidArgument {
                what: "region",
                reason:
                    "its memory was registered without Access::LOCAL, and so need not be writable"
                        .into(),
            });
        }
        let target = self.cpu_ptr()?;
        let _guard = self
            .copies()
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the range is within the region, whose memory is mapped and writable while it is
        // registered. `bytes` is a Rust reference and so cannot overlap: owned memory is reachable
        // through regions only, and for the caller's memory that was promised. The lock keeps other
        // threads' copies out, those of other regions of the same memory included; what the device
        // does meanwhile happens outside of the program.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target.add(offset), bytes.len()) };
        Ok(())
    }

    /// Copies bytes of the region, from `offset` on, into all of `bytes`.
    ///
    /// A transfer that writes them meanwhile may leave old and new ones mixed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the region has not that many, and for a dmabuf.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check_range(offset, bytes.len())?;
        let source = self.cpu_ptr()?;
        let _guard = self.copies().read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as for `copy_in`, with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(source.add(offset), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Registers the same memory a second time, with keys and access of its own. The memory stays with
    /// this region, which is kept until the new one is gone.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`]. [`Error::InvalidArgument`] for a dmabuf, and for memory of
    /// the caller's where `access` goes beyond that of this region, for which alone there is a promise.
    pub fn register_again(&self, access: Access) -> Result<Self> {
        if !self.is_owned() && !self.0.access.contains(access) {
            return Err(Error::InvalidArgument {
                what: "access",
                reason: "it goes beyond that for which the caller's memory was registered".into(),
            });
        }
        let Some(ptr) = NonNull::new(self.cpu_ptr()?) else {
            return Err(self.out_of_range(0, self.0.len));
        };
        // SAFETY: the bytes are mapped for as long as this region lives, of which the new one has a
        // handle.
        let mr = unsafe { reg_mr(&self.0.domain, ptr, self.0.len, access) }?;
        Ok(Self::new(
            self.0.domain.clone(),
            mr,
            self.0.iova,
            self.0.len,
            access,
            Memory::Shared(self.clone()),
        ))
    }

    /// Deregisters the region, if this is the last handle, and returns the buffer if it owned one.
    ///
    /// From then on no device reads or writes the bytes.
    ///
    /// # Errors
    ///
    /// The region itself, while other clones exist, or if the kernel refuses.
    pub fn deregister(self) -> std::result::Result<Option<Buffer>, Self> {
        let inner = Arc::try_unwrap(self.0).map_err(Self)?;
        if let Err(error) = inner.deregister() {
            tracing::error!(%error, "ibv_dereg_mr failed");
            return Err(Self(Arc::new(inner)));
        }
        let mut inner = ManuallyDrop::new(inner);
        // SAFETY: `inner` is not dropped, so its memory and domain are taken exactly once, here; its
        // other fields need no drop.
        let (memory, domain) = unsafe {
            (
                ManuallyDrop::take(&mut inner.memory),
                ptr::read(&inner.domain),
            )
        };
        drop(domain);
        Ok(match memory {
            Memory::Owned(buffer) => Some(buffer),
            Memory::Raw(_) | Memory::Shared(_) | Memory::DmaBuf => None,
        })
    }

    /// Whether a buffer of this crate's is beneath, which nothing but regions can reach.
    fn is_owned(&self) -> bool {
        match &*self.0.memory {
            Memory::Owned(_) => true,
            Memory::Shared(region) => region.is_owned(),
            Memory::Raw(_) | Memory::DmaBuf => false,
        }
    }

    /// Whether the CPU can write the bytes: memory of the caller's need not be writable unless its
    /// registration demanded it.
    fn is_mapped_writable(&self) -> bool {
        match &*self.0.memory {
            Memory::Owned(_) => true,
            Memory::Shared(region) => region.is_mapped_writable(),
            Memory::Raw(_) => self.0.access.contains(Access::LOCAL),
            // Refused for another reason.
            Memory::DmaBuf => true,
        }
    }

    #[inline]
    fn check_range(&self, offset: usize, len: usize) -> Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.0.len) {
            return Ok(());
        }
        Err(self.out_of_range(offset, len))
    }

    #[cold]
    fn out_of_range(&self, offset: usize, len: usize) -> Error {
        Error::InvalidArgument {
            what: "range",
            reason: format!(
                "{len} bytes at offset {offset} are not within the region's {} bytes",
                self.0.len
            ),
        }
    }

    /// The lock for copies.
    fn copies(&self) -> &RwLock<()> {
        match *self.0.memory {
            Memory::Raw(_) => &RAW_COPIES,
            Memory::Shared(ref region) => region.copies(),
            Memory::Owned(_) | Memory::DmaBuf => &self.0.copies,
        }
    }

    fn cpu_ptr(&self) -> Result<*mut u8> {
        let ptr = self.as_ptr();
        if ptr.is_null() {
            return Err(Error::InvalidArgument {
                what: "region",
                reason: "the CPU cannot address a dmabuf's bytes through it".into(),
            });
        }
        Ok(ptr)
    }
}

/// What can be said before the kernel is asked.
fn check(domain: &ProtectionDomain, len: usize, access: Access) -> Result<()> {
    let context = domain.context();
    let attributes = context.attributes();
    if let Some(feature) = attributes.capabilities.missing(&access.needs()) {
        return Err(Error::Unsupported {
            device: context.device_name().to_owned(),
            feature,
            advice: Some("register the memory without remote access of that kind"),
        });
    }
    if len == 0 {
        return Err(Error::InvalidArgument {
            what: "length",
            reason: "a region has at least one byte".into(),
        });
    }
    if attributes.max_mr_size > 0 && len as u64 > attributes.max_mr_size {
        return Err(Error::LimitExceeded {
            device: context.device_name().to_owned(),
            what: Limit::RegionSize,
            requested: len as u64,
            limit: attributes.max_mr_size,
        });
    }
    Ok(())
}

/// # Safety
///
/// The bytes must stay mapped until the registration is gone.
unsafe fn reg_mr(
    domain: &ProtectionDomain,
    ptr: NonNull<u8>,
    len: usize,
    access: Access,
) -> Result<NonNull<sys::ibv_mr>> {
    check(domain, len, access)?;
    let _registering = registering();
    // SAFETY: the domain is alive; the caller vouches for the bytes.
    let mr =
        unsafe { sys::ibv_reg_mr(domain.raw(), ptr.as_ptr().cast(), len, access.bits() as i32) };
    NonNull::new(mr).ok_or_else(|| {
        let error = io::Error::last_os_error();
        let advice = match error.raw_os_error() {
            Some(libc::ENOMEM) => Some(
                "raise the limit for locked memory (ulimit -l, LimitMEMLOCK=), or use huge pages if \
                 the device ran out of page table entries",
            ),
            Some(libc::EFAULT) => Some("part of the range is not mapped, or not writable"),
            _ => None,
        };
        let object = format!("{len} bytes on {}", domain.context().device_name());
        Error::verb("ibv_reg_mr", object, error).advise(advice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_includes_local_write() {
        assert!(Access::REMOTE_WRITE.contains(Access::LOCAL));
        assert!(!Access::REMOTE_READ.contains(Access::LOCAL));
        assert_eq!(
            format!("{:?}", Access::REMOTE_READ | Access::REMOTE_WRITE),
            "Access(LOCAL | REMOTE_READ | REMOTE_WRITE)"
        );
    }
}
