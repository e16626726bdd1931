//! `cargo xtask soft-efa`: programs on software EFA devices.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use soft_efa::launch::Run;
use soft_efa::options::{Abi, Options};
use soft_efa::profile::ProfileName;

use crate::rdma_core::{self, Choice, RdmaCore};
use crate::{build, control, passthrough};

/// What follows `cargo xtask soft-efa`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SoftEfa {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    devices: Devices,
    /// The rdma-core that the program is run with.
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    rdma_core: Choice,
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
    let rdma_core = rdma_core::resolve(arguments.rdma_core)?;
    let (program, rest) = arguments
        .command
        .split_first()
        .context("there is no command to run")?;
    let mut command = Command::new(program);
    command.args(rest);
    build::clean(&mut command);
    let software = Software::new(&options, &rdma_core)?;
    software.apply(&mut command)?;
    let status = passthrough::run(&mut command)?;
    // The run directory goes before we do.
    drop(software);
    Ok(passthrough::end_like(status))
}

/// Software devices, ready for programs.
pub struct Software {
    run: Run,
    rdma_core: RdmaCore,
}

impl Software {
    /// Builds the device and lays out its run directory.
    pub fn new(options: &Options, rdma_core: &RdmaCore) -> Result<Self> {
        let preload = build::preload()?;
        Ok(Self {
            run: Run::new(options, &preload).context("can't make a run directory")?,
            rdma_core: rdma_core.clone(),
        })
    }

    /// Makes the command find the devices.
    pub fn apply(&self, command: &mut Command) -> Result<()> {
        self.rdma_core.apply(command);
        self.run
            .apply(command)
            .context("can't set up the command's environment")
    }
}
