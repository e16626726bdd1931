//! What soft-efa is to the program that it runs in: small C programs that know nothing of it, on
//! the libibverbs and libefa of this system.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use soft_efa::ctl::Client;
use soft_efa::launch::{PRELOAD_VAR, Run};
use soft_efa::options::{Abi, Options};
use soft_efa::profile::ProfileName;

/// Records a test that can't run here, where somebody counts them.
fn skipped(name: &str, reason: &str) {
    eprintln!("{name}: skipped: {reason}");
    if let Some(path) = std::env::var_os("EFA_TEST_SKIPS") {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        writeln!(file, "{name}\t{reason}").unwrap();
    }
}

/// The preloaded library, built if need be.
fn preload() -> &'static Path {
    static PRELOAD: OnceLock<PathBuf> = OnceLock::new();
    PRELOAD.get_or_init(|| {
        if let Some(path) = std::env::var_os(PRELOAD_VAR) {
            return path.into();
        }
        let output = Command::new(env!("CARGO"))
            .args([
                "build",
                "--quiet",
                "-p",
                "soft-efa-preload",
                "--message-format=json",
            ])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "cargo can't build soft-efa-preload"
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["name"] == "soft_efa_preload")
            .find_map(|message| message["filenames"][0].as_str().map(PathBuf::from))
            .expect("cargo names the library")
    })
}

/// Where there are headers and libraries to build C programs with.
fn compiler_flags() -> Option<&'static [String]> {
    static FLAGS: OnceLock<Option<Vec<String>>> = OnceLock::new();
    FLAGS
        .get_or_init(|| {
            let output = Command::new("pkg-config")
                .args(["--cflags", "--libs", "libefa", "libibverbs"])
                .output();
            let output = output.ok().filter(|output| output.status.success())?;
            Some(
                String::from_utf8(output.stdout)
                    .ok()?
                    .split_whitespace()
                    .map(str::to_owned)
                    .collect(),
            )
        })
        .as_deref()
}

/// A guest program, compiled.
struct Guest {
    dir: tempfile::TempDir,
}

impl Guest {
    fn new(name: &str) -> Option<Self> {
        Self::with_flags(name, &[])
    }

    fn with_flags(name: &str, more: &[&str]) -> Option<Self> {
        let Some(flags) = compiler_flags() else {
            skipped(
                name,
                "no headers of libibverbs and libefa (package libibverbs-dev)",
            );
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/guest")
            .join(format!("{name}.c"));
        let status = Command::new("cc")
            .args(["-g", "-Wall", "-pthread", "-o"])
            .arg(dir.path().join("guest"))
            .arg(source)
            .args(flags)
            .arg("-ldl")
            .args(more)
            .status()
            .unwrap();
        assert!(status.success(), "{name}.c does not compile");
        Some(Self { dir })
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("guest")
    }

    fn run(&self, options: &Options, arguments: &[&str]) -> Output {
        run(options, self.program().to_str().unwrap(), arguments)
    }
}

/// Runs a program on soft-efa; one that hangs is killed and fails.
fn run(options: &Options, program: &str, arguments: &[&str]) -> Output {
    let run = Run::new(options, preload()).unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    run.apply(&mut command).unwrap();
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!(
                "{program} hangs: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn assert_success(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn both_abis() -> [Options; 2] {
    [Abi::Ioctl, Abi::Write].map(|abi| Options {
        abi,
        ..Options::default()
    })
}

#[test]
fn mistakes_get_the_kernels_errno_through_both_interfaces() {
    let Some(guest) = Guest::new("validation") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

#[test]
fn a_forked_child_leaves_its_parents_device_alone() {
    let Some(guest) = Guest::new("fork") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

#[test]
fn libibverbs_can_be_a_plug_ins_private_library() {
    let Some(guest) = Guest::new("local") else {
        return;
    };
    assert_success("local", &guest.run(&Options::default(), &[]));
}

#[test]
fn completion_events_wake_readers_and_die_with_their_queue() {
    let Some(guest) = Guest::new("events") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

#[test]
fn other_descriptors_and_paths_are_untouched() {
    let Some(guest) = Guest::new("descriptors") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

#[test]
fn the_device_is_found_however_a_program_walks() {
    let Some(guest) = Guest::new("walks") else {
        return;
    };
    let options = Options::default();
    assert_success(&options.to_string(), &guest.run(&options, &[]));
}

#[test]
fn memory_behind_a_descriptor_can_be_registered() {
    let Some(guest) = Guest::new("dmabuf") else {
        return;
    };
    for options in both_abis() {
        assert_success(
            &options.to_string(),
            &guest.run(&options, &[&options.abi.to_string()]),
        );
    }
}

#[test]
fn threads_make_and_destroy_at_once() {
    let Some(guest) = Guest::new("threads") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

#[test]
fn a_lowered_limit_of_locked_memory_counts_as_in_the_kernel() {
    let Some(guest) = Guest::new("memlock") else {
        return;
    };
    for options in both_abis() {
        assert_success(&options.to_string(), &guest.run(&options, &[]));
    }
}

/// Runs `cargo xtask soft-efa ctl` and returns what it prints.
fn control(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "-p", "xtask", "--", "soft-efa", "ctl"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

#[test]
fn the_control_command_reaches_running_programs() {
    let Some(guest) = Guest::new("idle") else {
        return;
    };
    // Built before there is anything to hurry for.
    control(&["--help"]);
    let run = Run::new(&Options::default(), preload()).unwrap();
    let mut command = Command::new(guest.program());
    command.arg("forever");
    run.apply(&mut command).unwrap();
    let mut child = command.spawn().unwrap();
    let pid = child.id().to_string();
    let start = Instant::now();
    while Client::processes(run.dir()).unwrap() != [child.id()] {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = |words: &[&str], expected: &str| {
        let (fine, text) = control(&[&["--pid", &pid], words].concat());
        assert!(fine && text.contains(expected), "{words:?}: {text}");
    };
    told(&["objects"], "qp       8");
    told(&["counters"], "requests_posted");
    told(&["faults", "loss=0.5,status=7@3"], "done");
    told(&["pause"], "done");
    told(&["--device", "efa_0", "resume"], "done");
    let mut client = Client::connect(run.dir(), child.id()).unwrap();
    assert_eq!(client.objects().unwrap()["qp"], 8);
    let (fine, text) = control(&["--pid", &pid, "faults", "loss=2"]);
    assert!(!fine && text.contains("loss=2"), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (fine, text) = control(&["--pid", &pid, "counters"]);
    assert!(!fine && text.contains(&pid), "{text}");
}

#[test]
fn an_idle_device_takes_less_than_a_hundredth_of_a_processor() {
    let Some(guest) = Guest::new("idle") else {
        return;
    };
    assert_success("idle", &guest.run(&Options::default(), &[]));
}

#[test]
fn a_sandbox_that_hides_processes_from_one_another_is_no_hindrance() {
    let Some(sandbox) = Guest::new("sandbox") else {
        return;
    };
    for name in ["events", "threads"] {
        let Some(guest) = Guest::new(name) else {
            return;
        };
        let program = guest.program();
        for options in both_abis() {
            let output = sandbox.run(&options, &[program.to_str().unwrap()]);
            if output.status.code() == Some(77) {
                skipped(
                    "a_sandbox_that_hides_processes_from_one_another_is_no_hindrance",
                    "seccomp filters can't be installed here",
                );
                return;
            }
            assert_success(name, &output);
        }
    }
}

/// Set in the part of the next test that has no rights: the guest to run.
const UNPRIVILEGED: &str = "SOFT_EFA_TEST_UNPRIVILEGED";

#[test]
fn a_user_without_rights_has_the_device_as_well() {
    // SAFETY: geteuid takes no arguments and can't fail.
    let root = unsafe { libc::geteuid() } == 0;
    if let Some(guest) = std::env::var_os(UNPRIVILEGED) {
        assert!(!root);
        let output = run(&Options::default(), guest.to_str().unwrap(), &[]);
        assert_success("without rights", &output);
        return;
    }
    let Some(guest) = Guest::new("events") else {
        return;
    };
    if !root {
        assert_success("events", &guest.run(&Options::default(), &[]));
        return;
    }
    // Copies, since the folders that they come from may be root's alone.
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).unwrap();
    };
    open(dir.path());
    let copy = |from: &Path, name: &str| {
        let to = dir.path().join(name);
        fs::copy(from, &to).unwrap();
        open(&to);
        to
    };
    let own = copy(&std::env::current_exe().unwrap(), "test");
    let library = copy(preload(), "libsoft_efa_preload.so");
    let guest = copy(&guest.program(), "guest");
    let mut command = Command::new(own);
    command
        .args(["--exact", "a_user_without_rights_has_the_device_as_well"])
        .env(UNPRIVILEGED, guest)
        .env(PRELOAD_VAR, library)
        .current_dir("/");
    std::os::unix::process::CommandExt::uid(&mut command, 65_534);
    std::os::unix::process::CommandExt::gid(&mut command, 65_534);
    let output = command.output().unwrap();
    assert_success("as nobody", &output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn guests_run_clean_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped(
            "guests_run_clean_under_valgrind",
            "valgrind is not installed",
        );
        return;
    }
    for name in ["events", "fork"] {
        let Some(guest) = Guest::new(name) else {
            return;
        };
        let program = guest.program();
        let arguments = ["--error-exitcode=9", "--quiet", program.to_str().unwrap()];
        assert_success(name, &run(&Options::default(), "valgrind", &arguments));
    }
}

/// Whether the compiler makes programs with this flag.
fn compiles_with(flag: &str) -> bool {
    let probe = tempfile::tempdir().unwrap();
    let source = probe.path().join("probe.c");
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let mut cc = Command::new("cc");
    cc.arg(flag)
        .arg("-o")
        .arg(probe.path().join("probe"))
        .arg(source);
    cc.stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn guests_run_clean_with_sanitizers() {
    for (flag, programs) in [
        ("-fsanitize=address", ["validation", "events"]),
        ("-fsanitize=thread", ["threads", "events"]),
    ] {
        if !compiles_with(flag) {
            skipped(
                "guests_run_clean_with_sanitizers",
                &format!("the compiler doesn't know {flag}"),
            );
            continue;
        }
        for program in programs {
            let Some(guest) = Guest::with_flags(program, &[flag]) else {
                return;
            };
            // Also started by a program that isn't built with it, as from a script.
            let path = guest.program();
            let path = path.to_str().unwrap();
            for (program, arguments) in [("sh", vec!["-c", path]), (path, vec![])] {
                assert_success(flag, &run(&Options::default(), program, &arguments));
            }
        }
    }
}

/// The release of the rdma-core that programs are built and run with here.
fn libefa_release() -> Option<u32> {
    let output = Command::new("pkg-config")
        .args(["--modversion", "libefa"])
        .output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    // 1.4.59.0 is rdma-core 59.0.
    text.trim().split('.').nth(2)?.parse().ok()
}

fn is_listed(test: &str, profile: ProfileName) {
    if Command::new("ibv_devinfo").arg("-l").output().is_err() {
        skipped(test, "ibv_devinfo is not installed (package ibverbs-utils)");
        return;
    }
    // A libefa knows the devices that were there when it was written.
    let needed = match profile {
        ProfileName::P6 => 63,
        ProfileName::P5en => 55,
        _ => 0,
    };
    if libefa_release().unwrap_or(0) < needed {
        skipped(test, &format!("{profile} needs rdma-core {needed}"));
        return;
    }
    for options in both_abis() {
        let options = Options {
            devices: 3,
            profile: Some(profile),
            ..options
        };
        let output = run(&options, "ibv_devinfo", &["-v"]);
        assert_success(&options.to_string(), &output);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("PORT_ACTIVE").count(), 3, "{text}");
        assert!(
            text.contains(&format!("{}", profile.profile().pci_device)),
            "{text}"
        );
        assert!(
            text.contains("fe80:0000:0000:0000:02ef:7fff:fe00:0003"),
            "{text}"
        );
    }
}

#[test]
fn the_older_profiles_are_listed_by_the_tools() {
    for profile in [ProfileName::C5n, ProfileName::P4d, ProfileName::P5] {
        is_listed("the_older_profiles_are_listed_by_the_tools", profile);
    }
}

#[test]
fn the_profile_p5en_is_listed_by_the_tools() {
    is_listed("the_profile_p5en_is_listed_by_the_tools", ProfileName::P5en);
}

#[test]
fn the_profile_p6_is_listed_by_the_tools() {
    is_listed("the_profile_p6_is_listed_by_the_tools", ProfileName::P6);
}

#[test]
fn what_was_under_way_when_a_process_was_stopped_goes_on_with_it() {
    let Some(guest) = Guest::new("stopped") else {
        return;
    };
    // On its way for longer than it takes to stop the program, and given up soon after.
    let options = Options {
        faults: "delay=400ms,timeout=1s".to_owned(),
        ..Options::default()
    };
    let run = Run::new(&options, preload()).unwrap();
    let mut command = Command::new(guest.program());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    run.apply(&mut command).unwrap();
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let output = child.stdout.as_mut().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    assert_eq!(line, "posted\n");
    let signal = |number| {
        // SAFETY: kill takes numbers alone, and the child was not waited for yet.
        assert_eq!(unsafe { libc::kill(child.id() as i32, number) }, 0);
    };
    signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(1500));
    signal(libc::SIGCONT);
    assert_success("stopped", &child.wait_with_output().unwrap());
}

#[test]
fn a_killed_process_hinders_nobody() {
    let Some(guest) = Guest::new("validation") else {
        return;
    };
    let run = Run::new(&Options::default(), preload()).unwrap();
    let mut sleeper = Command::new("sh");
    // The shell has no device; the guest gets one, and both die without a word.
    sleeper.args(["-c", "exec \"$0\"", guest.program().to_str().unwrap()]);
    run.apply(&mut sleeper).unwrap();
    for _ in 0..3 {
        let mut child = sleeper.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        // It may be done already.
        let _ = child.kill();
        child.wait().unwrap();
    }
    let mut after = Command::new(guest.program());
    run.apply(&mut after).unwrap();
    assert_success("after the killed ones", &after.output().unwrap());
    assert_eq!(Client::processes(run.dir()).unwrap(), [0u32; 0]);
}
