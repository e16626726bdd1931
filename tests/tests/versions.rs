//! One program, several releases of rdma-core: what was built against one runs on another.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{here, skip, take_off};

/// A small program that sends itself a message, as far as every release goes.
const EXAMPLE: &str = "message_to_self";

fn workspace() -> Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let top = tests.parent().context("there is nothing above the tests")?;
    Ok(top.to_path_buf())
}

fn run_to_end(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Builds the example. `prefix` is where rdma-core was built to, the system's if there is none.
fn build(prefix: Option<&str>, target: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace()?)
        .args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "efa-verbs",
            "--example",
            EXAMPLE,
        ])
        .arg("--target-dir")
        .arg(target);
    take_off(&mut cargo);
    // Whatever cargo told the program that runs this test is not meant for another cargo.
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_") && name_text != "CARGO_HOME"
            || name_text.starts_with("DEP_")
        {
            cargo.env_remove(&name);
        }
    }
    cargo
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("PKG_CONFIG_PATH");
    if let Some(prefix) = prefix {
        cargo.env("PKG_CONFIG_PATH", format!("{prefix}/lib/pkgconfig"));
    }
    run_to_end(&mut cargo)?;
    Ok(target.join("debug/examples").join(EXAMPLE))
}

fn exists(module: &str, prefix: Option<&str>) -> bool {
    let mut command = Command::new("pkg-config");
    command
        .args(["--exists", module])
        .env_remove("PKG_CONFIG_PATH");
    if let Some(prefix) = prefix {
        command.env("PKG_CONFIG_PATH", format!("{prefix}/lib/pkgconfig"));
    }
    take_off(&mut command);
    command.status().is_ok_and(|status| status.success())
}

/// The folder above `lib`, of the rdma-core that `LD_LIBRARY_PATH` names.
fn prefix_at_hand() -> Option<String> {
    let list = std::env::var("LD_LIBRARY_PATH").ok()?;
    list.split(':')
        .find(|dir| Path::new(dir).join("libefa.so.1").exists())
        .and_then(|dir| dir.strip_suffix("/lib"))
        .map(str::to_owned)
}

#[test]
fn what_is_built_against_one_rdma_core_runs_on_another() {
    here().deadline(Duration::from_secs(600)).run(|t| {
        if t.role() != "main" {
            bail!("{}?", t.role());
        }
        t.device()?;
        t.need_soft_efa()?;
        let Some(built) = prefix_at_hand() else {
            return Err(skip(
                "the system's rdma-core is the one that everything runs on",
            ));
        };
        if !exists("libefa", None) {
            return Err(skip("the system has no rdma-core of its own"));
        }
        let target = workspace()?.join("target/versions");
        let programs = [
            build(None, &target.join("system"))?,
            build(Some(&built), &target.join("built"))?,
        ];
        let mut said = Vec::new();
        for program in &programs {
            for prefix in [None, Some(&built)] {
                let mut command = Command::new(program);
                match prefix {
                    None => command.env_remove("LD_LIBRARY_PATH"),
                    Some(prefix) => command.env("LD_LIBRARY_PATH", format!("{prefix}/lib")),
                };
                let text = run_to_end(&mut command)?;
                ensure!(text.contains("arrived"), "{text}");
                said.push(text);
            }
        }
        // The library at hand decides, not the one that was there at build time.
        ensure!(said[0] == said[2] && said[1] == said[3], "{said:?}");
        ensure!(said[0] != said[1], "both releases say the same: {said:?}");
        Ok(())
    });
}
