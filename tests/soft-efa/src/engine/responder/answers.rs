//! What a responder sends: acknowledgements, refusals, and the data of reads.

use super::*;

impl Responder {
    /// Puts the answers into the outbox. Returns how many data packets were among them.
    pub(in crate::engine) fn transmit(
        &mut self,
        env: &mut Env,
        core: &Core,
        outbox: &mut Outbox,
        now: Instant,
    ) -> usize {
        self.sweep(env, core, now);
        let work = self.reads.len();
        for reply in std::mem::take(&mut self.reads) {
            self.answer_read(env, core, outbox, &reply, now);
        }
        for peer in std::mem::take(&mut self.dirty) {
            if let Some(flow) = self.flows.get_mut(&peer) {
                flow.dirty = false;
                Self::answer(env, core, flow, peer, outbox, now);
            }
        }
        work
    }

    pub(super) fn header(core: &Core, flow: &Inflow, stamp: u32) -> Header {
        Header {
            source: core.nonce,
            dest: flow.source,
            lowest: 0,
            stamp,
            echo: flow.echo,
        }
    }

    pub(super) fn answer(
        env: &mut Env,
        core: &Core,
        flow: &mut Inflow,
        peer: SocketAddrV4,
        outbox: &mut Outbox,
        now: Instant,
    ) {
        let header = Self::header(core, flow, env.stamp(now));
        let cut = Requester::cut(env, *peer.ip());
        let mut acks = std::mem::take(&mut flow.acks);
        acks.sort_by_key(|ack| (ack.seq, ack.word));
        acks.dedup_by_key(|ack| (ack.seq, ack.word));
        let mut last_done = None;
        for ack in &acks {
            let frame = match flow.slot(ack.seq) {
                Slot::Done(_) if last_done == Some(ack.seq) => continue,
                Slot::Done(status) => {
                    last_done = Some(ack.seq);
                    Frame::Done {
                        seq: ack.seq,
                        status: *status,
                    }
                }
                Slot::Partial(partial) => Frame::Ack {
                    seq: ack.seq,
                    base: ack.word * 64,
                    bits: partial.got.word(ack.word),
                },
                Slot::Unseen => continue,
            };
            Self::push_answer(
                env, core, flow.limit, peer, &header, &frame, ack, cut, outbox,
            );
        }
        acks.clear();
        flow.acks = acks;
        for (seq, round) in std::mem::take(&mut flow.not_ready) {
            let ack = Acknowledgement {
                seq,
                word: 0,
                attempt: round,
            };
            let frame = Frame::NotReady { seq, round };
            Self::push_answer(
                env, core, flow.limit, peer, &header, &frame, &ack, cut, outbox,
            );
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an answer has that much context")]
    pub(super) fn push_answer(
        env: &mut Env,
        core: &Core,
        limit: usize,
        peer: SocketAddrV4,
        header: &Header,
        frame: &Frame,
        ack: &Acknowledgement,
        cut: bool,
        outbox: &mut Outbox,
    ) {
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: u64::from(ack.seq),
            packet: ack.word,
            attempt: u32::from(ack.attempt),
        };
        if cut {
            env.counters.packets_cut += 1;
        } else if env.faults.answer_lost(draw) {
            env.counters.packets_lost += 1;
        } else {
            env.counters.acks_sent += 1;
            outbox.push_plain(&env.memory, peer, limit, header, frame);
        }
    }

    pub(super) fn answer_read(
        &mut self,
        env: &mut Env,
        core: &Core,
        outbox: &mut Outbox,
        reply: &ReadReply,
        now: Instant,
    ) {
        let ReadReply { peer, data } = reply;
        let Some(flow) = self.flows.get(peer) else {
            return;
        };
        let draw = Draw {
            seed: env.seed,
            sender: core.index,
            message: u64::from(data.seq) | 1 << 40,
            packet: data.packet,
            attempt: u32::from(data.attempt),
        };
        if Requester::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        let fate = env.faults.packet(draw, u64::from(data.seq));
        if fate.lost {
            env.counters.packets_lost += 1;
            return;
        }
        let place = env.regions.translate(
            data.rkey,
            core.pd,
            data.address.wrapping_add(u64::from(data.offset)),
            u64::from(data.len),
            Access::REMOTE_READ,
        );
        let header = Self::header(core, flow, env.stamp(now));
        let limit = flow.limit;
        let frame = Frame::Data(Data {
            kind: DataKind::ReadResponse,
            ..*data
        });
        let tag = Some(Tag::Response {
            peer: *peer,
            seq: data.seq,
        });
        let mut sent = place.is_some();
        if let Some(place) = place {
            let mut spans = Vec::with_capacity(1);
            place.part(0, data.len as usize, &mut spans);
            for copy in 0..1 + u32::from(fate.duplicated) {
                let limit = if copy > 0 { 0 } else { limit };
                let pushed = if fate.corrupted && data.len > 0 {
                    let mut bytes = vec![0; data.len as usize];
                    let read = env.memory.read(&spans, &mut bytes);
                    bytes[data.len as usize / 2] ^= 0x55;
                    env.counters.packets_corrupted += 1;
                    read.and_then(|()| {
                        let payload = Payload::Bytes(&bytes);
                        outbox.push(&env.memory, *peer, limit, &header, &frame, payload, tag)
                    })
                } else {
                    let payload = Payload::Spans(&spans);
                    outbox.push(&env.memory, *peer, limit, &header, &frame, payload, tag)
                };
                sent &= pushed.is_ok();
                env.counters.packets_sent += 1;
                env.counters.bytes_sent += u64::from(data.len);
            }
            env.counters.packets_duplicated += u64::from(fate.duplicated);
            env.counters.read_response_bytes += u64::from(data.len);
        }
        if !sent {
            let why = "the memory behind the rkey is gone";
            self.reject(env, core, *peer, data, Status::REMOTE_BAD_ADDRESS, why);
        }
    }

    /// The answer to a read could not be gathered: the memory is gone.
    pub(in crate::engine) fn unreadable(
        &mut self,
        env: &Env,
        core: &Core,
        peer: SocketAddrV4,
        seq: u32,
    ) {
        trace!(env, "qp {}: memory that {peer} reads is gone", core.number);
        self.done(peer, seq, 0, Status::REMOTE_BAD_ADDRESS);
    }
}
