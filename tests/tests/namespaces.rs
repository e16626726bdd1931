//! Two hosts: network namespaces joined by a virtual cable, a device in each.
//!
//! The test makes and removes its namespaces, which needs root.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Address, Node, Process, Remote, Test, here, skip, soft_efa_dir};
use efa_verbs::{Operations, QueuePairConfig, VendorStatus};

const LENGTH: usize = 1 << 20;

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    ensure!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Two namespaces with an interface each, removed on drop.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    fn address(host: usize) -> String {
        format!("10.246.77.{}", host + 1)
    }

    fn make() -> Result<Self> {
        let pid = std::process::id();
        let hosts = Self {
            names: ["a", "b"].map(|end| format!("efa-test-{pid}-{end}")),
        };
        let [a, b] = &hosts.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        // Both ends are born inside, so that nothing appears in the namespace of the test.
        ip(&format!(
            "-n {a} link add efa0 type veth peer name efa0 netns {b}"
        ))?;
        for (host, name) in hosts.names.iter().enumerate() {
            let address = Self::address(host);
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev efa0"))?;
            ip(&format!("-n {name} link set efa0 up"))?;
        }
        Ok(hosts)
    }

    fn spawn(&self, t: &Test, host: usize, role: &str) -> Result<Process> {
        let options = format!("addr={} faults=timeout=2s", Self::address(host));
        t.spawn_wrapped(role, &options, &["ip", "netns", "exec", &self.names[host]])
    }

    /// Pulls the cable out of one host, or puts it back.
    fn link(&self, host: usize, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {} link set efa0 {state}", self.names[host]))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not have come to be.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn config() -> QueuePairConfig {
    QueuePairConfig {
        operations: Operations::SEND | Operations::WRITE,
        ..QueuePairConfig::default()
    }
}

/// Offers memory, and tells what is in it when asked.
fn target(t: &Test) -> Result<()> {
    let mut node = Node::new(t, &config())?;
    let region = node.region(&[0; LENGTH])?;
    t.parent().send(&node.address()?)?;
    let peer: Address = t.parent().recv()?;
    node.to(peer)?;
    t.parent().send(&Remote::from(&region))?;
    while t.parent().recv::<bool>()? {
        let mut bytes = vec![0; LENGTH];
        region.copy_out(0, &mut bytes)?;
        t.parent().send(&checksum(&bytes))?;
    }
    Ok(())
}

/// Writes one byte value all over the peer's memory, when told which.
fn writer(t: &Test) -> Result<()> {
    let mut node = Node::new(t, &config())?;
    t.parent().send(&node.address()?)?;
    let to = node.to(t.parent().recv::<Address>()?)?;
    let remote: Remote = t.parent().recv()?;
    while let Some(value) = t.parent().recv::<Option<u8>>()? {
        let region = node.region(&[value; LENGTH])?;
        node.write(&to, &[(1, region.sge(0, LENGTH as u32)?, remote.at(0))])?;
        // Posted: the test may now pull the cable.
        t.parent().send(&())?;
        let status = node.sent(1)?[0].status;
        t.parent().send(&status.0)?;
    }
    Ok(())
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

fn both(t: &Test) -> Result<()> {
    let hosts = match Hosts::make() {
        Ok(hosts) => hosts,
        Err(error) => {
            return Err(skip(format!(
                "no network namespace can be made here: {error}"
            )));
        }
    };
    let (a, b) = (hosts.spawn(t, 0, "writer")?, hosts.spawn(t, 1, "target")?);
    let (writer, target) = (a.channel(), b.channel());
    let (address_a, address_b): (Address, Address) = (writer.recv()?, target.recv()?);
    ensure!(address_a.gid != address_b.gid);
    writer.send(&address_b)?;
    target.send(&address_a)?;
    writer.send(&target.recv::<Remote>()?)?;
    let write = |value: u8| -> Result<()> {
        writer.send(&Some(value))?;
        writer.recv().context("the writer does not post")
    };
    let holds = |value: u8| -> Result<()> {
        target.send(&true)?;
        let sum: u64 = target.recv()?;
        ensure!(
            sum == checksum(&[value; LENGTH]),
            "the target does not hold {value}s"
        );
        Ok(())
    };

    write(1)?;
    ensure!(writer.recv::<u32>()? == 0, "over a whole cable");
    holds(1)?;

    // A short cut is bridged by sending again.
    hosts.link(1, false)?;
    write(2)?;
    std::thread::sleep(Duration::from_millis(300));
    hosts.link(1, true)?;
    ensure!(
        writer.recv::<u32>()? == 0,
        "over a cable that was out for a moment"
    );
    holds(2)?;

    // A long one is an error of the request, and of nothing else.
    hosts.link(0, false)?;
    write(3)?;
    let status = VendorStatus(writer.recv()?);
    ensure!(
        status == VendorStatus::UNRESPONSIVE_PEER || status == VendorStatus::UNREACHABLE_PEER,
        "over no cable: {status}"
    );
    hosts.link(0, true)?;
    write(4)?;
    ensure!(writer.recv::<u32>()? == 0, "after the cable was put back");
    holds(4)?;

    writer.send(&None::<u8>)?;
    target.send(&false)?;
    a.finish()?;
    b.finish()
}

#[test]
fn two_hosts_meet_and_survive_a_cut_of_the_link() {
    here().run(|t| match t.role() {
        "writer" => writer(t),
        "target" => target(t),
        "main" => {
            if soft_efa_dir().is_none() {
                return Err(skip("it needs soft-efa"));
            }
            t.need_program("ip", "iproute2")?;
            // SAFETY: takes nothing and cannot fail.
            if unsafe { libc::geteuid() } != 0 {
                return Err(skip("making network namespaces needs root"));
            }
            both(t)
        }
        role => bail!("{role}?"),
    });
}
