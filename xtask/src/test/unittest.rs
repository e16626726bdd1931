//! Reads what Python's `unittest` prints with `-v`.

/// What it said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The tests that passed.
    pub passed: Vec<String>,
    /// The tests that failed, with the last line of the traceback.
    pub failed: Vec<(String, String)>,
    /// The tests that were skipped, with the reason.
    pub skipped: Vec<(String, String)>,
    /// How many tests the closing lines say there were; without them it did not come to its end.
    pub ran: Option<usize>,
}

/// Reads the standard error of a run.
pub fn parse(output: &str) -> Report {
    let mut report = Report::default();
    let mut current = String::new();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("Ran ") {
            report.ran = count(rest);
        } else if let Some(name) = line
            .strip_prefix("ERROR: ")
            .or_else(|| line.strip_prefix("FAIL: "))
        {
            // The section about a failure ends with the exception.
            let name = name.split(' ').next().unwrap_or_default();
            let mut last = "";
            while let Some(next) = lines.next_if(|next| !next.starts_with("=====")) {
                if let Some(rest) = next.strip_prefix("Ran ") {
                    report.ran = count(rest);
                } else if report.ran.is_none() && !next.is_empty() && !next.starts_with("-----") {
                    last = next;
                }
            }
            let found = report.failed.iter_mut().find(|(failed, _)| failed == name);
            if let Some((_, why)) = found {
                last.clone_into(why);
            }
        } else {
            if let Some(name) = heading(line) {
                name.clone_into(&mut current);
            }
            outcome(line, &current, &mut report);
        }
    }
    report
}

/// The number at the start of `rest`.
fn count(rest: &str) -> Option<usize> {
    rest.split(' ').next()?.parse().ok()
}

/// The name in a line `NAME (MODULE.CLASS.NAME)…`.
fn heading(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once(" (")?;
    let plain = |text: &str, more: char| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == more)
    };
    let place = rest.split(')').next()?;
    (rest.contains(')') && plain(name, '_') && plain(place, '.') && place.contains('.'))
        .then_some(name)
}

/// The outcome stands behind three dots, or on a line of its own if something was printed
/// meanwhile.
fn outcome(line: &str, name: &str, report: &mut Report) {
    let word = line.rsplit_once(" ... ").map_or(line, |(_, word)| word);
    let name = name.to_owned();
    match word.trim_end() {
        "ok" | "expected failure" => report.passed.push(name),
        "FAIL" | "ERROR" | "unexpected success" => report.failed.push((name, String::new())),
        word => {
            if let Some(reason) = word.strip_prefix("skipped ") {
                let reason = reason.trim_matches(['\'', '"']);
                report.skipped.push((name, reason.to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test_a (tests.test_x.A.test_a) ... ok
test_b (tests.test_x.A.test_b)
What it is about ... skipped 'Device memory is not supported'
test_c (tests.test_x.A.test_c) ... something printed
ok
test_d (tests.test_x.B.test_d) ... ERROR

======================================================================
ERROR: test_d (tests.test_x.B.test_d)
----------------------------------------------------------------------
Traceback (most recent call last):
  File \"x.py\", line 1, in test_d
OSError: broken

----------------------------------------------------------------------
Ran 4 tests in 1.002s

FAILED (errors=1, skipped=1)
";

    #[test]
    fn outcomes_are_found_wherever_they_stand() {
        let report = parse(OUTPUT);
        assert_eq!(report.passed, ["test_a", "test_c"]);
        let pair = |name: &str, why: &str| (name.to_owned(), why.to_owned());
        assert_eq!(
            report.skipped,
            [pair("test_b", "Device memory is not supported")]
        );
        assert_eq!(report.failed, [pair("test_d", "OSError: broken")]);
        assert_eq!(report.ran, Some(4));
    }

    #[test]
    fn a_run_that_was_cut_short_has_no_count() {
        assert_eq!(parse("test_a (tests.x.A.test_a) ... ").ran, None);
        assert_eq!(parse(""), Report::default());
    }
}
