//! What a safe program must not be able to do to libibverbs, to memory, or to itself.
//!
//! Some of it is a race that happens once in a million runs. So this program puts itself between
//! the crates and libibverbs: the calls in [`between`] tell whether two of them that must not meet
//! have met, and can be told to fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use efa_tests::{Pair, Test, alone, done, here, take_off, under};
use efa_transport::{Config, Endpoint, ReceivePool};
use efa_verbs::{Access, Buffer, CallerMemory, QueuePairConfig};

/// libibverbs' functions as the crates under test see them.
mod between {
    use std::ffi::{c_int, c_void};
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread::sleep;
    use std::time::Duration;

    use efa_sys::{ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};

    /// Longer than it takes another thread to get here.
    const LONG: Duration = Duration::from_millis(30);

    /// Calls that must have the process to themselves have met another.
    pub static MET: AtomicBool = AtomicBool::new(false);
    /// The next destruction of a queue pair fails.
    pub static CANNOT_DESTROY: AtomicBool = AtomicBool::new(false);

    static ASKING: AtomicU32 = AtomicU32::new(0);
    static FORKING: AtomicU32 = AtomicU32::new(0);
    static REGISTERING: AtomicU32 = AtomicU32::new(0);

    /// The function that is behind one of these.
    fn real(name: &std::ffi::CStr) -> *mut c_void {
        // SAFETY: the name is NUL-terminated.
        let found =
            unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"IBVERBS_1.1".as_ptr()) };
        assert!(!found.is_null(), "no {name:?}");
        found
    }

    fn meets(one: &AtomicU32) {
        if one.load(Ordering::SeqCst) != 0 {
            MET.store(true, Ordering::SeqCst);
        }
    }

    /// # Safety
    ///
    /// As for the function of that name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int {
        type Real = unsafe extern "C" fn(
            *mut ibv_qp,
            *mut ibv_qp_attr,
            c_int,
            *mut ibv_qp_init_attr,
        ) -> c_int;
        meets(&ASKING);
        ASKING.fetch_add(1, Ordering::SeqCst);
        sleep(LONG);
        // SAFETY: this is the type of that function, and the caller keeps its promise.
        let result = unsafe {
            std::mem::transmute::<*mut c_void, Real>(real(c"ibv_query_qp"))(qp, attr, mask, init)
        };
        ASKING.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// # Safety
    ///
    /// As for the function of that name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ibv_fork_init() -> c_int {
        meets(&FORKING);
        meets(&REGISTERING);
        FORKING.fetch_add(1, Ordering::SeqCst);
        sleep(LONG);
        // SAFETY: this is the type of that function.
        let result = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(real(
                c"ibv_fork_init",
            ))()
        };
        FORKING.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// # Safety
    ///
    /// As for the function of that name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ibv_reg_mr(
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr {
        type Real = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        meets(&FORKING);
        REGISTERING.fetch_add(1, Ordering::SeqCst);
        // SAFETY: this is the type of that function, and the caller keeps its promise.
        let result = unsafe {
            std::mem::transmute::<*mut c_void, Real>(real(c"ibv_reg_mr"))(pd, addr, length, access)
        };
        meets(&FORKING);
        REGISTERING.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// # Safety
    ///
    /// As for the function of that name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        meets(&FORKING);
        REGISTERING.fetch_add(1, Ordering::SeqCst);
        // SAFETY: this is the type of that function, and the caller keeps its promise.
        let result = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ibv_mr) -> c_int>(real(
                c"ibv_dereg_mr",
            ))(mr)
        };
        meets(&FORKING);
        REGISTERING.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// # Safety
    ///
    /// As for the function of that name.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
        if CANNOT_DESTROY.swap(false, Ordering::SeqCst) {
            return libc::EBUSY;
        }
        // SAFETY: this is the type of that function, and the caller keeps its promise.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut ibv_qp) -> c_int>(real(
                c"ibv_destroy_qp",
            ))(qp)
        }
    }
}

use between::{CANNOT_DESTROY, MET};

fn count(t: &Test, kind: &str) -> Result<u64> {
    Ok(t.objects()?.get(kind).copied().unwrap_or(0))
}

#[test]
fn threads_that_ask_for_the_state_of_one_queue_pair_take_turns() {
    alone().run(|t| {
        // libibverbs notes the answer in the queue pair, without a lock.
        let domain = t.device()?.open()?.alloc_pd()?;
        let pair = domain.create_queue_pair(&QueuePairConfig::default())?;
        let start = Barrier::new(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    pair.state().map(drop)
                });
            }
        });
        ensure!(
            !MET.load(Ordering::SeqCst),
            "two threads were in ibv_query_qp"
        );
        Ok(())
    });
}

#[test]
fn nothing_is_registered_while_fork_support_is_switched_on() {
    alone().run(|t| {
        // ibv_fork_init publishes the root of a tree before it fills it in, without a lock.
        let domain = t.device()?.open()?.alloc_pd()?;
        let (start, done) = (Barrier::new(3), AtomicBool::new(false));
        thread::scope(|scope| {
            let forking = || {
                start.wait();
                // It may be too late for it, which is an error and no harm.
                let _ = efa_verbs::fork_init();
                done.store(true, Ordering::SeqCst);
            };
            scope.spawn(forking);
            scope.spawn(forking);
            start.wait();
            while !done.load(Ordering::SeqCst) {
                let region = domain.register(Buffer::zeroed(4096)?, Access::LOCAL)?;
                drop(region);
            }
            Ok::<_, anyhow::Error>(())
        })?;
        ensure!(
            !MET.load(Ordering::SeqCst),
            "a registration met ibv_fork_init"
        );
        Ok(())
    });
}

/// Somebody's logging that fails.
struct Panics;

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        panic!("the log is full");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn memory_is_deregistered_before_it_is_freed_where_the_programs_logging_panics() {
    under("").run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let before = count(t, "mr")?;
        let buffer = Buffer::from(vec![7; 4096]);
        let registered = tracing::subscriber::with_default(Panics, || {
            catch_unwind(AssertUnwindSafe(|| domain.register(buffer, Access::LOCAL)))
        });
        ensure!(registered.is_err(), "nothing was logged");
        ensure!(
            count(t, "mr")? == before,
            "the memory was freed, and the device still has it"
        );
        Ok(())
    });
}

#[test]
fn copies_through_two_regions_of_the_same_bytes_do_not_mix() {
    const LENGTH: usize = 8 << 20;
    alone().run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let memory: &'static mut [u8] = vec![0; LENGTH].leak();
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the one range is leaked memory, whose only reference ended above.
        let registrar = unsafe { CallerMemory::new(domain) };
        let register = || registrar.register(address, LENGTH as u64, Access::LOCAL);
        let (one, other) = (register()?, register()?);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for value in (1..=2).cycle() {
                    if stop.load(Ordering::Relaxed) || one.copy_in(0, &vec![value; LENGTH]).is_err()
                    {
                        break;
                    }
                }
            });
            let mut mixed = false;
            let mut bytes = vec![0; LENGTH];
            for _ in 0..50 {
                mixed |= other.copy_out(0, &mut bytes).is_err()
                    || (1..=16).any(|part| bytes[LENGTH / 16 * part - 1] != bytes[0]);
            }
            stop.store(true, Ordering::Relaxed);
            ensure!(!mixed, "a copy saw half of another");
            Ok(())
        })
    });
}

#[test]
fn copies_through_an_owned_region_and_one_by_address_in_another_domain_do_not_mix() {
    const LENGTH: usize = 8 << 20;
    alone().run(|t| {
        let context = t.device()?.open()?;
        let owned = context
            .alloc_pd()?
            .register(Buffer::zeroed(LENGTH)?, Access::LOCAL)?;
        // SAFETY: the owned region outlives the other one, and its bytes are only reached by copying.
        let raw = unsafe {
            context
                .alloc_pd()?
                .register_raw(owned.as_ptr(), LENGTH, Access::LOCAL)
        }?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for value in (1..=2).cycle() {
                    let bytes = vec![value; LENGTH];
                    if stop.load(Ordering::Relaxed) || owned.copy_in(0, &bytes).is_err() {
                        break;
                    }
                }
            });
            let mut mixed = false;
            let mut bytes = vec![0; LENGTH];
            for _ in 0..50 {
                mixed |= raw.copy_out(0, &mut bytes).is_err()
                    || (1..=16).any(|part| bytes[LENGTH / 16 * part - 1] != bytes[0]);
            }
            stop.store(true, Ordering::Relaxed);
            ensure!(!mixed, "a copy saw half of another");
            Ok(())
        })
    });
}

#[test]
fn buffers_that_a_queue_pair_keeps_are_not_lent_even_if_it_cannot_be_destroyed() {
    under("").run(|t| {
        let config = Config {
            receive_pool: ReceivePool {
                buffers: 2,
                size: Some(1024),
            },
            ..Config::default()
        };
        let mut pair = Pair::new(t, config.clone())?;
        CANNOT_DESTROY.store(true, Ordering::SeqCst);
        pair.b.rebuild()?;
        ensure!(!CANNOT_DESTROY.load(Ordering::SeqCst));
        // A third endpoint reaches the new queue pair, and `a` the old one, which the device still has.
        let mut c = Endpoint::new(&pair.domain, config)?;
        let cb = c.connect(pair.b.address())?;
        pair.b.connect(c.address())?;
        // No buffer is left, so it may not arrive; if it does, nobody else's bytes may get into it.
        let at = std::time::Instant::now() + Duration::from_secs(2);
        let good = c.submit(efa_transport::Send::bytes(cb, &[1; 100]).deadline(at))?;
        let arrived = efa_tests::ended(&mut c, good)?.result.is_ok();
        ensure!(
            !arrived
                || pair
                    .b
                    .wait_message(None)
                    .is_ok_and(|message| message[..] == [1; 100])
        );
        let late = pair.a.send(pair.ab, &[2; 100])?;
        done(&mut pair.a, late)?;
        ensure!(!arrived, "a buffer is with two queue pairs");
        Ok(())
    });
}

/// What pkg-config says about libibverbs and libefa.
fn pkg_config(question: &str) -> Result<String> {
    let mut command = Command::new("pkg-config");
    command.args([question, "libefa", "libibverbs"]);
    take_off(&mut command);
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Headers like the installed ones, with longer structs; in `to`.
fn lengthen(to: &Path) -> Result<()> {
    let installed = pkg_config("--variable=includedir")?;
    let installed = installed
        .split_whitespace()
        .next()
        .unwrap_or("/usr/include");
    let from = PathBuf::from(installed).join("infiniband");
    let header = std::fs::read_to_string(from.join("verbs.h"))
        .with_context(|| format!("{} has no verbs.h", from.display()))?;
    let mut longer = String::new();
    let mut inside = false;
    for line in header.lines() {
        inside |= ["struct ibv_port_attr {", "struct ibv_device_attr_ex {"].contains(&line);
        if inside && line == "};" {
            longer.push_str("\tuint8_t more[4096];\n");
            inside = false;
        }
        longer.push_str(line);
        longer.push('\n');
    }
    std::fs::create_dir(to.join("infiniband"))?;
    for entry in std::fs::read_dir(&from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join("infiniband").join(entry.file_name()))?;
    }
    std::fs::write(to.join("infiniband/verbs.h"), longer)?;
    Ok(())
}

#[test]
fn headers_with_longer_structs_make_no_query_write_beyond_ours() {
    here().run(|t| {
        t.device()?;
        t.need_program("gcc", "gcc")?;
        t.need_program("pkg-config", "pkg-config")?;
        let dir = tempfile::tempdir()?;
        lengthen(dir.path())?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let program = dir.path().join("longer");
        let mut gcc = Command::new("gcc");
        gcc.arg("-I").arg(dir.path());
        gcc.arg("-I").arg(root.join("efa-sys/shim"));
        gcc.arg(root.join("tests/tests/c/longer_header.c"));
        gcc.arg(root.join("efa-sys/shim/inlines.c"));
        gcc.arg("-o").arg(&program);
        gcc.args(pkg_config("--cflags")?.split_whitespace());
        gcc.args(pkg_config("--libs")?.split_whitespace());
        take_off(&mut gcc);
        let output = gcc.output()?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let status = Command::new(&program).status()?;
        ensure!(
            status.success(),
            "{status}; see tests/tests/c/longer_header.c"
        );
        Ok(())
    });
}
