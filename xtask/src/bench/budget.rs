//! What must not be exceeded: `tests/bench/budgets.json`.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::results::{Results, VARIANTS};
use crate::workspace;

/// A budget and what was measured.
pub struct Verdict {
    pub what: String,
    pub limit: f64,
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
    let batch = number(&budgets, "batch")? as u32;
    let ratios = budgets["ratios"].as_array().context("ratios is no list")?;
    for ratio in ratios {
        let name = |key: &str| {
            let name = ratio[key].as_str();
            let known = |name: &&str| VARIANTS.iter().any(|variant| variant.name == *name);
            name.filter(known)
                .with_context(|| format!("`{key}` of {ratio} is no variant"))
        };
        let (variant, base) = (name("variant")?, name("to")?);
        let of = ratio["of"].as_str().context("a ratio has no `of`")?;
        ensure!(
            ["post", "poll", "both"].contains(&of),
            "`of` is {of:?}, not post, poll or both"
        );
        let measured = results.ratio(variant, base, batch, of);
        verdicts.push(Verdict {
            what: format!("{variant}, {of}, in relation to {base}"),
            limit: number(ratio, "at_most")?,
            measured,
            at_least: false,
        });
    }
    verdicts.push(Verdict {
        what: "heap allocations per operation".into(),
        limit: number(&budgets, "allocations_per_operation")?,
        measured: results.allocations_per_operation(),
        at_least: false,
    });
    verdicts.push(Verdict {
        what: "bytes per peer, beside its address handle".into(),
        limit: number(&budgets, "bytes_per_peer")?,
        measured: results.bytes_per_peer,
        at_least: false,
    });
    verdicts.push(Verdict {
        what: "post with 10,000 other peers in relation to none".into(),
        limit: number(&budgets, "post_with_many_peers")?,
        measured: results.peers_ratio(),
        at_least: false,
    });
    verdicts.push(Verdict {
        what: "a request and its response with futures in relation to a loop that polls".into(),
        limit: number(&budgets, "request_with_futures")?,
        measured: results.requests.map(|it| it.futures / it.spinning),
        at_least: false,
    });
    for (what, measured) in results.soft_efa_of_udp() {
        verdicts.push(Verdict {
            what: format!("soft-efa's {what} in relation to loopback UDP"),
            limit: number(&budgets, "soft_efa_of_udp")?,
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
        "batch": 16,
        "ratios": [{ "variant": "put-direct", "to": "c-poll-start", "of": "both", "at_most": 0.5 }],
        "allocations_per_operation": 0, "bytes_per_peer": 128,
        "post_with_many_peers": 1.05, "request_with_futures": 1.3, "soft_efa_of_udp": 0.5
    }"#;

    #[test]
    fn a_budget_is_exceeded_by_more_and_not_by_what_was_not_measured() {
        let mut results = Results::default();
        let count = |post, poll| Count { post, poll };
        results.count("c-poll-start", 16, count(100.0, 60.0));
        results.count("put-direct", 16, count(50.0, 31.0));
        let verdicts = judge(BUDGETS, &results).unwrap();
        assert!(!verdicts[0].met());
        assert!(verdicts[1..].iter().all(Verdict::met));
        results.count("put-direct", 16, count(50.0, 30.0));
        assert!(judge(BUDGETS, &results).unwrap()[0].met());
        results.allocations.insert("put-actor-libefa", 1.0);
        assert!(judge(BUDGETS, &results).unwrap()[1].met());
        results.allocations.insert("put-direct", 0.001);
        assert!(!judge(BUDGETS, &results).unwrap()[1].met());
    }

    #[test]
    fn a_budget_of_what_is_not_measured_is_refused() {
        let text = BUDGETS.replace("put-direct", "put");
        let error = judge(&text, &Results::default()).err().unwrap();
        assert!(error.to_string().contains("is no variant"), "{error}");
    }

    #[test]
    fn the_budgets_of_this_repository_can_be_read() {
        assert!(check(&Results::default()).unwrap().len() >= 10);
    }
}
