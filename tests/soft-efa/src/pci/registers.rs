//! The registers, and the queues that they point to: commands, their completions, and asynchronous
//! events.

use super::crc;
use super::device::{Command, Device};
use super::layout::{Response, opcode};
use super::status::Status;

/// Bytes of the BAR with registers.
pub(crate) const BYTES: u64 = 16384;

mod offset {
    pub(super) const VERSION: u32 = 0x00;
    pub(super) const CONTROLLER_VERSION: u32 = 0x04;
    pub(super) const CAPABILITIES: u32 = 0x08;
    pub(super) const AQ_LOW: u32 = 0x10;
    pub(super) const AQ_HIGH: u32 = 0x14;
    pub(super) const AQ_CAPABILITIES: u32 = 0x18;
    pub(super) const ACQ_LOW: u32 = 0x20;
    pub(super) const ACQ_HIGH: u32 = 0x24;
    pub(super) const ACQ_CAPABILITIES: u32 = 0x28;
    pub(super) const AQ_DOORBELL: u32 = 0x2c;
    pub(super) const AENQ_CAPABILITIES: u32 = 0x34;
    pub(super) const AENQ_LOW: u32 = 0x38;
    pub(super) const AENQ_HIGH: u32 = 0x3c;
    pub(super) const AENQ_DOORBELL: u32 = 0x40;
    pub(super) const INTERRUPT_MASK: u32 = 0x4c;
    pub(super) const CONTROL: u32 = 0x54;
    pub(super) const STATUS: u32 = 0x58;
    pub(super) const READ: u32 = 0x5c;
    pub(super) const READ_LOW: u32 = 0x60;
    pub(super) const READ_HIGH: u32 = 0x64;
    pub(super) const EQ_DOORBELL: u32 = 0x68;
}

/// The admin interface that the device speaks: 0.3 has checksums (from 0.2 on) and entries of 128
/// bytes, which a driver uses if it knows them.
const ADMIN_VERSION: u32 = 0x0003;
/// Resets take at most so many steps of 100 ms.
const RESET_STEPS: u32 = 20;
/// Bits of an address that the device can write to.
const DMA_BITS: u32 = 48;
/// The bit of the control register that asks for a reset.
const RESET: u32 = 1;
/// The bit of the interrupt mask that silences the admin queue.
const MASKED: u32 = 1;
const READY: u32 = 1;
const RESETTING: u32 = 8;

/// Bytes of a command's entry, old and new.
const COMMAND: usize = 64;
const COMMAND_2: usize = 128;
/// Bytes of the new one's header; of the old one's, 4.
const HEADER_2: usize = 12;
/// Bytes of a completion's entry, and of an event's.
const COMPLETION: usize = 64;
const EVENT: usize = 64;
/// Entries of a queue at most.
const MOST_ENTRIES: u32 = 4096;

/// The group of keep-alives among the asynchronous events.
const KEEP_ALIVE: u16 = 4;

/// A queue in the guest's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    address: u64,
    /// Depth, entry size and vector, as the driver wrote them.
    capabilities: u32,
    /// Entries read or written so far.
    count: u32,
}

impl Queue {
    fn depth(&self) -> Option<u32> {
        let depth = self.capabilities & 0xffff;
        (depth.is_power_of_two() && depth <= MOST_ENTRIES).then_some(depth)
    }

    fn vector(&self) -> u32 {
        self.capabilities >> 24
    }

    /// The place of the next entry, and its phase.
    fn next(&self, entry: usize) -> Option<(u64, u8)> {
        let depth = self.depth()?;
        let index = u64::from(self.count & (depth - 1));
        let phase = (self.count / depth) & 1 ^ 1;
        let place = self.address.checked_add(index * entry as u64)?;
        Some((place, phase as u8))
    }
}

fn low(place: &mut u64, value: u32) {
    *place = *place & !0xffff_ffff | u64::from(value);
}

fn high(place: &mut u64, value: u32) {
    *place = *place & 0xffff_ffff | u64::from(value) << 32;
}

/// The register file.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    commands: Queue,
    completions: Queue,
    events: Queue,
    /// Events that the driver has read.
    events_read: u32,
    mask: u32,
    control: u32,
    /// Where answers to reads are written.
    answers: u64,
}

impl Registers {
    /// What a register holds.
    pub(crate) fn read(&self, at: u32) -> u32 {
        match at {
            offset::VERSION => ADMIN_VERSION,
            offset::CONTROLLER_VERSION => 1,
            offset::CAPABILITIES => RESET_STEPS << 1 | DMA_BITS << 8,
            offset::AQ_LOW => self.commands.address as u32,
            offset::AQ_HIGH => (self.commands.address >> 32) as u32,
            offset::AQ_CAPABILITIES => self.commands.capabilities,
            offset::ACQ_LOW => self.completions.address as u32,
            offset::ACQ_HIGH => (self.completions.address >> 32) as u32,
            offset::ACQ_CAPABILITIES => self.completions.capabilities,
            offset::AENQ_LOW => self.events.address as u32,
            offset::AENQ_HIGH => (self.events.address >> 32) as u32,
            offset::AENQ_CAPABILITIES => self.events.capabilities,
            offset::INTERRUPT_MASK => self.mask,
            offset::CONTROL => self.control,
            offset::STATUS if self.control & RESET != 0 => READY | RESETTING,
            offset::STATUS => READY,
            _ => 0,
        }
    }

    /// The driver writes a register.
    pub(crate) fn write(&mut self, device: &mut Device, at: u32, value: u32) {
        match at {
            offset::AQ_LOW => low(&mut self.commands.address, value),
            offset::AQ_HIGH => high(&mut self.commands.address, value),
            offset::AQ_CAPABILITIES => {
                self.commands.capabilities = value;
                self.commands.count = 0;
            }
            offset::ACQ_LOW => low(&mut self.completions.address, value),
            offset::ACQ_HIGH => high(&mut self.completions.address, value),
            offset::ACQ_CAPABILITIES => {
                self.completions.capabilities = value;
                self.completions.count = 0;
            }
            offset::AQ_DOORBELL => self.run_commands(device, value as u16),
            offset::AENQ_LOW => low(&mut self.events.address, value),
            offset::AENQ_HIGH => high(&mut self.events.address, value),
            offset::AENQ_CAPABILITIES => {
                self.events.capabilities = value;
                self.events.count = 0;
                self.events_read = 0;
            }
            offset::AENQ_DOORBELL => self.events_read = value,
            offset::INTERRUPT_MASK => self.mask = value,
            offset::CONTROL => {
                if value & RESET != 0 {
                    if device.traced() {
                        eprintln!("{}: reset, reason {}", device.name(), value >> 28);
                    }
                    device.reset();
                    *self = Self::default();
                }
                self.control = value;
            }
            offset::READ => self.answer(device, value),
            offset::READ_LOW => low(&mut self.answers, value),
            offset::READ_HIGH => high(&mut self.answers, value),
            offset::EQ_DOORBELL => {
                // Only arming means anything.
                if value >> 31 != 0
                    && let Some(eq) = device.objects().eq(value as u16)
                {
                    eq.arm();
                }
            }
            _ => {}
        }
    }

    /// A read that needs no answer on the bus: it goes to the guest's memory.
    fn answer(&self, device: &Device, request: u32) {
        let (id, at) = (request as u16, (request >> 16) as u16);
        let mut answer = [0; 8];
        answer[..2].copy_from_slice(&id.to_le_bytes());
        answer[2..4].copy_from_slice(&at.to_le_bytes());
        answer[4..].copy_from_slice(&self.read(at.into()).to_le_bytes());
        if !device.memory().publish(self.answers, &answer, 0) && device.traced() {
            eprintln!(
                "{}: the answer to a register read has no place at {:#x}",
                device.name(),
                self.answers
            );
        }
    }

    fn run_commands(&mut self, device: &mut Device, posted: u16) {
        let size = match (self.commands.capabilities >> 16) as usize {
            COMMAND_2 => COMMAND_2,
            _ => COMMAND,
        };
        let Some(depth) = self.commands.depth() else {
            return;
        };
        let new = posted.wrapping_sub(self.commands.count as u16);
        if u32::from(new) > depth {
            // No driver rings like this.
            return;
        }
        for _ in 0..new {
            let mut bytes = [0; COMMAND_2];
            let entry = &mut bytes[..size];
            let Some((place, phase)) = self.commands.next(size) else {
                return;
            };
            if !device.memory().read(place, entry) || entry[3] & 1 != phase {
                // Nothing says whose command this would be.
                return;
            }
            self.commands.count = self.commands.count.wrapping_add(1);
            let mut response = Response::default();
            let status = match parse(entry) {
                Ok(command) => {
                    let result = device.execute(&command, &mut response);
                    if device.traced() {
                        trace(device, &command, &result);
                    }
                    result.err()
                }
                Err(status) => Some(status),
            };
            if !self.complete(device, entry, status, &response) {
                return;
            }
        }
    }

    #[must_use]
    fn complete(
        &mut self,
        device: &Device,
        command: &[u8],
        status: Option<Status>,
        response: &Response,
    ) -> bool {
        let Some((place, phase)) = self.completions.next(COMPLETION) else {
            return false;
        };
        let mut entry = [0; COMPLETION];
        entry[0] = command[0];
        entry[1] = command[1] & 0x0f;
        entry[2] = status.map_or(0, |status| status.0);
        entry[3] = phase;
        if status.is_none() {
            entry[8..8 + response.bytes().len()].copy_from_slice(response.bytes());
        }
        let checksum = crc::of(&entry);
        entry[4..6].copy_from_slice(&checksum.to_le_bytes());
        if !device.memory().publish(place, &entry, 0) {
            return false;
        }
        self.completions.count = self.completions.count.wrapping_add(1);
        if self.mask & MASKED == 0 {
            device.interrupts().raise(self.completions.vector());
        }
        true
    }

    /// Tells the driver that the device lives. To be called once in a while.
    pub(crate) fn keep_alive(&mut self, device: &Device, milliseconds: u64) {
        let Some((place, phase)) = self.events.next(EVENT) else {
            return;
        };
        let full =
            self.events.count.wrapping_sub(self.events_read) >= self.events.capabilities & 0xffff;
        if full || !device.wants(KEEP_ALIVE) {
            return;
        }
        let mut entry = [0; EVENT];
        entry[..2].copy_from_slice(&KEEP_ALIVE.to_le_bytes());
        entry[4] = phase;
        entry[8..16].copy_from_slice(&milliseconds.to_le_bytes());
        if device.memory().publish(place, &entry, 4) {
            self.events.count = self.events.count.wrapping_add(1);
            if self.mask & MASKED == 0 {
                device.interrupts().raise(self.events.vector());
            }
        }
    }
}

/// Takes an entry apart.
fn parse(entry: &[u8]) -> Result<Command<'_>, Status> {
    let header = if entry.len() == COMMAND_2 {
        let mut copy = [0; COMMAND_2];
        copy.copy_from_slice(entry);
        copy[4..6].fill(0);
        if crc::of(&copy).to_le_bytes() != entry[4..6] {
            return Err(Status::MALFORMED);
        }
        HEADER_2
    } else {
        4
    };
    Ok(Command {
        opcode: entry[2],
        buffer: entry[3] & 2 != 0,
        indirect: entry[3] & 4 != 0,
        payload: &entry[header..],
    })
}

fn trace(device: &Device, command: &Command<'_>, result: &Result<(), Status>) {
    let name = opcode::name(command.opcode);
    match result {
        Ok(()) => eprintln!("{}: admin command {name}", device.name()),
        Err(status) => {
            let (device, number) = (device.name(), command.opcode);
            eprintln!(
                "{device}: admin command {name} ({number}) gets status {}",
                status.0
            );
        }
    }
}
