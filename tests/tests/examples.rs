//! The transport's examples run, each as the two processes that it starts by itself.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use efa_tests::{Process, Test, here, take_off};
use efa_verbs::DeviceCapabilities;

/// Where cargo puts the example, beside the folder of this program.
fn program(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let profile = this.parent().and_then(|deps| deps.parent());
    let profile = profile.context("this program is not where cargo puts tests")?;
    let program = profile.join("examples").join(name);
    if !program.exists() {
        // `cargo test` of this package alone does not build them.
        let target = profile.parent().context("no target directory")?;
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .args([
                "build",
                "--quiet",
                "--package",
                "efa-transport",
                "--examples",
                "--all-features",
            ])
            .arg("--target-dir")
            .arg(target);
        take_off(&mut cargo);
        let output = cargo.output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && program.exists(), "{text}");
    }
    Ok(program)
}

fn example(t: &Test, name: &str) -> Result<()> {
    t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
    t.need_loopback()?;
    let mut process = Process::start(name, &mut Command::new(program(name)?))?;
    let status = process.wait(Duration::from_secs(90))?;
    ensure!(status.success(), "{status}\n{}", process.output());
    Ok(())
}

#[test]
fn the_example_put_get_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "put_get"));
}

#[test]
fn the_example_many_peers_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "many_peers"));
}

#[test]
fn the_example_imm_counter_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "imm_counter"));
}

#[test]
fn the_example_send_recv_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "send_recv"));
}

#[test]
fn the_example_stream_file_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "stream_file"));
}

#[test]
fn the_example_rpc_runs() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| example(t, "rpc"));
}
