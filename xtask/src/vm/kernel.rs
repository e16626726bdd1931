//! The guest's kernel, and the real EFA driver for it.
//!
//! Debian's kernels are built without the driver, but its source is in the kernel's: it is built as
//! a module against the kernel's headers.

use std::fs;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::archive::{self, Archive};
use crate::{packages, process};

/// The kernels at hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Debian 12's own (6.1).
    Bookworm,
    /// The one that Debian 12's backports have (6.12).
    #[default]
    BookwormBackports,
}

impl Choice {
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Bookworm => &["bookworm"],
            Self::BookwormBackports => &["bookworm-backports"],
        }
    }
}

/// The driver's place in the kernel's source.
const DRIVER: &str = "drivers/infiniband/hw/efa";

/// Modules that a guest loads, in this order; some kernels have some of them built in.
const MODULES: [&str; 14] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_console",
    "fuse",
    "virtiofs",
    "overlay",
    "failover",
    "net_failover",
    "virtio_net",
    "ib_core",
    "ib_uverbs",
];

/// What building the driver takes.
const NEEDED: [packages::Package; 3] = [packages::CC, packages::MAKE, packages::XZ];

/// A kernel with its modules.
pub struct Kernel {
    /// Its release, as `uname -r` says it.
    pub release: String,
    /// The image.
    pub image: PathBuf,
    /// The modules to load, in order.
    pub modules: Vec<PathBuf>,
}

/// Fetches a kernel and builds the driver, unless both are there.
pub fn resolve(choice: Choice) -> Result<Kernel> {
    packages::ensure(&NEEDED)?;
    let [suite] = choice.suites() else {
        bail!("a kernel is of one suite");
    };
    let dir = archive::home().join("kernel").join(suite);
    let release_file = dir.join("release");
    if let Ok(release) = fs::read_to_string(&release_file) {
        loosen(&dir, &release)?;
        if let Some(kernel) = made(&dir, &release) {
            return Ok(kernel);
        }
    }
    fs::create_dir_all(&dir)?;
    let lists = Archive::open(choice.suites(), false)?;
    let release = release_of(&lists)?;
    let common = release.replace("-cloud-amd64", "");
    let packages = [
        format!("linux-image-{release}-unsigned"),
        format!("linux-headers-{release}"),
        format!("linux-headers-{common}-common"),
        format!("linux-kbuild-{}", kbuild_of(&lists, &release)?),
    ];
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    let root = dir.join("root");
    lists.unpack(&format!("Linux {release}"), &names, false, &root)?;
    let sources = lists.depends("linux-source")?;
    let source = sources
        .iter()
        .find(|name| name.starts_with("linux-source-"))
        .with_context(|| format!("{suite} has no package of the kernel's source"))?;
    let driver = dir.join("efa");
    let _ = fs::remove_dir_all(&driver);
    let unpacked = dir.join("source");
    lists.unpack(
        &format!("the source of Linux {release}"),
        &[source],
        false,
        &unpacked,
    )?;
    extract(&unpacked.join(format!("usr/src/{source}.tar.xz")), &driver)?;
    // It is large, and nothing else in it is of use.
    fs::remove_dir_all(&unpacked)?;
    build(&root, &release, &driver, &dir.join("build.log"))?;
    loosen(&dir, &release)?;
    let made_driver = dir.join("modules/efa.ko");
    fs::copy(driver.join("efa.ko"), made_driver).context("the build made no efa.ko")?;
    fs::write(&release_file, &release)?;
    made(&dir, &release).context("the kernel that was just made is not complete")
}

/// Unpacks the modules that are not unpacked yet.
fn loosen(dir: &Path, release: &str) -> Result<()> {
    let loose = dir.join("modules");
    fs::create_dir_all(&loose)?;
    for name in MODULES {
        let file = loose.join(format!("{name}.ko"));
        if !file.exists()
            && let Some(packed) = module(&dir.join("root"), release, name)?
        {
            decompress(&packed, &file)?;
        }
    }
    Ok(())
}

fn made(dir: &Path, release: &str) -> Option<Kernel> {
    let image = dir.join(format!("root/boot/vmlinuz-{release}"));
    let loose = dir.join("modules");
    let modules: Vec<PathBuf> = MODULES
        .iter()
        .map(|name| loose.join(format!("{name}.ko")))
        .filter(|file| file.exists())
        .chain([loose.join("efa.ko")])
        .collect();
    (image.is_file() && loose.join("efa.ko").is_file()).then(|| Kernel {
        release: release.to_owned(),
        image,
        modules,
    })
}

/// The release that the suite's package for cloud machines stands for.
fn release_of(lists: &Archive) -> Result<String> {
    let meta = "linux-headers-cloud-amd64";
    let found = lists.depends(meta)?;
    found
        .iter()
        .find_map(|name| name.strip_prefix("linux-headers-").map(str::to_owned))
        .with_context(|| format!("the package {meta} names no kernel"))
}

/// The version in the name of the package with the kernel's build programs.
fn kbuild_of(lists: &Archive, release: &str) -> Result<String> {
    let headers = format!("linux-headers-{release}");
    let found = lists.depends(&headers)?;
    found
        .iter()
        .find_map(|name| name.strip_prefix("linux-kbuild-").map(str::to_owned))
        .with_context(|| format!("the package {headers} names no build programs"))
}

/// The file of a module, if it is not built in.
fn module(root: &Path, release: &str, name: &str) -> Result<Option<PathBuf>> {
    let kernel = root.join(format!("lib/modules/{release}/kernel"));
    let order = root.join(format!("lib/modules/{release}/modules.order"));
    let text =
        fs::read_to_string(&order).with_context(|| format!("can't read {}", order.display()))?;
    let wanted = format!("/{name}.ko");
    for line in text.lines() {
        let plain = line.trim_start_matches("kernel/");
        if plain.ends_with(&wanted) {
            for end in ["", ".xz", ".zst"] {
                let file = kernel.join(format!("{plain}{end}"));
                if file.is_file() {
                    return Ok(Some(file));
                }
            }
        }
    }
    Ok(None)
}

fn decompress(packed: &Path, to: &Path) -> Result<()> {
    let program = match packed.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("ko") => {
            fs::copy(packed, to)?;
            return Ok(());
        }
        other => bail!("{}: no program for {other:?}", packed.display()),
    };
    let out = fs::File::create(to).with_context(|| format!("can't write {}", to.display()))?;
    let mut command = Command::new(program);
    command.arg("-dc").arg(packed).stdout(out);
    process::run(&mut command)
}

/// Takes the driver's files from the kernel's source, which is read no further than needed.
fn extract(archive: &Path, to: &Path) -> Result<()> {
    let spinner = process::spinner("taking the EFA driver from the kernel's source");
    fs::create_dir_all(to)?;
    let mut unpacking = Command::new("xz")
        .arg("-dc")
        .arg(archive)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("can't run xz")?;
    let stdout = unpacking.stdout.take().context("xz has no output")?;
    let found = copy_from_tar(BufReader::with_capacity(1 << 20, stdout), to);
    // It may not be through yet; the rest is of no interest.
    let _ = unpacking.kill();
    let _ = unpacking.wait();
    spinner.finish_and_clear();
    ensure!(found? > 0, "{} has no {DRIVER}", archive.display());
    Ok(())
}

/// Copies the files below [`DRIVER`] and stops behind them. How many there were.
fn copy_from_tar(mut tar: impl Read, to: &Path) -> Result<u32> {
    let mut header = [0; 512];
    let mut found = 0;
    loop {
        tar.read_exact(&mut header)
            .context("the archive ends early")?;
        let name = text(&header[..100]);
        if name.is_empty() {
            return Ok(found);
        }
        let prefix = text(&header[345..500]);
        let path = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}/{name}")
        };
        let size = u64::from_str_radix(text(&header[124..136]).trim(), 8)
            .with_context(|| format!("{path} has no size"))?;
        let file = path
            .split_once('/')
            .and_then(|(_, below)| below.strip_prefix(DRIVER)?.strip_prefix('/'))
            .filter(|below| !below.is_empty() && !below.contains('/'));
        let mut data = (&mut tar).take(size.next_multiple_of(512));
        match file {
            Some(file) => {
                let mut bytes = Vec::new();
                data.read_to_end(&mut bytes)?;
                bytes.truncate(size as usize);
                fs::write(to.join(file), bytes)?;
                found += 1;
            }
            None if found > 0 => return Ok(found),
            None => {
                std::io::copy(&mut data, &mut std::io::sink())?;
            }
        }
    }
}

fn text(field: &[u8]) -> String {
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

/// Builds the module.
fn build(root: &Path, release: &str, driver: &Path, log: &Path) -> Result<()> {
    let headers = root.join(format!("usr/src/linux-headers-{release}"));
    // The headers were made to be installed below /usr/src.
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)
        .with_context(|| format!("can't read {}", makefile.display()))?;
    let own = format!("include {}/usr/src/", root.display());
    fs::write(&makefile, text.replace("include /usr/src/", &own))?;
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(&headers)
        .arg(format!("M={}", driver.display()))
        .args(["CC=gcc", "CROSS_COMPILE=", "CONFIG_INFINIBAND_EFA=m"])
        // That would take the kernel's debug information.
        .arg("CONFIG_DEBUG_INFO_BTF_MODULES=")
        .arg("modules");
    process::run_logged("building the EFA driver", &mut make, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        bytes[..path.len()].copy_from_slice(path.as_bytes());
        let size = format!("{:011o}", data.len());
        bytes[124..135].copy_from_slice(size.as_bytes());
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    #[test]
    fn the_drivers_files_are_taken_and_nothing_behind_them_is_read() {
        let dir = std::env::temp_dir().join(format!("xtask-tar-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let tar = [
            entry("linux-source-9/Makefile", b"no"),
            entry(&format!("linux-source-9/{DRIVER}/"), b""),
            entry(&format!("linux-source-9/{DRIVER}/efa.h"), &[7; 700]),
            entry(&format!("linux-source-9/{DRIVER}/Makefile"), b"yes"),
            entry("linux-source-9/other", b"no"),
        ]
        .concat();
        assert_eq!(copy_from_tar(&tar[..], &dir).unwrap(), 2);
        assert_eq!(fs::read(dir.join("Makefile")).unwrap(), b"yes");
        assert_eq!(fs::read(dir.join("efa.h")).unwrap(), [7; 700]);
        assert!(copy_from_tar(&tar[..700], &dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
