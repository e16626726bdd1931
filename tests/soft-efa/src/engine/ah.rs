//! Address handles: small numbers that stand for a GID inside a protection domain.

use std::net::Ipv4Addr;

use rustc_hash::FxHashMap;

#[derive(Clone, Copy, Debug)]
struct Handle {
    pd: u32,
    ip: Ipv4Addr,
    uses: u32,
}

/// The address handles of a device.
pub(super) struct AddressHandles {
    by_number: FxHashMap<u16, Handle>,
    by_address: FxHashMap<(u32, Ipv4Addr), u16>,
    next: u16,
    limit: usize,
}

impl AddressHandles {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            by_number: FxHashMap::default(),
            by_address: FxHashMap::default(),
            next: 0,
            // 0xffff means "unknown" in a completion.
            limit: (limit as usize).min(0xffff),
        }
    }

    /// The handle for `ip` in `pd`, made if there is none. It takes one `remove` per `insert`.
    pub(super) fn insert(&mut self, pd: u32, ip: Ipv4Addr) -> Result<u16, i32> {
        if let Some(number) = self.by_address.get(&(pd, ip)) {
            if let Some(handle) = self.by_number.get_mut(number) {
                handle.uses += 1;
            }
            return Ok(*number);
        }
        if self.by_number.len() >= self.limit {
            return Err(libc::ENOMEM);
        }
        while self.next == 0xffff || self.by_number.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.by_number.insert(number, Handle { pd, ip, uses: 1 });
        self.by_address.insert((pd, ip), number);
        Ok(number)
    }

    /// Gives a handle back. True if that was its last use: it is gone now.
    pub(super) fn remove(&mut self, pd: u32, number: u16) -> bool {
        let Some(handle) = self.by_number.get_mut(&number).filter(|h| h.pd == pd) else {
            return false;
        };
        handle.uses -= 1;
        if handle.uses > 0 {
            return false;
        }
        self.by_address.remove(&(pd, handle.ip));
        self.by_number.remove(&number);
        true
    }

    /// The address behind a handle of this domain.
    pub(super) fn address(&self, pd: u32, number: u16) -> Option<Ipv4Addr> {
        let handle = self.by_number.get(&number)?;
        (handle.pd == pd).then_some(handle.ip)
    }

    /// The handle by which this domain knows an address.
    pub(super) fn known(&self, pd: u32, ip: Ipv4Addr) -> Option<u16> {
        self.by_address.get(&(pd, ip)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

    #[test]
    fn handles_belong_to_a_domain_and_count_their_uses() {
        let mut handles = AddressHandles::new(8);
        let first = handles.insert(1, A).unwrap();
        assert_eq!(handles.insert(1, A), Ok(first));
        let other = handles.insert(2, A).unwrap();
        assert_ne!(first, other);
        assert_eq!(handles.address(1, first), Some(A));
        assert_eq!(handles.address(2, first), None);
        assert_eq!(handles.known(1, A), Some(first));
        assert_eq!(handles.known(1, B), None);
        assert!(!handles.remove(2, first));
        assert!(!handles.remove(1, first));
        assert!(handles.remove(1, first));
        assert_eq!(handles.known(1, A), None);
        assert_eq!(handles.known(2, A), Some(other));
    }

    #[test]
    fn a_full_table_says_enomem_and_numbers_return_late() {
        let mut handles = AddressHandles::new(2);
        let a = handles.insert(1, A).unwrap();
        handles.insert(1, B).unwrap();
        assert_eq!(handles.insert(2, A), Err(libc::ENOMEM));
        assert_eq!(handles.insert(1, B), handles.insert(1, B));
        handles.remove(1, a);
        assert_ne!(handles.insert(1, A), Ok(a));
    }
}
