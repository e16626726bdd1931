//! The harness keeps its own promises. No device is needed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Runs `a_passing_test_passes` of this program with some environment.
fn run_helper(variables: &[(&str, &str)]) -> Result<std::process::Output> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "a_passing_test_passes", "--nocapture"]);
    for (name, value) in variables {
        command.env(name, value);
    }
    Ok(command.output()?)
}

/// Also what the tests below start with something else to do, to see how it ends.
#[test]
fn a_passing_test_passes() {
    let what = std::env::var("EFA_TEST_HELPER").unwrap_or_default();
    let deadline = Duration::from_secs(if what == "hang" { 1 } else { 60 });
    efa_tests::here()
        .deadline(deadline)
        .run(|t| match what.as_str() {
            "hang" => loop {
                std::thread::park();
            },
            "fail" => anyhow::bail!("it went wrong"),
            "panic" => panic!("it panicked"),
            "skip" => Err(efa_tests::skip("no reason\tat all")),
            _ => {
                ensure!(t.role() == "main");
                Ok(())
            }
        });
}

#[test]
fn a_hanging_test_is_ended_at_its_deadline() -> Result<()> {
    let output = helper_with("hang")?;
    ensure!(!output.status.success());
    let text = text(&output);
    ensure!(text.contains("did not end within 1s"), "{text}");
    Ok(())
}

#[test]
fn a_failing_test_shows_why_and_its_seed() -> Result<()> {
    for (what, why) in [("fail", "it went wrong"), ("panic", "it panicked")] {
        let output = run_helper(&[("EFA_TEST_HELPER", what), ("EFA_TEST_SEED", "77")])?;
        let text = text(&output);
        ensure!(!output.status.success(), "{what}: {text}");
        ensure!(
            text.contains(why) && text.contains("EFA_TEST_SEED=77"),
            "{text}"
        );
    }
    Ok(())
}

#[test]
fn a_skipped_test_leaves_its_reason() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_string_lossy().into_owned();
    let output = run_helper(&[("EFA_TEST_HELPER", "skip"), ("EFA_TEST_SKIPS", &path)])?;
    ensure!(output.status.success(), "{}", text(&output));
    let noted = std::fs::read_to_string(file.path())?;
    ensure!(
        noted == "a_passing_test_passes\tno reason at all\n",
        "{noted:?}"
    );
    Ok(())
}

#[test]
fn a_spawned_process_plays_its_role_and_talks_to_its_test() {
    efa_tests::run(|t| match t.role() {
        "main" => {
            let child = t.spawn_index("echo", 3)?;
            child.channel().send(&vec![1u32, 2, 3])?;
            let (index, sum): (u32, u32) = child.channel().recv()?;
            ensure!((index, sum) == (3, 6));
            child.finish()
        }
        "echo" => {
            let numbers: Vec<u32> = t.parent().recv()?;
            t.parent().send(&(t.index(), numbers.iter().sum::<u32>()))
        }
        role => anyhow::bail!("{role}?"),
    });
}

#[test]
fn a_process_that_fails_fails_its_test_with_its_output() {
    efa_tests::run(|t| match t.role() {
        "main" => {
            let child = t.spawn("failing")?;
            let error = child.finish().unwrap_err().to_string();
            ensure!(error.contains("as it was told"), "{error}");
            Ok(())
        }
        _ => anyhow::bail!("fails as it was told"),
    });
}

fn helper_with(what: &str) -> Result<std::process::Output> {
    run_helper(&[("EFA_TEST_HELPER", what)])
}

fn text(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn every_test_that_the_readme_names_exists() -> Result<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(folder.join("../README.md"))?;
    let rows = readme
        .lines()
        .skip_while(|line| !line.starts_with("| feature | proved by"))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut named = 0;
    for row in rows {
        let proofs = row.split('|').nth(2).unwrap_or_default();
        // What stands between backquotes, at the odd places.
        for proof in proofs.split('`').skip(1).step_by(2) {
            named += 1;
            let (file, test) = proof.rsplit_once("::").unwrap_or((proof, ""));
            // A module of a program has a file of its own.
            let file = &file.replace("::", "/");
            let tests = folder.join("tests");
            let text = std::fs::read_to_string(tests.join(format!("{file}.rs")))
                .or_else(|_| std::fs::read_to_string(tests.join(file).join("main.rs")))
                .with_context(|| format!("the README names {proof}"))?;
            ensure!(
                test.is_empty() || text.contains(&format!("fn {test}(")),
                "the README names {proof}"
            );
        }
    }
    ensure!(named >= 20, "only {named} tests are named");
    Ok(())
}
