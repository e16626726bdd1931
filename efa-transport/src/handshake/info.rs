//! What two endpoints tell each other.

use std::fmt;
use std::num::NonZeroU64;

use crate::address::EndpointAddress;

/// A random number that an endpoint draws when it is created and when it is rebuilt.
///
/// The device uses queue pair numbers again, so a restarted peer may have the address of its
/// predecessor. The incarnation tells the two apart.
///
/// ```
/// use efa_transport::handshake::Incarnation;
///
/// assert_ne!(Incarnation::random(), Incarnation::random());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(NonZeroU64);

impl Incarnation {
    /// A new incarnation, from the kernel's random numbers.
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

/// A random number from the kernel. A generator in this process would repeat itself in a forked
/// child.
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

/// For a sandbox that forbids the system call.
fn unseeded() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one((
        std::process::id(),
        std::time::SystemTime::now(),
        std::thread::current().id(),
    ))
}

bitflags::bitflags! {
    /// What an endpoint can do. Unknown bits are kept and have no effect.
    ///
    /// ```
    /// use efa_transport::handshake::Capabilities;
    ///
    /// let ours = Capabilities::RDMA_READ | Capabilities::RDMA_WRITE;
    /// let needed = Capabilities::RDMA_WRITE | Capabilities::MESSAGES;
    /// assert_eq!(needed - ours, Capabilities::MESSAGES);
    /// assert_eq!((needed - ours).to_string(), "receive pool");
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Capabilities: u64 {
        /// Its device reads remote memory and lets its own be read.
        const RDMA_READ = 1 << 0;
        /// Its device writes remote memory and lets its own be written.
        const RDMA_WRITE = 1 << 1;
        // Bit 2 is reserved.
        /// It has a receive pool: it takes messages and writes with immediate data.
        const MESSAGES = 1 << 3;
        const _ = !0;
    }
}

impl Capabilities {
    /// One of sixteen bits that the library leaves to programs; `None` from 16 on.
    pub const fn application(index: u32) -> Option<Self> {
        match index {
            0..16 => Some(Capabilities::from_bits_retain(1 << (48 + index))),
            _ => None,
        }
    }
}

/// The names of the capabilities.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut separator = "";
        for bit in (0..64).filter(|bit| self.bits() >> bit & 1 == 1) {
            f.write_str(separator)?;
            separator = ", ";
            match bit {
                0 => f.write_str("RDMA read")?,
                1 => f.write_str("RDMA write")?,
                3 => f.write_str("receive pool")?,
                48.. => write!(f, "application bit {}", bit - 48)?,
                _ => write!(f, "capability bit {bit}")?,
            }
        }
        Ok(())
    }
}

/// What a peer's hello says about its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointInfo {
    /// Its address.
    pub address: EndpointAddress,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// The longest message that it takes, in bytes; 0 without a receive pool.
    pub max_message: u32,
}
