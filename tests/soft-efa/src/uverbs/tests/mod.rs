//! Tests of both interfaces by their raw bytes, without libibverbs.

mod framework;
mod fuzz;
mod objects;
mod writes;

use std::os::fd::RawFd;
use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::options::Options;

use super::abi::{ATTR_MANDATORY, DRIVER_EFA, IoctlAttr, IoctlHeader};
use super::context::Context;
use super::fds::Kind;
use super::process::{self, Process, RunInfo};
use super::{ioctl, written};

/// A device file in this very process.
struct File {
    process: &'static Process,
    context: Arc<Context>,
    fd: RawFd,
}

fn process(options: Options) -> &'static Process {
    let run = Box::leak(Box::new(RunInfo {
        dir: "/nonexistent".into(),
        options,
    }));
    Box::leak(Box::new(Process::new(run)))
}

impl File {
    /// A device file of its own process, not opened in the verbs' sense yet.
    fn closed(options: Options) -> Self {
        Self::of(process(options))
    }

    fn of(process: &'static Process) -> Self {
        let fd = process.open(0, true).unwrap();
        let Some(Kind::Device(context)) = process.fds.get(fd) else {
            panic!("no device file")
        };
        Self {
            process,
            context,
            fd,
        }
    }

    /// One on which everything can be made.
    fn opened() -> Self {
        let file = Self::closed(Options::default());
        file.open();
        file
    }

    fn open(&self) {
        let both_flags = 3u64;
        self.ioctl(0, 3, &mut [data(0x1000, &both_flags)]).unwrap();
    }

    /// An ioctl with a correct header.
    fn ioctl(&self, object_id: u16, method_id: u16, attrs: &mut [IoctlAttr]) -> Result<(), i32> {
        let header = IoctlHeader {
            length: (24 + 16 * attrs.len()) as u16,
            object_id,
            method_id,
            num_attrs: attrs.len() as u16,
            driver_id: DRIVER_EFA,
            ..IoctlHeader::default()
        };
        self.ioctl_with(header, attrs)
    }

    /// An ioctl with any header.
    fn ioctl_with(&self, header: IoctlHeader, attrs: &mut [IoctlAttr]) -> Result<(), i32> {
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(attrs.as_bytes());
        let result = ioctl::run(self.process, &self.context, self.fd, bytes.as_ptr() as u64);
        attrs.as_mut_bytes().copy_from_slice(&bytes[24..]);
        result
    }

    fn write(&self, bytes: &[u8]) -> Result<(), i32> {
        written::run(
            self.process,
            &self.context,
            self.fd,
            bytes.as_ptr() as u64,
            bytes.len(),
        )
    }

    /// A written command: header, then the request's words.
    fn command(&self, number: u32, request: &[u8], out_words: u16) -> Result<(), i32> {
        let mut bytes = number.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&((request.len() / 4 + 2) as u16).to_ne_bytes());
        bytes.extend_from_slice(&out_words.to_ne_bytes());
        bytes.extend_from_slice(request);
        self.write(&bytes)
    }

    fn count(&self, kind: &str) -> u64 {
        self.context.device.objects()[kind]
    }

    /// A protection domain, by `INVOKE_WRITE`.
    fn alloc_pd(&self) -> u32 {
        let mut handle = 0u32;
        let mut driver = [0u8; 8];
        let mut attrs = [
            number(2, 3),
            data(0, &0u64),
            room(1, handle.as_mut_bytes()),
            room(0x1001, &mut driver),
        ];
        self.ioctl(0, 0, &mut attrs).unwrap();
        handle
    }

    /// A completion queue with the driver's part as given.
    fn create_cq(&self, entries: u32, driver: &[u8]) -> Result<u32, i32> {
        let mut cqe = [0u8; 4];
        let mut response = [0u8; 40];
        let mut attrs = [
            handle(0, 0),
            number32(1, entries),
            number(2, 0x77),
            number32(4, 0),
            room(6, &mut cqe),
            data(0x1000, driver),
            room(0x1001, &mut response),
        ];
        self.ioctl(3, 0, &mut attrs)?;
        Ok(attrs[0].data as u32)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(self.process.fds.remove(self.fd));
        process::close_raw(self.fd);
    }
}

fn attr(id: u16, len: usize, data: u64) -> IoctlAttr {
    IoctlAttr {
        attr_id: id,
        len: len as u16,
        flags: ATTR_MANDATORY,
        attr_data: 0,
        data,
    }
}

/// Input; inline if it is short.
fn data<T: IntoBytes + zerocopy::Immutable + ?Sized>(id: u16, value: &T) -> IoctlAttr {
    let bytes = value.as_bytes();
    let mut inline = [0; 8];
    if bytes.len() <= 8 {
        inline[..bytes.len()].copy_from_slice(bytes);
        attr(id, bytes.len(), u64::from_ne_bytes(inline))
    } else {
        attr(id, bytes.len(), bytes.as_ptr() as u64)
    }
}

fn number(id: u16, value: u64) -> IoctlAttr {
    attr(id, 8, value)
}

fn number32(id: u16, value: u32) -> IoctlAttr {
    data(id, &value)
}

fn handle(id: u16, handle: u32) -> IoctlAttr {
    attr(id, 0, handle.into())
}

fn room(id: u16, bytes: &mut [u8]) -> IoctlAttr {
    attr(id, bytes.len(), bytes.as_mut_ptr() as u64)
}

/// The driver's part of a completion queue with 32-byte entries.
fn plain_cq() -> Vec<u8> {
    // comp_mask, entry size, one ring.
    let mut driver = vec![0u8; 16];
    driver[4] = 32;
    driver[8] = 1;
    driver
}
