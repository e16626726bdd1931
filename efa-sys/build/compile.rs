//! The C side: what Rust cannot call or cannot know the layout of.

use std::fmt;

use crate::find::Libraries;

/// A shim did not compile.
pub struct Failed(cc::Error);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // cc's text may have several lines, and Cargo shows the first only.
        let text = self.0.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(
            f,
            "the C shims do not compile against the installed rdma-core headers: {text}"
        )
    }
}

/// Compiles `shim/*.c` into a static library that becomes part of the crate.
pub fn shims(libraries: &Libraries) -> Result<(), Failed> {
    cc::Build::new()
        .files([
            "shim/inlines.c",
            "shim/fields.c",
            "shim/entry.c",
            "shim/symbols.c",
        ])
        .include("shim")
        .includes(libraries.include_paths())
        .std("gnu11")
        .warnings(true)
        .extra_warnings(true)
        // The headers themselves compare signed with unsigned and leave parameters unused.
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-sign-compare")
        .flag_if_supported("-Wmissing-prototypes")
        // The shims are called from hot paths in debug builds too.
        .opt_level(2)
        .try_compile("efa_sys_shim")
        .map_err(Failed)
}
