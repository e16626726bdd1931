//! Running other programs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::workspace;

/// How many lines of a log are worth printing when its command has failed.
const TAIL_LINES: usize = 40;

/// The command as one line for a shell.
pub fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quoted)
        .collect::<Vec<_>>()
        .join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:+,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs the command with our input and output; anything but success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("can't run `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed: {}", shown(command), described(status));
    }
    Ok(())
}

/// The standard output of a command that must succeed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("can't run `{}`", shown(command)))?;
    if !output.status.success() {
        bail!(
            "`{}` failed: {}\n{}",
            shown(command),
            described(output.status),
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether the command can be run and succeeds, with all its output thrown away.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether we may do everything.
pub fn is_root() -> bool {
    // SAFETY: geteuid only reads a number that the kernel keeps for every process.
    unsafe { libc::geteuid() == 0 }
}

/// Whether a program of this name can be found.
pub fn on_path(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|dir| {
            let file = dir.join(program);
            std::fs::metadata(&file).is_ok_and(|meta| {
                use std::os::unix::fs::PermissionsExt;
                meta.is_file() && meta.permissions().mode() & 0o111 != 0
            })
        })
    })
}

/// Runs a command that takes a while: its output goes to `log`, a spinner (on a terminal) or
/// two lines (elsewhere) say what is happening, and the end of the log is shown if it fails.
pub fn run_logged(what: &str, command: &mut Command, log: &Path) -> Result<()> {
    if let Some(dir) = log.parent() {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("can't make the folder {}", dir.display()))?;
    }
    let mut file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(log)
        .with_context(|| format!("can't write {}", log.display()))?;
    let started = Instant::now();
    let spinner = spinner(what);
    let status = command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file.try_clone()?)
        .status()
        .with_context(|| format!("can't run `{}`", shown(command)));
    spinner.finish_and_clear();
    let status = status?;
    if !status.success() {
        file.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        bail!(
            "{what} failed: `{}`: {}\n{}\n(all of it is in {})",
            shown(command),
            described(status),
            tail(&text, TAIL_LINES),
            workspace::shown(log)
        );
    }
    eprintln!("{what}: {}", seconds(started.elapsed()));
    Ok(())
}

/// A spinner that says what is going on; on anything but a terminal, one line.
pub fn spinner(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{what} …");
    }
    quiet_spinner(what)
}

/// A spinner on a terminal, and nothing elsewhere.
pub fn quiet_spinner(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// The last `count` lines.
pub fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A duration for people.
pub fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds >= 60 {
        format!("{} min {:02} s", seconds / 60, seconds % 60)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// How a program ended, in words.
pub fn described(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal} ({})", signal_name(signal)),
        (None, None) => status.to_string(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unnamed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("apt-get");
        command.args(["install", "a b", "it's", "", "--x=1"]);
        assert_eq!(shown(&command), r"apt-get install 'a b' 'it'\''s' '' --x=1");
    }

    #[test]
    fn a_status_is_described_by_code_or_by_signal() {
        assert_eq!(described(ExitStatus::from_raw(3 << 8)), "exit status 3");
        assert_eq!(
            described(ExitStatus::from_raw(11)),
            "killed by signal 11 (SIGSEGV)"
        );
    }

    #[test]
    fn the_tail_is_the_end() {
        assert_eq!(tail("1\n2\n3\n", 2), "2\n3");
        assert_eq!(tail("1", 2), "1");
        assert_eq!(tail("", 2), "");
    }

    #[test]
    fn programs_are_found_on_the_path_alone() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-anywhere"));
    }

    #[test]
    fn a_failing_logged_command_shows_the_end_of_its_log() {
        let log = std::env::temp_dir().join(format!("xtask-log-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "echo the cause; exit 4"]);
        let error = run_logged("trying", &mut command, &log)
            .unwrap_err()
            .to_string();
        std::fs::remove_file(&log).unwrap();
        assert!(
            error.contains("the cause") && error.contains("exit status 4"),
            "{error}"
        );
    }
}
