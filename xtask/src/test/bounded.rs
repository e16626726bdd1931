//! Runs a program that may hang or crash, and whatever it starts.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::{process, workspace};

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Ended {
    /// The status; `None` if its time was up and it was killed.
    pub status: Option<ExitStatus>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
    /// How long it ran.
    pub time: Duration,
}

impl Ended {
    /// Whether it ended by itself and well.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, in words.
    pub fn described(&self) -> String {
        match self.status {
            Some(status) => process::described(status),
            None => format!(
                "still running after {}, killed",
                process::seconds(self.time)
            ),
        }
    }

    /// Both outputs, the end of them if they are long.
    pub fn output(&self) -> String {
        let mut text = String::new();
        for (name, part) in [("output", &self.stdout), ("standard error", &self.stderr)] {
            if !part.trim().is_empty() {
                text += &format!("--- {name}\n{}\n", process::tail(part.trim_end(), 150));
            }
        }
        text
    }
}

/// Runs the command with its output in files under `target/xtask`, named after `name`. At the
/// end of `limit`, or when we are told to stop, it is killed with everything that it started.
/// Files, not pipes: a program left over by a test can't hold us up by keeping a pipe open.
pub fn run(name: &str, command: &mut Command, limit: Duration) -> Result<Ended> {
    let stop = stop_flag()?;
    let dir = workspace::target().join("xtask/log");
    fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let path = |end: &str| -> PathBuf { dir.join(format!("{}.{end}", file_name(name))) };
    let create = |path: &PathBuf| {
        File::create(path).with_context(|| format!("can't write {}", path.display()))
    };
    let (out, err) = (path("out"), path("err"));
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(create(&out)?)
        .stderr(create(&err)?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("can't run `{}`", process::shown(command)))?;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if stop.load(Ordering::Relaxed) {
            kill_group(&mut child)?;
            bail!("stopped by a signal");
        }
        if started.elapsed() > limit {
            kill_group(&mut child)?;
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    if !status.is_some_and(|status| status.success()) {
        // Helpers of a program that crashed.
        kill_number(child.id());
    }
    let read = |path: &PathBuf| -> String {
        String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
    };
    Ok(Ended {
        status,
        stdout: read(&out),
        stderr: read(&err),
        time: started.elapsed(),
    })
}

fn file_name(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect()
}

fn kill_group(child: &mut Child) -> Result<()> {
    kill_number(child.id());
    child.wait().context("can't wait for a killed program")?;
    Ok(())
}

fn kill_number(group: u32) {
    if let Ok(group) = i32::try_from(group) {
        // SAFETY: kill takes numbers alone. The group was made for the child, and its number is
        // not used again before a while; an empty group is an error that does not matter.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// Set when somebody asks us to stop: our programs are in groups of their own, so the terminal
/// does not reach them.
fn stop_flag() -> Result<Arc<AtomicBool>> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(flag) = FLAG.get() {
        return Ok(flag.clone());
    }
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // A second signal ends us the ordinary way.
        signal_hook::flag::register_conditional_default(signal, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .context("can't install a signal handler")?;
    }
    Ok(FLAG.get_or_init(|| flag).clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_status_come_back() {
        let ended = run(
            "bounded: plain",
            &mut shell("echo out; echo err >&2; exit 3"),
            Duration::from_secs(10),
        )
        .unwrap();
        assert_eq!((&*ended.stdout, &*ended.stderr), ("out\n", "err\n"));
        assert_eq!(ended.described(), "exit status 3");
        assert!(!ended.success());
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let script = "sleep 300 & echo $!; wait";
        let ended = run(
            "bounded: hang",
            &mut shell(script),
            Duration::from_millis(300),
        )
        .unwrap();
        assert_eq!(ended.status, None);
        assert!(ended.time < Duration::from_secs(10));
        let helper: i32 = ended.stdout.trim().parse().unwrap();
        let gone = || {
            let stat = fs::read_to_string(format!("/proc/{helper}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while !gone() {
            assert!(Instant::now() < deadline, "the helper lives on");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_crash_is_told_from_an_exit() {
        let ended = run(
            "bounded: crash",
            &mut shell("kill -SEGV $$"),
            Duration::from_secs(10),
        )
        .unwrap();
        assert!(
            ended.described().contains("SIGSEGV"),
            "{}",
            ended.described()
        );
    }
}
