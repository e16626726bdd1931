//! What posting and polling cost. `cargo xtask bench` runs this beside `c/baseline.c`; by hand, on
//! an EFA device:
//!
//! ```text
//! efa-bench target 1048576                         prints TARGET and waits for the end of its input
//! efa-bench instructions LAYER PATH BATCH ROUNDS TARGET [OTHERS]
//! efa-bench throughput|latency LAYER PATH SIZE COUNT TARGET
//! efa-bench requests COUNT
//! efa-bench memcpy|udp SIZE COUNT
//! ```
//!
//! LAYER is `session` (requests through efa-verbs), `put` (operations of efa-transport, posted in batches
//! and tracked to their completion), `put-regions-in-turns` (each from another region than the one before),
//! `put-peers-in-turns` (each to another peer than the one before), `pages` (a page table of as many pages as a
//! batch has requests, as one operation), or puts that are submitted one by one and `put-wait` (waited for),
//! `put-await` (futures) or `put-actor` (sent to an actor through a channel); PATH is `libefa` or `direct`;
//! OTHERS is how many peers there are beside the target. Results are lines of JSON on standard output.

mod allocations;
mod arguments;
mod layer;
mod plain;
mod requests;
mod ring;
mod target;

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use efa_verbs::DataPath;

use crate::allocations::Counting;
use crate::arguments::Arguments;
use crate::layer::{
    Actor, Awaiting, Blocking, Layer, OneByOne, Pages, PeersInTurns, Put, RegionsInTurns, Same,
    Session,
};
use crate::target::Target;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// As in `baseline.c`.
const DEPTH: u32 = 256;
const WARM_UP: u32 = 8;

fn main() -> Result<()> {
    let mut arguments = Arguments::of_process();
    let command: String = arguments.next("COMMAND")?;
    match &*command {
        "target" => target::serve(arguments.next("LENGTH")?),
        "udp-sink" => plain::udp_sink(arguments.next("COUNT")?, arguments.next("DATAGRAM")?),
        "memcpy" => {
            let (size, count) = (arguments.next("SIZE")?, arguments.next("COUNT")?);
            plain::memcpy(size, count);
            Ok(())
        }
        "udp" => plain::udp(arguments.next("SIZE")?, arguments.next("COUNT")?),
        "requests" => requests::measure(arguments.next("COUNT")?),
        "instructions" | "throughput" | "latency" => measure(&command, arguments),
        other => bail!("no such command: {other}"),
    }
}

/// Runs a measurement on one of the layers.
fn measure(command: &str, mut arguments: Arguments) -> Result<()> {
    let layer: String = arguments.next("LAYER")?;
    let path = match &*arguments.next::<String>("PATH")? {
        "libefa" => DataPath::Libefa,
        "direct" => DataPath::Direct,
        other => bail!("no such path: {other}"),
    };
    let (first, second) = (arguments.next("BATCH")?, arguments.next("ROUNDS")?);
    let target: Target = arguments.next("TARGET")?;
    let others = arguments.next_or("OTHERS", 0)?;
    match &*layer {
        "session" => run(command, Session::new(path, &target)?, first, second),
        "put" => {
            let put = Put::<Same>::new(path, &target, others)?;
            run(command, put, first, second)
        }
        "put-regions-in-turns" => {
            let put = Put::<RegionsInTurns>::new(path, &target, others)?;
            run(command, put, first, second)
        }
        "put-peers-in-turns" => {
            let put = Put::<PeersInTurns>::new(path, &target, others)?;
            run(command, put, first, second)
        }
        "put-wait" => {
            let put = OneByOne::<Blocking>::new(path, &target)?;
            run(command, put, first, second)
        }
        "put-await" => {
            let put = OneByOne::<Awaiting>::new(path, &target)?;
            run(command, put, first, second)
        }
        "put-actor" => {
            let put = OneByOne::<Actor>::new(path, &target)?;
            run(command, put, first, second)
        }
        "pages" => {
            let pages = Pages::new(path, &target)?;
            run(command, pages, first, second)
        }
        other => bail!("no such layer: {other}"),
    }
}

fn run<L: Layer>(command: &str, layer: L, first: u32, second: u32) -> Result<()> {
    match command {
        "instructions" => instructions(layer, first, second),
        "throughput" => throughput(layer, first, second),
        _ => latency(layer, first, second),
    }
}

fn instructions<L: Layer>(mut layer: L, batch: u32, rounds: u32) -> Result<()> {
    ensure!((1..=64).contains(&batch), "a batch is of 1 to 64 requests");
    layer.prepare(8, batch)?;
    for _ in 0..WARM_UP {
        layer.post()?;
        layer.ring().wait(batch)?;
        let mut left = batch;
        while left > 0 {
            left -= layer.poll(left)?;
        }
    }
    let before = allocations::count();
    for _ in 0..rounds {
        layer.measure_post()?;
        layer.ring().wait(batch)?;
        let found = layer.measure_poll(batch)?;
        ensure!(found == batch, "{found} completions of {batch} in one poll");
    }
    let allocations = allocations::count() - before;
    println!(
        r#"{{"operations":{},"path":"{}","allocations":{allocations},"bytes_per_peer":{}}}"#,
        batch * rounds,
        layer.path(),
        layer.bytes_per_peer()
    );
    Ok(())
}

fn throughput<L: Layer>(mut layer: L, size: u32, count: u32) -> Result<()> {
    let batch = 16;
    layer.prepare(size, batch)?;
    let count = count.div_ceil(batch) * batch;
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < count {
        while posted < count && posted - done + batch <= DEPTH {
            layer.post()?;
            posted += batch;
        }
        done += layer.poll(64)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    plain::report(size as usize, count, seconds);
    Ok(())
}

fn latency<L: Layer>(mut layer: L, size: u32, count: u32) -> Result<()> {
    layer.prepare(size, 1)?;
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let start = Instant::now();
        layer.post()?;
        while layer.poll(1)? == 0 {}
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[(times.len() * part / 1000).min(times.len() - 1)];
    ensure!(!times.is_empty(), "no operations");
    println!(
        r#"{{"size":{size},"count":{count},"p50":{:.9},"p99":{:.9},"p999":{:.9}}}"#,
        at(500),
        at(990),
        at(999)
    );
    Ok(())
}
