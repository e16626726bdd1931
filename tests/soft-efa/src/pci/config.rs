//! PCI configuration space: identity, BARs, MSI-X and the Express capability.

use crate::profile::PCI_VENDOR;

use super::irq::VECTORS;

/// Bytes of the space.
pub(crate) const BYTES: usize = 4096;

/// The index of the BAR with registers.
pub(crate) const REGISTERS: u32 = 0;
/// The index of the BAR with the MSI-X table.
pub(crate) const MSIX: u32 = 1;
/// The index of the BAR with send rings; the driver takes it for given.
pub(crate) const RINGS: u32 = 2;
/// The index of the BAR with doorbells; the driver is told.
pub(crate) const DOORBELLS: u32 = 4;

/// Bytes of the BAR with the MSI-X table.
pub(crate) const MSIX_BYTES: u64 = 4096;
/// Where the pending bits are in it.
const PENDING: u32 = 2048;

const MSIX_CAPABILITY: usize = 0x40;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;
/// The bit of the device control's upper byte that asks for a reset.
const RESET: u8 = 0x80;

/// The space, and which of its bits the guest may change.
pub(crate) struct Config {
    /// The PCI id; without one the slot is empty.
    device: Option<u16>,
    bytes: Box<[u8; BYTES]>,
    mask: Box<[u8; BYTES]>,
}

impl Config {
    /// The space of the device with this PCI id.
    pub(crate) fn new(device: u16) -> Self {
        Self::of(Some(device))
    }

    /// The space of an empty slot.
    pub(crate) fn absent() -> Self {
        Self::of(None)
    }

    fn of(device: Option<u16>) -> Self {
        let mut config = Self {
            device,
            bytes: Box::new([0; BYTES]),
            mask: Box::new([0; BYTES]),
        };
        config.reset();
        config
    }

    /// Back to what it is at power-on.
    pub(crate) fn reset(&mut self) {
        self.mask.fill(0);
        let Some(device) = self.device else {
            // What a bus reads where nobody answers.
            self.bytes.fill(0xff);
            return;
        };
        self.bytes.fill(0);
        for at in [0, 0x2c] {
            self.put(at, &PCI_VENDOR.to_le_bytes());
            self.put(at + 2, &device.to_le_bytes());
        }
        // Memory and bus mastering; parity and system errors; interrupts off.
        self.mask[4] = 0x46;
        self.mask[5] = 0x05;
        // There are capabilities.
        self.bytes[6] = 0x10;
        // An Ethernet controller, as the real one says.
        self.bytes[0x0b] = 0x02;
        self.mask[0x0c] = 0xff;
        // The shared ones are 64 bits wide and prefetchable, so that they find room above 4 GiB.
        for bar in [RINGS, DOORBELLS] {
            self.bytes[0x10 + 4 * bar as usize] = 0x0c;
        }
        self.bytes[0x34] = MSIX_CAPABILITY as u8;
        self.mask[0x3c] = 0xff;
        self.put(MSIX_CAPABILITY, &[0x11, EXPRESS as u8]);
        self.put(MSIX_CAPABILITY + 2, &(VECTORS as u16 - 1).to_le_bytes());
        self.mask[MSIX_CAPABILITY + 3] = 0xc0;
        self.put(MSIX_CAPABILITY + 4, &MSIX.to_le_bytes());
        self.put(MSIX_CAPABILITY + 8, &(PENDING | MSIX).to_le_bytes());
        // Version 2, an endpoint; it can be reset by itself.
        self.put(EXPRESS, &[0x10, 0, 0x02, 0]);
        self.put(EXPRESS + 4, &(1u32 << 28 | 1 << 15 | 1).to_le_bytes());
        self.mask[DEVICE_CONTROL] = 0xff;
        self.mask[DEVICE_CONTROL + 1] = 0x7f;
        // 16 lanes of 16 GT/s, in use.
        self.put(EXPRESS + 0x0c, &0x0104u32.to_le_bytes());
        self.put(EXPRESS + 0x12, &0x0104u16.to_le_bytes());
        self.put(EXPRESS + 0x2c, &0x1eu32.to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Reads; what lies beyond the end has all bits set.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) {
        let start = usize::try_from(offset).unwrap_or(BYTES).min(BYTES);
        to.fill(0xff);
        for (byte, own) in to.iter_mut().zip(&self.bytes[start..]) {
            *byte = *own;
        }
    }

    /// Writes what may be written; true if that asks for a reset.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> bool {
        let mut reset = false;
        let start = usize::try_from(offset).unwrap_or(BYTES).min(BYTES);
        for (byte, at) in from.iter().zip(start..BYTES) {
            self.bytes[at] = self.bytes[at] & !self.mask[at] | byte & self.mask[at];
            reset |= at == DEVICE_CONTROL + 1 && byte & RESET != 0;
        }
        reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_read_only_and_a_reset_is_noticed() {
        let mut config = Config::new(0xefa3);
        let mut id = [0; 4];
        assert!(!config.write(0, &[9, 9, 9, 9]));
        config.read(0, &mut id);
        assert_eq!(id, [0x0f, 0x1d, 0xa3, 0xef]);
        assert!(config.write(DEVICE_CONTROL as u64, &[0, 0x80]));
        assert!(!config.write(DEVICE_CONTROL as u64, &[0, 0x20]));
        let mut beyond = [0; 8];
        config.read(BYTES as u64 - 4, &mut beyond);
        assert_eq!(beyond, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        config.read(u64::MAX, &mut beyond);
        Config::absent().read(0, &mut id);
        assert_eq!(id, [0xff; 4]);
        assert!(!config.write(u64::MAX - 1, &[1; 8]));
    }
}
