//! Takes datagrams from a socket.
//!
//! Small ones come many at a time, into buffers of the engine's own. A large one is looked at
//! first: then the kernel copies its payload straight to where it belongs in the program's memory,
//! and says so if that isn't there.

use std::mem;
use std::net::SocketAddrV4;

use super::memory::{Fault, Span};
use super::net::{Socket, from_sockaddr};
use super::wire;

/// Datagrams per call.
const BATCH: usize = 16;
const ROOM: usize = 1 << 16;
/// What is looked at of a datagram: a header and one data frame's.
pub(super) const PEEK: usize = wire::HEADER + wire::DATA_HEADER;

/// Buffers for arriving datagrams.
pub(super) struct Inbox {
    buffers: Vec<u8>,
    names: [libc::sockaddr_in; BATCH],
    lengths: [usize; BATCH],
    count: usize,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the vectors are filled and used within one call; between calls they are only storage.
unsafe impl Send for Inbox {}

/// Nothing more is there, or the socket reports an error of an earlier datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nothing {
    Empty,
    Report,
}

fn nothing() -> Nothing {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => Nothing::Empty,
        _ => Nothing::Report,
    }
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffers: vec![0; BATCH * ROOM],
            // SAFETY: plain data, for which zero is a value.
            names: unsafe { mem::zeroed() },
            lengths: [0; BATCH],
            count: 0,
            vectors: Vec::new(),
        }
    }

    /// Takes up to a batch of datagrams.
    pub(super) fn take(&mut self, socket: &Socket) -> Result<usize, Nothing> {
        self.count = 0;
        // SAFETY: plain data, for which zero is a value.
        let mut vectors: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (i, buffer) in self.buffers.chunks_exact_mut(ROOM).enumerate() {
            vectors[i] = libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: ROOM,
            };
            let header = &mut messages[i].msg_hdr;
            header.msg_iov = &raw mut vectors[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
        }
        // SAFETY: every pointer is to a buffer of the stated size that outlives the call.
        let n = unsafe {
            libc::recvmmsg(
                socket.raw(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(n).map_err(|_| nothing())?;
        for (length, message) in self.lengths.iter_mut().zip(&messages[..count]) {
            *length = message.msg_len as usize;
        }
        self.count = count;
        Ok(count)
    }

    /// A datagram of the batch, with its sender.
    pub(super) fn datagram(&self, i: usize) -> Option<(SocketAddrV4, &[u8])> {
        if i >= self.count {
            return None;
        }
        let from = from_sockaddr(&self.names[i])?;
        Some((from, &self.buffers[i * ROOM..i * ROOM + self.lengths[i]]))
    }

    /// Looks at the next datagram without taking it: its sender, its length, its beginning.
    pub(super) fn peek(
        &mut self,
        socket: &Socket,
        beginning: &mut [u8; PEEK],
    ) -> Result<(Option<SocketAddrV4>, usize), Nothing> {
        let mut vector = libc::iovec {
            iov_base: beginning.as_mut_ptr().cast(),
            iov_len: PEEK,
        };
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
        let (from, len) = receive(socket, std::slice::from_mut(&mut vector), flags)?;
        Ok((from, len))
    }

    /// Takes the next datagram, which was looked at: its payload goes to the spans.
    pub(super) fn take_into(&mut self, socket: &Socket, spans: &[Span]) -> Result<(), Fault> {
        self.vectors.clear();
        self.vectors.push(libc::iovec {
            iov_base: self.buffers.as_mut_ptr().cast(),
            iov_len: PEEK,
        });
        self.vectors.extend(spans.iter().map(|span| libc::iovec {
            iov_base: span.address as *mut libc::c_void,
            iov_len: span.len,
        }));
        receive(socket, &mut self.vectors, 0)
            .map(|_| ())
            .map_err(|_| Fault)
    }
}

fn receive(
    socket: &Socket,
    vectors: &mut [libc::iovec],
    flags: libc::c_int,
) -> Result<(Option<SocketAddrV4>, usize), Nothing> {
    // SAFETY: plain data, for which zero is a value.
    let mut from: libc::sockaddr_in = unsafe { mem::zeroed() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = mem::size_of_val(&from) as libc::socklen_t;
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _;
    // SAFETY: the name is a local; the vectors name buffers of the engine, or memory of the program
    // that its registration lets the device write, and of which the kernel reports what isn't
    // writable.
    let n = unsafe { libc::recvmsg(socket.raw(), &mut message, flags | libc::MSG_DONTWAIT) };
    match usize::try_from(n) {
        Ok(n) => Ok((from_sockaddr(&from), n)),
        Err(_) => Err(nothing()),
    }
}
