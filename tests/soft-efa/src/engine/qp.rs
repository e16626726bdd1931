//! Queue pairs: their state, and what they fetch from their rings.

use std::time::Instant;

use super::net::Socket;
use super::nic::Env;
use super::ring::{RecvRing, SendRing};
use super::{QpAttributes, QpChange, QpKind, QpSpec, QpState};

/// A queue pair.
pub(super) struct QueuePair {
    pd: u32,
    kind: QpKind,
    state: QpState,
    qkey: u32,
    rnr_retry: Option<u8>,
    sq_psn: u32,
    socket: Socket,
    index: u64,
    sends: SendRing,
    receives: RecvRing,
}

impl QueuePair {
    /// Makes a queue pair; `index` is its place among those of the process.
    pub(super) fn new(env: &mut Env, spec: QpSpec, index: u64) -> Result<Self, i32> {
        let sends = SendRing::new(spec.sq, spec.sq_bytes, spec.sq_entry_size, spec.sq_db)?;
        let receives = RecvRing::new(spec.rq, spec.rq_bytes, spec.rq_db)?;
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let socket = Socket::bind(env.ip).map_err(errno)?;
        env.poller.add(&socket).map_err(errno)?;
        Ok(Self {
            pd: spec.pd,
            kind: spec.kind,
            state: QpState::Reset,
            qkey: 0,
            rnr_retry: None,
            sq_psn: 0,
            socket,
            index,
            sends,
            receives,
        })
    }

    pub(super) fn number(&self) -> u16 {
        self.socket.port()
    }

    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn attributes(&self) -> QpAttributes {
        QpAttributes {
            state: self.state,
            qkey: self.qkey,
            rnr_retry: self.rnr_retry.unwrap_or(7),
            sq_psn: self.sq_psn,
            sq_draining: false,
        }
    }

    pub(super) fn modify(&mut self, _env: &mut Env, change: QpChange) {
        if let Some(state) = change.state {
            self.state = state;
        }
        self.qkey = change.qkey.unwrap_or(self.qkey);
        self.rnr_retry = change.rnr_retry.or(self.rnr_retry);
        self.sq_psn = change.sq_psn.unwrap_or(self.sq_psn);
    }

    pub(super) fn flush_handle(&mut self, _env: &mut Env, _number: u16) {}

    pub(super) fn destroy(&mut self, env: &mut Env) {
        env.poller.remove(&self.socket);
    }

    pub(super) fn fetch(&mut self, _env: &mut Env, _now: Instant, _budget: usize) -> usize {
        0
    }

    pub(super) fn receive(&mut self, _env: &mut Env, _now: Instant) -> usize {
        0
    }

    pub(super) fn transmit(&mut self, _env: &mut Env, _now: Instant) -> (usize, Option<Instant>) {
        (0, None)
    }
}
