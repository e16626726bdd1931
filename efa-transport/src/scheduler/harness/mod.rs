//! Drives the scheduler against a simulated device with a virtual clock, from a seed.
//!
//! The device completes requests in any order, with any status, refuses sessions now and then, and is
//! destroyed under the scheduler's feet. Peers come, go and restart; programs cancel, and let deadlines
//! pass. Beside the scheduler runs a [model](model) that knows of each operation what must become of it.
//! After every step the two are compared, and so is what must always hold: memory and address handles
//! are kept exactly as long as the device may use them, and credits count its requests.
//!
//! `EFA_HARNESS_SEED=n` replays one case; `EFA_HARNESS_CASES=n` runs more, from `EFA_HARNESS_FIRST` on.
//! `cargo xtask soak pure` runs millions.

use std::collections::HashSet;

mod check;
mod examples;
mod model;
mod parts;
mod peers;
mod rounds;
mod submit;
mod world;

use world::World;

/// One case. Returns a digest of what happened.
fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    world.connect();
    for _ in 0..300 {
        world.step();
    }
    let trace = world.trace;
    if world.random.bool() {
        world.drain();
    } else {
        world.close();
    }
    trace
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_seed_replays_exactly() {
    let mut different = HashSet::new();
    for seed in 0..100 {
        let trace = run(seed);
        assert_eq!(run(seed), trace, "seed {seed}");
        different.insert(trace);
    }
    assert!(different.len() > 95);
}

#[test]
fn every_operation_ends_once_whatever_the_device_does() {
    if let Some(seed) = number("EFA_HARNESS_SEED") {
        run(seed);
        return;
    }
    let first = number("EFA_HARNESS_FIRST").unwrap_or(0);
    let cases = number("EFA_HARNESS_CASES").unwrap_or(1000);
    for seed in first..first.saturating_add(cases) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("replay with EFA_HARNESS_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
