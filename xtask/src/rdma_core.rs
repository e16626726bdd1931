//! Which libibverbs and libefa everything is built and run against.
//!
//! One answer for every command: the system's where it can do RDMA write, else one that is built
//! here into `target/rdma-core/VERSION`. [`RdmaCore::apply`] makes a command use it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::packages::{self, Package};
use crate::source::{self, Tree};
use crate::{process, workspace};

/// The first release whose libefa can post RDMA writes.
const FIRST_WITH_WRITE: u32 = 46;

/// The first release whose libefa knows the PCI id of p5en.
pub const FIRST_WITH_P5EN: u32 = 50;

/// Which rdma-core to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// The tree in RDMA_CORE_SRC if that is set, else the system's if it is new enough, else
    /// the pinned release.
    #[default]
    Auto,
    /// The system's, whatever it can do.
    System,
    /// The pinned release, built here.
    Pinned,
}

/// An rdma-core to build and run against.
#[derive(Clone, Debug)]
pub struct RdmaCore {
    /// The release, for example `59.0`.
    pub version: String,
    /// Where it was built to; the system's has none.
    pub prefix: Option<PathBuf>,
}

impl RdmaCore {
    /// Makes a command, and what it starts, build and run against this rdma-core.
    pub fn apply(&self, command: &mut Command) {
        if let Some(prefix) = &self.prefix {
            prepend(command, "PKG_CONFIG_PATH", &prefix.join("lib/pkgconfig"));
            prepend(command, "LD_LIBRARY_PATH", &prefix.join("lib"));
            prepend(command, "PATH", &prefix.join("bin"));
        }
        // Without this a libibverbs that was not installed looks for provider lists where it
        // would have been installed.
        command.env("RDMAV_DRIVERS", "efa");
    }

    /// A program that cargo has made, in its package's folder, with these libraries.
    pub fn program(&self, file: &Path, package: &Path) -> Command {
        let mut command = Command::new(file);
        command.current_dir(package);
        crate::build::clean(&mut command);
        command.env("CARGO_MANIFEST_DIR", package);
        self.apply(&mut command);
        command
    }

    /// The first part of the release's number.
    pub fn major(&self) -> u32 {
        major(&self.version)
    }

    /// One line about what is used and why.
    pub fn described(&self) -> String {
        match &self.prefix {
            Some(prefix) => {
                let built = workspace::shown(prefix);
                format!("rdma-core {}, built in {built}", self.version)
            }
            None => format!("the system's rdma-core {}", self.version),
        }
    }
}

/// Puts `dir` in front of a path list, on top of what the command or else we have.
fn prepend(command: &mut Command, name: &str, dir: &Path) {
    let set = command
        .get_envs()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.map(OsString::from));
    let rest = set.unwrap_or_else(|| env::var_os(name)).unwrap_or_default();
    let others = env::split_paths(&rest).filter(|path| path != dir && !path.as_os_str().is_empty());
    let dirs = std::iter::once(dir.to_path_buf()).chain(others);
    // Joining fails only for a folder with a colon in its name, which the loader can't search.
    if let Ok(list) = env::join_paths(dirs) {
        command.env(name, list);
    }
}

fn major(version: &str) -> u32 {
    version
        .split('.')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Finds the rdma-core to use, and builds it if need be.
pub fn resolve(choice: Choice) -> Result<RdmaCore> {
    packages::ensure(&needed(choice))?;
    if choice == Choice::Auto {
        if let Some(tree) = source::other()? {
            return built(&tree);
        }
        if let Some(version) = system_version().filter(|v| major(v) >= FIRST_WITH_WRITE) {
            return Ok(system(version));
        }
    }
    if choice == Choice::System {
        let version = system_version().context("pkg-config does not know the system's libefa")?;
        return Ok(system(version));
    }
    if pinned_is_built() {
        return Ok(RdmaCore {
            version: source::PINNED.to_owned(),
            prefix: Some(prefix_of(source::PINNED)),
        });
    }
    built(&source::pinned()?)
}

/// What [`resolve`] and building against its answer take. Those who need more install it all
/// in one go, before anything slow.
pub fn needed(choice: Choice) -> Vec<Package> {
    let to_use = vec![packages::CC, packages::PKG_CONFIG];
    let auto = choice == Choice::Auto;
    let other = std::env::var_os(source::OTHER).is_some_and(|dir| !dir.is_empty());
    if choice == Choice::System {
        [to_use, vec![packages::LIBIBVERBS]].concat()
    } else if auto && other {
        TO_BUILD.to_vec()
    } else if pinned_is_built()
        || auto && system_version().is_some_and(|version| major(&version) >= FIRST_WITH_WRITE)
    {
        to_use
    } else {
        [TO_BUILD.to_vec(), vec![packages::PIP]].concat()
    }
}

fn pinned_is_built() -> bool {
    let stamp = stamp_of(&prefix_of(source::PINNED));
    fs::read_to_string(stamp).is_ok_and(|text| text == recipe(None))
}

fn system(version: String) -> RdmaCore {
    RdmaCore {
        version,
        prefix: None,
    }
}

/// Whether programs of the system have a libefa to run with.
pub fn system_has_library() -> bool {
    ["ldconfig", "/sbin/ldconfig"].into_iter().any(|ldconfig| {
        process::output(Command::new(ldconfig).arg("-p"))
            .is_ok_and(|list| list.contains("libefa.so.1 "))
    })
}

/// The release of the installed libefa, by its file's name; 0 if there is none.
pub fn installed_major() -> u32 {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .iter()
        .filter_map(|dir| fs::read_link(Path::new(dir).join("libefa.so.1")).ok())
        .filter_map(|file| release(file.to_str()?.strip_prefix("libefa.so.")?))
        .map(|release| major(&release))
        .next()
        .unwrap_or(0)
}

/// The release of the installed libefa, if its headers are there.
pub fn system_version() -> Option<String> {
    let mut command = Command::new("pkg-config");
    command.args(["--modversion", "libefa"]);
    release(process::output(&mut command).ok()?.trim())
}

/// The release in a library's version: 1.4.59.0 belongs to rdma-core 59.0.
fn release(library: &str) -> Option<String> {
    let numbers: Vec<&str> = library.split('.').collect();
    match numbers[..] {
        [_, _, major, minor] if major.parse::<u32>().is_ok() => Some(format!("{major}.{minor}")),
        _ => None,
    }
}

const TO_BUILD: [Package; 6] = [
    packages::CC,
    packages::PKG_CONFIG,
    packages::CMAKE,
    packages::BUILD_TOOL,
    packages::LIBNL,
    packages::LIBNL_ROUTE,
];

fn prefix_of(name: &str) -> PathBuf {
    workspace::rdma_core().join(name)
}

fn stamp_of(prefix: &Path) -> PathBuf {
    prefix.join("made-from")
}

/// Raised when the way of building changes, so that old prefixes are built again.
const RECIPE: u32 = 3;

/// What a finished prefix was made from, and how.
fn recipe(other: Option<&Path>) -> String {
    match other {
        None => format!("recipe {RECIPE}, pinned\n"),
        Some(path) => format!("recipe {RECIPE}, {}\n", path.display()),
    }
}

const CMAKE_OPTIONS: [&str; 6] = [
    "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    "-DCMAKE_INSTALL_LIBDIR=lib",
    "-DENABLE_STATIC=0",
    // Instruction counts must not depend on whether valgrind's headers are installed.
    "-DENABLE_VALGRIND=0",
    "-DNO_MAN_PAGES=1",
    "-DNO_PYVERBS=1",
];

/// The two libraries, and two programs that show devices: the system's need its own libibverbs.
const TARGETS: [&str; 4] = ["ibverbs", "efa", "ibv_devices", "ibv_devinfo"];

/// Builds libibverbs and libefa of `tree` and puts what programs need into a prefix.
fn built(tree: &Tree) -> Result<RdmaCore> {
    let name = if tree.pinned {
        tree.version.clone()
    } else {
        format!("{}-other", tree.version)
    };
    let prefix = prefix_of(&name);
    let build = workspace::rdma_core().join("build").join(&name);
    let log = workspace::rdma_core()
        .join("log")
        .join(format!("{name}.log"));
    let done = RdmaCore {
        version: tree.version.clone(),
        prefix: Some(prefix.clone()),
    };
    fs::create_dir_all(workspace::rdma_core())?;
    // Two commands at once must not build into the same folder; the lock goes with the file.
    let lock = fs::File::create(workspace::rdma_core().join("lock"))?;
    lock.lock().context("can't lock target/rdma-core")?;

    let other = (!tree.pinned).then_some(tree.path.as_path());
    let stamp = fs::read_to_string(stamp_of(&prefix)).unwrap_or_default();
    let made = stamp == recipe(other);
    if made && tree.pinned {
        return Ok(done);
    }
    if !made {
        let _ = fs::remove_dir_all(&prefix);
        let source = |text: &str| text.split_once(',').map(|(_, source)| source.to_owned());
        if source(&stamp) != source(&recipe(other)) {
            let _ = fs::remove_dir_all(&build);
        }
    }
    if !made || !build.join("CMakeCache.txt").is_file() {
        let mut cmake = Command::new("cmake");
        cmake.arg("-S").arg(&tree.path).arg("-B").arg(&build);
        if process::on_path("ninja") {
            cmake.args(["-G", "Ninja"]);
        }
        cmake
            .args(CMAKE_OPTIONS)
            .arg(format!("-DCMAKE_INSTALL_PREFIX={}", prefix.display()));
        let what = format!("configuring rdma-core {}", tree.version);
        process::run_logged(&what, &mut cmake, &log)?;
    }
    let mut make = Command::new("cmake");
    make.arg("--build").arg(&build);
    make.args(["--parallel", &jobs(), "--target"]).args(TARGETS);
    if made {
        // A user's tree that may have been edited since: mostly there is nothing to do.
        process::output(&mut make)?;
    } else {
        let what = format!("building libibverbs and libefa {}", tree.version);
        process::run_logged(&what, &mut make, &log)?;
    }
    install(&tree.path, &build, &prefix)?;
    fs::write(stamp_of(&prefix), recipe(other))?;
    Ok(done)
}

fn jobs() -> String {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .to_string()
}

/// rdma-core's own install step wants everything in the tree; this takes what was built.
fn install(source: &Path, build: &Path, prefix: &Path) -> Result<()> {
    let lib = prefix.join("lib");
    for entry in fs::read_dir(build.join("lib"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("libibverbs.so") || name.starts_with("libefa") {
            copy(&path, &lib.join(&*name))?;
        }
    }
    for name in ["ibv_devices", "ibv_devinfo"] {
        copy(
            &build.join("bin").join(name),
            &prefix.join("bin").join(name),
        )?;
    }
    // What libibverbs reads to find its providers when RDMAV_DRIVERS is not set, and where it
    // looks for them first: so it also works without our environment.
    let drivers = prefix.join("etc/libibverbs.d");
    fs::create_dir_all(&drivers)?;
    fs::write(drivers.join("efa.driver"), "driver efa\n")?;
    let providers = lib.join("libibverbs");
    fs::create_dir_all(&providers)?;
    for entry in fs::read_dir(&lib)? {
        let name = entry?.file_name();
        let link = providers.join(&name);
        if name.to_string_lossy().starts_with("libefa-rdmav") && link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(Path::new("..").join(&name), &link)?;
        }
    }
    let headers = prefix.join("include");
    for name in [
        "arch.h",
        "opcode.h",
        "sa-kern-abi.h",
        "sa.h",
        "tm_types.h",
        "verbs.h",
        "verbs_api.h",
    ] {
        let from = source.join("libibverbs").join(name);
        copy(&from, &headers.join("infiniband").join(name))?;
    }
    copy(
        &source.join("providers/efa/efadv.h"),
        &headers.join("infiniband/efadv.h"),
    )?;
    // verbs.h needs these of the same release; the system's may be older.
    let kernel = source.join("kernel-headers/rdma");
    copy(
        &kernel.join("ib_user_ioctl_verbs.h"),
        &headers.join("infiniband/ib_user_ioctl_verbs.h"),
    )?;
    for name in ["ib_user_ioctl_verbs.h", "ib_user_verbs.h"] {
        copy(&kernel.join(name), &headers.join("rdma").join(name))?;
    }
    for (module, requires) in [("libibverbs", ""), ("libefa", "libibverbs")] {
        let made = build.join("lib/pkgconfig").join(format!("{module}.pc"));
        let text =
            fs::read_to_string(&made).with_context(|| format!("can't read {}", made.display()))?;
        let Some(version) = text.lines().find_map(|line| line.strip_prefix("Version:")) else {
            bail!("{} states no version", made.display());
        };
        let file = lib.join("pkgconfig").join(format!("{module}.pc"));
        fs::create_dir_all(lib.join("pkgconfig"))?;
        fs::write(&file, pc(module, version.trim(), requires))
            .with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}

/// A description for pkg-config that holds wherever the prefix is moved to.
fn pc(module: &str, version: &str, requires: &str) -> String {
    let library = module.trim_start_matches("lib");
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: {module}\n\
         Description: RDMA Core Userspace Library\n\
         Version: {version}\n\
         Requires.private: {requires}\n\
         Libs: -L${{libdir}} -l{library}\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// Copies a file, or a link as a link, over whatever is there.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("can't copy {} to {}", from.display(), to.display());
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    if to.symlink_metadata().is_ok() {
        fs::remove_file(to).with_context(failed)?;
    }
    if from.symlink_metadata().with_context(failed)?.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(from)?, to).with_context(failed)
    } else {
        fs::copy(from, to).map(|_| ()).with_context(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_version_ends_in_the_release() {
        assert_eq!(release("1.4.59.0").as_deref(), Some("59.0"));
        assert_eq!(release("1.2.44.0").as_deref(), Some("44.0"));
        for bad in ["", "1.2", "1.2.x.0", "1.2.3.4.5"] {
            assert_eq!(release(bad), None, "{bad}");
        }
        assert_eq!(major("59.0"), 59);
        assert_eq!(major(""), 0);
    }

    #[test]
    fn the_prefix_comes_first_and_once() {
        let mut command = Command::new("true");
        command.env("LD_LIBRARY_PATH", "/b:/a::/c");
        prepend(&mut command, "LD_LIBRARY_PATH", Path::new("/a"));
        let value = command.get_envs().next().unwrap().1.unwrap();
        assert_eq!(value, "/a:/b:/c");
    }

    #[test]
    fn the_systems_rdma_core_needs_no_paths() {
        let mut command = Command::new("true");
        system("61.0".to_owned()).apply(&mut command);
        let names: Vec<_> = command.get_envs().map(|(name, _)| name).collect();
        assert_eq!(names, ["RDMAV_DRIVERS"]);
    }

    #[test]
    fn the_description_for_pkg_config_is_relative_to_itself() {
        let text = pc("libefa", "1.4.59.0", "libibverbs");
        assert!(text.starts_with("prefix=${pcfiledir}/../..\n"));
        assert!(text.contains("Libs: -L${libdir} -lefa\n"));
    }
}
