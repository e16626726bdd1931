//! What stands in the shared pages, byte by byte: rings, phases and doorbells, counted in
//! `efa_io_defs.h` and `efa_io_regs_defs.h`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::rig::*;
use crate::engine::{CqSpec, QpKind, QpSpec, QpState};

/// Words of memory that both sides use.
struct Words(Box<[AtomicU32]>);

impl Words {
    fn new(bytes: usize) -> Self {
        // In pairs, for the alignment that queues have.
        Self((0..bytes / 4).map(|_| AtomicU32::new(0)).collect())
    }

    fn ptr(&self) -> *mut u32 {
        self.0.as_ptr().cast_mut().cast()
    }

    fn bytes(&self) -> Vec<u8> {
        let words = self.0.iter().map(|word| word.load(Ordering::Acquire));
        words.flat_map(u32::to_le_bytes).collect()
    }
}

/// One queue pair whose rings hold four entries, over a completion queue of four short entries.
struct Small {
    completions: Words,
    sends: Words,
    receives: Words,
    doorbells: Words,
    number: u16,
}

impl Small {
    fn new(device: &Device) -> Self {
        let small = Self {
            completions: Words::new(4 * 16),
            sends: Words::new(4 * 64),
            receives: Words::new(4 * 16),
            doorbells: Words::new(16),
            number: 0,
        };
        let cq = CqSpec {
            ring: small.completions.ptr().cast(),
            entries: 4,
            entry_size: 16,
            src_addr: false,
            doorbell: None,
            notify: None,
        };
        // SAFETY: the words live as long as `Small`, which the tests drop after the engine.
        let cq = unsafe { device.engine.create_cq(cq) }.unwrap();
        let spec = QpSpec {
            pd: PD,
            kind: QpKind::Srd,
            send_cq: cq,
            recv_cq: cq,
            sq: small.sends.ptr().cast(),
            sq_bytes: 4 * 64,
            sq_entry_size: 64,
            sq_db: small.doorbells.ptr(),
            rq: small.receives.ptr().cast(),
            rq_bytes: 4 * 16,
            rq_db: small.doorbells.ptr().wrapping_add(2),
            unsolicited: false,
        };
        // SAFETY: as above.
        let number = unsafe { device.engine.create_qp(spec) }.unwrap();
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let change = crate::engine::QpChange {
                state: Some(state),
                qkey: Some(QKEY),
                ..crate::engine::QpChange::default()
            };
            device.engine.modify_qp(number, change).unwrap();
        }
        Self { number, ..small }
    }
}

#[test]
fn short_completions_and_doorbells_wrap_as_the_hardware_defines_them() {
    let device = Device::with(151, crate::profile::ProfileName::P5en, "reorder=0", 1);
    let own = device.handle(&device);
    let mut small = Small::new(&device);
    // Seven sends without a destination: each ends with status 9 and takes the next place.
    let nobody = small.number ^ 0x8000;
    for n in 0..7u16 {
        let at = usize::from(n % 4) * 16;
        // Phase 0 in the first round, 1 in the second; FIRST, LAST and COMP_REQ; META_DESC, send.
        let phase = u32::from(n / 4);
        let first = u32::from(0x40 + n) | 0x80 << 16 | (0x1c | phase) << 24;
        let words = [first, u32::from(nobody), 0, u32::from(own), QKEY];
        for (place, word) in small.sends.0[at..].iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        // The doorbell is the count of entries ever posted, and goes on past the ring's end.
        small.doorbells.0[0].store(u32::from(n) + 1, Ordering::Release);
        // The status of a place is there once its phase is: 1 in the first round, then 0.
        let wanted = 1 - n as u8 / 4;
        let place = usize::from(n % 4) * 16;
        until(|| {
            let entry = &small.completions.bytes()[place..place + 16];
            entry[0] == 0x40 + n as u8 && entry[3] & 1 == wanted
        });
        let number = small.number.to_le_bytes();
        // req_id, status; phase, q_type send (1 << 1), op_type send (0 << 4); qp_num.
        let common = [0x40 + n as u8, 0, 9, 2 | wanted, number[0], number[1]];
        assert_eq!(small.completions.bytes()[place..place + 6], common, "{n}");
    }
    device.engine.destroy_qp(small.number);
    small.number = 0;
    drop(device);
}

#[test]
fn the_top_bit_of_the_consumer_doorbell_asks_for_one_event() {
    let mut p = Pair::new(153);
    let events = Arc::new(AtomicU32::new(0));
    let counted = events.clone();
    let notify: Box<dyn Fn() + Send + Sync> = Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let send_cq = Cq::with_notify(&p.a, 64, 32, Some(notify));
    let mut qp = Qp::with_send_cq(&p.a, QpOptions::default(), send_cq);
    qp.connect(&p.a);
    let inbox = [0u8; 64];
    let key = p.b.register(&inbox, ALL);
    for id in 0..4 {
        p.qb.post_recv(id, &[(&inbox, key)]);
    }
    let entry = || Entry::inline(1, p.to_b, p.qb.number, b"x");
    let done = |n: u64| until(|| p.a.counter("completions_send") >= n);
    let seen = || events.load(Ordering::Relaxed);
    let quiet = || std::thread::sleep(Duration::from_millis(20));

    // Nothing was asked for.
    qp.post(&[entry()]);
    done(1);
    quiet();
    assert_eq!(seen(), 0);
    // ARM (bit 31), command 1 (bits 29 and 30), one completion consumed (bits 0 to 15).
    qp.send_cq.doorbell.set(0xa000_0001);
    quiet();
    assert_eq!(seen(), 0, "nothing new yet");
    qp.post(&[entry()]);
    until(|| seen() == 1);
    // Asked once, told once.
    qp.post(&[entry()]);
    done(3);
    quiet();
    assert_eq!(seen(), 1);
    // Command 2, with two completions that are there already.
    qp.send_cq.doorbell.set(0xc000_0001);
    until(|| seen() == 2);
    assert_eq!(p.a.counter("cq_events"), 2);
    p.a.engine.destroy_qp(qp.number);
}
