//! What two endpoints tell each other.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

use crate::address::EndpointAddress;
use crate::remote::RemoteRegion;

/// Which life of an endpoint this is: a random number that every endpoint draws when it is made
/// and when it is rebuilt.
///
/// Queue pair numbers are used again, so a restarted peer may have the address of its
/// predecessor. Its incarnation is what tells the two apart.
///
/// ```
/// use efa_transport::handshake::Incarnation;
///
/// assert_ne!(Incarnation::random(), Incarnation::random());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(NonZeroU64);

impl Incarnation {
    /// An incarnation that no other endpoint has, but for a chance of one in 2⁶⁴.
    pub fn random() -> Self {
        Incarnation(random_nonzero())
    }

    /// An incarnation from its number; `None` for zero, which stands for "unknown" on the wire.
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Incarnation)
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

/// A random number from the kernel: unlike a generator in this process, it does not repeat
/// itself in a forked child.
pub(super) fn random_nonzero() -> NonZeroU64 {
    loop {
        let mut bytes = [0u8; 8];
        let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        let number = match got {
            Ok(8) => u64::from_ne_bytes(bytes),
            Ok(_) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => unseeded(),
        };
        if let Some(number) = NonZeroU64::new(number) {
            return number;
        }
    }
}

/// The best that can be had where a sandbox forbids the system call.
fn unseeded() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((
        std::process::id(),
        std::time::SystemTime::now(),
        std::thread::current().id(),
    ))
}

/// What an endpoint can do, as a set of bits that it tells its peers.
///
/// Bits that this version doesn't know are kept and have no effect.
///
/// ```
/// use efa_transport::handshake::Capabilities;
///
/// let ours = Capabilities::RDMA_READ | Capabilities::RDMA_WRITE;
/// let needed = Capabilities::RDMA_WRITE | Capabilities::MESSAGES;
/// assert_eq!(needed - ours, Capabilities::MESSAGES);
/// assert_eq!((needed - ours).to_string(), "receiving messages");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capabilities(u64);

impl Capabilities {
    /// No capability.
    pub const NONE: Self = Capabilities(0);
    /// Its device reads remote memory and lets its own be read.
    pub const RDMA_READ: Self = Capabilities(1 << 0);
    /// Its device writes remote memory and lets its own be written.
    pub const RDMA_WRITE: Self = Capabilities(1 << 1);
    /// Its queue pair receives writes with immediate data without a posted receive. Both sides must
    /// agree on it.
    pub const UNSOLICITED_WRITE_RECEIVE: Self = Capabilities(1 << 2);
    /// It keeps receives posted, and so takes messages.
    pub const MESSAGES: Self = Capabilities(1 << 3);

    /// One of sixteen bits that the library leaves to programs; `None` from 16 on.
    pub const fn application(index: u32) -> Option<Self> {
        if index < 16 {
            Some(Capabilities(1 << (48 + index)))
        } else {
            None
        }
    }

    /// A set from its bits.
    pub const fn from_bits(bits: u64) -> Self {
        Capabilities(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether the set has no bit.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

impl BitOr for Capabilities {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Capabilities(self.0 | other.0)
    }
}

impl BitOrAssign for Capabilities {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Capabilities {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Capabilities(self.0 & other.0)
    }
}

/// The bits that only the left side has.
impl Sub for Capabilities {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Capabilities(self.0 & !other.0)
    }
}

/// The names of the capabilities, in plain words.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 4] = [
            "RDMA read",
            "RDMA write",
            "unsolicited receipt of writes with immediate data",
            "receiving messages",
        ];
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut separator = "";
        for bit in (0..64).filter(|bit| self.0 >> bit & 1 == 1) {
            f.write_str(separator)?;
            separator = ", ";
            match (NAMES.get(bit as usize), bit) {
                (Some(name), _) => f.write_str(name)?,
                (None, 48..) => write!(f, "application bit {}", bit - 48)?,
                (None, _) => write!(f, "capability bit {bit}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capabilities({self})")
    }
}

/// What one endpoint is and offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Where it is reached.
    pub address: EndpointAddress,
    /// Which life of it this is.
    pub incarnation: Incarnation,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The longest message that it takes, in bytes; 0 where it takes none.
    pub max_message: u32,
    /// How many unsolicited immediates the other side may have under way to it, so that they can't
    /// overrun its completion queue; 0 where it takes none.
    pub immediate_grant: u32,
    /// Where the other side can read how many of its immediates have been taken, so that it may
    /// send as many again: a table of slots of 16 bytes, the sender's incarnation and the number,
    /// both little-endian. The upper 16 bits of the number change when a slot is opened anew.
    pub grant_table: Option<RemoteRegion>,
}

impl EndpointInfo {
    /// An endpoint without capabilities that takes no messages and no immediates.
    pub fn new(address: EndpointAddress, incarnation: Incarnation) -> Self {
        EndpointInfo {
            address,
            incarnation,
            capabilities: Capabilities::NONE,
            max_message: 0,
            immediate_grant: 0,
            grant_table: None,
        }
    }
}

/// What a peer said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer's endpoint.
    pub endpoint: EndpointInfo,
    /// What the program at the peer added, such as descriptors of its memory.
    pub user_data: Vec<u8>,
}
