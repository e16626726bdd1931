//! What must not be exceeded: `tests/bench/budgets.json`.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::results::Results;
use crate::workspace;

/// A budget and what was measured.
pub struct Verdict {
    pub what: String,
    pub limit: f64,
    /// What is accepted of a budget that is known to be missed, and why it is.
    pub accepted: Option<(f64, String)>,
    /// None: not measured in this run.
    pub measured: Option<f64>,
    /// The measured value must be at least the limit, not at most.
    pub at_least: bool,
}

impl Verdict {
    /// Whether the budget holds.
    pub fn met(&self) -> bool {
        self.measured.is_none_or(|measured| {
            if self.at_least {
                measured >= self.limit
            } else {
                measured <= self.limit
            }
        })
    }

    /// Whether it is missed by no more than is known and explained.
    pub fn excused(&self) -> bool {
        match (self.measured, &self.accepted) {
            (Some(measured), Some((accepted, _))) => measured <= *accepted,
            _ => false,
        }
    }
}

/// Reads the budgets and holds the results against them.
pub fn check(results: &Results) -> Result<Vec<Verdict>> {
    let path = workspace::root().join("tests/bench/budgets.json");
    let text = fs::read_to_string(&path)
        .with_context(|| format!("can't read {}", workspace::shown(&path)))?;
    judge(&text, results).with_context(|| format!("in {}", workspace::shown(&path)))
}

fn judge(text: &str, results: &Results) -> Result<Vec<Verdict>> {
    let budgets: Value = serde_json::from_str(text)?;
    let number = |value: &Value, name: &str| {
        value[name]
            .as_f64()
            .with_context(|| format!("{name} is missing or not a number"))
    };
    let mut verdicts = Vec::new();
    let ratios = budgets["ratios"].as_array().context("ratios is no list")?;
    for ratio in ratios {
        let variant = ratio["variant"]
            .as_str()
            .context("a ratio has no variant")?;
        let of = ratio["of"].as_str().context("a ratio has no `of`")?;
        let batch = number(ratio, "batch")? as u32;
        ensure!(
            ["post", "poll", "both"].contains(&of),
            "`of` is {of:?}, not post, poll or both"
        );
        let measured = results.ratio(variant, batch, of);
        verdicts.push(Verdict {
            what: format!("({variant}) {of}, batches of {batch}, in relation to (a)"),
            limit: number(ratio, "at_most")?,
            accepted: match (ratio["reached"].as_f64(), ratio["because"].as_str()) {
                (Some(reached), Some(because)) => Some((reached, because.to_owned())),
                (None, None) => None,
                _ => bail!("{variant} {of}: `reached` and `because` belong together"),
            },
            measured,
            at_least: false,
        });
    }
    verdicts.push(Verdict {
        what: "heap allocations per operation".into(),
        limit: number(&budgets, "allocations_per_operation")?,
        accepted: None,
        measured: results.allocations_per_operation,
        at_least: false,
    });
    verdicts.push(Verdict {
        what: "bytes per peer, beside its address handle".into(),
        limit: number(&budgets, "bytes_per_peer")?,
        accepted: None,
        measured: results.bytes_per_peer,
        at_least: false,
    });
    verdicts.push(Verdict {
        what: "post with 10,000 peers in relation to 1".into(),
        limit: number(&budgets, "post_with_many_peers")?,
        accepted: None,
        measured: results.peers_ratio(),
        at_least: false,
    });
    for (what, measured) in results.soft_efa_of_udp() {
        verdicts.push(Verdict {
            what: format!("soft-efa's {what} in relation to loopback UDP"),
            limit: number(&budgets, "soft_efa_of_udp")?,
            accepted: None,
            measured: Some(measured),
            at_least: true,
        });
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Count;

    const BUDGETS: &str = r#"{
        "ratios": [{ "variant": "c", "of": "both", "batch": 16, "at_most": 0.5 }],
        "allocations_per_operation": 0, "bytes_per_peer": 128,
        "post_with_many_peers": 1.05, "soft_efa_of_udp": 0.5
    }"#;

    #[test]
    fn a_budget_is_exceeded_by_more_and_not_by_what_was_not_measured() {
        let mut results = Results::default();
        results.count(
            "a",
            16,
            Count {
                post: 100.0,
                poll: 60.0,
            },
        );
        results.count(
            "c",
            16,
            Count {
                post: 50.0,
                poll: 31.0,
            },
        );
        let verdicts = judge(BUDGETS, &results).unwrap();
        assert!(!verdicts[0].met());
        assert!(verdicts[1..].iter().all(Verdict::met));
        results.count(
            "c",
            16,
            Count {
                post: 50.0,
                poll: 30.0,
            },
        );
        assert!(judge(BUDGETS, &results).unwrap()[0].met());
        results.allocations_per_operation = Some(0.001);
        assert!(!judge(BUDGETS, &results).unwrap()[1].met());
    }

    #[test]
    fn a_miss_that_is_explained_is_excused_up_to_what_was_reached() {
        let text = BUDGETS.replace("0.5 }]", r#"0.5, "reached": 0.8, "because": "so" }]"#);
        let mut results = Results::default();
        let count = |post| Count { post, poll: 0.0 };
        results.count("a", 16, count(100.0));
        for (post, met, excused) in [
            (40.0, true, true),
            (70.0, false, true),
            (90.0, false, false),
        ] {
            results.count("c", 16, count(post));
            let verdict = &judge(&text, &results).unwrap()[0];
            assert_eq!((verdict.met(), verdict.excused()), (met, excused), "{post}");
        }
        assert!(judge(&text.replace(r#", "because": "so""#, ""), &results).is_err());
    }

    #[test]
    fn the_budgets_of_this_repository_can_be_read() {
        assert!(check(&Results::default()).unwrap().len() >= 10);
    }
}
