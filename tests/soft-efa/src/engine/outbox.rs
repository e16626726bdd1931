//! Builds datagrams out of frames and hands them to the kernel, many at a time.
//!
//! Payloads are not copied here: the kernel gathers them from the program's memory, and says so
//! when it isn't there.

use std::mem;
use std::net::SocketAddrV4;
use std::ops::Range;

use super::counters::Counters;
use super::memory::{Fault, Span, UserMemory};
use super::net::{Socket, sockaddr};
use super::wire::{self, Frame, Header};

/// The payload of a frame.
pub(super) enum Payload<'a> {
    /// In the program's memory.
    Spans(&'a [Span]),
    /// In the engine's.
    Bytes(&'a [u8]),
}

/// Names the packet of a frame, for when the kernel can't read its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// A request's packet.
    Packet {
        flow: usize,
        seq: u32,
        packet: u32,
        attempt: u16,
    },
    /// The answer to a read.
    Response { peer: SocketAddrV4, seq: u32 },
}

#[derive(Clone, Copy)]
enum Piece {
    Own { start: usize, len: usize },
    User(Span),
}

struct Datagram {
    to: SocketAddrV4,
    dest: u64,
    prefix: Range<usize>,
    pieces: Range<usize>,
    tags: Range<usize>,
    frames: usize,
    bytes: usize,
}

/// Datagrams on their way out of one socket.
#[derive(Default)]
pub(super) struct Outbox {
    prefixes: Vec<u8>,
    copies: Vec<u8>,
    pieces: Vec<Piece>,
    tags: Vec<Tag>,
    datagrams: Vec<Datagram>,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the vectors are filled and used within one call; between calls they are only storage.
unsafe impl Send for Outbox {}

impl Outbox {
    /// Datagrams for one call to the kernel.
    const BATCH: usize = 64;

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Adds a frame for `to`, to the last datagram if it goes there and has room: datagrams get
    /// at most `limit` bytes.
    #[expect(clippy::too_many_arguments, reason = "a frame has that much context")]
    pub(super) fn push(
        &mut self,
        memory: &UserMemory,
        to: SocketAddrV4,
        limit: usize,
        header: &Header,
        frame: &Frame,
        payload: Payload<'_>,
        tag: Option<Tag>,
    ) -> Result<(), Fault> {
        let payload_len = match &payload {
            Payload::Spans(spans) => spans.iter().map(|s| s.len).sum(),
            Payload::Bytes(bytes) => bytes.len(),
        };
        let len = frame.header_len() + payload_len;
        let joins = self.datagrams.last().is_some_and(|last| {
            last.to == to
                && last.dest == header.dest
                && last.bytes + len <= limit
                && last.frames < wire::MAX_FRAMES
        });
        // Copies come first: if one fails, nothing was added.
        let copied = self.copies.len();
        match payload {
            Payload::Bytes(bytes) => self.copies.extend_from_slice(bytes),
            Payload::Spans(spans) if !memory.gather_in_place() => {
                self.copies.resize(copied + payload_len, 0);
                if let Err(fault) = memory.read(spans, &mut self.copies[copied..]) {
                    self.copies.truncate(copied);
                    return Err(fault);
                }
            }
            Payload::Spans(_) => {}
        }
        if !joins {
            let start = self.prefixes.len();
            wire::open(&mut self.prefixes, header);
            self.datagrams.push(Datagram {
                to,
                dest: header.dest,
                prefix: start..self.prefixes.len(),
                pieces: self.pieces.len()..self.pieces.len(),
                tags: self.tags.len()..self.tags.len(),
                frames: 0,
                bytes: wire::HEADER,
            });
        }
        frame.encode(&mut self.prefixes);
        if self.copies.len() > copied {
            self.pieces.push(Piece::Own {
                start: copied,
                len: payload_len,
            });
        } else if let Payload::Spans(spans) = payload {
            let filled = spans.iter().filter(|span| span.len > 0);
            self.pieces.extend(filled.map(|span| Piece::User(*span)));
        }
        self.tags.extend(tag);
        if let Some(last) = self.datagrams.last_mut() {
            last.prefix.end = self.prefixes.len();
            last.pieces.end = self.pieces.len();
            last.tags.end = self.tags.len();
            last.frames += 1;
            last.bytes += len;
        }
        Ok(())
    }

    /// Adds a frame without payload.
    pub(super) fn push_plain(
        &mut self,
        memory: &UserMemory,
        to: SocketAddrV4,
        limit: usize,
        header: &Header,
        frame: &Frame,
    ) {
        // Without a payload there is nothing that could fail.
        let _ = self.push(memory, to, limit, header, frame, Payload::Bytes(&[]), None);
    }

    /// Sends everything. `failed` gets the tags of datagrams whose payload could not be read.
    pub(super) fn flush(
        &mut self,
        socket: &Socket,
        counters: &mut Counters,
        failed: &mut Vec<Tag>,
    ) {
        for datagram in &self.datagrams {
            wire::seal(&mut self.prefixes[datagram.prefix.clone()], datagram.frames);
        }
        let mut first = 0;
        let mut stubborn = 0;
        while first < self.datagrams.len() {
            let end = (first + Self::BATCH).min(self.datagrams.len());
            match self.send(socket, first..end) {
                Ok(sent) => {
                    counters.datagrams_sent += sent as u64;
                    first += sent;
                    stubborn = 0;
                }
                Err(libc::EFAULT) => {
                    failed.extend_from_slice(&self.tags[self.datagrams[first].tags.clone()]);
                    first += 1;
                }
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    // As on a real wire: the timers notice.
                    counters.datagrams_refused += (self.datagrams.len() - first) as u64;
                    break;
                }
                // An error that an earlier datagram caused is reported once.
                Err(libc::ECONNREFUSED | libc::EINTR) if stubborn < 8 => stubborn += 1,
                Err(_) => {
                    counters.datagrams_refused += 1;
                    first += 1;
                    stubborn = 0;
                }
            }
        }
        self.clear();
    }

    pub(super) fn clear(&mut self) {
        self.prefixes.clear();
        self.copies.clear();
        self.pieces.clear();
        self.tags.clear();
        self.datagrams.clear();
    }

    fn send(&mut self, socket: &Socket, range: Range<usize>) -> Result<usize, i32> {
        self.vectors.clear();
        // SAFETY: plain data, for which zero is a value.
        let mut messages: [libc::mmsghdr; Self::BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut names: [libc::sockaddr_in; Self::BATCH] = unsafe { mem::zeroed() };
        let mut counts = [0usize; Self::BATCH];
        for (i, datagram) in self.datagrams[range.clone()].iter().enumerate() {
            let before = self.vectors.len();
            let prefix = &self.prefixes[datagram.prefix.clone()];
            self.vectors.push(libc::iovec {
                iov_base: prefix.as_ptr().cast_mut().cast(),
                iov_len: prefix.len(),
            });
            for piece in &self.pieces[datagram.pieces.clone()] {
                self.vectors.push(match *piece {
                    Piece::Own { start, len } => libc::iovec {
                        iov_base: self.copies[start..start + len].as_ptr().cast_mut().cast(),
                        iov_len: len,
                    },
                    Piece::User(span) => libc::iovec {
                        iov_base: span.address as *mut libc::c_void,
                        iov_len: span.len,
                    },
                });
            }
            counts[i] = self.vectors.len() - before;
            names[i] = sockaddr(datagram.to);
        }
        let mut vector = self.vectors.as_mut_ptr();
        for i in 0..range.len() {
            let header = &mut messages[i].msg_hdr;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_namelen = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_iov = vector;
            header.msg_iovlen = counts[i] as _;
            // SAFETY: the vectors of datagram i are followed by those of i + 1, or by the end.
            vector = unsafe { vector.add(counts[i]) };
        }
        // SAFETY: names, vectors and the engine's own buffers live until the call returns; parts
        // in the program's memory are only looked at by the kernel, which reports what isn't
        // readable.
        let n = unsafe {
            libc::sendmmsg(
                socket.raw(),
                messages.as_mut_ptr(),
                range.len() as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(n).map_err(|_| {
            std::io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EIO)
        })
    }
}
