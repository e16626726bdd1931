//! Devices of a virtual machine, driven by the real driver: one set of them for all processes.
//!
//! A test that wants other devices has the cards changed, as far as the driver can tell: it lets go
//! of the old ones, the devices' server puts others in their slots, and the bus is looked at again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use soft_efa::ctl::Client;
use soft_efa::launch::{HOST_VAR, OPTIONS_VAR};
use soft_efa::options::{Abi, Options};

use crate::deadline::scaled;
use crate::skips::skip;

/// What the devices are like now; there is no such file before the first change.
const CURRENT: &str = "/run/soft-efa.current";

/// Whether this is such a machine.
pub(crate) fn here() -> bool {
    std::env::var_os(HOST_VAR).is_some()
}

/// The options that tests get which ask for none.
pub(crate) fn usual() -> Result<Options> {
    let text = std::env::var(OPTIONS_VAR).unwrap_or_default();
    text.parse().context("the options of soft-efa")
}

/// What the devices are like now.
pub(crate) fn current() -> String {
    fs::read_to_string(CURRENT).unwrap_or_default()
}

/// Makes the devices what `options` say; with `fresh`, with counters at zero.
pub(crate) fn become_like(options: &Options, fresh: bool) -> Result<()> {
    if options.abi != Abi::Ioctl {
        return Err(skip(
            "the real kernel offers both of its interfaces at once",
        ));
    }
    let text = options.to_string();
    if !fresh && current() == text {
        // A test before this one may have changed what is not an option.
        let mut host = Client::own()?;
        host.set_faults(&options.faults)?;
        host.resume()?;
        return Ok(());
    }
    // Whatever goes wrong below, the next test starts anew.
    fs::write(CURRENT, "")?;
    for device in cards() {
        let remove = device.join("remove");
        fs::write(&remove, "1").with_context(|| format!("can't write {}", remove.display()))?;
    }
    Client::own()?.change(&text)?;
    fs::write("/sys/bus/pci/rescan", "1").context("can't look for devices")?;
    // The bus asks every driver before it returns.
    if cards().iter().any(|card| !card.join("driver").exists()) {
        return Err(skip(format!(
            "this kernel's driver does not know the PCI id of {}",
            options
                .profile
                .map_or_else(|| "the usual profile".to_owned(), |name| name.to_string())
        )));
    }
    let ends = Instant::now() + scaled(Duration::from_secs(60));
    let wanted = options.devices as usize;
    while links("/sys/class/infiniband").len() != wanted || nodes() != wanted {
        if Instant::now() > ends {
            bail!("the driver does not find {wanted} devices with {text}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::write(CURRENT, text)?;
    Ok(())
}

/// Links in a directory that lead to devices.
fn links(dir: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_symlink() && !path.ends_with("module"))
        .collect();
    found.sort();
    found
}

/// The cards in the slots, whether a driver has them or not.
fn cards() -> Vec<PathBuf> {
    let mut found = links("/sys/bus/pci/devices");
    found.retain(|card| {
        let vendor = fs::read_to_string(card.join("vendor")).unwrap_or_default();
        vendor.trim() == format!("{:#06x}", soft_efa::profile::PCI_VENDOR)
    });
    found
}

/// Device files.
fn nodes() -> usize {
    let Ok(entries) = fs::read_dir(Path::new("/dev/infiniband")) else {
        return 0;
    };
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"))
        .count()
}
