//! `cargo xtask bench`: what posting and polling cost, beside a C program on the same libefa.

mod budget;
mod callgrind;
mod results;
mod svg;
mod table;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::Value;
use soft_efa::options::Options;

use crate::rdma_core::{self, RdmaCore};
use crate::soft_efa::Software;
use crate::{build, packages, process, workspace};
use results::{BASE, BATCHES, Count, Requests, Results, Speed, VARIANTS, Variant};

/// The first release that tells where the queues are.
const FIRST_WITH_QUEUES: u32 = 59;
/// Memory of the target: the largest write.
const TARGET_BYTES: &str = "1048576";
const ROUNDS: u32 = 64;
/// Sizes, and operations of each for throughput and for latency.
const SIZES: [(u32, u32, u32); 6] = [
    (8, 50_000, 2000),
    (64, 50_000, 2000),
    (512, 50_000, 2000),
    (4096, 20_000, 2000),
    (65_536, 4000, 1000),
    (1 << 20, 400, 1000),
];
/// Requests, each with its response, in a row.
const REQUESTS: &str = "1000";
/// How many peers an endpoint has beside the target.
const OTHERS: [u32; 3] = [0, 100, 10_000];

/// Those whose throughput and latency are measured.
const WITH_SPEED: [&str; 5] = [
    BASE,
    "session-libefa",
    "session-direct",
    "put-libefa",
    "put-direct",
];

/// What follows `cargo xtask bench`.
#[derive(Args)]
pub struct Bench {
    /// Measure only this.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// A real EFA device instead of a software one. Its traffic to itself must be possible.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Where the results go.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A part of what is measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Instructions, allocations and memory: the same on every run.
    Counts,
    /// Throughput and latency.
    Speed,
}

/// Measures, prints, and holds the results against the budgets.
pub fn run(arguments: &Bench) -> Result<ExitCode> {
    Ok(match report(arguments)? {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Fails where a count exceeds its budget.
pub fn within_budgets() -> Result<()> {
    let counts = Bench {
        only: Some(Part::Counts),
        device: None,
        out: None,
    };
    match report(&counts)? {
        0 => Ok(()),
        exceeded => {
            bail!("{exceeded} budgets exceeded; `cargo xtask bench --only counts` shows which")
        }
    }
}

/// Measures and prints; returns how many budgets are exceeded.
fn report(arguments: &Bench) -> Result<usize> {
    let results = measure(arguments, Results::default())?;
    let out = match &arguments.out {
        Some(dir) => dir.clone(),
        None => workspace::target().join("bench"),
    };
    fs::create_dir_all(&out).with_context(|| format!("can't make {}", out.display()))?;
    if results.counted(BASE, 1).is_some() {
        println!("{}", table::instructions(&results));
    }
    if !results.speed.is_empty() {
        println!("{}", table::speed(&results));
        write(&out.join("bench.svg"), &svg::draw(&results))?;
    }
    write(&out.join("bench.json"), &format!("{:#}\n", results.json()))?;
    let verdicts = budget::check(&results)?;
    print!("{}", table::verdicts(&verdicts));
    println!("results in {}", workspace::shown(&out));
    let exceeded = verdicts.iter().filter(|verdict| !verdict.met()).count();
    if exceeded > 0 {
        println!("{exceeded} budgets exceeded");
    }
    Ok(exceeded)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

fn measure(arguments: &Bench, mut results: Results) -> Result<Results> {
    let counts = arguments.only != Some(Part::Speed);
    let mut needed = vec![packages::CC, packages::PKG_CONFIG];
    if counts {
        needed.push(packages::VALGRIND);
    }
    packages::ensure(&needed)?;
    let rdma_core = library()?;
    eprintln!("using {}", rdma_core.described());
    let spinner = process::spinner("building the programs");
    let programs = Programs::build(&rdma_core)?;
    spinner.finish_and_clear();
    let place = Place::new(arguments.device.as_deref(), &rdma_core)?;
    results.rdma_core = rdma_core.version.clone();
    results.device = arguments
        .device
        .clone()
        .unwrap_or_else(|| "soft-efa".into());
    let target = Target::start(&programs, &place)?;
    if counts {
        count(&programs, &place, &target, &mut results)?;
    }
    if arguments.only != Some(Part::Counts) {
        speed(&programs, &place, &target, &mut results)?;
    }
    Ok(results)
}

/// The rdma-core that other commands use, or the pinned one where that is too old for the direct path.
fn library() -> Result<RdmaCore> {
    let usual = rdma_core::resolve(rdma_core::Choice::Auto)?;
    let old = |found: &RdmaCore| {
        let major = found.version.split('.').next().and_then(|n| n.parse().ok());
        major.is_some_and(|major: u32| major < FIRST_WITH_QUEUES)
    };
    if !old(&usual) {
        return Ok(usual);
    }
    if std::env::var_os("RDMA_CORE_SRC").is_some() {
        bail!(
            "{} does not tell where the queues are, which counting needs: it takes rdma-core \
             {FIRST_WITH_QUEUES} or newer",
            usual.described()
        );
    }
    rdma_core::resolve(rdma_core::Choice::Pinned)
}

/// The two programs.
struct Programs {
    c: PathBuf,
    rust: PathBuf,
}

impl Programs {
    fn build(rdma_core: &RdmaCore) -> Result<Self> {
        let arguments = ["build", "--quiet", "--release", "--package", "efa-bench"];
        let rust = build::artifacts(Some(rdma_core), &arguments)?
            .into_iter()
            .find(|artifact| artifact.kind == "bin" && artifact.target == "efa-bench")
            .context("cargo built efa-bench and named no program")?
            .file;
        let dir = workspace::target().join("bench");
        fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
        let c = dir.join("baseline");
        let mut flags = Command::new("pkg-config");
        flags.args(["--cflags", "--libs", "libefa", "libibverbs"]);
        rdma_core.apply(&mut flags);
        let flags = process::output(&mut flags)?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-Wall", "-o"])
            .arg(&c)
            .arg(workspace::root().join("tests/bench/c/baseline.c"))
            .args(flags.split_whitespace());
        process::run(&mut compiler)?;
        Ok(Self { c, rust })
    }

    /// The one that has this variant.
    fn of(&self, variant: &Variant) -> &Path {
        match variant.is_c() {
            true => &self.c,
            false => &self.rust,
        }
    }
}

fn variant(name: &str) -> Result<&'static Variant> {
    let found = VARIANTS.iter().find(|variant| variant.name == name);
    found.with_context(|| format!("no variant {name}"))
}

/// Where the programs run.
struct Place {
    rdma_core: RdmaCore,
    software: Option<Software>,
    device: Option<String>,
}

impl Place {
    fn new(device: Option<&str>, rdma_core: &RdmaCore) -> Result<Self> {
        let software = match device {
            Some(_) => None,
            None => Some(Software::new(&Options::default(), Some(rdma_core))?),
        };
        Ok(Self {
            rdma_core: rdma_core.clone(),
            software,
            device: device.map(str::to_owned),
        })
    }

    fn apply(&self, command: &mut Command) -> Result<()> {
        build::clean(command);
        if let Some(device) = &self.device {
            command.env("EFA_BENCH_DEVICE", device);
        }
        match &self.software {
            Some(software) => software.apply(command),
            None => {
                self.rdma_core.apply(command);
                Ok(())
            }
        }
    }

    /// Runs a program and reads the line of JSON that it prints.
    fn result(&self, mut command: Command) -> Result<Value> {
        self.apply(&mut command)?;
        let text = process::output(&mut command)?;
        serde_json::from_str(text.trim())
            .with_context(|| format!("`{}` printed no JSON: {text:?}", process::shown(&command)))
    }
}

/// The process that is written to; it ends when its input does.
struct Target {
    child: Child,
    /// How the other programs find it.
    name: String,
}

impl Target {
    fn start(programs: &Programs, place: &Place) -> Result<Self> {
        let mut command = Command::new(&programs.rust);
        command
            .args(["target", TARGET_BYTES])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        place.apply(&mut command)?;
        let mut child = command
            .spawn()
            .with_context(|| format!("can't run `{}`", process::shown(&command)))?;
        let mut name = String::new();
        let out = child.stdout.take().context("no output to read")?;
        BufReader::new(out).read_line(&mut name)?;
        let name = name.trim().to_owned();
        if name.is_empty() {
            let status = child.wait()?;
            bail!("the target did not start: {}", process::described(status));
        }
        Ok(Self { child, name })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has nothing left to do; how it ends tells nothing about the results.
        let _ = self.child.wait();
    }
}

fn count(programs: &Programs, place: &Place, target: &Target, results: &mut Results) -> Result<()> {
    let output = workspace::target().join("bench/callgrind.out");
    let one = |variant: &Variant, batch: u32, others: u32| -> Result<(Count, Value)> {
        let mut command = callgrind::under(&output);
        command
            .arg(programs.of(variant))
            .arg("instructions")
            .args(variant.arguments)
            .args([batch.to_string(), ROUNDS.to_string()])
            .arg(&target.name);
        if others > 0 {
            command.arg(others.to_string());
        }
        let said = place.result(command)?;
        let operations = said["operations"]
            .as_f64()
            .context("no number of operations")?;
        let (post, poll) = callgrind::read(&output)?;
        let count = Count {
            post: post as f64 / operations,
            poll: poll as f64 / operations,
        };
        Ok((count, said))
    };
    for variant in &VARIANTS {
        let spinner = process::spinner(&format!("counting {}", variant.name));
        for batch in BATCHES {
            let (count, said) = one(variant, batch, 0)?;
            results.count(variant.name, batch, count);
            if said["path"] != variant.path() {
                bail!("{} went by {}", variant.name, said["path"]);
            }
            if let (Some(allocations), Some(operations)) =
                (said["allocations"].as_f64(), said["operations"].as_f64())
            {
                let most = results.allocations.entry(variant.name).or_default();
                *most = most.max(allocations / operations);
            }
        }
        spinner.finish_and_clear();
    }
    let spinner = process::spinner("counting with many peers");
    for others in OTHERS {
        let put = variant("put-libefa")?;
        let (count, said) = one(put, 16, others)?;
        results.others.insert(others, count.post);
        if others > 0 {
            results.bytes_per_peer = said["bytes_per_peer"].as_f64();
        }
    }
    spinner.finish_and_clear();
    Ok(())
}

fn speed(programs: &Programs, place: &Place, target: &Target, results: &mut Results) -> Result<()> {
    let number = |value: &Value, name: &str| {
        value[name]
            .as_f64()
            .with_context(|| format!("no {name} in {value}"))
    };
    for (size, many, few) in SIZES {
        let spinner = process::spinner(&format!("writes of {}", table::bytes(size)));
        for name in WITH_SPEED {
            let variant = variant(name)?;
            // The C program has one way to poll.
            let arguments = match variant.is_c() {
                true => &[],
                false => variant.arguments,
            };
            let run = |what: &str, count: u32| {
                let mut command = Command::new(programs.of(variant));
                command
                    .arg(what)
                    .args(arguments)
                    .args([size.to_string(), count.to_string()])
                    .arg(&target.name);
                place.result(command)
            };
            let throughput = run("throughput", many)?;
            let latency = run("latency", few)?;
            let bytes = f64::from(size) * number(&throughput, "count")?;
            let speed = Speed {
                bytes_per_second: bytes / number(&throughput, "seconds")?,
                p50: number(&latency, "p50")?,
                p99: number(&latency, "p99")?,
                p999: number(&latency, "p999")?,
            };
            results.speed.insert((name.to_owned(), size), speed);
        }
        if place.software.is_some() && matches!(size, 8 | 0x10_0000) {
            for what in ["memcpy", "udp"] {
                let mut command = Command::new(&programs.rust);
                command.args([what, &size.to_string(), &many.to_string()]);
                let said: Value = serde_json::from_str(process::output(&mut command)?.trim())?;
                let bytes = f64::from(size) * number(&said, "count")?;
                let speed = bytes / number(&said, "seconds")?;
                results.plain.insert((what.to_owned(), size), speed);
            }
        }
        spinner.finish_and_clear();
    }
    let spinner = process::spinner("requests and responses");
    let mut command = Command::new(&programs.rust);
    command.args(["requests", REQUESTS]);
    let said = place.result(command)?;
    results.requests = Some(Requests {
        spinning: number(&said, "spinning")?,
        futures: number(&said, "futures")?,
        actors: number(&said, "actors")?,
    });
    spinner.finish_and_clear();
    Ok(())
}
