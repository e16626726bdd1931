//! `cargo xtask soft-efa`: programs on software EFA devices.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use soft_efa::launch::Run;
use soft_efa::options::{Abi, Options};
use soft_efa::profile::ProfileName;

use crate::rdma_core::{self, Choice, RdmaCore};
use crate::{build, control, passthrough, workspace};

/// What follows `cargo xtask soft-efa`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SoftEfa {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    devices: Devices,
    /// The rdma-core that the program is run with. [default: cargo, and what it has built here,
    /// run with the one that `cargo xtask rdma-core` names; any other program with what it finds
    /// by itself]
    #[arg(long, value_enum, value_name = "WHICH")]
    rdma_core: Option<Choice>,
    /// The program to run, and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Subcommand)]
enum Action {
    /// Ask or change the devices of programs that are running.
    Ctl(control::Control),
}

/// What the devices are like.
#[derive(Args, Clone)]
pub struct Devices {
    /// How many devices there are.
    #[arg(long, value_name = "N", default_value_t = 1)]
    devices: u32,
    /// The hardware to imitate: c5n, p4d, p5, p5en or p6. [default: p5en, or p5 with a libefa
    /// that does not know p5en]
    #[arg(long)]
    profile: Option<ProfileName>,
    /// The IPv4 address of the first device; each further one takes the next.
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::LOCALHOST)]
    addr: Ipv4Addr,
    /// Seeds every random decision.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// What goes wrong; the language is in tests/soft-efa/README.md.
    #[arg(long, value_name = "SPEC", default_value_t)]
    faults: String,
    /// Lower the longest RDMA request, so that chunking is seen with little data.
    #[arg(long, value_name = "BYTES")]
    max_rdma_size: Option<u32>,
    /// Give queue pairs the lowest free numbers from here on, so that a restarted process gets
    /// the numbers of its predecessor.
    #[arg(long, value_name = "N")]
    first_qp: Option<u16>,
    /// How libibverbs talks to the kernel: ioctl or write.
    #[arg(long, default_value_t)]
    abi: Abi,
    /// Print a line per event to standard error.
    #[arg(long)]
    trace: bool,
}

impl Devices {
    /// The same as the device understands it, checked.
    pub fn options(&self) -> Result<Options> {
        let options = Options {
            devices: self.devices,
            profile: self.profile,
            addr: self.addr,
            seed: self.seed,
            max_rdma_size: self.max_rdma_size,
            first_qp: self.first_qp,
            abi: self.abi,
            trace: self.trace,
            faults: self.faults.clone(),
        };
        options.check()?;
        Ok(options)
    }
}

/// Does what the command line says.
pub fn run(arguments: &SoftEfa) -> Result<ExitCode> {
    if let Some(Action::Ctl(control)) = &arguments.action {
        return control::run(control);
    }
    let options = arguments.devices.options()?;
    let rdma_core = match arguments.rdma_core {
        Some(choice) => Some(rdma_core::resolve(choice)?),
        None if ours(&arguments.command) || !rdma_core::system_has_library() => {
            Some(rdma_core::resolve(Choice::Auto)?)
        }
        None => None,
    };
    let (program, rest) = arguments
        .command
        .split_first()
        .context("there is no command to run")?;
    let mut command = Command::new(program);
    command.args(rest);
    build::clean(&mut command);
    let software = Software::new(&options, rdma_core.as_ref())?;
    software.apply(&mut command)?;
    let status = passthrough::run(&mut command)?;
    // The run directory goes before we do.
    drop(software);
    Ok(passthrough::end_like(status))
}

/// Whether a command is cargo, or names a file that cargo has built here (`valgrind PROGRAM`).
///
/// Another program was linked with the system's libraries, and may use private parts of them
/// that are different in each release: it must not be given the libraries that are built here.
pub fn ours(command: &[OsString]) -> bool {
    let target = workspace::target();
    let target = target.canonicalize().unwrap_or(target);
    let built_here = |word: &OsString| {
        let file = Path::new(word).canonicalize();
        file.is_ok_and(|file| file.is_file() && file.starts_with(&target))
    };
    let cargo = command.first().map(Path::new).and_then(Path::file_stem);
    cargo.is_some_and(|name| name == "cargo") || command.iter().any(built_here)
}

/// Software devices, ready for programs.
pub struct Software {
    run: Run,
    rdma_core: Option<RdmaCore>,
}

impl Software {
    /// Builds the device and lays out its run directory.
    pub fn new(options: &Options, rdma_core: Option<&RdmaCore>) -> Result<Self> {
        let preload = build::preload()?;
        Ok(Self {
            run: Run::new(options, &preload).context("can't make a run directory")?,
            rdma_core: rdma_core.cloned(),
        })
    }

    /// Makes the command find the devices.
    pub fn apply(&self, command: &mut Command) -> Result<()> {
        if let Some(rdma_core) = &self.rdma_core {
            rdma_core.apply(command);
        }
        self.run
            .apply(command)
            .context("can't set up the command's environment")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_system_keep_their_libraries() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        let here = std::env::current_exe().unwrap();
        assert!(ours(&words("cargo test")));
        assert!(ours(&words("/usr/bin/cargo run")));
        assert!(ours(&words(&format!("valgrind {}", here.display()))));
        assert!(!ours(&words("ibv_devinfo -v")));
        assert!(!ours(&words("sh -c cargo")));
    }
}
