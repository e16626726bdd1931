//! soft-efa, as far as tests know about it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use soft_efa::launch::{DIR_VAR, Run};
use soft_efa::options::Options;

/// Where the library is, for a test program that was not itself started on soft-efa.
const LIBRARY_VAR: &str = soft_efa::launch::PRELOAD_VAR;
const LIBRARY: &str = "libsoft_efa_preload.so";

/// The run directory, if this process is on soft-efa.
pub fn soft_efa_dir() -> Option<PathBuf> {
    std::env::var_os(DIR_VAR).map(PathBuf::from)
}

/// The library that is preloaded into programs on soft-efa: the one in this process, or else the
/// one that `SOFT_EFA_PRELOAD` names.
pub fn preload_library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY_VAR) {
        return Some(path.into());
    }
    let list = std::env::var("LD_PRELOAD").ok()?;
    list.split([':', ' '])
        .map(Path::new)
        .find(|path| path.file_name().is_some_and(|name| name == LIBRARY))
        .map(Path::to_path_buf)
}

/// Whether the devices are soft-efa's: in this process, or in the slots of this virtual machine.
pub(crate) fn is_here() -> bool {
    soft_efa_dir().is_some() || crate::guest::here()
}

/// Puts `command` on devices of its own.
pub(crate) fn put_on(options: &Options, command: &mut Command) -> Result<Option<Run>> {
    if crate::guest::here() {
        // One set of devices is for all. Another process may be as well off with them.
        if crate::guest::current() == options.to_string() {
            return Ok(None);
        }
        return Err(crate::skips::skip(
            "it takes several sets of devices at once, and a virtual machine has one",
        ));
    }
    let Some(library) = preload_library() else {
        bail!("this test is not on soft-efa, so it can't tell where its library is");
    };
    let run = Run::new(options, &library).context("can't make a soft-efa device")?;
    run.apply(command)?;
    Ok(Some(run))
}

/// The devices' options in this process, if it is on soft-efa.
pub(crate) fn own_options() -> Option<Result<Options>> {
    is_here().then_some(())?;
    let text = std::env::var(soft_efa::launch::OPTIONS_VAR).unwrap_or_default();
    Some(text.parse().context("the options of soft-efa"))
}

/// Takes `command` off soft-efa: for compilers and other programs that need no device.
pub fn take_off(command: &mut Command) {
    if let Ok(list) = std::env::var("LD_PRELOAD") {
        let rest: Vec<_> = list
            .split([':', ' '])
            .filter(|entry| !entry.ends_with(LIBRARY) && !entry.is_empty())
            .collect();
        if rest.is_empty() {
            command.env_remove("LD_PRELOAD");
        } else {
            command.env("LD_PRELOAD", rest.join(":"));
        }
    }
    for name in [DIR_VAR, soft_efa::launch::OPTIONS_VAR, "SYSFS_PATH"] {
        command.env_remove(name);
    }
}
