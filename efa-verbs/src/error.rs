//! The crate's one error type.

use std::borrow::Cow;
use std::fmt;
use std::io;

use crate::errno::Named;
use crate::types::{Access, Feature, Limit, Operations, QpState};

/// The result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, on which object, and where it helps, what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    #[error(transparent)]
    Verb(Box<VerbError>),

    /// The device, or the installed libefa, lacks something that was asked for.
    #[error("{device}: no {feature} here{}", hint(.advice))]
    Unsupported {
        /// Name of the device.
        device: String,
        /// What is missing.
        feature: Feature,
        /// Which of device, driver and library lacks it, as far as that can be told, and what would
        /// help.
        advice: Option<Cow<'static, str>>,
    },

    /// More was asked for than the device offers. Nothing is ever clamped silently.
    #[error("{device}: {what} of {requested} asked for, but the limit is {limit}")]
    LimitExceeded {
        /// Name of the device.
        device: String,
        /// The quantity.
        what: Limit,
        /// What was asked for.
        requested: u64,
        /// What the device offers.
        limit: u64,
    },

    /// Every slot of the send queue is taken: poll completions, then post again.
    #[error("the send queue is full ({capacity} requests): poll completions, then post again")]
    SendQueueFull {
        /// Requests that the queue holds.
        capacity: u32,
    },

    /// Every slot of the receive queue is taken: poll completions, then post again.
    #[error("the receive queue is full ({capacity} requests): poll completions, then post again")]
    ReceiveQueueFull {
        /// Requests that the queue holds.
        capacity: u32,
    },

    /// libefa left entry points null that it should have set for what was asked for.
    #[error("libefa provides no {}", .names.join(", no "))]
    MissingEntryPoints {
        /// Names of the function pointers.
        names: Vec<&'static str>,
    },

    /// A request of a kind that the queue pair was not created for.
    #[error(
        "queue pair {queue_pair} was not created for {operation}: add it to \
         QueuePairConfig::operations"
    )]
    OperationNotEnabled {
        /// The queue pair's number.
        queue_pair: u32,
        /// The kind of request.
        operation: Operations,
    },

    /// The queue pair is in a state that does not allow this.
    #[error("queue pair {queue_pair} is in {state}, and to {action} it must be in {needed}")]
    InvalidState {
        /// The queue pair's number.
        queue_pair: u32,
        /// What was tried.
        action: &'static str,
        /// The state it is in, as of the last transition.
        state: QpState,
        /// What the state would have to be.
        needed: &'static str,
    },

    /// A session is open already; completing or aborting it comes first.
    #[error("queue pair {queue_pair} has an open session: complete or abort it first")]
    SessionOpen {
        /// The queue pair's number.
        queue_pair: u32,
    },

    /// A session is completed that was not started.
    #[error("queue pair {queue_pair} has no open session")]
    NoSession {
        /// The queue pair's number.
        queue_pair: u32,
    },

    /// A transition between queue pair states failed. The queue pair is still in `from`.
    #[error(
        "queue pair {queue_pair} could not go from {from} to {to}: {}", Named(.source)
    )]
    Transition {
        /// The queue pair's number.
        queue_pair: u32,
        /// The state it was in and still is.
        from: QpState,
        /// The state it was to go to.
        to: QpState,
        /// The error number of `ibv_modify_qp`.
        #[source]
        source: io::Error,
    },

    /// No EFA device of that name.
    #[error("no EFA device is called {name:?}; {}", list_of(.available))]
    DeviceNotFound {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        available: Vec<String>,
    },

    /// The port has no address at GID index 0, so that nothing can reach it.
    #[error(
        "{device} has no GID at index 0: the network interface behind it is not set up (on EC2, \
         attach an EFA-enabled interface; `ibv_devinfo -v` shows the GID table)"
    )]
    NoGid {
        /// Name of the device.
        device: String,
    },

    /// An all-zero GID is nobody's address.
    #[error("the GID is all zero: it is not the address of any device")]
    ZeroGid,

    /// The object was made by the process that this one was forked from. It can't be used here: the
    /// device would take this process's requests for the other's.
    #[error(
        "{device} was opened by the process that this one was forked from: open it again here, and \
         make everything else anew"
    )]
    ForkedProcess {
        /// Name of the device.
        device: String,
    },

    /// A copy into memory of the caller's that was registered without
    /// [`Access::LOCAL`](crate::Access::LOCAL), and so may be mapped for reading only.
    #[error(
        "the region's memory was registered with {access}, and only Access::LOCAL demands memory that \
         can be written: register it with that to copy bytes in"
    )]
    ReadOnlyMemory {
        /// The region's access.
        access: Access,
    },

    /// An argument that cannot be right.
    #[error("{what}: {reason}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// Wraps `source` as the failure of `verb` on `object`.
    #[cold]
    pub(crate) fn verb(verb: &'static str, object: impl Into<String>, source: io::Error) -> Self {
        Self::Verb(Box::new(VerbError {
            verb,
            object: object.into(),
            source,
            advice: None,
        }))
    }

    /// Adds what to do, to the failure of a verb.
    #[cold]
    pub(crate) fn advise(mut self, text: Option<&'static str>) -> Self {
        if let Self::Verb(error) = &mut self {
            error.advice = text;
        }
        self
    }

    /// The error number beneath, where there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Verb(error) => error.source.raw_os_error(),
            Self::Transition { source, .. } => source.raw_os_error(),
            Self::SendQueueFull { .. } | Self::ReceiveQueueFull { .. } => Some(libc::ENOMEM),
            _ => None,
        }
    }
}

/// A verb failed: which, on what, and with which error number.
#[derive(Debug)]
pub struct VerbError {
    verb: &'static str,
    object: String,
    source: io::Error,
    advice: Option<&'static str>,
}

impl VerbError {
    /// Name of the C function, as its man page has it.
    pub fn verb(&self) -> &'static str {
        self.verb
    }

    /// The object it was called for, in words.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// The error number.
    pub fn io_error(&self) -> &io::Error {
        &self.source
    }

    /// What to do about it, where there is a usual cause.
    pub fn advice(&self) -> Option<&'static str> {
        self.advice
    }
}

impl fmt::Display for VerbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            verb,
            object,
            source,
            advice,
        } = self;
        write!(
            f,
            "{verb} failed for {object}: {}{}",
            Named(source),
            hint(advice)
        )
    }
}

impl std::error::Error for VerbError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<VerbError> for Error {
    fn from(error: VerbError) -> Self {
        Self::Verb(Box::new(error))
    }
}

fn hint(advice: &Option<impl AsRef<str>>) -> String {
    let text = |advice: &_| format!("; {}", AsRef::<str>::as_ref(advice));
    advice.as_ref().map(text).unwrap_or_default()
}

fn list_of(names: &[String]) -> String {
    if names.is_empty() {
        "there is none on this machine".into()
    } else {
        format!("there are {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_verb_says_which_on_what_why_and_what_to_do() {
        let error = Error::verb(
            "ibv_reg_mr",
            "4096 bytes on efa_0",
            io::Error::from_raw_os_error(libc::ENOMEM),
        )
        .advise(Some("raise the limit"));
        assert_eq!(
            error.to_string(),
            "ibv_reg_mr failed for 4096 bytes on efa_0: ENOMEM (Cannot allocate memory); raise the \
             limit"
        );
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn a_limit_error_has_both_numbers() {
        let error = Error::LimitExceeded {
            device: "efa_0".into(),
            what: Limit::SendDepth,
            requested: 5000,
            limit: 4096,
        };
        assert_eq!(
            error.to_string(),
            "efa_0: a send queue depth of 5000 asked for, but the limit is 4096"
        );
    }

    #[test]
    fn errors_are_small_and_cross_threads() {
        fn sendable<T: Send + Sync + 'static>() {}
        sendable::<Error>();
        assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
    }
}
