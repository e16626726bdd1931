//! Counting instructions by callgrind.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The functions that count begin with this.
pub const COUNTED: &str = "measure_po";

/// Makes `command`, whose arguments are a program and its arguments, run under callgrind. It counts
/// only in the functions that are named so, and what they call, on the thread that calls them.
pub fn under(output: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--quiet", "--tool=callgrind"])
        .arg(format!("--toggle-collect={COUNTED}*"))
        .arg(format!("--callgrind-out-file={}", output.display()))
        // Functions are found when the program starts, not when they are first called.
        .env("LD_BIND_NOW", "1");
    command
}

/// Instructions in `measure_post…` and in `measure_poll…`, with what they call.
pub fn read(output: &Path) -> Result<(u64, u64)> {
    let text = fs::read_to_string(output)
        .with_context(|| format!("can't read what callgrind wrote to {}", output.display()))?;
    let costs = inclusive(&text);
    let of = |start: &str| -> u64 {
        costs
            .iter()
            .filter(|(name, _)| name.starts_with(start))
            .map(|(_, cost)| cost)
            .sum()
    };
    let (post, poll) = (of("measure_post"), of("measure_poll"));
    if post == 0 || poll == 0 {
        bail!("callgrind counted nothing in measure_post or measure_poll");
    }
    Ok((post, poll))
}

/// The cost of each function with that of what it calls: the lines of its block, those after a
/// `calls=` among them, which have the cost of the called function.
fn inclusive(text: &str) -> HashMap<String, u64> {
    // A name is written once, and then stands for itself by a number: `(12) name`, then `(12)`.
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut costs = HashMap::new();
    let mut current: Option<&str> = None;
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=') {
            if matches!(key, "fn" | "cfn") {
                let (number, name) = value.split_once(' ').unwrap_or((value, ""));
                if !name.is_empty() {
                    names.insert(number, name.trim());
                }
                if key == "fn" {
                    current = names.get(number).copied();
                }
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // Position and cost.
            let cost = line.split_whitespace().nth(1);
            if let (Some(name), Some(Ok(cost))) = (current, cost.map(str::parse::<u64>)) {
                *costs.entry(name.to_owned()).or_default() += cost;
            }
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_functions_cost_has_that_of_what_it_calls() {
        let text = "\
version: 1
events: Ir
summary: 40

ob=(1) /bin/x
fl=(1) x.c
fn=(1) measure_post
10 3
+1 4
cob=(2) /lib/y.so
cfi=(2) y.c
cfn=(2) wr_start
calls=2 20
* 30

fn=(2)
20 30

fn=(3) main
5 1
cfn=(1)
calls=1 10
+1 37
";
        let costs = inclusive(text);
        assert_eq!(costs["measure_post"], 37);
        assert_eq!(costs["wr_start"], 30);
        assert_eq!(costs["main"], 38);
    }
}
