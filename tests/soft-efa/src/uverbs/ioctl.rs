//! Attribute ioctls: the framework's own checks, as the kernel makes them before a method runs.

use std::os::fd::RawFd;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::abi::{
    ATTR_MANDATORY, ATTR_UHW_IN, ATTR_UHW_OUT, ATTR_VALID_OUTPUT, DRIVER_EFA, IoctlAttr,
    IoctlHeader,
};
use super::channel::Channel;
use super::context::{Context, ObjectKind};
use super::fds::Kind;
use super::methods::{self, Method};
use super::process::Process;
use super::user::{self, Out};

/// What an attribute carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Data of `min` to `max` bytes; `extends`: longer if the rest is zero.
    In { min: u16, max: u16, extends: bool },
    /// Room for an answer of at least `min` bytes.
    Out { min: u16 },
    /// The handle of an object that is used.
    Uses(ObjectKind),
    /// The handle of an object that is destroyed.
    Destroys(ObjectKind),
    /// Where the handle of a new object goes.
    NewHandle,
    /// Where a new descriptor goes.
    NewFd,
    /// The descriptor of a completion channel.
    ChannelFd,
    /// The descriptor of an asynchronous event file.
    AsyncFd,
    /// Any descriptor.
    RawFd,
    /// An object of a kind that EFA doesn't have: no handle names one.
    Absent,
}

/// An attribute that a method knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) id: u16,
    pub(crate) carries: Carries,
    pub(crate) mandatory: bool,
}

impl Spec {
    pub(crate) const fn must(id: u16, carries: Carries) -> Self {
        Self {
            id,
            carries,
            mandatory: true,
        }
    }

    pub(crate) const fn may(id: u16, carries: Carries) -> Self {
        Self {
            id,
            carries,
            mandatory: false,
        }
    }
}

/// Data of exactly `len` bytes.
pub(crate) const fn exactly(len: u16) -> Carries {
    Carries::In {
        min: len,
        max: len,
        extends: false,
    }
}

/// A struct of `len` bytes, which may have grown.
pub(crate) const fn growing(len: u16) -> Carries {
    Carries::In {
        min: len,
        max: len,
        extends: true,
    }
}

/// Flags: 4 or 8 bytes.
pub(crate) const FLAGS: Carries = Carries::In {
    min: 4,
    max: 8,
    extends: false,
};
/// A constant: 8 bytes.
pub(crate) const CONST: Carries = exactly(8);
/// Any data.
pub(crate) const ANY_IN: Carries = Carries::In {
    min: 0,
    max: u16::MAX,
    extends: false,
};

/// The driver's part, which every method with one has.
pub(crate) const UHW: [Spec; 2] = [
    Spec::may(ATTR_UHW_IN, ANY_IN),
    Spec::may(ATTR_UHW_OUT, Carries::Out { min: 0 }),
];

/// The attributes of one call, checked against their specifications.
#[derive(Debug)]
pub(crate) struct Attrs<'a> {
    pub(crate) process: &'static Process,
    pub(crate) context: &'a Context,
    pub(crate) fd: RawFd,
    /// Where the program has its attributes.
    base: u64,
    present: Vec<(usize, IoctlAttr)>,
}

/// Runs one ioctl whose header is at `arg`.
pub(crate) fn run(
    process: &'static Process,
    context: &Context,
    fd: RawFd,
    arg: u64,
) -> Result<(), i32> {
    const HEADER: u64 = size_of::<IoctlHeader>() as u64;
    let header: IoctlHeader = user::read_value(arg)?;
    let attrs_len = usize::from(header.num_attrs) * size_of::<IoctlAttr>();
    if header.length > 4096 || usize::from(header.length) != size_of::<IoctlHeader>() + attrs_len {
        return Err(libc::EINVAL);
    }
    if header.reserved1 != 0 || header.reserved2 != 0 {
        return Err(libc::EPROTONOSUPPORT);
    }
    if header.driver_id != DRIVER_EFA {
        return Err(libc::EINVAL);
    }
    let method = methods::find(header.object_id, header.method_id).ok_or(libc::EPROTONOSUPPORT)?;
    let base = arg.wrapping_add(HEADER);
    let bytes = user::read(base, attrs_len)?;
    let mut attrs = Attrs {
        process,
        context,
        fd,
        base,
        present: Vec::new(),
    };
    for (index, chunk) in bytes.chunks_exact(size_of::<IoctlAttr>()).enumerate() {
        let attr = IoctlAttr::read_from_bytes(chunk).map_err(|_| libc::EINVAL)?;
        attrs.take(&method, index, attr)?;
    }
    let missing = method
        .specs()
        .any(|spec| spec.mandatory && attrs.get(spec.id).is_none());
    if missing {
        return Err(libc::EINVAL);
    }
    (method.run)(&attrs)?;
    if method.driver {
        // The kernel can't tell what a driver wrote and marks its part as written.
        attrs.mark_written(ATTR_UHW_OUT)?;
    }
    Ok(())
}

impl Attrs<'_> {
    fn take(&mut self, method: &Method, index: usize, attr: IoctlAttr) -> Result<(), i32> {
        let Some(spec) = method.specs().find(|spec| spec.id == attr.attr_id) else {
            return if attr.flags & ATTR_MANDATORY != 0 {
                Err(libc::EPROTONOSUPPORT)
            } else {
                Ok(())
            };
        };
        if self.get(attr.attr_id).is_some() || attr.attr_data != 0 {
            return Err(libc::EINVAL);
        }
        match spec.carries {
            Carries::In { min, max, extends } => {
                if attr.len < min || (attr.len > max && !extends) {
                    return Err(libc::EINVAL);
                }
                if attr.len > max {
                    let bytes = data_of(&attr)?;
                    if bytes[usize::from(max)..].iter().any(|byte| *byte != 0) {
                        return Err(libc::EOPNOTSUPP);
                    }
                }
            }
            Carries::Out { min } => {
                if attr.len < min {
                    return Err(libc::EINVAL);
                }
            }
            _ if attr.len != 0 => return Err(libc::EINVAL),
            Carries::Uses(kind) | Carries::Destroys(kind) => {
                let handle = u32::try_from(attr.data).map_err(|_| libc::ENOENT)?;
                match self.context.objects().kind(handle) {
                    Some(found) if found == kind => {}
                    Some(_) => return Err(libc::EINVAL),
                    None => return Err(libc::ENOENT),
                }
            }
            Carries::ChannelFd => drop(self.channel_at(&attr)?),
            Carries::AsyncFd => match self.process.fds.get(fd_of(&attr)?) {
                Some(Kind::AsyncEvent { .. }) => {}
                Some(_) => return Err(libc::EINVAL),
                None => return Err(libc::EBADF),
            },
            Carries::RawFd => drop(fd_of(&attr)?),
            Carries::Absent => return Err(libc::EINVAL),
            Carries::NewHandle | Carries::NewFd => {}
        }
        self.present.push((index, attr));
        Ok(())
    }

    fn get(&self, id: u16) -> Option<&(usize, IoctlAttr)> {
        self.present.iter().find(|(_, attr)| attr.attr_id == id)
    }

    /// Whether the program gave the attribute.
    pub(crate) fn has(&self, id: u16) -> bool {
        self.get(id).is_some()
    }

    /// The data of an attribute; nothing where it is absent.
    pub(crate) fn data(&self, id: u16) -> Result<Vec<u8>, i32> {
        self.get(id)
            .map_or(Ok(Vec::new()), |(_, attr)| data_of(attr))
    }

    /// A number of up to 8 bytes; 0 where the attribute is absent.
    pub(crate) fn number(&self, id: u16) -> u64 {
        self.get(id).map_or(0, |(_, attr)| {
            let bytes = attr.data.to_ne_bytes();
            let len = usize::from(attr.len).min(8);
            let mut number = [0; 8];
            number[..len].copy_from_slice(&bytes[..len]);
            u64::from_ne_bytes(number)
        })
    }

    /// A number of 4 bytes.
    pub(crate) fn number32(&self, id: u16) -> u32 {
        self.number(id) as u32
    }

    /// Flags, of which only `known` may be set; 0 where the attribute is absent.
    pub(crate) fn flags(&self, id: u16, known: u32) -> Result<u32, i32> {
        if self
            .get(id)
            .is_some_and(|(_, attr)| attr.len != 4 && attr.len != 8)
        {
            return Err(libc::EINVAL);
        }
        let flags = self.number(id);
        if flags & !u64::from(known) != 0 {
            Err(libc::EINVAL)
        } else {
            Ok(flags as u32)
        }
    }

    /// A handle that was checked to name an object of its kind.
    pub(crate) fn handle(&self, id: u16) -> u32 {
        self.get(id).map_or(u32::MAX, |(_, attr)| attr.data as u32)
    }

    /// A descriptor.
    pub(crate) fn raw_fd(&self, id: u16) -> Result<RawFd, i32> {
        self.get(id)
            .map_or(Err(libc::EBADF), |(_, attr)| fd_of(attr))
    }

    fn channel_at(&self, attr: &IoctlAttr) -> Result<Arc<Channel>, i32> {
        match self.process.fds.get(fd_of(attr)?) {
            Some(Kind::Channel(channel)) => Ok(channel),
            Some(_) => Err(libc::EINVAL),
            None => Err(libc::EBADF),
        }
    }

    /// The completion channel that an attribute names.
    pub(crate) fn channel(&self, id: u16) -> Result<Option<Arc<Channel>>, i32> {
        self.get(id)
            .map(|(_, attr)| self.channel_at(attr))
            .transpose()
    }

    /// The room for an answer.
    pub(crate) fn room(&self, id: u16) -> Out {
        self.get(id).map_or(Out::default(), |(_, attr)| Out {
            addr: attr.data,
            len: attr.len.into(),
        })
    }

    /// Answers in an attribute, as far as there is room.
    pub(crate) fn answer(&self, id: u16, bytes: &[u8]) -> Result<(), i32> {
        self.room(id).put(bytes)?;
        self.mark_written(id)
    }

    /// Answers in an attribute, with zeros in what is left of its room.
    pub(crate) fn answer_or_zero(&self, id: u16, bytes: &[u8]) -> Result<(), i32> {
        self.room(id).put_or_zero(bytes)?;
        self.mark_written(id)
    }

    /// Puts a handle or descriptor where the attribute's data is.
    pub(crate) fn answer_handle(&self, id: u16, handle: u64) -> Result<(), i32> {
        match self.get(id) {
            Some((index, _)) => user::write_value(self.place(*index) + 8, &handle),
            None => Ok(()),
        }
    }

    /// Tells the program that an answer was written.
    pub(crate) fn mark_written(&self, id: u16) -> Result<(), i32> {
        match self.get(id) {
            Some((index, attr)) => {
                user::write_value(self.place(*index) + 4, &(attr.flags | ATTR_VALID_OUTPUT))
            }
            None => Ok(()),
        }
    }

    fn place(&self, index: usize) -> u64 {
        self.base + (index * size_of::<IoctlAttr>()) as u64
    }
}

/// Data of up to 8 bytes lies in the attribute itself.
fn data_of(attr: &IoctlAttr) -> Result<Vec<u8>, i32> {
    let len = usize::from(attr.len);
    if len <= 8 {
        Ok(attr.data.to_ne_bytes()[..len].to_vec())
    } else {
        user::read(attr.data, len)
    }
}

fn fd_of(attr: &IoctlAttr) -> Result<RawFd, i32> {
    RawFd::try_from(attr.data as i64).map_err(|_| libc::EINVAL)
}
