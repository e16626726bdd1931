//! Reads what Rust's test harness prints.

/// What the harness said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many tests passed.
    pub passed: usize,
    /// The tests that failed.
    pub failed: Vec<String>,
    /// The tests that were not run, and the reason that their attribute gives.
    pub ignored: Vec<(String, String)>,
    /// How many closing lines there were; doc tests of several crates have several. Without
    /// one the harness did not come to its end.
    pub summaries: usize,
}

/// Reads the standard output of one or several test programs.
pub fn parse(output: &str) -> Report {
    let mut report = Report::default();
    let mut failed_count = 0;
    for line in output.lines() {
        if let Some(summary) = line.split("test result: ").nth(1) {
            // Other output may stand before it on the line; the counts are what is trusted.
            if let Some((passed, failed)) = counts(summary) {
                report.summaries += 1;
                report.passed += passed;
                failed_count += failed;
            }
        } else if let Some((name, outcome)) = test_line(line) {
            if outcome == "FAILED" || outcome.starts_with("FAILED ") {
                report.failed.push(name.to_owned());
            } else if let Some(reason) = outcome.strip_prefix("ignored") {
                let reason = reason.trim_start_matches(',').trim();
                let reason = if reason.is_empty() {
                    "ignored, and its attribute gives no reason"
                } else {
                    reason
                };
                report.ignored.push((name.to_owned(), reason.to_owned()));
            }
        }
    }
    while report.failed.len() < failed_count {
        report
            .failed
            .push("a test whose line could not be read".to_owned());
    }
    report
}

/// Splits `test NAME ... OUTCOME`.
fn test_line(line: &str) -> Option<(&str, &str)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.split(" - should panic").next().unwrap_or(name);
    Some((name.trim(), outcome.trim()))
}

/// Reads `ok. 3 passed; 1 failed; …`.
fn counts(summary: &str) -> Option<(usize, usize)> {
    let number = |what: &str| {
        let before = summary.split(what).next()?;
        before.trim_end().rsplit(' ').next()?.parse().ok()
    };
    if !summary.contains(" passed") || !summary.contains(" failed") {
        return None;
    }
    Some((number(" passed")?, number(" failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_counted_by_its_closing_lines() {
        let text = "\nrunning 4 tests\ntest a::one ... ok\ntest a::two - should panic ... ok\n\
                    test a::three ... FAILED\ntest a::four ... ignored, needs hardware\n\n\
                    failures:\n\n---- a::three stdout ----\nboom\n\n\
                    test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n";
        let report = parse(text);
        assert_eq!(report.passed, 2);
        assert_eq!(report.failed, ["a::three"]);
        let ignored = ("a::four".to_owned(), "needs hardware".to_owned());
        assert_eq!(report.ignored, [ignored]);
        assert_eq!(report.summaries, 1);
        let twice = parse(&format!("{text}{text}"));
        assert_eq!(
            (twice.passed, twice.failed.len(), twice.summaries),
            (4, 2, 2)
        );
    }

    #[test]
    fn output_of_the_tests_themselves_does_not_hide_the_counts() {
        let report = parse("noisetest result: FAILED. 10 passed; 2 failed; 0 ignored\n");
        assert_eq!((report.passed, report.failed.len()), (10, 2));
        let report = parse("test x ... some printed text\ntest y ... ignored\n");
        assert_eq!(report.passed, 0);
        assert_eq!(report.summaries, 0);
        assert_eq!(report.ignored.len(), 1);
    }

    #[test]
    fn nothing_is_no_report() {
        assert_eq!(parse(""), Report::default());
        assert_eq!(parse("test result: \n").summaries, 0);
    }
}
