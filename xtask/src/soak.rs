//! `cargo xtask soak`: for hours what the tests do for a minute.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use soft_efa::options::Options;

use crate::build::{self, Artifact};
use crate::rdma_core::{self, Choice, RdmaCore};
use crate::soft_efa::Software;
use crate::{passthrough, test};

/// What follows `cargo xtask soak`.
#[derive(Args)]
pub struct Soak {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Random operations and faults between processes on soft-efa.
    Chaos {
        /// For how long.
        #[arg(long, value_name = "N", default_value_t = 60)]
        minutes: u64,
        /// Seeds every random decision; the interleaving of the processes is the machine's.
        #[arg(long, value_name = "S", default_value_t = 1)]
        seed: u64,
    },
    /// Eight senders of immediates to one slow receiver on soft-efa: none may be lost.
    Immediates {
        /// Immediates of each sender.
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        count: u64,
    },
    /// The transport's parts without input and output: each case is a seed that replays exactly.
    Pure {
        /// How many cases of the scheduler's harness and of each handshake test; a million takes
        /// about half an hour.
        #[arg(long, value_name = "N", default_value_t = 3_000_000)]
        cases: u64,
        /// The first seed.
        #[arg(long, value_name = "S", default_value_t = 0)]
        seed: u64,
    },
}

/// The tests that have no device, no clock and no threads, by the beginnings of their names.
const PURE: [&str; 3] = [
    "handshake::tests::bytes::",
    "handshake::tests::pair::",
    "scheduler::",
];

/// Does what the command line says.
pub fn run(arguments: &Soak) -> Result<ExitCode> {
    test::install_needed()?;
    let rdma_core = rdma_core::resolve(Choice::Auto)?;
    match arguments.what {
        What::Chaos { minutes, seed } => chaos(&rdma_core, minutes, seed),
        What::Immediates { count } => immediates(&rdma_core, count),
        What::Pure { cases, seed } => pure(&rdma_core, cases, seed),
    }
}

fn chaos(rdma_core: &RdmaCore, minutes: u64, seed: u64) -> Result<ExitCode> {
    let (seconds, seed) = ((minutes * 60).to_string(), seed.to_string());
    on_software(rdma_core, "chaos", &[], |command| {
        command
            .env("EFA_TEST_CHAOS_SECONDS", seconds)
            .env("EFA_TEST_SEED", seed);
    })
}

fn immediates(rdma_core: &RdmaCore, count: u64) -> Result<ExitCode> {
    let tests = ["a_slow_receiver_of_eight_senders"];
    on_software(rdma_core, "immediates", &tests, |command| {
        command.env("EFA_TEST_IMMEDIATES", count.to_string());
    })
}

/// Runs a program of the integration tests, or some of its tests, on soft-efa.
fn on_software(
    rdma_core: &RdmaCore,
    program: &str,
    tests: &[&str],
    change: impl FnOnce(&mut Command),
) -> Result<ExitCode> {
    let which = [
        "--package",
        "efa-tests",
        "--test",
        program,
        "--all-features",
    ];
    let program = built(rdma_core, &which)?;
    let software = Software::new(&Options::default(), Some(rdma_core))?;
    let mut command = Command::new(&program.file);
    command
        .current_dir(&program.package)
        .arg("--nocapture")
        .args(tests);
    build::clean(&mut command);
    software.apply(&mut command)?;
    change(&mut command);
    let status = passthrough::run(&mut command)?;
    drop(software);
    Ok(passthrough::end_like(status))
}

fn pure(rdma_core: &RdmaCore, cases: u64, seed: u64) -> Result<ExitCode> {
    // Optimised, and with all checks.
    let program = built(
        rdma_core,
        &[
            "--package",
            "efa-transport",
            "--lib",
            "--all-features",
            "--profile",
            "preload",
        ],
    )?;
    let mut command = Command::new(&program.file);
    command.current_dir(&program.package).args(PURE);
    build::clean(&mut command);
    rdma_core.apply(&mut command);
    command
        .env("EFA_HARNESS_CASES", cases.to_string())
        .env("EFA_HARNESS_FIRST", seed.to_string())
        .env("EFA_FUZZ_CASES", cases.to_string())
        // The others are small and cheap to search, and their cases are long.
        .env("PROPTEST_CASES", (cases / 100).max(256).to_string());
    let status = passthrough::run(&mut command)?;
    Ok(passthrough::end_like(status))
}

fn built(rdma_core: &RdmaCore, which: &[&str]) -> Result<Artifact> {
    let arguments = [&["test", "--no-run"], which].concat();
    build::artifacts(Some(rdma_core), &arguments)?
        .into_iter()
        .find(|artifact| artifact.test)
        .context("cargo built the tests and named no program")
}
