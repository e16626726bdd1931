//! `cargo xtask ci`: what a change must pass.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::test::{self, Tally, Test, Times};
use crate::{bench, build, process, public_api, rdma_core};

/// A check that is one run of cargo.
struct Check {
    name: &'static str,
    cargo: &'static [&'static str],
}

const CHECKS: [Check; 3] = [
    Check {
        name: "format",
        cargo: &["fmt", "--all", "--check"],
    },
    Check {
        name: "clippy",
        cargo: &[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-features",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
    },
    Check {
        name: "documentation",
        cargo: &[
            "doc",
            "--quiet",
            "--workspace",
            "--all-features",
            "--no-deps",
            "--document-private-items",
        ],
    },
];

/// Runs the stages, all of them even if an early one fails, and adds them up.
pub fn run() -> Result<ExitCode> {
    let mut times = Times::default();
    test::install_needed()?;
    let rdma_core = test::stage("rdma-core", &mut times, || {
        rdma_core::resolve(rdma_core::Choice::Auto)
    })?;
    let mut tally = Tally::default();
    for check in &CHECKS {
        let mut command = build::cargo();
        command.args(check.cargo).env("RUSTDOCFLAGS", "-D warnings");
        rdma_core.apply(&mut command);
        tally.add(run_check(check.name, &mut command, &mut times)?);
    }
    tally.add(test::stage("public-api", &mut times, || {
        Ok(Tally::check("public-api", public_api::check()))
    })?);
    tally.add(test::all(&Test::default(), &mut times)?);
    tally.add_or_fail(
        "tests in a virtual machine",
        test::short_vm(&rdma_core, &mut times),
    );
    tally.add(test::stage("budgets", &mut times, || {
        Ok(Tally::check("budgets", bench::within_budgets()))
    })?);
    Ok(test::close(&tally, &times))
}

fn run_check(name: &str, command: &mut Command, times: &mut Times) -> Result<Tally> {
    test::stage(name, times, || {
        Ok(Tally::check(name, process::run(command)))
    })
}
