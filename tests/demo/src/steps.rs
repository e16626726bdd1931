//! What is transferred.

/// Bytes of each process's buffer, and of the largest transfer.
pub const BUFFER: u64 = 64 << 20;

/// The request size of the transfer that is cut into many.
pub const CUT: u32 = 64 << 10;

/// The sizes that go as whole as the device takes them.
pub const WHOLE: [u64; 4] = [1, 4 << 10, 1 << 20, BUFFER];

/// Direction of a transfer, seen from the first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// RDMA write.
    Put,
    /// RDMA read.
    Get,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Put, Self::Get];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}
