//! Sockets: one UDP socket per queue pair, and the poller that watches them all.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors of the engine live above this where the limit permits, so that the program's own
/// get the low numbers that it expects, and `close`-everything loops of small programs miss them.
const HIGH_FD: RawFd = 640;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Moves a descriptor out of the way of the program's. The argument is closed, or returned as it
/// is where the limit on descriptors is low.
pub(super) fn move_high(fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: the caller gives the descriptor away; duplicating it has no other preconditions.
    let moved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, HIGH_FD) };
    if moved < 0 {
        return Ok(fd);
    }
    // SAFETY: as above: the caller gave the descriptor away.
    unsafe { libc::close(fd) };
    Ok(moved)
}

/// The same for a descriptor that closes itself.
pub(crate) fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    let raw = fd.into_raw_fd();
    // Moving never fails; at worst the descriptor stays where it is.
    let moved = move_high(raw).unwrap_or(raw);
    // SAFETY: the descriptor is open, and `fd` gave it away.
    unsafe { OwnedFd::from_raw_fd(moved) }
}

/// The kernel's form of a socket address.
pub(super) fn sockaddr(address: SocketAddrV4) -> libc::sockaddr_in {
    // SAFETY: sockaddr_in is plain data, for which zero is a value.
    let mut raw: libc::sockaddr_in = unsafe { mem::zeroed() };
    raw.sin_family = libc::AF_INET as libc::sa_family_t;
    raw.sin_port = address.port().to_be();
    raw.sin_addr.s_addr = u32::from(*address.ip()).to_be();
    raw
}

/// The address in the kernel's form, if it is an IPv4 one.
pub(super) fn from_sockaddr(raw: &libc::sockaddr_in) -> Option<SocketAddrV4> {
    (raw.sin_family == libc::AF_INET as libc::sa_family_t).then(|| {
        SocketAddrV4::new(
            Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr)),
            u16::from_be(raw.sin_port),
        )
    })
}

/// The socket of a queue pair.
pub(super) struct Socket {
    fd: OwnedFd,
    port: u16,
    /// Bytes that the kernel keeps for us before it drops.
    receive_buffer: u32,
}

impl Socket {
    const WANTED_BUFFER: libc::c_int = 4 << 20;

    /// Binds a socket on `ip`: on the lowest free port from `first` on, or on one that the system
    /// chooses.
    pub(super) fn bind(ip: Ipv4Addr, first: Option<u16>) -> io::Result<Self> {
        // SAFETY: no pointers involved.
        let fd = check(unsafe {
            libc::socket(
                libc::AF_INET,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        })?;
        let fd = move_high(fd)?;
        // SAFETY: the descriptor is new and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut socket = Self {
            fd,
            port: 0,
            receive_buffer: 0,
        };
        // Fragments may be what it takes to get a packet through; an error would not help.
        socket.set(
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DONT,
        )?;
        // Tells which peer's port is closed: a queue pair that does not exist.
        socket.set(libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        for (forced, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if socket
                .set(libc::SOL_SOCKET, forced, Self::WANTED_BUFFER)
                .is_err()
            {
                socket.set(libc::SOL_SOCKET, plain, Self::WANTED_BUFFER)?;
            }
        }
        socket.receive_buffer = socket.get(libc::SOL_SOCKET, libc::SO_RCVBUF)?.max(0) as u32;
        let mut bound = sockaddr(SocketAddrV4::new(ip, first.unwrap_or(0)));
        loop {
            // SAFETY: `bound` is a sockaddr_in and the length says so.
            let tried = check(unsafe {
                libc::bind(
                    socket.raw(),
                    (&raw const bound).cast(),
                    mem::size_of_val(&bound) as libc::socklen_t,
                )
            });
            match tried {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && first.is_some() => {
                    let next = u16::from_be(bound.sin_port).checked_add(1).ok_or(error)?;
                    bound.sin_port = next.to_be();
                }
                Err(error) => return Err(error),
            }
        }
        let mut len = mem::size_of_val(&bound) as libc::socklen_t;
        // SAFETY: `bound` has room for `len` bytes.
        check(unsafe { libc::getsockname(socket.raw(), (&raw mut bound).cast(), &mut len) })?;
        socket.port = u16::from_be(bound.sin_port);
        Ok(socket)
    }

    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        // SAFETY: the value is a c_int and the length says so.
        check(unsafe {
            libc::setsockopt(
                self.raw(),
                level,
                name,
                (&raw const value).cast(),
                mem::size_of_val(&value) as libc::socklen_t,
            )
        })?;
        Ok(())
    }

    fn get(&self, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
        let mut value: libc::c_int = 0;
        let mut len = mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: `value` has room for the `len` bytes.
        check(unsafe {
            libc::getsockopt(self.raw(), level, name, (&raw mut value).cast(), &mut len)
        })?;
        Ok(value)
    }

    /// The descriptor.
    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The port, which is the queue pair's number.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Payload bytes that a sender may have under way to this socket without overrunning it:
    /// half of what the kernel keeps, since it counts its own overhead too.
    pub(super) fn window(&self) -> u32 {
        self.receive_buffer / 2
    }

    /// Takes one report from the error queue: the peer whose port turned out to be closed.
    /// `None` when the queue is empty.
    pub(super) fn take_refusal(&self) -> Option<Refusal> {
        // SAFETY: plain data, for which zero is a value.
        let mut from: libc::sockaddr_in = unsafe { mem::zeroed() };
        let mut control = [0u64; 32];
        // SAFETY: plain data, for which zero is a value.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = mem::size_of_val(&from) as libc::socklen_t;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control) as _;
        // SAFETY: every pointer in `message` is to a local of the stated size.
        let n = unsafe {
            libc::recvmsg(
                self.raw(),
                &mut message,
                libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
            )
        };
        if n < 0 {
            return None;
        }
        let mut closed = false;
        // SAFETY: the kernel has filled `message` and its control buffer.
        let mut part = unsafe { libc::CMSG_FIRSTHDR(&message) };
        while !part.is_null() {
            // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return headers inside the control buffer.
            let header = unsafe { &*part };
            if header.cmsg_level == libc::IPPROTO_IP && header.cmsg_type == libc::IP_RECVERR {
                // SAFETY: a control message of this type holds a sock_extended_err; it may be
                // unaligned, hence the unaligned read.
                let report = unsafe {
                    libc::CMSG_DATA(part)
                        .cast::<libc::sock_extended_err>()
                        .read_unaligned()
                };
                closed |= report.ee_errno == libc::ECONNREFUSED as u32;
            }
            // SAFETY: `part` is a header of `message`.
            part = unsafe { libc::CMSG_NXTHDR(&message, part) };
        }
        Some(Refusal {
            peer: from_sockaddr(&from).filter(|_| closed),
        })
    }
}

/// The longest datagram that gets from `ip` to `peer` in one piece; where the way knows larger
/// ones than UDP, a round number below UDP's limit.
pub(super) fn datagram_limit(ip: Ipv4Addr, peer: Ipv4Addr) -> usize {
    const ROUND: usize = 60 << 10;
    const HEADERS: usize = super::wire::HEADER + super::wire::DATA_HEADER;
    // What Ethernet carries.
    const FALLBACK: usize = 1472;
    let mtu = path_mtu(ip, peer).unwrap_or(0);
    match mtu.saturating_sub(28) {
        0..1000 => FALLBACK,
        limit => limit.min(ROUND + HEADERS),
    }
}

fn path_mtu(ip: Ipv4Addr, peer: Ipv4Addr) -> io::Result<usize> {
    let socket = std::net::UdpSocket::bind((ip, 0))?;
    // The discard port: nothing is sent.
    socket.connect((peer, 9))?;
    let mut mtu: libc::c_int = 0;
    let mut len = mem::size_of_val(&mtu) as libc::socklen_t;
    // SAFETY: `mtu` has room for the `len` bytes.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU,
            (&raw mut mtu).cast(),
            &mut len,
        )
    })?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// A report from a socket's error queue.
pub(super) struct Refusal {
    /// The peer that has no such port; `None` if the report was about something else.
    pub(super) peer: Option<SocketAddrV4>,
}

/// Waits for packets on any socket, for a knock, or for time.
pub(super) struct Poller {
    epoll: OwnedFd,
    knock: OwnedFd,
}

/// The mark of the knock among poll events; queue pair numbers have 16 bits.
const KNOCK: u64 = 1 << 32;

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no pointers involved.
        let epoll = move_high(check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?)?;
        // SAFETY: the descriptor is new and ours.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        // SAFETY: no pointers involved.
        let knock = move_high(check(unsafe {
            libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)
        })?)?;
        // SAFETY: the descriptor is new and ours.
        let knock = unsafe { OwnedFd::from_raw_fd(knock) };
        let poller = Self { epoll, knock };
        poller.watch(poller.knock.as_raw_fd(), KNOCK)?;
        Ok(poller)
    }

    fn watch(&self, fd: RawFd, mark: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLERR) as u32,
            u64: mark,
        };
        // SAFETY: `event` is valid for the call.
        check(unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event)
        })?;
        Ok(())
    }

    /// Watches a queue pair's socket.
    pub(super) fn add(&self, socket: &Socket) -> io::Result<()> {
        self.watch(socket.raw(), u64::from(socket.port()))
    }

    /// Stops watching a queue pair's socket.
    pub(super) fn remove(&self, socket: &Socket) {
        // SAFETY: no event is needed to delete.
        unsafe {
            libc::epoll_ctl(
                self.epoll.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                socket.raw(),
                std::ptr::null_mut(),
            )
        };
    }

    /// The numbers of queue pairs whose sockets have something, without waiting.
    pub(super) fn ready(&self, out: &mut Vec<u16>) {
        out.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: `events` has room for 64.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 64, 0) };
        for event in &events[..usize::try_from(n).unwrap_or(0)] {
            let mark = event.u64;
            if mark == KNOCK {
                self.drain_knock();
            } else {
                out.push(mark as u16);
            }
        }
    }

    fn drain_knock(&self) {
        let mut count = 0u64;
        // SAFETY: an eventfd read fills the 8 bytes of `count`.
        unsafe { libc::read(self.knock.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// A handle by which other threads end a [`wait`].
    pub(super) fn knocker(&self) -> io::Result<Knocker> {
        let fd = self.knock.try_clone()?;
        // SAFETY: the descriptor is new, and handed on to its new owner.
        let fd = move_high(std::os::fd::IntoRawFd::into_raw_fd(fd))?;
        // SAFETY: as above.
        Ok(Knocker(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor to wait on.
    pub(super) fn raw(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// Waits until the descriptor of a [`Poller`] has events, or for `time`.
pub(super) fn wait(poller: RawFd, time: Option<Duration>) {
    let mut fd = libc::pollfd {
        fd: poller,
        events: libc::POLLIN,
        revents: 0,
    };
    let time = time.map(|time| libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fd` and `time` are locals that outlive the call; no signal mask is given.
    unsafe { libc::ppoll(&mut fd, 1, time, std::ptr::null()) };
}

/// Ends the engine thread's wait.
pub(super) struct Knocker(OwnedFd);

impl Knocker {
    pub(super) fn knock(&self) {
        let one = 1u64;
        // SAFETY: an eventfd write takes the 8 bytes of `one`.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_taken_and_taken_again() {
        let ip = Ipv4Addr::new(127, 0, 9, 1);
        let bind = || Socket::bind(ip, Some(20_000)).unwrap();
        let (a, b) = (bind(), bind());
        assert_eq!((a.port(), b.port()), (20_000, 20_001));
        drop(a);
        assert_eq!(bind().port(), 20_000);
    }

    #[test]
    fn a_closed_port_is_reported_with_its_peer() {
        let a = Socket::bind(Ipv4Addr::LOCALHOST, None).unwrap();
        let b = Socket::bind(Ipv4Addr::LOCALHOST, None).unwrap();
        let gone = SocketAddrV4::new(Ipv4Addr::LOCALHOST, b.port());
        drop(b);
        let to = sockaddr(gone);
        // SAFETY: the buffer is one byte long and `to` is a sockaddr_in.
        let n = unsafe {
            libc::sendto(
                a.raw(),
                [0u8].as_ptr().cast(),
                1,
                0,
                (&raw const to).cast(),
                mem::size_of_val(&to) as libc::socklen_t,
            )
        };
        assert_eq!(n, 1);
        let refusal = a.take_refusal().expect("the report is there at once");
        assert_eq!(refusal.peer, Some(gone));
        assert!(a.take_refusal().is_none());
    }

    #[test]
    fn a_knock_ends_a_wait() {
        let poller = Poller::new().unwrap();
        poller.knocker().unwrap().knock();
        wait(poller.raw(), None);
        let mut ready = vec![1];
        poller.ready(&mut ready);
        assert!(ready.is_empty());
        wait(poller.raw(), Some(Duration::from_micros(10)));
    }
}
