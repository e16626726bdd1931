//! One direction of SRD: from a queue pair of ours to one peer.
//!
//! A flow knows which messages are outstanding, which packets are under way, and when to send them
//! again. It decides about order and time; what is in the packets is the requester's business.

use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use super::message::Message;

/// What a packet weighs besides its payload: small packets cost the receiver something too.
const OVERHEAD: u64 = 128;
/// The share of packets that are held back so that later ones overtake them: one in this many.
const HOLD_ONE_IN: u64 = 8;
/// How long a packet is held back when nothing comes that could overtake it.
const HOLD: Duration = Duration::from_micros(80);

/// A packet, sent for the `attempt`-th time (from 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sending {
    pub(super) seq: u32,
    pub(super) packet: u32,
    pub(super) attempt: u16,
}

struct Flying {
    at: Instant,
    sending: Sending,
}

struct Held {
    sending: Sending,
    /// Released once so many packets were sent,
    after: u64,
    /// or now.
    due: Instant,
}

/// From a queue pair of ours to one peer.
pub(super) struct Flow {
    pub(super) peer: SocketAddrV4,
    /// The longest datagram on the way there.
    pub(super) limit: usize,
    /// The peer's incarnation, once it has told.
    pub(super) nonce: Option<u64>,
    pub(super) hello: Option<Hello>,
    /// The peer can read our process.
    pub(super) near: bool,
    /// The number of the first message in `messages`.
    base: u32,
    messages: VecDeque<Option<Message>>,
    pub(super) outstanding: usize,
    /// The first message with packets that were never sent.
    unsent: u32,
    resend: VecDeque<Sending>,
    held: Vec<Held>,
    delayed: Vec<(Instant, Sending)>,
    flying: VecDeque<Flying>,
    /// What the packets under way weigh.
    weight: u64,
    window: u64,
    peer_window: u64,
    sent: u64,
    smooth: Option<Duration>,
    jitter: Duration,
    backoff: u32,
    /// Messages that wait before they start again.
    again: Vec<u32>,
    next_check: Instant,
    /// When the peer last answered.
    pub(super) heard: Instant,
    /// In the requester's list of flows that have something to do.
    pub(super) listed: bool,
}

/// The search for the peer's incarnation.
pub(super) struct Hello {
    pub(super) since: Instant,
    pub(super) next: Instant,
    pub(super) tries: u32,
}

impl Flow {
    const FIRST_WINDOW: u64 = 256 << 10;
    const LEAST_WINDOW: u64 = 192 << 10;
    /// More would only push what is under way out of the processor's caches.
    const MOST_WINDOW: u64 = 512 << 10;
    const FIRST_RTO: Duration = Duration::from_millis(10);
    const LEAST_RTO: Duration = Duration::from_millis(4);
    const MOST_RTO: Duration = Duration::from_millis(250);
    const CHECK_EVERY: Duration = Duration::from_millis(50);

    pub(super) fn new(peer: SocketAddrV4, limit: usize, now: Instant) -> Self {
        Self {
            peer,
            limit,
            nonce: None,
            hello: None,
            near: false,
            base: 1,
            messages: VecDeque::new(),
            outstanding: 0,
            unsent: 1,
            resend: VecDeque::new(),
            held: Vec::new(),
            delayed: Vec::new(),
            flying: VecDeque::new(),
            weight: 0,
            window: Self::FIRST_WINDOW,
            peer_window: Self::FIRST_WINDOW,
            sent: 0,
            smooth: None,
            jitter: Duration::ZERO,
            backoff: 0,
            again: Vec::new(),
            next_check: now,
            heard: now,
            listed: false,
        }
    }

    /// The oldest message that is outstanding, or the next one to come.
    pub(super) fn lowest(&self) -> u32 {
        self.base
    }

    /// Takes a message and gives it its number.
    pub(super) fn push(&mut self, message: Message) -> u32 {
        let seq = self.base.wrapping_add(self.messages.len() as u32);
        self.messages.push_back(Some(message));
        self.outstanding += 1;
        seq
    }

    fn index(&self, seq: u32) -> usize {
        seq.wrapping_sub(self.base) as usize
    }

    /// The outstanding message of this number.
    pub(super) fn message(&self, seq: u32) -> Option<&Message> {
        self.messages.get(self.index(seq))?.as_ref()
    }

    pub(super) fn message_mut(&mut self, seq: u32) -> Option<&mut Message> {
        let index = self.index(seq);
        self.messages.get_mut(index)?.as_mut()
    }

    /// The numbers of all outstanding messages.
    pub(super) fn outstanding_messages(&self) -> Vec<u32> {
        let numbered = self.messages.iter().zip(0u32..);
        numbered
            .filter(|(message, _)| message.is_some())
            .map(|(_, i)| self.base.wrapping_add(i))
            .collect()
    }

    /// Takes a message out, whatever has become of it.
    pub(super) fn finish(&mut self, seq: u32) -> Option<Message> {
        let index = self.index(seq);
        let message = self.messages.get_mut(index)?.take()?;
        self.outstanding -= 1;
        self.weight = self.weight.saturating_sub(message.flying);
        while let Some(None) = self.messages.front() {
            self.messages.pop_front();
            self.base = self.base.wrapping_add(1);
        }
        if (self.base.wrapping_sub(self.unsent) as i32) > 0 {
            self.unsent = self.base;
        }
        if self.outstanding == 0 {
            self.flying.clear();
            self.resend.clear();
            self.held.clear();
            self.delayed.clear();
            self.again.clear();
            self.weight = 0;
            self.backoff = 0;
        }
        Some(message)
    }

    fn weight_of(message: &Message, packet: u32) -> u64 {
        u64::from(message.range(packet).1) + OVERHEAD
    }

    /// Marks a packet as arrived. True if that is news.
    pub(super) fn acknowledge(&mut self, seq: u32, packet: u32, now: Instant) -> bool {
        let Some(message) = self.message_mut(seq) else {
            return false;
        };
        if packet >= message.packets || !message.acked.set(packet) {
            return false;
        }
        message.left -= 1;
        message.moved = Some(now);
        let weight = Self::weight_of(message, packet).min(message.flying);
        message.flying -= weight;
        self.weight = self.weight.saturating_sub(weight);
        self.progress(weight);
        true
    }

    /// Something got through: the way is open.
    pub(super) fn progress(&mut self, weight: u64) {
        self.backoff = 0;
        self.window = (self.window + weight / 4).min(Self::MOST_WINDOW);
    }

    /// Learns how much the peer can take.
    pub(super) fn set_peer_window(&mut self, window: u32) {
        self.peer_window = u64::from(window).max(Self::LEAST_WINDOW / 2);
    }

    /// Learns how long an answer takes.
    pub(super) fn measure(&mut self, sample: Duration) {
        match self.smooth {
            None => {
                self.smooth = Some(sample);
                self.jitter = sample / 2;
            }
            Some(smooth) => {
                let error = smooth.abs_diff(sample);
                self.jitter = (self.jitter * 3 + error) / 4;
                self.smooth = Some((smooth * 7 + sample) / 8);
            }
        }
    }

    fn rto(&self) -> Duration {
        let base = self.smooth.map_or(Self::FIRST_RTO, |smooth| {
            (smooth * 2 + self.jitter * 4).max(Self::LEAST_RTO)
        });
        (base * (1 << self.backoff.min(6))).min(Self::MOST_RTO.max(base))
    }

    /// The packet is to be sent again.
    pub(super) fn resend(&mut self, sending: Sending) {
        self.resend.push_back(Sending {
            attempt: sending.attempt.saturating_add(1),
            ..sending
        });
    }

    /// The packet waits on its way, because the fault plan says so.
    pub(super) fn delay(&mut self, sending: Sending, until: Instant) {
        self.delayed.push((until, sending));
    }

    /// Packets whose delay is over.
    pub(super) fn take_delayed(&mut self, now: Instant, out: &mut Vec<Sending>) {
        self.delayed.retain(|(until, sending)| {
            let over = *until <= now;
            if over {
                out.push(*sending);
            }
            !over
        });
    }

    /// Starts a message again after a while: the receiver wasn't ready.
    pub(super) fn restart(&mut self, seq: u32, at: Instant) {
        let Some(message) = self.message_mut(seq) else {
            return;
        };
        let flying = message.flying;
        message.restart();
        message.not_before = Some(at);
        message.moved = Some(at);
        self.weight = self.weight.saturating_sub(flying);
        self.again.push(seq);
    }

    /// Moves packets that nobody acknowledged in time to the queue of those to send again.
    pub(super) fn expire(&mut self, now: Instant) {
        let rto = self.rto();
        let mut expired = false;
        while let Some(front) = self.flying.front() {
            let Flying { at, sending } = *front;
            let waits = self.message(sending.seq).is_some_and(|message| {
                // A message that starts again has forgotten its packets.
                message.not_before.is_none() && !message.acked.has(sending.packet)
            });
            if waits && now.saturating_duration_since(at) < rto {
                break;
            }
            self.flying.pop_front();
            if waits {
                expired = true;
                self.unweigh(sending);
                self.resend(sending);
            }
        }
        if expired {
            self.backoff = (self.backoff + 1).min(6);
            self.window = (self.window / 2).max(Self::LEAST_WINDOW);
        }
        if !self.again.is_empty() {
            let mut again = std::mem::take(&mut self.again);
            again.retain(|seq| self.start_again(*seq, now));
            self.again = again;
        }
    }

    /// True if the message still has to wait.
    fn start_again(&mut self, seq: u32, now: Instant) -> bool {
        let Some(message) = self.message_mut(seq) else {
            return false;
        };
        if message.not_before.is_some_and(|at| now < at) {
            return true;
        }
        message.not_before = None;
        message.next = message.packets;
        let (packets, round) = (message.packets, message.round);
        self.resend.extend((0..packets).map(|packet| Sending {
            seq,
            packet,
            attempt: round.saturating_mul(64),
        }));
        false
    }

    /// Messages that nothing has moved for `timeout`.
    pub(super) fn stuck(&mut self, now: Instant, timeout: Duration, out: &mut Vec<u32>) {
        if now < self.next_check {
            return;
        }
        self.next_check = now + Self::CHECK_EVERY.min(timeout / 4);
        for (message, i) in self.messages.iter().zip(0u32..) {
            let stuck = message
                .as_ref()
                .and_then(|m| m.moved)
                .is_some_and(|moved| now.saturating_duration_since(moved) >= timeout);
            if stuck {
                out.push(self.base.wrapping_add(i));
            }
        }
    }

    /// The engine itself stood still for `gap`: nobody is to blame for the silence.
    pub(super) fn forgive(&mut self, gap: Duration) {
        self.heard += gap;
        if let Some(hello) = &mut self.hello {
            hello.since += gap;
        }
        for message in self.messages.iter_mut().flatten() {
            message.moved = message.moved.map(|moved| moved + gap);
        }
    }

    /// Chooses at most `most` packets to send now, in an order that isn't the posted one.
    /// `draw` gives each its random bits.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        most: usize,
        reorder: u32,
        draw: impl Fn(&Message, Sending) -> u64,
        out: &mut Vec<Sending>,
    ) {
        out.clear();
        let allowed = self.window.min(self.peer_window);
        let sent = self.sent;
        self.held.retain(|held| {
            let go = held.after <= sent || held.due <= now;
            if go {
                out.push(held.sending);
            }
            !go
        });
        while out.len() < most && self.weight <= allowed {
            let Some(sending) = self.resend.pop_front() else {
                break;
            };
            let waits = self.message(sending.seq).is_some_and(|message| {
                message.not_before.is_none() && !message.acked.has(sending.packet)
            });
            if waits {
                self.weigh(sending);
                out.push(sending);
            }
        }
        while out.len() < most && self.weight <= allowed {
            let end = self.base.wrapping_add(self.messages.len() as u32);
            if self.unsent == end {
                break;
            }
            let seq = self.unsent;
            let Some(message) = self
                .message_mut(seq)
                .filter(|m| m.next < m.packets && m.not_before.is_none())
            else {
                self.unsent = seq.wrapping_add(1);
                continue;
            };
            let sending = Sending {
                seq,
                packet: message.next,
                attempt: 0,
            };
            message.next += 1;
            let bits = draw(message, sending) >> 32;
            self.weigh(sending);
            let company = !out.is_empty() || self.outstanding > 1 || sending.packet > 0;
            if reorder > 0 && company && bits.is_multiple_of(HOLD_ONE_IN) {
                self.held.push(Held {
                    sending,
                    after: self.sent + 1 + (bits >> 8) % u64::from(reorder),
                    due: now + HOLD,
                });
            } else {
                out.push(sending);
            }
        }
        if reorder > 1 && out.len() > 1 {
            let mut keyed: Vec<(u64, Sending)> = out
                .iter()
                .zip(0u64..)
                .map(|(sending, i)| {
                    let bits = self.message(sending.seq).map_or(0, |m| draw(m, *sending));
                    (i + (bits & 0xffff) % u64::from(reorder), *sending)
                })
                .collect();
            keyed.sort_by_key(|(key, _)| *key);
            out.clear();
            out.extend(keyed.into_iter().map(|(_, sending)| sending));
        }
    }

    /// Counts a packet as under way.
    fn weigh(&mut self, sending: Sending) {
        if let Some(message) = self.message_mut(sending.seq) {
            let weight = Self::weight_of(message, sending.packet);
            message.flying += weight;
            self.weight += weight;
        }
    }

    /// Takes a packet that must be lost for not under way any more.
    fn unweigh(&mut self, sending: Sending) {
        if let Some(message) = self.message_mut(sending.seq) {
            let weight = Self::weight_of(message, sending.packet).min(message.flying);
            message.flying -= weight;
            self.weight = self.weight.saturating_sub(weight);
        }
    }

    /// A packet was handed to the network (or lost on the way there).
    pub(super) fn departed(&mut self, sending: Sending, now: Instant) {
        self.sent += 1;
        if let Some(message) = self.message_mut(sending.seq) {
            message.moved.get_or_insert(now);
        }
        self.flying.push_back(Flying { at: now, sending });
    }

    /// There are packets that could be sent right now.
    pub(super) fn is_hungry(&self) -> bool {
        self.weight <= self.window.min(self.peer_window)
            && (!self.resend.is_empty()
                || self.unsent != self.base.wrapping_add(self.messages.len() as u32))
    }

    /// When the flow has to be looked at again, if nothing arrives.
    pub(super) fn due(&self) -> Option<Instant> {
        let flying = self.flying.front().map(|front| front.at + self.rto());
        let held = self.held.iter().map(|held| held.due);
        let delayed = self.delayed.iter().map(|(until, _)| *until);
        let again = self
            .again
            .iter()
            .filter_map(|seq| self.message(*seq)?.not_before);
        flying
            .into_iter()
            .chain(held)
            .chain(delayed)
            .chain(again)
            .min()
    }

    /// The peer's incarnation is over: forget what was learnt of it.
    pub(super) fn forget_peer(&mut self) {
        self.nonce = None;
        self.hello = None;
        self.near = false;
        self.smooth = None;
        self.backoff = 0;
    }
}
