//! Are the headers there, and new enough for the shims?

use std::fmt;

use crate::find::{INSTALL, Libraries};

/// The oldest rdma-core that the shims are written for (Debian 12's).
const OLDEST: u32 = 44;

/// Why the headers will not do.
pub enum Unusable {
    /// pkg-config knows the library, but the headers cannot be compiled.
    Headers(&'static str),
    /// Older than the shims.
    TooOld(u32),
    /// There is no C compiler.
    NoCompiler,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Headers(header) => {
                write!(
                    f,
                    "the compiler finds no usable {header} (part of rdma-core): {INSTALL}"
                )
            }
            Self::TooOld(found) => write!(
                f,
                "rdma-core {found} is installed, and {OLDEST} is the oldest that efa-sys can be \
                 built against: update the distribution, or point PKG_CONFIG_PATH at a newer one"
            ),
            Self::NoCompiler => write!(f, "there is no working C compiler: {INSTALL}"),
        }
    }
}

/// Compiles an include of each header.
pub fn headers(libraries: &Libraries) -> Result<(), Unusable> {
    if !expands(libraries, "nothing") {
        return Err(Unusable::NoCompiler);
    }
    if let Some(found) = libraries.rdma_core().filter(|&found| found < OLDEST) {
        return Err(Unusable::TooOld(found));
    }
    for (probe, header) in [
        ("verbs", "infiniband/verbs.h"),
        ("efadv", "infiniband/efadv.h"),
    ] {
        if !expands(libraries, probe) {
            return Err(Unusable::Headers(header));
        }
    }
    Ok(())
}

fn expands(libraries: &Libraries, probe: &str) -> bool {
    cc::Build::new()
        .cargo_metadata(false)
        .cargo_warnings(false)
        .includes(libraries.include_paths())
        .file(format!("build/probe/{probe}.c"))
        .try_expand()
        .is_ok()
}
