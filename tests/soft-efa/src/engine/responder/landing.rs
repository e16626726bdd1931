//! Where payloads belong, and what follows when they are there.

use super::*;

impl Responder {
    /// Where a packet's payload belongs. False if that isn't registered (any more).
    pub(super) fn place(
        &self,
        env: &Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        out: &mut Vec<Span>,
    ) -> bool {
        out.clear();
        if data.kind == DataKind::Write {
            let place = env.regions.translate(
                data.rkey,
                core.pd,
                data.address.wrapping_add(u64::from(data.offset)),
                u64::from(data.len),
                Access::REMOTE_WRITE,
            );
            if let Some(place) = place {
                place.part(0, data.len as usize, out);
            }
            return place.is_some();
        }
        let receive =
            self.landing
                .as_ref()
                .or_else(|| match self.flows.get(&peer)?.slot(data.seq) {
                    Slot::Partial(partial) => partial.receive.as_ref(),
                    _ => None,
                });
        let Some(receive) = receive else {
            return false;
        };
        Self::receive_spans(
            env,
            core,
            receive,
            data.offset as usize,
            data.len as usize,
            out,
        )
    }

    pub(super) fn receive_spans(
        env: &Env,
        core: &Core,
        receive: &Receive,
        offset: usize,
        len: usize,
        out: &mut Vec<Span>,
    ) -> bool {
        let mut all = Vec::with_capacity(receive.sge_count);
        let mut needed = offset + len;
        for sge in &receive.sges[..receive.sge_count] {
            let used = (sge.len as usize).min(needed);
            needed -= used;
            if used == 0 {
                continue;
            }
            let place = env.regions.translate(
                sge.lkey,
                core.pd,
                sge.address,
                u64::from(sge.len),
                Access::LOCAL_WRITE,
            );
            let Some(place) = place else {
                return false;
            };
            all.push((place, used));
        }
        slice(all, offset, len, out);
        true
    }

    /// The payload of a packet has landed, or could not.
    pub(in crate::engine) fn landed(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        fine: bool,
        now: Instant,
    ) {
        if data.kind == DataKind::Datagram {
            self.landed_datagram(env, core, peer, data, fine);
            return;
        }
        let Some(flow) = self.flows.get_mut(&peer) else {
            return;
        };
        let whole = data.packets == 1;
        let before = env.counters.bytes_received;
        let mut finished = whole || !fine;
        if let Slot::Partial(partial) = flow.slot_mut(data.seq) {
            if fine && partial.got.set(data.packet) {
                partial.left -= 1;
                partial.moved = now;
                env.counters.bytes_received += u64::from(data.len);
            }
            finished |= partial.left == 0;
        } else if fine {
            env.counters.bytes_received += u64::from(data.len);
        }
        if data.kind == DataKind::Write {
            env.counters.write_received_bytes += env.counters.bytes_received - before;
        }
        if !finished {
            flow.acks.push(Acknowledgement {
                seq: data.seq,
                word: data.packet / 64,
                attempt: data.attempt,
            });
            Self::mark_dirty(&mut self.dirty, flow, peer);
            return;
        }
        let receive = if whole {
            self.landing.take()
        } else {
            match std::mem::replace(flow.slot_mut(data.seq), Slot::Unseen) {
                Slot::Partial(partial) => {
                    self.partials -= 1;
                    partial.receive
                }
                _ => None,
            }
        };
        if !fine {
            let (remote, local, why) = match data.kind {
                DataKind::Write => (
                    Status::REMOTE_BAD_ADDRESS,
                    Status::INVALID_LKEY,
                    "the memory behind the rkey is gone",
                ),
                _ => (
                    Status::REMOTE_BAD_STATUS,
                    Status::INVALID_LKEY,
                    "the posted receive's memory is not registered",
                ),
            };
            if let Some(receive) = &receive {
                self.fail_receive(env, core, receive, peer, data, local);
            }
            self.reject(env, core, peer, data, remote, why);
            return;
        }
        if data.kind == DataKind::Send || data.has_imm {
            Self::complete(
                env,
                core,
                receive.as_ref(),
                peer,
                data,
                data.total,
                Status::OK,
            );
        }
        self.done(peer, data.seq, data.attempt, Status::OK);
    }
}
