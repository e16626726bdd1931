//! The command line.

use std::env;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};

/// Arguments, taken one after the other.
pub struct Arguments(env::Args);

impl Arguments {
    /// Those of this process.
    pub fn of_process() -> Self {
        let mut arguments = env::args();
        arguments.next();
        Self(arguments)
    }

    /// The next one; `what` names it.
    pub fn next<T: FromStr<Err: Display>>(&mut self, what: &str) -> Result<T> {
        let text = self
            .0
            .next()
            .with_context(|| format!("{what} is missing"))?;
        text.parse()
            .map_err(|error| anyhow!("{what} is {text:?}: {error}"))
    }

    /// The next one, or `value` where there is none.
    pub fn next_or<T: FromStr<Err: Display>>(&mut self, what: &str, value: T) -> Result<T> {
        if self.0.len() == 0 {
            return Ok(value);
        }
        self.next(what)
    }
}
