//! What soft-efa keeps for the process that it runs in.
//!
//! The state belongs to one process id. A forked child finds its parent's state, whose locks and
//! threads it doesn't have, and leaves it alone: it gets a state of its own when it opens a device,
//! and what it inherited answers `EIO`.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use crate::ctl;
use crate::engine::FaultPlan;
use crate::launch::{DIR_VAR, OPTIONS_VAR};
use crate::options::{Abi, Options};

use super::abi::EfaAllocUcontext;
use super::context::Context;
use super::device::Device;
use super::fds::{self, Kind, Table};
use super::locked::Locked;

/// The run that this process belongs to.
#[derive(Debug)]
pub(crate) struct RunInfo {
    /// The run directory.
    pub(crate) dir: PathBuf,
    /// What the devices are like.
    pub(crate) options: Options,
}

static RUN: OnceLock<Option<RunInfo>> = OnceLock::new();

/// The run that this process belongs to, as its environment said when it started.
pub(crate) fn run() -> Option<&'static RunInfo> {
    RUN.get_or_init(|| {
        let dir = PathBuf::from(std::env::var_os(DIR_VAR)?);
        let text = std::env::var_os(OPTIONS_VAR).unwrap_or_default();
        match text.to_str().map(str::parse::<Options>) {
            Some(Ok(options)) => Some(RunInfo { dir, options }),
            Some(Err(error)) => {
                eprintln!("soft-efa: {OPTIONS_VAR}: {error}; there are no devices");
                None
            }
            None => {
                eprintln!("soft-efa: {OPTIONS_VAR} is not text; there are no devices");
                None
            }
        }
    })
    .as_ref()
}

/// The state of one process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    pub(crate) run: &'static RunInfo,
    devices: Vec<Arc<Device>>,
    pub(crate) fds: Table,
    /// Memory that would be locked.
    pub(crate) locked: Locked,
    /// The control socket's descriptor.
    listener: OnceLock<RawFd>,
}

static CURRENT: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());

fn stored() -> Option<&'static Process> {
    let process = CURRENT.load(Ordering::Acquire);
    // SAFETY: a pointer that was stored came from a leaked box and is never freed.
    unsafe { process.as_ref() }
}

/// The state of this process, if it has opened a device.
pub(crate) fn current() -> Option<&'static Process> {
    stored().filter(|process| process.pid == std::process::id())
}

/// The state of this process, made if need be.
fn current_or_new() -> Option<&'static Process> {
    if let Some(process) = current() {
        return Some(process);
    }
    let run = run()?;
    let before = CURRENT.load(Ordering::Acquire);
    let made = Box::into_raw(Box::new(Process::new(run)));
    match CURRENT.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: a C function without captured state, to be called in forked children.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
            current().inspect(|process| process.listen())
        }
        Err(_) => {
            // Another thread was faster.
            // SAFETY: the box was made above and stored nowhere.
            drop(unsafe { Box::from_raw(made) });
            current()
        }
    }
}

unsafe extern "C" fn after_fork_in_child() {
    let Some(process) = stored() else { return };
    if process.pid == std::process::id() {
        return;
    }
    for device in &process.devices {
        if let Some(engine) = device.started() {
            engine.after_fork_in_child();
        }
    }
    // Clients must not find a socket at which nobody answers.
    if let Some(fd) = process.listener.get() {
        close_raw(*fd);
    }
}

/// Closes a descriptor without going through the interposed function.
pub(crate) fn close_raw(fd: RawFd) {
    // SAFETY: the caller owns the descriptor, and no table names it any more.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// What libefa says about itself when it opens a device; older ones say less.
pub(crate) fn ucontext_request(bytes: &[u8]) -> EfaAllocUcontext {
    use zerocopy::IntoBytes;
    let mut request = EfaAllocUcontext::default();
    let known = bytes.len().min(size_of::<EfaAllocUcontext>());
    request.as_mut_bytes()[..known].copy_from_slice(&bytes[..known]);
    request
}

/// Opens device `index`.
pub(crate) fn open_device(index: u32, cloexec: bool) -> Result<RawFd, i32> {
    current_or_new().ok_or(libc::ENXIO)?.open(index, cloexec)
}

const MEMFD_NAME: &std::ffi::CStr = c"soft-efa-uverbs";

/// A device file as it was found behind a descriptor.
pub(crate) enum DeviceFile {
    /// Not ours.
    Foreign,
    /// Inherited from the process that forked this one.
    Inherited,
    /// Ours.
    Own(&'static Process, Arc<Context>),
}

/// What device file `fd` is.
pub(crate) fn device_file(fd: RawFd) -> DeviceFile {
    if !fds::is_marked(fd) {
        return DeviceFile::Foreign;
    }
    let own = current().and_then(|process| match process.fds.get(fd) {
        Some(Kind::Device(context)) => Some((process, context)),
        _ => None,
    });
    match own {
        Some((process, context)) => DeviceFile::Own(process, context),
        None if is_memfd(fd) => DeviceFile::Inherited,
        None => DeviceFile::Foreign,
    }
}

/// Whether `fd` is a file of events.
pub(crate) fn is_event_file(fd: RawFd) -> bool {
    let kind = current().and_then(|process| process.fds.get(fd));
    matches!(kind, Some(Kind::Channel(_) | Kind::AsyncEvent { .. }))
}

/// Whether `fd` is a device file of any process.
fn is_memfd(fd: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|target| {
        target
            .as_os_str()
            .as_encoded_bytes()
            .starts_with(b"/memfd:soft-efa-uverbs")
    })
}

impl Process {
    pub(super) fn new(run: &'static RunInfo) -> Self {
        let options = &run.options;
        Self {
            pid: std::process::id(),
            run,
            devices: (0..options.devices)
                .map(|index| Device::new(index, options))
                .collect(),
            fds: Table::default(),
            locked: Locked::default(),
            listener: OnceLock::new(),
        }
    }

    /// Opens device `index`.
    pub(super) fn open(&'static self, index: u32, cloexec: bool) -> Result<RawFd, i32> {
        let device = self.devices.get(index as usize).ok_or(libc::ENXIO)?;
        let flags = if cloexec { libc::MFD_CLOEXEC } else { 0 };
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(MEMFD_NAME.as_ptr(), flags) };
        if fd == -1 {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EMFILE));
        }
        let context = Context::new(self, device.clone());
        self.fds.insert(fd, Kind::Device(Arc::new(context)));
        Ok(fd)
    }

    /// Takes back a descriptor of ours that the program has not learned of.
    pub(crate) fn take_back(&self, fd: RawFd) {
        // What it was is dropped before the number can be somebody else's.
        drop(self.fds.remove(fd));
        close_raw(fd);
    }

    /// The device with this name.
    fn device(&self, name: &str) -> Option<&Arc<Device>> {
        self.devices.iter().find(|device| device.name == name)
    }

    fn selected(&self, name: Option<&str>) -> Result<Vec<&Arc<Device>>, String> {
        match name {
            None => Ok(self.devices.iter().collect()),
            Some(name) => self
                .device(name)
                .map(|device| vec![device])
                .ok_or(format!("there is no device {name}")),
        }
    }

    /// Opens the control socket. Without it the device works all the same.
    fn listen(&'static self) {
        let server = match ctl::Server::bind(&self.run.dir) {
            Ok(server) => server,
            Err(error) => {
                if self.run.options.trace {
                    eprintln!("soft-efa: no control socket: {error}");
                }
                return;
            }
        };
        let _ = self.listener.set(server.as_raw_fd());
        // SAFETY: a C function without captured state.
        unsafe { libc::atexit(remove_socket) };
        let spawned = without_signals(|| {
            std::thread::Builder::new()
                .name("soft-efa-ctl".to_owned())
                .stack_size(256 << 10)
                .spawn(move || server.serve(self))
        });
        if let Err(error) = spawned
            && self.run.options.trace
        {
            eprintln!("soft-efa: no control thread: {error}");
        }
    }
}

extern "C" fn remove_socket() {
    if let Some(process) = current() {
        // A socket that stays is one that nobody answers; clients see that.
        let _ = std::fs::remove_file(ctl::socket_path(&process.run.dir, process.pid));
    }
}

/// Runs `start`, whose new thread inherits a mask that blocks every signal: they are the
/// program's.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets have room; `all` is filled before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    let result = start();
    // SAFETY: the first call filled `old`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    result
}

impl ctl::Control for Process {
    fn counters(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
        let mut sum = BTreeMap::new();
        for device in self.selected(device)? {
            for (name, value) in device
                .started()
                .map(|engine| engine.counters())
                .unwrap_or_default()
            {
                *sum.entry(name).or_default() += value;
            }
        }
        Ok(sum)
    }

    fn objects(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
        let mut sum = BTreeMap::new();
        for device in self.selected(device)? {
            for (name, value) in device.objects() {
                *sum.entry(name).or_default() += value;
            }
        }
        Ok(sum)
    }

    fn set_faults(&self, device: Option<&str>, spec: &str) -> Result<(), String> {
        let plan: FaultPlan = spec
            .parse()
            .map_err(|error| format!("the fault plan is not understood: {error}"))?;
        for device in self.selected(device)? {
            device
                .engine()
                .map_err(|_| format!("{} can't start", device.name))?
                .set_faults(plan.clone());
        }
        Ok(())
    }

    fn pause(&self, device: Option<&str>, paused: bool) -> Result<(), String> {
        for device in self.selected(device)? {
            device
                .engine()
                .map_err(|_| format!("{} can't start", device.name))?
                .set_paused(paused);
        }
        Ok(())
    }

    fn is_device(&self, name: &str) -> bool {
        self.device(name).is_some()
    }
}

/// The program closes `fd`: called before the descriptor is closed. What must be dropped after
/// that is returned.
pub(crate) fn closing(fd: RawFd) -> Option<Kind> {
    current()?.fds.remove(fd)
}

/// The program has made `new` another descriptor for `old`.
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    if old == new {
        return;
    }
    let Some(process) = current() else { return };
    let kind = process.fds.get(old);
    drop(process.fds.remove(new));
    if let Some(kind) = kind {
        process.fds.insert(new, kind);
    }
}

/// Every descriptor from `first` to `last` that is ours.
pub(crate) fn own_between(first: RawFd, last: u32) -> Vec<RawFd> {
    let Some(process) = current() else {
        return Vec::new();
    };
    process
        .fds
        .all()
        .into_iter()
        .map(|(fd, _)| fd)
        .filter(|fd| *fd >= first && *fd as u32 <= last)
        .collect()
}

/// Whether the run offers attribute ioctls.
pub(crate) fn offers_ioctl(process: &Process) -> bool {
    process.run.options.abi == Abi::Ioctl
}
