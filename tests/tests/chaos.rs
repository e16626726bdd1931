//! Chaos: several processes, random transfers, random faults, a peer that is killed and replaced.
//!
//! Every operation completes or fails with a cause; what was reported written is what is there;
//! nothing is left over. A minute, or as long as `EFA_TEST_CHAOS_SECONDS` says.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Process, Rng, Test, here, region, skip, soft_efa_dir};
use efa_transport::{
    Completion, Config, Endpoint, EndpointAddress, Error, PeerId, ReceivePool, Region, RemoteRegion,
};
use serde::{Deserialize, Serialize};

const WORKERS: usize = 3;
/// A worker that was replaced does not write where its predecessor did, whose last packets
/// may still be on their way.
const GENERATIONS: usize = 16;
const SLOTS: usize = 8;
const SLOT: usize = 40 << 10;
const AREA: usize = SLOTS * SLOT;
/// Packets of a write that has failed may still be on their way: for so long nothing else is written
/// there. Longer than any delay among the faults.
const QUARANTINE: Duration = Duration::from_secs(2);
const SOURCE: usize = 256 << 10;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Info {
    address: EndpointAddress,
    inbox: RemoteRegion,
    source: RemoteRegion,
    /// What the source's bytes come from.
    seed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Everybody, by index; start.
    Meet(Vec<Info>),
    /// One was replaced: connect to the new one and say so.
    Replaced(usize, Info),
    /// Go on.
    Go,
    /// Begin nothing new, let everything end, and report.
    Stop,
    /// Clean up and end.
    Exit,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    succeeded: u64,
    failed: u64,
    verified: u64,
    messages: u64,
    faults: u64,
}

/// What an operation was for.
#[derive(Debug)]
enum Work {
    Put {
        id: PeerId,
        peer: usize,
        slot: usize,
        bytes: Region,
    },
    Check {
        id: PeerId,
        peer: usize,
        slot: usize,
        bytes: Region,
        got: Region,
    },
    Get {
        seed: u64,
        at: usize,
        got: Region,
    },
    Message,
}

struct Peer {
    id: PeerId,
    info: Info,
    source: Vec<u8>,
}

struct Worker<'t> {
    t: &'t Test,
    rng: Rng,
    me: usize,
    generation: usize,
    endpoint: Endpoint,
    peers: HashMap<usize, Peer>,
    /// Slots of each peer that no operation uses.
    free: Vec<(usize, usize)>,
    work: HashMap<u64, Work>,
    /// Slots whose last write has failed, and when they can be used again.
    quarantine: Vec<(Instant, PeerId, usize, usize)>,
    /// What went wrong last in a slot, for the report of a difference.
    last: HashMap<(usize, usize), String>,
    began: Instant,
    next: u64,
    report: Report,
    stop: bool,
}

fn source_bytes(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(SOURCE)
}

impl Worker<'_> {
    fn meet(&mut self, index: usize, info: Info) -> Result<()> {
        if let Some(old) = self.peers.remove(&index) {
            // Its operations end one by one, with a cause.
            self.endpoint.disconnect(old.id)?;
        }
        self.free.retain(|(peer, _)| *peer != index);
        self.free.extend((0..SLOTS).map(|slot| (index, slot)));
        let peer = Peer {
            id: self.endpoint.connect(info.address)?,
            source: source_bytes(info.seed),
            info,
        };
        self.peers.insert(index, peer);
        Ok(())
    }

    /// Where this worker writes at a peer.
    fn place(&self, peer: usize, slot: usize, length: usize) -> Result<RemoteRegion> {
        let start = ((self.me * GENERATIONS + self.generation) * AREA + slot * SLOT) as u64;
        let inbox = self.peers[&peer].info.inbox;
        Ok(inbox.slice(start..start + length as u64)?)
    }

    fn begin(
        &mut self,
        work: Work,
        start: impl FnOnce(&mut Endpoint, u64) -> Result<(), Error>,
    ) -> Result<()> {
        let tag = self.next;
        self.next += 1;
        match start(&mut self.endpoint, tag) {
            Ok(()) => {
                self.work.insert(tag, work);
                Ok(())
            }
            // Back-pressure, or a peer that has just gone: nothing was begun.
            Err(
                Error::WouldBlock(_) | Error::PeerGone { .. } | Error::TooManyOperations { .. },
            ) => {
                self.give_back(&work);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn give_back(&mut self, work: &Work) {
        if let Work::Put { id, peer, slot, .. } | Work::Check { id, peer, slot, .. } = work
            // A successor has slots of its own.
            && self.peers.get(peer).is_some_and(|known| known.id == *id)
        {
            self.free.push((*peer, *slot));
        }
    }

    fn start_something(&mut self) -> Result<()> {
        let mut indices: Vec<usize> = self.peers.keys().copied().collect();
        indices.sort_unstable();
        let peer = *self.rng.pick(&indices);
        let id = self.peers[&peer].id;
        let domain = self.endpoint.domain().clone();
        match self.rng.below(10) {
            0..=4 => {
                if self.free.is_empty() {
                    return Ok(());
                }
                let at = self.rng.below(self.free.len() as u64) as usize;
                let (peer, slot) = self.free.swap_remove(at);
                let id = self.peers[&peer].id;
                let length = self.rng.below(SLOT as u64) as usize + 1;
                let bytes = region(&domain, &self.rng.bytes(length))?;
                let remote = self.place(peer, slot, length)?;
                let source = bytes.clone();
                self.begin(
                    Work::Put {
                        id,
                        peer,
                        slot,
                        bytes,
                    },
                    |endpoint, tag| endpoint.put(id, &source, remote, tag).map(drop),
                )
            }
            5..=7 => {
                let length = self.rng.below(SOURCE as u64) as usize + 1;
                let at = self.rng.below((SOURCE - length) as u64 + 1) as usize;
                let info = &self.peers[&peer].info;
                let remote = info.source.slice(at as u64..(at + length) as u64)?;
                let seed = info.seed;
                let got = region(&domain, &vec![0; length])?;
                let target = got.clone();
                self.begin(Work::Get { seed, at, got }, |endpoint, tag| {
                    endpoint.get(id, &target, remote, tag).map(drop)
                })
            }
            _ => {
                let length = self
                    .rng
                    .below(u64::from(self.endpoint.max_message_size()) - 8)
                    as usize;
                let mut message = self.rng.bytes(length);
                let sum = sum(&message);
                message.extend_from_slice(&sum.to_be_bytes());
                self.begin(Work::Message, |endpoint, tag| {
                    endpoint.send_bytes(id, &message, None, tag).map(drop)
                })
            }
        }
    }

    fn ended(&mut self, completion: Completion) -> Result<()> {
        let work = self
            .work
            .remove(&completion.tag)
            .with_context(|| format!("completed twice, or never begun: {completion:?}"))?;
        if let Err(failure) = &completion.result {
            ensure!(
                failure.to_string().len() > 20,
                "a failure without a cause: {failure}"
            );
            self.report.failed += 1;
            if let Work::Put {
                id,
                peer,
                slot,
                bytes,
            } = &work
            {
                let text = format!(
                    "{} bytes, {:?}: {failure}",
                    bytes.len(),
                    self.began.elapsed()
                );
                self.last.insert((*peer, *slot), text);
                let until = Instant::now() + QUARANTINE;
                self.quarantine.push((until, *id, *peer, *slot));
            } else {
                self.give_back(&work);
            }
            return Ok(());
        }
        self.report.succeeded += 1;
        match work {
            // Reported written: read it back.
            Work::Put {
                id,
                peer,
                slot,
                bytes,
            } => {
                let gone = self.peers.get(&peer).is_none_or(|known| known.id != id);
                if gone {
                    return Ok(());
                }
                let length = bytes.len() as usize;
                let remote = self.place(peer, slot, length)?;
                let got = region(self.endpoint.domain(), &vec![0; length])?;
                let target = got.clone();
                self.begin(
                    Work::Check {
                        id,
                        peer,
                        slot,
                        bytes,
                        got,
                    },
                    |endpoint, tag| endpoint.get(id, &target, remote, tag).map(drop),
                )
            }
            Work::Check {
                peer,
                slot,
                ref bytes,
                ref got,
                ..
            } => {
                let (wrote, found) = (bytes.to_vec(..)?, got.to_vec(..)?);
                let differs = |at: &usize| wrote[*at] != found[*at];
                let wrong: Vec<usize> = (0..wrote.len()).filter(differs).collect();
                if let (Some(first), Some(last)) = (wrong.first(), wrong.last()) {
                    bail!(
                        "{} of {} written bytes differ, from {first} to {last}, after {:?}; the \
                         last failure in this place: {:?}",
                        wrong.len(),
                        wrote.len(),
                        self.began.elapsed(),
                        self.last.get(&(peer, slot))
                    );
                }
                self.report.verified += 1;
                self.give_back(&work);
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
            Work::Message => Ok(()),
        }
    }

    fn end_quarantines(&mut self) {
        let now = Instant::now();
        let Self {
            quarantine,
            peers,
            free,
            ..
        } = self;
        quarantine.retain(|(until, id, peer, slot)| {
            let over = now >= *until;
            if over && peers.get(peer).is_some_and(|known| known.id == *id) {
                free.push((*peer, *slot));
            }
            !over
        });
    }

    fn turn(&mut self) -> Result<()> {
        self.end_quarantines();
        let mut all = Vec::new();
        self.endpoint.poll(&mut all)?;
        for completion in all {
            self.ended(completion)?;
        }
        while let Some(message) = self.endpoint.next_message() {
            ensure!(message.len() >= 8, "{message:?}");
            let (body, end) = message.split_at(message.len() - 8);
            ensure!(sum(body).to_be_bytes() == end, "a message was changed");
            self.report.messages += 1;
        }
        Ok(())
    }

    /// Changes what goes wrong on this worker's device.
    fn change_faults(&mut self) -> Result<()> {
        self.report.faults += 1;
        const PLANS: [&str; 12] = [
            "",
            "loss=0.05",
            "dup=0.2,reorder=64",
            "delay=3ms:0.1",
            "loss=0.02,dup=0.05,delay=1ms:0.05,reorder=32",
            "slow=2000",
            "rnr=0.3",
            "status=7:0.02",
            "status=14:0.01,status=1:0.01",
            "timeout=300ms,cut=out",
            "timeout=300ms,cut=in",
            "enomem=reg_mr:0",
        ];
        let plan: &str = self.rng.pick::<&str>(&PLANS);
        self.t.set_faults(plan)
    }

    fn obey(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Replaced(index, info) => {
                self.meet(index, info)?;
                self.t.parent().send(&())
            }
            Order::Stop => {
                self.stop = true;
                Ok(())
            }
            other => bail!("{other:?} at the wrong time"),
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

fn worker(t: &Test) -> Result<()> {
    let (me, generation) = (t.index() as usize % WORKERS, t.index() as usize / WORKERS);
    let domain = t.domain()?;
    let config = Config {
        send_depth: 32,
        receive_pool: Some(ReceivePool {
            buffers: 16,
            size: None,
        }),
        ..Config::default()
    };
    let endpoint = Endpoint::new(&domain, config)?;
    let inbox = region(&domain, &vec![0; WORKERS * GENERATIONS * AREA])?;
    let seed = t.seed() ^ (u64::from(t.index()) + 1) << 32;
    let source = region(&domain, &source_bytes(seed))?;
    let mut worker = Worker {
        t,
        rng: Rng::new(seed.rotate_left(7)),
        me,
        generation,
        peers: HashMap::new(),
        free: Vec::new(),
        work: HashMap::new(),
        quarantine: Vec::new(),
        last: HashMap::new(),
        began: Instant::now(),
        next: 0,
        report: Report::default(),
        stop: false,
        endpoint,
    };
    t.parent().send(&Info {
        address: worker.endpoint.address(),
        inbox: inbox.remote()?,
        source: source.remote()?,
        seed,
    })?;
    let Order::Meet(all) = t.parent().recv()? else {
        bail!("expected to meet the others");
    };
    for (index, info) in all.into_iter().enumerate() {
        if index != me {
            worker.meet(index, info)?;
        }
    }
    t.parent().send(&())?;
    let Order::Go = t.parent().recv()? else {
        bail!("expected to go");
    };

    let mut next_fault = Instant::now();
    while !worker.stop {
        worker.turn()?;
        if worker.work.len() < 24 {
            worker.start_something()?;
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
        if Instant::now() >= next_fault {
            worker.change_faults()?;
            next_fault = Instant::now() + Duration::from_millis(200 + worker.rng.below(800));
        }
        if let Some(order) = t.parent().try_recv()? {
            worker.obey(order)?;
        }
    }

    // Everything that was begun ends.
    t.set_faults("")?;
    let ends = Instant::now() + Duration::from_secs(60);
    while !worker.work.is_empty() {
        worker.turn()?;
        ensure!(Instant::now() < ends, "never ended: {:?}", worker.work);
        std::thread::sleep(Duration::from_micros(100));
    }
    let stats = worker.endpoint.stats();
    ensure!(stats.stale_completions == 0, "{stats:?}");
    ensure!(
        worker.endpoint.operations() == 0,
        "operations are left over"
    );
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

fn spawn(t: &Test, index: usize, generation: usize) -> Result<(Process, Info)> {
    let options = format!(
        "addr=127.0.0.{} max-rdma-size=8192 seed={}",
        11 + index,
        t.seed() + (index + generation * WORKERS) as u64
    );
    let number = (index + generation * WORKERS) as u32;
    let process = t.spawn_index_under("worker", number, &options)?;
    let info = process.channel().recv()?;
    Ok((process, info))
}

fn duration() -> Result<Duration> {
    let seconds = match std::env::var("EFA_TEST_CHAOS_SECONDS") {
        Ok(text) => text
            .parse()
            .with_context(|| format!("EFA_TEST_CHAOS_SECONDS={text}"))?,
        Err(_) => 60,
    };
    Ok(Duration::from_secs(seconds))
}

fn conduct(t: &Test, duration: Duration) -> Result<()> {
    let mut rng = t.rng();
    let (mut processes, mut infos) = (Vec::new(), Vec::new());
    for index in 0..WORKERS {
        let (process, info) = spawn(t, index, 0)?;
        processes.push(process);
        infos.push(info);
    }
    for process in &processes {
        process.channel().send(&Order::Meet(infos.clone()))?;
    }
    for process in &processes {
        process.channel().recv::<()>()?;
    }
    for process in &processes {
        process.channel().send(&Order::Go)?;
    }
    let ends = Instant::now() + duration;
    // Spread over the time, and at most as often as there is room for.
    let pause = (duration / (GENERATIONS as u32 - 1)).max(Duration::from_secs(5));
    let mut generations = [0; WORKERS];
    let mut replaced = 0;
    while Instant::now() + pause < ends {
        std::thread::sleep(pause);
        let victim = rng.below(WORKERS as u64) as usize;
        generations[victim] += 1;
        processes[victim].kill();
        let (process, info) = spawn(t, victim, generations[victim])?;
        infos[victim] = info;
        for (index, other) in processes.iter().enumerate() {
            if index != victim {
                let order = Order::Replaced(victim, infos[victim].clone());
                other.channel().send(&order)?;
                other
                    .channel()
                    .recv::<()>()
                    .with_context(|| format!("worker {index}:\n{}", other.output()))?;
            }
        }
        process.channel().send(&Order::Meet(infos.clone()))?;
        process.channel().recv::<()>()?;
        process.channel().send(&Order::Go)?;
        processes[victim] = process;
        replaced += 1;
    }
    std::thread::sleep(ends.saturating_duration_since(Instant::now()));
    for process in &processes {
        process.channel().send(&Order::Stop)?;
    }
    for (index, process) in processes.iter().enumerate() {
        let report: Report = process
            .channel()
            .recv()
            .with_context(|| format!("worker {index}:\n{}", process.output()))?;
        println!("worker {index}: {report:?}");
        ensure!(
            report.succeeded > 0 && report.verified > 0,
            "worker {index}: {report:?}"
        );
    }
    println!("{replaced} workers were replaced");
    for process in &processes {
        process.channel().send(&Order::Exit)?;
    }
    for process in processes {
        process.finish()?;
    }
    Ok(())
}

#[test]
fn every_operation_completes_or_fails_with_a_cause_and_all_bytes_are_right() {
    let Ok(duration) = duration() else {
        panic!("EFA_TEST_CHAOS_SECONDS is not a number");
    };
    here()
        .deadline(duration + Duration::from_secs(150))
        .run(|t| match t.role() {
            "main" => {
                if soft_efa_dir().is_none() {
                    return Err(skip("it needs soft-efa"));
                }
                conduct(t, duration)
            }
            "worker" => worker(t),
            role => bail!("{role}?"),
        });
}
