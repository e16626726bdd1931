//! `cargo xtask fresh`: the README's two commands in a clean Debian 12, with nothing but Rust and a
//! C compiler: the proof that they install or build all else themselves.
//!
//! The root is made by debootstrap in `target/fresh/root`. The Rust toolchain is mounted into it
//! read-only, in a mount namespace that ends with the commands; the workspace is a clone of
//! what is committed. Only the way to the network is taken from this machine: name resolution,
//! certificates, and where apt, pip and cargo are told to look.

mod network;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{build, packages, passthrough, process, workspace};
pub use network::mirror;

/// The commands at the top of the README.
const COMMANDS: [&str; 2] = ["cargo xtask demo", "cargo xtask test"];

/// Where the clone lies in the root.
const CLONE: &str = "/srv/efa";

/// Where the toolchain is mounted.
const TOOLCHAIN: &str = "/opt/rust";

/// What follows `cargo xtask fresh`.
#[derive(Args)]
pub struct Fresh {
    /// Run this instead of the README's commands (a line for the shell, in the clone).
    #[arg(long, value_name = "LINE")]
    command: Option<String>,
}

/// Makes the root and runs the commands in it.
pub fn run(arguments: &Fresh) -> Result<ExitCode> {
    ensure!(
        process::is_root(),
        "a clean root can only be made and entered by root; run this with sudo"
    );
    packages::ensure(&[packages::DEBOOTSTRAP, packages::GIT, packages::UNSHARE])?;
    let toolchain = toolchain()?;
    let dir = workspace::target().join("fresh");
    let root = dir.join("root");
    let started = Instant::now();
    remove(&root)?;
    bootstrap(&root, &dir.join("debootstrap.log"))?;
    network::copy(&root)?;
    clone(&root)?;
    let line = match &arguments.command {
        Some(line) => line.clone(),
        None => COMMANDS.join(" && "),
    };
    write_script(&root.join("inside.sh"), &inside(&line))?;
    write_script(&dir.join("outside.sh"), OUTSIDE)?;
    eprintln!("in a clean Debian 12: {line}");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private"])
        // Whatever is left over ends with the commands.
        .args(["--pid", "--fork", "--kill-child"])
        .arg("sh")
        .arg(dir.join("outside.sh"))
        .arg(&root)
        .arg(&toolchain)
        .arg(TOOLCHAIN)
        .env_clear()
        .env(
            "PATH",
            format!("{TOOLCHAIN}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        )
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .envs(network::variables(std::env::vars()));
    // unshare ignores signals; when it is killed, everything in the namespace is.
    let status = passthrough::run_or_kill(&mut command)?;
    eprintln!(
        "a clean Debian 12: {} after {}",
        process::described(status),
        process::seconds(started.elapsed())
    );
    Ok(passthrough::end_like(status))
}

/// The folder of the Rust toolchain in use.
fn toolchain() -> Result<String> {
    let mut command = Command::new("rustc");
    command.args(["--print", "sysroot"]);
    let sysroot = process::output(&mut command)?.trim().to_owned();
    ensure!(
        Path::new(&sysroot).join("bin/cargo").is_file() && sysroot != "/usr",
        "the Rust toolchain in {sysroot} is not a folder of its own with cargo in it, so it can't \
         be mounted into a clean root; use one that rustup installed"
    );
    Ok(sysroot)
}

/// Removes the root of an earlier run. Nothing is mounted there: mounts end with their namespace.
fn remove(root: &Path) -> Result<()> {
    if !root.exists() {
        return Ok(());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let inside = format!(" {}/", root.display());
    if mounts.contains(&inside) {
        bail!(
            "something is mounted below {}; unmount it first",
            root.display()
        );
    }
    fs::remove_dir_all(root).with_context(|| format!("can't remove {}", root.display()))
}

fn bootstrap(root: &Path, log: &Path) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("can't make {}", root.display()))?;
    let mut command = Command::new("debootstrap");
    command
        .args(["--variant=minbase", "bookworm"])
        .arg(root)
        .args(network::mirror());
    process::run_logged("making a Debian 12 root", &mut command, log)
}

/// A clone of what is committed; changes that are not are pointed out.
fn clone(root: &Path) -> Result<()> {
    let git = || {
        let mut command = Command::new("git");
        command.arg("-C").arg(workspace::root());
        build::clean(&mut command);
        command
    };
    let status = process::output(git().args(["status", "--porcelain"]))?;
    if !status.is_empty() {
        eprintln!("note: changes that are not committed are not part of this:\n{status}");
    }
    let head = process::output(git().args(["rev-parse", "HEAD"]))?;
    let to = root.join(CLONE.trim_start_matches('/'));
    let mut command = Command::new("git");
    command
        .args(["clone", "--quiet", "--no-local", "--no-checkout"])
        .arg(workspace::root())
        .arg(&to);
    process::output(&mut command)?;
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(&to)
        .args(["checkout", "--quiet", "--detach", head.trim()]);
    process::output(&mut command)?;
    Ok(())
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Runs in the namespace, on the outside: mounts, then enters the root.
const OUTSIDE: &str = r#"set -eu
root=$1 toolchain=$2 place=$3
mkdir -p "$root$place"
mount --bind "$toolchain" "$root$place"
mount -o remount,bind,ro "$root$place"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
for node in null zero full random urandom tty; do
	touch "$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
exec chroot "$root" /inside.sh </dev/null
"#;

/// Runs in the root.
fn inside(line: &str) -> String {
    format!(
        "#!/bin/sh\n\
         set -eu\n\
         # A C compiler belongs to a machine with Rust, as its linker.\n\
         apt-get -q update\n\
         DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 install -y \
         --no-install-recommends gcc libc6-dev >/dev/null\n\
         # As on a machine that has been up for long, or never asked.\n\
         rm -rf /var/lib/apt/lists/*\n\
         cd {CLONE}\n\
         set -x\n\
         {line}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_are_those_of_the_readme() {
        let readme = fs::read_to_string(workspace::root().join("README.md")).unwrap();
        for command in COMMANDS {
            assert!(
                readme.lines().any(|line| line.starts_with(command)),
                "{command}"
            );
        }
    }
}
