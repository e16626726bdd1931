//! What a program does with queues that it has mapped.

use std::sync::atomic::Ordering;

use super::world::{Pick, World, pick};

impl World<'_> {
    /// Posts requests of a queue pair to itself or to its neighbour, with words of them changed.
    pub(super) fn post(&mut self, which: Pick, op: u8, changes: &[(u8, u32)], count: u8) {
        let (ah, mr) = (pick(&self.ahs, which), pick(&self.mrs, which));
        let to = pick(&self.qps, which.wrapping_add(1)).map_or(0, |qp| qp.number);
        let address = self.arena.room();
        let (lkey, ah) = (mr.map_or(0, |mr| mr.1), ah.map_or(0, |ah| ah.1));
        let at = usize::from(which) % self.qps.len().max(1);
        let Some(qp) = self.qps.get_mut(at) else {
            return;
        };
        let (Some(ring), Some(bell), true) = (&qp.sends, &qp.doorbells, qp.depth > 0) else {
            return;
        };
        for _ in 0..count {
            let phase = qp.posted / qp.depth % 2;
            let mut words = [0u32; 16];
            words[0] =
                u32::from(qp.posted) | u32::from(0x80 | op) << 16 | u32::from(0x1c | phase) << 24;
            words[1] = u32::from(to) | 1 << 16;
            words[3] = ah.into();
            words[4] = 0x4242;
            let buffer = [2000, lkey, address as u32, (address >> 32) as u32];
            words[8..12].copy_from_slice(&buffer);
            words[12..16].copy_from_slice(&buffer);
            for (at, value) in changes {
                words[usize::from(*at) % 16] = *value;
            }
            let first = usize::from(qp.posted % qp.depth) * 16;
            for (place, word) in ring.words()[first..].iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
            qp.posted = qp.posted.wrapping_add(1);
        }
        bell.words()[0].store(qp.posted.into(), Ordering::Release);
    }

    /// Posts receives, with words of them changed.
    pub(super) fn post_receives(&mut self, which: Pick, changes: &[(u8, u32)], count: u8) {
        let lkey = pick(&self.mrs, which).map_or(0, |mr| mr.1);
        let address = self.arena.room();
        let at = usize::from(which) % self.qps.len().max(1);
        let Some(qp) = self.qps.get_mut(at) else {
            return;
        };
        let (Some(ring), Some(bells)) = (&qp.receives, &qp.doorbells) else {
            return;
        };
        for _ in 0..count {
            let mut words = [
                address as u32,
                (address >> 32) as u32,
                u32::from(qp.received) | 3000 << 16,
                lkey | 3 << 30,
            ];
            for (at, value) in changes {
                words[usize::from(*at) % 4] = *value;
            }
            let first = usize::from(qp.received) * 4 % ring.words().len();
            for (place, word) in ring.words()[first..].iter().zip(words) {
                place.store(word, Ordering::Relaxed);
            }
            qp.received = qp.received.wrapping_add(1);
        }
        bells.words()[16].store(qp.received.into(), Ordering::Release);
    }

    /// Writes whatever into pages that are shared with the device.
    pub(super) fn scribble(&mut self, (which, place): (Pick, u8), at: u16, value: u32) {
        let Some(qp) = pick(&self.qps, which) else {
            return;
        };
        let pages = match place {
            0 => &qp.sends,
            1 => &qp.receives,
            _ => &qp.doorbells,
        };
        let Some(pages) = pages else { return };
        // The doorbells are the words 0 and 16.
        let at = if place > 1 { at % 2 * 16 } else { at };
        let words = pages.words();
        words[usize::from(at) % words.len()].store(value, Ordering::Release);
    }
}
