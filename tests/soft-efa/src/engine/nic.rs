//! The device's tables, and one pass over everything that there is to do.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::ah::AddressHandles;
use super::counters::Counters;
use super::cq::CompletionQueue;
use super::entry::{Completion, Op, RecvDescriptor, Status};
use super::faults::{Draw, FaultPlan, Verb};
use super::inbox::Inbox;
use super::memory::{MrSpec, Regions, UserMemory};
use super::net::{Knocker, Poller};
use super::qp::QueuePair;
use super::{CqSpec, EngineConfig, QpAttributes, QpChange, QpSpec, QpState, TraceSink};
use crate::gid::ip_of;
use crate::profile::Profile;
use crate::stats::Writer;

/// What a pass found, from which the thread's rest follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// A lot, and there may be more at once.
    Busy,
    /// A little.
    Light,
    /// A few large packets: it pays to let some more gather.
    Bulk,
    /// Nothing; the next thing that is due by itself is due then.
    Idle {
        /// When.
        until: Option<Instant>,
    },
    /// There are no queue pairs.
    Asleep,
    /// The device is stopped.
    Stopped,
}

/// Everything of a device but its queue pairs.
pub(super) struct Env {
    pub(super) name: String,
    pub(super) ip: Ipv4Addr,
    pub(super) profile: Profile,
    pub(super) seed: u64,
    pub(super) max_rdma_size: u32,
    pub(super) mtu: u32,
    pub(super) first_qp: Option<u16>,
    pub(super) faults: FaultPlan,
    pub(super) counters: Counters,
    stats: Option<Writer>,
    pub(super) trace: Option<TraceSink>,
    pub(super) memory: UserMemory,
    pub(super) regions: Regions,
    pub(super) handles: AddressHandles,
    pub(super) poller: Poller,
    pub(super) started: Instant,
    cqs: Vec<Option<CompletionQueue>>,
    dirty: Vec<u16>,
}

/// Prints a line of the trace, if there is one.
macro_rules! trace {
    ($env:expr, $($arg:tt)*) => {
        if let Some(sink) = &$env.trace {
            sink(&format!("{}: {}", $env.name, format_args!($($arg)*)));
        }
    };
}
pub(super) use trace;

impl Env {
    /// Hands a completion to its queue. `order` is the request's place among those of its queue
    /// pair.
    pub(super) fn complete(
        &mut self,
        cq: u16,
        completion: Completion,
        order: u64,
        draw: u64,
        hold: Option<Instant>,
    ) {
        if let Completion::Recv {
            op: Op::Send,
            status: Status::OK,
            len,
            ..
        } = completion
        {
            self.counters.receives_done += 1;
            self.counters.receive_bytes += u64::from(len);
        }
        let window = self.faults.reorder_window();
        if let Some(Some(queue)) = self.cqs.get_mut(usize::from(cq)) {
            if !queue.is_dirty() {
                self.dirty.push(cq);
            }
            queue.push(completion, order, draw, window, hold.filter(|_| window > 0));
        }
    }

    /// Writes what is to be written. Without a time nothing is held back.
    pub(super) fn flush_completions(&mut self, now: Option<Instant>) {
        // First, so that a program that has seen its completions finds them counted.
        if let Some(stats) = &self.stats {
            stats.store(&self.counters.hardware());
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|index| {
            let Some(Some(queue)) = self.cqs.get_mut(usize::from(*index)) else {
                return false;
            };
            queue.flush(now, &self.name, &mut self.counters);
            queue.is_dirty()
        });
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn raise_events(&mut self) {
        for queue in self.cqs.iter_mut().flatten().filter(|q| q.has_channel()) {
            queue.notify(&mut self.counters);
        }
    }

    /// The engine's clock in microseconds, never 0.
    pub(super) fn stamp(&self, now: Instant) -> u32 {
        (now.saturating_duration_since(self.started).as_micros() as u32).max(1)
    }
}

/// A device.
pub(super) struct Nic {
    env: Env,
    qps: FxHashMap<u16, QueuePair>,
    qps_made: u64,
    paused: bool,
    allocations: [u64; 6],
    /// When the slow engine may fetch the next request.
    next_fetch: Instant,
    /// When the engine last looked around.
    last_pass: Instant,
    ready: Vec<u16>,
    inbox: Inbox,
}

impl Nic {
    /// A rest as long as this is none that the engine chose.
    const STANDSTILL: Duration = Duration::from_millis(100);
    /// Bytes of a pass that came to bulk data,
    const BULK: u64 = 32 << 10;
    /// and of one that was worth its while.
    const LARGE_PASS: u64 = 320 << 10;

    pub(super) fn new(config: EngineConfig) -> io::Result<Self> {
        if ip_of(&config.gid) != Some(config.ip) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the device's GID does not carry its address {}", config.ip),
            ));
        }
        let now = Instant::now();
        Ok(Self {
            env: Env {
                name: format!("efa_{}", config.device_index),
                ip: config.ip,
                seed: config.seed,
                max_rdma_size: config.max_rdma_size,
                mtu: config.mtu,
                first_qp: config.first_qp,
                faults: config.faults,
                counters: Counters::new(),
                stats: config.stats,
                trace: config.trace,
                memory: UserMemory::new()?,
                regions: Regions::new(
                    config.profile.max_mr,
                    config.seed ^ u64::from(std::process::id()),
                ),
                handles: AddressHandles::new(config.profile.max_ah),
                poller: Poller::new()?,
                profile: config.profile,
                started: now,
                cqs: Vec::new(),
                dirty: Vec::new(),
            },
            qps: FxHashMap::default(),
            qps_made: u64::from(config.device_index) << 32,
            paused: false,
            allocations: [0; 6],
            next_fetch: now,
            last_pass: now,
            ready: Vec::new(),
            inbox: Inbox::new(),
        })
    }

    pub(super) fn poller(&self) -> RawFd {
        self.env.poller.raw()
    }

    pub(super) fn knocker(&self) -> io::Result<Knocker> {
        self.env.poller.knocker()
    }

    pub(super) fn reg_mr(&mut self, spec: MrSpec) -> Result<u32, i32> {
        let (pd, iova, length, access) = (spec.pd, spec.iova, spec.length, spec.access.0);
        let key = self.env.regions.insert(spec)?;
        trace!(
            self.env,
            "memory region {key:#x}: {length} B at {iova:#x}, pd {pd}, access {access:#x}"
        );
        Ok(key)
    }

    pub(super) fn dereg_mr(&mut self, key: u32) {
        trace!(self.env, "memory region {key:#x} deregistered");
        self.env.regions.remove(key);
    }

    pub(super) fn create_ah(&mut self, pd: u32, gid: [u8; 16]) -> Result<u16, i32> {
        let ip = ip_of(&gid).ok_or(libc::EINVAL)?;
        let number = self.env.handles.insert(pd, ip)?;
        trace!(self.env, "address handle {number}: {ip}, pd {pd}");
        Ok(number)
    }

    pub(super) fn destroy_ah(&mut self, pd: u32, number: u16) {
        if self.env.handles.remove(pd, number) {
            trace!(self.env, "address handle {number} destroyed, pd {pd}");
            for qp in self.qps.values_mut().filter(|qp| qp.pd() == pd) {
                qp.flush_handle(&mut self.env, number);
            }
        }
    }

    pub(super) fn create_cq(&mut self, spec: CqSpec) -> Result<u16, i32> {
        let queue = CompletionQueue::new(spec)?;
        let cqs = &mut self.env.cqs;
        let index = cqs.iter().position(Option::is_none).unwrap_or(cqs.len());
        let limit = (self.env.profile.max_cq as usize).min(1 << 16);
        if index >= limit {
            return Err(libc::ENOMEM);
        }
        if index == cqs.len() {
            cqs.push(None);
        }
        cqs[index] = Some(queue);
        Ok(index as u16)
    }

    pub(super) fn destroy_cq(&mut self, index: u16) {
        self.env.dirty.retain(|dirty| *dirty != index);
        if let Some(slot) = self.env.cqs.get_mut(usize::from(index)) {
            *slot = None;
        }
    }

    pub(super) fn create_qp(&mut self, spec: QpSpec) -> Result<u16, i32> {
        let known = |cq: u16| {
            self.env
                .cqs
                .get(usize::from(cq))
                .is_some_and(Option::is_some)
        };
        if !known(spec.send_cq) || !known(spec.recv_cq) {
            return Err(libc::EINVAL);
        }
        if self.qps.len() >= self.env.profile.max_qp as usize {
            return Err(libc::ENOMEM);
        }
        let (send_cq, recv_cq) = (spec.send_cq, spec.recv_cq);
        let (sends, unsolicited) = (spec.sq_bytes / spec.sq_entry_size.max(1), spec.unsolicited);
        let receives = spec.rq_bytes / RecvDescriptor::SIZE as u32;
        let qp = QueuePair::new(&mut self.env, spec, self.qps_made)?;
        for (cq, depth, unsolicited) in [(send_cq, sends, false), (recv_cq, receives, unsolicited)]
        {
            if let Some(Some(cq)) = self.env.cqs.get_mut(usize::from(cq)) {
                cq.attach(depth, unsolicited);
            }
        }
        self.qps_made += 1;
        let number = qp.number();
        self.qps.insert(number, qp);
        Ok(number)
    }

    pub(super) fn modify_qp(&mut self, number: u16, change: QpChange) -> Result<(), i32> {
        let qp = self.qps.get_mut(&number).ok_or(libc::EINVAL)?;
        qp.modify(&mut self.env, change);
        self.env.flush_completions(None);
        self.env.raise_events();
        Ok(())
    }

    pub(super) fn query_qp(&self, number: u16) -> Option<QpAttributes> {
        self.qps.get(&number).map(QueuePair::attributes)
    }

    pub(super) fn destroy_qp(&mut self, number: u16) {
        let Some(mut qp) = self.qps.remove(&number) else {
            return;
        };
        qp.destroy(&mut self.env);
        self.env.flush_completions(None);
        self.env.raise_events();
        for queue in self.env.cqs.iter_mut().flatten() {
            queue.forget(number);
        }
    }

    pub(super) fn counters(&self) -> BTreeMap<String, u64> {
        self.env.counters.to_map()
    }

    pub(super) fn set_faults(&mut self, plan: FaultPlan) {
        trace!(self.env, "fault plan is now \"{plan}\"");
        self.env.faults = plan;
    }

    pub(super) fn faults(&self) -> &FaultPlan {
        &self.env.faults
    }

    pub(super) fn set_paused(&mut self, paused: bool) {
        trace!(
            self.env,
            "device {}",
            if paused { "stopped" } else { "goes on" }
        );
        self.paused = paused;
    }

    pub(super) fn allocation_fault(&mut self, verb: Verb) -> Option<i32> {
        self.allocations[verb as usize] += 1;
        let count = self.allocations[verb as usize];
        let total = self.allocations.iter().sum();
        let draw = Draw {
            seed: self.env.seed,
            sender: 0,
            message: total,
            packet: 0,
            attempt: 0,
        };
        if !self.env.faults.allocation(draw, verb, count, total) {
            return None;
        }
        self.env.counters.allocations_failed += 1;
        trace!(self.env, "{verb:?} fails: the fault plan says so");
        Some(libc::ENOMEM)
    }

    pub(super) fn close_sockets_in_child(&self) {
        for qp in self.qps.values() {
            // SAFETY: in the child of a fork this copy of the descriptor is ours alone; nothing
            // uses it any more, since the engine refuses every call there.
            unsafe { libc::close(qp.socket().raw()) };
        }
    }

    /// Does what there is to do.
    pub(super) fn pass(&mut self) -> Pace {
        let now = Instant::now();
        let gap = now.saturating_duration_since(self.last_pass);
        self.last_pass = now;
        if self.paused || self.env.faults.stopped() {
            return Pace::Stopped;
        }
        if gap >= Self::STANDSTILL {
            // The process was stopped, by a debugger perhaps, or got no processor. Whoever was not
            // heard meanwhile may have answered.
            for qp in self.qps.values_mut() {
                qp.forgive(gap);
            }
        }
        if self.qps.is_empty() {
            // Completions of queue pairs that are gone were written when they went.
            let mut ready = std::mem::take(&mut self.ready);
            self.env.poller.ready(&mut ready);
            self.ready = ready;
            return Pace::Asleep;
        }
        let mut work = 0;
        let bytes = self.env.counters.bytes_sent + self.env.counters.bytes_received;

        let mut budget = self.fetch_budget(now);
        let unlimited = budget == usize::MAX;
        for qp in self.qps.values_mut() {
            let fetched = qp.fetch(&mut self.env, now, budget);
            work += fetched;
            if !unlimited {
                budget -= fetched.min(budget);
            }
        }
        self.pay(work, now);

        let mut ready = std::mem::take(&mut self.ready);
        self.env.poller.ready(&mut ready);
        for number in &ready {
            if let Some(qp) = self.qps.get_mut(number) {
                work += qp.receive(&mut self.env, &mut self.inbox, now);
            }
        }
        self.ready = ready;

        let mut until: Option<Instant> = None;
        for qp in self.qps.values_mut() {
            let (sent, due) = qp.transmit(&mut self.env, now);
            work += sent;
            if let Some(due) = due {
                until = Some(until.map_or(due, |until| until.min(due)));
            }
        }
        self.env.flush_completions(Some(now));
        self.env.raise_events();

        let bytes = self.env.counters.bytes_sent + self.env.counters.bytes_received - bytes;
        if bytes >= Self::LARGE_PASS || (work >= 16 && bytes < Self::BULK) {
            Pace::Busy
        } else if bytes >= Self::BULK {
            Pace::Bulk
        } else if work > 0 || !self.env.dirty.is_empty() {
            Pace::Light
        } else {
            Pace::Idle { until }
        }
    }

    /// Requests that a slow engine may fetch now.
    fn fetch_budget(&mut self, now: Instant) -> usize {
        let Some(rate) = self.env.faults.slow() else {
            return usize::MAX;
        };
        if now < self.next_fetch {
            return 0;
        }
        let late = now - self.next_fetch;
        // What was missed while idle is not made up for.
        if late > Duration::from_millis(20) {
            self.next_fetch = now;
            return 1;
        }
        1 + (late.as_secs_f64() * f64::from(rate)) as usize
    }

    fn pay(&mut self, fetched: usize, now: Instant) {
        if let (Some(rate), true) = (self.env.faults.slow(), fetched > 0) {
            let cost = Duration::from_secs_f64(fetched as f64 / f64::from(rate));
            self.next_fetch = self.next_fetch.max(now - Duration::from_millis(20)) + cost;
        }
    }
}

/// States in which a queue pair receives.
pub(super) fn can_receive(state: QpState) -> bool {
    matches!(
        state,
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    )
}
