//! The admin queue's commands, as the driver lays them out (`efa_admin_cmds_defs.h` of the Linux
//! driver): what follows the common header, little-endian and without gaps.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// What a command wants.
pub(crate) mod opcode {
    pub(crate) const CREATE_QP: u8 = 1;
    pub(crate) const MODIFY_QP: u8 = 2;
    pub(crate) const QUERY_QP: u8 = 3;
    pub(crate) const DESTROY_QP: u8 = 4;
    pub(crate) const CREATE_AH: u8 = 5;
    pub(crate) const DESTROY_AH: u8 = 6;
    pub(crate) const REG_MR: u8 = 7;
    pub(crate) const DEREG_MR: u8 = 8;
    pub(crate) const CREATE_CQ: u8 = 9;
    pub(crate) const DESTROY_CQ: u8 = 10;
    pub(crate) const GET_FEATURE: u8 = 11;
    pub(crate) const SET_FEATURE: u8 = 12;
    pub(crate) const GET_STATS: u8 = 13;
    pub(crate) const ALLOC_PD: u8 = 14;
    pub(crate) const DEALLOC_PD: u8 = 15;
    pub(crate) const ALLOC_UAR: u8 = 16;
    pub(crate) const DEALLOC_UAR: u8 = 17;
    pub(crate) const CREATE_EQ: u8 = 18;
    pub(crate) const DESTROY_EQ: u8 = 19;

    /// The name of a command, for the trace.
    pub(crate) fn name(opcode: u8) -> &'static str {
        const NAMES: [&str; 20] = [
            "?",
            "CREATE_QP",
            "MODIFY_QP",
            "QUERY_QP",
            "DESTROY_QP",
            "CREATE_AH",
            "DESTROY_AH",
            "REG_MR",
            "DEREG_MR",
            "CREATE_CQ",
            "DESTROY_CQ",
            "GET_FEATURE",
            "SET_FEATURE",
            "GET_STATS",
            "ALLOC_PD",
            "DEALLOC_PD",
            "ALLOC_UAR",
            "DEALLOC_UAR",
            "CREATE_EQ",
            "DESTROY_EQ",
        ];
        NAMES.get(usize::from(opcode)).copied().unwrap_or("?")
    }
}

/// What the driver may ask the device for, or set.
pub(crate) mod feature {
    pub(crate) const DEVICE: u8 = 1;
    pub(crate) const AENQ: u8 = 2;
    pub(crate) const NETWORK: u8 = 3;
    pub(crate) const QUEUES: u8 = 4;
    pub(crate) const HINTS: u8 = 5;
    pub(crate) const HOST: u8 = 6;
    pub(crate) const EVENT_QUEUES: u8 = 7;
    pub(crate) const QUEUES_2: u8 = 9;
}

/// Address and length of a buffer that belongs to a command.
#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) length: U32,
    pub(crate) low: U32,
    pub(crate) high: U32,
}

impl Buffer {
    pub(crate) fn address(&self) -> u64 {
        address(self.low, self.high)
    }
}

/// An address in two halves.
pub(crate) fn address(low: U32, high: U32) -> u64 {
    u64::from(low.get()) | u64::from(high.get()) << 32
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreateQp {
    pub(crate) pd: U16,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) sq_address: U64,
    pub(crate) rq_address: U64,
    pub(crate) send_cq: U32,
    pub(crate) recv_cq: U32,
    pub(crate) sq_key: U32,
    pub(crate) rq_key: U32,
    pub(crate) sq_bytes: U32,
    pub(crate) sq_depth: U32,
    pub(crate) rq_bytes: U32,
    pub(crate) rq_depth: U32,
    pub(crate) uar: U16,
    pub(crate) service_level: u8,
    pub(crate) reserved: u8,
    pub(crate) reserved_2: U32,
}

impl CreateQp {
    pub(crate) const UD: u8 = 1;
    pub(crate) const SRD: u8 = 2;
    pub(crate) const SQ_VIRTUAL: u8 = 1;
    pub(crate) const RQ_VIRTUAL: u8 = 2;
    pub(crate) const UNSOLICITED: u8 = 4;
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ModifyQp {
    pub(crate) mask: U32,
    pub(crate) qp: U32,
    pub(crate) state: U32,
    pub(crate) current: U32,
    pub(crate) qkey: U32,
    pub(crate) sq_psn: U32,
    pub(crate) drained_notify: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) reserved: U16,
}

impl ModifyQp {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const CURRENT: u32 = 2;
    pub(crate) const QKEY: u32 = 4;
    pub(crate) const SQ_PSN: u32 = 8;
    pub(crate) const RNR_RETRY: u32 = 32;
    pub(crate) const ALL: u32 = 63;
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreateAh {
    pub(crate) gid: [u8; 16],
    pub(crate) pd: U16,
    pub(crate) reserved: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct DestroyAh {
    pub(crate) ah: U16,
    pub(crate) pd: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct RegMr {
    pub(crate) pd: U16,
    pub(crate) reserved: U16,
    /// Four page addresses, or a [`Buffer`].
    pub(crate) list: [u8; 32],
    pub(crate) length: U64,
    pub(crate) flags: u8,
    pub(crate) permissions: u8,
    pub(crate) reserved_2: U16,
    /// Entries in the list; drivers leave it 0, since it follows from the rest.
    pub(crate) pages: U32,
    pub(crate) iova: U64,
}

impl RegMr {
    /// Bits of the flags that have the page size's shift.
    pub(crate) const SHIFT: u8 = 0x3f;
    /// The flag for memory without a page list, which only a kernel's own programs may use.
    pub(crate) const PHYSICAL: u8 = 0x80;
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreateCq {
    pub(crate) mode: u8,
    pub(crate) entry: u8,
    pub(crate) depth: U16,
    pub(crate) eq: U16,
    pub(crate) reserved: U16,
    pub(crate) low: U32,
    pub(crate) high: U32,
    pub(crate) key: U32,
    pub(crate) rings: U16,
    pub(crate) uar: U16,
}

impl CreateCq {
    pub(crate) const INTERRUPTS: u8 = 0x20;
    pub(crate) const VIRTUAL: u8 = 0x40;
    /// Bits that have an entry's length in words.
    pub(crate) const WORDS: u8 = 0x1f;
    pub(crate) const SOURCE_ADDRESS: u8 = 0x20;
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct GetStats {
    pub(crate) buffer: Buffer,
    pub(crate) kind: u8,
    pub(crate) scope: u8,
    pub(crate) modifier: U16,
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Feature {
    pub(crate) buffer: Buffer,
    pub(crate) reserved: u8,
    pub(crate) id: u8,
    pub(crate) reserved_2: U16,
    /// The value to set; for [`feature::AENQ`] the second word has the groups.
    pub(crate) value: [U32; 2],
}

#[derive(Clone, Copy, Debug, FromBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct CreateEq {
    pub(crate) depth: U16,
    pub(crate) vector: u8,
    pub(crate) entry: u8,
    pub(crate) low: U32,
    pub(crate) high: U32,
    pub(crate) events: U32,
    pub(crate) reserved: U32,
}

/// A response, filled from front to back after the common header.
#[derive(Debug, Default)]
pub(crate) struct Response {
    bytes: Vec<u8>,
}

impl Response {
    /// Bytes that a response has room for.
    pub(crate) const ROOM: usize = 56;

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        debug_assert!(self.bytes.len() <= Self::ROOM);
        self
    }

    /// What was filled in.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().min(Self::ROOM)]
    }
}
