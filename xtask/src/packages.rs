//! System packages that the commands need: found, and installed where that is possible.

use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// How to find out whether a package is there.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// One of these programs is on the path.
    Programs(&'static [&'static str]),
    /// pkg-config knows this module.
    Module(&'static str),
    /// Some Python on the path has this module.
    Python(&'static str),
}

/// A package of the system, by its names.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    debian: &'static str,
    fedora: &'static str,
    probe: Probe,
}

macro_rules! packages {
    ($($(#[$doc:meta])* $name:ident: $debian:literal, $fedora:literal, $probe:expr;)*) => {
        $($(#[$doc])* pub const $name: Package = Package {
            debian: $debian,
            fedora: $fedora,
            probe: $probe,
        };)*
        #[cfg(test)]
        const ALL: &[Package] = &[$($name),*];
    };
}

packages! {
    /// The C compiler.
    CC: "gcc", "gcc", Probe::Programs(&["cc"]);
    /// Finds libraries.
    PKG_CONFIG: "pkg-config", "pkgconf-pkg-config", Probe::Programs(&["pkg-config"]);
    /// Configures rdma-core.
    CMAKE: "cmake", "cmake", Probe::Programs(&["cmake"]);
    /// Builds rdma-core.
    BUILD_TOOL: "ninja-build", "ninja-build", Probe::Programs(&["ninja", "make"]);
    /// Netlink, which libibverbs links to.
    LIBNL: "libnl-3-dev", "libnl3-devel", Probe::Module("libnl-3.0");
    /// Its routing part.
    LIBNL_ROUTE: "libnl-route-3-dev", "libnl3-devel", Probe::Module("libnl-route-3.0");
    /// The system's libibverbs and libefa with their headers.
    LIBIBVERBS: "libibverbs-dev", "rdma-core-devel", Probe::Module("libibverbs");
    /// `ibv_devices` and `ibv_devinfo`.
    IBVERBS_UTILS: "ibverbs-utils", "libibverbs-utils", Probe::Programs(&["ibv_devinfo"]);
    /// Fetches rdma-core's source.
    PIP: "python3-pip", "python3-pip", Probe::Python("pip");
    /// Memory checks and instruction counts.
    VALGRIND: "valgrind", "valgrind", Probe::Programs(&["valgrind"]);
    /// Translates rdma-core's Python modules into C.
    CYTHON: "cython3", "python3-Cython", Probe::Programs(&["cython3", "cython"]);
    /// What they are compiled against.
    PYTHON_DEV: "python3-dev", "python3-devel", Probe::Module("python3");
    /// Builds them.
    NINJA: "ninja-build", "ninja-build", Probe::Programs(&["ninja"]);
    /// Shows RDMA devices; rdma-core's tests run it.
    RDMA_TOOL: "iproute2", "iproute", Probe::Programs(&["rdma"]);
    /// Bandwidth and latency of verbs.
    PERFTEST: "perftest", "perftest", Probe::Programs(&["ib_send_bw"]);
    /// libfabric's programs.
    LIBFABRIC: "libfabric-bin", "libfabric", Probe::Programs(&["fi_pingpong"]);
    /// Network namespaces.
    IPROUTE: "iproute2", "iproute", Probe::Programs(&["ip"]);
    /// Makes a clean Debian root.
    DEBOOTSTRAP: "debootstrap", "debootstrap", Probe::Programs(&["debootstrap"]);
    /// Clones the workspace into it.
    GIT: "git", "git", Probe::Programs(&["git"]);
    /// Builds kernel modules.
    MAKE: "make", "make", Probe::Programs(&["make"]);
    /// Unpacks kernel sources and modules.
    XZ: "xz-utils", "xz", Probe::Programs(&["xz"]);
    /// Makes namespaces.
    UNSHARE: "util-linux", "util-linux", Probe::Programs(&["unshare"]);
}

impl Package {
    /// Its name, as Debian has it.
    pub fn name(&self) -> &'static str {
        self.debian
    }

    /// Whether it is there.
    pub fn present(&self) -> bool {
        match self.probe {
            Probe::Programs(names) => names.iter().any(|name| process::on_path(name)),
            Probe::Module(name) => {
                process::succeeds(Command::new("pkg-config").args(["--exists", name]))
            }
            Probe::Python(module) => python_with(module).is_some(),
        }
    }
}

/// The first Python that has `module`.
pub fn python_with(module: &str) -> Option<&'static str> {
    let import = format!("import {module}");
    ["python3", "/usr/bin/python3", "python"]
        .into_iter()
        .find(|python| process::succeeds(Command::new(python).args(["-c", &import])))
}

/// The family of Linux distributions, which decides the names of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Debian,
    Fedora,
    Unknown,
}

fn family(os_release: &str) -> Family {
    let value = |key: &str| {
        os_release
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches(['"', '\'']).to_owned())
            .unwrap_or_default()
    };
    let names = format!("{} {}", value("ID"), value("ID_LIKE"));
    let is = |family: &[&str]| names.split_whitespace().any(|name| family.contains(&name));
    if is(&["debian", "ubuntu"]) {
        Family::Debian
    } else if is(&["fedora", "rhel", "centos", "amzn"]) {
        Family::Fedora
    } else {
        Family::Unknown
    }
}

fn this_family() -> Family {
    family(&fs::read_to_string("/etc/os-release").unwrap_or_default())
}

/// The command line that installs `packages`, for a person to type.
fn instructions(packages: &[Package], family: Family) -> String {
    let names = |name: fn(&Package) -> &'static str| {
        let mut names: Vec<_> = packages.iter().map(name).collect();
        names.dedup();
        names.join(" ")
    };
    let debian = format!(
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends {}",
        names(|package| package.debian)
    );
    let fedora = format!("sudo dnf install -y {}", names(|package| package.fedora));
    match family {
        Family::Debian => debian,
        Family::Fedora => fedora,
        Family::Unknown => format!("on Debian or Ubuntu: {debian}\non Amazon Linux: {fedora}"),
    }
}

/// Installs the packages where [`ensure`] could do that; elsewhere what wants them does without.
pub fn wish(packages: &[Package]) {
    let able = this_family() == Family::Debian && process::is_root();
    if able && let Err(error) = ensure(packages) {
        eprintln!("note: {error:#}");
    }
}

/// Makes sure that the packages are there. Missing ones are installed if we are root on a
/// Debian-like system (and, on a terminal, are told to); otherwise the error has the command
/// that installs them.
pub fn ensure(packages: &[Package]) -> Result<()> {
    let mut missing: Vec<Package> = Vec::new();
    for package in packages {
        let named = missing.iter().any(|other| other.debian == package.debian);
        if !named && !package.present() {
            missing.push(*package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let family = this_family();
    let names: Vec<_> = missing.iter().map(|package| package.debian).collect();
    if family != Family::Debian || !process::is_root() || !process::on_path("apt-get") {
        bail!(
            "packages of the system are missing; install them and run this again:\n{}",
            instructions(&missing, family)
        );
    }
    if !agreed(&names)? {
        bail!(
            "nothing was installed; this does it:\n{}",
            instructions(&missing, family)
        );
    }
    install(&names)?;
    let still: Vec<Package> = missing.into_iter().filter(|p| !p.present()).collect();
    if !still.is_empty() {
        bail!(
            "these packages were installed and still can't be used: {}",
            still.iter().map(|p| p.debian).collect::<Vec<_>>().join(" ")
        );
    }
    Ok(())
}

/// Asks on a terminal; elsewhere nobody is there to answer, and being root is consent.
fn agreed(names: &[&str]) -> Result<bool> {
    let list = names.join(" ");
    let somebody = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !somebody || std::env::var_os("CI").is_some() {
        return Ok(true);
    }
    eprint!("Install these system packages: {list}? [Y/n] ");
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(yes(&answer))
}

/// An end of input (an empty string without even a newline) is no.
fn yes(answer: &str) -> bool {
    !answer.is_empty() && matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes")
}

fn install(names: &[&str]) -> Result<()> {
    eprintln!("installing system packages: {}", names.join(" "));
    let log = crate::workspace::target().join("xtask/apt.log");
    let mut refreshed = false;
    if !lists_present() {
        process::run_logged("apt-get update", apt().arg("update"), &log)?;
        refreshed = true;
    }
    let mut command = apt();
    command
        .args(["install", "-y", "--no-install-recommends"])
        .args(names);
    let what = format!("apt-get install {}", names.join(" "));
    let first = process::run_logged(&what, &mut command, &log);
    if first.is_ok() || refreshed {
        return first;
    }
    // The lists may be older than what the archive still has.
    process::run_logged("apt-get update", apt().arg("update"), &log)
        .context("the packages could not be installed, nor the lists of packages renewed")?;
    process::run_logged(&what, &mut command, &log)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-q",
        "-o",
        "Dpkg::Use-Pty=0",
        "-o",
        "DPkg::Lock::Timeout=300",
    ]);
    command
}

fn lists_present() -> bool {
    fs::read_dir("/var/lib/apt/lists").is_ok_and(|entries| {
        entries
            .flatten()
            .any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_follows_id_and_id_like() {
        let cases = [
            ("ID=debian\n", Family::Debian),
            ("NAME=x\nID=ubuntu\nID_LIKE=debian\n", Family::Debian),
            ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Debian),
            ("ID=\"amzn\"\nID_LIKE=\"fedora\"\n", Family::Fedora),
            ("ID=rocky\nID_LIKE=\"rhel centos fedora\"\n", Family::Fedora),
            ("ID=arch\n", Family::Unknown),
            ("VARIANT_ID=debian\n", Family::Unknown),
            ("", Family::Unknown),
        ];
        for (text, expected) in cases {
            assert_eq!(family(text), expected, "{text:?}");
        }
    }

    #[test]
    fn instructions_name_each_package_once() {
        let text = instructions(&[LIBNL, LIBNL_ROUTE], Family::Fedora);
        assert_eq!(text, "sudo dnf install -y libnl3-devel");
        let text = instructions(&[CMAKE, PIP], Family::Debian);
        assert!(text.ends_with("cmake python3-pip"), "{text}");
        let text = instructions(ALL, Family::Unknown);
        assert!(text.contains("apt-get") && text.contains("dnf"), "{text}");
    }

    #[test]
    fn only_a_clear_answer_installs() {
        for answer in ["\n", "y\n", "Yes\n", " Y \n"] {
            assert!(yes(answer), "{answer:?}");
        }
        for answer in ["", "n\n", "no\n", "what\n"] {
            assert!(!yes(answer), "{answer:?}");
        }
    }
}
