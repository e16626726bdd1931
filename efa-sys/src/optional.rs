//! What only newer libraries have: found at run time, never at link or load time.
//!
//! libefa exports by symbol version. Linking to one newer than `EFA_1.1` would make the loader
//! refuse an older library even if the function is never called, and a weak reference does not
//! change that. So [`optional`] asks `dlvsym` once and remembers.

use core::ffi::{CStr, c_int, c_uint};
use std::sync::OnceLock;

use crate::bindings::*;
use crate::shim;

/// A function that `libefa` may lack.
macro_rules! optional_functions {
    ($($(#[$doc:meta])* $name:ident @ $version:literal : fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Functions newer than `EFA_1.1`; `None` where the loaded libefa lacks them.
        #[derive(Clone, Copy)]
        pub struct Optional {
            $($(#[$doc])* pub $name: Option<unsafe extern "C" fn($($arg),*) $(-> $ret)?>,)*
        }

        impl Optional {
            fn look_up() -> Self {
                Self {
                    $($name: {
                        // SAFETY: both strings are NUL-terminated literals. A symbol of this name
                        // and version has the signature that efadv.h declares for it: libefa's
                        // version script never reuses a pair. A null result becomes `None`, since
                        // the option of a function pointer has the null niche.
                        unsafe {
                            let address = shim::symbol(
                                concat!(stringify!($name), "\0").as_ptr().cast(),
                                concat!($version, "\0").as_ptr().cast(),
                            );
                            core::mem::transmute::<
                                *mut core::ffi::c_void,
                                Option<unsafe extern "C" fn($($arg),*) $(-> $ret)?>,
                            >(address)
                        }
                    },)*
                }
            }

            /// Name and symbol version of each function, and whether it is there.
            pub fn list(&self) -> Vec<(&'static str, &'static str, bool)> {
                vec![$((stringify!($name), $version, self.$name.is_some()),)*]
            }
        }
    };
}

optional_functions! {
    /// Makes an extended completion queue that can report the sender's GID (rdma-core 41).
    efadv_create_cq @ "EFA_1.2":
        fn(*mut ibv_context, *mut ibv_cq_init_attr_ex, *mut efadv_cq_init_attr, u32) -> *mut ibv_cq_ex;
    /// The EFA part of such a completion queue (rdma-core 41).
    efadv_cq_from_ibv_cq_ex @ "EFA_1.2": fn(*mut ibv_cq_ex) -> *mut efadv_cq;
    /// Interconnect ids of a memory region (rdma-core 50).
    efadv_query_mr @ "EFA_1.3": fn(*mut ibv_mr, *mut efadv_mr_attr, u32) -> c_int;
    /// Where the send and the receive queue are in memory (rdma-core 59).
    efadv_query_qp_wqs @ "EFA_1.4":
        fn(*mut ibv_qp, *mut efadv_wq_attr, *mut efadv_wq_attr, u32) -> c_int;
    /// Where the completion queue is in memory (rdma-core 59).
    efadv_query_cq @ "EFA_1.4": fn(*mut ibv_cq, *mut efadv_cq_attr_ex, u32) -> c_int;
    /// The deepest send queue with given inline size and entries per request (rdma-core 63).
    efadv_get_max_sq_depth @ "EFA_1.5": fn(*mut ibv_context, *mut efadv_sq_depth_attr, u32) -> c_int;
    /// The deepest receive queue with given entries per request (rdma-core 63).
    efadv_get_max_rq_depth @ "EFA_1.5": fn(*mut ibv_context, *mut efadv_rq_depth_attr, u32) -> c_int;
}

/// The optional functions of the loaded library, looked up on the first call.
pub fn optional() -> &'static Optional {
    static OPTIONAL: OnceLock<Optional> = OnceLock::new();
    OPTIONAL.get_or_init(Optional::look_up)
}

/// The highest `EFA_1.x` symbol version that the loaded libefa offers, as `x`.
///
/// 1: rdma-core before 41, 2: 41, 3: 50, 4: 59, 5: 63, 6: 64, 7: 65.
pub fn efa_symbol_version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    *VERSION.get_or_init(|| {
        // One symbol that each version introduced, newest first.
        let marks: [(u32, &CStr, &CStr); 6] = [
            (7, c"efadv_create_comp_cntr", c"EFA_1.7"),
            (6, c"efadv_qp_from_ibv_qp_ex", c"EFA_1.6"),
            (5, c"efadv_get_max_sq_depth", c"EFA_1.5"),
            (4, c"efadv_query_qp_wqs", c"EFA_1.4"),
            (3, c"efadv_query_mr", c"EFA_1.3"),
            (2, c"efadv_create_cq", c"EFA_1.2"),
        ];
        for (version, name, symbol_version) in marks {
            // SAFETY: both are NUL-terminated.
            let found = unsafe { shim::symbol(name.as_ptr(), symbol_version.as_ptr()) };
            if !found.is_null() {
                return version;
            }
        }
        1
    })
}

/// `efadv_cq_attr` as it is from rdma-core 60 on. A 59 leaves the doorbell null, since the tail
/// that it does not know stays zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_cq_attr_ex {
    /// Fields beyond those of the first version that are valid; 0.
    pub comp_mask: u64,
    /// First byte of the ring.
    pub buffer: *mut u8,
    /// Bytes per entry, 16 or 32.
    pub entry_size: u32,
    /// Entries in the ring, a power of two.
    pub num_entries: u32,
    /// The consumer doorbell; null without a completion channel and before rdma-core 60.
    pub doorbell: *mut u32,
}

/// `efadv_sq_depth_attr` (rdma-core 63).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_sq_depth_attr {
    /// 0.
    pub comp_mask: u64,
    /// `EFADV_SQ_DEPTH_ATTR_*`.
    pub flags: c_uint,
    /// Scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Scatter/gather entries of an RDMA request.
    pub max_rdma_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// `efadv_rq_depth_attr` (rdma-core 63).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_rq_depth_attr {
    /// 0.
    pub comp_mask: u64,
    /// Scatter/gather entries of a receive.
    pub max_recv_sge: u32,
}

/// Flag of [`efadv_sq_depth_attr`]: RDMA write carries inline data too (rdma-core 63).
pub const EFADV_SQ_DEPTH_ATTR_INLINE_WRITE: c_uint = 1;
/// Bit in the two bytes after `max_batch` of `efadv_wq_attr`: request ids have 64 bits
/// (rdma-core 65).
pub const EFADV_WQ_CAPS_64_BIT_REQ_ID: u16 = 1;

const _: () = {
    // As the headers of rdma-core 63 to 65 have them, on both architectures.
    assert!(core::mem::size_of::<efadv_cq_attr_ex>() == 32);
    assert!(core::mem::offset_of!(efadv_cq_attr_ex, doorbell) == 24);
    assert!(core::mem::size_of::<efadv_sq_depth_attr>() == 24);
    assert!(core::mem::size_of::<efadv_rq_depth_attr>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_functions_agree() {
        let version = efa_symbol_version();
        for (name, since, present) in optional().list() {
            let since: u32 = since.rsplit('.').next().unwrap().parse().unwrap();
            assert_eq!(
                present,
                since <= version,
                "{name} of EFA_1.{since} with EFA_1.{version}"
            );
        }
    }
}
