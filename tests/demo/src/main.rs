//! Two processes move bytes over EFA queue pairs, and both check every one of them.
//!
//! `cargo xtask demo` builds and runs this. The first process starts the second, they exchange
//! addresses over TCP on the loopback interface, and the first puts into and gets from the
//! second's memory.

mod control;
mod memory;
mod side;
mod steps;
mod table;

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use clap::Parser;

/// Two processes move bytes over EFA queue pairs, and both check every one of them.
#[derive(Parser)]
struct Arguments {
    /// The EFA device that both processes use. [default: the first one]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Be the second process of the one that listens here.
    #[arg(long, hide = true, value_name = "ADDRESS")]
    second: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.second {
        Some(first) => side::second(arguments.device.as_deref(), first).map(|()| true),
        None => first(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Plays the first process; true if every byte was right.
fn first(arguments: &Arguments) -> Result<bool> {
    let mut waiting = side::Waiting::new(arguments.device.as_deref())?;
    let mut command = Command::new(std::env::current_exe().context("can't find this program")?);
    command
        .args(["--second", &waiting.address()?])
        .args(["--device", waiting.device()])
        .stdin(Stdio::null());
    let mut child = command.spawn().context("can't start the second process")?;
    println!(
        "process {} and process {} on {}",
        std::process::id(),
        child.id(),
        waiting.device()
    );
    let result = waiting.run();
    if result.is_err() {
        // It may wait for an order that will not come; if it is gone already, all the better.
        let _ = child.kill();
    }
    let status = child.wait().context("can't wait for the second process")?;
    let verified = result?;
    anyhow::ensure!(status.success(), "the second process failed: {status}");
    Ok(verified)
}
