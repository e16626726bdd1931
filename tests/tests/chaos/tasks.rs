//! The worker in its asynchronous form: one endpoint that many tasks of tokio share, whose futures are
//! dropped at random.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Rng, Test, region};
use efa_transport::handshake::HandshakeConfig;
use efa_transport::tokio::Endpoint;
use efa_transport::{Buffer, Config, DataPath, Error, FailureKind, PeerId, Put, ReceivePool, Send};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::work::{INBOX, Peer, SLOT, SLOTS, SOURCE, Slot, place, source_bytes, sum};
use crate::worker::{LONG_QUARANTINE, PLANS, QUARANTINE};
use crate::{Info, Order, Report, WORKERS};

/// Tasks that do something at random, one thing after the other.
const TASKS: u64 = 16;
/// Nobody of this machine takes longer to shake hands, unless it was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a future came to.
enum End<T> {
    /// It was dropped.
    Dropped,
    /// There was no such peer any more: nothing was begun.
    Gone,
    Failed,
    Done(T),
}

struct World {
    endpoint: Endpoint,
    me: Info,
    stop: watch::Receiver<bool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    peers: HashMap<usize, Peer>,
    everybody: HashMap<usize, SocketAddr>,
    /// Slots that no operation uses, and since when, or from when on, they can be used.
    slots: Vec<(Instant, Slot)>,
    /// Who has slots, by seed.
    known: Vec<u64>,
    report: Report,
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn domain(&self) -> &efa_transport::Domain {
        self.endpoint.domain()
    }

    fn handshake(&self) -> Result<HandshakeConfig> {
        let text = serde_json::to_vec(&self.me)?;
        Ok(HandshakeConfig::default().timeout(PATIENCE).user_data(text))
    }

    // ---- who is there ---------------------------------------------------------------

    fn met(&self, info: Info, id: PeerId) -> Result<()> {
        let mut state = self.state();
        if let Some(known) = state.peers.get(&info.index) {
            if known.id == id || known.info.generation > info.generation {
                return Ok(());
            }
            let gone = self.endpoint.disconnect(known.id);
            ensure!(
                matches!(gone, Ok(()) | Err(Error::PeerGone { .. })),
                "{gone:?}"
            );
        }
        let (index, seed) = (info.index, info.seed);
        state.report.meetings += 1;
        state.everybody.insert(index, info.listener);
        if !state.known.contains(&seed) {
            state.known.push(seed);
            // A predecessor's slots are nobody's.
            state.slots.retain(|(_, slot)| slot.peer != index);
            let now = Instant::now();
            let slots = (0..SLOTS).map(|number| Slot {
                peer: index,
                seed,
                number,
            });
            state.slots.extend(slots.map(|slot| (now, slot)));
        }
        let source = source_bytes(seed);
        state.peers.insert(index, Peer { id, info, source });
        Ok(())
    }

    async fn accept(&self) -> Result<()> {
        loop {
            // A failure concerns that worker alone; it comes again, or is dead.
            if let Ok(met) = self.endpoint.accept().await {
                let info = serde_json::from_slice(&met.user_data)
                    .context("what a worker says about itself")?;
                self.met(info, met.peer)?;
            }
        }
    }

    async fn connect(&self, mut rng: Rng) -> Result<()> {
        loop {
            sleep(Duration::from_millis(50)).await;
            let missing: Vec<_> = {
                let state = self.state();
                let unknown = |(index, _): &(&usize, &SocketAddr)| {
                    **index != self.me.index && !state.peers.contains_key(index)
                };
                let missing = state.everybody.iter().filter(unknown);
                missing.map(|(_, at)| *at).collect()
            };
            if missing.is_empty() {
                continue;
            }
            let target = rng.pick(&missing).to_string();
            // Some are given up in the middle.
            let limit = match rng.one_in(4) {
                true => Duration::from_micros(rng.below(5000)),
                false => PATIENCE,
            };
            let connecting = self.endpoint.connect(&target, self.handshake()?);
            if let Ok(Ok(met)) = timeout(limit, connecting).await {
                let info = serde_json::from_slice(&met.user_data)
                    .context("what a worker says about itself")?;
                self.met(info, met.peer)?;
            }
        }
    }

    /// A peer at random.
    fn somebody(&self, rng: &mut Rng) -> Option<(PeerId, Info)> {
        let state = self.state();
        let mut indices: Vec<_> = state.peers.keys().copied().collect();
        indices.sort_unstable();
        if indices.is_empty() {
            return None;
        }
        let peer = &state.peers[rng.pick(&indices)];
        Some((peer.id, peer.info.clone()))
    }

    // ---- operations -----------------------------------------------------------------

    /// Awaits a future, or drops it after a while, and says what it came to.
    async fn end<T>(
        &self,
        rng: &mut Rng,
        future: impl Future<Output = Result<T, Error>>,
    ) -> Result<End<T>> {
        let result = match rng.one_in(8) {
            true => match timeout(Duration::from_micros(rng.below(20_000)), future).await {
                Ok(result) => result,
                Err(_) => {
                    self.state().report.interrupted += 1;
                    return Ok(End::Dropped);
                }
            },
            false => future.await,
        };
        match result {
            Ok(done) => {
                self.state().report.succeeded += 1;
                Ok(End::Done(done))
            }
            Err(Error::Failed(failure)) => {
                ensure!(
                    failure.to_string().len() > 20,
                    "a failure without a cause: {failure}"
                );
                let late = failure.kind() == FailureKind::DeadlineExceeded;
                let mut state = self.state();
                state.report.failed += 1;
                state.report.interrupted += u64::from(late);
                Ok(match failure.requests_in_flight() {
                    0 => End::Failed,
                    _ => End::Dropped,
                })
            }
            Err(Error::PeerGone { peer, .. }) => {
                self.state().peers.retain(|_, known| known.id != peer);
                Ok(End::Gone)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a slot back, at once or when no packet of what went wrong can be on its way.
    fn free<T>(&self, slot: Slot, end: &End<T>) {
        let pause = match end {
            End::Done(_) | End::Gone => Duration::ZERO,
            End::Failed => QUARANTINE,
            End::Dropped => LONG_QUARANTINE,
        };
        self.state().slots.push((Instant::now() + pause, slot));
    }

    /// A slot that nothing uses, with the process that it belongs to.
    fn take_slot(&self, rng: &mut Rng) -> Option<(Slot, PeerId, Info)> {
        let mut state = self.state();
        let now = Instant::now();
        let usable = |(_, (since, slot)): &(usize, &(Instant, Slot))| {
            let owner = state.peers.get(&slot.peer);
            *since <= now && owner.is_some_and(|peer| peer.info.seed == slot.seed)
        };
        let slots = state.slots.iter().enumerate().filter(usable);
        let slots: Vec<_> = slots.map(|(at, _)| at).collect();
        if slots.is_empty() {
            return None;
        }
        let (_, slot) = state.slots.swap_remove(*rng.pick(&slots));
        let peer = &state.peers[&slot.peer];
        Some((slot, peer.id, peer.info.clone()))
    }

    /// Writes to a slot, and reads it back.
    async fn put(&self, rng: &mut Rng) -> Result<()> {
        let Some((slot, peer, info)) = self.take_slot(rng) else {
            return Ok(());
        };
        let length = rng.below(SLOT as u64) + 1;
        let content = rng.bytes(length as usize);
        let start = place(&self.me, slot.number);
        let remote = info.inbox.slice(start..start + length)?;
        let end = match rng.below(3) {
            0 => {
                let mut buffer = Buffer::zeroed(length as usize)?;
                buffer.copy_from_slice(&content);
                let lent = self.endpoint.put_owned(peer, buffer, remote);
                let result = async {
                    let returned = lent.await;
                    let whole = returned.buffer.is_none_or(|it| it[..] == content[..]);
                    ensure_or_overflow(whole)?;
                    returned.result
                };
                self.end(rng, result).await?
            }
            1 => {
                let source = region(self.domain(), &content)?;
                let limit = Instant::now() + Duration::from_millis(rng.below(2000));
                let put = Put::new(peer, &source, remote).immediate(self.me.index as u32);
                let put = self.endpoint.submit(put.deadline(limit));
                drop(source);
                self.end(rng, put).await?
            }
            _ => {
                let source = region(self.domain(), &content)?;
                let middle = rng.below(length + 1);
                let pairs = [
                    (source.slice(middle..)?, remote.slice(middle..length)?),
                    (source.slice(..middle)?, remote.slice(..middle)?),
                ];
                let put = self.endpoint.submit(Put::parts(peer, &pairs));
                self.end(rng, put).await?
            }
        };
        if let End::Done(bytes) = end {
            ensure!(bytes == length, "{bytes} of {length} bytes were written");
            let got = region(self.domain(), &vec![0; length as usize])?;
            let get = self.endpoint.get(peer, &got, remote);
            if let End::Done(_) = self.end(rng, get).await? {
                ensure!(got.to_vec(..)? == content, "written bytes differ");
                self.state().report.verified += 1;
            }
        }
        self.free(slot, &end);
        Ok(())
    }

    /// Two short writes in a batch.
    async fn batch(&self, rng: &mut Rng) -> Result<()> {
        let Some((slot, peer, info)) = self.take_slot(rng) else {
            return Ok(());
        };
        let content = rng.bytes(2000);
        let source = region(self.domain(), &content)?;
        let start = place(&self.me, slot.number);
        let remote = info.inbox.slice(start..start + 2000)?;
        let puts = [
            Put::new(peer, source.slice(..900)?, remote.slice(..900)?),
            Put::new(peer, source.slice(900..)?, remote.slice(900..)?),
        ];
        let batch = self.endpoint.batch(puts);
        let end = self.end(rng, batch).await?;
        let end = match end {
            End::Done(results) => match results.into_iter().collect::<Result<Vec<_>, _>>() {
                Ok(_) => End::Done(()),
                Err(_) => End::Dropped, // one of them, and its packets may be on their way
            },
            End::Dropped => End::Dropped,
            End::Gone => End::Gone,
            End::Failed => End::Failed,
        };
        if let End::Done(()) = end {
            let got = region(self.domain(), &[0; 2000])?;
            let get = self.endpoint.get(peer, &got, remote);
            if let End::Done(_) = self.end(rng, get).await? {
                ensure!(
                    got.to_vec(..)? == content,
                    "bytes written by a batch differ"
                );
                self.state().report.verified += 1;
            }
        }
        self.free(slot, &end);
        Ok(())
    }

    async fn get(&self, rng: &mut Rng) -> Result<()> {
        let Some((peer, info)) = self.somebody(rng) else {
            return Ok(());
        };
        let length = rng.below(SOURCE as u64) + 1;
        let at = rng.below(SOURCE as u64 - length + 1);
        let remote = info.source.slice(at..at + length)?;
        let got = region(self.domain(), &vec![0; length as usize])?;
        let get = self.endpoint.get(peer, &got, remote);
        if let End::Done(_) = self.end(rng, get).await? {
            let (at, length) = (at as usize, length as usize);
            let expected = &source_bytes(info.seed)[at..at + length];
            ensure!(got.to_vec(..)? == expected, "read bytes differ");
            self.state().report.verified += 1;
        }
        Ok(())
    }

    async fn message(&self, rng: &mut Rng) -> Result<()> {
        let Some((peer, _)) = self.somebody(rng) else {
            return Ok(());
        };
        let most = u64::from(self.endpoint.limits().max_message) - 8;
        let length = match rng.below(3) {
            0 => rng.below(24),
            _ => rng.below(most),
        };
        let mut message = rng.bytes(length as usize);
        let check = sum(&message);
        message.extend_from_slice(&check.to_be_bytes());
        let sent = self.endpoint.submit(Send::bytes(peer, &message));
        self.end(rng, sent).await?;
        Ok(())
    }

    /// Takes messages, and drops a receive now and then.
    async fn receive(&self, mut rng: Rng) -> Result<()> {
        loop {
            let receiving = self.endpoint.recv();
            let message = match rng.one_in(4) {
                true => timeout(Duration::from_micros(rng.below(2000)), receiving).await,
                false => Ok(receiving.await),
            };
            let Ok(message) = message else {
                continue;
            };
            let message = message?;
            ensure!(message.len() >= 8, "{message:?}");
            let (body, end) = message.split_at(message.len() - 8);
            ensure!(sum(body).to_be_bytes() == end, "a message was changed");
            self.state().report.messages += 1;
        }
    }

    /// Takes the immediates of one worker, and drops a wait now and then.
    async fn take_immediates(&self, value: u32, mut rng: Rng) -> Result<()> {
        loop {
            let landed = self.endpoint.landed(value, 1);
            let landed = match rng.one_in(4) {
                true => timeout(Duration::from_micros(rng.below(5000)), landed).await,
                false => Ok(landed.await),
            };
            if let Ok(landed) = landed {
                landed?;
                self.state().report.immediates += 1;
            }
        }
    }

    /// One thing after the other.
    async fn act(&self, mut rng: Rng) -> Result<()> {
        while !*self.stop.borrow() {
            match rng.below(12) {
                0..=4 => self.put(&mut rng).await?,
                5..=6 => self.batch(&mut rng).await?,
                7..=8 => self.get(&mut rng).await?,
                9..=10 => self.message(&mut rng).await?,
                _ => sleep(Duration::from_micros(rng.below(2000))).await,
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

/// An error that nothing here gives.
fn ensure_or_overflow(holds: bool) -> Result<(), Error> {
    match holds {
        true => Ok(()),
        false => Err(Error::Overflow),
    }
}

pub fn run(t: &Test) -> Result<()> {
    let number = t.index() as usize;
    let (index, generation) = (number % WORKERS, number / WORKERS);
    // Every other life on a runtime of one thread.
    let runtime = match generation % 2 {
        0 => Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?,
        _ => Builder::new_current_thread().enable_all().build()?,
    };
    let domain = t.domain()?;
    let config = Config {
        send_depth: 32,
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        // Some wait for room.
        max_operations: 24,
        path: match (index + generation) % 2 {
            0 => DataPath::Auto,
            _ => DataPath::Libefa,
        },
        ..Config::default()
    };
    let inbox = region(&domain, &vec![0; INBOX])?;
    let seed = t.seed() ^ (number as u64 + 1) << 32;
    let source = region(&domain, &source_bytes(seed))?;
    runtime.block_on(async {
        let endpoint =
            Endpoint::bind(&domain, config, "127.0.0.1:0", HandshakeConfig::default()).await?;
        let me = Info {
            index,
            generation,
            life: 0,
            listener: endpoint.listens_at().context("it listens")?,
            inbox: inbox.remote()?,
            source: source.remote()?,
            seed,
        };
        endpoint.set_user_data(serde_json::to_vec(&me)?)?;
        t.parent().send(&me.listener)?;
        let (orders, stop) = watch::channel(false);
        let world = Arc::new(World {
            endpoint,
            me,
            stop,
            state: Mutex::default(),
        });
        live(t, &world, orders, Rng::new(seed.rotate_left(7))).await
    })?;
    drop(runtime);
    drop((inbox, source));
    drop(domain);
    let left: Vec<_> = t
        .objects()?
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .collect();
    ensure!(left.is_empty(), "left over: {left:?}");
    Ok(())
}

/// The next order, without blocking the runtime for long.
async fn order(t: &Test) -> Result<Order> {
    loop {
        match t.parent().try_recv()? {
            Some(order) => return Ok(order),
            None => sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn live(
    t: &Test,
    world: &Arc<World>,
    orders: watch::Sender<bool>,
    mut rng: Rng,
) -> Result<()> {
    let Order::Meet(all) = order(t).await? else {
        bail!("expected to meet the others");
    };
    world.state().everybody = all.into_iter().enumerate().collect();
    // What never ends by itself.
    let (mut background, mut waits) = (JoinSet::new(), JoinSet::new());
    let mut spawn = |rng: Rng, which: u32| {
        let (world, set) = (
            world.clone(),
            match which {
                0..3 => &mut background,
                _ => &mut waits,
            },
        );
        set.spawn(async move {
            match which {
                0 => world.accept().await,
                1 => world.connect(rng).await,
                2 => world.receive(rng).await,
                value => world.take_immediates(value - 3, rng).await,
            }
        });
    };
    for which in 0..3 + WORKERS as u32 {
        spawn(Rng::new(rng.next_u64()), which);
    }
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (world, rng) = (world.clone(), Rng::new(rng.next_u64()));
        tasks.spawn(async move { world.act(rng).await });
    }
    let mut next_fault = Instant::now();
    loop {
        tokio::select! {
            order = order(t) => match order? {
                Order::Stop => break,
                order => bail!("{order:?} at the wrong time"),
            },
            Some(ended) = background.join_next() => {
                ended??;
                bail!("what never ends has ended");
            }
            Some(ended) = waits.join_next() => {
                ended??;
                bail!("a wait for immediates that goes on has ended");
            }
            Some(ended) = tasks.join_next() => {
                ended??;
                bail!("a task has ended early");
            }
            () = tokio::time::sleep_until(next_fault.into()) => {
                world.state().report.faults += 1;
                let plan: &str = rng.pick::<&str>(&PLANS);
                t.set_faults(plan)?;
                next_fault = Instant::now() + Duration::from_millis(200 + rng.below(800));
            }
        }
    }
    // Everything that was begun ends.
    t.set_faults("")?;
    orders.send(true)?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    // Waits for what may never land would keep the flush from ending.
    waits.shutdown().await;
    world.endpoint.flush().await?;
    // What was dropped may still be with the device.
    while world.endpoint.stats()?.free_credits < world.endpoint.limits().depth {
        sleep(Duration::from_millis(1)).await;
    }
    let stats = world.endpoint.stats()?;
    ensure!(stats.stale_completions == 0, "{stats:?}");
    ensure!(stats.live == 0, "operations are left over: {stats:?}");
    ensure!(
        t.counters()?.get("cq_overruns") == 0,
        "completion queues were overrun"
    );
    let report = std::mem::take(&mut world.state().report);
    t.parent().send(&report)?;
    // The others may still be reading from here.
    let Order::Exit = order(t).await? else {
        bail!("an order at the wrong time");
    };
    background.shutdown().await;
    ensure!(world.endpoint.close(PATIENCE).await? == 0);
    Ok(())
}
