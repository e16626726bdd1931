//! The source of rdma-core: the pinned release, or a tree that the user has.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{packages, process, workspace};

/// The release that the bindings are generated from and that is built where the system's is too
/// old.
pub const PINNED: &str = "59.0";

/// The checksum of the Python package's source distribution, which carries that release whole.
const PINNED_SHA256: &str = "b30d56bb620b3d3b4301876f9a04c964be1c76cc6553a451e1465f1c6ac9f20e";

/// Names a folder with another source tree of rdma-core.
pub const OTHER: &str = "RDMA_CORE_SRC";

/// A source tree of rdma-core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The folder with the top `CMakeLists.txt`.
    pub path: PathBuf,
    /// The release, for example `59.0`.
    pub version: String,
    /// Whether it is the pinned release, untouched.
    pub pinned: bool,
}

/// The tree named by `RDMA_CORE_SRC`, or else the pinned one, fetched if need be.
pub fn tree() -> Result<Tree> {
    match other()? {
        Some(tree) => Ok(tree),
        None => pinned(),
    }
}

/// The tree named by `RDMA_CORE_SRC`, if that is set.
pub fn other() -> Result<Option<Tree>> {
    match env::var_os(OTHER).filter(|dir| !dir.is_empty()) {
        Some(dir) => open(Path::new(&dir))
            .with_context(|| format!("{OTHER} is set to {}", dir.display()))
            .map(Some),
        None => Ok(None),
    }
}

/// A tree on this machine: rdma-core's own top folder, or one that holds it as `rdma-core`.
fn open(dir: &Path) -> Result<Tree> {
    let dir = dir.canonicalize().context("that folder can't be opened")?;
    for path in [dir.clone(), dir.join("rdma-core")] {
        if !path.join("providers/efa").is_dir() {
            continue;
        }
        let file = path.join("CMakeLists.txt");
        let text =
            fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
        if let Some(version) = package_version(&text) {
            return Ok(Tree {
                path,
                version: version.to_owned(),
                pinned: false,
            });
        }
    }
    bail!(
        "{} is no source tree of rdma-core: there is no providers/efa, or no PACKAGE_VERSION \
         in its CMakeLists.txt",
        dir.display()
    )
}

fn package_version(cmake: &str) -> Option<&str> {
    let (_, rest) = cmake.split_once("set(PACKAGE_VERSION")?;
    let (value, _) = rest.split_once(')')?;
    let value = value.trim().trim_matches('"');
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    (!value.is_empty() && value.chars().all(digits)).then_some(value)
}

/// The pinned release. It is fetched once, checked, unpacked and kept.
pub fn pinned() -> Result<Tree> {
    let sources = workspace::rdma_core().join("src");
    let package = format!("pyverbs-{PINNED}");
    let path = sources.join(&package).join("rdma-core");
    if !path.join("CMakeLists.txt").is_file() {
        let archive = fetch(&package)?;
        unpack(&archive, &sources, &package)?;
    }
    Ok(Tree {
        path,
        version: PINNED.to_owned(),
        pinned: true,
    })
}

fn fetch(package: &str) -> Result<PathBuf> {
    let dir = workspace::rdma_core().join("download");
    let archive = dir.join(format!("{package}.tar.gz"));
    if archive.is_file() {
        match check(&archive) {
            Ok(()) => return Ok(archive),
            // A download that was cut short: fetch it again.
            Err(_) => fs::remove_file(&archive)?,
        }
    }
    packages::ensure(&[packages::PIP])?;
    let python = packages::python_with("pip").context("there is no Python with pip")?;
    let mut command = Command::new(python);
    command
        .args(["-m", "pip", "download", "--disable-pip-version-check"])
        .args(["--no-deps", "--no-binary", "pyverbs"])
        .arg("--dest")
        .arg(&dir)
        .arg(format!("pyverbs=={PINNED}"));
    process::run_logged(
        &format!("fetching the source of rdma-core {PINNED}"),
        &mut command,
        &workspace::rdma_core().join("log/fetch.log"),
    )
    .with_context(|| {
        format!(
            "the source of rdma-core {PINNED} could not be fetched; if you have an rdma-core \
             tree, set {OTHER} to its folder"
        )
    })?;
    check(&archive)?;
    Ok(archive)
}

fn check(archive: &Path) -> Result<()> {
    let found = sha256(archive)?;
    if found != PINNED_SHA256 {
        bail!(
            "{} is not what was expected: its SHA-256 is {found}, not {PINNED_SHA256}; \
             remove the file and try again",
            archive.display()
        );
    }
    Ok(())
}

fn sha256(file: &Path) -> Result<String> {
    let mut file =
        fs::File::open(file).with_context(|| format!("can't read {}", file.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
}

/// Unpacks beside the final place and renames, so that a tree that is there is whole.
fn unpack(archive: &Path, sources: &Path, package: &str) -> Result<()> {
    let staging = sources.join(format!(".unpacking-{}", std::process::id()));
    let _ = fs::remove_dir_all(&staging);
    fs::create_dir_all(&staging)
        .with_context(|| format!("can't make the folder {}", staging.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(&staging);
    process::output(&mut tar)?;
    let target = sources.join(package);
    let _ = fs::remove_dir_all(&target);
    fs::rename(staging.join(package), &target)
        .with_context(|| format!("{} holds no folder {package}", archive.display()))?;
    fs::remove_dir_all(&staging)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_build_description() {
        let text =
            "project(rdma-core C)\nset(PACKAGE_NAME \"RDMA\")\nset(PACKAGE_VERSION \"59.0\")\n";
        assert_eq!(package_version(text), Some("59.0"));
        assert_eq!(package_version("set(PACKAGE_VERSION 44.0)"), Some("44.0"));
        for bad in [
            "",
            "set(PACKAGE_VERSION \"\")",
            "set(PACKAGE_VERSION \"../x\")",
            "set(PACKAGE_VERSION",
        ] {
            assert_eq!(package_version(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_checksum_is_that_of_the_bytes() {
        let file = std::env::temp_dir().join(format!("xtask-sha-{}", std::process::id()));
        fs::write(&file, "abc").unwrap();
        let found = sha256(&file).unwrap();
        fs::remove_file(&file).unwrap();
        // The test vector of FIPS 180-4.
        assert_eq!(
            found,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_folder_without_rdma_core_is_refused_by_name() {
        let error = open(&workspace::root()).unwrap_err().to_string();
        assert!(error.contains("no source tree"), "{error}");
    }
}
