//! Programs of others that move data, or look at devices their own way. They run with the
//! system's libraries, which may be older than what everything else runs with.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Test, under};

/// How long a program may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

/// A program with its output in a file, killed when it is not needed any more.
struct Program {
    child: Child,
    output: File,
    shown: String,
}

impl Program {
    fn start(line: &str) -> Result<Self> {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        let output = tempfile::tempfile()?;
        command
            .args(words)
            .env_remove("LD_LIBRARY_PATH")
            .stdin(std::process::Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
        let child = command.spawn().with_context(|| line.to_owned())?;
        Ok(Self {
            child,
            output,
            shown: line.to_owned(),
        })
    }

    /// Waits for the end: whether it went well, and what was printed.
    fn end(mut self) -> Result<(bool, String)> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > LIMIT {
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut text = String::new();
        self.output.rewind()?;
        self.output.read_to_string(&mut text)?;
        match status {
            Some(status) => Ok((status.success(), text)),
            None => bail!("{} still runs:\n{text}", self.shown),
        }
    }

    fn good(self) -> Result<String> {
        let shown = self.shown.clone();
        let (good, text) = self.end()?;
        ensure!(good, "{shown}:\n{text}");
        Ok(text)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It has mostly ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Whether somebody listens at a port of this machine, seen without connecting: the program
/// serves the first who does.
fn listens(port: u16) -> bool {
    let end = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let table = std::fs::read_to_string(path).unwrap_or_default();
        // Number, local address, remote address, state: 0A is listening.
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some("0A")
        })
    })
}

/// Runs `server`, and `client` once that listens; returns what the client printed.
fn pair(port: u16, server: &str, client: &str) -> Result<String> {
    let server = Program::start(server)?;
    let deadline = Instant::now() + LIMIT;
    while !listens(port) {
        ensure!(
            Instant::now() < deadline,
            "{} does not listen",
            server.shown
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let client = Program::start(client)?.end()?;
    let server = server.end()?;
    ensure!(
        client.0 && server.0,
        "client:\n{}\nserver:\n{}",
        client.1,
        server.1
    );
    Ok(client.1)
}

fn perftest(t: &Test, program: &str, arguments: &str, [server, client]: [&str; 2]) -> Result<()> {
    t.need_program(program, "perftest")?;
    let port = free_port()?;
    let line = |device: &str| format!("{program} -c SRD -x 0 -p {port} {arguments} -d {device}");
    let text = pair(port, &line(server), &format!("{} 127.0.0.1", line(client)))?;
    ensure!(text.contains("#bytes"), "{text}");
    Ok(())
}

#[test]
fn perftest_measures_sends() {
    under("").deadline(4 * LIMIT).run(|t| {
        t.device()?;
        for arguments in ["-n 100 -s 4096", "-n 100 -s 1024 -b", "-n 100 -s 1024 -q 4"] {
            perftest(t, "ib_send_bw", arguments, ["efa_0", "efa_0"])?;
        }
        perftest(t, "ib_send_lat", "-n 20 -s 64", ["efa_0", "efa_0"])
    });
}

#[test]
fn perftest_measures_reads() {
    // The device that perftest knows to have them; it does not reach itself.
    under("profile=p4d devices=2").deadline(3 * LIMIT).run(|t| {
        t.device()?;
        perftest(t, "ib_read_bw", "-n 100 -s 65536", ["efa_1", "efa_0"])?;
        perftest(t, "ib_read_lat", "-n 20 -s 64", ["efa_1", "efa_0"])
    });
}

#[test]
fn libfabric_finds_the_device_and_plays_ping_pong() {
    under("").deadline(3 * LIMIT).run(|t| {
        t.device()?;
        t.need_program("fi_pingpong", "libfabric-bin")?;
        let text = Program::start("fi_info -p efa")?.good()?;
        ensure!(text.contains("domain: efa_0-rdm"), "{text}");
        let port = free_port()?;
        let server = format!("fi_pingpong -p efa -e rdm -I 5 -B {port}");
        let client = format!("fi_pingpong -p efa -e rdm -I 5 -P {port} 127.0.0.1");
        let text = pair(port, &server, &client)?;
        ensure!(text.lines().any(|line| line.starts_with("1m ")), "{text}");
        Ok(())
    });
}

#[test]
fn datagrams_play_ping_pong_and_connections_are_refused() {
    under("").deadline(3 * LIMIT).run(|t| {
        t.device()?;
        t.need_program("ibv_ud_pingpong", "ibverbs-utils")?;
        let port = free_port()?;
        let line = format!("ibv_ud_pingpong -d efa_0 -g 0 -n 50 -s 1024 -p {port}");
        let text = pair(port, &line, &format!("{line} 127.0.0.1"))?;
        ensure!(text.contains("50 iters"), "{text}");
        for (program, said) in [
            ("ibv_rc_pingpong", "Couldn't create QP"),
            ("ibv_srq_pingpong", "Couldn't create SRQ"),
        ] {
            let (good, text) = Program::start(&format!("{program} -d efa_0 -g 0"))?.end()?;
            ensure!(!good && text.contains(said), "{text}");
        }
        Ok(())
    });
}

#[test]
fn rdma_shows_devices_ports_and_objects() {
    under("devices=2").deadline(2 * LIMIT).run(|t| {
        let device = t.device()?;
        t.need_program("rdma", "iproute2")?;
        for (arguments, lines) in [
            ("dev", ["0: efa_0: node_type", "1: efa_1: node_type"]),
            (
                "link",
                ["link efa_0/1 state ACTIVE", "link efa_1/1 state ACTIVE"],
            ),
        ] {
            let text = Program::start(&format!("rdma {arguments}"))?.good()?;
            for line in lines {
                ensure!(text.contains(line), "{text}");
            }
        }
        let context = device.open()?;
        let _domains = [context.alloc_pd()?, context.alloc_pd()?];
        let index = device.name().trim_start_matches("efa_");
        let text = Program::start("rdma resource")?.good()?;
        let line = format!("{index}: {}: pd 2 cq 0 qp 0", device.name());
        ensure!(text.contains(&line), "{line:?} is not in\n{text}");
        Ok(())
    });
}

#[test]
fn what_the_device_tells_of_its_traffic_adds_up() {
    under("").deadline(3 * LIMIT).run(|t| {
        let device = t.device()?;
        t.need_program("rdma", "iproute2")?;
        let path = format!(
            "/sys/class/infiniband/{}/ports/1/hw_counters",
            device.name()
        );
        let read = |name: &str| -> Result<u64> {
            let text = std::fs::read_to_string(format!("{path}/{name}"))?;
            Ok(text.trim_end().parse()?)
        };
        let names = ["send_wrs", "send_bytes", "recv_wrs", "recv_bytes"];
        let before = names.into_iter().map(read).collect::<Result<Vec<u64>>>()?;
        perftest(t, "ib_send_bw", "-n 100 -s 4096", ["efa_0", "efa_0"])?;
        for (name, (before, more)) in names
            .into_iter()
            .zip(before.into_iter().zip([100, 409_600, 100, 409_600]))
        {
            // The programs have ended; what they did is still counted.
            ensure!(read(name)? == before + more, "{name}: {}", read(name)?);
        }
        let text = Program::start("rdma statistic show link efa_0/1")?.good()?;
        let sent = format!("send_bytes {}", read("send_bytes")?);
        ensure!(text.contains(&sent), "{sent:?} is not in\n{text}");
        Ok(())
    });
}

#[test]
fn tools_find_the_device_by_walking() {
    under("").deadline(2 * LIMIT).run(|t| {
        t.device()?;
        t.need_program("find", "findutils")?;
        let place = "/sys/devices/pciefa0:00/efa0:01:00.0/infiniband/efa_0";
        let text = Program::start("find /sys -name node_guid")?.good()?;
        ensure!(text.contains(&format!("{place}/node_guid")), "{text}");
        let text = Program::start("ls /sys/class")?.good()?;
        ensure!(
            text.contains("infiniband_verbs") && text.contains("net"),
            "{text}"
        );
        t.need_program("udevadm", "udev")?;
        let text = Program::start("udevadm info /dev/infiniband/uverbs0")?.good()?;
        ensure!(text.contains("N: infiniband/uverbs0"), "{text}");
        Ok(())
    });
}
