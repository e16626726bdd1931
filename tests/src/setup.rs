//! How a test is run: where, for how long, and what becomes of its result.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use anyhow::{Context, Result};
use soft_efa::launch::OPTIONS_VAR;
use soft_efa::options::Options;

use crate::child::{self, Process, ROLE_VAR};
use crate::deadline::{Watchdog, scaled};
use crate::guest;
use crate::skips::{self, Skip, skip};
use crate::soft;
use crate::test::{MAIN, Test};

const DEADLINE: Duration = Duration::from_secs(240);

/// How a test wants to be run.
#[derive(Clone, Debug)]
pub struct Setup {
    place: Place,
    deadline: Duration,
}

#[derive(Clone, Debug)]
enum Place {
    /// In this process, together with other tests.
    Here,
    /// In a process of its own, on the devices that this one has.
    Alone,
    /// In a process of its own, on soft-efa with these options.
    Under(String),
}

/// Runs a test on the devices at hand.
///
/// # Panics
///
/// If the test fails.
pub fn run(body: impl FnOnce(&Test) -> Result<()>) {
    here().run(body);
}

/// What [`run`] does, to be changed before it is run.
pub fn here() -> Setup {
    Setup {
        place: Place::Here,
        deadline: DEADLINE,
    }
}

/// Gives a test a process of its own: for tests that count what the process holds, or change it.
pub fn alone() -> Setup {
    Setup {
        place: Place::Alone,
        deadline: DEADLINE,
    }
}

/// Gives a test a process of its own on soft-efa with these options, in their text form: for
/// example `profile=p4d max-rdma-size=4096 faults=loss=0.05`. Skipped on real hardware.
pub fn under(options: &str) -> Setup {
    Setup {
        place: Place::Under(options.to_owned()),
        deadline: DEADLINE,
    }
}

impl Setup {
    /// How long the test may take; four minutes unless it says otherwise.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Runs the test.
    ///
    /// # Panics
    ///
    /// If the test fails.
    pub fn run<F>(self, body: F)
    where
        F: FnOnce(&Test) -> Result<()>,
    {
        let name = name_of::<F>();
        let test = match Test::begin(name) {
            Ok(test) => test,
            Err(error) => panic!("{error:#}"),
        };
        let deadline = scaled(self.deadline);
        let _watchdog = Watchdog::start(format!("{name} ({})", test.role()), deadline);
        let started_by_test = std::env::var_os(ROLE_VAR).is_some();
        let result = catch_unwind(AssertUnwindSafe(|| match &self.place {
            Place::Here | Place::Alone if guest::here() && !started_by_test => {
                guest::become_like(&guest::usual()?, false)?;
                match self.place {
                    Place::Alone => in_own_process(name, None, deadline),
                    _ => body(&test),
                }
            }
            Place::Alone if !started_by_test => in_own_process(name, None, deadline),
            Place::Under(options) if !started_by_test => {
                in_own_process(name, Some(options), deadline)
            }
            _ => body(&test),
        }));
        let seed = test.seed();
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => match error.downcast_ref::<Skip>() {
                Some(reason) => skips::record(name, reason),
                None => panic!("{error:?}\n(EFA_TEST_SEED={seed} repeats this)"),
            },
            Err(panic) => {
                eprintln!("(EFA_TEST_SEED={seed} repeats this)");
                resume_unwind(panic);
            }
        }
    }
}

/// Runs the test again by itself in a new process.
fn in_own_process(name: &str, options: Option<&str>, deadline: Duration) -> Result<()> {
    let mut command = child::again(name, MAIN)?;
    let _run = match options {
        None => None,
        Some(text) if guest::here() => {
            let options: Options = text.parse().context("the test's options")?;
            guest::become_like(&options, true)?;
            command.env(OPTIONS_VAR, options.to_string());
            None
        }
        Some(text) => {
            if soft::soft_efa_dir().is_none() && soft::preload_library().is_none() {
                return Err(skip(format!("it needs soft-efa with {text}")));
            }
            let options: Options = text.parse().context("the test's options")?;
            soft::put_on(&options, &mut command)?
        }
    };
    let mut process = Process::start(name, &mut command)?;
    // Its own watchdog comes first, and says more.
    let status = process.wait(deadline + Duration::from_secs(10))?;
    let output = process.output();
    anyhow::ensure!(
        status.success(),
        "in a process of its own{}: {status}\n{output}",
        options.map_or(String::new(), |text| format!(" on soft-efa with {text}")),
    );
    // A name that matched no test would be a success, too.
    anyhow::ensure!(
        output.contains("running 1 test"),
        "the test program does not know the test {name}:\n{output}"
    );
    Ok(())
}

/// The name under which the test runner knows the function that made the closure `F`.
fn name_of<F>() -> &'static str {
    let path = std::any::type_name::<F>();
    let Some(path) = path.strip_suffix("::{{closure}}") else {
        // A function that several tests share: the test runner names its threads after tests.
        let thread = std::thread::current();
        return thread
            .name()
            .map_or(path, |name| Box::leak(name.to_owned().into_boxed_str()));
    };
    // The first part is the name of the test program.
    path.split_once("::").map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<F: FnOnce()>(_: F) -> &'static str {
        name_of::<F>()
    }

    #[test]
    fn a_closure_is_named_after_its_test() {
        assert_eq!(
            name(|| ()),
            "setup::tests::a_closure_is_named_after_its_test"
        );
    }
}
