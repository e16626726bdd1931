//! What soft-efa is compared with: copying memory, and UDP between two processes.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Bytes of a datagram, at most: what the loopback interface carries in one piece.
const DATAGRAM: usize = 60_000;
/// Datagrams after which the receiver says how far it is.
const REPORT: u64 = 8;
/// Datagrams underway at most.
const WINDOW: u64 = 32;

/// Prints a result.
pub fn report(size: usize, count: u32, seconds: f64) {
    println!(r#"{{"size":{size},"count":{count},"seconds":{seconds:.9}}}"#);
}

/// Copies `size` bytes `count` times.
pub fn memcpy(size: usize, count: u32) {
    let from = vec![0x5au8; size];
    let mut to = vec![0u8; size];
    let start = Instant::now();
    for _ in 0..count {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
    }
    report(size, count, start.elapsed().as_secs_f64());
}

/// Sends `count` messages of `size` bytes to another process, in datagrams as large as may be.
pub fn udp(size: usize, count: u32) -> Result<()> {
    ensure!(size > 0, "an empty message says nothing");
    let datagram = size.div_ceil(size.div_ceil(DATAGRAM));
    let per_message = size.div_ceil(datagram) as u64;
    let total = per_message * u64::from(count);
    let mut sink = Command::new(std::env::current_exe()?)
        .args(["udp-sink", &total.to_string(), &datagram.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let out = sink.stdout.take().context("no output to read")?;
    BufReader::new(out).read_line(&mut line)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(line.trim())?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let bytes = vec![0x5au8; datagram];
    let mut progress = [0; 8];
    let (mut sent, mut arrived) = (0u64, 0u64);
    let start = Instant::now();
    while arrived < total {
        while sent < total && sent - arrived < WINDOW {
            socket.send(&bytes)?;
            sent += 1;
        }
        match socket.recv(&mut progress) {
            Ok(_) => arrived = arrived.max(u64::from_le_bytes(progress)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("loopback UDP lost a datagram; {arrived} of {total} arrived")
            }
            Err(error) => return Err(error.into()),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    sink.wait()?;
    report(size, count, seconds);
    Ok(())
}

/// Receives so many datagrams and reports every few.
pub fn udp_sink(total: u64, datagram: usize) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    println!("{}", socket.local_addr()?);
    let mut bytes = vec![0; datagram];
    for arrived in 1..=total {
        let (_, from) = socket.recv_from(&mut bytes)?;
        if arrived % REPORT == 0 || arrived == total {
            socket.send_to(&arrived.to_le_bytes(), from)?;
        }
    }
    Ok(())
}
