//! Other processes of a test: the same test again, playing another role.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::channel::Channel;

/// The role that a process plays.
pub(crate) const ROLE_VAR: &str = "EFA_TEST_ROLE";
/// Where a process finds the one that started it.
pub(crate) const CHANNEL_VAR: &str = "EFA_TEST_CHANNEL";

const TICK: Duration = Duration::from_millis(5);
const MOST_OUTPUT: u64 = 64 << 10;

/// A process that a test has started. It is killed when this is dropped, and by the kernel when
/// the test is gone.
#[derive(Debug)]
pub struct Process {
    role: String,
    child: Child,
    output: File,
    channel: Option<Channel>,
    finished: bool,
    /// Whatever must outlive the process: the run directory of its devices.
    keep: Vec<soft_efa::launch::Run>,
}

/// The command that runs `test` again, in `role`.
pub(crate) fn again(test: &str, role: &str) -> Result<Command> {
    let program = std::env::current_exe().context("can't tell what program this is")?;
    let mut command = Command::new(program);
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE_VAR, role)
        .env_remove(CHANNEL_VAR);
    Ok(command)
}

/// A command whose program, arguments and environment are those of `inner`, run by `outer`
/// (`ip netns exec NAME` for example).
pub(crate) fn wrapped(outer: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(outer[0]);
    command.args(&outer[1..]).arg(inner.get_program());
    command.args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

impl Process {
    /// Starts a command with no line of communication. Its output is kept for failures.
    pub fn start(name: impl Into<String>, command: &mut Command) -> Result<Self> {
        Self::launch(name.into(), command, Vec::new())
    }

    /// Starts a command that runs a test in a role, and waits until it has called back.
    pub(crate) fn start_role(
        role: &str,
        command: &mut Command,
        keep: Vec<soft_efa::launch::Run>,
    ) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("efa-test-").tempdir()?;
        let path = dir.path().join("channel");
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        command.env(CHANNEL_VAR, &path);
        let mut process = Self::launch(role.to_owned(), command, keep)?;
        let ends = Instant::now() + super::deadline::scaled(Duration::from_secs(60));
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    process.channel = Some(Channel::new(stream)?);
                    return Ok(process);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if let Some(status) = process.child.try_wait()? {
                bail!(
                    "process {role:?} ended before it began: {status}\n{}",
                    process.output()
                );
            }
            if Instant::now() > ends {
                bail!("process {role:?} does not call back\n{}", process.output());
            }
            std::thread::sleep(TICK);
        }
    }

    fn launch(
        role: String,
        command: &mut Command,
        keep: Vec<soft_efa::launch::Run>,
    ) -> Result<Self> {
        let output = tempfile::tempfile()?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe and
        // gets plain numbers.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("can't start {:?}", command.get_program()))?;
        Ok(Self {
            role,
            child,
            output,
            channel: None,
            finished: false,
            keep,
        })
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The run directory of its own devices, if it has any.
    pub(crate) fn run_dir(&self) -> Option<&Path> {
        self.keep.first().map(soft_efa::launch::Run::dir)
    }

    /// The line to the process.
    ///
    /// # Panics
    ///
    /// If it was started without one, by [`Process::start`].
    pub fn channel(&self) -> &Channel {
        let channel = self.channel.as_ref();
        channel.expect("this process was started without a channel")
    }

    /// What it has printed so far (the end of it, where that is much).
    pub fn output(&self) -> String {
        // At given offsets: the process writes through the same file description.
        let read = || {
            let length = self.output.metadata()?.len();
            let mut text = vec![0; length.min(MOST_OUTPUT) as usize];
            self.output
                .read_exact_at(&mut text, length.saturating_sub(MOST_OUTPUT))?;
            Ok::<_, std::io::Error>(text)
        };
        match read() {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("(its output can't be read: {error})"),
        }
    }

    /// How it has ended, if it has.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until it has ended, for as long as `patience`; then kills it.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus> {
        let ends = Instant::now() + super::deadline::scaled(patience);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > ends {
                self.kill();
                bail!(
                    "process {:?} did not end within {patience:?}\n{}",
                    self.role,
                    self.output()
                );
            }
            std::thread::sleep(TICK);
        }
    }

    /// Waits until it has ended, which must be with success.
    pub fn finish(mut self) -> Result<()> {
        // An orderly goodbye for a process that waits for the next message.
        self.channel = None;
        let status = self.wait(Duration::from_secs(60))?;
        if !status.success() {
            bail!(
                "process {:?} failed: {status}\n{}",
                self.role,
                self.output()
            );
        }
        self.finished = true;
        Ok(())
    }

    /// Kills it without a chance to clean up, and waits for its end.
    pub fn kill(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        // The test runner shows this where the test has failed.
        if !self.finished {
            eprintln!("--- output of process {:?}\n{}", self.role, self.output());
        }
    }
}

/// Whether `name` can be found as a program.
pub(crate) fn on_path(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| dir.join(OsStr::new(name)).is_file())
    })
}
