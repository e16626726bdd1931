//! The PCI function: configuration space, BARs and interrupts in front of the device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::options::Options;

use super::config::{self, Config};
use super::device::Device;
use super::irq::VECTORS;
use super::registers::{self, Registers};

/// The region of the configuration space, after the six BARs and the ROM.
const CONFIG: u32 = 7;
/// Regions of a PCI device in VFIO's numbering; the last is VGA's.
pub(crate) const REGIONS: u32 = 9;
/// Kinds of interrupts in VFIO's numbering: INTx, MSI, MSI-X, errors, requests.
pub(crate) const IRQ_KINDS: u32 = 5;
/// The kind that this device has.
const MSIX_KIND: u32 = 2;

/// How often a device tells that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// A region as the client learns of it.
pub(crate) struct Region<'a> {
    pub(crate) size: u64,
    /// The file to map; without one, accesses come as messages.
    pub(crate) file: Option<&'a File>,
}

/// An interrupt is to be set up, or taken down.
pub(crate) struct IrqChange {
    pub(crate) kind: u32,
    pub(crate) start: u32,
    pub(crate) count: u32,
    pub(crate) what: IrqAction,
}

/// What is to be done with interrupts.
pub(crate) enum IrqAction {
    /// Take all away (with a count of 0), or raise those that are named.
    None,
    /// Each vector gets its descriptor, or none gets one.
    Descriptors(Vec<File>),
}

/// A PCI function.
pub(crate) struct Function {
    device: Device,
    registers: Registers,
    config: Config,
    table: Box<[u8; config::MSIX_BYTES as usize]>,
    started: Instant,
    next_keep_alive: Instant,
}

impl Function {
    /// Device `index` of a run with `options`.
    pub(crate) fn new(index: u32, options: &Options) -> io::Result<Self> {
        let device = Device::new(index, options)?;
        let now = Instant::now();
        Ok(Self {
            config: Config::new(device.pci_id()),
            device,
            registers: Registers::default(),
            table: Box::new([0; config::MSIX_BYTES as usize]),
            started: now,
            next_keep_alive: now + KEEP_ALIVE,
        })
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// A region, if it exists; most have no bytes.
    pub(crate) fn region(&self, index: u32) -> Option<Region<'_>> {
        let (size, file) = match index {
            config::REGISTERS => (registers::BYTES, None),
            config::MSIX => (config::MSIX_BYTES, None),
            config::RINGS => {
                let bar = self.device.rings();
                (bar.bytes(), Some(bar.file()))
            }
            config::DOORBELLS => {
                let bar = self.device.doorbells();
                (bar.bytes(), Some(bar.file()))
            }
            CONFIG => (config::BYTES as u64, None),
            _ if index < REGIONS => (0, None),
            _ => return None,
        };
        Some(Region { size, file })
    }

    /// How many interrupts of a kind there are, if the kind exists.
    pub(crate) fn interrupts(&self, kind: u32) -> Option<u32> {
        match kind {
            MSIX_KIND => Some(VECTORS),
            _ if kind < IRQ_KINDS => Some(0),
            _ => None,
        }
    }

    /// Reads from a region. False for a range that it lacks.
    #[must_use]
    pub(crate) fn region_read(&self, index: u32, offset: u64, to: &mut [u8]) -> bool {
        if !self.has(index, offset, to.len()) {
            return false;
        }
        to.fill(0);
        match index {
            CONFIG => self.config.read(offset, to),
            config::REGISTERS => {
                let word = self.registers.read((offset & !3) as u32).to_le_bytes();
                let from = &word[(offset & 3) as usize..];
                for (byte, own) in to.iter_mut().zip(from) {
                    *byte = *own;
                }
            }
            config::MSIX => {
                to.copy_from_slice(&self.table[offset as usize..][..to.len()]);
            }
            config::RINGS | config::DOORBELLS => self.read_shared(index, offset, to),
            _ => {}
        }
        true
    }

    /// Writes to a region. False for a range that it lacks.
    #[must_use]
    pub(crate) fn region_write(&mut self, index: u32, offset: u64, from: &[u8]) -> bool {
        if !self.has(index, offset, from.len()) {
            return false;
        }
        match index {
            CONFIG if self.config.write(offset, from) => self.reset(),
            config::REGISTERS => {
                if let (Ok(word), true) = (from.try_into(), offset.is_multiple_of(4)) {
                    let value = u32::from_le_bytes(word);
                    self.registers.write(&mut self.device, offset as u32, value);
                }
            }
            config::MSIX => {
                self.table[offset as usize..][..from.len()].copy_from_slice(from);
            }
            config::RINGS | config::DOORBELLS => self.write_shared(index, offset, from),
            _ => {}
        }
        true
    }

    fn has(&self, index: u32, offset: u64, bytes: usize) -> bool {
        self.region(index).is_some_and(|region| {
            offset
                .checked_add(bytes as u64)
                .is_some_and(|end| end <= region.size)
        })
    }

    /// A client that does not map the BAR reads and writes its file like this. The engine looks at
    /// the same pages.
    fn read_shared(&self, index: u32, offset: u64, to: &mut [u8]) {
        let Some(file) = self.region(index).and_then(|region| region.file) else {
            return;
        };
        // SAFETY: `to` has room for so many bytes.
        unsafe {
            libc::pread64(
                file.as_raw_fd(),
                to.as_mut_ptr().cast(),
                to.len(),
                offset as i64,
            )
        };
    }

    fn write_shared(&self, index: u32, offset: u64, from: &[u8]) {
        let Some(file) = self.region(index).and_then(|region| region.file) else {
            return;
        };
        // SAFETY: `from` has so many bytes.
        unsafe {
            libc::pwrite64(
                file.as_raw_fd(),
                from.as_ptr().cast(),
                from.len(),
                offset as i64,
            )
        };
    }

    /// The client lends memory. Memory without a file can't be reached, and is not the guest's RAM.
    pub(crate) fn map(
        &self,
        address: u64,
        size: u64,
        file: Option<&File>,
        offset: u64,
        writable: bool,
    ) -> io::Result<()> {
        match file {
            Some(file) => self
                .device
                .memory()
                .map(address, size, file, offset, writable),
            None => Ok(()),
        }
    }

    /// The client takes memory away: a range, or all. False for a range that cuts through what was
    /// lent as a whole.
    #[must_use]
    pub(crate) fn unmap(&mut self, range: Option<(u64, u64)>) -> bool {
        let Some(gone) = self.device.memory().unmap(range) else {
            return false;
        };
        self.device.lose(&gone);
        true
    }

    /// Sets up interrupts. False for ones that the device lacks.
    #[must_use]
    pub(crate) fn set_interrupts(&self, change: IrqChange) -> bool {
        let interrupts = self.device.interrupts();
        match (change.kind, change.what) {
            (MSIX_KIND, IrqAction::None) if change.count == 0 => {
                interrupts.clear();
                true
            }
            (MSIX_KIND, IrqAction::None) => {
                let end = change.start.checked_add(change.count);
                let fits = end.is_some_and(|end| end <= VECTORS);
                if let (Some(end), true) = (end, fits) {
                    (change.start..end).for_each(|vector| interrupts.raise(vector));
                }
                fits
            }
            (MSIX_KIND, IrqAction::Descriptors(files)) => {
                interrupts.set(change.start, change.count, files)
            }
            (kind, _) => kind < IRQ_KINDS && change.count == 0,
        }
    }

    /// A reset of the function.
    pub(crate) fn reset(&mut self) {
        self.registers = Registers::default();
        self.device.reset();
        self.config.reset();
    }

    /// The client is gone: nothing of what it lent is kept.
    pub(crate) fn disconnect(&mut self) {
        self.reset();
        self.device.interrupts().clear();
        // All of it, which can't cut through anything.
        let _ = self.unmap(None);
        self.table.fill(0);
    }

    /// Becomes a device with other options, as if another card were plugged in; or none, if there
    /// are fewer devices now. The guest finds it when it looks for devices again.
    pub(crate) fn become_other(&mut self, options: &Options) -> io::Result<()> {
        self.registers = Registers::default();
        self.device.become_other(options)?;
        self.config = if self.device.index() < options.devices {
            Config::new(self.device.pci_id())
        } else {
            Config::absent()
        };
        Ok(())
    }

    /// Does what is due by itself, and says in how long there is more.
    pub(crate) fn tick(&mut self, now: Instant) -> Duration {
        if now >= self.next_keep_alive {
            self.next_keep_alive = now + KEEP_ALIVE;
            let age = now.saturating_duration_since(self.started).as_millis() as u64;
            self.registers.keep_alive(&self.device, age);
        }
        self.next_keep_alive.saturating_duration_since(now)
    }
}
