//! What the device itself checks of a request, whichever way the request comes: from the kernel
//! side that [`uverbs`](crate::uverbs) plays, or from a real driver over PCI.
//!
//! Errors are `errno` values, as in [`engine`](crate::engine).

use crate::engine::QpState;
use crate::profile::Profile;

/// Bytes of a receive descriptor.
const RECEIVE_DESCRIPTOR: u32 = 16;

/// Checks the bytes of a receive ring. The device's counters wrap at powers of two.
pub(crate) fn receive_ring(bytes: u32) -> Result<(), i32> {
    let fits = bytes == 0
        || (bytes.is_multiple_of(RECEIVE_DESCRIPTOR)
            && bytes.is_power_of_two()
            && bytes / RECEIVE_DESCRIPTOR <= 1 << 16);
    if fits { Ok(()) } else { Err(libc::EINVAL) }
}

/// Bytes of a send entry, 64 or 128: the device is told the ring's bytes and its depth.
pub(crate) fn send_entry(profile: &Profile, depth: u32, ring: u32) -> Result<u32, i32> {
    let entries = depth
        .max(u32::from(profile.min_sq_wr))
        .checked_next_power_of_two();
    match entries {
        _ if ring == 0 && depth == 0 => Ok(64),
        Some(entries) if ring <= profile.max_llq_size && ring.is_power_of_two() => {
            match ring / entries {
                64 => Ok(64),
                128 => Ok(128),
                _ => Err(libc::EINVAL),
            }
        }
        _ => Err(libc::EINVAL),
    }
}

/// Checks the length of a memory region: a page table entry for each page, and no more of them
/// than the device has.
pub(crate) fn region_length(profile: &Profile, length: u64) -> Result<(), i32> {
    if length.div_ceil(4096) > profile.max_mr_pages {
        Err(libc::ENOMEM)
    } else {
        Ok(())
    }
}

/// The state with this number, `IB_QPS_*` and `EFA_ADMIN_QP_STATE_*` alike.
pub(crate) fn qp_state(number: u32) -> Option<QpState> {
    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];
    STATES.get(number as usize).copied()
}

/// The number of a state.
pub(crate) fn qp_state_number(state: QpState) -> u8 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqd => 4,
        QpState::Sqe => 5,
        QpState::Err => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ProfileName;

    #[test]
    fn ring_sizes_follow_depth_and_entry() {
        let p6 = Profile::of(ProfileName::P6);
        assert_eq!(send_entry(&p6, 32, 32 * 64), Ok(64));
        assert_eq!(
            send_entry(&p6, 1, 32 * 128),
            Ok(128),
            "the least depth is 32"
        );
        assert_eq!(send_entry(&p6, 0, 0), Ok(64));
        for (depth, ring) in [(32, 0), (32, 96), (u32::MAX, 64), (4096, 4096 * 64)] {
            assert_eq!(
                send_entry(&p6, depth, ring),
                Err(libc::EINVAL),
                "{depth} {ring}"
            );
        }
        for (bytes, fits) in [
            (0, true),
            (16, true),
            (1 << 20, true),
            (48, false),
            (2 << 20, false),
        ] {
            assert_eq!(receive_ring(bytes).is_ok(), fits, "{bytes}");
        }
    }

    #[test]
    fn states_round_trip() {
        for number in 0..7 {
            assert_eq!(qp_state(number).map(qp_state_number), Some(number as u8));
        }
        assert_eq!(qp_state(7), None);
    }
}
