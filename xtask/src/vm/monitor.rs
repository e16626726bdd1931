//! QEMU and what belongs to it, from Debian's packages, run where they were unpacked.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::archive::{self, Archive};

/// The suites that have a QEMU which speaks vfio-user; Debian 12's own does not.
const SUITES: &[&str] = &["trixie", "trixie-backports"];
const PACKAGES: [&str; 3] = ["qemu-system-x86", "virtiofsd", "busybox-static"];

/// The unpacked packages.
pub struct Monitor {
    root: PathBuf,
}

/// Fetches them, unless they are there.
pub fn resolve() -> Result<Monitor> {
    let root = archive::home().join("monitor");
    if !root.join(".unpacked").is_file() {
        let lists = Archive::open(SUITES, false)?;
        lists.unpack("QEMU and virtiofsd", &PACKAGES, true, &root)?;
    }
    Ok(Monitor { root })
}

impl Monitor {
    /// A program among them, with their libraries and their loader.
    pub fn program(&self, path: &str) -> Command {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(&libraries)
            .arg(self.root.join(path))
            .env_remove("LD_PRELOAD")
            .env_remove("LD_LIBRARY_PATH")
            .env("QEMU_MODULE_DIR", libraries.join("qemu"));
        command
    }

    /// QEMU, which finds its firmware.
    pub fn qemu(&self) -> Command {
        let mut command = self.program("usr/bin/qemu-system-x86_64");
        for dir in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.root.join(dir));
        }
        command
    }

    /// A busybox that runs anywhere.
    pub fn busybox(&self) -> PathBuf {
        ["usr/bin/busybox", "bin/busybox"]
            .iter()
            .map(|path| self.root.join(path))
            .find(|path| path.is_file())
            .unwrap_or_else(|| Path::new("/bin/busybox").to_path_buf())
    }
}
