//! The commands of this workspace: `cargo xtask help` lists them.

mod bench;
mod build;
mod ci;
mod control;
mod demo;
mod fresh;
mod hardware;
mod kernel_diff;
mod packages;
mod passthrough;
mod process;
mod public_api;
mod rdma_core;
#[cfg(feature = "regenerate")]
mod regenerate;
mod soak;
mod soft_efa;
mod source;
mod test;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// The commands of this workspace.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_version_flag = true
)]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make efa-sys/src/bindings.rs from rdma-core's headers.
    Regenerate(RegenerateArgs),
    /// Say which rdma-core everything is built and run against; build it if need be.
    RdmaCore(RdmaCoreArgs),
    /// Run a program on software EFA devices.
    SoftEfa(soft_efa::SoftEfa),
    /// Run a program in a virtual machine, on the real EFA driver and software devices.
    Vm(vm::Vm),
    /// What runs in such a machine.
    #[command(hide = true)]
    VmAgent(vm::Agent),
    /// Compare what soft-efa answers to some thousand questions with what a real kernel answered.
    KernelDiff(kernel_diff::KernelDiff),
    /// Move bytes between two processes over EFA queue pairs, and check every one of them.
    Demo(demo::Demo),
    /// Run every test; the last line has the counts.
    Test(test::Test),
    /// Do for hours what the tests do for a minute.
    Soak(soak::Soak),
    /// Count and time posting and polling beside a C program; fail if a budget is exceeded.
    Bench(bench::Bench),
    /// List what the libraries offer; fail where it changed unnoticed.
    PublicApi(public_api::PublicApi),
    /// Run the README's two commands in a clean Debian 12 (as root, in target/fresh).
    Fresh(fresh::Fresh),
    /// Check the format, lints and documentation, then run every test.
    Ci,
}

#[derive(Args)]
struct RegenerateArgs {
    /// Change nothing; fail if the file is not what the headers give.
    #[arg(long)]
    check: bool,
}

#[derive(Args)]
struct RdmaCoreArgs {
    /// Which one to take.
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    rdma_core: rdma_core::Choice,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Task::Regenerate(args) => regenerate_bindings(&args),
        Task::RdmaCore(args) => show_rdma_core(&args),
        Task::SoftEfa(args) => soft_efa::run(&args),
        Task::Vm(args) => vm::run(&args),
        Task::VmAgent(args) => vm::agent(&args),
        Task::KernelDiff(args) => kernel_diff::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Soak(args) => soak::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::PublicApi(args) => public_api::run(&args),
        Task::Fresh(args) => fresh::run(&args),
        Task::Ci => ci::run(),
    }
}

#[cfg(feature = "regenerate")]
fn regenerate_bindings(args: &RegenerateArgs) -> Result<ExitCode> {
    regenerate::run(&source::tree()?.path, args.check)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds this program again, with the generator in it, and hands over to that.
#[cfg(not(feature = "regenerate"))]
fn regenerate_bindings(args: &RegenerateArgs) -> Result<ExitCode> {
    // Before the build, so that everything that is missing is installed in one place.
    source::tree()?;
    let mut command = build::cargo();
    command.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--features",
        "regenerate",
    ]);
    command.args(["--", "regenerate"]);
    if args.check {
        command.arg("--check");
    }
    Ok(passthrough::end_like(passthrough::run(&mut command)?))
}

fn show_rdma_core(args: &RdmaCoreArgs) -> Result<ExitCode> {
    let found = rdma_core::resolve(args.rdma_core)?;
    eprintln!("using {}", found.described());
    match &found.prefix {
        Some(prefix) => println!("{}", prefix.display()),
        None => println!("/usr"),
    }
    Ok(ExitCode::SUCCESS)
}
