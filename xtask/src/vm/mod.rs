//! `cargo xtask vm`: a command in a virtual machine whose kernel drives software EFA devices with
//! the real driver.

mod agent;
mod archive;
mod guest;
mod initramfs;
mod kernel;
mod monitor;
mod protocol;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use soft_efa::launch::{Dir, HOST_VAR};
use soft_efa::options::Options;
use soft_efa::profile::ProfileName;

use crate::rdma_core::{self, Choice, RdmaCore};
use crate::soft_efa::{Devices, ours};
use crate::{build, passthrough, process};
pub use agent::ASK_SOCKET;
use guest::Plan;
pub use guest::{Event, Guest};
pub use kernel::Choice as KernelChoice;
use kernel::Kernel;
use monitor::Monitor;
pub use protocol::Program;

/// What follows `cargo xtask vm`.
#[derive(Args)]
pub struct Vm {
    #[command(flatten)]
    devices: Devices,
    /// The kernel to boot.
    #[arg(long, value_enum, default_value_t)]
    kernel: kernel::Choice,
    /// Memory of the guest, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// Processors of the guest.
    #[arg(long, value_name = "N", default_value_t = 2)]
    processors: u32,
    /// The rdma-core that the program is run with. [default: as for `soft-efa`]
    #[arg(long, value_enum, value_name = "WHICH")]
    rdma_core: Option<Choice>,
    /// The program to run, and its arguments. The guest sees this machine's files, and what it
    /// writes is gone when it ends.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What follows `cargo xtask vm-agent`, which only a guest's first program says.
#[derive(Args)]
pub struct Agent {
    /// Kernel modules to load first.
    modules: Vec<PathBuf>,
}

/// Serves the host of a guest.
pub fn agent(arguments: &Agent) -> Result<ExitCode> {
    agent::run(&arguments.modules)
}

/// Everything that guests are made of.
pub struct Parts {
    monitor: Monitor,
    kernel: Kernel,
    server: PathBuf,
}

impl Parts {
    /// Fetches and builds what is not there.
    pub fn resolve(kernel: kernel::Choice) -> Result<Self> {
        if !cfg!(target_arch = "x86_64") {
            bail!(
                "guests are x86-64 machines; this one is not, and there is no kernel for it here"
            );
        }
        Ok(Self {
            monitor: monitor::resolve()?,
            kernel: kernel::resolve(kernel)?,
            server: build::pci_server()?,
        })
    }

    /// The kernel's release.
    pub fn release(&self) -> &str {
        &self.kernel.release
    }
}

/// Runs the command.
pub fn run(arguments: &Vm) -> Result<ExitCode> {
    let rdma_core = match arguments.rdma_core {
        Some(choice) => Some(rdma_core::resolve(choice)?),
        None if ours(&arguments.command) || !rdma_core::system_has_library() => {
            Some(rdma_core::resolve(Choice::Auto)?)
        }
        None => None,
    };
    let mut options = arguments.devices.options()?;
    options
        .profile
        .get_or_insert_with(|| default_profile(rdma_core.as_ref()));
    let parts = Parts::resolve(arguments.kernel)?;
    let started = Instant::now();
    let size = Size {
        memory: arguments.memory,
        processors: arguments.processors,
    };
    let mut machine = boot_sized(&parts, &options, size)?;
    if io::stderr().is_terminal() {
        let time = process::seconds(started.elapsed());
        eprintln!("Linux {} is up after {time}", parts.kernel.release);
    }
    let program = program(&arguments.command, rdma_core.as_ref())?;
    let status = interact(&mut machine.guest, &program);
    if options.trace {
        eprint!("{}", machine.guest.server_log());
    }
    drop(machine);
    Ok(passthrough::end_like(status?))
}

/// A guest, and the directory of its sockets and logs.
pub struct Machine {
    // Before the directory, which goes last.
    pub guest: Guest,
    _run: Dir,
}

/// What a guest has.
#[derive(Clone, Copy)]
struct Size {
    /// Memory, in MiB.
    memory: u32,
    processors: u32,
}

/// Boots a guest with devices of these options.
pub fn boot(parts: &Parts, options: &Options) -> Result<Machine> {
    let size = Size {
        memory: 3072,
        processors: 2,
    };
    boot_sized(parts, options, size)
}

fn boot_sized(parts: &Parts, options: &Options, size: Size) -> Result<Machine> {
    let run = Dir::new(options).context("can't make a run directory")?;
    let plan = Plan {
        monitor: &parts.monitor,
        kernel: &parts.kernel,
        server: &parts.server,
        options,
        memory: size.memory,
        processors: size.processors,
        name: "the guest".to_owned(),
    };
    let spinner = process::quiet_spinner(&format!("booting Linux {}", parts.kernel.release));
    let guest = Guest::boot(&plan, run.path());
    spinner.finish_and_clear();
    Ok(Machine {
        guest: guest?,
        _run: run,
    })
}

/// The newest hardware that the program's libefa knows, as far as can be told from outside.
fn default_profile(rdma_core: Option<&RdmaCore>) -> ProfileName {
    let major = match rdma_core {
        Some(rdma_core) => rdma_core.major(),
        None => rdma_core::installed_major(),
    };
    if major >= rdma_core::FIRST_WITH_P5EN {
        ProfileName::P5en
    } else {
        ProfileName::P5
    }
}

/// The command as the guest shall run it: here, with our environment.
fn program(words: &[OsString], rdma_core: Option<&RdmaCore>) -> Result<Program> {
    let (name, rest) = words.split_first().context("there is no command to run")?;
    let mut command = Command::new(name);
    command.args(rest);
    build::clean(&mut command);
    command.env(HOST_VAR, agent::ASK_SOCKET);
    if let Some(rdma_core) = rdma_core {
        rdma_core.apply(&mut command);
    }
    let mut program = program_of(&command)?;
    program.input = true;
    Ok(program)
}

/// A command as a guest can be told of it. It reads nothing.
pub fn program_of(command: &Command) -> Result<Program> {
    let text = |word: &OsStr| {
        word.to_str()
            .map(str::to_owned)
            .with_context(|| format!("{word:?} is not Unicode, which a guest could not be told"))
    };
    let folder = match command.get_current_dir() {
        Some(folder) => folder.to_path_buf(),
        None => std::env::current_dir()?,
    };
    Ok(Program {
        words: std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(text)
            .collect::<Result<_>>()?,
        environment: environment(command),
        folder: text(folder.as_os_str())?,
        input: false,
    })
}

/// The environment that a command would get.
fn environment(command: &Command) -> Vec<(String, String)> {
    let mut all: std::collections::BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => all.insert(name.to_owned(), value.to_owned()),
            None => all.remove(name),
        };
    }
    all.into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Runs a program with our input and output, and passes on signals.
fn interact(guest: &mut Guest, program: &Program) -> Result<ExitStatus> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("can't install signal handlers")?;
    let id = guest.start(program)?;
    let mut input = guest.input(id);
    thread::spawn(move || {
        // An end, or a guest that is gone, ends it.
        let _ = io::copy(&mut io::stdin().lock(), &mut input);
    });
    loop {
        for signal in signals.pending() {
            guest.signal(id, signal)?;
        }
        match guest.next(Duration::from_millis(100))? {
            Some((_, Event::Output(bytes))) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes).and_then(|()| out.flush())?;
            }
            Some((_, Event::Error(bytes))) => io::stderr().lock().write_all(&bytes)?,
            Some((_, Event::Ended(status))) => return Ok(status),
            Some((_, Event::Failed(why))) => bail!("in the guest: {why}"),
            None => {}
        }
    }
}
