//! rdma-core's Python modules, which its own tests are written with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::source::{self, Tree};
use crate::{packages, process, workspace};

/// What building and running them needs, with what building rdma-core needs.
pub const NEEDED: [packages::Package; 8] = [
    packages::CMAKE,
    packages::LIBNL,
    packages::LIBNL_ROUTE,
    packages::PIP,
    packages::CYTHON,
    packages::PYTHON_DEV,
    packages::NINJA,
    packages::RDMA_TOOL,
];

/// The modules that the EFA tests import, those that their helpers do included.
const TARGETS: [&str; 3] = [
    "pyverbs/all",
    "pyverbs/providers/efa/all",
    "pyverbs/providers/mlx5/all",
];

/// Unoptimised: generated C is slow to compile, and the modules do little.
const CMAKE_OPTIONS: [&str; 5] = [
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_C_FLAGS_DEBUG=-O0 -w",
    "-DENABLE_STATIC=0",
    "-DENABLE_VALGRIND=0",
    "-DNO_MAN_PAGES=1",
];

/// Raised when the way of building changes.
const RECIPE: u32 = 1;

/// Built modules.
pub struct Pyverbs {
    /// The source tree that they are of, which has the tests.
    pub tree: Tree,
    /// The folder for `PYTHONPATH`.
    pub modules: PathBuf,
    /// The Python that they were built for.
    pub python: &'static str,
}

/// The system's Python, which the system's packages are for.
fn python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() {
        "/usr/bin/python3"
    } else {
        "python3"
    }
}

/// Builds the modules of the tree that rdma-core is built from, once.
pub fn build() -> Result<Pyverbs> {
    let tree = source::tree()?;
    let kind = if tree.pinned {
        "python"
    } else {
        "other-python"
    };
    let name = format!("{}-{kind}", tree.version);
    let build = workspace::rdma_core().join("build").join(&name);
    let log = workspace::rdma_core()
        .join("log")
        .join(format!("{name}.log"));
    let lock = fs::File::create(workspace::rdma_core().join("lock"))?;
    lock.lock().context("can't lock target/rdma-core")?;
    let done = Pyverbs {
        modules: build.join("python"),
        python: python(),
        tree,
    };
    let stamp = build.join("made-from");
    let recipe = format!("recipe {RECIPE}, {}\n", done.tree.path.display());
    if fs::read_to_string(&stamp).is_ok_and(|text| text == recipe) {
        return Ok(done);
    }
    let _ = fs::remove_dir_all(&build);
    let mut cmake = Command::new("cmake");
    cmake
        .args(["-G", "Ninja"])
        .arg("-S")
        .arg(&done.tree.path)
        .arg("-B")
        .arg(&build)
        .args(CMAKE_OPTIONS)
        .arg(format!("-DPYTHON_EXECUTABLE={}", done.python));
    let what = format!(
        "configuring the Python modules of rdma-core {}",
        done.tree.version
    );
    process::run_logged(&what, &mut cmake, &log)?;
    let mut ninja = Command::new("ninja");
    ninja.arg("-C").arg(&build).args(TARGETS);
    let what = format!(
        "building the Python modules of rdma-core {}",
        done.tree.version
    );
    process::run_logged(&what, &mut ninja, &log)?;
    fs::write(&stamp, recipe)?;
    Ok(done)
}
