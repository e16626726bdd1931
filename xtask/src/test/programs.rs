//! Test programs: unit, integration and compile-fail tests, and doc tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use soft_efa::launch::{PRELOAD_VAR, Run};
use soft_efa::options::Options;

use super::bounded::{self, Ended};
use super::{Tally, Times, libtest, stage};
use crate::build::{self, Artifact};
use crate::rdma_core::{self, Choice, RdmaCore};
use crate::{process, workspace};

/// A program that takes longer than this hangs. The slowest one takes some two minutes.
pub(super) const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Names a file to which a test that can't run here appends `NAME<TAB>REASON`.
pub(super) const SKIPS_VAR: &str = "EFA_TEST_SKIPS";

/// The packages whose tests use an EFA device.
const NEED_DEVICE: [&str; 4] = ["efa-sys", "efa-verbs", "efa-transport", "tests"];

/// The packages that are tested with the system's rdma-core as well.
const ON_SYSTEM: [&str; 2] = ["efa-sys", "efa-verbs"];

/// The programs that are run a second time through libefa, where the direct path is the first
/// choice: what they claim has to hold on both.
const ON_BOTH_PATHS: [&str; 21] = [
    "channel",
    "errors",
    "faults",
    "faulty",
    "handshake",
    "huge",
    "immediates",
    "life",
    "operations",
    "outstanding",
    "ownership",
    "pages",
    "peers",
    "put_get",
    "receiving",
    "restart",
    "sleeping",
    "soundness",
    "statuses",
    "variants",
    "verbs",
];

/// Decides which of the two paths is taken.
const PATH_VAR: &str = "EFA_DATA_PATH";

/// The first release whose queues can be seen, so that the direct path exists.
const FIRST_WITH_DIRECT: u32 = 59;

/// The package whose loops of random calls and packets run for a time that can be chosen, and what
/// the names of those tests have in them.
const FUZZED: (&str, &str) = ("soft-efa", "fuzz::");

/// What the stage of those loops is called.
const FUZZ: &str = "fuzz";

/// The test that runs the compiler, which needs no device.
const COMPILE_FAIL: &str = "compile_fail";

/// How a test program is run.
#[derive(Clone, Copy, Default)]
struct How<'a> {
    /// soft-efa; without it the devices are those that there are.
    preload: Option<&'a Path>,
    /// The data path, if not the first choice.
    path: Option<&'a str>,
    /// How long loops of random input run, and nothing but them.
    fuzz: Option<Duration>,
}

/// Builds and runs all test programs, those that use a device each in a run of its own. The loops of
/// random input run together for `fuzz`.
pub fn on_software(
    rdma_core: &RdmaCore,
    only: Option<&str>,
    fuzz: Duration,
    times: &mut Times,
) -> Result<Tally> {
    let preload = stage("build soft-efa", times, build::preload)?;
    let programs = stage("build the tests", times, || {
        compile(rdma_core, &["--workspace"])
    })?;
    let how = How {
        preload: Some(&preload),
        ..How::default()
    };
    let mut tally = Tally::default();
    for (heading, integration) in [("unit tests", false), ("integration tests", true)] {
        tally.add(stage(heading, times, || {
            let mut tally = Tally::default();
            let chosen = programs
                .iter()
                .filter(|program| (program.kind == "test") == integration)
                .filter(|program| only.is_none_or(|only| label(program).contains(only)));
            for program in chosen {
                tally.add(run_one(program, rdma_core, how)?);
            }
            Ok(tally)
        })?);
    }
    let fuzzed = programs
        .iter()
        .filter(|program| is_fuzzed(program))
        .filter(|program| {
            only.is_none_or(|only| FUZZ.contains(only) || label(program).contains(only))
        });
    for program in fuzzed {
        let fuzz = Some(fuzz);
        tally.add(stage(FUZZ, times, || {
            run_one(program, rdma_core, How { fuzz, ..how })
        })?);
    }
    if rdma_core.major() >= FIRST_WITH_DIRECT {
        tally.add(stage("integration tests through libefa", times, || {
            through_libefa(&programs, rdma_core, only, &preload)
        })?);
    }
    Ok(tally)
}

fn through_libefa(
    programs: &[Artifact],
    rdma_core: &RdmaCore,
    only: Option<&str>,
    preload: &Path,
) -> Result<Tally> {
    let mut tally = Tally::default();
    for name in ON_BOTH_PATHS {
        let found = programs
            .iter()
            .find(|program| program.kind == "test" && program.target == name);
        let Some(program) = found else {
            tally.fail(name, "there is no such test program");
            continue;
        };
        if only.is_none_or(|only| label(program).contains(only)) {
            let how = How {
                preload: Some(preload),
                path: Some("libefa"),
                ..How::default()
            };
            tally.add(run_one(program, rdma_core, how)?);
        }
    }
    Ok(tally)
}

/// Runs the integration tests on the devices that the machine has.
pub fn on_hardware(rdma_core: &RdmaCore, only: Option<&str>, times: &mut Times) -> Result<Tally> {
    let programs = stage("build the tests", times, || {
        compile(rdma_core, &["--package", "efa-tests"])
    })?;
    stage("integration tests on hardware", times, || {
        let mut tally = Tally::default();
        let chosen = programs
            .iter()
            .filter(|program| program.kind == "test" && program.target != COMPILE_FAIL)
            .filter(|program| only.is_none_or(|only| label(program).contains(only)));
        for program in chosen {
            tally.add(run_one(program, rdma_core, How::default())?);
        }
        Ok(tally)
    })
}

/// Runs the tests of the lower crates once more, built against the system's rdma-core. It may be
/// older than what the crates are mostly used with, and they promise to work with it.
pub fn on_system(tested: &RdmaCore) -> Result<Tally> {
    let mut tally = Tally::default();
    if tested.prefix.is_none() {
        // It is what everything has just run on.
        return Ok(tally);
    }
    let system = match rdma_core::resolve(Choice::System) {
        Ok(system) => system,
        Err(error) => {
            let name = "the lower crates on the system's rdma-core".to_owned();
            tally.skipped.push((name, format!("{error:#}")));
            return Ok(tally);
        }
    };
    let preload = build::preload()?;
    // A target folder of its own, or each run would build everything twice.
    let target = workspace::target().join("system-rdma-core");
    let target = target.to_string_lossy();
    let mut which = vec!["--target-dir", &*target];
    for package in ON_SYSTEM {
        which.extend(["--package", package]);
    }
    let how = How {
        preload: Some(&preload),
        ..How::default()
    };
    for program in compile(&system, &which)? {
        tally.add(run_one(&program, &system, how)?);
    }
    Ok(tally)
}

pub(super) fn compile(rdma_core: &RdmaCore, which: &[&str]) -> Result<Vec<Artifact>> {
    let mut arguments = vec!["test", "--no-run", "--all-features"];
    arguments.extend(which);
    let made = build::artifacts(Some(rdma_core), &arguments)?;
    let mut programs: Vec<_> = made.into_iter().filter(|made| made.test).collect();
    programs.sort_by_key(label);
    Ok(programs)
}

pub(super) fn label(program: &Artifact) -> String {
    let package = program.package_name();
    match &*program.kind {
        "test" => format!("{package}: {}", program.target),
        "bin" => format!("{package} (program {})", program.target),
        "example" => format!("{package} (example {})", program.target),
        _ => package,
    }
}

/// Whether the program has loops of random input among its tests.
fn is_fuzzed(program: &Artifact) -> bool {
    program.package_name() == FUZZED.0 && program.kind == "lib"
}

fn run_one(program: &Artifact, rdma_core: &RdmaCore, how: How<'_>) -> Result<Tally> {
    let mut name = label(program);
    if let Some(path) = how.path {
        name += &format!(" (through {path})");
    }
    if how.fuzz.is_some() {
        name += " (random calls and packets)";
    }
    if rdma_core.prefix.is_none() {
        name += &format!(" (the system's rdma-core {})", rdma_core.version);
    }
    let mut command = Command::new(&program.file);
    command.current_dir(&program.package);
    build::clean(&mut command);
    // What a test that runs cargo itself, or reads its package's files, goes by.
    command.env("CARGO_MANIFEST_DIR", &program.package);
    rdma_core.apply(&mut command);
    let needs_device =
        NEED_DEVICE.contains(&&*program.package_name()) && program.target != COMPILE_FAIL;
    let mut limit = LIMIT;
    if let Some(time) = how.fuzz {
        // All at once, each for the whole time.
        command.args([FUZZED.1, "--test-threads=16"]);
        command.env("EFA_FUZZ_SECONDS", time.as_secs().to_string());
        limit += time;
    } else if is_fuzzed(program) {
        command.args(["--skip", FUZZED.1]);
    }
    let run = match how.preload {
        Some(preload) if needs_device => {
            let run = Run::new(&Options::default(), preload)?;
            run.apply(&mut command)?;
            Some(run)
        }
        Some(preload) => {
            command.env(PRELOAD_VAR, preload);
            None
        }
        None => {
            command.env("EFA_TEST_HARDWARE", "1");
            None
        }
    };
    if let Some(path) = how.path {
        command.env(PATH_VAR, path);
    }
    let skips = fresh_file(&name)?;
    command.env(SKIPS_VAR, &skips);
    let spinner = process::spinner(&name);
    let ended = bounded::run(&name, &mut command, limit);
    spinner.finish_and_clear();
    drop(run);
    let ended = ended?;
    let notes =
        fs::read_to_string(&skips).with_context(|| format!("can't read {}", skips.display()))?;
    let tally = judge(&name, &ended, &notes);
    report(&name, &ended, &tally);
    Ok(tally)
}

/// An empty file for the skips of one program.
fn fresh_file(name: &str) -> Result<PathBuf> {
    let dir = workspace::target().join("xtask/skips");
    fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let file = dir.join(plain);
    fs::write(&file, "").with_context(|| format!("can't write {}", file.display()))?;
    Ok(file)
}

/// What came of a test program, from what it printed and how it ended.
pub(super) fn judge(name: &str, ended: &Ended, skips: &str) -> Tally {
    let report = libtest::parse(&ended.stdout);
    let mut tally = Tally {
        passed: report.passed,
        ..Tally::default()
    };
    for test in &report.failed {
        tally.fail(format!("{name}: {test}"), "");
    }
    for (test, reason) in report.ignored {
        tally.skipped.push((format!("{name}: {test}"), reason));
    }
    tally.move_skips(name, skips);
    if report.summaries == 0 {
        if ended.success() {
            // A program without the harness: its exit status is the one result.
            tally.passed += 1;
        } else {
            tally.fail(
                name,
                format!("did not come to its end: {}", ended.described()),
            );
        }
    } else if !ended.success() && report.failed.is_empty() {
        tally.fail(
            name,
            format!("all tests passed, then: {}", ended.described()),
        );
    }
    tally
}

pub(super) fn report(name: &str, ended: &Ended, tally: &Tally) {
    println!(
        "{name}: {} ({})",
        tally.summary(),
        process::seconds(ended.time)
    );
    if !tally.failed.is_empty() {
        println!("{}", ended.output());
    }
}

/// Runs the examples in the documentation of all crates.
pub fn doc_tests(rdma_core: &RdmaCore) -> Tally {
    let name = "doc tests";
    let mut command = build::cargo();
    command.args([
        "test",
        "--workspace",
        "--all-features",
        "--doc",
        "--no-fail-fast",
    ]);
    rdma_core.apply(&mut command);
    match bounded::run(name, &mut command, LIMIT) {
        Ok(ended) => {
            let tally = judge_docs(name, &ended);
            report(name, &ended, &tally);
            tally
        }
        Err(error) => Tally::check(name, Err(error)),
    }
}

/// Without a closing line nothing was run: no program has its word for success here.
fn judge_docs(name: &str, ended: &Ended) -> Tally {
    if ended.success() && libtest::parse(&ended.stdout).summaries == 0 {
        return Tally::default();
    }
    judge(name, ended, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn ended(raw: i32, stdout: &str) -> Ended {
        Ended {
            status: Some(ExitStatus::from_raw(raw)),
            stdout: stdout.to_owned(),
            stderr: String::new(),
            time: Duration::from_secs(1),
        }
    }

    const GOOD: &str =
        "test a ... ok\ntest b ... ok\ntest result: ok. 2 passed; 0 failed; 0 ignored\n";

    #[test]
    fn a_good_run_is_its_counts() {
        let tally = judge("p", &ended(0, GOOD), "b\tneeds root\n");
        assert_eq!(tally.summary(), "1 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_crash_is_a_failure_wherever_it_happens() {
        let early = judge("p", &ended(11, "test a ... ok\n"), "");
        assert_eq!(early.summary(), "0 passed, 1 failed, 0 skipped");
        assert!(early.details().contains("SIGSEGV"), "{}", early.details());
        let late = judge("p", &ended(11, GOOD), "");
        assert_eq!(late.summary(), "2 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_hang_is_a_failure() {
        let hung = Ended {
            status: None,
            ..ended(0, "test a ... ok\n")
        };
        assert_eq!(
            judge("p", &hung, "").summary(),
            "0 passed, 1 failed, 0 skipped"
        );
    }

    #[test]
    fn failed_tests_are_not_counted_twice() {
        let text = "test a ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n";
        let tally = judge("p", &ended(101 << 8, text), "");
        assert_eq!(tally.summary(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(tally.details(), "FAILED   p: a\n");
    }

    #[test]
    fn a_program_without_the_harness_counts_by_its_status() {
        assert_eq!(judge("p", &ended(0, "hello\n"), "").passed, 1);
        assert_eq!(judge("p", &ended(1 << 8, "hello\n"), "").failed.len(), 1);
        assert_eq!(judge_docs("docs", &ended(0, "")).passed, 0);
    }
}
