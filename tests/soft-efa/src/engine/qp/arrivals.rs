//! What arrives on the socket of a queue pair.

use super::*;

impl QueuePair {
    /// Takes what has arrived. Returns how many datagrams.
    pub(in crate::engine) fn receive(
        &mut self,
        env: &mut Env,
        inbox: &mut Inbox,
        now: Instant,
    ) -> usize {
        let mut work = 0;
        if self.expect_large {
            for _ in 0..LARGE_PER_PASS {
                match self.receive_large(env, inbox, now) {
                    Some(()) => work += 1,
                    None => break,
                }
            }
            if self.expect_large {
                return work;
            }
        }
        for _ in 0..BATCHES_PER_PASS {
            match inbox.take(&self.socket) {
                Ok(count) => {
                    work += count;
                    for i in 0..count {
                        if let Some((peer, bytes)) = inbox.datagram(i) {
                            self.expect_large |= bytes.len() > LARGE * 2;
                            self.datagram(env, peer, bytes, now);
                        }
                    }
                    if count < 8 || self.expect_large {
                        break;
                    }
                }
                Err(Nothing::Report) => {
                    if !self.reports(env) {
                        break;
                    }
                }
                Err(Nothing::Empty) => {
                    self.reports(env);
                    break;
                }
            }
        }
        work
    }

    /// Reads the reports of closed ports. True if there were any.
    pub(super) fn reports(&mut self, env: &mut Env) -> bool {
        let mut any = false;
        while let Some(refusal) = self.socket.take_refusal() {
            any = true;
            if let Some(peer) = refusal.peer {
                self.requester.refused(env, &self.core, peer);
            }
        }
        any
    }

    /// Takes the next datagram if it is one large packet. `None` if there is none, or it isn't.
    pub(super) fn receive_large(
        &mut self,
        env: &mut Env,
        inbox: &mut Inbox,
        now: Instant,
    ) -> Option<()> {
        let mut beginning = [0; PEEK];
        let (peer, len) = match inbox.peek(&self.socket, &mut beginning) {
            Ok((peer, len)) => (peer, len),
            Err(nothing) => {
                if nothing == Nothing::Report {
                    self.expect_large = false;
                }
                return None;
            }
        };
        let large = len >= LARGE;
        let parsed = wire::parse(&beginning[..len.min(PEEK)]);
        let single = parsed
            .filter(|parsed| large && parsed.prefix == PEEK)
            .and_then(|parsed| {
                let mut frames = std::mem::take(&mut self.frames);
                let fine = parsed.frames(len - PEEK, &mut frames).is_some();
                let data = match frames.first() {
                    Some(Frame::Data(data)) if fine && frames.len() == 1 => Some(*data),
                    _ => None,
                };
                self.frames = frames;
                Some((parsed.header, data?))
            });
        let (Some((header, data)), Some(peer)) = (single, peer) else {
            self.expect_large = false;
            return None;
        };
        env.counters.datagrams_received += 1;
        let mut spans = std::mem::take(&mut self.spans);
        let lands = self.precheck(env, peer, &header, Some(&data))
            && self.place(env, peer, &header, &data, &mut spans, now);
        if lands {
            let fine = inbox.take_into(&self.socket, &spans).is_ok();
            self.landed(env, peer, &data, fine, now);
        } else {
            // Taken all the same, and forgotten.
            let _ = inbox.take_into(&self.socket, &[]);
        }
        self.spans = spans;
        Some(())
    }

    /// Handles a datagram in the engine's memory.
    pub(super) fn datagram(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        bytes: &[u8],
        now: Instant,
    ) {
        env.counters.datagrams_received += 1;
        if env.faults.cut_in(*peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        let mut frames = std::mem::take(&mut self.frames);
        let parsed: Option<Parsed<'_>> =
            wire::parse(bytes).filter(|p| p.frames(bytes.len() - p.prefix, &mut frames).is_some());
        let Some(parsed) = parsed else {
            env.counters.datagrams_malformed += 1;
            trace!(
                env,
                "qp {}: {} B of {peer} make no sense",
                self.core.number,
                bytes.len()
            );
            self.frames = frames;
            return;
        };
        let header = parsed.header;
        let first_data = frames.iter().find_map(|frame| match frame {
            Frame::Data(data) => Some(*data),
            _ => None,
        });
        let open = frames.iter().all(|f| {
            matches!(
                f,
                Frame::Hello | Frame::Near { .. } | Frame::Gone | Frame::Reset
            )
        });
        if open || self.precheck(env, peer, &header, first_data.as_ref()) {
            let mut spans = std::mem::take(&mut self.spans);
            let mut payload = &bytes[parsed.prefix..];
            self.requester.measure(env, peer, &header, now);
            for frame in &frames {
                match frame {
                    Frame::Data(data) => {
                        let (own, rest) = payload.split_at(data.payload());
                        payload = rest;
                        if self.place(env, peer, &header, data, &mut spans, now) {
                            if data.near == 0 {
                                let fine = env.memory.write(own, &spans).is_ok();
                                self.landed(env, peer, data, fine, now);
                            } else if self.pull(env, peer, &header, data, &spans) {
                                self.landed(env, peer, data, true, now);
                            } else {
                                self.responder.forget_landing();
                            }
                        }
                    }
                    Frame::Hello => self.hello(env, peer, &header, &frames),
                    Frame::Near { .. } => {}
                    answer => {
                        if header.dest == self.core.nonce {
                            self.requester
                                .answer(env, &self.core, peer, &header, answer, now);
                        } else {
                            env.counters.datagrams_wrong_incarnation += 1;
                        }
                    }
                }
            }
            self.spans = spans;
        }
        self.frames = frames;
    }

    /// Whether a datagram is for us: the link isn't cut, and the sender means this incarnation in
    /// a state that receives. Answers those who ought to know.
    pub(super) fn precheck(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: Option<&Data>,
    ) -> bool {
        if env.faults.cut_in(*peer.ip()) {
            env.counters.packets_cut += 1;
            return false;
        }
        let kind = data.map(|data| data.kind);
        if kind == Some(DataKind::Datagram) {
            return self.core.kind == QpKind::Ud && can_receive(self.core.state);
        }
        let asks = matches!(
            kind,
            Some(DataKind::Send | DataKind::Write | DataKind::ReadRequest)
        );
        if header.dest != self.core.nonce {
            env.counters.datagrams_wrong_incarnation += 1;
            if asks {
                trace!(
                    env,
                    "qp {}: packet of {peer} is for an earlier owner of this number",
                    self.core.number
                );
                self.tell(env, peer, header, &Frame::Reset);
            }
            return false;
        }
        if asks && !can_receive(self.core.state) {
            self.tell(env, peer, header, &Frame::Gone);
            return false;
        }
        true
    }

    pub(super) fn tell(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        frame: &Frame,
    ) {
        if Requester::cut(env, *peer.ip()) {
            env.counters.packets_cut += 1;
            return;
        }
        let answer = Header {
            source: self.core.nonce,
            dest: header.source,
            ..Header::default()
        };
        self.outbox
            .push_plain(&env.memory, peer, wire::MAX_DATAGRAM, &answer, frame);
    }

    pub(super) fn hello(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        frames: &[Frame],
    ) {
        if !can_receive(self.core.state) {
            self.tell(env, peer, header, &Frame::Gone);
        } else if self.core.kind == QpKind::Srd {
            let near = frames.iter().find_map(|frame| match *frame {
                Frame::Near {
                    pid,
                    address,
                    value,
                } => env.memory.can_pull(pid, address, value).then_some(pid),
                _ => None,
            });
            self.responder.set_near(peer, header.source, near);
            let window = self.socket.window();
            let near = near.is_some();
            self.tell(env, peer, header, &Frame::Welcome { window, near });
        }
    }

    /// Takes a payload from the sender's process. Where that fails it may be either side's memory
    /// that is gone: the packet counts as lost, and the sender is told to use the socket.
    pub(super) fn pull(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &[Span],
    ) -> bool {
        let near = self.responder.near(peer, header.source);
        let copied = near.is_some_and(|pid| env.memory.pull(pid, data.near, spans).is_ok());
        if copied {
            env.counters.packets_near += 1;
            return true;
        }
        let window = self.socket.window();
        let far = Frame::Welcome {
            window,
            near: false,
        };
        self.tell(env, peer, header, &far);
        false
    }

    /// Where a data frame's payload belongs, if anywhere.
    pub(super) fn place(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        header: &Header,
        data: &Data,
        spans: &mut Vec<Span>,
        now: Instant,
    ) -> bool {
        let datagram = data.kind == DataKind::Datagram;
        if datagram != (self.core.kind == QpKind::Ud) {
            return false;
        }
        if data.kind == DataKind::ReadResponse {
            env.counters.packets_received += 1;
            return self
                .requester
                .response_place(env, &self.core, peer, header, data, spans, now);
        }
        let landing = self.responder.arrive(
            env,
            &self.core,
            &mut self.receives,
            peer,
            header,
            data,
            spans,
            now,
        );
        matches!(landing, Landing::Land)
    }

    pub(super) fn landed(
        &mut self,
        env: &mut Env,
        peer: SocketAddrV4,
        data: &Data,
        fine: bool,
        now: Instant,
    ) {
        if data.kind == DataKind::ReadResponse {
            if fine {
                env.counters.bytes_received += u64::from(data.len);
            }
            self.requester
                .response_landed(env, &self.core, peer, data, fine, now);
        } else {
            self.responder
                .landed(env, &self.core, peer, data, fine, now);
        }
    }
}
