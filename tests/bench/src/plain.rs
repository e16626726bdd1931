//! What soft-efa is compared with: copying memory, and UDP between two processes.

use std::hint::black_box;
use std::io::{self, BufRead, BufReader};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// Bytes of a datagram, at most.
const DATAGRAM: usize = 32 << 10;
/// Receive buffer that is asked for; the kernel may grant less.
const BUFFER: libc::c_int = 4 << 20;
/// Datagrams under way at most.
const WINDOW: u64 = 64;

/// What of its receive buffer the kernel counts for a datagram beside the bytes, at most.
const OVERHEAD: usize = 1024;

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
    // The address, and how many datagrams surely fit into the receiver's buffer.
    let mut line = String::new();
    let out = sink.stdout.take().context("no output to read")?;
    BufReader::new(out).read_line(&mut line)?;
    let (address, window) = line.trim().split_once(' ').context("no address")?;
    let window: u64 = window.parse()?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let bytes = vec![0x5au8; datagram];
    let mut progress = [0; 8];
    let (mut sent, mut arrived) = (0u64, 0u64);
    let start = Instant::now();
    while arrived < total {
        while sent < total && sent - arrived < window {
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

/// Receives so many datagrams, and says every now and then how many have arrived.
pub fn udp_sink(total: u64, datagram: usize) -> Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let buffer = enlarge(&socket)?;
    let window = (buffer / 2 / (2 * datagram + OVERHEAD)).clamp(1, WINDOW as usize) as u64;
    println!("{} {window}", socket.local_addr()?);
    let mut bytes = vec![0; datagram];
    for arrived in 1..=total {
        let (_, from) = socket.recv_from(&mut bytes)?;
        if arrived % window.div_ceil(4) == 0 || arrived == total {
            socket.send_to(&arrived.to_le_bytes(), from)?;
        }
    }
    Ok(())
}

/// Asks for a larger receive buffer, and returns how large it is.
fn enlarge(socket: &UdpSocket) -> Result<usize> {
    let mut size = BUFFER;
    let mut length = size_of_val(&size) as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: the descriptor is open; the value is as long as the length says.
    let error = unsafe {
        for option in [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE] {
            // The second needs a privilege, and goes beyond the system's limit.
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                option,
                (&raw const size).cast(),
                length,
            );
        }
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw mut size).cast(),
            &mut length,
        )
    };
    ensure!(error == 0, "getsockopt: {}", io::Error::last_os_error());
    Ok(usize::try_from(size)?)
}
