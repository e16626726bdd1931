//! How messages and receives end that nothing completes.

use super::*;

impl Responder {
    /// Gives up messages whose sender has vanished in their middle.
    pub(super) fn sweep(&mut self, env: &Env, core: &Core, now: Instant) {
        if self.partials == 0 || self.next_sweep.is_some_and(|next| now < next) {
            return;
        }
        let patience = env.faults.timeout() * 2;
        self.next_sweep = Some(now + (patience / 4).max(Duration::from_millis(1)));
        for (peer, flow) in &mut self.flows {
            for slot in &mut flow.slots {
                let vanished = matches!(slot, Slot::Partial(partial)
                    if now.saturating_duration_since(partial.moved) > patience);
                if vanished {
                    let old = std::mem::replace(slot, Slot::Done(Status::REMOTE_ABORT.0));
                    if let Slot::Partial(partial) = old {
                        trace!(
                            env,
                            "qp {}: a message of {peer} stopped in its middle", core.number
                        );
                        self.partials -= 1;
                        self.returned.extend(partial.receive);
                    }
                }
            }
        }
    }

    /// The engine itself stood still for `gap`.
    pub(in crate::engine) fn forgive(&mut self, gap: Duration) {
        for slot in self.flows.values_mut().flat_map(|flow| &mut flow.slots) {
            if let Slot::Partial(partial) = slot {
                partial.moved += gap;
            }
        }
    }

    /// The queue pair stops receiving: messages that have arrived in part are reset, posted
    /// receives are flushed.
    pub(in crate::engine) fn flush(&mut self, env: &mut Env, core: &Core, receives: &mut RecvRing) {
        for (peer, flow) in &mut self.flows {
            let mut slots = std::mem::take(&mut flow.slots);
            for (slot, i) in slots.iter_mut().zip(0u32..) {
                if !matches!(slot, Slot::Partial(_)) {
                    continue;
                }
                let old = std::mem::replace(slot, Slot::Done(Status::REMOTE_ABORT.0));
                if let Slot::Partial(partial) = old {
                    self.partials -= 1;
                    self.returned.extend(partial.receive);
                }
                flow.acks.push(Acknowledgement {
                    seq: flow.base.wrapping_add(i),
                    word: 0,
                    attempt: 0,
                });
                Self::mark_dirty(&mut self.dirty, flow, *peer);
            }
            flow.slots = slots;
        }
        self.reads.clear();
        self.flush_receives(env, core, receives);
    }

    /// Flushes posted receives.
    pub(in crate::engine) fn flush_receives(
        &mut self,
        env: &mut Env,
        core: &Core,
        receives: &mut RecvRing,
    ) -> usize {
        let mut flushed = 0;
        while let Some(receive) = self.returned.pop_front().or_else(|| receives.fetch()) {
            flushed += 1;
            let completion = Completion::Recv {
                qpn: core.number,
                req_id: Some(receive.req_id),
                op: Op::Send,
                status: Status::FLUSHED,
                len: 0,
                imm: None,
                source: Source {
                    ah: None,
                    qpn: 0,
                    gid: [0; 16],
                },
            };
            env.complete(core.recv_cq, completion, 0, 0, None);
        }
        flushed
    }

    /// Forgets everything.
    pub(in crate::engine) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Messages that will not be completed give their receives back.
    pub(super) fn abandon(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            if let Slot::Partial(partial) = slot {
                self.partials -= 1;
                self.returned.extend(partial.receive);
            }
        }
    }
}
