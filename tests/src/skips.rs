//! Tests that can't run here: each says why.

use std::fs::File;
use std::io::{self, Write};

/// The file that skipped tests are appended to, one line `name<TAB>reason` each.
pub(crate) const SKIPS_VAR: &str = "EFA_TEST_SKIPS";

/// Why a test was not run. As the error of a test it makes it count as skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(String);

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skip {}

/// An error that makes the test count as skipped, for use as `return Err(skip("…"))`.
pub fn skip(reason: impl Into<String>) -> anyhow::Error {
    Skip(reason.into()).into()
}

/// Notes that `test` was skipped.
pub(crate) fn record(test: &str, skip: &Skip) {
    let reason = skip.0.replace(['\n', '\t'], " ");
    // Past the test runner's capture: a skip must be seen.
    let _ = io::stderr().write_all(format!("skipped {test}: {reason}\n").as_bytes());
    let Some(path) = std::env::var_os(SKIPS_VAR) else {
        return;
    };
    let line = format!("{test}\t{reason}\n");
    let appended = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = appended {
        panic!(
            "can't note the skipped test in {}: {error}",
            path.to_string_lossy()
        );
    }
}
