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
use super::context::{Context, ObjectKind};
use super::fds::Kind;
use super::process::{Process, RunInfo};
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

    fn counter(&self, name: &str) -> u64 {
        let counters = crate::ctl::Control::counters(self.process, None).unwrap();
        counters[name]
    }

    /// One more object, by its simplest command: in the domain 0, with the completion queue 1 or
    /// whichever is the first.
    fn allocate(&self, verb: &str) -> Result<(), i32> {
        static MEMORY: [u8; 4096] = [0; 4096];
        let mut response = [0u8; 32];
        let mut driver_response = [0u8; 64];
        let first_cq = {
            let objects = self.context.objects();
            objects.handles(ObjectKind::Cq).first().copied()
        };
        let cq = first_cq.unwrap_or(1);
        let mut driver = Vec::new();
        let (number_of_command, core) = match verb {
            "alloc_pd" => (3, vec![0u8; 8]),
            "create_channel" => (17, vec![0; 8]),
            "create_cq" => return self.create_cq(8, &plain_cq()).map(drop),
            "reg_mr" => {
                let start = MEMORY.as_ptr() as u64;
                let mut core = vec![0; 8];
                for value in [start, 4096, start, 0] {
                    core.extend_from_slice(&value.to_ne_bytes());
                }
                (9, core)
            }
            "create_ah" => {
                let mut core = vec![0; 56];
                core[24..40].copy_from_slice(&self.context.device.gid());
                // is_global, port_num
                (core[53], core[54]) = (1, 1);
                (5, core)
            }
            _ => {
                let mut core = vec![0; 56];
                core[20..24].copy_from_slice(&cq.to_ne_bytes());
                core[24..28].copy_from_slice(&cq.to_ne_bytes());
                core[53] = 0xff;
                driver = vec![0; 24];
                (24, core)
            }
        };
        let mut attrs = vec![
            number(2, number_of_command),
            data(0, core.as_slice()),
            room(1, &mut response),
            room(0x1001, &mut driver_response),
        ];
        if !driver.is_empty() {
            attrs.push(data(0x1000, driver.as_slice()));
        }
        self.ioctl(0, 0, &mut attrs)
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
        self.process.take_back(self.fd);
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
