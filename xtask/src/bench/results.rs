//! What was measured.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A program, or a layer, that is measured.
pub struct Variant {
    pub name: &'static str,
    /// What follows the command's name on the program's command line.
    pub arguments: &'static [&'static str],
}

const fn variant(name: &'static str, arguments: &'static [&'static str]) -> Variant {
    Variant { name, arguments }
}

/// What the others are shown in relation to: C, `ibv_wr_*` and `ibv_start_poll`.
pub const BASE: &str = "c-poll-start";

/// All that is measured. Those in C begin with `c-`; the others end with their data path.
pub const VARIANTS: [Variant; 15] = [
    variant(BASE, &["wr"]),
    variant("c-poll-classic", &["classic"]),
    variant("session-libefa", &["session", "libefa"]),
    variant("session-direct", &["session", "direct"]),
    variant("put-libefa", &["put", "libefa"]),
    variant("put-direct", &["put", "direct"]),
    variant(
        "put-regions-in-turns-libefa",
        &["put-regions-in-turns", "libefa"],
    ),
    variant(
        "put-regions-in-turns-direct",
        &["put-regions-in-turns", "direct"],
    ),
    variant(
        "put-peers-in-turns-libefa",
        &["put-peers-in-turns", "libefa"],
    ),
    variant(
        "put-peers-in-turns-direct",
        &["put-peers-in-turns", "direct"],
    ),
    variant("pages-libefa", &["pages", "libefa"]),
    variant("pages-direct", &["pages", "direct"]),
    variant("put-wait-libefa", &["put-wait", "libefa"]),
    variant("put-await-libefa", &["put-await", "libefa"]),
    variant("put-actor-libefa", &["put-actor", "libefa"]),
];

impl Variant {
    pub fn is_c(&self) -> bool {
        self.name.starts_with("c-")
    }

    /// What others do without this project's futures: it is shown, and has no budget.
    pub fn is_for_comparison(&self) -> bool {
        self.is_c() || self.name.starts_with("put-actor-")
    }

    /// How its requests must go.
    pub fn path(&self) -> &'static str {
        match self.arguments {
            [_, path] => path,
            _ => "libefa",
        }
    }
}

/// Requests per batch.
pub const BATCHES: [u32; 4] = [1, 4, 16, 64];

/// Instructions per operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    pub post: f64,
    pub poll: f64,
}

impl Count {
    fn of(&self, what: &str) -> f64 {
        match what {
            "post" => self.post,
            "poll" => self.poll,
            _ => self.post + self.poll,
        }
    }
}

/// One size of one program, or of one of the layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    pub bytes_per_second: f64,
    /// Seconds.
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

/// Everything.
#[derive(Debug, Default)]
pub struct Results {
    pub rdma_core: String,
    pub device: String,
    counts: BTreeMap<(String, u32), Count>,
    /// Heap allocations per operation, by variant: the most of all batches.
    pub allocations: BTreeMap<&'static str, f64>,
    pub bytes_per_peer: Option<f64>,
    /// Instructions to post, by how many other peers there are.
    pub others: BTreeMap<u32, f64>,
    /// By variant and size.
    pub speed: BTreeMap<(String, u32), Speed>,
    /// Bytes per second of memcpy and UDP, by size.
    pub plain: BTreeMap<(String, u32), f64>,
    /// Median seconds of a request of 64 bytes and its response.
    pub requests: Option<Requests>,
}

/// By who waits for the response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requests {
    /// A loop that polls.
    pub spinning: f64,
    /// Futures of tasks.
    pub futures: f64,
    /// An actor behind channels.
    pub actors: f64,
}

impl Results {
    pub fn count(&mut self, variant: &str, batch: u32, count: Count) {
        self.counts.insert((variant.to_owned(), batch), count);
    }

    pub fn counted(&self, variant: &str, batch: u32) -> Option<Count> {
        self.counts.get(&(variant.to_owned(), batch)).copied()
    }

    /// Heap allocations per operation, of the variant that has the most.
    pub fn allocations_per_operation(&self) -> Option<f64> {
        let ours = VARIANTS.iter().filter(|it| !it.is_for_comparison());
        let counted = ours.filter_map(|variant| self.allocations.get(variant.name).copied());
        counted.reduce(f64::max)
    }

    /// A variant in relation to another.
    pub fn ratio(&self, variant: &str, base: &str, batch: u32, of: &str) -> Option<f64> {
        let base = self.counted(base, batch)?.of(of);
        Some(self.counted(variant, batch)?.of(of) / base)
    }

    /// Posting with the most peers in relation to posting with the fewest.
    pub fn peers_ratio(&self) -> Option<f64> {
        let (_, few) = self.others.first_key_value()?;
        let (_, many) = self.others.last_key_value()?;
        Some(many / few)
    }

    fn plain_speed(&self, what: &str, size: u32) -> Option<f64> {
        self.plain.get(&(what.to_owned(), size)).copied()
    }

    /// The C program's throughput on soft-efa in relation to loopback UDP's.
    pub fn soft_efa_of_udp(&self) -> Vec<(&'static str, f64)> {
        [
            ("bytes, 1 MiB writes", 1 << 20),
            ("messages, 8-byte writes", 8),
        ]
        .into_iter()
        .filter_map(|(what, size)| {
            let speed = self.speed.get(&(BASE.to_owned(), size))?;
            Some((
                what,
                speed.bytes_per_second / self.plain_speed("udp", size)?,
            ))
        })
        .collect()
    }

    pub fn json(&self) -> Value {
        let counts: Vec<_> = self
            .counts
            .iter()
            .map(|((variant, batch), count)| {
                json!({
                    "variant": variant, "batch": batch, "post": count.post, "poll": count.poll,
                    "post_ratio": self.ratio(variant, BASE, *batch, "post"),
                    "poll_ratio": self.ratio(variant, BASE, *batch, "poll"),
                    "both_ratio": self.ratio(variant, BASE, *batch, "both"),
                })
            })
            .collect();
        let speed: Vec<_> = self
            .speed
            .iter()
            .map(|((variant, size), speed)| {
                json!({
                    "variant": variant, "size": size,
                    "bytes_per_second": speed.bytes_per_second,
                    "p50": speed.p50, "p99": speed.p99, "p999": speed.p999,
                })
            })
            .collect();
        let plain: Vec<_> = self
            .plain
            .iter()
            .map(|((what, size), speed)| json!({ "what": what, "size": size, "bytes_per_second": speed }))
            .collect();
        json!({
            "rdma_core": self.rdma_core,
            "device": self.device,
            "base": BASE,
            "instructions": counts,
            "allocations_per_operation": self.allocations,
            "bytes_per_peer": self.bytes_per_peer,
            "post_by_other_peers": self.others,
            "speed": speed,
            "plain": plain,
            "requests": self.requests.map(|it| json!({
                "spinning": it.spinning, "futures": it.futures, "actors": it.actors,
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_same_batch_of_the_base() {
        let mut results = Results::default();
        let mut count = |variant, batch, post, poll| {
            results.count(variant, batch, Count { post, poll });
        };
        count(BASE, 1, 300.0, 100.0);
        count(BASE, 16, 200.0, 100.0);
        count("put-direct", 16, 50.0, 40.0);
        let ratio = |batch, of| results.ratio("put-direct", BASE, batch, of);
        assert_eq!(ratio(16, "post"), Some(0.25));
        assert_eq!(ratio(16, "poll"), Some(0.4));
        assert_eq!(ratio(16, "both"), Some(0.3));
        assert_eq!(ratio(1, "post"), None);
    }
}
