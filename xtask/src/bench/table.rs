//! The results for people.

use std::fmt::Write;

use super::budget::Verdict;
use super::results::{BASE, BATCHES, Results, VARIANTS, Variant};

/// Instruction counts, each with its ratio to the base's.
pub fn instructions(results: &Results) -> String {
    let mut text = format!("instructions per operation, and in relation to {BASE}\n");
    let mut line = format!("{:34}", "batches of");
    for batch in BATCHES {
        let _ = write!(line, "{batch:>18}");
    }
    let _ = writeln!(text, "{line}");
    for Variant { name, .. } in &VARIANTS {
        for what in ["post", "poll"] {
            let title = if what == "post" { name } else { "" };
            let mut line = format!("{title:29}{what:5}");
            for batch in BATCHES {
                let cell = match results.counted(name, batch) {
                    Some(count) => {
                        let value = if what == "post" {
                            count.post
                        } else {
                            count.poll
                        };
                        let ratio = results.ratio(name, BASE, batch, what).unwrap_or(1.0);
                        format!("{value:.1}  {ratio:.2}")
                    }
                    None => "-".to_owned(),
                };
                let _ = write!(line, "{cell:>18}");
            }
            let _ = writeln!(text, "{line}");
        }
    }
    for (name, allocations) in &results.allocations {
        if *allocations > 0.0 {
            let _ = writeln!(
                text,
                "{name}: {} heap allocations per operation",
                short(*allocations)
            );
        }
    }
    text
}

/// Throughput and latency, in relation to the base's.
pub fn speed(results: &Results) -> String {
    let mut sizes: Vec<u32> = results.speed.keys().map(|(_, size)| *size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut text = format!(
        "{:>10}  {:>14}  {:>14}{:>10}{:>10}{:>10}\n",
        "size", "", "throughput", "p50", "p99", "p99.9"
    );
    for size in sizes {
        let base = results.speed.get(&(BASE.to_owned(), size));
        for Variant { name, .. } in &VARIANTS {
            let Some(speed) = results.speed.get(&((*name).to_owned(), size)) else {
                continue;
            };
            let cells = match base {
                Some(base) if *name != BASE => {
                    let latency = |get: fn(&super::results::Speed) -> f64| {
                        format!("{:.2} ×", get(speed) / get(base))
                    };
                    [
                        format!("{:.2} ×", speed.bytes_per_second / base.bytes_per_second),
                        latency(|s| s.p50),
                        latency(|s| s.p99),
                        latency(|s| s.p999),
                    ]
                }
                _ => [
                    rate(speed.bytes_per_second),
                    microseconds(speed.p50),
                    microseconds(speed.p99),
                    microseconds(speed.p999),
                ],
            };
            let shown = if *name == BASE {
                bytes(size)
            } else {
                String::new()
            };
            let [throughput, p50, p99, p999] = cells;
            let _ = writeln!(
                text,
                "{shown:>10}  {name:>14}  {throughput:>14}{p50:>10}{p99:>10}{p999:>10}"
            );
        }
        for what in ["memcpy", "udp"] {
            if let (Some(plain), Some(base)) = (results.plain.get(&(what.to_owned(), size)), base) {
                let relation = base.bytes_per_second / plain;
                let speed = rate(*plain);
                let _ = writeln!(
                    text,
                    "{:>10}  {what:>14}  {speed:>14}  {BASE} is {relation:.3} of it",
                    ""
                );
            }
        }
    }
    if let Some(requests) = results.requests {
        let _ = writeln!(
            text,
            "a request of 64 B and its response: {} in a loop that polls, {:.2} × with futures, {:.2} × \
             with actors",
            microseconds(requests.spinning),
            requests.futures / requests.spinning,
            requests.actors / requests.spinning
        );
    }
    text
}

/// What was held against the budgets.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let Some(measured) = verdict.measured else {
            continue;
        };
        let relation = if verdict.at_least { "≥" } else { "≤" };
        let word = if verdict.met() { "met" } else { "MISSED" };
        let _ = writeln!(
            text,
            "{word:7} {}: {} {relation} {}",
            verdict.what,
            short(measured),
            short(verdict.limit)
        );
    }
    text
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A size in bytes.
pub fn bytes(size: u32) -> String {
    match size {
        _ if size >= 1 << 20 => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// Bytes per second.
pub fn rate(value: f64) -> String {
    match value {
        _ if value >= 1e9 => format!("{:.2} GB/s", value / 1e9),
        _ if value >= 1e6 => format!("{:.2} MB/s", value / 1e6),
        _ => format!("{:.2} kB/s", value / 1e3),
    }
}

fn microseconds(value: f64) -> String {
    format!("{:.1} µs", value * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::Count;

    #[test]
    fn the_table_has_a_line_for_post_and_one_for_poll_of_each() {
        let mut results = Results::default();
        for variant in &VARIANTS {
            results.count(
                variant.name,
                16,
                Count {
                    post: 200.0,
                    poll: 100.0,
                },
            );
        }
        let table = instructions(&results);
        assert_eq!(table.lines().count(), 2 + 2 * VARIANTS.len());
        assert!(table.contains("200.0  1.00"));
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            (short(0.5), short(1.0), short(0.0)),
            ("0.5".into(), "1".into(), "0".into())
        );
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(rate(2.5e9), "2.50 GB/s");
    }
}
