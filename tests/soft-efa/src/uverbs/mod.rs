//! The kernel's side of a device: the device file and everything that is asked of it.
//!
//! This is what `ib_uverbs` and the EFA driver do: descriptors, both interfaces (attribute ioctls
//! and written commands), handles, limits, and the same `errno` for the same mistake. What happens
//! once objects exist is the engine's.
//!
//! The functions here are called by the interposed C functions of the preloaded library. They
//! answer for descriptors of soft-efa only and leave all others to the caller.

mod abi;
mod channel;
mod commands;
mod context;
mod cq;
mod device;
mod domain;
mod fds;
mod ioctl;
mod libefa;
pub(crate) mod locked;
mod methods;
mod mr;
pub mod netlink;
mod paths;
mod process;
mod qp;
mod query;
mod relative;
mod ring;
#[cfg(test)]
mod tests;
mod transitions;
mod udata;
mod user;
mod written;

use std::os::fd::RawFd;

use process::DeviceFile;

pub use paths::{Route, unroute};
pub use relative::{route_at, visible_directory};

/// Looks at the environment, so that a program that clears it later keeps its devices. Whether
/// there are any.
pub fn prepare() -> bool {
    process::run().is_some()
}

/// Opens device `index`; `errno` if it can't.
pub fn open(index: u32, cloexec: bool) -> Result<RawFd, i32> {
    process::open_device(index, cloexec)
}

/// Whether `fd` may be one of ours. Cheap, and never wrong for one that is.
pub fn is_marked(fd: RawFd) -> bool {
    fds::is_marked(fd)
}

/// The index of the device whose file `fd` is.
pub fn device_index(fd: RawFd) -> Option<u32> {
    match process::device_file(fd) {
        DeviceFile::Own(_, context) => Some(context.device.index),
        _ => None,
    }
}

/// Answers an ioctl on a device file; `None` for any other descriptor.
pub fn ioctl(fd: RawFd, request: u64, arg: usize) -> Option<Result<(), i32>> {
    match process::device_file(fd) {
        DeviceFile::Foreign => None,
        DeviceFile::Inherited => Some(Err(libc::EIO)),
        DeviceFile::Own(process, context) => {
            // The kernel looks at 32 bits.
            let known =
                request & 0xffff_ffff == abi::RDMA_VERBS_IOCTL && process::offers_ioctl(process);
            Some(if known {
                ioctl::run(process, &context, fd, arg as u64)
            } else {
                Err(libc::ENOTTY)
            })
        }
    }
}

/// Whether `fd` is a device file, be it of the process that forked this one.
pub fn is_device_file(fd: RawFd) -> bool {
    !matches!(process::device_file(fd), DeviceFile::Foreign)
}

/// Whether `fd` is a file of events, of completion queues or others.
pub fn is_event_file(fd: RawFd) -> bool {
    process::is_event_file(fd)
}

/// Answers a write to a device file; `None` for any other descriptor.
pub fn write(fd: RawFd, buf: usize, count: usize) -> Option<Result<usize, i32>> {
    match process::device_file(fd) {
        DeviceFile::Foreign => None,
        DeviceFile::Inherited => Some(Err(libc::EIO)),
        DeviceFile::Own(process, context) => {
            Some(written::run(process, &context, fd, buf as u64, count).map(|()| count))
        }
    }
}

/// Whether the pages of a device file may be mapped; `None` for any other descriptor.
pub fn mmap(fd: RawFd, bytes: usize, flags: i32, offset: i64) -> Option<Result<(), i32>> {
    let DeviceFile::Own(_, context) = process::device_file(fd) else {
        return None;
    };
    let private = flags & libc::MAP_TYPE == libc::MAP_PRIVATE;
    let asked = context::Mappable::new(offset as u64, bytes as u64);
    Some(if private || !context.objects().is_mappable(asked) {
        Err(libc::EINVAL)
    } else {
        Ok(())
    })
}

/// What a closed descriptor was. To be dropped once it is closed, and not before: that takes
/// down the objects, and a thread of the program may get the number meanwhile.
#[derive(Debug)]
pub struct Closed(#[allow(dead_code, reason = "its drop is what it is for")] Option<fds::Kind>);

/// The program is about to close `fd`.
pub fn closing(fd: RawFd) -> Closed {
    Closed(process::closing(fd))
}

/// The program has made `new` another descriptor for `old`.
pub fn duplicated(old: RawFd, new: RawFd) {
    process::duplicated(old, new);
}

/// The descriptors of ours from `first` to `last`, which the program is about to close.
pub fn own_between(first: u32, last: u32) -> Vec<RawFd> {
    process::own_between(RawFd::try_from(first).unwrap_or(RawFd::MAX), last)
}
