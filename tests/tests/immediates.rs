//! Immediates and messages in numbers: none is lost, whatever the receiver does; and what becomes of a
//! receive pool whose buffers the program keeps, or whose queue pair fails.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use efa_tests::{Pair, Test, alone, done, here, introduce, region, run};
use efa_transport::{
    Await, Config, Endpoint, Error, Failure, FailureKind, Full, Message, Put, QpState, ReceivePool,
    Region, RemoteRegion, Send,
};
use efa_verbs::{DeviceCapabilities, VendorStatus};

/// How long anything may take that is not lost.
const LATE: Duration = Duration::from_secs(60);

fn pool_of(buffers: u32) -> Config {
    Config {
        receive_pool: ReceivePool {
            buffers,
            size: None,
        },
        ..Config::default()
    }
}

/// No completion was written over one that had not been polled.
fn nothing_overran(t: &Test) -> Result<()> {
    if t.soft_efa()?.is_some() {
        let counters = t.counters()?;
        ensure!(counters.get("cq_overruns") == 0, "{counters:?}");
    }
    Ok(())
}

/// An endpoint that sends, and what has become of it.
struct Sender {
    endpoint: Endpoint,
    peer: efa_transport::PeerId,
    succeeded: u64,
    failed: Option<Failure>,
}

impl Sender {
    fn to(receiver: &mut Endpoint, domain: &efa_transport::Domain) -> Result<Self> {
        let mut endpoint = Endpoint::new(domain, Config::default())?;
        let (peer, _) = introduce(&mut endpoint, receiver)?;
        Ok(Self {
            endpoint,
            peer,
            succeeded: 0,
            failed: None,
        })
    }

    fn poll(&mut self) -> Result<usize> {
        let Self {
            endpoint,
            succeeded,
            failed,
            ..
        } = self;
        let count = endpoint.poll(|completion| match completion.result {
            Ok(()) => *succeeded += 1,
            Err(failure) => *failed = Some(failure),
        })?;
        match self.failed.take() {
            Some(failure) => Err(anyhow!("{failure}")),
            None => Ok(count),
        }
    }

    /// Puts so often, each time with this immediate, as fast as it goes.
    fn put(&mut self, source: &Region, remote: RemoteRegion, value: u32, count: u64) -> Result<()> {
        let (mut begun, peer) = (0, self.peer);
        let until = self.succeeded + count;
        while self.succeeded < until {
            self.endpoint.batch(|batch| {
                while begun < count && batch.room() > 0 {
                    batch.add(Put::new(peer, source, remote).immediate(value))?;
                    begun += 1;
                }
                Ok::<_, Error>(())
            })?;
            if self.poll()? == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }
}

// ---- many senders, one receiver ---------------------------------------------------------

/// Immediates of each sender: 2,000, or as many as `EFA_TEST_IMMEDIATES` says, which
/// `cargo xtask soak immediates` sets.
fn immediates() -> Result<u64> {
    match std::env::var("EFA_TEST_IMMEDIATES") {
        Ok(text) => text
            .parse()
            .with_context(|| format!("EFA_TEST_IMMEDIATES={text}")),
        Err(_) => Ok(2000),
    }
}

#[test]
fn a_slow_receiver_of_eight_senders_loses_no_immediate() {
    let Ok(count) = immediates() else {
        panic!("EFA_TEST_IMMEDIATES is not a number");
    };
    let limit = LATE + Duration::from_millis(10 * count);
    here().deadline(limit).run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        const SENDERS: u32 = 8;
        let domain = t.domain()?;
        let mut receiver = Endpoint::new(&domain, pool_of(32))?;
        let (source, target) = (region(&domain, &[5; 64])?, region(&domain, &[0; 64])?);
        let remote = target.remote()?;
        let mut threads = Vec::new();
        for value in 0..SENDERS {
            let mut sender = Sender::to(&mut receiver, &domain)?;
            let source = source.clone();
            threads.push(std::thread::spawn(move || -> Result<()> {
                sender.put(&source, remote, value, count)?;
                let stats = sender.endpoint.stats();
                ensure!(stats.operations == count && stats.failed == 0, "{stats:?}");
                Ok(())
            }));
        }
        let all = u64::from(SENDERS) * count;
        let ends = Instant::now() + limit;
        while receiver.stats().immediates < all {
            if threads.iter().all(|thread| thread.is_finished()) {
                // All senders are done, or have failed: what has landed is in the queue.
                receiver.poll(|_| {})?;
                if receiver.poll(|_| {})? == 0 && receiver.stats().immediates < all {
                    break;
                }
            }
            ensure!(Instant::now() < ends, "{:?}", receiver.stats());
            receiver.poll(|_| {})?;
            // Slow: the senders fill the pool in the meantime.
            std::thread::sleep(Duration::from_micros(200));
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow!("it panicked"))??;
        }
        for value in 0..SENDERS {
            let landed = receiver.immediate_count(value);
            ensure!(landed == count, "{landed} of {count} with value {value}");
        }
        let stats = receiver.stats();
        ensure!(
            stats.immediates == all && stats.immediates_lost == 0 && stats.stale_completions == 0,
            "{stats:?}"
        );
        if t.soft_efa()?.is_some() {
            let held_back = t.counters()?.get("rnr_sent");
            ensure!(held_back > 0, "the receiver was never slow");
        }
        nothing_overran(t)
    });
}

#[test]
fn a_hundred_senders_of_default_settings_reach_one_receiver() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        const SENDERS: u32 = 100;
        const EACH: u64 = 20;
        let domain = t.domain()?;
        let mut receiver = Endpoint::new(&domain, Config::default())?;
        let (source, target) = (region(&domain, &[5; 64])?, region(&domain, &[0; 64])?);
        let remote = target.remote()?;
        let mut senders = Vec::new();
        for value in 0..SENDERS {
            let mut sender = Sender::to(&mut receiver, &domain)?;
            for _ in 0..EACH {
                let put = Put::new(sender.peer, &source, remote).immediate(value);
                sender.endpoint.submit(put)?;
                sender.endpoint.send(sender.peer, &value.to_be_bytes())?;
            }
            senders.push(sender);
        }
        let mut messages = [0; SENDERS as usize];
        let ends = Instant::now() + LATE;
        let complete = |sender: &Sender| sender.succeeded == 2 * EACH;
        while !senders.iter().all(complete) || receiver.stats().messages < 2000 {
            ensure!(Instant::now() < ends, "{:?}", receiver.stats());
            for sender in &mut senders {
                sender.poll()?;
            }
            receiver.poll(|_| {})?;
            while let Some(message) = receiver.next_message() {
                let from = u32::from_be_bytes(message[..].try_into()?);
                let peer = message.peer().context("a message of nobody")?;
                let sender = &senders[from as usize].endpoint;
                ensure!(receiver.peer(peer)?.address == sender.address());
                messages[from as usize] += 1;
            }
        }
        // A put is complete when its bytes have landed; the completion here may come later.
        while receiver.stats().immediates < u64::from(SENDERS) * EACH {
            ensure!(Instant::now() < ends, "{:?}", receiver.stats());
            receiver.poll(|_| {})?;
        }
        ensure!(messages == [EACH; SENDERS as usize], "{messages:?}");
        for value in 0..SENDERS {
            let landed = receiver.immediate_count(value);
            ensure!(landed == EACH, "{landed} of sender {value}");
        }
        nothing_overran(t)
    });
}

#[test]
fn a_receiver_that_does_not_poll_for_a_while_loses_no_immediate() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        const COUNT: u64 = 9000;
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (pair.region(&[5; 64])?, pair.region(&[0; 64])?);
        let remote = target.remote()?;
        for tag in 0..COUNT {
            let put = Put::new(pair.ab, &source, remote).immediate(7).tag(tag);
            pair.a.submit(put)?;
        }
        let mut tags = vec![false; COUNT as usize];
        let mut succeeded = 0;
        let mut poll = |a: &mut Endpoint| -> Result<u64> {
            let mut wrong = None;
            a.poll(|done| {
                let before = std::mem::replace(&mut tags[done.tag as usize], true);
                match before || done.result.is_err() {
                    true => wrong = Some(done),
                    false => succeeded += 1,
                }
            })?;
            ensure!(wrong.is_none(), "{wrong:?}");
            Ok(succeeded)
        };
        let looks = Instant::now() + Duration::from_millis(500);
        let mut ended = 0;
        while Instant::now() < looks {
            ended = poll(&mut pair.a)?;
        }
        // Each needs a buffer, and so many there are.
        let buffers = u64::from(pair.b.limits().receive_buffers);
        ensure!(ended <= buffers, "{ended} have landed in {buffers} buffers");
        let ends = Instant::now() + LATE;
        while poll(&mut pair.a)? < COUNT || pair.b.immediate_count(7) < COUNT {
            ensure!(Instant::now() < ends, "{:?}", pair.b.stats());
            pair.b.poll(|_| {})?;
        }
        ensure!(pair.b.immediate_count(7) == COUNT);
        nothing_overran(t)
    });
}

// ---- peers without a pool ---------------------------------------------------------------

#[test]
fn what_a_peer_without_a_pool_can_not_receive_is_refused_at_once() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let without = Config {
            receive_pool: ReceivePool::NONE,
            ..Config::default()
        };
        let mut a = Endpoint::new(&domain, Config::default())?;
        let mut b = Endpoint::new(&domain, without)?;
        let (ab, _) = introduce(&mut a, &mut b)?;
        let (source, target) = (region(&domain, &[1; 5000])?, region(&domain, &[0; 5000])?);
        let remote = target.remote()?;
        let parts = [
            (source.slice(..10)?, remote),
            (source.slice(10..)?, remote.slice(10..)?),
        ];
        let told = Put::new(ab, &source, remote).immediate(1);
        let several = Put::parts(ab, &parts).immediate(1);
        let (short, long) = ([1; 8], [1; 5000]);
        let messages = [
            Send::bytes(ab, &short),
            Send::bytes(ab, &long),
            Send::new(ab, &source),
            Send::new(ab, &source).immediate(4),
        ];
        let refused = |result: Result<_, Error>| match result {
            Err(error @ Error::PeerTakesNoMessages { peer }) => {
                ensure!(peer == ab && !error.is_transient(), "{error}");
                ensure!(error.to_string().contains("receive_pool"), "{error}");
                Ok(())
            }
            other => bail!("{other:?}"),
        };
        refused(a.submit(told))?;
        refused(a.try_submit(told))?;
        refused(a.submit(several))?;
        refused(a.send(ab, b"hello"))?;
        for message in messages {
            refused(a.submit(message))?;
            refused(a.try_submit(message))?;
        }
        // A batch goes on without them, and takes what needs no receiver.
        a.batch(|batch| {
            refused(batch.add(told))?;
            batch.add(Put::new(ab, &source, remote))?;
            for message in messages {
                refused(batch.add(message))?;
            }
            ensure!(batch.len() == 1);
            Ok(())
        })?;
        a.wait_any(Some(LATE))?.result?;
        let stats = a.stats();
        ensure!(
            stats.requests == 1 && stats.live == 0 && stats.failed == 0,
            "{stats:?}"
        );
        ensure!(target.to_vec(..)? == [1; 5000]);
        Ok(())
    });
}

// ---- messages that are kept -------------------------------------------------------------

/// Polls both ends for a while, and takes what the receiver gets.
fn for_a_while(pair: &mut Pair) -> Result<Vec<Message>> {
    let mut messages = Vec::new();
    let looks = Instant::now() + Duration::from_millis(300);
    while Instant::now() < looks {
        pair.a.poll(|_| {})?;
        pair.b.poll(|_| {})?;
        messages.extend(std::iter::from_fn(|| pair.b.next_message()));
    }
    Ok(messages)
}

#[test]
fn kept_messages_hold_their_sender_back_until_one_is_dropped() {
    run(|t| {
        const BUFFERS: usize = 4;
        let mut pair = Pair::new(t, pool_of(BUFFERS as u32))?;
        for number in 0..10u32 {
            pair.a.send(pair.ab, &number.to_be_bytes())?;
        }
        let mut kept = for_a_while(&mut pair)?;
        ensure!(kept.len() == BUFFERS, "{} were received", kept.len());
        ensure!(pair.a.stats().live == 6, "{:?}", pair.a.stats());
        let mut numbers = Vec::new();
        // Another thread may read it and drop it.
        while let Some(message) = kept.pop() {
            let read = std::thread::spawn(move || message[..].try_into().map(u32::from_be_bytes));
            numbers.push(read.join().map_err(|_| anyhow!("it panicked"))??);
            if numbers.len() <= 6 {
                kept.push(pair.b.wait_message(Some(LATE)).context("after a drop")?);
            }
        }
        numbers.sort_unstable();
        ensure!(numbers == (0..10).collect::<Vec<_>>(), "{numbers:?}");
        pair.a.wait_all(Some(LATE))?;
        let mut failed = 0;
        pair.a
            .poll(|completion| failed += usize::from(completion.result.is_err()))?;
        ensure!(failed == 0 && pair.a.stats().live == 0);
        ensure!(for_a_while(&mut pair)?.is_empty());
        Ok(())
    });
}

#[test]
fn a_message_outlives_its_endpoint_and_its_memory_goes_with_it() {
    alone().run(|t| {
        let mut pair = Pair::new(t, pool_of(4))?;
        for _ in 0..3 {
            let send = pair.a.send(pair.ab, &[9; 100])?;
            done(&mut pair.a, send)?;
        }
        let first = pair.b.wait_message(Some(LATE))?;
        let second = pair.b.wait_message(Some(LATE))?;
        // The third is never taken.
        let Pair { a, b, domain, .. } = pair;
        drop((a, b, domain));
        std::thread::spawn(move || ensure_bytes(&second))
            .join()
            .map_err(|_| anyhow!("it panicked"))??;
        ensure_bytes(&first)?;
        if t.soft_efa()?.is_some() {
            let objects = t.objects()?;
            let regions = objects.get("mr");
            ensure!(
                regions == Some(&1),
                "the pool is not kept alone: {objects:?}"
            );
        }
        drop(first);
        if t.soft_efa()?.is_some() {
            let left = t.objects()?;
            ensure!(left.values().all(|&count| count == 0), "{left:?}");
        }
        Ok(())
    });
}

fn ensure_bytes(message: &Message) -> Result<()> {
    ensure!(message[..] == [9; 100], "{message:?}");
    Ok(())
}

#[test]
fn a_message_that_is_dropped_after_a_rebuild_returns_its_buffer() {
    run(|t| {
        let mut pair = Pair::new(t, pool_of(2))?;
        for _ in 0..2 {
            let send = pair.a.send(pair.ab, &[9; 100])?;
            done(&mut pair.a, send)?;
        }
        let first = pair.b.wait_message(Some(LATE))?;
        let second = pair.b.wait_message(Some(LATE))?;
        pair.b.rebuild()?;
        pair.ab = pair.a.connect(pair.b.address())?;
        pair.ba = pair.b.connect(pair.a.address())?;
        // Both buffers are still the program's: nothing writes them.
        pair.a.send(pair.ab, &[8; 100])?;
        ensure!(for_a_while(&mut pair)?.is_empty());
        ensure_bytes(&first)?;
        ensure_bytes(&second)?;
        drop((first, second));
        for _ in 0..2 {
            let message = pair.b.wait_message(Some(LATE))?;
            ensure!(message[..] == [8; 100], "{message:?}");
            drop(message);
            pair.a.send(pair.ab, &[8; 100])?;
        }
        Ok(())
    });
}

// ---- sleeping ---------------------------------------------------------------------------

/// Whether the endpoint's descriptor becomes readable in time.
fn readable(endpoint: &Endpoint, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: endpoint.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry, valid for the call.
    unsafe { libc::poll(&mut poll, 1, timeout) == 1 }
}

/// The next message, for which the endpoint sleeps on its descriptor alone.
fn asleep(endpoint: &mut Endpoint) -> Result<Message> {
    loop {
        endpoint.poll(|_| {})?;
        if let Some(message) = endpoint.next_message() {
            return Ok(message);
        }
        if endpoint.arm()? {
            ensure!(readable(endpoint, LATE), "an event was lost");
        }
    }
}

fn sleepy(buffers: u32) -> Config {
    Config {
        events: true,
        spin: Duration::ZERO,
        ..pool_of(buffers)
    }
}

#[test]
fn an_endpoint_that_sleeps_without_buffers_wakes_up_when_another_thread_drops_a_message() {
    run(|t| {
        let mut pair = Pair::new(t, sleepy(2))?;
        for number in 0..3 {
            pair.a.send(pair.ab, &[number])?;
        }
        let first = pair.b.wait_message(Some(LATE))?;
        let second = pair.b.wait_message(Some(LATE))?;
        while !pair.b.arm()? {
            pair.b.poll(|_| {})?;
        }
        ensure!(
            !readable(&pair.b, Duration::from_millis(100)),
            "nothing has happened"
        );
        let dropper = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(second);
        });
        ensure!(readable(&pair.b, LATE), "it was not woken");
        dropper.join().map_err(|_| anyhow!("it panicked"))?;
        let third = asleep(&mut pair.b)?;
        let mut numbers = [first[0], third[0]];
        numbers.sort_unstable();
        ensure!(numbers[0] != numbers[1] && numbers[1] <= 2, "{numbers:?}");
        pair.a.wait_all(Some(LATE))?;
        Ok(())
    });
}

/// The pool's one buffer comes back while its endpoint is about to sleep, or sleeps: in every order there
/// is.
#[test]
fn no_buffer_is_missed_between_arming_and_sleeping() {
    run(|t| {
        const ROUNDS: u32 = 500;
        let pair = Pair::new(t, sleepy(1))?;
        let Pair {
            mut a, mut b, ab, ..
        } = pair;
        let (keep, kept) = mpsc::channel::<Message>();
        let dropper = std::thread::spawn(move || kept.into_iter().map(drop).count());
        let sender = std::thread::spawn(move || -> Result<()> {
            for number in 0..ROUNDS {
                let send = a.send(ab, &number.to_be_bytes())?;
                done(&mut a, send)?;
            }
            Ok(())
        });
        for number in 0..ROUNDS {
            let message = asleep(&mut b)?;
            ensure!(message[..] == number.to_be_bytes(), "{message:?}");
            keep.send(message)?;
        }
        drop(keep);
        sender.join().map_err(|_| anyhow!("it panicked"))??;
        let dropped = dropper.join().map_err(|_| anyhow!("it panicked"))?;
        ensure!(dropped == ROUNDS as usize);
        Ok(())
    });
}

#[test]
fn whoever_reads_the_endpoints_descriptor_does_no_harm() {
    run(|t| {
        let mut pair = Pair::new(t, sleepy(1))?;
        let stop = Arc::new(AtomicBool::new(false));
        let copy = pair.b.as_fd().try_clone_to_owned()?;
        let also = stop.clone();
        let reader = std::thread::spawn(move || {
            let mut taken = 0;
            let mut bytes = [0u8; 64];
            while !also.load(Ordering::Relaxed) {
                // SAFETY: the array is as long as said, and lives for the call.
                let got = unsafe { libc::read(copy.as_raw_fd(), bytes.as_mut_ptr().cast(), 64) };
                taken += got.max(0);
                // SAFETY: the same.
                unsafe { libc::write(copy.as_raw_fd(), bytes.as_ptr().cast(), 8) };
                std::thread::yield_now();
            }
            taken
        });
        for number in 0..50u8 {
            let send = pair.a.send(pair.ab, &[number])?;
            let message = asleep(&mut pair.b)?;
            ensure!(message[..] == [number], "{message:?}");
            // The next one has to wait for the buffer.
            drop(message);
            done(&mut pair.a, send)?;
        }
        stop.store(true, Ordering::Relaxed);
        let taken = reader.join().map_err(|_| anyhow!("it panicked"))?;
        ensure!(taken == 0, "{taken} bytes could be read");
        let Pair { a, b, .. } = pair;
        // With an event that nobody has taken.
        drop(b);
        let closed = a.close(LATE);
        ensure!(closed.is_clean(), "{closed:?}");
        Ok(())
    });
}

// ---- a queue pair that fails --------------------------------------------------------------

/// Something beside the program, such as the device, puts the queue pair into the error state.
fn break_queue_pair(endpoint: &Endpoint) -> Result<()> {
    let mut attributes = efa_sys::ibv_qp_attr {
        qp_state: efa_sys::IBV_QPS_ERR,
        // SAFETY: all zeros is a value of this plain struct.
        ..unsafe { std::mem::zeroed() }
    };
    let mask = efa_sys::IBV_QP_STATE as i32;
    let raw = endpoint.queue_pair().as_raw();
    // SAFETY: the queue pair lives as long as its endpoint, and the attributes for the call.
    let failed = unsafe { efa_sys::ibv_modify_qp(raw.cast(), &mut attributes, mask) };
    ensure!(failed == 0, std::io::Error::from_raw_os_error(failed));
    Ok(())
}

#[test]
fn a_queue_pair_in_the_error_state_ends_all_operations_and_polling_goes_on() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        let mut pair = Pair::new(t, Config::default())?;
        let (source, target) = (
            pair.region(&vec![1; 1 << 20])?,
            pair.region(&vec![0; 1 << 20])?,
        );
        let remote = target.remote()?;
        let send = pair.b.send(pair.ba, b"before")?;
        done(&mut pair.b, send)?;
        const PUTS: usize = 600;
        for tag in 0..PUTS as u64 {
            pair.a.submit(Put::new(pair.ab, &source, remote).tag(tag))?;
        }
        let waiting = pair.a.submit(Await::new(1, 1))?;
        break_queue_pair(&pair.a)?;
        let mut ended = vec![false; PUTS];
        let (mut twice, mut odd) = (false, None);
        let ends = Instant::now() + LATE;
        while ended.contains(&false) {
            ensure!(Instant::now() < ends, "{:?}", pair.a.stats());
            pair.a.poll(|completion| {
                twice |= std::mem::replace(&mut ended[completion.tag as usize], true);
                let Err(failure) = completion.result else {
                    return;
                };
                match failure.kind() {
                    FailureKind::Device { vendor_status }
                        if vendor_status == VendorStatus::FLUSHED.0 => {}
                    FailureKind::Post { .. } => {}
                    _ => odd = Some(failure),
                }
            })?;
        }
        ensure!(!twice && odd.is_none(), "{odd:?}");
        for _ in 0..1000 {
            pair.a.poll(|_| {})?;
        }
        // What had arrived before is there; nothing more comes, and nobody waits for it in vain.
        let message = pair.a.wait_message(Some(LATE))?;
        ensure!(message[..] == *b"before", "{message:?}");
        let more = pair.a.wait_message(Some(LATE));
        ensure!(matches!(more, Err(Error::ReceivesStopped)), "{more:?}");
        let landed = pair.a.wait(waiting, Some(LATE));
        ensure!(matches!(landed, Err(Error::ReceivesStopped)), "{landed:?}");
        let any = pair.a.wait_any(Some(LATE));
        ensure!(matches!(any, Err(Error::ReceivesStopped)), "{any:?}");
        let later = pair.a.submit(Await::new(2, 1))?;
        let landed = pair.a.wait(later, Some(LATE));
        ensure!(matches!(landed, Err(Error::ReceivesStopped)), "{landed:?}");
        // And then it goes on.
        ensure!(pair.a.queue_pair().state()? == QpState::Err && pair.a.recover()?);
        for waiting in [waiting, later] {
            let lost = pair.a.wait(waiting, Some(LATE))?.result.unwrap_err();
            ensure!(lost.kind() == FailureKind::QueuePairLost, "{lost}");
        }
        ensure!(!pair.a.recover()? && pair.a.stats().live == 0);
        pair.ab = pair.a.connect(pair.b.address())?;
        pair.ba = pair.b.connect(pair.a.address())?;
        pair.works(&[3; 5000])?;
        drop(message);
        for number in 0..200u8 {
            pair.b.send(pair.ba, &[number])?;
            let message = pair.a.wait_message(Some(LATE))?;
            ensure!(message.len() == 1, "{message:?}");
        }
        Ok(())
    });
}

// ---- messages to oneself ----------------------------------------------------------------

#[test]
fn messages_to_oneself_are_bounded_by_the_pool_and_go_on_after_some_were_taken() {
    run(|t| {
        const BUFFERS: usize = 4;
        let mut endpoint = Endpoint::new(&t.domain()?, pool_of(BUFFERS as u32))?;
        let own = endpoint.connect(endpoint.address())?;
        let full = |endpoint: &mut Endpoint| -> Result<()> {
            let one = endpoint.send(own, b"one more");
            let several = endpoint.batch(|batch| batch.add(Send::bytes(own, b"one more")));
            for result in [one, several] {
                match result {
                    Err(error @ Error::Full(Full::Messages)) => ensure!(error.is_transient()),
                    other => bail!("{other:?}"),
                }
            }
            Ok(())
        };
        for _ in 0..BUFFERS {
            endpoint.send(own, b"hello")?;
        }
        // On their way, arrived, or kept: they count.
        full(&mut endpoint)?;
        endpoint.wait_all(Some(LATE))?;
        full(&mut endpoint)?;
        let mut kept: Vec<_> = std::iter::from_fn(|| endpoint.next_message()).collect();
        ensure!(kept.len() == BUFFERS, "{} have arrived", kept.len());
        full(&mut endpoint)?;
        kept.pop();
        endpoint.send(own, b"hello")?;
        full(&mut endpoint)?;
        drop(kept);
        let mut taken = 0;
        while taken < 5000 {
            match endpoint.send(own, b"hello") {
                Ok(_) => {}
                Err(Error::Full(Full::Messages)) => {
                    let message = endpoint.wait_message(Some(LATE))?;
                    ensure!(message[..] == *b"hello", "{message:?}");
                    taken += 1;
                }
                Err(error) => return Err(error.into()),
            }
            endpoint.poll(|_| {})?;
        }
        let most = endpoint.stats().messages;
        ensure!((5000..=5000 + 3 * BUFFERS as u64).contains(&most), "{most}");
        Ok(())
    });
}
