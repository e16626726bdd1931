//! `cargo xtask demo`: two processes move bytes over EFA queue pairs and check every one.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::rdma_core::{self, Choice};
use crate::soft_efa::{Devices, Software};
use crate::{build, passthrough};

/// What follows `cargo xtask demo`.
#[derive(Args)]
pub struct Demo {
    /// A real EFA device, instead of a software one.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    #[command(flatten)]
    devices: Devices,
}

/// Builds and runs the demo.
pub fn run(arguments: &Demo) -> Result<ExitCode> {
    let options = arguments.devices.options()?;
    let rdma_core = rdma_core::resolve(Choice::Auto)?;
    println!("the demo runs on {}", rdma_core.described());
    let made = build::artifacts(
        Some(&rdma_core),
        &["build", "--package", "efa-demo", "--bin", "demo"],
    )?;
    let program = made
        .into_iter()
        .find(|artifact| artifact.kind == "bin")
        .context("cargo built the demo and named no program")?;
    let mut command = Command::new(&program.file);
    build::clean(&mut command);
    let software = match &arguments.device {
        Some(name) => {
            rdma_core.apply(&mut command);
            command.args(["--device", name]);
            None
        }
        None => {
            let software = Software::new(&options, Some(&rdma_core))?;
            software.apply(&mut command)?;
            Some(software)
        }
    };
    let status = passthrough::run(&mut command)?;
    drop(software);
    Ok(passthrough::end_like(status))
}
