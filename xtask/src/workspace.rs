//! Where things are.

use std::env;
use std::path::{Path, PathBuf};

/// The top of the workspace.
pub fn root() -> PathBuf {
    // Set by `cargo run` to the place where the sources are now; the compiled-in value serves
    // when the program is started by hand.
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    package
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_else(|| PathBuf::from("."))
}

/// The folder for everything that is built or fetched.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder for rdma-core: sources, build trees and prefixes.
pub fn rdma_core() -> PathBuf {
    target().join("rdma-core")
}

/// `path` as a person would type it from the top of the workspace.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}
