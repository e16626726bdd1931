//! What came of the tests, all kinds added up.

use std::time::Duration;

use crate::process;

/// The outcome of some tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many passed.
    pub passed: usize,
    /// What failed, with the reason where there is one.
    pub failed: Vec<(String, String)>,
    /// What could not be run here, with the reason.
    pub skipped: Vec<(String, String)>,
}

impl Tally {
    /// One check: passed, or failed for the reason of the error.
    pub fn check(name: &str, result: anyhow::Result<()>) -> Self {
        let mut tally = Self::default();
        match result {
            Ok(()) => tally.passed = 1,
            Err(error) => tally.fail(name, format!("{error:#}")),
        }
        tally
    }

    /// Notes a failure.
    pub fn fail(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.failed.push((name.into(), why.into()));
    }

    /// Adds the tests of another tally.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    /// Adds the tests of another tally; that there is none is a failure.
    pub fn add_or_fail(&mut self, name: &str, result: anyhow::Result<Self>) {
        match result {
            Ok(tally) => self.add(tally),
            Err(error) => {
                eprintln!("error: {error:#}");
                self.fail(name, format!("{error:#}"));
            }
        }
    }

    /// Turns tests that say of themselves that they could not run (each is among the passed)
    /// into skipped ones. `notes` has a line `NAME<TAB>REASON` for each.
    pub fn move_skips(&mut self, program: &str, notes: &str) {
        for line in notes.lines().filter(|line| !line.trim().is_empty()) {
            let (name, reason) = line.split_once('\t').unwrap_or((line, ""));
            if reason.trim().is_empty() {
                self.fail(
                    format!("{program}: {name}"),
                    "skipped, and gives no reason for it",
                );
            } else {
                let name = format!("{program}: {name}");
                self.skipped.push((name, reason.trim().to_owned()));
            }
            self.passed = self.passed.saturating_sub(1);
        }
    }

    /// The closing line.
    pub fn summary(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        )
    }

    /// The failures and skips, one a line, in the order in which they came.
    pub fn details(&self) -> String {
        let mut text = String::new();
        for (name, why) in &self.skipped {
            text += &format!("skipped  {name}: {why}\n");
        }
        for (name, why) in &self.failed {
            let why = why.lines().next().unwrap_or_default();
            let colon = if why.is_empty() { "" } else { ": " };
            text += &format!("FAILED   {name}{colon}{why}\n");
        }
        text
    }
}

/// How long each stage took.
#[derive(Debug, Default)]
pub struct Times(Vec<(String, Duration)>);

impl Times {
    /// Notes a stage.
    pub fn note(&mut self, stage: &str, time: Duration) {
        self.0.push((stage.to_owned(), time));
    }

    /// A line per stage, and the sum.
    pub fn table(&self) -> String {
        let width = self
            .0
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0)
            .max(5);
        let mut text = String::new();
        for (name, time) in &self.0 {
            text += &format!("{name:width$}  {:>12}\n", process::seconds(*time));
        }
        let sum = self.0.iter().map(|(_, time)| *time).sum();
        text + &format!("{:width$}  {:>12}\n", "total", process::seconds(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_all_three_counts() {
        let mut tally = Tally::check("a", Ok(()));
        tally.add(Tally::check("b", Err(anyhow::anyhow!("broken\nbadly"))));
        assert_eq!(tally.summary(), "1 passed, 1 failed, 0 skipped");
        assert_eq!(tally.details(), "FAILED   b: broken\n");
    }

    #[test]
    fn a_test_that_notes_a_skip_has_not_passed() {
        let mut tally = Tally {
            passed: 3,
            ..Tally::default()
        };
        tally.move_skips("put", "netns\tneeds root\n\n");
        assert_eq!(tally.summary(), "2 passed, 0 failed, 1 skipped");
        assert!(tally.details().contains("put: netns: needs root"));
    }

    #[test]
    fn a_skip_without_a_reason_is_a_failure() {
        let mut tally = Tally {
            passed: 2,
            ..Tally::default()
        };
        tally.move_skips("put", "one\ntwo\t \n");
        assert_eq!(tally.summary(), "0 passed, 2 failed, 0 skipped");
    }

    #[test]
    fn stages_are_added_up() {
        let mut times = Times::default();
        times.note("build", Duration::from_secs(61));
        times.note("a longer name", Duration::from_millis(1500));
        let table = times.table();
        assert!(
            table.contains("1 min 01 s") && table.contains("1.5 s"),
            "{table}"
        );
        assert!(
            table
                .lines()
                .last()
                .is_some_and(|line| line.starts_with("total") && line.ends_with("1 min 02 s")),
            "{table}"
        );
    }
}
