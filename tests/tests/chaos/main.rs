//! Chaos: several processes, random operations, random faults; peers that are killed and replaced
//! under the same numbers, and endpoints that are rebuilt under way.
//!
//! Every operation completes or fails with a cause; what was reported written is what is there;
//! nothing is left over. The workers drive an endpoint each, or are tasks of tokio that share one. A minute
//! of either, or as long as `EFA_TEST_CHAOS_SECONDS` says;
//! `cargo xtask soak chaos` runs it for an hour.

mod meeting;
mod tasks;
mod work;
mod worker;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Process, Test, here, preload_library, skip};
use efa_transport::RemoteRegion;
use serde::{Deserialize, Serialize};

const WORKERS: usize = 3;

/// What a worker tells the others about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Info {
    index: usize,
    /// How many processes had this index before.
    generation: usize,
    /// How often its endpoint was rebuilt.
    life: u32,
    /// Where it takes handshakes.
    listener: SocketAddr,
    inbox: RemoteRegion,
    source: RemoteRegion,
    /// What the source's bytes come from; no other process has the same.
    seed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Where everybody listens, by index: get to know them.
    Meet(Vec<SocketAddr>),
    /// Begin nothing new, let everything end, and report.
    Stop,
    /// Clean up and end.
    Exit,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    succeeded: u64,
    failed: u64,
    /// Of those, the ones that this side has ended.
    interrupted: u64,
    verified: u64,
    messages: u64,
    immediates: u64,
    faults: u64,
    meetings: u64,
    rebuilds: u64,
}

fn spawn(t: &Test, role: &str, index: usize, generation: usize) -> Result<(Process, SocketAddr)> {
    let number = index + generation * WORKERS;
    // The successor of a worker has its numbers as well.
    let options = format!(
        "addr=127.0.0.{} first-qp=21000 max-rdma-size=8192 seed={}",
        11 + index,
        t.seed().wrapping_add(number as u64)
    );
    let process = t.spawn_index_under(role, u32::try_from(number)?, &options)?;
    let listener = process.channel().recv()?;
    Ok((process, listener))
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

fn conduct(t: &Test, role: &str, duration: Duration) -> Result<()> {
    let mut rng = t.rng();
    let (mut processes, mut listeners) = (Vec::new(), Vec::new());
    for index in 0..WORKERS {
        let (process, listener) = spawn(t, role, index, 0)?;
        processes.push(process);
        listeners.push(listener);
    }
    for process in &processes {
        process.channel().send(&Order::Meet(listeners.clone()))?;
    }
    let ends = Instant::now() + duration;
    let mut generations = [0; WORKERS];
    loop {
        let pause = Duration::from_millis(3000 + rng.below(5000));
        // The last ones need some time to show what they can.
        if Instant::now() + pause + Duration::from_secs(5) > ends {
            break;
        }
        std::thread::sleep(pause);
        alive(&mut processes)?;
        let victim = rng.below(WORKERS as u64) as usize;
        generations[victim] += 1;
        processes[victim].kill();
        let (process, listener) = spawn(t, role, victim, generations[victim])?;
        listeners[victim] = listener;
        // The others learn of it when it comes to them.
        process.channel().send(&Order::Meet(listeners.clone()))?;
        processes[victim] = process;
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
    println!(
        "{} workers were replaced",
        generations.iter().sum::<usize>()
    );
    for process in &processes {
        process.channel().send(&Order::Exit)?;
    }
    for process in processes {
        process.finish()?;
    }
    Ok(())
}

/// A worker that has found something wrong ends, and need not be waited for.
fn alive(processes: &mut [Process]) -> Result<()> {
    for (index, process) in processes.iter_mut().enumerate() {
        if let Some(status) = process.try_wait()? {
            bail!("worker {index}: {status}\n{}", process.output());
        }
    }
    Ok(())
}

/// What this process is to do; workers have the role `worker`.
fn part(t: &Test, worker: &str) -> Result<()> {
    match t.role() {
        "main" => {
            if preload_library().is_none() {
                return Err(skip("it needs soft-efa"));
            }
            conduct(t, worker, duration()?)
        }
        "worker" => worker::run(t),
        "tasks" => tasks::run(t),
        role => bail!("{role}?"),
    }
}

/// For what comes after the last operation, too.
fn patience() -> Duration {
    duration().unwrap_or_default() + Duration::from_secs(150)
}

#[test]
fn every_operation_completes_or_fails_with_a_cause_and_all_bytes_are_right() {
    here().deadline(patience()).run(|t| part(t, "worker"));
}

/// The same with endpoints that many tasks share, whose futures are dropped at random.
#[test]
fn every_future_ends_or_was_dropped_and_all_bytes_are_right() {
    here().deadline(patience()).run(|t| part(t, "tasks"));
}
