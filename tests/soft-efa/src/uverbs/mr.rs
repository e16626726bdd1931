//! Memory regions.

use std::os::fd::RawFd;
use std::sync::OnceLock;

use crate::checks;
use crate::engine::{Access, Backing, MrSpec, Verb};

use super::abi::access;
use super::context::{Context, Mr, Object};
use super::cq::check_file;
use super::device::Counted;
use super::locked::Charge;
use super::ring::{Mapping, page_size};

/// A memory region that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MrMade {
    pub(crate) handle: u32,
    pub(crate) key: u32,
}

/// What the kernel's core checks for every driver.
fn check_core_access(flags: u32) -> Result<(), i32> {
    let supported = ((access::FLUSH_PERSISTENT << 1) - 1) | access::OPTIONAL;
    let remote_writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if flags & !supported != 0 || (flags & remote_writes != 0 && flags & access::LOCAL_WRITE == 0) {
        return Err(libc::EINVAL);
    }
    if flags & access::ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

impl Context {
    /// The flags that the device keeps, or the driver's refusal.
    fn check_driver_access(&self, flags: u32) -> Result<Access, i32> {
        let profile = self.device.profile();
        let mut supported = access::LOCAL_WRITE;
        if profile.rdma_read {
            supported |= access::REMOTE_READ;
        }
        if profile.rdma_write {
            supported |= access::REMOTE_WRITE;
        }
        let flags = flags & !access::OPTIONAL;
        if flags & !supported != 0 {
            Err(libc::EOPNOTSUPP)
        } else {
            Ok(Access(flags))
        }
    }

    /// Registers the program's memory. `driver` is what libefa added: nothing, or zeros.
    pub(crate) fn reg_mr(
        &self,
        pd: u32,
        start: u64,
        length: u64,
        iova: u64,
        flags: u32,
        driver: &[u8],
    ) -> Result<MrMade, i32> {
        if start % page_size() != iova % page_size() {
            return Err(libc::EINVAL);
        }
        check_core_access(flags)?;
        self.objects().pd(pd)?;
        super::udata::must_be_clear(driver)?;
        let access = self.check_driver_access(flags)?;
        // Pages are pinned before the device is asked, at most 2^32 of them.
        let end = start
            .checked_add(length)
            .and_then(|end| end.checked_next_multiple_of(page_size()))
            .ok_or(libc::EINVAL)?;
        let first = start - start % page_size();
        let pages = (end - first) / page_size();
        if pages == 0 || pages > u32::MAX.into() {
            return Err(libc::EINVAL);
        }
        let dir = &self.process.run.dir;
        let locked = self.process.locked.charge(dir, start, length)?;
        pin(first, end - first, access.contains(Access::LOCAL_WRITE))?;
        if length == 0 {
            // The device's answer.
            return Err(libc::EINVAL);
        }
        checks::region_length(self.device.profile(), length)?;
        self.register(
            pd,
            Some(locked),
            MrSpec {
                pd: 0,
                iova,
                length,
                backing: Backing::UserVa(start),
                access,
            },
        )
    }

    /// Registers pages of a file that stands in for a dmabuf.
    pub(crate) fn reg_dmabuf_mr(
        &self,
        pd: u32,
        fd: RawFd,
        offset: u64,
        length: u64,
        iova: u64,
        flags: u32,
    ) -> Result<MrMade, i32> {
        if offset % page_size() != iova % page_size() {
            return Err(libc::EINVAL);
        }
        check_core_access(flags)?;
        let access = self.check_driver_access(flags)?;
        self.objects().pd(pd)?;
        checks::region_length(self.device.profile(), length)?;
        let writable = access.contains(Access::LOCAL_WRITE);
        check_file(fd, offset, length, writable)?;
        let mapping =
            Mapping::of_file(fd, offset, length, writable).map_err(|errno| match errno {
                libc::ENOMEM => libc::ENOMEM,
                libc::EACCES => libc::EACCES,
                // Not something that can be mapped.
                _ => libc::EINVAL,
            })?;
        let backing = Backing::Mapping {
            address: mapping.at(0) as u64,
            owner: Box::new(mapping),
        };
        self.register(
            pd,
            None,
            MrSpec {
                pd: 0,
                iova,
                length,
                backing,
                access,
            },
        )
    }

    fn register(&self, pd: u32, locked: Option<Charge>, mut spec: MrSpec) -> Result<MrMade, i32> {
        self.allocation(Verb::RegMr)?;
        let mut objects = self.objects();
        let domain = objects.pd_mut(pd)?;
        let (iova, length) = (spec.iova, spec.length);
        spec.pd = domain.number.into();
        // SAFETY: registering memory gives the device the right to use it; that is what the
        // program asked for. The region's own mapping, if it has one, is kept by the engine.
        let key = unsafe { self.device.engine()?.reg_mr(spec) }?;
        domain.users += 1;
        let mr = Mr {
            pd,
            key,
            length,
            iova,
            _locked: locked,
            _alive: self.count(Counted::Mr),
        };
        Ok(MrMade {
            handle: objects.insert(Object::Mr(mr)),
            key,
        })
    }
}

const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

/// Whether the system can bring pages in, found out with a page that is certainly there.
fn knows_populate() -> bool {
    static KNOWS: OnceLock<bool> = OnceLock::new();
    *KNOWS.get_or_init(|| {
        let here = 0u8;
        let page = page_size() as usize;
        let start = (&raw const here as usize / page * page) as *mut libc::c_void;
        // SAFETY: the page of a local variable; populating it changes nothing.
        unsafe { libc::madvise(start, page, MADV_POPULATE_READ) == 0 }
    })
}

/// Does to the program's memory what pinning would: brings the pages in and fails where there are
/// none, or none that may be written.
fn pin(start: u64, length: u64, writable: bool) -> Result<(), i32> {
    /// Above this, pages are sampled: nobody wants to wait for, or pay for, all of them here.
    const ALL: u64 = 64 << 20;
    const STRIDE: u64 = 2 << 20;

    let page = page_size();
    let first = start - start % page;
    let end = start + length;
    let last = (end - 1) - (end - 1) % page;
    let populate = |at: u64, bytes: u64| -> Result<(), i32> {
        let advice = if writable {
            MADV_POPULATE_WRITE
        } else {
            MADV_POPULATE_READ
        };
        // SAFETY: populating reads or writes back what is there; contents don't change.
        if unsafe { libc::madvise(at as *mut libc::c_void, bytes as usize, advice) } == 0 {
            return Ok(());
        }
        // A sandbox or a kernel before 5.14 doesn't know the advice: the engine's own check has to
        // do. Otherwise there is no memory, or none that may be used like this.
        if knows_populate() {
            Err(libc::EFAULT)
        } else {
            Ok(())
        }
    };
    if length <= ALL {
        return populate(first, last + page - first);
    }
    let mut at = first;
    while at < last {
        populate(at, page)?;
        at += STRIDE;
    }
    populate(last, page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_and_read_only_memory_can_t_be_pinned() {
        let page = page_size();
        // SAFETY: a new private mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * page as usize,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let start = base as u64;
        assert_eq!(pin(start + 8, 3 * page - 16, false), Ok(()));
        assert_eq!(pin(start, page, true), Err(libc::EFAULT));
        // SAFETY: the middle page of the mapping above; nothing is in it.
        unsafe { libc::munmap((start + page) as *mut libc::c_void, page as usize) };
        assert_eq!(pin(start, 3 * page, false), Err(libc::EFAULT));
    }

    #[test]
    fn remote_writes_need_local_writes() {
        assert_eq!(check_core_access(access::REMOTE_WRITE), Err(libc::EINVAL));
        assert_eq!(
            check_core_access(access::REMOTE_WRITE | access::LOCAL_WRITE),
            Ok(())
        );
        assert_eq!(
            check_core_access(access::REMOTE_READ | access::RELAXED_ORDERING),
            Ok(())
        );
        assert_eq!(check_core_access(1 << 15), Err(libc::EINVAL));
        assert_eq!(check_core_access(access::ON_DEMAND), Err(libc::EOPNOTSUPP));
    }
}
