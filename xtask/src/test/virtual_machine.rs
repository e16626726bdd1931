//! `cargo xtask test vm`: the integration tests in a virtual machine, on the real EFA driver.

use std::time::{Duration, Instant};

use anyhow::Result;
use soft_efa::launch::{HOST_VAR, OPTIONS_VAR};
use soft_efa::options::Options;

use super::bounded::Ended;
use super::programs::{self, LIMIT, SKIPS_VAR};
use super::{Tally, Times, stage};
use crate::build::Artifact;
use crate::process;
use crate::rdma_core::RdmaCore;
use crate::vm::{self, Event, Guest, KernelChoice, Parts, Program};

/// What the stage is called.
pub const NAME: &str = "vm";

/// The programs that need no device, or are about soft-efa's way into a process: nothing in them
/// would be different in a virtual machine.
const ELSEWHERE: [(&str, &str); 8] = [
    ("compile_fail", "it runs the compiler, on no device"),
    (
        "examples",
        "it builds programs and runs them on soft-efa's library",
    ),
    ("foreign", "it runs programs on soft-efa's library"),
    ("harness", "it is about the tests' own harness"),
    (
        "namespaces",
        "network namespaces separate processes with soft-efa's library in them",
    ),
    (
        "programs",
        "it builds and runs programs on soft-efa's library",
    ),
    ("valgrind", "valgrind in an emulated machine takes too long"),
    ("versions", "it is about which libraries are loaded"),
];

/// The programs of a short run: data both ways, events, memory of all kinds, and errors.
const SHORT: [&str; 5] = ["channel", "memory", "put_get", "statuses", "verbs"];

/// Which tests are run.
#[derive(Clone, Copy)]
pub enum Which<'a> {
    /// All that make sense.
    All,
    /// The programs whose name contains this.
    Named(&'a str),
    /// A few.
    Short,
}

/// Slots for devices: as many as a test asks for at most.
const SLOTS: u32 = 16;

/// Runs them. Where there can't be a virtual machine, a short run is skipped, with the reason.
pub fn run(rdma_core: &RdmaCore, which: Which<'_>, times: &mut Times) -> Result<Tally> {
    let mut tally = Tally::default();
    let parts = stage("parts of a virtual machine", times, || {
        Parts::resolve(KernelChoice::default())
    });
    let parts = match (parts, which) {
        (Ok(parts), _) => parts,
        (Err(error), Which::Short) => {
            let name = "tests in a virtual machine".to_owned();
            tally.skipped.push((name, format!("{error:#}")));
            return Ok(tally);
        }
        (Err(error), _) => return Err(error),
    };
    let compiled = stage("build the tests", times, || {
        programs::compile(rdma_core, &["--package", "efa-tests"])
    })?;
    let chosen: Vec<&Artifact> = compiled
        .iter()
        .filter(|program| program.kind == "test")
        .filter(|program| match which {
            Which::All => true,
            Which::Named(name) => program.target.contains(name),
            Which::Short => SHORT.contains(&&*program.target),
        })
        .collect();
    tally.add(stage(
        "integration tests on the real driver",
        times,
        || in_guest(rdma_core, &parts, &chosen),
    )?);
    Ok(tally)
}

fn in_guest(rdma_core: &RdmaCore, parts: &Parts, chosen: &[&Artifact]) -> Result<Tally> {
    let options = Options {
        devices: SLOTS,
        ..Options::default()
    };
    let mut machine = vm::boot(parts, &options)?;
    println!("Linux {} is up", parts.release());
    let mut tally = Tally::default();
    for program in chosen {
        let name = format!("{} (real driver)", programs::label(program));
        let elsewhere = ELSEWHERE
            .iter()
            .find(|(target, _)| *target == program.target);
        if let Some((_, reason)) = elsewhere {
            tally.skipped.push((name, (*reason).to_owned()));
            continue;
        }
        let skips = format!("/run/skips-{}", program.target);
        let mut command = rdma_core.program(&program.file, &program.package);
        command
            .args(["--test-threads=1"])
            .env(HOST_VAR, vm::ASK_SOCKET)
            .env(OPTIONS_VAR, Options::default().to_string())
            .env("EFA_TEST_HARDWARE", "1")
            .env("EFA_TEST_SLOWDOWN", "4")
            .env(SKIPS_VAR, &skips);
        let spinner = process::spinner(&name);
        let ended = to_end(&mut machine.guest, &vm::program_of(&command)?, LIMIT);
        spinner.finish_and_clear();
        let ended = ended?;
        let mut cat = std::process::Command::new("cat");
        cat.arg(&skips).current_dir("/");
        // Without a skip there is no such file.
        let notes = to_end(&mut machine.guest, &vm::program_of(&cat)?, LIMIT)?.stdout;
        let one = programs::judge(&name, &ended, &notes);
        programs::report(&name, &ended, &one);
        tally.add(one);
    }
    Ok(tally)
}

/// Runs a program to its end, or to that of its time.
fn to_end(guest: &mut Guest, program: &Program, limit: Duration) -> Result<Ended> {
    let started = Instant::now();
    let id = guest.start(program)?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut killed = false;
    loop {
        match guest.next(Duration::from_millis(500))? {
            Some((other, _)) if other != id => {}
            Some((_, Event::Output(bytes))) => stdout.extend(bytes),
            Some((_, Event::Error(bytes))) => stderr.extend(bytes),
            Some((_, Event::Failed(why))) => anyhow::bail!("in the guest: {why}"),
            Some((_, Event::Ended(status))) => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return Ok(Ended {
                    status: (!killed).then_some(status),
                    stdout: text(stdout),
                    stderr: text(stderr),
                    time: started.elapsed(),
                });
            }
            None => {}
        }
        if !killed && started.elapsed() > limit {
            killed = true;
            guest.signal(id, libc::SIGKILL)?;
        }
    }
}
