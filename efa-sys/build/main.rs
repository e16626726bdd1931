//! Finds the installed libibverbs and libefa, checks that they will do, compiles the C shims.
//!
//! Each question has its module: `find` (where are they), `probe` (are they new enough), `compile`
//! (the C side). A failure ends the build with one sentence that says what to install.

mod compile;
mod find;
mod probe;

use std::fmt::Display;
use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=shim");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if std::env::var_os("DOCS_RS").is_some() {
        // docs.rs has no rdma-core, and documentation links nothing.
        return;
    }
    let libraries = find::libraries().unwrap_or_else(|error| stop(&error));
    probe::headers(&libraries).unwrap_or_else(|error| stop(&error));
    compile::shims(&libraries).unwrap_or_else(|error| stop(&error));
    libraries.announce();
}

/// Ends the build with a single line, without the backtrace that a panic would add.
fn stop(error: &dyn Display) -> ! {
    println!("cargo::error={error}");
    exit(1)
}
