//! A send-queue entry, how it gets into the queue, and the order of accesses to device memory.

/// The bytes of one send-queue entry, as little-endian words.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Entry(pub(super) [u64; 8]);

/// The widest unit that every processor of the architecture stores whole.
#[cfg(target_arch = "x86_64")]
type Quad = core::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
type Quad = core::arch::aarch64::uint64x2_t;

#[inline]
fn or(one: Quad, other: Quad) -> Quad {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86_64.
    unsafe {
        core::arch::x86_64::_mm_or_si128(one, other)
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: NEON is part of aarch64.
    unsafe {
        core::arch::aarch64::vorrq_u64(one, other)
    }
}

/// Copies one entry into the send queue, with `first` added to its first word. The queue is
/// write-combining memory: entries written without a gap, in order, reach the device whole.
///
/// # Safety
///
/// `to` must be valid for writes of 64 bytes and aligned to 64.
#[inline]
pub(super) unsafe fn store(from: &Entry, to: *mut Entry, first: u64) {
    // SAFETY: both are 16 bytes without padding, any of whose bit patterns is valid.
    let (first, quads) = unsafe {
        (
            core::mem::transmute::<[u64; 2], Quad>([first, 0]),
            core::mem::transmute::<[u64; 8], [Quad; 4]>(from.0),
        )
    };
    let [a, b, c, d] = quads;
    let to = to.cast::<Quad>();
    // SAFETY: the caller promises 64 bytes. Volatile: none may be dropped, or delayed past the flush.
    unsafe {
        to.write_volatile(or(a, first));
        to.add(1).write_volatile(b);
        to.add(2).write_volatile(c);
        to.add(3).write_volatile(d);
    }
}

// The barriers below are between the processor and a device, which `core::sync::atomic::fence` does not
// promise anything about: on aarch64 it orders for other processors only. They are what rdma-core uses.

/// Makes what was written to write-combining memory leave the processor before anything that is
/// written after, and in turn orders that behind what was written to the device before.
#[inline]
pub(super) fn flush_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86_64.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no memory and no register.
    unsafe {
        core::arch::asm!("dsb st", options(nostack, preserves_flags));
    }
}

/// Makes what was written to ordinary memory visible to the device before what is written after.
#[inline]
pub(super) fn to_device() {
    // x86_64 keeps stores in order for everyone, the device included; the compiler must as well.
    #[cfg(target_arch = "x86_64")]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

/// Keeps reads of what the device wrote behind the read that showed it to be there.
#[inline]
pub(super) fn from_device() {
    // x86_64 keeps loads in order; the compiler must as well.
    #[cfg(target_arch = "x86_64")]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Acquire);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no memory and no register.
    unsafe {
        core::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
}
