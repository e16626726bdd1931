//! Messages of the vfio-user protocol: a header, a body, and descriptors beside them.
//!
//! The protocol is described in QEMU's documentation ("vfio-user Protocol Specification"). The
//! published crate for servers unwraps what a client sends, serves one connection and lends no
//! region as a whole; this needs less code than working around that.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Descriptors beside a message, at most.
pub(crate) const MOST_FILES: usize = 16;
/// Bytes that one access to a region moves, at most.
pub(crate) const MOST_DATA: usize = 1 << 20;
/// Bytes of a message, at most: data and a little more.
const MOST_BYTES: usize = MOST_DATA + 4096;

/// The flag that says that a message answers another.
const REPLY: u32 = 1;
/// Bits that have a message's type.
const TYPE: u32 = 0xf;
/// The sender wants no answer.
const NO_REPLY: u32 = 0x10;
/// The answer says that it went wrong.
const ERROR: u32 = 0x20;

/// What a message begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    id: U16,
    command: U16,
    bytes: U32,
    flags: U32,
    error: U32,
}

const HEADER: usize = size_of::<Header>();

/// A request of the client.
pub(crate) struct Request {
    header: Header,
    /// What it wants.
    pub(crate) command: u16,
    /// What follows the header.
    pub(crate) body: Vec<u8>,
    /// The descriptors beside it.
    pub(crate) files: Vec<File>,
}

impl Request {
    /// Whether the client wants an answer.
    fn wants_reply(&self) -> bool {
        self.header.flags.get() & NO_REPLY == 0
    }
}

/// A connection to a client.
pub(crate) struct Connection {
    stream: UnixStream,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("a message of {0} B")]
    Length(u32),
    #[error("a message that is no request (flags {0:#x})")]
    Type(u32),
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Waits for a message; whether there is one, or an end, to be received.
    pub(crate) fn wait(&self, time: Duration) -> io::Result<bool> {
        let mut ready = libc::pollfd {
            fd: self.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // A little late rather than many times too early.
        let milliseconds = i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, which is a local.
        match unsafe { libc::poll(&raw mut ready, 1, milliseconds) } {
            0 => Ok(false),
            1 => Ok(true),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Receives a request; `None` at the end of the connection.
    pub(crate) fn receive(&self) -> Result<Option<Request>, WireError> {
        let mut bytes = [0; HEADER];
        let mut files = Vec::new();
        let mut done = 0;
        while done < HEADER {
            match receive_some(self.as_raw_fd(), &mut bytes[done..], &mut files)? {
                0 if done == 0 => return Ok(None),
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                more => done += more,
            }
        }
        let header = Header::read_from_bytes(&bytes).map_err(|_| WireError::Length(0))?;
        let length = header.bytes.get();
        if (length as usize) < HEADER || length as usize > MOST_BYTES {
            return Err(WireError::Length(length));
        }
        if header.flags.get() & TYPE != 0 {
            return Err(WireError::Type(header.flags.get()));
        }
        let mut body = vec![0; length as usize - HEADER];
        let mut done = 0;
        while done < body.len() {
            match receive_some(self.as_raw_fd(), &mut body[done..], &mut files)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                more => done += more,
            }
        }
        Ok(Some(Request {
            header,
            command: header.command.get(),
            body,
            files,
        }))
    }

    /// Answers a request, with or without a descriptor beside the answer.
    pub(crate) fn reply(
        &self,
        request: &Request,
        result: Result<&[u8], i32>,
        file: Option<&File>,
    ) -> io::Result<()> {
        if !request.wants_reply() {
            return Ok(());
        }
        let (body, flags, error) = match result {
            Ok(body) => (body, REPLY, 0),
            Err(errno) => (&[][..], REPLY | ERROR, errno.unsigned_abs()),
        };
        let header = Header {
            id: request.header.id,
            command: request.header.command,
            bytes: U32::new((HEADER + body.len()) as u32),
            flags: U32::new(flags),
            error: U32::new(error),
        };
        let mut message = header.as_bytes().to_vec();
        message.extend_from_slice(body);
        let sent = match file {
            Some(file) => send_with(self.as_raw_fd(), &message, file.as_raw_fd())?,
            None => 0,
        };
        (&self.stream).write_all(&message[sent..])
    }
}

/// Room for the descriptors of one call, aligned as the kernel wants it.
type Control = [u64; 16];

/// Receives what there is, and descriptors with it. More descriptors than a message may have are
/// dropped, that is, closed, by the kernel.
fn receive_some(fd: RawFd, to: &mut [u8], files: &mut Vec<File>) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let mut control: Control = [0; 16];
    // SAFETY: msghdr is plain data, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    let got = loop {
        // SAFETY: the message names `to` and `control`, which have the lengths that it says.
        let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(got) {
            Ok(got) => break got,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    };
    // SAFETY: the kernel has filled `control` as far as the message says, in whole entries.
    unsafe {
        let mut entry = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(header) = entry.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = header.cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(entry).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    // Each is open, and nobody else's.
                    let file = File::from_raw_fd(data.add(index).read_unaligned());
                    if files.len() < MOST_FILES {
                        files.push(file);
                    }
                }
            }
            entry = libc::CMSG_NXTHDR(&raw const message, entry);
        }
    }
    Ok(got)
}

/// Sends the beginning of a message, and a descriptor with it.
fn send_with(fd: RawFd, bytes: &[u8], file: RawFd) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control: Control = [0; 16];
    // SAFETY: msghdr is plain data, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: plain arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    // SAFETY: `control` has room for one entry with one descriptor, which is what is written.
    unsafe {
        let entry = libc::CMSG_FIRSTHDR(&raw const message);
        (*entry).cmsg_level = libc::SOL_SOCKET;
        (*entry).cmsg_type = libc::SCM_RIGHTS;
        (*entry).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(entry).cast::<RawFd>().write_unaligned(file);
    }
    // SAFETY: the message names `bytes`, which the call only reads, and `control`.
    let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
