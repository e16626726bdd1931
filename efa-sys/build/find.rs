//! Where are libibverbs and libefa?

use std::fmt;
use std::path::PathBuf;

use pkg_config::{Config, Error, Library};

/// What to type where something is missing.
pub const INSTALL: &str = "install it with `apt-get install libibverbs-dev pkg-config gcc` on \
     Debian and Ubuntu, or `dnf install rdma-core-devel pkgconf-pkg-config gcc` on Amazon Linux";

/// Both libraries as pkg-config describes them.
pub struct Libraries {
    verbs: Library,
    efa: Library,
}

/// Why they were not found.
pub enum NotFound {
    /// pkg-config cannot be run.
    NoPkgConfig,
    /// pkg-config does not know the library.
    Unknown(&'static str),
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPkgConfig => write!(f, "pkg-config cannot be run: {INSTALL}"),
            Self::Unknown(name) => write!(
                f,
                "pkg-config finds no {name} with its headers (part of rdma-core): {INSTALL}"
            ),
        }
    }
}

/// Asks pkg-config for both.
pub fn libraries() -> Result<Libraries, NotFound> {
    Ok(Libraries {
        verbs: library("libibverbs")?,
        efa: library("libefa")?,
    })
}

fn library(name: &'static str) -> Result<Library, NotFound> {
    // Nothing is printed to Cargo before the headers have been checked, see `announce`; only the
    // variables that steer pkg-config (PKG_CONFIG_PATH and the like) are declared already.
    Config::new()
        .cargo_metadata(false)
        .env_metadata(true)
        .probe(name)
        .map_err(|error| match error {
            Error::Command { .. } => NotFound::NoPkgConfig,
            _ => NotFound::Unknown(name),
        })
}

impl Libraries {
    /// Directories for `-I`. Empty when the headers are where the compiler looks anyway.
    pub fn include_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.verbs
            .include_paths
            .iter()
            .chain(&self.efa.include_paths)
    }

    /// The release of rdma-core: the third part of libibverbs' version (`1.14.44.0` is 44).
    pub fn rdma_core(&self) -> Option<u32> {
        self.verbs.version.split('.').nth(2)?.parse().ok()
    }

    /// Tells Cargo what to link, and dependents (as `DEP_EFA_…`) what was found.
    pub fn announce(&self) {
        for path in self.efa.link_paths.iter().chain(&self.verbs.link_paths) {
            println!("cargo::rustc-link-search=native={}", path.display());
        }
        println!("cargo::rustc-link-lib=efa");
        println!("cargo::rustc-link-lib=ibverbs");
        if let Some(release) = self.rdma_core() {
            println!("cargo::metadata=RDMA_CORE={release}");
        }
        let include: Vec<_> = self
            .include_paths()
            .map(|path| path.display().to_string())
            .collect();
        println!("cargo::metadata=INCLUDE={}", include.join(":"));
    }
}
