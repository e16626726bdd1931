//! Programs of rdma-core itself, which know nothing of this project: its EFA tests, and those that
//! show devices, run on soft-efa with the same libraries as everything else.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use soft_efa::launch::Run;
use soft_efa::options::{Abi, Options};

use super::bounded::{self, Ended};
use super::pyverbs::{self, Pyverbs};
use super::{Tally, unittest};
use crate::process;
use crate::rdma_core::RdmaCore;

/// What the suite is called, for choosing it.
pub const NAME: &str = "foreign";

/// The test modules that are about EFA.
const MODULES: [&str; 2] = ["tests.test_efa_srd", "tests.test_efadv"];

/// How many tests the pinned release has in them.
const PINNED_COUNT: usize = 20;

const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Runs them all.
pub fn run(rdma_core: &RdmaCore, preload: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    for (arguments, expected) in [
        (&["ibv_devices"][..], &["efa_0", "node GUID"][..]),
        (
            &["ibv_devinfo", "-v"],
            &["hca_id:\tefa_0", "PORT_ACTIVE", "GID[  0]"],
        ),
    ] {
        let name = format!("{NAME}: {}", arguments.join(" "));
        let result = shows(&name, arguments, expected, rdma_core, preload);
        tally.add(Tally::check(&name, result));
    }
    let missing: Vec<_> = pyverbs::NEEDED
        .iter()
        .filter(|package| !package.present())
        .map(|package| package.name())
        .collect();
    if !missing.is_empty() {
        let reason = format!("packages are missing: {}", missing.join(" "));
        tally
            .skipped
            .push((format!("{NAME}: rdma-core's EFA tests"), reason));
        return Ok(tally);
    }
    let modules = pyverbs::build().context("the Python modules could not be built")?;
    for abi in [Abi::Ioctl, Abi::Write] {
        tally.add(efa_tests(&modules, abi, rdma_core, preload)?);
    }
    println!("{}", tally.summary());
    Ok(tally)
}

/// Runs `command` on a device of its own.
fn on_device(
    name: &str,
    command: &mut Command,
    options: &Options,
    rdma_core: &RdmaCore,
    preload: &Path,
) -> Result<Ended> {
    rdma_core.apply(command);
    let run = Run::new(options, preload)?;
    run.apply(command)?;
    let spinner = process::spinner(name);
    let ended = bounded::run(name, command, LIMIT);
    spinner.finish_and_clear();
    ended
}

fn shows(
    name: &str,
    arguments: &[&str],
    expected: &[&str],
    rdma_core: &RdmaCore,
    preload: &Path,
) -> Result<()> {
    let program = match &rdma_core.prefix {
        Some(prefix) => prefix.join("bin").join(arguments[0]),
        None => arguments[0].into(),
    };
    let mut command = Command::new(program);
    command.args(&arguments[1..]);
    let options = Options::default();
    let ended = on_device(name, &mut command, &options, rdma_core, preload)?;
    ensure!(ended.success(), "{}\n{}", ended.described(), ended.output());
    for text in expected {
        ensure!(
            ended.stdout.contains(text),
            "{text:?} is not in\n{}",
            ended.stdout
        );
    }
    Ok(())
}

fn efa_tests(modules: &Pyverbs, abi: Abi, rdma_core: &RdmaCore, preload: &Path) -> Result<Tally> {
    let version = &modules.tree.version;
    let name = match abi {
        Abi::Ioctl => format!("{NAME}: rdma-core {version}'s EFA tests"),
        // Without what has no such command, the query of a memory region: that test is skipped.
        Abi::Write => format!("{NAME}: rdma-core {version}'s EFA tests by written commands"),
    };
    let options = Options {
        abi,
        ..Options::default()
    };
    let mut command = Command::new(modules.python);
    command
        .current_dir(&modules.tree.path)
        .args(["tests/run_tests.py", "-v"])
        .args(MODULES)
        .env("PYTHONPATH", &modules.modules)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let ended = on_device(&name, &mut command, &options, rdma_core, preload)?;
    let least = if modules.tree.pinned { PINNED_COUNT } else { 1 };
    let tally = judge(&name, &ended, least);
    if !tally.failed.is_empty() {
        println!("{}", ended.output());
    }
    Ok(tally)
}

fn judge(name: &str, ended: &Ended, least: usize) -> Tally {
    let report = unittest::parse(&ended.stderr);
    let mut tally = Tally {
        passed: report.passed.len(),
        ..Tally::default()
    };
    for (test, why) in report.failed {
        tally.fail(format!("{name}: {test}"), why);
    }
    for (test, why) in report.skipped {
        tally.skipped.push((format!("{name}: {test}"), why));
    }
    let counted = tally.passed + tally.failed.len() + tally.skipped.len();
    match report.ran {
        None => tally.fail(
            name,
            format!("did not come to its end: {}", ended.described()),
        ),
        Some(ran) if ran < least || ran != counted => tally.fail(
            name,
            format!("{ran} tests were run, {least} expected, {counted} understood"),
        ),
        Some(_) if !ended.success() && tally.failed.is_empty() => {
            tally.fail(
                name,
                format!("all tests passed, then: {}", ended.described()),
            );
        }
        Some(_) => {}
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn judged(raw: i32, stderr: &str, least: usize) -> String {
        let ended = Ended {
            status: Some(ExitStatus::from_raw(raw)),
            stdout: String::new(),
            stderr: stderr.to_owned(),
            time: Duration::from_secs(1),
        };
        judge("p", &ended, least).summary()
    }

    const GOOD: &str = "test_a (t.A.test_a) ... ok\n\nRan 1 test in 0.1s\n\nOK\n";

    #[test]
    fn fewer_tests_than_there_must_be_are_a_failure() {
        assert_eq!(judged(0, GOOD, 1), "1 passed, 0 failed, 0 skipped");
        assert_eq!(judged(0, GOOD, 2), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_crash_is_a_failure() {
        assert_eq!(judged(11, GOOD, 1), "1 passed, 1 failed, 0 skipped");
        let cut = "test_a (t.A.test_a) ... ok\n";
        assert_eq!(judged(11, cut, 1), "1 passed, 1 failed, 0 skipped");
    }
}
