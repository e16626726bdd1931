//! `cargo xtask soft-efa ctl`: asks and changes the devices of running programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::Value;
use soft_efa::ctl::Client;
use soft_efa::launch;

/// What follows `cargo xtask soft-efa ctl`.
#[derive(Args)]
pub struct Control {
    /// Only the devices of this process. [default: of every process that has opened one]
    #[arg(long, global = true)]
    pid: Option<u32>,
    /// Only the device of this name. [default: all devices of the process]
    #[arg(long, global = true, value_name = "NAME")]
    device: Option<String>,
    #[command(subcommand)]
    request: Request,
}

#[derive(Subcommand)]
enum Request {
    /// Print the counters.
    Counters,
    /// Print how many objects of each kind live.
    Objects,
    /// Replace the fault plan; without SPEC nothing goes wrong any more.
    Faults {
        /// What goes wrong; the language is in tests/soft-efa/README.md.
        #[arg(
            value_name = "SPEC",
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        spec: Vec<String>,
    },
    /// Stop the devices: nothing is sent, received or completed.
    Pause,
    /// Let the devices go on.
    Resume,
}

impl Request {
    fn line(&self, device: Option<&str>) -> String {
        let verb = match self {
            Self::Counters => "counters",
            Self::Objects => "objects",
            Self::Faults { .. } => "faults",
            Self::Pause => "pause",
            Self::Resume => "resume",
        };
        let mut words = vec![verb];
        words.extend(device);
        if let Self::Faults { spec } = self {
            words.extend(spec.iter().map(String::as_str));
        }
        words.join(" ")
    }
}

/// Does what the command line says.
pub fn run(control: &Control) -> Result<ExitCode> {
    let line = control.request.line(control.device.as_deref());
    let processes = processes(control.pid)?;
    let mut reached = 0;
    for (dir, pid) in &processes {
        match Client::connect(dir, *pid) {
            Ok(mut client) => {
                let answer = client
                    .request(&line)
                    .with_context(|| format!("process {pid} ({})", program(*pid)))?;
                reached += 1;
                println!("process {pid} ({})", program(*pid));
                print!("{}", shown(&answer));
            }
            // It ended since it was listed.
            Err(_) if control.pid.is_none() => {}
            Err(error) => return Err(error.into()),
        }
    }
    if reached == 0 {
        bail!(
            "no program on soft-efa has a device open; start one with \
             `cargo xtask soft-efa -- COMMAND`"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn processes(only: Option<u32>) -> Result<Vec<(PathBuf, u32)>> {
    let mut found = Vec::new();
    for dir in launch::runs() {
        // A run that ends while we look has no processes.
        for pid in Client::processes(&dir).unwrap_or_default() {
            if only.is_none_or(|only| only == pid) {
                found.push((dir.clone(), pid));
            }
        }
    }
    match only {
        Some(pid) if found.is_empty() => {
            bail!("process {pid} is not on soft-efa, or has opened no device")
        }
        _ => Ok(found),
    }
}

fn program(pid: u32) -> String {
    let path = Path::new("/proc").join(pid.to_string()).join("comm");
    let name = fs::read_to_string(path).unwrap_or_default();
    name.trim_end().to_owned()
}

/// An answer as lines of name and value.
fn shown(answer: &Value) -> String {
    match answer {
        Value::Null => "  done\n".to_owned(),
        Value::Object(object) => {
            let width = object.keys().map(String::len).max().unwrap_or(0);
            object
                .iter()
                .map(|(name, value)| format!("  {name:width$}  {value}\n"))
                .collect()
        }
        other => format!("  {other}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_is_one_line_with_its_device_first() {
        let spec = vec!["loss=0.1,".to_owned(), "seed=3".to_owned()];
        let faults = Request::Faults { spec };
        assert_eq!(faults.line(Some("efa_1")), "faults efa_1 loss=0.1, seed=3");
        assert_eq!(Request::Counters.line(None), "counters");
    }

    #[test]
    fn numbers_are_aligned() {
        assert_eq!(
            shown(&json!({"a": 1, "long": 20})),
            "  a     1\n  long  20\n"
        );
        assert_eq!(shown(&Value::Null), "  done\n");
    }
}
