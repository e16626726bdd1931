//! Commands that are written to the device file.

use std::os::fd::RawFd;

use super::abi::{CmdHeader, ExCmdHeader, cmd};
use super::commands::{self, Call};
use super::context::Context;
use super::process::Process;
use super::user::{self, Out};

/// Runs the command in the `count` bytes at `buf`.
pub(crate) fn run(
    process: &'static Process,
    context: &Context,
    fd: RawFd,
    buf: u64,
    count: usize,
) -> Result<(), i32> {
    const HEADER: usize = size_of::<CmdHeader>();
    const EX_HEADER: usize = size_of::<ExCmdHeader>();
    if count < HEADER {
        return Err(libc::EINVAL);
    }
    let header: CmdHeader = user::read_value(buf)?;
    let shape = commands::shape(header.command).map_err(|errno| {
        // Below the last one that the driver has, the kernel looks at the header first.
        const KNOWN: u32 = cmd::FLAG_EXTENDED | cmd::MODIFY_QP;
        let early = (cmd::FLAG_EXTENDED..KNOWN).contains(&header.command);
        if early { libc::EINVAL } else { errno }
    })?;
    let (in_words, out_words) = (usize::from(header.in_words), usize::from(header.out_words));
    let call = if header.command & cmd::FLAG_EXTENDED != 0 {
        let rest = count.checked_sub(HEADER + EX_HEADER).ok_or(libc::EINVAL)?;
        let ex: ExCmdHeader = user::read_value(buf + HEADER as u64)?;
        let driver_in = usize::from(ex.provider_in_words) * 8;
        let driver_out = usize::from(ex.provider_out_words) * 8;
        let (request_len, response_len) = (in_words * 8, out_words * 8);
        if request_len + driver_in != rest {
            return Err(libc::EINVAL);
        }
        let expects = response_len + driver_out > 0;
        if ex.reserved != 0 || (ex.response != 0) != expects {
            return Err(libc::EINVAL);
        }
        // Extended commands grow, so that their handlers look for themselves.
        let at = buf + (HEADER + EX_HEADER) as u64;
        let response = Out {
            addr: ex.response,
            len: response_len + driver_out,
        };
        Call {
            process,
            context,
            fd,
            request: user::read(at, request_len)?,
            response: Out {
                len: response_len,
                ..response
            },
            driver_request: user::read(at + request_len as u64, driver_in)?,
            driver_response: response.after(response_len),
        }
    } else {
        let mut in_words = in_words;
        if in_words * 4 != count {
            return Err(libc::EINVAL);
        }
        if count < shape.request + HEADER {
            // rdma-core 18 and 19 announce too little for this command.
            if header.command == cmd::DESTROY_CQ && count == 16 {
                in_words = 6;
            } else {
                return Err(libc::ENOSPC);
            }
        }
        if out_words * 4 < shape.response {
            return Err(libc::ENOSPC);
        }
        let at = buf + HEADER as u64;
        let in_len = in_words * 4 - HEADER;
        let request_len = if shape.driver { shape.request } else { in_len };
        // Requests with a response begin with its address.
        let response_addr = if shape.response > 0 {
            user::read_value::<u64>(at)?
        } else {
            0
        };
        let response = Out {
            addr: response_addr,
            len: if shape.response > 0 { out_words * 4 } else { 0 },
        };
        let response_len = if shape.driver {
            shape.response
        } else {
            response.len
        };
        Call {
            process,
            context,
            fd,
            request: user::read(at, request_len)?,
            response: Out {
                len: response_len.min(response.len),
                ..response
            },
            driver_request: user::read(at + request_len as u64, in_len - request_len)?,
            driver_response: response.after(response_len),
        }
    };
    (shape.run)(&call)
}
