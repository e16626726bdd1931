//! Event channels: completion channels and the asynchronous event file.
//!
//! The program's descriptor is one end of a socket pair that keeps records apart. That gives
//! blocking and non-blocking reads, `poll` and `epoll` without help, and lets the device take
//! back the events of a completion queue that goes away, as the kernel does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use crate::engine::net::out_of_the_way;

use super::device::Alive;
use super::fds;

/// An event: the handle that the program gave its completion queue.
const EVENT: usize = 8;

/// The device's side of an event channel.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    /// Events that the socket had no room for.
    backlog: Mutex<VecDeque<u64>>,
    _alive: Option<Alive>,
}

impl Channel {
    /// A new channel and the program's descriptor for it.
    pub(crate) fn new() -> Result<(Self, OwnedFd), i32> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `pair` has room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } == -1 {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EMFILE));
        }
        // SAFETY: the call succeeded, so both are open and nobody else owns them.
        let (theirs, ours) =
            unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
        let ours = out_of_the_way(ours);
        let room: libc::c_int = 1 << 20;
        // More room than the default for programs with many queues; refused is no harm.
        // SAFETY: the option's value is a c_int.
        unsafe {
            libc::setsockopt(
                ours.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_SNDBUF,
                (&raw const room).cast(),
                size_of::<libc::c_int>() as u32,
            );
        }
        Ok((
            Self {
                socket: ours,
                backlog: Mutex::new(VecDeque::new()),
                _alive: None,
            },
            theirs,
        ))
    }

    /// Counts the channel among the device's objects.
    pub(crate) fn counted(mut self, alive: Alive) -> Self {
        self._alive = Some(alive);
        self
    }

    /// Reports an event. Never blocks.
    pub(crate) fn push(&self, handle: u64) {
        let mut backlog = fds::lock(&self.backlog);
        backlog.push_back(handle);
        self.flush(&mut backlog);
    }

    fn flush(&self, backlog: &mut VecDeque<u64>) {
        while let Some(handle) = backlog.front() {
            let event = handle.to_ne_bytes();
            // SAFETY: the buffer is as long as said. No signal is raised where the program has
            // closed its end.
            let sent = unsafe {
                libc::send(
                    self.socket.as_raw_fd(),
                    event.as_ptr().cast(),
                    EVENT,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            if sent == -1 {
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::EAGAIN) => return,
                    // Nobody will read any more.
                    _ => backlog.clear(),
                }
                return;
            }
            backlog.pop_front();
        }
    }

    /// Takes back the events of `handle` that nobody has read; `program` is the program's
    /// descriptor. Returns how many there were.
    pub(crate) fn take_back(&self, handle: u64, program: RawFd) -> u32 {
        let mut backlog = fds::lock(&self.backlog);
        let mut unread = VecDeque::new();
        loop {
            let mut event = [0u8; EVENT];
            // SAFETY: the buffer is as long as said.
            let got = unsafe {
                libc::recv(
                    program,
                    event.as_mut_ptr().cast(),
                    EVENT,
                    libc::MSG_DONTWAIT,
                )
            };
            if got != EVENT as isize {
                break;
            }
            unread.push_back(u64::from_ne_bytes(event));
        }
        unread.append(&mut backlog);
        let before = unread.len();
        unread.retain(|event| *event != handle);
        let taken = before - unread.len();
        *backlog = unread;
        self.flush(&mut backlog);
        taken as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_event(fd: &OwnedFd) -> Option<u64> {
        let mut event = [0u8; 8];
        // SAFETY: the buffer is as long as said.
        let got = unsafe {
            libc::recv(
                fd.as_raw_fd(),
                event.as_mut_ptr().cast(),
                8,
                libc::MSG_DONTWAIT,
            )
        };
        (got == 8).then(|| u64::from_ne_bytes(event))
    }

    #[test]
    fn events_of_a_queue_that_goes_away_are_taken_back() {
        let (channel, fd) = Channel::new().unwrap();
        for handle in [1, 2, 1, 3] {
            channel.push(handle);
        }
        assert_eq!(read_event(&fd), Some(1));
        assert_eq!(channel.take_back(1, fd.as_raw_fd()), 1);
        assert_eq!(
            (read_event(&fd), read_event(&fd), read_event(&fd)),
            (Some(2), Some(3), None)
        );
    }

    #[test]
    fn a_full_channel_keeps_its_events() {
        let (channel, fd) = Channel::new().unwrap();
        for handle in 0..5000 {
            channel.push(handle);
        }
        let mut seen = 0;
        loop {
            while let Some(handle) = read_event(&fd) {
                assert_eq!(handle, seen);
                seen += 1;
            }
            if seen == 5001 {
                break;
            }
            // The next event brings the ones before it along.
            if !fds::lock(&channel.backlog).is_empty() {
                channel.flush(&mut fds::lock(&channel.backlog));
            } else {
                channel.push(seen);
            }
        }
    }

    #[test]
    fn a_closed_channel_swallows_events() {
        let (channel, fd) = Channel::new().unwrap();
        drop(fd);
        channel.push(1);
        assert!(fds::lock(&channel.backlog).is_empty());
    }
}
