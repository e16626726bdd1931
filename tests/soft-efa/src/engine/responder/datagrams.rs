//! Receiving what UD queue pairs send.

use super::*;

impl Responder {
    pub(super) fn arrive_datagram(
        &mut self,
        env: &mut Env,
        core: &Core,
        receives: &mut RecvRing,
        data: &Data,
        spans: &mut Vec<Span>,
    ) -> Landing {
        let Some(receive) = self.take_receive(env, core, receives, data.seq) else {
            trace!(
                env,
                "qp {}: datagram dropped: no receive is posted", core.number
            );
            return Landing::Drop;
        };
        let needed = UD_PREFIX + data.total as usize;
        spans.clear();
        let fits = receive.defect.is_none()
            && receive.room() >= needed as u64
            && Self::receive_spans(env, core, &receive, UD_PREFIX, data.len as usize, spans);
        if !fits {
            trace!(
                env,
                "qp {}: datagram dropped: the receive is unfit", core.number
            );
            self.returned.push_front(receive);
            return Landing::Drop;
        }
        self.landing = Some(receive);
        Landing::Land
    }

    pub(super) fn landed_datagram(
        &mut self,
        env: &mut Env,
        core: &Core,
        peer: SocketAddrV4,
        data: &Data,
        fine: bool,
    ) {
        let Some(receive) = self.landing.take() else {
            return;
        };
        let mut spans = std::mem::take(&mut self.spans);
        spans.clear();
        let prefix = ud_prefix(gid_of(*peer.ip()), gid_of(env.ip), data.total);
        let fine = fine
            && Self::receive_spans(env, core, &receive, 0, UD_PREFIX, &mut spans)
            && env.memory.write(&prefix, &spans).is_ok();
        self.spans = spans;
        if !fine {
            self.fail_receive(env, core, &receive, peer, data, Status::INVALID_LKEY);
            return;
        }
        env.counters.bytes_received += u64::from(data.len);
        let len = data.total + UD_PREFIX as u32;
        Self::complete(env, core, Some(&receive), peer, data, len, Status::OK);
    }
}
