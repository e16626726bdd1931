//! `cargo xtask test`: every kind of test, added up into one closing line.

mod bounded;
mod foreign;
mod libtest;
mod programs;
mod pyverbs;
mod shims;
mod tally;
mod unittest;
mod virtual_machine;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use crate::rdma_core::{self, Choice};
use crate::{build, hardware, kernel_diff, packages, process, source};
pub use tally::{Tally, Times};
use virtual_machine::Which;

/// What follows `cargo xtask test`.
#[derive(Args, Default)]
pub struct Test {
    /// Run the integration tests on a real EFA device instead; fails if there is none.
    #[arg(long)]
    hardware: bool,
    /// For how long random calls and packets are tried, 1 minute unless said otherwise; with the
    /// name `fuzz`, nothing else is run.
    #[arg(long, value_name = "MINUTES", conflicts_with = "hardware")]
    fuzz: Option<u32>,
    /// Run only the test programs whose name contains this; with the name `vm`, the integration
    /// tests in a virtual machine, on the real EFA driver.
    #[arg(value_name = "NAME")]
    only: Option<String>,
    /// After `vm`: only the test programs whose name contains this.
    #[arg(value_name = "PROGRAM", conflicts_with = "hardware")]
    program: Option<String>,
}

/// What `test` needs beside what building rdma-core needs.
const NEEDED: [packages::Package; 5] = [
    packages::PIP,
    packages::LIBIBVERBS,
    packages::IBVERBS_UTILS,
    packages::VALGRIND,
    packages::IPROUTE,
];

/// Programs of others that are run on soft-efa, as far as they are there.
const WANTED: [packages::Package; 2] = [packages::PERFTEST, packages::LIBFABRIC];

/// Makes sure that the system has what the tests use.
pub fn install_needed() -> Result<()> {
    packages::ensure(&[&rdma_core::needed(Choice::Auto)[..], &NEEDED].concat())?;
    packages::wish(&[&pyverbs::NEEDED[..], &WANTED].concat());
    Ok(())
}

/// Runs the tests and prints the closing line.
pub fn run(arguments: &Test) -> Result<ExitCode> {
    let mut times = Times::default();
    let tally = all(arguments, &mut times)?;
    Ok(close(&tally, &times))
}

/// Prints what did not pass, the times and, last of all, the counts.
pub fn close(tally: &Tally, times: &Times) -> ExitCode {
    println!("\n{}", times.table());
    let details = tally.details();
    if !details.is_empty() {
        println!("{details}");
    }
    println!("{}", tally.summary());
    if tally.failed.is_empty() && tally.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the tests and adds them up.
pub fn all(arguments: &Test, times: &mut Times) -> Result<Tally> {
    if arguments.hardware {
        let devices = hardware::require()?;
        println!("EFA devices: {}", devices.join(", "));
    } else {
        install_needed()?;
    }
    let rdma_core = stage("rdma-core", times, || rdma_core::resolve(Choice::Auto))?;
    println!("testing on {}", rdma_core.described());
    let mut tally = Tally::default();
    let only = arguments.only.as_deref();
    if arguments.hardware {
        let result = programs::on_hardware(&rdma_core, only, times);
        tally.add_or_fail("test programs", result);
        return Ok(tally);
    }
    if only == Some(virtual_machine::NAME) {
        let which = arguments
            .program
            .as_deref()
            .map_or(Which::All, Which::Named);
        return virtual_machine::run(&rdma_core, which, times);
    }
    anyhow::ensure!(
        arguments.program.is_none(),
        "a second name goes with `vm` only"
    );
    let fuzz = Duration::from_secs(60) * arguments.fuzz.unwrap_or(1);
    let result = programs::on_software(&rdma_core, only, fuzz, times);
    tally.add_or_fail("test programs", result);
    let mut add = |name: &str, work: &dyn Fn() -> Result<Tally>| {
        tally.add_or_fail(name, stage(name, times, work));
    };
    if only.is_none_or(|only| foreign::NAME.contains(only)) {
        add("foreign programs", &|| {
            foreign::run(&rdma_core, &build::preload()?)
        });
    }
    if only.is_none_or(|only| kernel_diff::NAME.contains(only)) {
        add(kernel_diff::NAME, &|| Ok(kernel_diff::check()));
    }
    if only.is_some() {
        return Ok(tally);
    }
    add("the system's rdma-core", &|| {
        programs::on_system(&rdma_core)
    });
    add("doc tests", &|| Ok(programs::doc_tests(&rdma_core)));
    add("C shims", &|| shims::check(&rdma_core));
    add("generated bindings", &|| {
        Ok(Tally::check("regenerate --check", regenerate_check()))
    });
    Ok(tally)
}

/// A few of the integration tests in a virtual machine; skipped where there can be none.
pub fn short_vm(rdma_core: &rdma_core::RdmaCore, times: &mut Times) -> Result<Tally> {
    virtual_machine::run(rdma_core, Which::Short, times)
}

/// Runs a stage and notes its time, under a heading.
pub fn stage<T>(name: &str, times: &mut Times, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("\n=== {name}");
    let started = Instant::now();
    let result = work().with_context(|| format!("the stage \"{name}\" could not be run"));
    times.note(name, started.elapsed());
    result
}

/// In a process of its own, which is built with the generator.
fn regenerate_check() -> Result<()> {
    let mut command = build::cargo();
    command.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "regenerate",
    ]);
    command.args(["--", "regenerate", "--check"]);
    // The bindings are those of the pinned release, whatever is tested on.
    command.env_remove(source::OTHER);
    let ended = bounded::run("regenerate --check", &mut command, Duration::from_secs(900))?;
    anyhow::ensure!(
        ended.success(),
        "{}: {}",
        ended.described(),
        process::tail(&ended.stderr, 20)
    );
    print!("{}", ended.stdout);
    Ok(())
}
