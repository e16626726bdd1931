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
    /// How many guests run the command, 1 or 2. In each, SOFT_EFA_GUEST is its number, 0 or 1;
    /// two are 10.0.0.1 and 10.0.0.2 to each other, and the devices of the second take the
    /// addresses after those of the first.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    guests: u8,
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
    let mut machines = Vec::new();
    let mut socket = None;
    for which in 0..arguments.guests {
        let mut options = options.clone();
        options.addr = options.ip(u32::from(which) * options.devices);
        let run = Dir::new(&options).context("can't make a run directory")?;
        let socket = socket.get_or_insert_with(|| run.path().join("net")).clone();
        let network = (arguments.guests > 1).then_some((socket, which));
        machines.push(boot_in(run, &parts, &options, size, network)?);
    }
    if io::stderr().is_terminal() {
        let time = process::seconds(started.elapsed());
        eprintln!("Linux {} is up after {time}", parts.kernel.release);
    }
    let program = program(&arguments.command, rdma_core.as_ref())?;
    let status = match &mut machines[..] {
        [machine] => interact(&mut machine.guest, &program)?,
        several => together(several, &program)?,
    };
    if options.trace {
        for machine in &machines {
            eprint!("{}", machine.guest.server_log());
        }
    }
    drop(machines);
    Ok(passthrough::end_like(status))
}

/// Runs a program in several guests at once. Its output comes line by line, each with its guest's
/// number; the status is that of the first that fails.
fn together(machines: &mut [Machine], program: &Program) -> Result<ExitStatus> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("can't install signal handlers")?;
    let mut ids = Vec::new();
    for (which, machine) in machines.iter_mut().enumerate() {
        let mut program = program.clone();
        program.input = false;
        let number = ("SOFT_EFA_GUEST".to_owned(), which.to_string());
        program.environment.push(number);
        ids.push(machine.guest.start(&program)?);
    }
    let mut statuses = vec![None; machines.len()];
    let mut lines = vec![(Vec::new(), Vec::new()); machines.len()];
    while statuses.contains(&None) {
        for signal in signals.pending() {
            for (machine, id) in machines.iter().zip(&ids) {
                machine.guest.signal(*id, signal)?;
            }
        }
        for (which, machine) in machines.iter_mut().enumerate() {
            match machine.guest.next(Duration::from_millis(20))? {
                Some((_, Event::Output(bytes))) => {
                    lines[which].0.extend(bytes);
                    print_lines(which, &mut lines[which].0, false, &mut io::stdout())?;
                }
                Some((_, Event::Error(bytes))) => {
                    lines[which].1.extend(bytes);
                    print_lines(which, &mut lines[which].1, false, &mut io::stderr())?;
                }
                Some((_, Event::Ended(status))) => statuses[which] = Some(status),
                Some((_, Event::Failed(why))) => bail!("in guest {which}: {why}"),
                None => {}
            }
        }
    }
    for (which, (out, err)) in lines.iter_mut().enumerate() {
        print_lines(which, out, true, &mut io::stdout())?;
        print_lines(which, err, true, &mut io::stderr())?;
    }
    let mut all = statuses.into_iter().flatten();
    let first = all.next().context("no guest has run")?;
    Ok(std::iter::once(first)
        .chain(all)
        .find(|status| !status.success())
        .unwrap_or(first))
}

/// Prints the whole lines in `bytes`, and the rest as well if it is the `last`.
fn print_lines(
    which: usize,
    bytes: &mut Vec<u8>,
    last: bool,
    to: &mut impl Write,
) -> io::Result<()> {
    let end = match bytes.iter().rposition(|byte| *byte == b'\n') {
        _ if last => bytes.len(),
        Some(newline) => newline + 1,
        None => return Ok(()),
    };
    let whole: Vec<u8> = bytes.drain(..end).collect();
    for line in whole.split_inclusive(|byte| *byte == b'\n') {
        write!(to, "{which}: ")?;
        to.write_all(line.strip_suffix(b"\n").unwrap_or(line))?;
        writeln!(to)?;
    }
    to.flush()
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
    let run = Dir::new(options).context("can't make a run directory")?;
    boot_in(run, parts, options, size, None)
}

fn boot_in(
    run: Dir,
    parts: &Parts,
    options: &Options,
    size: Size,
    network: Option<(PathBuf, u8)>,
) -> Result<Machine> {
    let plan = Plan {
        monitor: &parts.monitor,
        kernel: &parts.kernel,
        server: &parts.server,
        options,
        memory: size.memory,
        processors: size.processors,
        name: match &network {
            Some((_, which)) => format!("guest {which}"),
            None => "the guest".to_owned(),
        },
        network,
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
