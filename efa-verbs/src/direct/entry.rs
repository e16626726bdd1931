//! A send-queue entry and how it gets into the queue.

/// The bytes of one send-queue entry, little endian.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Entry(pub(super) [Quad; 4]);

#[cfg(target_arch = "x86_64")]
pub(super) type Quad = core::arch::x86_64::__m128i;
#[cfg(target_arch = "aarch64")]
pub(super) type Quad = core::arch::aarch64::uint64x2_t;

#[inline(always)]
fn quad(low: u64, high: u64) -> Quad {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 is part of x86_64.
    unsafe {
        core::arch::x86_64::_mm_set_epi64x(high as i64, low as i64)
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: both are 16 bytes without padding, any of whose bit patterns is valid.
    unsafe {
        core::mem::transmute::<[u64; 2], Quad>([low, high])
    }
}

impl Entry {
    /// The entry of eight 64-bit words.
    #[inline(always)]
    pub fn new(words: [u64; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = words;
        Self([quad(a, b), quad(c, d), quad(e, f), quad(g, h)])
    }

    /// Its bytes in memory.
    pub fn bytes(&self) -> [u8; 64] {
        // SAFETY: 64 bytes without padding.
        unsafe { core::mem::transmute_copy(&self.0) }
    }
}

/// What is added to an entry on its way: a phase bit, in the first word.
#[derive(Clone, Copy)]
pub(super) struct Extra(Quad);

impl Extra {
    #[inline(always)]
    pub(super) fn new(first_word: u64) -> Self {
        Self(quad(first_word, 0))
    }
}

/// Copies one entry into the send queue, in the widest stores that the target surely has, with
/// `extra` added. The queue is write-combining memory: whole entries, written in order, leave the
/// processor as whole entries.
///
/// # Safety
///
/// `from` must be valid for reads and `to` for writes of 64 bytes, both aligned to 64.
#[inline(always)]
pub(super) unsafe fn store(from: *const Entry, to: *mut Entry, extra: Extra) {
    // The stores are volatile: the compiler must neither split nor drop nor delay them past the
    // flush.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx512f"))]
    // SAFETY: the caller promises both addresses; the target has the instructions.
    unsafe {
        use core::arch::x86_64::{__m512i, _mm512_or_si512, _mm512_zextsi128_si512};
        let entry = _mm512_or_si512(
            from.cast::<__m512i>().read(),
            _mm512_zextsi128_si512(extra.0),
        );
        to.cast::<__m512i>().write_volatile(entry);
    }
    #[cfg(all(
        target_arch = "x86_64",
        target_feature = "avx",
        not(target_feature = "avx512f")
    ))]
    // SAFETY: the caller promises both addresses; the target has the instructions.
    unsafe {
        use core::arch::x86_64::{
            __m256i, _mm_or_si128, _mm256_castsi128_si256, _mm256_insertf128_si256,
        };
        let first = _mm256_castsi128_si256(_mm_or_si128((*from).0[0], extra.0));
        let low = _mm256_insertf128_si256::<1>(first, (*from).0[1]);
        let high = from.cast::<__m256i>().add(1).read();
        to.cast::<__m256i>().write_volatile(low);
        to.cast::<__m256i>().add(1).write_volatile(high);
    }
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx")))]
    // SAFETY: the caller promises both addresses; SSE2 is part of x86_64.
    unsafe {
        let to = to.cast::<Quad>();
        let [a, b, c, d] = (*from).0;
        to.write_volatile(core::arch::x86_64::_mm_or_si128(a, extra.0));
        to.add(1).write_volatile(b);
        to.add(2).write_volatile(c);
        to.add(3).write_volatile(d);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller promises both addresses; the instructions touch nothing else.
    unsafe {
        core::arch::asm!(
            "ld1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{from}]",
            "orr v0.16b, v0.16b, {extra:v}.16b",
            "st1 {{v0.2d, v1.2d, v2.2d, v3.2d}}, [{to}]",
            from = in(reg) from,
            to = in(reg) to,
            extra = in(vreg) extra.0,
            out("v0") _, out("v1") _, out("v2") _, out("v3") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Makes what was written to write-combining memory leave the processor before anything that is
/// written after, and in turn orders that behind what was written to the device before.
#[inline(always)]
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
#[inline(always)]
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

/// The same number, of which the compiler knows nothing, at no cost. It keeps a loop's count in one
/// register: left to itself, the compiler makes several counts of it that it thinks cheaper.
#[inline(always)]
pub(super) fn opaque(mut number: u32) -> u32 {
    // SAFETY: there is no instruction in it, only a register that is said to change.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "/* {0:e} */",
            inout(reg) number,
            options(pure, nomem, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "/* {0:w} */",
            inout(reg) number,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    number
}

/// Keeps reads of what the device wrote behind the read that showed it to be there.
#[inline(always)]
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
