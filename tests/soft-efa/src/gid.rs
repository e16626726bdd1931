//! How a device's GID carries its IPv4 address.
//!
//! An EFA GID is a link-local IPv6 address built from the interface's 48-bit address
//! (EUI-64: `fe80::` and eight bytes with `ff:fe` in the middle). soft-efa keeps that shape
//! and puts the IPv4 address of the device into the last byte of the upper half and the three
//! bytes of the lower half, so that a GID and a queue pair number are a UDP address.

use std::net::Ipv4Addr;

const PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];
/// Locally administered, so that it can't be the address of a real EFA interface.
const MARK: [u8; 2] = [0x02, 0xef];

/// The GID of the device that owns `ip`.
///
/// ```
/// use std::net::Ipv4Addr;
/// let gid = soft_efa::gid::gid_of(Ipv4Addr::new(127, 0, 0, 1));
/// assert_eq!(soft_efa::gid::ip_of(&gid), Some(Ipv4Addr::new(127, 0, 0, 1)));
/// ```
pub fn gid_of(ip: Ipv4Addr) -> [u8; 16] {
    let [a, b, c, d] = ip.octets();
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&PREFIX);
    gid[8..].copy_from_slice(&[MARK[0], MARK[1], a, 0xff, 0xfe, b, c, d]);
    gid
}

/// The IPv4 address that a GID carries, or `None` if it is not the GID of a soft-efa device.
pub fn ip_of(gid: &[u8; 16]) -> Option<Ipv4Addr> {
    let shape = gid[..8] == PREFIX && gid[8..10] == MARK && gid[11..13] == [0xff, 0xfe];
    shape.then(|| Ipv4Addr::new(gid[10], gid[13], gid[14], gid[15]))
}

/// The node GUID of the device that owns `ip`, in network order.
pub fn guid_of(ip: Ipv4Addr) -> [u8; 8] {
    let [a, b, c, d] = ip.octets();
    [MARK[0], MARK[1], a, 0, 0, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_is_a_link_local_eui64_with_the_address_inside() {
        let gid = gid_of(Ipv4Addr::new(10, 20, 30, 40));
        let expected = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0xef, 10, 0xff, 0xfe, 20, 30, 40,
        ];
        assert_eq!(gid, expected);
        assert_eq!(ip_of(&gid), Some(Ipv4Addr::new(10, 20, 30, 40)));
    }

    #[test]
    fn other_gids_carry_no_address() {
        assert_eq!(ip_of(&[0; 16]), None);
        for at in [0, 1, 7, 8, 9, 11, 12] {
            let mut gid = gid_of(Ipv4Addr::LOCALHOST);
            gid[at] ^= 1;
            assert_eq!(ip_of(&gid), None, "byte {at}");
        }
    }
}
