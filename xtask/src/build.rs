//! Cargo, and the files that it makes.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::rdma_core::RdmaCore;
use crate::{process, workspace};

/// Cargo in the workspace, with nothing left of the invocation that started us.
pub fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace::root());
    clean(&mut command);
    command
}

/// Takes away what `cargo run` tells the program that it runs about its package.
pub fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_")
            || [
                "CARGO_MANIFEST_DIR",
                "CARGO_MANIFEST_PATH",
                "CARGO_BIN_NAME",
                "CARGO_CRATE_NAME",
                "CARGO_PRIMARY_PACKAGE",
            ]
            .contains(&&*name_text)
        {
            command.env_remove(&name);
        }
    }
}

/// A file that cargo made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The folder of the package.
    pub package: PathBuf,
    /// The name of the target: a library, a binary, a test.
    pub target: String,
    /// What kind of target it is: `lib`, `bin`, `test`, `cdylib`, …
    pub kind: String,
    /// Whether it was built with the test harness.
    pub test: bool,
    /// The program, or the library.
    pub file: PathBuf,
}

impl Artifact {
    /// The name of the package's folder.
    pub fn package_name(&self) -> String {
        let name = self.package.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

/// Runs `cargo build` or `cargo test --no-run` with `arguments` and returns what it made.
/// Cargo's messages go to standard error.
pub fn artifacts(rdma_core: Option<&RdmaCore>, arguments: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = cargo();
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    if let Some(rdma_core) = rdma_core {
        rdma_core.apply(&mut command);
    }
    let output = command
        .output()
        .with_context(|| format!("can't run `{}`", process::shown(&command)))?;
    if !output.status.success() {
        bail!(
            "`{}` failed: {}",
            process::shown(&command),
            process::described(output.status)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(artifact)
        .collect())
}

/// Reads one of cargo's messages; `None` if it is about something else.
fn artifact(line: &str) -> Option<Artifact> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let target = &message["target"];
    let kind = target["kind"][0].as_str()?;
    let file = match message["executable"].as_str() {
        Some(file) => file,
        None if kind == "cdylib" => message["filenames"][0].as_str()?,
        None => return None,
    };
    Some(Artifact {
        package: manifest.parent()?.to_path_buf(),
        target: target["name"].as_str()?.to_owned(),
        kind: kind.to_owned(),
        test: message["profile"]["test"] == true,
        file: PathBuf::from(file),
    })
}

/// Builds the library that brings soft-efa into a program.
pub fn preload() -> Result<PathBuf> {
    let mut arguments = vec![
        "build",
        "--package",
        "soft-efa-preload",
        "--profile",
        "preload",
    ];
    // The first time takes long enough that cargo should say what it is doing.
    let earlier = workspace::target().join("preload/libsoft_efa_preload.so");
    if earlier.exists() {
        arguments.push("--quiet");
    }
    artifacts(None, &arguments)?
        .into_iter()
        .find(|artifact| artifact.kind == "cdylib")
        .map(|artifact| artifact.file)
        .context("cargo built soft-efa-preload and named no library")
}

/// Builds the program that serves soft-efa's devices to virtual machines.
pub fn pci_server() -> Result<PathBuf> {
    let arguments = [
        "build",
        "--package",
        "soft-efa",
        "--bin",
        "soft-efa-pci",
        "--profile",
        "preload",
        "--quiet",
    ];
    artifacts(None, &arguments)?
        .into_iter()
        .find(|artifact| artifact.kind == "bin")
        .map(|artifact| artifact.file)
        .context("cargo built soft-efa-pci and named no program")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_loadable_libraries_are_picked_from_cargos_messages() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml",
            "target":{"kind":["test"],"name":"put"},"profile":{"test":true},
            "filenames":["/w/t/put-1"],"executable":"/w/t/put-1"}"#;
        let found = artifact(&test.replace('\n', "")).unwrap();
        assert_eq!(found.package_name(), "tests");
        assert_eq!(
            (&*found.target, &*found.kind, found.test),
            ("put", "test", true)
        );
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml",
            "target":{"kind":["cdylib"],"name":"p"},"profile":{"test":false},
            "filenames":["/w/t/libp.so"],"executable":null}"#;
        assert_eq!(
            artifact(&library.replace('\n', "")).unwrap().file,
            Path::new("/w/t/libp.so")
        );
        for other in [
            r#"{"reason":"build-finished","success":true}"#,
            r#"{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml","target":{"kind":["lib"],"name":"p"},"executable":null}"#,
            "not a message",
        ] {
            assert_eq!(artifact(other), None, "{other}");
        }
    }
}
