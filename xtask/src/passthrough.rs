//! Running a program as if it had been started in our place: its signals reach it, and its end
//! is ours.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::thread;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::process;

const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Runs the command to its end, passing on the signals that other processes send to us.
pub fn run(command: &mut Command) -> Result<ExitStatus> {
    supervise(command, |signal| signal)
}

/// The same for a command that would not heed them: each of them kills it.
pub fn run_or_kill(command: &mut Command) -> Result<ExitStatus> {
    supervise(command, |signal| match signal {
        SIGWINCH | SIGUSR1 | SIGUSR2 => signal,
        _ => libc::SIGKILL,
    })
}

fn supervise(command: &mut Command, translate: fn(i32) -> i32) -> Result<ExitStatus> {
    let catch: Vec<i32> = FORWARDED
        .into_iter()
        .filter(|signal| !ignored(*signal))
        .collect();
    let mut signals =
        SignalsInfo::<WithOrigin>::new(catch).context("can't install signal handlers")?;
    let mut child = command
        .spawn()
        .with_context(|| format!("can't run `{}`", process::shown(command)))?;
    let pid = i32::try_from(child.id()).context("the process number is out of range")?;
    let handle = signals.handle();
    let forwarder = thread::spawn(move || {
        for origin in &mut signals {
            // What the terminal sends goes to the whole foreground group, the child included.
            if origin.process.is_some() {
                // SAFETY: kill takes numbers alone. The child is not reaped before this thread
                // has ended (it is left a zombie by the wait below), so `pid` is still its.
                unsafe { libc::kill(pid, translate(origin.signal)) };
            }
        }
    });
    let waited = wait_unreaped(pid);
    handle.close();
    let _ = forwarder.join();
    waited.context("can't wait for the program")?;
    child.wait().context("can't wait for the program")
}

/// Waits for the end of a child and leaves it to be reaped.
fn wait_unreaped(pid: i32) -> io::Result<()> {
    loop {
        // SAFETY: `info` is a valid siginfo_t to write to (all of its bytes may be zero), and
        // the other arguments are numbers.
        let result = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(
                libc::P_PID,
                pid.cast_unsigned(),
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether we were started with this signal ignored (`nohup`): then the program ignores it, too.
fn ignored(signal: i32) -> bool {
    // SAFETY: a null new action makes sigaction only report; `old` is valid for writing.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0
            && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Ends as the program ended: with its exit code, or by the signal that killed it.
pub fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        die_by(signal);
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

fn die_by(signal: i32) -> ! {
    // SAFETY: the calls take numbers and pointers to locals. The default action of a signal
    // runs no code of ours; whatever is still open is the kernel's to close.
    unsafe {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // The program's own core dump is the one of interest.
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // The signal's default action is not to end the process; say it as a shell would.
    std::process::exit(128 + signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    /// A signal to this process reaches the programs of all tests: one at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static LOCK: Mutex<()> = Mutex::new(());
        LOCK.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_status_is_the_programs() {
        let _alone = alone();
        assert_eq!(run(&mut shell("exit 7")).unwrap().code(), Some(7));
        assert_eq!(run(&mut shell("kill -9 $$")).unwrap().signal(), Some(9));
    }

    #[test]
    fn a_program_that_ignores_signals_can_be_killed() {
        let _alone = alone();
        let script = "trap '' TERM; kill -TERM $PPID; sleep 60";
        let started = Instant::now();
        let status = run_or_kill(&mut shell(script)).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let _alone = alone();
        let error = run(&mut Command::new("no-such-program")).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program"));
    }

    #[test]
    fn a_signal_from_another_process_is_passed_on() {
        let _alone = alone();
        let script = "trap 'exit 42' USR1; kill -USR1 $PPID; \
                      i=0; while [ $i -lt 200 ]; do i=$((i+1)); sleep 0.05; done";
        let started = Instant::now();
        assert_eq!(run(&mut shell(script)).unwrap().code(), Some(42));
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
