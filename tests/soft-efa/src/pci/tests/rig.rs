//! A driver of a few lines, and the memory of its guest.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::options::Options;
use crate::pci::bars::shared_file;
use crate::pci::config;
use crate::pci::crc;
use crate::pci::function::{Function, IrqAction, IrqChange};

/// Bytes of the guest's memory, from address 0 on.
pub(super) const MEMORY: u64 = 4 << 20;
/// Entries of the admin queues.
const DEPTH: u32 = 32;
const AQ: u64 = 0x1000;
const ACQ: u64 = 0x3000;
const AENQ: u64 = 0x4000;
const ANSWERS: u64 = 0x5000;
/// From here on the memory is a test's own.
pub(super) const FREE: u64 = 0x10000;

/// The registers by what they are for.
pub(super) mod register {
    pub(in crate::pci::tests) const AQ_LOW: u64 = 0x10;
    pub(in crate::pci::tests) const AQ_CAPABILITIES: u64 = 0x18;
    pub(in crate::pci::tests) const ACQ_LOW: u64 = 0x20;
    pub(in crate::pci::tests) const ACQ_CAPABILITIES: u64 = 0x28;
    pub(in crate::pci::tests) const AQ_DOORBELL: u64 = 0x2c;
    pub(in crate::pci::tests) const AENQ_CAPABILITIES: u64 = 0x34;
    pub(in crate::pci::tests) const AENQ_LOW: u64 = 0x38;
    pub(in crate::pci::tests) const AENQ_DOORBELL: u64 = 0x40;
    pub(in crate::pci::tests) const CONTROL: u64 = 0x54;
    pub(in crate::pci::tests) const STATUS: u32 = 0x58;
    pub(in crate::pci::tests) const READ: u64 = 0x5c;
    pub(in crate::pci::tests) const ANSWER_LOW: u64 = 0x60;
    pub(in crate::pci::tests) const EQ_DOORBELL: u64 = 0x68;
}

/// A device with its driver.
pub(super) struct Rig {
    pub(super) function: Function,
    pub(super) file: File,
    /// Where the guest's memory begins in its file, if that is another one.
    lent: Option<(File, u64)>,
    /// Bytes of a command's entry.
    entry: usize,
    posted: u32,
    answered: u32,
}

/// A command in the making: fields one after another.
#[derive(Clone, Default)]
pub(super) struct Fields(pub(super) Vec<u8>);

impl Fields {
    pub(super) fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }
    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }
}

/// A completion: its status, and what follows the header.
pub(super) type Done = (u8, Vec<u8>);

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Rig {
    /// A device that the driver has not touched yet.
    pub(super) fn cold(index: u32, options: &str) -> Self {
        let options: Options = options.parse().unwrap();
        let function = Function::new(index, &options).unwrap();
        let file = shared_file(c"guest", MEMORY).unwrap();
        function.map(0, MEMORY, Some(&file), 0, true).unwrap();
        Self {
            function,
            file,
            lent: None,
            entry: 64,
            posted: 0,
            answered: 0,
        }
    }

    /// A device whose admin queues are set up, with entries of `entry` bytes.
    pub(super) fn new(index: u32, options: &str, entry: usize) -> Self {
        let mut rig = Self::cold(index, options);
        rig.entry = entry;
        rig.set_up();
        rig
    }

    /// The guest's memory is a part of this file; commands have entries of `entry` bytes.
    pub(super) fn lend(&mut self, file: &File, from: u64, entry: usize) {
        self.lent = Some((file.try_clone().unwrap(), from));
        self.entry = entry;
    }

    fn memory(&self) -> (&File, u64) {
        match &self.lent {
            Some((file, from)) => (file, *from),
            None => (&self.file, 0),
        }
    }

    pub(super) fn set_up(&mut self) {
        self.put(0x1000, &[0; 0x5000]);
        (self.posted, self.answered) = (0, 0);
        let entry = self.entry as u32;
        for (at, value) in [
            (register::ANSWER_LOW, ANSWERS as u32),
            (register::AQ_LOW, AQ as u32),
            (register::AQ_CAPABILITIES, DEPTH | entry << 16),
            (register::ACQ_LOW, ACQ as u32),
            (register::ACQ_CAPABILITIES, DEPTH | 64 << 16),
            (register::AENQ_LOW, AENQ as u32),
            (register::AENQ_CAPABILITIES, 16 | 64 << 16),
            (register::AENQ_DOORBELL, 0),
        ] {
            self.set(at, value);
        }
    }

    /// Writes a register.
    pub(super) fn set(&mut self, at: u64, value: u32) {
        let fine = self
            .function
            .region_write(config::REGISTERS, at, &value.to_le_bytes());
        assert!(fine, "register {at:#x}");
    }

    /// Reads a register as the driver does: by writing.
    pub(super) fn get(&mut self, at: u32) -> u32 {
        self.put(ANSWERS, &[0xff; 8]);
        self.set(register::READ, at << 16 | 0x1234);
        let answer = self.bytes(ANSWERS, 8);
        assert_eq!(
            (u16_at(&answer, 0), u16_at(&answer, 2)),
            (0x1234, at as u16)
        );
        u32_at(&answer, 4)
    }

    /// Carries out a command.
    pub(super) fn admin(&mut self, opcode: u8, flags: u8, payload: &Fields) -> Done {
        let done = self.try_admin(opcode, flags, payload);
        done.expect("the device does not answer")
    }

    /// The same where the device may be in no state to answer.
    pub(super) fn try_admin(&mut self, opcode: u8, flags: u8, payload: &Fields) -> Option<Done> {
        let index = u64::from(self.posted % DEPTH);
        let phase = (self.posted / DEPTH) as u8 & 1 ^ 1;
        let mut entry = vec![0; self.entry];
        entry[..2].copy_from_slice(&((self.posted & 0xfff) as u16).to_le_bytes());
        entry[2] = opcode;
        entry[3] = flags | phase;
        let header = if self.entry == 128 { 12 } else { 4 };
        let length = payload.0.len().min(self.entry - header);
        entry[header..header + length].copy_from_slice(&payload.0[..length]);
        if self.entry == 128 {
            let checksum = crc::of(&entry);
            entry[4..6].copy_from_slice(&checksum.to_le_bytes());
        }
        let place = AQ + index * self.entry as u64;
        self.put(place, &entry);
        self.posted += 1;
        self.set(register::AQ_DOORBELL, self.posted & 0xffff);
        let index = u64::from(self.answered % DEPTH);
        let phase = (self.answered / DEPTH) as u8 & 1 ^ 1;
        let mut answer = self.bytes(ACQ + index * 64, 64);
        if answer[3] & 1 != phase {
            return None;
        }
        self.answered += 1;
        let checksum = u16_at(&answer, 4);
        answer[4..6].fill(0);
        // A hostile guest writes over it itself.
        if self.lent.is_none() {
            assert_eq!(crc::of(&answer), checksum, "the completion's checksum");
        }
        Some((answer[2], answer[8..].to_vec()))
    }

    /// A command that must succeed.
    pub(super) fn must(&mut self, opcode: u8, flags: u8, payload: Fields) -> Vec<u8> {
        let (status, answer) = self.admin(opcode, flags, &payload);
        assert_eq!(status, 0, "command {opcode}");
        answer
    }

    /// The guest's memory.
    pub(super) fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let (file, from) = self.memory();
        file.read_exact_at(&mut bytes, from + address).unwrap();
        bytes
    }

    pub(super) fn put(&self, address: u64, bytes: &[u8]) {
        let (file, from) = self.memory();
        file.write_all_at(bytes, from + address).unwrap();
    }

    /// Gives vectors 0 to 8 a descriptor each, and returns the other ends.
    pub(super) fn interrupts(&self) -> Vec<File> {
        let files: Vec<File> = (0..9)
            .map(|_| {
                use std::os::fd::FromRawFd;
                // SAFETY: no pointers involved; the descriptor is new and ours.
                unsafe {
                    File::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC))
                }
            })
            .collect();
        let copies = files.iter().map(|file| file.try_clone().unwrap()).collect();
        assert!(self.function.set_interrupts(IrqChange {
            kind: 2,
            start: 0,
            count: 9,
            what: IrqAction::Descriptors(copies),
        }));
        files
    }

    pub(super) fn alloc_uar(&mut self) -> u16 {
        u16_at(&self.must(16, 0, Fields::default()), 0)
    }

    pub(super) fn alloc_pd(&mut self) -> u16 {
        u16_at(&self.must(14, 0, Fields::default()), 0)
    }

    /// A completion queue of 64 entries of 32 bytes; with an event queue, with events. Its number
    /// and the place of its doorbell.
    pub(super) fn create_cq(&mut self, uar: u16, ring: u64, eq: Option<u16>) -> (u16, u32) {
        let mode = if eq.is_some() { 0x20 } else { 0 };
        let fields = Fields::default()
            .u8(mode)
            .u8(8)
            .u16(64)
            .u16(eq.unwrap_or(0))
            .u16(0)
            .u32(ring as u32)
            .u32((ring >> 32) as u32)
            .u32(0)
            .u16(1)
            .u16(uar);
        let answer = self.must(9, 0, fields);
        (u16_at(&answer, 0), u32_at(&answer, 4))
    }

    /// A queue pair with 64 sends of 64 bytes and 64 receives. Its number, then the places of the
    /// send and receive doorbells and of the send ring.
    pub(super) fn create_qp(&mut self, uar: u16, pd: u16, cq: u16, rq: u64) -> (u16, [u32; 3]) {
        let fields = Self::qp_fields(uar, pd, cq, rq);
        let answer = self.must(1, 0, fields);
        let number = u16_at(&answer, 4);
        (number, [12, 16, 20].map(|at| u32_at(&answer, at)))
    }

    pub(super) fn qp_fields(uar: u16, pd: u16, cq: u16, rq: u64) -> Fields {
        Fields::default()
            .u16(pd)
            .u8(2)
            .u8(0)
            .u64(0)
            .u64(rq)
            .u32(cq.into())
            .u32(cq.into())
            .u32(0)
            .u32(0)
            .u32(64 * 64)
            .u32(64)
            .u32(64 * 16)
            .u32(64)
            .u16(uar)
            .u8(0)
            .u8(0)
            .u32(0)
    }

    pub(super) fn modify_qp(&mut self, qp: u16, mask: u32, state: u32, qkey: u32) -> u8 {
        let fields = Fields::default()
            .u32(mask)
            .u32(qp.into())
            .u32(state)
            .u32(0)
            .u32(qkey)
            .u32(0)
            .u8(0)
            .u8(0)
            .u16(0);
        self.admin(2, 0, &fields).0
    }

    /// Takes a queue pair to RTS.
    pub(super) fn ready(&mut self, qp: u16, qkey: u32) {
        assert_eq!(self.modify_qp(qp, 1 | 4, 1, qkey), 0);
        assert_eq!(self.modify_qp(qp, 1, 2, 0), 0);
        assert_eq!(self.modify_qp(qp, 1 | 8, 3, 0), 0);
    }

    /// The fields of a memory region: a list, then the rest.
    pub(super) fn mr_fields(pd: u16, list: [u64; 4], iova: u64, length: u64, shift: u8) -> Fields {
        let mut fields = Fields::default().u16(pd).u16(0);
        for entry in list {
            fields = fields.u64(entry);
        }
        fields.u64(length).u8(shift).u8(7).u16(0).u32(0).u64(iova)
    }

    /// A region whose pages stand in the command.
    pub(super) fn reg_mr(&mut self, pd: u16, pages: &[u64], iova: u64, length: u64) -> u32 {
        let mut list = [0; 4];
        list[..pages.len()].copy_from_slice(pages);
        let answer = self.must(7, 0, Self::mr_fields(pd, list, iova, length, 12));
        u32_at(&answer, 0)
    }

    /// An address handle for a device of the run.
    pub(super) fn create_ah(&mut self, pd: u16, gid: [u8; 16]) -> u16 {
        let mut fields = Fields(gid.to_vec());
        fields = fields.u16(pd).u16(0);
        u16_at(&self.must(5, 0, fields), 0)
    }

    /// Writes to one of the BARs that are shared.
    pub(super) fn poke(&mut self, bar: u32, at: u32, bytes: &[u8]) {
        assert!(self.function.region_write(bar, at.into(), bytes));
    }
}
