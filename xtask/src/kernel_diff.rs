//! `cargo xtask kernel-diff`: the differences between soft-efa's kernel side and a real kernel.
//!
//! A C program puts the same questions to both. The real kernel's answers were given in a guest and are
//! kept in a file, so that comparing takes a second and no guest; `--record` asks the kernel again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::test::Tally;
use crate::{packages, process, workspace};

/// What the tests call it.
pub const NAME: &str = "kernel-diff";

/// The device that is asked about; both sides have it.
const PROFILE: &str = "p5en";
/// Between a question and its answer.
const BETWEEN: &str = " = ";
/// The two ways for a command, which mostly have one answer.
const WAYS: [&str; 2] = ["invoke ", "write "];
/// What a line of the recording begins with that is about both.
const BOTH: &str = "both ";

/// What follows `cargo xtask kernel-diff`.
#[derive(Args)]
pub struct KernelDiff {
    /// Ask the real kernel, in a guest, and keep its answers.
    #[arg(long)]
    record: bool,
}

type Answers = BTreeMap<String, String>;

fn source(name: &str) -> PathBuf {
    workspace::root()
        .join("tests/soft-efa/kernel-diff")
        .join(name)
}

/// Records, or compares and prints the differences.
pub fn run(arguments: &KernelDiff) -> Result<ExitCode> {
    if arguments.record {
        record()?;
        return Ok(ExitCode::SUCCESS);
    }
    compare().map(|summary| {
        println!("{summary}");
        ExitCode::SUCCESS
    })
}

/// The comparison as a test.
pub fn check() -> Tally {
    if !process::is_root() {
        let mut tally = Tally::default();
        let reason = "some answers depend on rights, and the recorded ones were given to root";
        tally.skipped.push((NAME.into(), reason.into()));
        return tally;
    }
    Tally::check(NAME, compare().map(|summary| println!("{summary}")))
}

/// Builds the program.
fn program() -> Result<PathBuf> {
    packages::ensure(&[packages::CC])?;
    let program = workspace::target().join("kernel-diff/ask");
    fs::create_dir_all(program.parent().unwrap_or(Path::new("/")))?;
    let mut files: Vec<PathBuf> = fs::read_dir(source(""))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|end| end == "c"));
    files.sort();
    let mut command = Command::new("cc");
    command
        .args([
            "-O1",
            "-Wall",
            "-Wno-missing-field-initializers",
            "-Wno-psabi",
        ])
        .arg("-o")
        .arg(&program)
        .args(files);
    process::run(&mut command)?;
    Ok(program)
}

/// A command of this program itself.
fn ours(arguments: &[&str], program: &Path) -> Result<String> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(arguments)
        .args(["--profile", PROFILE, "--", "sh", "-c"])
        .arg(format!("uname -r && exec {}", program.display()));
    process::output(&mut command)
}

fn record() -> Result<()> {
    let output = ours(&["vm"], &program()?)?;
    let (release, lines) = output.split_once('\n').context("the guest said nothing")?;
    let answers = parse(lines)?;
    let mut parts = release.split('.');
    let series = [parts.next(), parts.next()].map(Option::unwrap_or_default);
    let file = source(&format!("linux-{}.txt", series.join(".")));
    let text = format!(
        "# Linux {release} with its EFA driver and a {PROFILE}, by `cargo xtask kernel-diff --record`.\n{}",
        fold(&answers)
    );
    fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
    println!("{} answers in {}", answers.len(), file.display());
    Ok(())
}

fn compare() -> Result<String> {
    let recorded = unfold(&fs::read_to_string(source("linux-6.12.txt"))?)?;
    let output = ours(&["soft-efa"], &program()?)?;
    let (_, lines) = output
        .split_once('\n')
        .context("the program said nothing")?;
    let answers = parse(lines)?;
    let reasons = reasons(&fs::read_to_string(source("differences.txt"))?)?;
    let mut used = vec![0usize; reasons.len()];
    let mut unexplained = Vec::new();
    let mut differences = 0;
    for question in recorded
        .keys()
        .chain(answers.keys().filter(|q| !recorded.contains_key(*q)))
    {
        let (kernel, soft) = (recorded.get(question), answers.get(question));
        if kernel == soft {
            continue;
        }
        differences += 1;
        match reasons
            .iter()
            .position(|(pattern, _)| fits(pattern, question))
        {
            Some(at) => used[at] += 1,
            None => unexplained.push(format!(
                "{question}\n    the kernel: {}\n    soft-efa:   {}",
                kernel.map_or("not asked", String::as_str),
                soft.map_or("not asked", String::as_str)
            )),
        }
    }
    let stale: Vec<&str> = reasons
        .iter()
        .zip(&used)
        .filter(|(_, count)| **count == 0)
        .map(|((pattern, _), _)| pattern.as_str())
        .collect();
    ensure!(
        unexplained.is_empty(),
        "{} answers differ from the kernel's without a reason in differences.txt:\n{}",
        unexplained.len(),
        unexplained.join("\n")
    );
    ensure!(
        stale.is_empty(),
        "lines of differences.txt without a difference: {}",
        stale.join(", ")
    );
    Ok(format!(
        "{} questions; {differences} answers differ, for the {} reasons in differences.txt",
        recorded.len().max(answers.len()),
        reasons.len()
    ))
}

fn parse(lines: &str) -> Result<Answers> {
    lines
        .lines()
        .map(|line| {
            let (question, answer) = line
                .split_once(BETWEEN)
                .with_context(|| format!("no answer in {line:?}"))?;
            Ok((question.to_owned(), answer.to_owned()))
        })
        .collect()
}

/// One line for what has the same answer both ways.
fn fold(answers: &Answers) -> String {
    let mut lines = Vec::new();
    for (question, answer) in answers {
        let other = WAYS.iter().enumerate().find_map(|(at, way)| {
            let rest = question.strip_prefix(way)?;
            let other = answers.get(&format!("{}{rest}", WAYS[1 - at]))?;
            (other == answer).then_some((at, rest))
        });
        match other {
            Some((0, rest)) => lines.push(format!("{BOTH}{rest}{BETWEEN}{answer}\n")),
            Some(_) => {}
            None => lines.push(format!("{question}{BETWEEN}{answer}\n")),
        }
    }
    lines.sort();
    lines.concat()
}

fn unfold(text: &str) -> Result<Answers> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let mut answers = Answers::new();
    for (question, answer) in parse(&lines.join("\n"))? {
        match question.strip_prefix(BOTH) {
            Some(rest) => {
                for way in WAYS {
                    answers.insert(format!("{way}{rest}"), answer.clone());
                }
            }
            None => {
                answers.insert(question, answer);
            }
        }
    }
    Ok(answers)
}

/// The lines of `differences.txt`: a pattern of questions, a tab, and why soft-efa answers otherwise.
fn reasons(text: &str) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for line in text.lines() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('\t').map(|(a, b)| (a.trim(), b.trim())) {
            Some((pattern, reason)) if !pattern.is_empty() && !reason.is_empty() => {
                all.push((pattern.to_owned(), reason.to_owned()));
            }
            _ => bail!("differences.txt: a pattern, a tab and a reason are missing in {line:?}"),
        }
    }
    Ok(all)
}

/// Whether the question is one of the pattern, whose `*` stand for anything.
fn fits(pattern: &str, question: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == question;
    };
    let Some(question) = question.strip_prefix(first) else {
        return false;
    };
    (0..=question.len())
        .filter(|at| question.is_char_boundary(*at))
        .any(|at| fits(rest, &question[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_gives_back_what_was_answered() {
        let text =
            "invoke a = 1\ninvoke b = 1\nsysfs x = 4: = y\nwrite a = 1\nwrite b = 2\nwrite c = 3\n";
        let answers = parse(text).unwrap();
        let folded = fold(&answers);
        assert_eq!(folded.lines().count(), 5, "{folded}");
        assert!(folded.contains("both a = 1\n"));
        assert_eq!(unfold(&format!("# head\n{folded}")).unwrap(), answers);
    }

    #[test]
    fn patterns_fit_whole_questions() {
        assert!(fits("a*c", "abc") && fits("*", "") && fits("a*b*c", "a1b2c"));
        assert!(!fits("a*c", "abcd") && !fits("abc", "ab") && !fits("b*", "ab"));
    }

    #[test]
    fn every_line_of_the_differences_has_a_reason() {
        assert!(reasons("# note\na*\tbecause\n").is_ok());
        for bad in ["a*", "a*\t", "\tbecause"] {
            assert!(reasons(bad).is_err(), "{bad:?}");
        }
    }
}
