//! Transfers under valgrind: no invalid access, no use of uninitialised memory, no leak.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use efa_tests::{Node, Pair, Process, Remote, Test, done, here};
use efa_transport::Config;
use efa_verbs::{DeviceCapabilities, Operations, QueuePairConfig};

const FOUND: i32 = 77;

fn suppressions() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("valgrind.supp")
}

fn transfers(t: &Test) -> Result<()> {
    let can = t.device()?.open()?.attributes().capabilities;
    let config = QueuePairConfig {
        operations: Operations::supported(can),
        ..QueuePairConfig::default()
    };
    let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
    let bytes = t.rng().bytes(20_000);
    let length = bytes.len() as u32;
    let source = a.region(&bytes)?;
    let target = b.region(&vec![0; bytes.len()])?;
    let back = a.region(&vec![0; bytes.len()])?;
    let to = a.to(b.address()?)?;
    b.to(a.address()?)?;
    b.receive(&[(3, target.sge(0, 100)?)])?;
    a.send(&to, &[(1, source.sge(0, 100)?)])?;
    a.sent_well(1)?;
    b.received(1)?;
    let remote = Remote::from(&target);
    a.write(&to, &[(2, source.sge(0, length)?, remote.at(0))])?;
    a.sent_well(1)?;
    a.read(&to, &[(3, back.sge(0, length)?, remote.at(0))])?;
    a.sent_well(1)?;
    let mut got = vec![0; bytes.len()];
    back.copy_out(0, &mut got)?;
    ensure!(got == bytes);

    // The same through the transport.
    let mut pair = Pair::new(t, Config::default())?;
    pair.works(&bytes)?;
    let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
    let get = pair.a.get(pair.ab, &target, source.remote()?)?;
    done(&mut pair.a, get)?;
    ensure!(target.to_vec(..)? == bytes);
    Ok(())
}

#[test]
fn put_get_and_send_are_clean_under_valgrind() {
    here()
        .deadline(Duration::from_secs(300))
        .run(|t| match t.role() {
            "transfers" => transfers(t),
            "main" => {
                t.need_program("valgrind", "valgrind")?;
                t.need(DeviceCapabilities::RDMA_READ)?;
                t.need(DeviceCapabilities::RDMA_WRITE)?;
                t.need_loopback()?;
                let inner = t.command("transfers")?;
                let mut command = Command::new("valgrind");
                command
                    .args([
                        "--quiet",
                        "--leak-check=full",
                        "--errors-for-leak-kinds=definite",
                    ])
                    .args(["--show-leak-kinds=definite", "--num-callers=40"])
                    .arg(format!("--error-exitcode={FOUND}"))
                    .arg(format!("--suppressions={}", suppressions().display()))
                    .arg(inner.get_program())
                    .args(inner.get_args())
                    .env("EFA_TEST_SLOWDOWN", "10");
                for (name, value) in inner.get_envs() {
                    match value {
                        Some(value) => command.env(name, value),
                        None => command.env_remove(name),
                    };
                }
                let mut process = Process::start("valgrind", &mut command)?;
                let status = process.wait(Duration::from_secs(280))?;
                let output = process.output();
                ensure!(status.success(), "{status}\n{output}");
                ensure!(output.contains("1 passed"), "{output}");
                Ok(())
            }
            role => bail!("{role}?"),
        });
}

/// A suppression hides what is reported with a stack that begins in the C library or the
/// dynamic loader, never what begins in code of ours, in soft-efa, or in rdma-core.
#[test]
fn every_suppression_names_a_symbol_of_libc_or_the_loader() -> Result<()> {
    const ALLOWED: [&str; 6] = [
        "_dl_",
        "dl_",
        "__libc_",
        "_IO_",
        "call_init",
        "pthread_create",
    ];
    let text = std::fs::read_to_string(suppressions())?;
    for block in text.split('{').skip(1) {
        let block = block.split('}').next().unwrap_or_default();
        let functions: Vec<_> = block
            .lines()
            .filter_map(|line| line.trim().strip_prefix("fun:"))
            .collect();
        let named = functions
            .iter()
            .any(|name| ALLOWED.iter().any(|prefix| name.starts_with(prefix)));
        ensure!(named, "{block}");
        ensure!(
            functions.iter().all(|name| !name.starts_with('*')),
            "a pattern hides anything: {block}"
        );
    }
    Ok(())
}
