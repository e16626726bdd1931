//! One worker: an endpoint that does everything at random.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Rng, Test, region};
use efa_transport::{
    Await, Completion, Config, DataPath, Endpoint, Error, FailureKind, Get, OperationId, PeerId,
    Put, ReceivePool, Region, Send,
};

use crate::meeting::Meetings;
use crate::work::{INBOX, Peer, SLOT, SLOTS, SOURCE, Slot, Work, place, source_bytes, sum};
use crate::{Info, Order, Report, WORKERS};

/// Packets of a write that has failed may still be on their way: for so long nothing else is written
/// there. Longer than any delay among the faults.
pub const QUARANTINE: Duration = Duration::from_secs(2);
/// The same where the device still has the write: longer than it takes to give up on a peer.
pub const LONG_QUARANTINE: Duration = Duration::from_secs(15);
/// Operations under way at a time.
const BUSY: usize = 24;

/// What goes wrong, one after the other, on each worker's device.
pub const PLANS: [&str; 16] = [
    "",
    "",
    "loss=0.05",
    "dup=0.2,reorder=64",
    "delay=3ms:0.1",
    "loss=0.02,dup=0.05,delay=1ms:0.05,reorder=32",
    "slow=2000",
    "rnr=0.3",
    "status=7:0.02",
    "status=14:0.01,status=1:0.01,status=13:0.01",
    "timeout=300ms,cut=out",
    "timeout=300ms,cut=in",
    "timeout=300ms,cut=both",
    "stop",
    "enomem=create_qp:0.5,enomem=create_cq:0.3",
    "socket,loss=0.02",
];

/// An operation that may have a deadline.
trait Until: Sized {
    fn until(self, limit: Option<Instant>) -> Self;
}

macro_rules! until {
    ($($kind:ident),*) => {$(
        impl Until for $kind<'_> {
            fn until(self, limit: Option<Instant>) -> Self {
                match limit {
                    Some(at) => self.deadline(at),
                    None => self,
                }
            }
        }
    )*};
}
until!(Put, Get, Send);

struct Worker<'t> {
    t: &'t Test,
    rng: Rng,
    me: Info,
    endpoint: Endpoint,
    /// Whether the endpoint can sleep.
    events: bool,
    meetings: Meetings,
    peers: HashMap<usize, Peer>,
    /// Slots that no operation uses.
    free: Vec<Slot>,
    /// Slots whose last write has failed, and when they can be used again.
    quarantine: Vec<(Instant, Slot)>,
    work: HashMap<u64, Work>,
    /// The operations, to interrupt some.
    open: Vec<OperationId>,
    /// What went wrong last in a slot, for the report of a difference.
    last: HashMap<Slot, String>,
    began: Instant,
    next: u64,
    report: Report,
    stop: bool,
}

impl Worker<'_> {
    // ---- who is there ---------------------------------------------------------------

    fn meet(&mut self) -> Result<()> {
        let Self {
            meetings,
            endpoint,
            me,
            peers,
            ..
        } = self;
        let met = meetings.turn(endpoint, me, |index| {
            index != me.index && !peers.contains_key(&index)
        })?;
        for (info, id) in met {
            self.met(info, id)?;
        }
        Ok(())
    }

    fn met(&mut self, info: Info, id: PeerId) -> Result<()> {
        let life = |info: &Info| (info.generation, info.life);
        let known = self.peers.get(&info.index);
        if let Some(known) = known {
            if known.id == id {
                return Ok(()); // the same handshake from the other side
            }
            if life(&known.info) > life(&info) {
                return Ok(()); // an old story
            }
            let gone = self.endpoint.disconnect(known.id);
            ensure!(
                matches!(gone, Ok(()) | Err(Error::PeerGone { .. })),
                "{gone:?}"
            );
        }
        let index = info.index;
        self.report.meetings += 1;
        self.meetings.everybody.insert(index, info.listener);
        let is_new = |slot: &Slot| slot.peer == index && slot.seed != info.seed;
        let slots = || {
            (0..SLOTS).map(|number| Slot {
                peer: index,
                seed: info.seed,
                number,
            })
        };
        let same = known.is_some_and(|known| known.info.seed == info.seed)
            || self.free.iter().any(|slot| slot.seed == info.seed)
            || self
                .work
                .values()
                .any(|work| work.slot().is_some_and(|slot| slot.seed == info.seed))
            || self
                .quarantine
                .iter()
                .any(|(_, slot)| slot.seed == info.seed);
        if !same {
            self.free.retain(|slot| !is_new(slot));
            self.quarantine.retain(|(_, slot)| !is_new(slot));
            self.free.extend(slots());
        }
        let peer = Peer {
            id,
            source: source_bytes(info.seed),
            info,
        };
        self.peers.insert(index, peer);
        Ok(())
    }

    /// The peer of this slot, if it is still the same process.
    fn owner(&self, slot: Slot) -> Option<&Peer> {
        let peer = self.peers.get(&slot.peer)?;
        (peer.info.seed == slot.seed).then_some(peer)
    }

    fn rebuild(&mut self) -> Result<()> {
        if let Err(error) = self.endpoint.rebuild() {
            // The device was short of something: all is as it was.
            ensure!(error.to_string().contains("ENOMEM"), "{error}");
            return Ok(());
        }
        self.report.rebuilds += 1;
        self.me.life += 1;
        self.peers.clear();
        self.meetings.introduce(&self.me)
    }

    // ---- operations -----------------------------------------------------------------

    fn begin(
        &mut self,
        work: Work,
        start: impl FnOnce(&mut Endpoint, u64, Option<Instant>) -> Result<OperationId, Error>,
    ) -> Result<()> {
        let tag = self.next;
        self.next += 1;
        let limit = self
            .rng
            .one_in(20)
            .then(|| Instant::now() + Duration::from_millis(self.rng.below(300)));
        match start(&mut self.endpoint, tag, limit) {
            Ok(operation) => {
                self.open.push(operation);
                self.work.insert(tag, work);
                Ok(())
            }
            // Back-pressure, or a peer that has just gone: nothing was begun.
            Err(Error::PeerGone { peer, .. }) => {
                self.peers.retain(|_, known| known.id != peer);
                self.free.extend(work.slot());
                Ok(())
            }
            Err(Error::Full(_)) => {
                self.free.extend(work.slot());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn start_something(&mut self) -> Result<()> {
        let mut indices: Vec<usize> = self.peers.keys().copied().collect();
        indices.sort_unstable();
        if indices.is_empty() {
            return Ok(());
        }
        let peer = *self.rng.pick(&indices);
        match self.rng.below(14) {
            0..=5 => self.start_put(),
            12..=13 => self.start_batch(peer),
            6..=8 => self.start_get(peer),
            9 => {
                // The oldest are those that something is wrong with.
                if let Some(&operation) = self.open.first()
                    && self.rng.one_in(4)
                {
                    self.endpoint.cancel(operation);
                }
                Ok(())
            }
            _ => self.start_message(peer),
        }
    }

    fn start_put(&mut self) -> Result<()> {
        if self.free.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.free.len() as u64) as usize;
        let slot = self.free[at];
        let Some(peer) = self.owner(slot) else {
            return Ok(());
        };
        let (id, inbox) = (peer.id, peer.info.inbox);
        self.free.swap_remove(at);
        let length = self.rng.below(SLOT as u64) + 1;
        let content = self.rng.bytes(length as usize);
        let bytes = region(self.endpoint.domain(), &content)?;
        let start = place(&self.me, slot.number);
        let remote = inbox.slice(start..start + length)?;
        let source = bytes.clone();
        let work = Work::Put { slot, bytes };
        let value = self.me.index as u32;
        match self.rng.below(4) {
            0 => self.begin(work, |endpoint, tag, limit| {
                endpoint.submit(
                    Put::new(id, &source, remote)
                        .immediate(value)
                        .tag(tag)
                        .until(limit),
                )
            }),
            1 => {
                let middle = self.rng.below(length + 1);
                self.begin(work, |endpoint, tag, limit| {
                    let pairs = [
                        (source.slice(middle..)?, remote.slice(middle..length)?),
                        (source.slice(..middle)?, remote.slice(..middle)?),
                    ];
                    endpoint.submit(Put::parts(id, &pairs).tag(tag).until(limit))
                })
            }
            2 => self.begin(work, |endpoint, tag, limit| {
                endpoint.try_submit(Put::new(id, &source, remote).tag(tag).until(limit))
            }),
            _ => self.begin(work, |endpoint, tag, limit| {
                endpoint.submit(Put::new(id, &source, remote).tag(tag).until(limit))
            }),
        }
    }

    /// Several short puts in one batch, from one region after the other or in turns; sometimes all of
    /// them are taken back.
    fn start_batch(&mut self, peer: usize) -> Result<()> {
        let (id, inbox, seed) = {
            let peer = &self.peers[&peer];
            (peer.id, peer.info.inbox, peer.info.seed)
        };
        let most = u64::from(self.endpoint.limits().max_request).min(SLOT as u64);
        let mut puts = Vec::new();
        for _ in 0..self.rng.below(3) + 1 {
            let length = self.rng.below(most) + 1;
            let content = self.rng.bytes(length as usize);
            let bytes = region(self.endpoint.domain(), &content)?;
            for turn in 0..self.rng.below(3) + 1 {
                let ours = |slot: &Slot| slot.peer == peer && slot.seed == seed;
                let Some(at) = self.free.iter().position(ours) else {
                    break;
                };
                let slot = self.free.swap_remove(at);
                let start = place(&self.me, slot.number);
                let remote = inbox.slice(start..start + length)?;
                puts.push((turn, bytes.clone(), slot, remote, self.next));
                self.next += 1;
            }
        }
        if self.rng.one_in(2) {
            puts.sort_by_key(|(turn, ..)| *turn);
        }
        let (tell, take_back) = (self.rng.one_in(2), self.rng.one_in(8));
        let value = self.me.index as u32;
        let posted = self.endpoint.batch(|batch| {
            let mut operations = Vec::new();
            for (turn, bytes, _, remote, tag) in &puts {
                let mut put = Put::new(id, bytes, *remote).tag(*tag);
                if tell && *turn == 0 {
                    put = put.immediate(value);
                }
                operations.push(batch.add(put)?);
            }
            if take_back {
                return Err(Error::Overflow); // any error will do
            }
            Ok(operations)
        });
        let works = puts
            .into_iter()
            .map(|(_, bytes, slot, _, tag)| (tag, Work::Put { slot, bytes }));
        match posted {
            Ok(operations) => {
                self.open.extend(operations);
                self.work.extend(works);
                return Ok(());
            }
            Err(Error::Overflow) if take_back => {}
            Err(Error::Full(_)) => {}
            Err(Error::PeerGone { peer, .. }) => self.peers.retain(|_, known| known.id != peer),
            Err(error) => return Err(error.into()),
        }
        // Nothing of it was posted.
        let free = works.filter_map(|(_, work)| work.slot());
        self.free.extend(free);
        Ok(())
    }

    fn start_get(&mut self, peer: usize) -> Result<()> {
        let (id, seed, source) = {
            let peer = &self.peers[&peer];
            (peer.id, peer.info.seed, peer.info.source)
        };
        let length = self.rng.below(SOURCE as u64) + 1;
        let at = self.rng.below(SOURCE as u64 - length + 1);
        let remote = source.slice(at..at + length)?;
        let got = region(self.endpoint.domain(), &vec![0; length as usize])?;
        let target = got.clone();
        let at = at as usize;
        self.begin(Work::Get { seed, at, got }, |endpoint, tag, limit| {
            endpoint.submit(Get::new(id, &target, remote).tag(tag).until(limit))
        })
    }

    fn start_message(&mut self, peer: usize) -> Result<()> {
        let id = self.peers[&peer].id;
        let most = u64::from(self.endpoint.limits().max_message) - 8;
        let length = match self.rng.below(3) {
            0 => self.rng.below(24),
            _ => self.rng.below(most),
        };
        let mut message = self.rng.bytes(length as usize);
        let check = sum(&message);
        message.extend_from_slice(&check.to_be_bytes());
        self.begin(Work::Message, |endpoint, tag, limit| {
            endpoint.submit(Send::bytes(id, &message).tag(tag).until(limit))
        })
    }

    // ---- ends -----------------------------------------------------------------------

    fn ended(&mut self, completion: Completion) -> Result<()> {
        let work = self
            .work
            .remove(&completion.tag)
            .with_context(|| format!("completed twice, or never begun: {completion:?}"))?;
        self.open.retain(|open| *open != completion.operation);
        let Err(failure) = &completion.result else {
            self.report.succeeded += 1;
            return self.succeeded(work);
        };
        ensure!(
            failure.to_string().len() > 20,
            "a failure without a cause: {failure}"
        );
        self.report.failed += 1;
        if let FailureKind::Cancelled | FailureKind::DeadlineExceeded = failure.kind() {
            self.report.interrupted += 1;
        }
        match work {
            Work::Put { slot, bytes } => {
                let text = format!(
                    "{} bytes, {:?}: {failure}",
                    bytes.len(),
                    self.began.elapsed()
                );
                self.last.insert(slot, text);
                let pause = match failure.requests_in_flight() {
                    0 => QUARANTINE,
                    _ => LONG_QUARANTINE,
                };
                self.quarantine.push((Instant::now() + pause, slot));
            }
            // Reading leaves nothing behind.
            Work::Check { slot, .. } => self.free.push(slot),
            Work::Await => bail!("waiting for what was there has failed: {failure}"),
            Work::Get { .. } | Work::Message => {}
        }
        Ok(())
    }

    fn succeeded(&mut self, work: Work) -> Result<()> {
        match work {
            // Reported written: read it back.
            Work::Put { slot, bytes } => {
                let Some(peer) = self.owner(slot) else {
                    // Reconnecting, or replaced: nobody to ask.
                    self.free.push(slot);
                    return Ok(());
                };
                let (id, inbox) = (peer.id, peer.info.inbox);
                let start = place(&self.me, slot.number);
                let remote = inbox.slice(start..start + bytes.len())?;
                let got = region(self.endpoint.domain(), &vec![0; bytes.len() as usize])?;
                let target = got.clone();
                self.begin(Work::Check { slot, bytes, got }, |endpoint, tag, limit| {
                    endpoint.submit(Get::new(id, &target, remote).tag(tag).until(limit))
                })
            }
            Work::Check { slot, bytes, got } => {
                self.compare(slot, &bytes, &got)?;
                self.report.verified += 1;
                self.free.push(slot);
                Ok(())
            }
            Work::Get { seed, at, got } => {
                let got = got.to_vec(..)?;
                let known = self.peers.values().find(|peer| peer.info.seed == seed);
                let expected = match known {
                    Some(peer) => peer.source[at..at + got.len()].to_vec(),
                    None => source_bytes(seed)[at..at + got.len()].to_vec(),
                };
                ensure!(got == expected, "read bytes differ");
                self.report.verified += 1;
                Ok(())
            }
            Work::Message | Work::Await => Ok(()),
        }
    }

    fn compare(&self, slot: Slot, bytes: &Region, got: &Region) -> Result<()> {
        let (wrote, found) = (bytes.to_vec(..)?, got.to_vec(..)?);
        let differs = |at: &usize| wrote[*at] != found[*at];
        let wrong: Vec<usize> = (0..wrote.len()).filter(differs).collect();
        if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
            bail!(
                "{} of {} written bytes differ, from {first} to {last}, after {:?}; the last \
                 failure in this place: {:?}",
                wrong.len(),
                wrote.len(),
                self.began.elapsed(),
                self.last.get(&slot)
            );
        }
        Ok(())
    }

    fn end_quarantines(&mut self) {
        let now = Instant::now();
        let Self {
            quarantine, free, ..
        } = self;
        quarantine.retain(|(until, slot)| {
            let over = now >= *until;
            if over {
                free.push(*slot);
            }
            !over
        });
    }

    // ---- one round of everything ----------------------------------------------------

    fn turn(&mut self) -> Result<()> {
        self.end_quarantines();
        self.meet()?;
        let mut all = Vec::new();
        self.endpoint.poll(|completion| all.push(completion))?;
        for completion in all {
            self.ended(completion)?;
        }
        while let Some(message) = self.endpoint.next_message() {
            ensure!(message.len() >= 8, "{message:?}");
            let (body, end) = message.split_at(message.len() - 8);
            ensure!(sum(body).to_be_bytes() == end, "a message was changed");
            self.report.messages += 1;
        }
        for value in 0..WORKERS as u32 {
            let landed = self.endpoint.immediate_count(value);
            if landed > 0 && !self.stop {
                self.report.immediates += landed;
                let tag = self.next;
                self.next += 1;
                self.endpoint.submit(Await::new(value, landed).tag(tag))?;
                self.work.insert(tag, Work::Await);
            }
        }
        Ok(())
    }

    /// Sleeps where the endpoint can, and polls again after a while where it can't.
    fn pause(&mut self) -> Result<()> {
        if !self.events || self.work.is_empty() {
            std::thread::sleep(Duration::from_micros(100));
            return Ok(());
        }
        match self.endpoint.wait_any(Some(Duration::from_millis(2))) {
            Ok(completion) => self.ended(completion),
            Err(Error::TimedOut(_) | Error::NothingToWaitFor) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn act(&mut self) -> Result<()> {
        let mut next_fault = Instant::now();
        let mut next_rebuild = Instant::now() + Duration::from_secs(3);
        while !self.stop {
            self.turn()?;
            if self.work.len() < BUSY {
                self.start_something()?;
            } else {
                self.pause()?;
            }
            if Instant::now() >= next_fault {
                self.report.faults += 1;
                let plan: &str = self.rng.pick::<&str>(&PLANS);
                self.t.set_faults(plan)?;
                next_fault = Instant::now() + Duration::from_millis(200 + self.rng.below(800));
            }
            if Instant::now() >= next_rebuild {
                self.rebuild()?;
                next_rebuild = Instant::now() + Duration::from_millis(4000 + self.rng.below(8000));
            }
            match self.t.parent().try_recv()? {
                Some(Order::Stop) => self.stop = true,
                Some(order) => bail!("{order:?} at the wrong time"),
                None => {}
            }
        }
        Ok(())
    }

    /// Everything that was begun ends.
    fn finish(&mut self) -> Result<()> {
        self.t.set_faults("")?;
        let ends = Instant::now() + Duration::from_secs(60);
        while !self.work.is_empty() {
            self.turn()?;
            ensure!(Instant::now() < ends, "never ended: {:?}", self.work);
            std::thread::sleep(Duration::from_micros(100));
        }
        // What was interrupted may still be with the device.
        while self.endpoint.stats().free_credits < self.endpoint.limits().depth {
            self.turn()?;
            ensure!(Instant::now() < ends, "{:?}", self.endpoint);
        }
        let stats = self.endpoint.stats();
        ensure!(stats.stale_completions == 0, "{stats:?}");
        ensure!(
            self.endpoint.stats().live == 0,
            "operations are left over: {:?}",
            self.endpoint
        );
        let overruns = self.t.counters()?.get("cq_overruns");
        ensure!(overruns == 0, "completion queues were overrun");
        Ok(())
    }
}

pub fn run(t: &Test) -> Result<()> {
    let number = t.index() as usize;
    let (index, generation) = (number % WORKERS, number / WORKERS);
    let domain = t.domain()?;
    let events = (number / 2) % 2 == 1;
    let config = Config {
        send_depth: 32,
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        events,
        // Every other life of each worker on another path.
        path: if (index + generation) % 2 == 0 {
            DataPath::Auto
        } else {
            DataPath::Libefa
        },
        ..Config::default()
    };
    let endpoint = Endpoint::new(&domain, config)?;
    let inbox = region(&domain, &vec![0; INBOX])?;
    let seed = t.seed() ^ (number as u64 + 1) << 32;
    let source = region(&domain, &source_bytes(seed))?;
    let mut meetings = Meetings::new()?;
    let me = Info {
        index,
        generation,
        life: 0,
        listener: meetings.address()?,
        inbox: inbox.remote()?,
        source: source.remote()?,
        seed,
    };
    meetings.introduce(&me)?;
    t.parent().send(&me.listener)?;
    let Order::Meet(all) = t.parent().recv()? else {
        bail!("expected to meet the others");
    };
    meetings.everybody = all.into_iter().enumerate().collect();
    let mut worker = Worker {
        t,
        rng: Rng::new(seed.rotate_left(7)),
        me,
        endpoint,
        events,
        meetings,
        peers: HashMap::new(),
        free: Vec::new(),
        quarantine: Vec::new(),
        work: HashMap::new(),
        open: Vec::new(),
        last: HashMap::new(),
        began: Instant::now(),
        next: 0,
        report: Report::default(),
        stop: false,
    };
    worker.act()?;
    worker.finish()?;
    t.parent().send(&worker.report)?;
    // The others may still be reading from here.
    loop {
        worker.turn()?;
        match t.parent().try_recv()? {
            Some(Order::Exit) => break,
            Some(order) => bail!("{order:?} at the wrong time"),
            None => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    drop((worker, inbox, source));
    drop(domain);
    let left: Vec<_> = t
        .objects()?
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    ensure!(left.is_empty(), "left over: {left:?}");
    Ok(())
}
