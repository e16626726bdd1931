//! Cause and remedy.

use std::fmt;

/// Cause and remedy of an [`Error`](crate::Error). Shown as both, in whole sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    cause: String,
    remedy: String,
    transient: bool,
}

impl Explanation {
    /// Why it failed: a sentence or two.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What to do about it: a sentence or two.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// Whether the same call may succeed later, with nothing changed but what else is in use.
    pub fn is_transient(&self) -> bool {
        self.transient
    }

    pub(super) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            remedy: remedy.into(),
            transient: false,
        }
    }

    pub(super) fn transient(mut self) -> Self {
        self.transient = true;
        self
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.cause, self.remedy)
    }
}
