//! What a running test has at hand.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use efa_transport::Domain;
use efa_verbs::{Device, DeviceCapabilities};
use soft_efa::ctl::Client;
use soft_efa::options::Options;

use crate::channel::Channel;
use crate::child::{self, CHANNEL_VAR, Process, ROLE_VAR};
use crate::guest;
use crate::rng::{self, Rng};
use crate::skips::skip;
use crate::soft;
use crate::verbs;

/// The role of the process that runs the test itself.
pub(crate) const MAIN: &str = "main";

/// Set to 1 where a missing device is a failure.
const HARDWARE_VAR: &str = "EFA_TEST_HARDWARE";

const SEED_VAR: &str = "EFA_TEST_SEED";

/// A running test.
#[derive(Debug)]
pub struct Test {
    name: &'static str,
    role: String,
    parent: Option<Channel>,
    seed: u64,
    rng: RefCell<Rng>,
}

impl Test {
    pub(crate) fn begin(name: &'static str) -> Result<Self> {
        let role = std::env::var(ROLE_VAR).unwrap_or_else(|_| MAIN.to_owned());
        let parent = std::env::var_os(CHANNEL_VAR)
            .map(|path| Channel::connect(&PathBuf::from(path)))
            .transpose()?;
        let seed = match std::env::var(SEED_VAR) {
            Ok(text) => text
                .parse()
                .with_context(|| format!("{SEED_VAR}={text} is not a number"))?,
            Err(_) => 1,
        };
        // Each process of a test has its own sequence.
        let start = rng::hash(name) ^ rng::hash(&role).rotate_left(32) ^ seed;
        Ok(Self {
            name,
            role,
            parent,
            seed,
            rng: RefCell::new(Rng::new(start)),
        })
    }

    /// The part that this process plays: `main`, or what was given to [`Test::spawn`].
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The seed of this run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers that are the same in every run with the same seed.
    pub fn rng(&self) -> Rng {
        Rng::new(self.rng.borrow_mut().next_u64())
    }

    /// The line to the process that spawned this one.
    ///
    /// # Panics
    ///
    /// In the role `main`, which nobody spawned.
    pub fn parent(&self) -> &Channel {
        let parent = self.parent.as_ref();
        parent.expect("the main process of a test has no parent to talk to")
    }

    /// Starts this test again in another process with the same devices, in `role`.
    pub fn spawn(&self, role: &str) -> Result<Process> {
        self.spawn_index(role, 0)
    }

    /// The same for one of several processes in the same role; [`Test::index`] tells it which.
    pub fn spawn_index(&self, role: &str, index: u32) -> Result<Process> {
        let mut command = child::again(self.name, role)?;
        command.env(INDEX_VAR, index.to_string());
        Process::start_role(role, &mut command, Vec::new())
    }

    /// The same, with a command that `change` has changed: its environment, say.
    pub fn spawn_changed(&self, role: &str, change: impl FnOnce(&mut Command)) -> Result<Process> {
        let mut command = child::again(self.name, role)?;
        change(&mut command);
        Process::start_role(role, &mut command, Vec::new())
    }

    /// The command that runs this test in `role`, for a program that runs other programs.
    pub fn command(&self, role: &str) -> Result<Command> {
        child::again(self.name, role)
    }

    /// The number given to [`Test::spawn_index`].
    pub fn index(&self) -> u32 {
        std::env::var(INDEX_VAR)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    /// The same with soft-efa devices of its own.
    pub fn spawn_under(&self, role: &str, options: &str) -> Result<Process> {
        self.spawn_wrapped(role, options, &[])
    }

    /// The same for one of several processes in the same role; [`Test::index`] tells it which.
    pub fn spawn_index_under(&self, role: &str, index: u32, options: &str) -> Result<Process> {
        let options: Options = options.parse().context("the process's options")?;
        let mut command = child::again(self.name, role)?;
        command.env(INDEX_VAR, index.to_string());
        let run = soft::put_on(&options, &mut command)?;
        Process::start_role(role, &mut command, run.into_iter().collect())
    }

    /// The same, where the process is started by another program: for example
    /// `["ip", "netns", "exec", "a"]`.
    pub fn spawn_wrapped(&self, role: &str, options: &str, outer: &[&str]) -> Result<Process> {
        let options: Options = options.parse().context("the process's options")?;
        if !outer.is_empty() && guest::here() {
            return Err(skip(
                "network namespaces separate soft-efa's processes, not a virtual machine's",
            ));
        }
        let inner = child::again(self.name, role)?;
        let mut command = if outer.is_empty() {
            inner
        } else {
            child::wrapped(outer, &inner)
        };
        let run = soft::put_on(&options, &mut command)?;
        Process::start_role(role, &mut command, run.into_iter().collect())
    }

    /// The devices of this process; there is at least one.
    ///
    /// # Errors
    ///
    /// Ends the test as skipped if there is none, or as failed where `EFA_TEST_HARDWARE=1` says
    /// that there must be one.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let devices = efa_verbs::devices()?;
        if !devices.is_empty() {
            return Ok(devices);
        }
        if std::env::var_os(HARDWARE_VAR).is_some_and(|value| value == "1") {
            bail!("there is no EFA device, and {HARDWARE_VAR}=1 says that there is");
        }
        if soft::is_here() {
            bail!("this is soft-efa, but no device was found");
        }
        Err(skip(
            "there is no EFA device: run it with `cargo xtask test` or `cargo xtask soft-efa`",
        ))
    }

    /// The first device.
    ///
    /// # Errors
    ///
    /// As for [`Test::devices`].
    pub fn device(&self) -> Result<Device> {
        let mut devices = self.devices()?;
        Ok(devices.swap_remove(0))
    }

    /// A domain on the first device.
    ///
    /// # Errors
    ///
    /// As for [`Test::devices`].
    pub fn domain(&self) -> Result<Domain> {
        Ok(Domain::new(&self.device()?.open()?)?)
    }

    /// Ends the test as skipped unless the first device has these capabilities.
    pub fn need(&self, capabilities: DeviceCapabilities) -> Result<()> {
        let device = self.device()?;
        let has = device.open()?.attributes().capabilities;
        if has.contains(capabilities) {
            return Ok(());
        }
        let name = device.name();
        Err(skip(format!(
            "{name} lacks {capabilities:?}, it has {has:?}"
        )))
    }

    /// Ends the test as skipped where the first device drops what it sends to itself, as some
    /// instance types do. Found out by trying, once per process.
    pub fn need_loopback(&self) -> Result<()> {
        static WORKS: OnceLock<bool> = OnceLock::new();
        if soft::is_here() {
            // Known from the profile, and an error in it must not look like a property.
            let options = self.soft_efa()?.unwrap_or_default();
            return match options.profile {
                Some(name) if !name.profile().loopback => {
                    Err(skip(format!("{name} drops what it sends to itself")))
                }
                _ => Ok(()),
            };
        }
        if *WORKS.get_or_init(|| verbs::loopback_works(self).unwrap_or(false)) {
            return Ok(());
        }
        let name = self.device()?.name().to_owned();
        Err(skip(format!("{name} drops what it sends to itself")))
    }

    /// Ends the test as skipped unless `program` can be run.
    pub fn need_program(&self, program: &str, package: &str) -> Result<()> {
        if child::on_path(program) {
            return Ok(());
        }
        Err(skip(format!(
            "there is no {program} (Debian package {package})"
        )))
    }

    /// Ends the test as skipped in a virtual machine, where `why` keeps it from running.
    pub fn not_in_a_guest(&self, why: &str) -> Result<()> {
        if guest::here() {
            return Err(skip(why));
        }
        Ok(())
    }

    /// Ends the test as skipped unless it runs on soft-efa.
    pub fn need_soft_efa(&self) -> Result<()> {
        if soft::is_here() {
            return Ok(());
        }
        Err(skip("it needs soft-efa"))
    }

    /// The options of the soft-efa device in this process; `None` on real hardware.
    pub fn soft_efa(&self) -> Result<Option<Options>> {
        soft::own_options().transpose()
    }

    /// Soft-efa's counters of this process.
    pub fn counters(&self) -> Result<Counters> {
        let counters = self.ctl()?.counters()?;
        Ok(Counters(counters))
    }

    /// How many objects of each kind live on the soft-efa devices of this process.
    pub fn objects(&self) -> Result<BTreeMap<String, u64>> {
        Ok(self.ctl()?.objects()?)
    }

    /// Changes the fault plan of this process's soft-efa devices.
    pub fn set_faults(&self, spec: &str) -> Result<()> {
        Ok(self.ctl()?.set_faults(spec)?)
    }

    /// A control connection to this process's soft-efa. Not to be kept: others wait meanwhile.
    pub fn ctl(&self) -> Result<Client> {
        Ok(Client::own()?)
    }

    /// A control connection to soft-efa in another process.
    pub fn ctl_of(&self, process: &Process) -> Result<Client> {
        if guest::here() {
            return Err(skip(
                "it asks about one process, and a virtual machine's devices are all processes'",
            ));
        }
        let own = soft::soft_efa_dir();
        let Some(dir) = process.run_dir().or(own.as_deref()) else {
            bail!("not on soft-efa");
        };
        Ok(Client::connect(dir, process.id())?)
    }
}

const INDEX_VAR: &str = "EFA_TEST_INDEX";

/// Soft-efa's counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters(pub BTreeMap<String, u64>);

impl Counters {
    /// The counter called `name`; 0 where it has never counted.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// What was added to the counter called `name` since `earlier`.
    pub fn since(&self, earlier: &Self, name: &str) -> u64 {
        self.get(name).saturating_sub(earlier.get(name))
    }
}
