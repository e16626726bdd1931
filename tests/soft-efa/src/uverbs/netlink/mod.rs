//! RDMA netlink: how libibverbs and iproute2's `rdma` find devices.
//!
//! The program's socket is a real netlink socket, of the protocol that is free for use between
//! processes. So binding, waiting, receiving and closing are the kernel's own. Only what the
//! program sends to the kernel is taken aside: it is answered at once, into the program's socket,
//! from another one. Nothing is kept but a mark for each descriptor; what a marked
//! descriptor really is by now is asked of the kernel before anything is done with it.

mod messages;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ctl::Client;
use crate::stats;

use super::process::{self, RunInfo};
use super::user;

/// The netlink protocol of RDMA.
pub const NETLINK_RDMA: i32 = 20;
/// The netlink protocol that stands in for it.
pub const NETLINK_USERSOCK: i32 = 2;

/// The longest datagram that is looked at. Requests are short.
const LONGEST: usize = 64 << 10;

const WORDS: usize = 1024;
static MARKS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether `fd` may be a socket that was opened for RDMA netlink. Cheap, and never wrong for one
/// that is.
pub fn is_marked(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Takes a new socket for one of RDMA netlink. Fails for numbers beyond all usual limits.
pub fn adopt(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| {
        word.fetch_or(bit, Ordering::Relaxed);
        true
    })
}

/// `fd` is a new socket of another kind.
pub fn forget(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// The program has made `new` another descriptor for `old`.
pub fn duplicated(old: RawFd, new: RawFd) {
    if is_marked(old) {
        adopt(new);
    }
}

fn option(fd: RawFd, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` has the room that `len` states.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    (result == 0).then_some(value)
}

fn is_ours(fd: RawFd) -> bool {
    is_marked(fd)
        && option(fd, libc::SO_DOMAIN) == Some(libc::AF_NETLINK)
        && option(fd, libc::SO_PROTOCOL) == Some(NETLINK_USERSOCK)
}

fn address(port: u32) -> libc::sockaddr_nl {
    // SAFETY: all zeros is a value of this C struct.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address
}

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_nl>() as libc::socklen_t;

fn last_errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// The socket's own number among netlink sockets; it gets one if it has none yet.
fn own_port(fd: RawFd) -> Result<u32, i32> {
    for _ in 0..2 {
        let mut own = address(0);
        let mut len = ADDRESS_LEN;
        // SAFETY: `own` has the room that `len` states.
        if unsafe { libc::getsockname(fd, (&raw mut own).cast(), &raw mut len) } == -1 {
            return Err(last_errno());
        }
        if own.nl_pid != 0 {
            return Ok(own.nl_pid);
        }
        let any = address(0);
        // SAFETY: `any` is an address of the stated length.
        if unsafe { libc::bind(fd, (&raw const any).cast(), ADDRESS_LEN) } == -1 {
            return Err(last_errno());
        }
    }
    Err(libc::EADDRNOTAVAIL)
}

/// The program sends the parts at `parts` (address and length each) from `fd` to the address at
/// `to`, which may be 0. `None` if that is not for us to answer.
pub fn send(
    fd: RawFd,
    to: usize,
    to_len: usize,
    parts: &[(usize, usize)],
) -> Option<Result<usize, i32>> {
    if !is_ours(fd) {
        return None;
    }
    let run = process::run()?;
    if to != 0 {
        match user::read(to as u64, to_len.min(ADDRESS_LEN as usize)) {
            // To another process: none of our business.
            Ok(bytes) if bytes.len() >= 8 && bytes[4..8] != [0; 4] => return None,
            Ok(_) => {}
            Err(errno) => return Some(Err(errno)),
        }
    }
    Some(answer(run, fd, parts))
}

fn answer(run: &RunInfo, fd: RawFd, parts: &[(usize, usize)]) -> Result<usize, i32> {
    let mut datagram = Vec::new();
    for (part, len) in parts {
        if datagram.len().saturating_add(*len) > LONGEST {
            return Err(libc::EMSGSIZE);
        }
        datagram.extend(user::read(*part as u64, *len)?);
    }
    let port = own_port(fd)?;
    let kernel = messages::Kernel {
        options: &run.options,
        port,
        objects: &|device| objects(run, device),
        stats: &|device| stats::sum(&run.dir, device),
    };
    let responder = Responder::new()?;
    for answer in kernel.answer(&datagram) {
        responder.send(port, &answer)?;
    }
    Ok(datagram.len())
}

/// What lives on a device, in all processes of the run.
fn objects(run: &RunInfo, device: &str) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for pid in Client::processes(&run.dir).unwrap_or_default() {
        // A process that has just ended has nothing any more.
        let Ok(mut client) = Client::connect(&run.dir, pid) else {
            continue;
        };
        for (name, count) in client.objects_of(device).unwrap_or_default() {
            *sum.entry(name).or_default() += count;
        }
    }
    sum
}

/// The socket that answers come from. Its calls are made directly: the functions would come back
/// to us.
struct Responder(RawFd);

impl Responder {
    fn new() -> Result<Self, i32> {
        // SAFETY: numbers alone.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_socket,
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                NETLINK_USERSOCK,
            )
        };
        if fd == -1 {
            return Err(last_errno());
        }
        Ok(Self(fd as RawFd))
    }

    /// Never waits: a reader that lets its socket fill up loses answers, as with the kernel.
    fn send(&self, port: u32, answer: &[u8]) -> Result<(), i32> {
        let to = address(port);
        // SAFETY: the answer and the address are valid for reads of the stated lengths.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                self.0,
                answer.as_ptr(),
                answer.len(),
                libc::MSG_DONTWAIT,
                &raw const to,
                ADDRESS_LEN,
            )
        };
        match sent {
            -1 if last_errno() == libc::EAGAIN => Err(libc::ENOBUFS),
            -1 => Err(last_errno()),
            _ => Ok(()),
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and in no table.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// `fd` has received a datagram, whose sender was written to `from`: it is to be the kernel.
pub fn received(fd: RawFd, from: usize, from_len: usize) {
    const PORT: std::ops::Range<usize> = 4..8;
    if from != 0 && from_len >= PORT.end && is_ours(fd) {
        // What the kernel could write to, we can.
        let _ = user::write((from + PORT.start) as u64, &[0; 4]);
    }
}
