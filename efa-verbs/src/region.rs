//! Registered memory.

use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use efa_sys as sys;

use crate::buffer::Buffer;
use crate::copies::Copying;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::process::registering;
use crate::request::Sge;
use crate::types::{Access, Feature, Limit};

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

struct Inner {
    mr: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    /// Address that requests use.
    iova: u64,
    len: usize,
    access: Access,
    /// Set after deregistration, for those who watch.
    gone: Arc<AtomicBool>,
    /// Dropped by hand, after deregistration and only if that succeeded.
    memory: ManuallyDrop<Memory>,
    domain: ProtectionDomain,
}

// SAFETY: libibverbs lets any thread use and deregister a region. The bytes are only reached
// through `copy_in` and `copy_out`, which take turns (see `copies`).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Inner {
    /// Deregisters; on success the memory may be freed.
    fn deregister(&self) -> io::Result<()> {
        if !self.domain.context().process().is_here() {
            // It is the registration of the process that this one was forked from.
            return Err(io::Error::from_raw_os_error(libc::ECHILD));
        }
        let _registering = registering();
        // SAFETY: `mr` came from a registration, and is not used after the call that succeeds: that
        // is the only one, in `drop` or in `MemoryRegion::deregister`, which then prevents `drop`. One
        // that fails leaves the registration as it was.
        match unsafe { sys::ibv_dereg_mr(self.mr.as_ptr()) } {
            0 => {
                self.gone.store(true, Ordering::Release);
                Ok(())
            }
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.deregister() {
            // SAFETY: the memory is dropped here only, and the device has let go of it.
            Ok(()) => unsafe { ManuallyDrop::drop(&mut self.memory) },
            // Leaked: the parent's copy of this object is what frees it.
            Err(_) if !self.domain.context().process().is_here() => {}
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
///
/// # When the memory is out of use
///
/// Whoever keeps the memory itself (see [`ProtectionDomain::register_raw`]) may unmap it or take
/// references to it once the region is deregistered: when [`deregister`](Self::deregister) returned
/// `Ok`, or when a [`RegionWatch`] says so.
///
/// # Ending the access of peers
///
/// The device knows no other way to take an rkey back than deregistration. So that local transfers can
/// go on meanwhile, give peers the rkey of a second registration of the same memory, made by
/// [`register_again`](Self::register_again), and deregister that one.
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

impl ProtectionDomain {
    /// Registers `buffer`, which the region owns until [`MemoryRegion::deregister`].
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when `access` asks for something that the device lacks,
    /// [`Error::Verb`] when the kernel refuses (ENOMEM usually is the locked memory limit),
    /// [`Error::ForkedProcess`].
    /// Dropping the error drops the buffer.
    ///
    /// ```no_run
    /// use efa_verbs::{Access, Buffer};
    /// let domain = efa_verbs::open_by_name("efa_0")?.alloc_pd()?;
    /// let region = domain.register(Buffer::zeroed(4096)?, Access::LOCAL | Access::REMOTE_WRITE)?;
    /// region.copy_in(0, b"hello")?;
    /// # Ok::<(), efa_verbs::Error>(())
    /// ```
    pub fn register(&self, buffer: Buffer, access: Access) -> Result<MemoryRegion> {
        MemoryRegion::register(self.clone(), buffer, access)
    }

    /// Registers memory that the caller keeps.
    ///
    /// # Safety
    ///
    /// Until the region is deregistered (see [`MemoryRegion`]), the `len` bytes at `ptr` must be mapped,
    /// readable, and, if `access` contains [`Access::LOCAL`], writable. Nothing in
    /// the program may hold a Rust reference to them while the device or
    /// [`MemoryRegion::copy_in`] may write them, nor write them while [`MemoryRegion::copy_out`] or
    /// a transfer reads them (a `&mut` to them counts as writing). The bytes may be part of several
    /// regions: copies through regions don't race with each other.
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`].
    pub unsafe fn register_raw(
        &self,
        ptr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion> {
        // SAFETY: the caller promises what the function asks for.
        unsafe { MemoryRegion::register_raw(self.clone(), ptr, len, access) }
    }

    /// Registers `len` bytes at `offset` of a dmabuf, such as memory of an accelerator. Local and
    /// remote requests name it by addresses from `iova` on.
    ///
    /// The kernel holds the dmabuf itself; `fd` may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when kernel or device cannot do it, [`Error::Verb`] otherwise; EFAULT
    /// from older kernels means that the dmabuf is mapped read-only.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<MemoryRegion> {
        MemoryRegion::register_dmabuf(self.clone(), fd, offset, len, iova, access)
    }
}

impl MemoryRegion {
    fn register(domain: ProtectionDomain, buffer: Buffer, access: Access) -> Result<Self> {
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
    unsafe fn register_raw(
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

    fn register_dmabuf(
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
                    advice: Some(
                        "it needs kernel 5.12 or newer with dmabuf support in the driver".into(),
                    ),
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
            gone: Arc::new(AtomicBool::new(false)),
            memory: ManuallyDrop::new(memory),
            domain,
        }));
        // Only now: where the program's logging panics, the memory goes after the registration.
        tracing::debug!(addr = iova, len, lkey, rkey, %access, "registered");
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
    /// Copies take turns where their bytes overlap, whatever regions they go through. A transfer that
    /// reads the same bytes meanwhile may see old and new ones mixed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when they do not fit, and for a dmabuf; [`Error::ReadOnlyMemory`] for
    /// memory of the caller's that was registered without [`Access::LOCAL`];
    /// [`Error::ForkedProcess`].
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let place = self.place(offset, bytes.len())?;
        if !self.is_mapped_writable() {
            return Err(Error::ReadOnlyMemory {
                access: self.access(),
            });
        }
        let target = ptr::with_exposed_provenance_mut::<u8>(place.start);
        let _turn = Copying::writing(place);
        // SAFETY: the range is within the region, whose memory is mapped while it is registered, and
        // writable: owned memory always, the caller's as was just checked. `bytes` is a Rust reference
        // and so cannot overlap: owned memory is reachable through regions only, and for the caller's
        // memory that was promised. `_turn` keeps other threads' copies of these bytes out; what the
        // device does meanwhile happens outside of the program.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        Ok(())
    }

    /// Copies bytes of the region, from `offset` on, into all of `bytes`.
    ///
    /// Copies take turns as for [`copy_in`](Self::copy_in). A transfer that writes the bytes meanwhile
    /// may leave old and new ones mixed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] when the region has not that many, and for a dmabuf;
    /// [`Error::ForkedProcess`].
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let place = self.place(offset, bytes.len())?;
        let source = ptr::with_exposed_provenance::<u8>(place.start);
        let _turn = Copying::reading(place);
        // SAFETY: as for `copy_in`, with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Registers the same memory a second time, with keys and access of its own. The memory stays with
    /// this region, which is kept until the new one is gone.
    ///
    /// With it, peers' access can be ended while local transfers go on: tell them the rkey of the second
    /// registration, and deregister it. Once that has returned, requests that name its rkey end with
    /// [`VendorStatus::BAD_ADDRESS`](crate::VendorStatus::BAD_ADDRESS) at the peer, and no byte is read
    /// or written by them any more.
    ///
    /// ```no_run
    /// use efa_verbs::{Access, Buffer};
    /// let domain = efa_verbs::open_by_name("efa_0")?.alloc_pd()?;
    /// let ours = domain.register(Buffer::zeroed(4096)?, Access::LOCAL)?;
    /// let theirs = ours.register_again(Access::REMOTE_READ)?;
    /// // Tell peers `theirs.addr()` and `theirs.rkey()`; use `ours` in requests. Later:
    /// assert!(theirs.deregister().is_ok());
    /// # Ok::<(), efa_verbs::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`ProtectionDomain::register`]. [`Error::InvalidArgument`] for a dmabuf, and for memory of
    /// the caller's where `access` goes beyond that of this region: for more the caller has promised
    /// nothing.
    pub fn register_again(&self, access: Access) -> Result<Self> {
        let whole = self.place(0, self.0.len)?;
        if !self.is_owned() && !self.0.access.contains(access) {
            return Err(Error::InvalidArgument {
                what: "access",
                reason: format!(
                    "{access} goes beyond {}, for which the caller's memory was registered",
                    self.0.access
                ),
            });
        }
        let ptr = ptr::with_exposed_provenance_mut(whole.start);
        let Some(ptr) = NonNull::new(ptr) else {
            return Err(self.not_addressable());
        };
        // SAFETY: the bytes are mapped for as long as this region lives, of which the new one holds a
        // handle, and writable where it was promised, or where the memory is owned.
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

    /// Whether this is the only handle to the registration.
    ///
    /// `efa-transport` and whoever else follows the rules of posting keep a handle for every request in
    /// flight, so an idle region is used by no local request. Peers may use it all the same.
    pub fn is_idle(&self) -> bool {
        let idle = Arc::strong_count(&self.0) == 1;
        // Whatever was done through the last other handle was done before.
        fence(Ordering::Acquire);
        idle
    }

    /// What tells when the region is deregistered, without keeping it.
    pub fn watch(&self) -> RegionWatch {
        RegionWatch(Arc::clone(&self.0.gone))
    }

    /// Deregisters the region, if this is the last handle, and returns the buffer if it owned one.
    ///
    /// From then on no device reads or writes the bytes: those of the buffer can be looked at as a slice
    /// again, and memory of the caller's is the caller's alone (unless it is part of other regions).
    ///
    /// # Errors
    ///
    /// The region itself, unchanged, while other handles exist ([`is_idle`](Self::is_idle)), if the
    /// kernel refuses, which is logged, or in a forked process.
    pub fn deregister(self) -> std::result::Result<Option<Buffer>, Self> {
        let inner = Arc::try_unwrap(self.0).map_err(Self)?;
        if let Err(error) = inner.deregister() {
            tracing::error!(%error, "ibv_dereg_mr failed");
            return Err(Self(Arc::new(inner)));
        }
        let mut inner = ManuallyDrop::new(inner);
        // SAFETY: `inner` is not dropped, so its memory, domain and flag are taken exactly once, here;
        // its other fields need no drop.
        let (memory, domain, gone) = unsafe {
            (
                ManuallyDrop::take(&mut inner.memory),
                ptr::read(&inner.domain),
                ptr::read(&inner.gone),
            )
        };
        drop((domain, gone));
        Ok(match memory {
            Memory::Owned(buffer) => Some(buffer),
            Memory::Raw(_) | Memory::Shared(_) | Memory::DmaBuf => None,
        })
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

    /// Where these bytes of the region are, if the CPU can reach them in this process.
    fn place(&self, offset: usize, len: usize) -> Result<Range<usize>> {
        self.0.domain.context().check_process()?;
        self.check_range(offset, len)?;
        let base = self.as_ptr();
        if base.is_null() {
            return Err(self.not_addressable());
        }
        let start = base.expose_provenance() + offset;
        Ok(start..start + len)
    }

    /// Whether a buffer of this crate's is beneath, which nothing but regions can reach.
    fn is_owned(&self) -> bool {
        match &*self.0.memory {
            Memory::Owned(_) => true,
            Memory::Shared(region) => region.is_owned(),
            Memory::Raw(_) | Memory::DmaBuf => false,
        }
    }

    /// Whether the CPU can write the bytes: memory of the caller's may be mapped for reading only unless
    /// its registration demanded more.
    fn is_mapped_writable(&self) -> bool {
        match &*self.0.memory {
            Memory::Owned(_) => true,
            Memory::Shared(region) => region.is_mapped_writable(),
            Memory::Raw(_) | Memory::DmaBuf => self.0.access.contains(Access::LOCAL),
        }
    }

    #[cold]
    fn not_addressable(&self) -> Error {
        Error::InvalidArgument {
            what: "region",
            reason: "the CPU cannot address a dmabuf's bytes through it".into(),
        }
    }
}

/// Tells when a region is deregistered. It keeps neither the region nor its memory.
///
/// Memory of the caller's may be unmapped, or referred to, from then on. It stays false for ever where
/// the kernel could not deregister the region: then the device may go on using the memory.
///
/// ```no_run
/// # fn unmap(_: *mut u8) {}
/// # fn f(domain: efa_verbs::ProtectionDomain, memory: *mut u8, transfer: impl Fn(&efa_verbs::MemoryRegion),
/// #      poll: impl Fn()) -> efa_verbs::Result<()> {
/// // SAFETY: the memory is mapped until the region is deregistered, and nobody refers to it.
/// let region = unsafe { domain.register_raw(memory, 4096, efa_verbs::Access::LOCAL) }?;
/// let watch = region.watch();
/// transfer(&region); // keeps handles until its requests have ended
/// drop(region);
/// while !watch.is_deregistered() {
///     poll();
/// }
/// unmap(memory);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RegionWatch(Arc<AtomicBool>);

impl RegionWatch {
    /// Whether the region is deregistered.
    pub fn is_deregistered(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// What can be said before the kernel is asked.
fn check(domain: &ProtectionDomain, len: usize, access: Access) -> Result<()> {
    let context = domain.context();
    context.check_process()?;
    let attributes = context.attributes();
    if let Some((feature, why)) = attributes.missing(&access.needs()) {
        let why = why.map(|why| format!("{why}; or register the memory without that access"));
        return Err(Error::Unsupported {
            device: context.device_name().to_owned(),
            feature,
            advice: why.map(Into::into),
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
            Some(libc::EFAULT) if access.contains(Access::LOCAL) => Some(
                "part of the range is not mapped for reading and writing, as the access demands, or is \
                 not ordinary memory",
            ),
            Some(libc::EFAULT) => {
                Some("part of the range is not mapped for reading, or is not ordinary memory")
            }
            _ => None,
        };
        let object = format!("{len} bytes on {}", domain.context().device_name());
        Error::verb("ibv_reg_mr", object, error).advise(advice)
    })
}
