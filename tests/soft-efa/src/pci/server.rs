//! A vfio-user server: one client after another drives the function.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::function::{Function, IRQ_KINDS, IrqAction, IrqChange, REGIONS};
use super::wire::{Connection, MOST_DATA, MOST_FILES, Request, WireError};

mod command {
    pub(super) const VERSION: u16 = 1;
    pub(super) const DMA_MAP: u16 = 2;
    pub(super) const DMA_UNMAP: u16 = 3;
    pub(super) const DEVICE_INFO: u16 = 4;
    pub(super) const REGION_INFO: u16 = 5;
    pub(super) const IRQ_INFO: u16 = 7;
    pub(super) const SET_IRQS: u16 = 8;
    pub(super) const REGION_READ: u16 = 9;
    pub(super) const REGION_WRITE: u16 = 10;
    pub(super) const RESET: u16 = 13;
}

/// Flags of the kernel's VFIO interface, which the protocol uses.
mod flag {
    /// A device can be reset; it is a PCI device.
    pub(super) const DEVICE: u32 = 1 | 2;
    pub(super) const REGION_READ: u32 = 1;
    pub(super) const REGION_WRITE: u32 = 2;
    pub(super) const REGION_MAP: u32 = 4;
    pub(super) const IRQ_EVENTFD: u32 = 1;
    pub(super) const IRQ_DATA_NONE: u32 = 1;
    pub(super) const IRQ_DATA_EVENTFD: u32 = 4;
    pub(super) const IRQ_TRIGGER: u32 = 32;
    pub(super) const MAP_WRITE: u32 = 2;
    pub(super) const UNMAP_ALL: u32 = 4;
}

macro_rules! bodies {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {$(
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        struct $name {
            $($field: $type,)*
        }
    )*};
}

bodies! {
    Version { major: U16, minor: U16, }
    Map { argsz: U32, flags: U32, offset: U64, address: U64, size: U64, }
    Unmap { argsz: U32, flags: U32, address: U64, size: U64, }
    DeviceInfo { argsz: U32, flags: U32, regions: U32, irqs: U32, }
    RegionInfo { argsz: U32, flags: U32, index: U32, cap_offset: U32, size: U64, offset: U64, }
    IrqInfo { argsz: U32, flags: U32, index: U32, count: U32, }
    IrqSet { argsz: U32, flags: U32, index: U32, start: U32, count: U32, }
    Access { offset: U64, region: U32, count: U32, }
}

/// The protocol's version that the server speaks.
const MAJOR: u16 = 0;

/// A function that a server and others share.
pub(crate) type Shared = Arc<Mutex<Function>>;

/// Takes the lock. A message that panicked has left the function whole, since every change of it
/// is one step.
pub(crate) fn lock(function: &Shared) -> MutexGuard<'_, Function> {
    function.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves clients of `listener`, one after another, until accepting fails; after the first one
/// only, if `once`.
pub(crate) fn listen(function: &Shared, listener: &UnixListener, once: bool) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        serve(function, stream);
        if once {
            return Ok(());
        }
    }
}

/// Serves one client until it goes away. Nothing of what it lent is kept after that.
pub(crate) fn serve(function: &Shared, stream: UnixStream) {
    let name = lock(function).device().name();
    if let Err(error) = converse(function, &Connection::new(stream)) {
        eprintln!("soft-efa: {name}: {error}; the client is cut off");
    }
    lock(function).disconnect();
}

fn converse(function: &Shared, connection: &Connection) -> Result<(), WireError> {
    loop {
        let rest = lock(function).tick(Instant::now());
        if !connection.wait(rest.min(Duration::from_secs(1)))? {
            continue;
        }
        let Some(mut request) = connection.receive()? else {
            return Ok(());
        };
        let mut function = lock(function);
        if request.command == command::REGION_INFO {
            region_info(&function, connection, &request)?;
            continue;
        }
        let result = answer(&mut function, &mut request);
        drop(function);
        connection.reply(&request, result.as_deref().map_err(|errno| *errno), None)?;
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<T, i32> {
    T::read_from_prefix(body)
        .map(|(value, _)| value)
        .map_err(|_| libc::EINVAL)
}

fn check(fine: bool) -> Result<(), i32> {
    if fine { Ok(()) } else { Err(libc::EINVAL) }
}

/// Carries out a request; the answer's body, or an errno.
fn answer(function: &mut Function, request: &mut Request) -> Result<Vec<u8>, i32> {
    let files = std::mem::take(&mut request.files);
    let body = &request.body;
    match request.command {
        command::VERSION => version(body),
        command::DMA_MAP => {
            let map: Map = read(body)?;
            check(files.len() <= 1)?;
            let writable = map.flags.get() & flag::MAP_WRITE != 0;
            function
                .map(
                    map.address.get(),
                    map.size.get(),
                    files.first(),
                    map.offset.get(),
                    writable,
                )
                .map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
            Ok(Vec::new())
        }
        command::DMA_UNMAP => {
            let unmap: Unmap = read(body)?;
            let all = unmap.flags.get() & flag::UNMAP_ALL != 0;
            let range = (!all).then_some((unmap.address.get(), unmap.size.get()));
            check(function.unmap(range))?;
            Ok(unmap.as_bytes().to_vec())
        }
        command::DEVICE_INFO => {
            let info = DeviceInfo {
                argsz: U32::new(size_of::<DeviceInfo>() as u32),
                flags: U32::new(flag::DEVICE),
                regions: U32::new(REGIONS),
                irqs: U32::new(IRQ_KINDS),
            };
            Ok(info.as_bytes().to_vec())
        }
        command::IRQ_INFO => {
            let info: IrqInfo = read(body)?;
            let count = function.interrupts(info.index.get()).ok_or(libc::EINVAL)?;
            let flags = if count > 0 { flag::IRQ_EVENTFD } else { 0 };
            let info = IrqInfo {
                argsz: U32::new(size_of::<IrqInfo>() as u32),
                flags: U32::new(flags),
                index: info.index,
                count: U32::new(count),
            };
            Ok(info.as_bytes().to_vec())
        }
        command::SET_IRQS => {
            let set: IrqSet = read(body)?;
            let flags = set.flags.get();
            let what = if flags & flag::IRQ_DATA_EVENTFD != 0 {
                IrqAction::Descriptors(files)
            } else {
                check(flags & flag::IRQ_DATA_NONE != 0)?;
                IrqAction::None
            };
            // Masking is the client's own business.
            if flags & flag::IRQ_TRIGGER != 0 {
                check(function.set_interrupts(IrqChange {
                    kind: set.index.get(),
                    start: set.start.get(),
                    count: set.count.get(),
                    what,
                }))?;
            }
            Ok(Vec::new())
        }
        command::REGION_READ => {
            let access: Access = read(body)?;
            let count = access.count.get() as usize;
            check(count <= MOST_DATA)?;
            let mut answer = access.as_bytes().to_vec();
            let head = answer.len();
            answer.resize(head + count, 0);
            let (region, offset) = (access.region.get(), access.offset.get());
            check(function.region_read(region, offset, &mut answer[head..]))?;
            Ok(answer)
        }
        command::REGION_WRITE => {
            let access: Access = read(body)?;
            let data = &body[size_of::<Access>()..];
            check(data.len() == access.count.get() as usize)?;
            let (region, offset) = (access.region.get(), access.offset.get());
            check(function.region_write(region, offset, data))?;
            Ok(access.as_bytes().to_vec())
        }
        command::RESET => {
            function.reset();
            Ok(Vec::new())
        }
        _ => Err(libc::EOPNOTSUPP),
    }
}

fn version(body: &[u8]) -> Result<Vec<u8>, i32> {
    let asked: Version = read(body)?;
    if asked.major.get() != MAJOR {
        return Err(libc::EINVAL);
    }
    let mut answer = Version {
        major: U16::new(MAJOR),
        minor: U16::new(0),
    }
    .as_bytes()
    .to_vec();
    let capabilities = serde_json::json!({
        "capabilities": {
            "max_msg_fds": MOST_FILES,
            "max_data_xfer_size": MOST_DATA,
            "pgsizes": 4096,
            "max_dma_maps": 65535,
        }
    });
    answer.extend_from_slice(capabilities.to_string().as_bytes());
    answer.push(0);
    Ok(answer)
}

/// A region that can be mapped as a whole goes with its file.
fn region_info(function: &Function, connection: &Connection, request: &Request) -> io::Result<()> {
    let asked = read::<RegionInfo>(&request.body);
    let region = asked.and_then(|asked| {
        let region = function.region(asked.index.get()).ok_or(libc::EINVAL)?;
        Ok((asked.index, region))
    });
    let (index, region) = match region {
        Ok(found) => found,
        Err(errno) => return connection.reply(request, Err(errno), None),
    };
    let mut flags = 0;
    if region.size > 0 {
        flags |= flag::REGION_READ | flag::REGION_WRITE;
    }
    if region.file.is_some() {
        flags |= flag::REGION_MAP;
    }
    let info = RegionInfo {
        argsz: U32::new(size_of::<RegionInfo>() as u32),
        flags: U32::new(flags),
        index,
        cap_offset: U32::new(0),
        size: U64::new(region.size),
        offset: U64::new(0),
    };
    connection.reply(request, Ok(info.as_bytes()), region.file)
}
