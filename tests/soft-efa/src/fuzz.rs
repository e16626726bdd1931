//! Random tests that go on for a time instead of a number of cases.
//!
//! `EFA_FUZZ_SECONDS` says for how long each of them runs; without it, a few seconds. Case `N` of a
//! run is a function of the run's seed and of `N`. What fails, crashes or hangs is named as
//! `EFA_FUZZ_SEED=SEED:N`: with that in the environment the case runs alone, with
//! `EFA_FUZZ_SEED=SEED` the run begins anew.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestError, TestRng, TestRunner};

/// A case that takes longer hangs, however busy the machine is.
const HANG: Duration = Duration::from_secs(60);

/// Tries values of `strategy` until the time is up.
pub(crate) fn run<S: Strategy>(
    name: &str,
    strategy: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
) {
    run_from(asked_for(), name, strategy, test);
}

fn run_from<S: Strategy>(
    start: Option<(u64, Option<u64>)>,
    name: &str,
    strategy: &S,
    test: impl Fn(S::Value) -> TestCaseResult,
) {
    let (seed, only) = start.unwrap_or_else(|| (RandomState::new().hash_one(name), None));
    let running = Running::watched(name, seed, only.unwrap_or(0));
    let end = Instant::now() + time();
    let mut case = only.unwrap_or(0);
    loop {
        running.case.store(case, Ordering::Relaxed);
        let mut runner = TestRunner::new_with_rng(
            Config {
                failure_persistence: None,
                max_shrink_iters: 2000,
                max_shrink_time: 30_000,
                ..Config::default()
            },
            random(seed, case),
        );
        let input = strategy
            .new_tree(&mut runner)
            .expect("a strategy without values");
        match runner.run_one(input, &test) {
            Ok(_) => {}
            Err(TestError::Fail(why, least)) => panic!(
                "{name}: {why}\nEFA_FUZZ_SEED={seed:#x}:{case} gives this case again; \
                 the least input that fails:\n{least:?}"
            ),
            Err(TestError::Abort(why)) => panic!("{name}: {why}; EFA_FUZZ_SEED={seed:#x}:{case}"),
        }
        case += 1;
        if only.is_some() || Instant::now() >= end {
            break;
        }
    }
    say(&format!(
        "fuzz {name}: {} cases, the first of them EFA_FUZZ_SEED={seed:#x}:{}\n",
        case - only.unwrap_or(0),
        only.unwrap_or(0)
    ));
}

fn time() -> Duration {
    let seconds = match std::env::var("EFA_FUZZ_SECONDS") {
        Ok(text) => text.parse().expect("EFA_FUZZ_SECONDS is not a number"),
        Err(_) => 2.0,
    };
    Duration::from_secs_f64(seconds)
}

/// The seed and the case in `EFA_FUZZ_SEED`.
fn asked_for() -> Option<(u64, Option<u64>)> {
    let text = std::env::var("EFA_FUZZ_SEED").ok()?;
    Some(parse_seed(&text).expect("EFA_FUZZ_SEED is neither SEED nor SEED:CASE"))
}

fn parse_seed(text: &str) -> Option<(u64, Option<u64>)> {
    let (seed, case) = match text.split_once(':') {
        Some((seed, case)) => (seed, Some(case.parse().ok()?)),
        None => (text, None),
    };
    let seed = match seed.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => seed.parse().ok()?,
    };
    Some((seed, case))
}

fn random(seed: u64, case: u64) -> TestRng {
    let mut bytes = [0; 32];
    for (chunk, number) in bytes.chunks_exact_mut(8).zip([seed, case, !seed, 0xefa]) {
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Past the harness, which keeps what passing tests print.
fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// A loop that is under way.
struct Running {
    /// What comes in front of the number of the case.
    label: String,
    case: AtomicU64,
}

/// The loops that a signal handler tells of.
static LOOPS: [AtomicPtr<Running>; 16] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 16];

/// Ends the watch over a loop when the loop ends.
struct Watched(Arc<Running>);

impl Running {
    fn watched(name: &str, seed: u64, case: u64) -> Watched {
        let running = Arc::new(Self {
            label: format!("fuzz {name}: EFA_FUZZ_SEED={seed:#x}:"),
            case: AtomicU64::new(case),
        });
        catch_crashes();
        let place = Arc::as_ptr(&running).cast_mut();
        for slot in &LOOPS {
            let null = std::ptr::null_mut();
            if slot
                .compare_exchange(null, place, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        let watched = Arc::downgrade(&running);
        std::thread::spawn(move || watch(&watched));
        Watched(running)
    }
}

impl std::ops::Deref for Watched {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let place = Arc::as_ptr(&self.0).cast_mut();
        for slot in &LOOPS {
            let null = std::ptr::null_mut();
            let _ = slot.compare_exchange(place, null, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn watch(running: &Weak<Running>) {
    let mut last = (u64::MAX, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let Some(running) = running.upgrade() else {
            return;
        };
        let case = running.case.load(Ordering::Relaxed);
        if case != last.0 {
            last = (case, Instant::now());
        } else if last.1.elapsed() > HANG {
            say(&format!("{}{case} hangs\n", running.label));
            std::process::abort();
        }
    }
}

/// Lets a process that crashes say which cases were running.
fn catch_crashes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGABRT] {
            // SAFETY: plain data, for which zero is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = report_crash as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
            // SAFETY: the action is initialised, and its function does nothing but write. After
            // it the fault happens again and ends the process as it would have.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    });
}

extern "C" fn report_crash(_signal: libc::c_int) {
    let write = |bytes: &[u8]| {
        // SAFETY: the buffer is as long as said.
        unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
    };
    for slot in &LOOPS {
        let running = slot.load(Ordering::Acquire);
        // SAFETY: a loop takes itself out of the list before it goes, and the process is ending.
        let Some(running) = (unsafe { running.as_ref() }) else {
            continue;
        };
        let mut case = running.case.load(Ordering::Relaxed);
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (case % 10) as u8;
            case /= 10;
            if case == 0 {
                break;
            }
        }
        write(running.label.as_bytes());
        write(&digits[at..]);
        write(b" was running\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_can_name_a_case() {
        assert_eq!(parse_seed("0x1f"), Some((31, None)));
        assert_eq!(parse_seed("7:12"), Some((7, Some(12))));
        for bad in ["", "x", "0xg", "1:", ":1", "1:2:3"] {
            assert_eq!(parse_seed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_case_is_a_function_of_seed_and_number() {
        let values = |seed, case| {
            let mut runner = TestRunner::new_with_rng(Config::default(), random(seed, case));
            let tree = proptest::collection::vec(0u32.., 8).new_tree(&mut runner);
            proptest::strategy::ValueTree::current(&tree.unwrap())
        };
        assert_eq!(values(1, 2), values(1, 2));
        assert_ne!(values(1, 2), values(1, 3));
        assert_ne!(values(1, 2), values(2, 2));
    }

    #[test]
    fn a_failure_names_its_seed_and_the_least_input() {
        let failed = std::panic::catch_unwind(|| {
            run_from(None, "example", &(0u32..1000), |n| {
                proptest::prop_assert!(n < 17);
                Ok(())
            });
        });
        let why = *failed.unwrap_err().downcast::<String>().unwrap();
        let (_, seed) = why.split_once("EFA_FUZZ_SEED=").unwrap();
        let (seed, _) = seed.split_once(' ').unwrap();
        let (seed, case) = parse_seed(seed).unwrap();
        assert!(why.ends_with("\n17"), "{why}");
        let mut runner = TestRunner::new_with_rng(Config::default(), random(seed, case.unwrap()));
        let tree = (0u32..1000).new_tree(&mut runner).unwrap();
        assert!(proptest::strategy::ValueTree::current(&tree) >= 17);
    }
}
