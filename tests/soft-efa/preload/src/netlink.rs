//! Functions that open sockets and send and receive on them: RDMA netlink is ours to answer.

use std::ffi::{c_int, c_void};

use soft_efa::uverbs::{self, netlink};

use crate::next::call_next;
use crate::{answer, aside, set_errno};

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let real = |protocol: c_int| call_next!(socket(domain => c_int, kind => c_int, protocol => c_int) -> c_int, -1);
    let rdma = domain == libc::AF_NETLINK && protocol == netlink::NETLINK_RDMA;
    if !rdma || !aside(uverbs::prepare) {
        let fd = real(protocol);
        if netlink::is_marked(fd) {
            netlink::forget(fd);
        }
        return fd;
    }
    let fd = real(netlink::NETLINK_USERSOCK);
    if fd >= 0 && netlink::adopt(fd) {
        return fd;
    }
    if fd >= 0 {
        // SAFETY: the descriptor was made above, and nobody else knows it.
        unsafe { libc::close(fd) };
    }
    // As on a system without RDMA: libibverbs then looks at our tree.
    set_errno(libc::EPROTONOSUPPORT);
    -1
}

/// What `netlink::send` answers, as the function called would; `None` if it is not about us.
fn sent(
    fd: c_int,
    to: *const c_void,
    to_len: usize,
    parts: &dyn Fn() -> Result<Vec<(usize, usize)>, i32>,
) -> Option<isize> {
    if !netlink::is_marked(fd) {
        return None;
    }
    let mut result = Some(-1);
    let failed = answer(|| match netlink::send(fd, to as usize, to_len, &parts()?) {
        Some(count) => {
            result = Some(count? as isize);
            Ok(0)
        }
        None => {
            result = None;
            Ok(0)
        }
    });
    if failed == -1 { Some(-1) } else { result }
}

#[unsafe(no_mangle)]
extern "C" fn send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize {
    let parts = || Ok(vec![(buf as usize, len)]);
    sent(fd, std::ptr::null(), 0, &parts).unwrap_or_else(|| {
        call_next!(send(
            fd => c_int, buf => *const c_void, len => usize, flags => c_int
        ) -> isize, -1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    to: *const c_void,
    to_len: libc::socklen_t,
) -> isize {
    let parts = || Ok(vec![(buf as usize, len)]);
    sent(fd, to, to_len as usize, &parts).unwrap_or_else(|| {
        call_next!(sendto(
            fd => c_int, buf => *const c_void, len => usize, flags => c_int,
            to => *const c_void, to_len => libc::socklen_t
        ) -> isize, -1)
    })
}

/// The parts of a message, as the system call would take them.
fn parts_of(message: &libc::msghdr) -> Result<Vec<(usize, usize)>, i32> {
    const MOST: usize = 1024;
    let count = message.msg_iovlen;
    if count > MOST {
        return Err(libc::EMSGSIZE);
    }
    if count > 0 && message.msg_iov.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the program states how many parts there are, and keeps them during the call.
    let part = |index: usize| unsafe { *message.msg_iov.add(index) };
    Ok((0..count)
        .map(|index| (part(index).iov_base as usize, part(index).iov_len))
        .collect())
}

#[unsafe(no_mangle)]
extern "C" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    if netlink::is_marked(fd) {
        // SAFETY: the program passed a message, or null.
        let header = unsafe { message.as_ref() };
        let answered =
            header.and_then(|m| sent(fd, m.msg_name, m.msg_namelen as usize, &|| parts_of(m)));
        if let Some(result) = answered {
            return result;
        }
    }
    call_next!(sendmsg(fd => c_int, message => *const libc::msghdr, flags => c_int) -> isize, -1)
}

/// After a successful receive on a socket of ours.
fn received(
    fd: c_int,
    from: *const c_void,
    from_len: impl FnOnce() -> usize,
    result: isize,
) -> isize {
    if result >= 0 && netlink::is_marked(fd) && !from.is_null() {
        let from_len = from_len();
        aside(|| netlink::received(fd, from as usize, from_len));
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize {
    let result =
        call_next!(recvmsg(fd => c_int, message => *mut libc::msghdr, flags => c_int) -> isize, -1);
    if result < 0 || !netlink::is_marked(fd) {
        return result;
    }
    // SAFETY: the call succeeded, so the message is valid.
    let (from, len) = unsafe { ((*message).msg_name, (*message).msg_namelen as usize) };
    received(fd, from, || len, result)
}

/// The length of the address that was received.
fn stated(len: *const libc::socklen_t) -> usize {
    // SAFETY: the program passed null or a place for the length, which was filled in.
    unsafe { len.as_ref() }.map_or(0, |len| *len as usize)
}

#[unsafe(no_mangle)]
extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    from: *mut c_void,
    from_len: *mut libc::socklen_t,
) -> isize {
    let result = call_next!(recvfrom(
        fd => c_int, buf => *mut c_void, len => usize, flags => c_int,
        from => *mut c_void, from_len => *mut libc::socklen_t
    ) -> isize, -1);
    received(fd, from, || stated(from_len), result)
}

/// The variant for fortified programs.
#[unsafe(no_mangle)]
extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    room: usize,
    flags: c_int,
    from: *mut c_void,
    from_len: *mut libc::socklen_t,
) -> isize {
    let result = call_next!(__recvfrom_chk(
        fd => c_int, buf => *mut c_void, len => usize, room => usize, flags => c_int,
        from => *mut c_void, from_len => *mut libc::socklen_t
    ) -> isize, -1);
    received(fd, from, || stated(from_len), result)
}
