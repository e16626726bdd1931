//! What a requester makes of answers.

use super::*;

impl Requester {
    /// Handles an answer of a responder.
    pub(in crate::engine) fn answer(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        header: &Header,
        frame: &Frame,
        now: Instant,
    ) {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return;
        };
        let flow = &mut self.flows[index];
        match *frame {
            Frame::Welcome { window, near } => {
                if flow.nonce.is_none() && header.source != 0 {
                    flow.nonce = Some(header.source);
                    flow.hello = None;
                    flow.near = near;
                    flow.set_peer_window(window);
                } else if flow.nonce == Some(header.source) {
                    flow.near &= near;
                }
                return;
            }
            Frame::Gone => {
                let asked = flow.nonce.is_none() || flow.nonce == Some(header.source);
                if asked {
                    flow.forget_peer();
                    trace!(env, "qp {}: {peer} is in no state to receive", core.number);
                    self.finish_if(env, core, index, Status::REMOTE_BAD_DEST_QPN, |_| true);
                }
                return;
            }
            Frame::Reset => {
                if flow.nonce.is_some_and(|nonce| nonce != header.source) {
                    flow.forget_peer();
                    env.counters.peers_reset += 1;
                    trace!(
                        env,
                        "qp {}: {peer} is another queue pair than before", core.number
                    );
                    self.finish_if(env, core, index, Status::REMOTE_ABORT, |m| m.next > 0);
                }
                return;
            }
            _ => {}
        }
        if flow.nonce != Some(header.source) {
            env.counters.datagrams_wrong_incarnation += 1;
            return;
        }
        flow.heard = now;
        match *frame {
            Frame::Ack { seq, base, bits } => {
                env.counters.acks_received += 1;
                let mut rest = bits;
                while rest != 0 {
                    let packet = base.saturating_add(rest.trailing_zeros());
                    rest &= rest - 1;
                    flow.acknowledge(seq, packet, now);
                }
            }
            Frame::Done { seq, status } => {
                env.counters.acks_received += 1;
                flow.progress(wire::DATA_HEADER as u64);
                let known = status <= 15 || status == 18;
                let status = if known {
                    Status(status)
                } else {
                    Status::REMOTE_BAD_STATUS
                };
                self.finish(env, core, index, seq, status, now);
            }
            Frame::NotReady { seq, round } => {
                env.counters.rnr_received += 1;
                self.not_ready(env, core, index, seq, round, now);
            }
            _ => {}
        }
    }

    /// Learns from the clock in an answer how long the way takes.
    pub(in crate::engine) fn measure(
        &mut self,
        env: &Env,
        peer: SocketAddrV4,
        header: &Header,
        now: Instant,
    ) {
        if header.echo == 0 {
            return;
        }
        let micros = env.stamp(now).wrapping_sub(header.echo);
        if let (Some(index), true) = (self.by_peer.get(&peer), micros < 10_000_000) {
            self.flows[*index].measure(Duration::from_micros(u64::from(micros)));
        }
    }

    pub(super) fn not_ready(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        seq: u32,
        round: u16,
        now: Instant,
    ) {
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let Some(message) = flow.message_mut(seq) else {
            return;
        };
        if message.round != round || message.not_before.is_some() {
            return;
        }
        let allowed = match core.rnr_retry {
            RNR_FOREVER => u16::MAX,
            retries => retries.into(),
        };
        if round >= allowed {
            self.finish(env, core, index, seq, Status::REMOTE_RNR, now);
            return;
        }
        message.round = message.round.saturating_add(1).min(1000);
        let wait = (RNR_WAIT * (1 << round.min(13))).min(RNR_LONGEST);
        trace!(
            env,
            "qp {}: request {}: {peer} has no receive posted; again in {} us",
            core.number,
            message.id,
            wait.as_micros()
        );
        flow.restart(seq, now + wait);
    }

    /// Where the answer to a read belongs, if it does. Its bytes may land at once.
    #[expect(clippy::too_many_arguments, reason = "a packet has that much context")]
    pub(in crate::engine) fn response_place(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &mut Vec<Span>,
        now: Instant,
    ) -> bool {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return false;
        };
        let flow = &mut self.flows[index];
        if flow.nonce != Some(header.source) {
            env.counters.datagrams_wrong_incarnation += 1;
            return false;
        }
        flow.heard = now;
        let Some(message) = flow.message(data.seq).filter(|m| m.op == Op::Read) else {
            env.counters.packets_stale += 1;
            return false;
        };
        let fits = data.packet < message.packets
            && message.range(data.packet) == (data.offset, data.len)
            && message.next > 0;
        if !fits {
            env.counters.datagrams_malformed += 1;
            return false;
        }
        if message.acked.has(data.packet) {
            env.counters.packets_repeated += 1;
            return false;
        }
        if message
            .packet_spans(env, core, data.packet, spans)
            .is_none()
        {
            self.finish(env, core, index, data.seq, Status::INVALID_LKEY, now);
            return false;
        }
        true
    }

    /// The answer to a read has landed, or could not.
    pub(in crate::engine) fn response_landed(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        fine: bool,
        now: Instant,
    ) {
        let Some(index) = self.by_peer.get(&peer).copied() else {
            return;
        };
        if !fine {
            self.finish(env, core, index, data.seq, Status::INVALID_LKEY, now);
            return;
        }
        let flow = &mut self.flows[index];
        flow.acknowledge(data.seq, data.packet, now);
        if flow.message(data.seq).is_some_and(|m| m.left == 0) {
            self.finish(env, core, index, data.seq, Status::OK, now);
        }
    }

    /// The system reports that a peer's port is closed: there is no such queue pair.
    pub(in crate::engine) fn refused(&mut self, env: &mut Env, core: &Core, peer: SocketAddrV4) {
        if let Some(index) = self.by_peer.get(&peer).copied() {
            trace!(env, "qp {}: {peer} does not exist", core.number);
            self.flows[index].forget_peer();
            self.finish_if(env, core, index, Status::REMOTE_BAD_DEST_QPN, |_| true);
        }
    }
}
