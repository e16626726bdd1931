//! The C side of efa-sys, compiled with every warning against each set of headers at hand.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::bounded;
use super::tally::Tally;
use crate::rdma_core::{self, RdmaCore};
use crate::{process, workspace};

/// Warnings that the C standard's own idioms give in such code are off, all others are errors.
const FLAGS: [&str; 7] = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wmissing-prototypes",
    "-fsyntax-only",
];

/// Compiles each shim against the headers in use and, where they are others, the system's.
pub fn check(rdma_core: &RdmaCore) -> Result<Tally> {
    let mut sets: Vec<(String, Vec<String>)> = Vec::new();
    if let Some(prefix) = &rdma_core.prefix {
        let include = prefix.join("include").display().to_string();
        sets.push((rdma_core.version.clone(), vec!["-isystem".into(), include]));
    }
    let mut tally = Tally::default();
    match rdma_core::system_version() {
        Some(version) => sets.push((version, system_flags()?)),
        None => tally.skipped.push((
            "shims against the system's headers".into(),
            "the system has none".into(),
        )),
    }
    let files = sources()?;
    for (version, flags) in &sets {
        for file in &files {
            let stem = file.file_name().unwrap_or_default().to_string_lossy();
            let name = format!("{stem} with the headers of rdma-core {version}");
            let mut command = Command::new("cc");
            command.args(FLAGS).args(flags).arg(file);
            tally.add(Tally::check(&name, compile(&name, &mut command)));
        }
    }
    println!("{} sets of headers: {}", sets.len(), tally.summary());
    Ok(tally)
}

fn compile(name: &str, command: &mut Command) -> Result<()> {
    let ended = bounded::run(name, command, Duration::from_secs(60))?;
    if !ended.success() {
        println!("{}", ended.output());
    }
    ensure!(
        ended.success(),
        "`{}`: {}",
        process::shown(command),
        ended.described()
    );
    Ok(())
}

fn system_flags() -> Result<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "libefa", "libibverbs"]);
    let flags = process::output(&mut command)?;
    Ok(flags.split_whitespace().map(str::to_owned).collect())
}

fn sources() -> Result<Vec<PathBuf>> {
    let dir = workspace::root().join("efa-sys/shim");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .with_context(|| format!("can't list {}", dir.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "there is no C file in {}", dir.display());
    Ok(files)
}
