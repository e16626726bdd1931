//! What a requester sends, and when.

use super::*;

impl Requester {
    /// Sends what may be sent. Returns how many packets that were, and when the next thing is due.
    pub(in crate::engine) fn transmit(
        &mut self,
        env: &mut Env,
        core: &Core,
        outbox: &mut Outbox,
        now: Instant,
    ) -> (usize, Option<Instant>) {
        let mut work = 0;
        let mut due: Option<Instant> = None;
        let mut listed = std::mem::take(&mut self.listed);
        listed.retain(|index| {
            let index = *index;
            if self.flows[index].outstanding > 0 {
                work += self.transmit_flow(env, core, index, outbox, now);
            }
            let flow = &mut self.flows[index];
            flow.listed = flow.outstanding > 0;
            let next = match &flow.hello {
                Some(hello) => Some(hello.next),
                None => flow.due(),
            };
            if let (true, Some(next)) = (flow.listed, next) {
                due = Some(due.map_or(next, |due| due.min(next)));
            }
            flow.listed
        });
        listed.append(&mut self.listed);
        self.listed = listed;
        (work, due)
    }

    pub(super) fn transmit_flow(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        outbox: &mut Outbox,
        now: Instant,
    ) -> usize {
        let timeout = env.faults.timeout();
        if self.flows[index].nonce.is_none() {
            return self.greet(env, core, index, outbox, now);
        }
        let mut stuck = Vec::new();
        self.flows[index].stuck(now, timeout, &mut stuck);
        let silence = now.saturating_duration_since(self.flows[index].heard);
        if !stuck.is_empty() && silence >= timeout {
            // Not this message has a problem, but the peer. The rest need not wait for its turn.
            self.finish_if(env, core, index, Status::UNRESPONSIVE, |_| true);
            return 1;
        }
        for seq in stuck {
            self.finish(env, core, index, seq, Status::UNRESPONSIVE, now);
        }
        let flow = &mut self.flows[index];
        flow.expire(now);
        let mut chosen = std::mem::take(&mut self.chosen);
        let reorder = env.faults.reorder_window();
        flow.choose(
            now,
            PACKETS_PER_PASS,
            reorder,
            |message, sending| Self::draw(env, core, message.id, sending).salted(0),
            &mut chosen,
        );
        let mut late = Vec::new();
        flow.take_delayed(now, &mut late);
        let work = chosen.len() + late.len();
        for sending in late {
            self.send(env, core, index, sending, outbox, false, false);
        }
        for sending in &chosen {
            self.depart(env, core, index, *sending, outbox, now);
        }
        self.chosen = chosen;
        work
    }

    /// The engine itself stood still for `gap`.
    pub(in crate::engine) fn forgive(&mut self, gap: Duration) {
        for flow in &mut self.flows {
            flow.forgive(gap);
        }
    }

    /// Asks for the peer's incarnation, or gives up.
    pub(super) fn greet(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        outbox: &mut Outbox,
        now: Instant,
    ) -> usize {
        let timeout = env.faults.timeout();
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let hello = flow.hello.get_or_insert(Hello {
            since: now,
            next: now,
            tries: 0,
        });
        if now.saturating_duration_since(hello.since) >= timeout {
            flow.hello = None;
            trace!(env, "qp {}: {peer} never responded", core.number);
            self.finish_if(env, core, index, Status::UNREACHABLE, |_| true);
            return 1;
        }
        if now < hello.next {
            return 0;
        }
        hello.next = now + (HELLO_FIRST * (1 << hello.tries.min(10))).min(HELLO_LONGEST);
        let tries = hello.tries;
        hello.tries += 1;
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: u64::MAX,
            packet: 0,
            attempt: tries,
        };
        if Self::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
        } else if env.faults.answer_lost(draw) {
            env.counters.packets_lost += 1;
        } else {
            let header = Header {
                source: core.nonce,
                ..Header::default()
            };
            let (pid, address, value) = env.memory.token();
            let near = Frame::Near {
                pid,
                address,
                value,
            };
            for frame in [Frame::Hello, near] {
                outbox.push_plain(&env.memory, peer, wire::MAX_DATAGRAM, &header, &frame);
            }
        }
        1
    }

    /// A packet leaves, or meets its fate.
    pub(super) fn depart(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        sending: Sending,
        outbox: &mut Outbox,
        now: Instant,
    ) {
        let flow = &mut self.flows[index];
        let peer = flow.peer;
        let Some(id) = flow.message(sending.seq).map(|m| m.id) else {
            return;
        };
        flow.departed(sending, now);
        if !sending.attempt.is_multiple_of(64) {
            env.counters.packets_resent += 1;
        }
        if Self::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        if !env.faults.touches_packets() {
            self.send(env, core, index, sending, outbox, false, false);
            return;
        }
        let fate = env
            .faults
            .packet(Self::draw(env, core, id, sending), id + 1);
        if fate.lost {
            env.counters.packets_lost += 1;
            trace!(
                env,
                "qp {}: request {id}, packet {}: lost (attempt {})",
                core.number,
                sending.packet,
                sending.attempt
            );
            return;
        }
        if let Some(delay) = fate.delay {
            env.counters.packets_delayed += 1;
            self.flows[index].delay(sending, now + delay);
        } else {
            self.send(env, core, index, sending, outbox, fate.corrupted, false);
        }
        if fate.duplicated {
            env.counters.packets_duplicated += 1;
            self.send(env, core, index, sending, outbox, fate.corrupted, true);
        }
    }

    /// Puts a packet into the outbox.
    #[expect(
        clippy::too_many_arguments,
        reason = "the two flags are the packet's fate"
    )]
    pub(super) fn send(
        &mut self,
        env: &mut Env,
        core: &Core,
        index: usize,
        sending: Sending,
        outbox: &mut Outbox,
        corrupted: bool,
        alone: bool,
    ) {
        let flow = &self.flows[index];
        let (Some(message), Some(nonce)) = (flow.message(sending.seq), flow.nonce) else {
            return;
        };
        let header = Header {
            source: core.nonce,
            dest: nonce,
            lowest: flow.lowest(),
            stamp: env.stamp(Instant::now()),
            echo: 0,
        };
        let mut spans = std::mem::take(&mut self.spans);
        let mut data = message.data(core, sending.seq, sending.packet, sending.attempt);
        let len = data.payload();
        // A duplicate travels in a datagram of its own.
        let limit = if alone { 0 } else { flow.limit };
        let tag = Some(Tag::Packet {
            flow: index,
            seq: sending.seq,
            packet: sending.packet,
            attempt: sending.attempt,
        });
        let known = message
            .packet_spans(env, core, sending.packet, &mut spans)
            .is_some();
        let near = flow.near && data.kind == DataKind::Write && !env.faults.socket_only();
        if let ([span], true) = (&spans[..], near && known && len >= NEAR && !corrupted) {
            data.near = span.address;
        }
        let frame = Frame::Data(data);
        let sent = if !known {
            Err(())
        } else if data.near != 0 {
            let payload = Payload::Bytes(&[]);
            outbox
                .push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
                .map_err(|_| ())
        } else if message.op == Op::Read {
            outbox
                .push(
                    &env.memory,
                    flow.peer,
                    limit,
                    &header,
                    &frame,
                    Payload::Bytes(&[]),
                    tag,
                )
                .map_err(|_| ())
        } else if corrupted && len > 0 {
            self.scratch.clear();
            self.scratch.resize(len, 0);
            let read = match message.inline() {
                Some(inline) => {
                    self.scratch.copy_from_slice(inline);
                    Ok(())
                }
                None => env.memory.read(&spans, &mut self.scratch),
            };
            self.scratch[len / 2] ^= 0x55;
            env.counters.packets_corrupted += 1;
            read.and_then(|()| {
                let payload = Payload::Bytes(&self.scratch);
                outbox.push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
            })
            .map_err(|_| ())
        } else {
            let payload = match message.inline() {
                Some(inline) => Payload::Bytes(inline),
                None => Payload::Spans(&spans),
            };
            outbox
                .push(&env.memory, flow.peer, limit, &header, &frame, payload, tag)
                .map_err(|_| ())
        };
        self.spans = spans;
        match sent {
            Ok(()) => {
                env.counters.packets_sent += 1;
                env.counters.bytes_sent += len as u64;
            }
            Err(()) => {
                self.finish(
                    env,
                    core,
                    index,
                    sending.seq,
                    Status::INVALID_LKEY,
                    Instant::now(),
                );
            }
        }
    }

    /// There is more to send than one pass sends.
    pub(in crate::engine) fn is_hungry(&self) -> bool {
        self.listed
            .iter()
            .any(|index| self.flows[*index].nonce.is_some() && self.flows[*index].is_hungry())
    }

    /// A packet's payload could not be gathered, or that of another packet in its datagram.
    pub(in crate::engine) fn unreadable(
        &mut self,
        env: &mut Env,
        core: &Core,
        flow: usize,
        sending: Sending,
        now: Instant,
    ) {
        let mut spans = std::mem::take(&mut self.spans);
        let mut bytes = std::mem::take(&mut self.scratch);
        let readable = self.flows[flow].message(sending.seq).map(|message| {
            bytes.resize(message.range(sending.packet).1 as usize, 0);
            message.inline().is_some()
                || message
                    .packet_spans(env, core, sending.packet, &mut spans)
                    .is_some()
                    && env.memory.read(&spans, &mut bytes).is_ok()
        });
        self.spans = spans;
        self.scratch = bytes;
        match readable {
            Some(true) => self.flows[flow].resend(sending),
            Some(false) => {
                trace!(env, "qp {}: the program's memory is gone", core.number);
                self.finish(env, core, flow, sending.seq, Status::INVALID_LKEY, now);
            }
            None => {}
        }
    }
}
