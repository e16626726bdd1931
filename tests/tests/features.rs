//! What efa-transport depends on, by its features.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use efa_tests::{here, take_off};

/// The packages that efa-transport needs, with these features.
fn packages(features: &str) -> Result<Vec<String>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .args(["tree", "--quiet", "--offline", "--edges", "normal"])
        .args(["--prefix", "none", "--package", "efa-transport"])
        .args(["--no-default-features", "--features", features]);
    take_off(&mut cargo);
    let output = cargo.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let names = text.lines().map(|line| {
        let name = line.split_whitespace().next();
        name.map(str::to_owned)
            .with_context(|| format!("no name in {line:?}"))
    });
    names.collect()
}

#[test]
fn no_runtime_is_needed_unless_it_is_asked_for() {
    here().run(|_| {
        const RUNTIMES: [&str; 6] = ["tokio", "mio", "futures", "async", "smol", "bytes"];
        let without = packages("serde")?;
        ensure!(without.iter().any(|name| name == "rustix"), "{without:?}");
        for name in without {
            let known = RUNTIMES.iter().any(|runtime| name.starts_with(runtime));
            ensure!(!known, "{name}");
        }
        ensure!(packages("tokio")?.iter().any(|name| name == "tokio"));
        Ok(())
    });
}
