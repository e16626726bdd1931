//! Completion queues.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::{CqSpec, Verb};

use super::abi::{EfaCreateCq, EfaCreateCqResp, efa};
use super::channel::Channel;
use super::context::{Context, Cq, Mappable, Object};
use super::device::Counted;
use super::process::Process;
use super::ring::{Mapping, page_align, page_size};

/// Memory for a completion ring that the program brings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExternalRing {
    pub(crate) fd: RawFd,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A request for a completion queue, whichever way it came in.
#[derive(Debug)]
pub(crate) struct CqRequest {
    pub(crate) entries: u32,
    pub(crate) user_handle: u64,
    pub(crate) comp_vector: u32,
    pub(crate) flags: u32,
    pub(crate) channel: Option<Arc<Channel>>,
    pub(crate) external: Option<ExternalRing>,
    /// What libefa added.
    pub(crate) driver: Vec<u8>,
}

/// A completion queue that was made.
#[derive(Debug)]
pub(crate) struct CqMade {
    pub(crate) handle: u32,
    pub(crate) entries: u32,
    pub(crate) driver: EfaCreateCqResp,
}

impl Cq {
    /// Takes back the events that the program has not read; the number of those that it has.
    pub(super) fn withdraw_events(&self, process: &Process) -> u32 {
        let Some(channel) = &self.channel else {
            return 0;
        };
        let raised = self.raised.load(Ordering::Relaxed);
        if raised == 0 {
            return 0;
        }
        // Without a descriptor nobody can read the rest, and nobody will wait for it.
        let unread = process
            .fds
            .of_channel(channel)
            .map_or(0, |fd| channel.take_back(self.user_handle, fd));
        raised.saturating_sub(unread)
    }
}

impl Context {
    /// Makes a completion queue; `fd` is the descriptor through which the program asks.
    pub(crate) fn create_cq(&self, fd: RawFd, request: CqRequest) -> Result<CqMade, i32> {
        let profile = self.device.profile();
        if request.comp_vector >= self.device.comp_vectors() {
            return Err(libc::EINVAL);
        }
        if request.flags != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if request.entries < 1 || request.entries > profile.max_cqe {
            return Err(libc::EINVAL);
        }
        // A request that ends before the flags is as old as libefa without events.
        let driver: EfaCreateCq = super::udata::driver_request(&request.driver, 10)?;
        if driver.comp_mask != 0 || driver.reserved != [0; 5] {
            return Err(libc::EINVAL);
        }
        let src_addr = driver.flags & efa::CQ_WITH_SGID != 0;
        let size_fits = match driver.cq_entry_size {
            32 => true,
            16 => !src_addr,
            _ => false,
        };
        if !size_fits || driver.num_sub_cqs != profile.sub_cqs_per_cq {
            return Err(libc::EINVAL);
        }
        let wants_events = driver.flags & efa::CQ_WITH_COMPLETION_CHANNEL != 0;
        if wants_events && !profile.cq_notifications {
            return Err(libc::EOPNOTSUPP);
        }
        self.allocation(Verb::CreateCq)?;

        let ring_bytes = u64::from(driver.cq_entry_size) * u64::from(request.entries);
        let all_bytes = page_align(ring_bytes * u64::from(driver.num_sub_cqs));
        let mut resp = EfaCreateCqResp::default();
        let (memory, doorbell) = match request.external {
            None if !profile.cq_notifications => {
                let memory = self.allocate(fd, all_bytes)?;
                resp.q_mmap_key = memory.key();
                resp.q_mmap_size = all_bytes;
                (memory, None)
            }
            None => {
                let memory = self.allocate(fd, all_bytes + page_size())?;
                resp.q_mmap_key = memory.key();
                resp.q_mmap_size = all_bytes;
                resp.db_mmap_key = memory.key() + all_bytes;
                resp.comp_mask |= efa::CQ_RESP_DB_OFF;
                let doorbell = memory.at(all_bytes).cast::<u32>();
                (memory, Some(doorbell))
            }
            Some(ring) => {
                if ring.length < all_bytes {
                    return Err(libc::EINVAL);
                }
                (external_ring(ring)?, None)
            }
        };

        let raised = Arc::new(AtomicU32::new(0));
        let engine = self.device.engine()?;
        let mut rings: Vec<u16> = Vec::new();
        for index in 0..driver.num_sub_cqs {
            let notify = match &request.channel {
                Some(channel) if wants_events => {
                    let (channel, raised) = (channel.clone(), raised.clone());
                    let handle = request.user_handle;
                    let notify: Box<dyn Fn() + Send + Sync> = Box::new(move || {
                        raised.fetch_add(1, Ordering::Relaxed);
                        channel.push(handle);
                    });
                    Some(notify)
                }
                _ => None,
            };
            let spec = CqSpec {
                ring: memory.at(ring_bytes * u64::from(index)),
                entries: request.entries,
                entry_size: driver.cq_entry_size,
                src_addr,
                doorbell,
                notify,
            };
            // SAFETY: the ring and the doorbell lie in `memory`, which is kept by the object
            // below until `destroy` has taken the queue from the engine.
            match unsafe { engine.create_cq(spec) } {
                Ok(ring) => rings.push(ring),
                Err(errno) => {
                    for ring in rings {
                        engine.destroy_cq(ring);
                    }
                    return Err(errno);
                }
            }
        }
        resp.cq_idx = rings[0];
        let cq = Cq {
            rings,
            users: 0,
            user_handle: request.user_handle,
            channel: request.channel,
            raised,
            mappable: [
                (resp.q_mmap_key, resp.q_mmap_size),
                (resp.db_mmap_key, page_size()),
            ]
            .into_iter()
            .filter(|(key, _)| *key != 0)
            .map(|(key, bytes)| Mappable::new(key, bytes))
            .collect(),
            _memory: vec![memory],
            _alive: self.count(Counted::Cq),
        };
        let handle = self.objects().insert(Object::Cq(cq));
        Ok(CqMade {
            handle,
            entries: request.entries,
            driver: resp,
        })
    }
}

fn external_ring(ring: ExternalRing) -> Result<Mapping, i32> {
    check_file(ring.fd, ring.offset, ring.length, true)?;
    Mapping::of_file(ring.fd, ring.offset, ring.length, true).map_err(|_| libc::EINVAL)
}

/// Checks that `fd` stands in for a dmabuf: it is open, can be mapped and is long enough.
pub(crate) fn check_file(fd: RawFd, offset: u64, length: u64, writable: bool) -> Result<(), i32> {
    let end = offset
        .checked_add(length)
        .filter(|_| length > 0)
        .ok_or(libc::EINVAL)?;
    // SAFETY: fcntl with F_GETFL takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags == -1 {
        return Err(libc::EBADF);
    }
    if writable && flags & libc::O_ACCMODE != libc::O_RDWR {
        return Err(libc::EACCES);
    }
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` has room for what the call writes.
    if unsafe { libc::syscall(libc::SYS_fstat, fd, stat.as_mut_ptr()) } == -1 {
        return Err(libc::EBADF);
    }
    // SAFETY: zeroed is a valid value already, and the call succeeded.
    let stat = unsafe { stat.assume_init() };
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    // Mapping a file beyond its end succeeds and faults later. Devices have no size to compare.
    if regular && end > page_align(stat.st_size as u64) {
        return Err(libc::EINVAL);
    }
    Ok(())
}
