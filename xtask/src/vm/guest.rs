//! A running guest: its processes on this side, and the line to its agent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use soft_efa::ctl;
use soft_efa::options::Options;

use super::agent;
use super::initramfs::Initramfs;
use super::kernel::Kernel;
use super::monitor::Monitor;
use super::protocol::{Frame, Kind, Program};
use crate::process;

/// A guest that is not there by then does not come: one takes some 15 s on 2 idle cores.
const BOOT: Duration = Duration::from_secs(300);

const INIT: &str = include_str!("init.sh");

/// What a guest is made of.
pub struct Plan<'a> {
    /// QEMU.
    pub monitor: &'a Monitor,
    /// What runs in it.
    pub kernel: &'a Kernel,
    /// The program that serves the devices.
    pub server: &'a Path,
    /// The devices.
    pub options: &'a Options,
    /// Bytes of memory, in MiB.
    pub memory: u32,
    /// Processors.
    pub processors: u32,
    /// Its name in messages.
    pub name: String,
    /// The socket that joins it to another guest, and which of the two it is.
    pub network: Option<(PathBuf, u8)>,
}

/// The address of a guest on the network that joins two.
pub fn address(which: u8) -> String {
    format!("10.0.0.{}", which + 1)
}

/// A process that ends with us, however we end.
struct Companion {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Companion {
    fn start(name: &'static str, command: &mut Command, log: PathBuf) -> Result<Self> {
        let file = File::create(&log).with_context(|| format!("can't write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let parent = std::process::id();
        // SAFETY: between fork and exec only prctl and getppid are called, which are
        // async-signal-safe and get plain numbers.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // Too late for that if we have ended already.
                if libc::getppid() as u32 != parent {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("can't run `{}`", process::shown(command)))?;
        Ok(Self { name, child, log })
    }

    /// An error if it has ended.
    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            bail!(
                "{} ended: {}\n{}",
                self.name,
                process::described(status),
                process::tail(log.trim_end(), 20)
            );
        }
        Ok(())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program in the guest does.
pub enum Event {
    /// It writes to standard output.
    Output(Vec<u8>),
    /// It writes to standard error.
    Error(Vec<u8>),
    /// It has ended.
    Ended(ExitStatus),
    /// It could not be started.
    Failed(String),
}

/// A running guest.
pub struct Guest {
    name: String,
    qemu: Companion,
    server: Companion,
    _files: Companion,
    line: Arc<Mutex<UnixStream>>,
    events: mpsc::Receiver<(u32, Event)>,
    last_id: u32,
    dir: PathBuf,
}

impl Guest {
    /// Boots a guest. Sockets and logs go to `dir`.
    pub fn boot(plan: &Plan<'_>, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let devices = plan.options.devices;
        let mut server = Command::new(plan.server);
        server.arg(dir).arg(plan.options.to_string());
        let mut server =
            Companion::start("the devices' server", &mut server, dir.join("server.log"))?;
        let files_socket = dir.join("files");
        let mut files = plan.monitor.program("usr/libexec/virtiofsd");
        files
            .args([
                "--shared-dir",
                "/",
                "--sandbox",
                "none",
                "--seccomp",
                "none",
                "--readonly",
            ])
            .args([
                "--cache",
                "always",
                "--no-announce-submounts",
                "--log-level",
                "error",
            ])
            .arg("--socket-path")
            .arg(&files_socket);
        let mut files = Companion::start("virtiofsd", &mut files, dir.join("files.log"))?;
        let sockets: Vec<PathBuf> = (0..devices)
            .map(|index| soft_efa::pci::socket(dir, index))
            .chain([files_socket.clone()])
            .collect();
        wait_for(&sockets, || {
            server.check()?;
            files.check()
        })?;
        let initrd = dir.join("initrd");
        fs::write(&initrd, initramfs(plan, &copy_of_this_program(dir)?)?)
            .with_context(|| format!("can't write {}", initrd.display()))?;
        let agent_socket = dir.join("agent");
        let listener = UnixListener::bind(&agent_socket)?;
        listener.set_nonblocking(true)?;
        let mut qemu = plan.monitor.qemu();
        arguments(&mut qemu, plan, dir, &initrd, &files_socket, &agent_socket);
        let mut qemu = Companion::start("QEMU", &mut qemu, dir.join("qemu.log"))?;
        let ends = Instant::now() + BOOT;
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            qemu.check()?;
            ensure!(Instant::now() < ends, "QEMU does not connect");
            thread::sleep(Duration::from_millis(5));
        };
        stream.set_nonblocking(false)?;
        let (sender, events) = mpsc::channel();
        let line = Arc::new(Mutex::new(stream.try_clone()?));
        let (ready, is_ready) = mpsc::channel();
        let answering = line.clone();
        let control = (dir.to_path_buf(), server.child.id());
        thread::spawn(move || listen(stream, &answering, &sender, &ready, &control));
        let mut guest = Self {
            name: plan.name.clone(),
            qemu,
            server,
            _files: files,
            line,
            events,
            last_id: 0,
            dir: dir.to_path_buf(),
        };
        loop {
            match is_ready.recv_timeout(Duration::from_millis(100)) {
                Ok(()) => return Ok(guest),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < ends => {
                    guest.check()?;
                }
                Err(_) => {
                    guest.check()?;
                    bail!("{} does not come up\n{}", guest.name, guest.console());
                }
            }
        }
    }

    /// The end of what the kernel has said.
    pub fn console(&self) -> String {
        let bytes = fs::read(self.dir.join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        process::tail(text.trim_end(), 30)
    }

    /// What the devices' server has said.
    pub fn server_log(&self) -> String {
        fs::read_to_string(self.dir.join("server.log")).unwrap_or_default()
    }

    /// An error if one of its processes has ended.
    pub fn check(&mut self) -> Result<()> {
        let result = self.qemu.check().and_then(|()| self.server.check());
        result
            .with_context(|| format!("{} is gone; its last words:\n{}", self.name, self.console()))
    }

    /// Starts a program and returns its number.
    pub fn start(&mut self, program: &Program) -> Result<u32> {
        self.last_id += 1;
        self.send(&Frame::new(Kind::Run, self.last_id, program.to_bytes()))?;
        Ok(self.last_id)
    }

    /// Sends a signal to a program.
    pub fn signal(&self, id: u32, signal: i32) -> Result<()> {
        self.send(&Frame::new(Kind::Signal, id, signal.to_le_bytes()))
    }

    fn send(&self, frame: &Frame) -> Result<()> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        frame.write(&mut *line).context("the guest can't be told")
    }

    /// Where input for a program goes.
    pub fn input(&self, id: u32) -> Input {
        Input {
            line: self.line.clone(),
            id,
        }
    }

    /// The next thing that a program does; `None` if nothing happens for `patience`.
    pub fn next(&mut self, patience: Duration) -> Result<Option<(u32, Event)>> {
        match self.events.recv_timeout(patience) {
            Ok(event) => Ok(Some(event)),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.check()?;
                Ok(None)
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                // A process that was killed closes its files before its end can be seen.
                thread::sleep(Duration::from_millis(200));
                self.check()?;
                bail!("{}'s agent is gone\n{}", self.name, self.console())
            }
        }
    }
}

/// The standard input of a program in a guest.
pub struct Input {
    line: Arc<Mutex<UnixStream>>,
    id: u32,
}

impl Write for Input {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(32 << 10)];
        if !part.is_empty() {
            let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
            Frame::new(Kind::Input, self.id, part).write(&mut *line)?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        // A guest that is gone needs no end of its input.
        let _ = Frame::new(Kind::Input, self.id, []).write(&mut *line);
    }
}

/// Takes what the agent says, until it is gone.
fn listen(
    mut stream: UnixStream,
    line: &Mutex<UnixStream>,
    events: &mpsc::Sender<(u32, Event)>,
    ready: &mpsc::Sender<()>,
    control: &(PathBuf, u32),
) {
    while let Ok(Some(frame)) = Frame::read(&mut stream) {
        let event = match frame.kind {
            Kind::Ready => {
                let _ = ready.send(());
                continue;
            }
            Kind::Ask => {
                let question = String::from_utf8_lossy(&frame.body).into_owned();
                let answer = Frame::new(Kind::Answer, frame.id, ask(control, &question));
                let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
                if answer.write(&mut *line).is_err() {
                    return;
                }
                continue;
            }
            Kind::Ended => {
                let status = frame.number().unwrap_or(256);
                Event::Ended(ExitStatus::from_raw(status))
            }
            Kind::Output => Event::Output(frame.body),
            Kind::Error => Event::Error(frame.body),
            Kind::Failed => Event::Failed(String::from_utf8_lossy(&frame.body).into_owned()),
            _ => continue,
        };
        if events.send((frame.id, event)).is_err() {
            return;
        }
    }
}

/// Passes a question of a program in the guest on to the devices' server.
fn ask((dir, server): &(PathBuf, u32), question: &str) -> Vec<u8> {
    let answer = ctl::Client::connect(dir, *server).and_then(|mut client| client.request(question));
    match answer {
        Ok(value) => serde_json::json!({ "ok": value }),
        Err(error) => serde_json::json!({ "error": error.to_string() }),
    }
    .to_string()
    .into_bytes()
}

fn wait_for(paths: &[PathBuf], mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let ends = Instant::now() + Duration::from_secs(60);
    while !paths.iter().all(|path| path.exists()) {
        check()?;
        ensure!(Instant::now() < ends, "a server does not start");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Makes a copy of this program that the guest starts: the file that it was started from may have
/// been replaced by a newer build since.
fn copy_of_this_program(dir: &Path) -> Result<PathBuf> {
    let copy = dir.join("xtask");
    fs::copy("/proc/self/exe", &copy)
        .with_context(|| format!("can't copy this program to {}", copy.display()))?;
    Ok(copy)
}

fn initramfs(plan: &Plan<'_>, agent: &Path) -> Result<Vec<u8>> {
    let mut archive = Initramfs::default();
    for dir in [
        "bin", "dev", "proc", "sys", "modules", "host", "layer", "new",
    ] {
        archive.directory(dir);
    }
    archive.device("dev/console", 5, 1);
    archive.device("dev/null", 1, 3);
    let busybox = plan.monitor.busybox();
    let bytes = fs::read(&busybox).with_context(|| format!("can't read {}", busybox.display()))?;
    archive.file("bin/busybox", true, &bytes);
    for module in &plan.kernel.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(module).with_context(|| format!("can't read {}", module.display()))?;
        archive.file(&format!("modules/{name}"), false, &bytes);
    }
    let quoted = format!("'{}'", agent.display().to_string().replace('\'', r"'\''"));
    let network = plan.network.as_ref().map(|(_, which)| address(*which));
    let init = INIT
        .replace("@AGENT@", &quoted)
        .replace("@NET@", &network.unwrap_or_default());
    archive.file("init", true, init.as_bytes());
    Ok(archive.finish())
}

fn arguments(
    qemu: &mut Command,
    plan: &Plan<'_>,
    dir: &Path,
    initrd: &Path,
    files: &Path,
    line: &Path,
) {
    let memory = plan.memory;
    qemu.args(["-machine", "q35,memory-backend=mem,hpet=off", "-cpu", "max"])
        .args(["-accel", "tcg,thread=multi"])
        .args(["-smp", &plan.processors.to_string()])
        .args(["-m", &format!("{memory}M")])
        .args([
            "-object",
            &format!("memory-backend-memfd,id=mem,share=on,size={memory}M"),
        ])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .arg("-serial")
        .arg(format!("file:{}", dir.join("console.log").display()))
        .arg("-qmp")
        .arg(format!(
            "unix:{},server=on,wait=off",
            dir.join("qmp").display()
        ))
        .arg("-kernel")
        .arg(&plan.kernel.image)
        .arg("-initrd")
        .arg(initrd)
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable",
        ])
        .arg("-chardev")
        .arg(format!("socket,id=files,path={}", files.display()))
        .args(["-device", "vhost-user-fs-pci,chardev=files,tag=host"])
        .arg("-chardev")
        .arg(format!("socket,id=line,path={}", line.display()))
        .args(["-device", "virtio-serial-pci"])
        .args([
            "-device",
            &format!("virtserialport,chardev=line,name={}", agent::LINE),
        ]);
    if let Some((socket, which)) = &plan.network {
        let server = if *which == 0 {
            "on"
        } else {
            "off,reconnect-ms=100"
        };
        qemu.arg("-netdev")
            .arg(format!(
                "stream,id=net,addr.type=unix,addr.path={},server={server}",
                socket.display()
            ))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:00:{which:02x}"
            ));
    }
    for index in 0..plan.options.devices {
        let socket = soft_efa::pci::socket(dir, index);
        // Behind a port of its own, so that it can be unplugged.
        qemu.args([
            "-device",
            &format!(
                "pcie-root-port,id=port{index},chassis={},slot={}",
                index + 1,
                index + 1
            ),
        ])
        .arg("-device")
        .arg(
            serde_json::json!({
                "driver": "vfio-user-pci",
                "id": format!("efa{index}"),
                "bus": format!("port{index}"),
                // Registers are read by writing, and the driver spins until the answer is there.
                "x-no-posted-writes": true,
                "socket": { "type": "unix", "path": socket },
            })
            .to_string(),
        );
    }
}
