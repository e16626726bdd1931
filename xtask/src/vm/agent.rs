//! The part of this program that runs in a guest, as its first process: it loads the driver, then
//! runs what it is told to.
//!
//! The guest's root is this machine's, read-only, with everything that is written kept in the
//! guest's memory; so this very program is there, too.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::protocol::{Frame, Kind, Program};

/// The serial line's name.
pub const LINE: &str = "soft-efa.agent";

/// Where programs in the guest ask the devices' server.
pub const ASK_SOCKET: &str = "/run/soft-efa.sock";

/// The line, for several threads.
type Line = Arc<Mutex<File>>;

fn send(line: &Line, frame: &Frame) {
    let mut line = line.lock().unwrap_or_else(PoisonError::into_inner);
    // Without a host nobody is there to be told.
    let _ = frame.write(&mut *line);
}

/// Serves the host until it is gone. `modules` are loaded first.
pub fn run(modules: &[PathBuf]) -> Result<ExitCode> {
    for module in modules {
        load(module)?;
    }
    let mut file = open_line()?;
    let line: Line = Arc::new(Mutex::new(file.try_clone()?));
    let askers = Arc::new(Askers::default());
    listen(line.clone(), askers.clone())?;
    send(&line, &Frame::new(Kind::Ready, 0, []));
    let mut inputs: HashMap<u32, ChildStdin> = HashMap::new();
    let mut pids: HashMap<u32, i32> = HashMap::new();
    while let Some(frame) = Frame::read(&mut file)? {
        match frame.kind {
            Kind::Run => match start(&frame) {
                Ok(mut child) => {
                    pids.insert(frame.id, child.id() as i32);
                    if let Some(input) = child.stdin.take() {
                        inputs.insert(frame.id, input);
                    }
                    follow(line.clone(), frame.id, child);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    send(&line, &Frame::new(Kind::Failed, frame.id, why));
                }
            },
            Kind::Signal => {
                if let (Some(pid), Some(signal)) = (pids.get(&frame.id), frame.number()) {
                    // SAFETY: kill takes numbers alone. The group is the program's.
                    unsafe { libc::kill(-pid, signal) };
                }
            }
            Kind::Input => {
                if frame.body.is_empty() {
                    inputs.remove(&frame.id);
                } else if let Some(input) = inputs.get_mut(&frame.id)
                    && input.write_all(&frame.body).is_err()
                {
                    inputs.remove(&frame.id);
                }
            }
            Kind::Answer => askers.answer(frame.id, frame.body),
            _ => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Loads a kernel module.
fn load(path: &Path) -> Result<()> {
    use std::os::fd::AsRawFd;
    let file = File::open(path).with_context(|| format!("can't open {}", path.display()))?;
    // SAFETY: a system call with a descriptor, a C string without parameters, and no flags.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        bail!("can't load {}: {error}", path.display());
    }
    Ok(())
}

fn open_line() -> Result<File> {
    let ends = Instant::now() + Duration::from_secs(30);
    loop {
        for port in fs::read_dir("/sys/class/virtio-ports")
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = fs::read_to_string(port.path().join("name")).unwrap_or_default();
            if name.trim() == LINE {
                let device = Path::new("/dev").join(port.file_name());
                return File::options()
                    .read(true)
                    .write(true)
                    .open(&device)
                    .with_context(|| format!("can't open {}", device.display()));
            }
        }
        if Instant::now() > ends {
            bail!("there is no serial line called {LINE}");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn start(frame: &Frame) -> Result<Child> {
    let program = Program::from_bytes(&frame.body).context("a program that can't be read")?;
    let (name, rest) = program.words.split_first().context("no program at all")?;
    let mut command = Command::new(name);
    command
        .args(rest)
        .env_clear()
        .envs(program.environment)
        .current_dir(&program.folder)
        .stdin(if program.input {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
        .spawn()
        .with_context(|| format!("can't run {name} in {}", program.folder))
}

/// Passes on what a program prints, then how it ends.
fn follow(line: Line, id: u32, mut child: Child) {
    let pass_on = |stream: Option<Box<dyn Read + Send>>, kind: Kind| {
        let line = line.clone();
        thread::spawn(move || {
            let Some(mut stream) = stream else { return };
            let mut bytes = [0; 32 << 10];
            while let Ok(count) = stream.read(&mut bytes)
                && count > 0
            {
                send(&line, &Frame::new(kind, id, &bytes[..count]));
            }
        })
    };
    let out = child
        .stdout
        .take()
        .map(|stream| Box::new(stream) as Box<dyn Read + Send>);
    let err = child
        .stderr
        .take()
        .map(|stream| Box::new(stream) as Box<dyn Read + Send>);
    let readers = [pass_on(out, Kind::Output), pass_on(err, Kind::Error)];
    let line = line.clone();
    thread::spawn(move || {
        let status = child.wait().map_or(256, |status| status.into_raw());
        // Something that it has left running may hold its output open for ever.
        let ends = Instant::now() + Duration::from_secs(2);
        while !readers.iter().all(thread::JoinHandle::is_finished) && Instant::now() < ends {
            thread::sleep(Duration::from_millis(2));
        }
        send(&line, &Frame::new(Kind::Ended, id, status.to_le_bytes()));
    });
}

/// Programs that wait for an answer of the devices' server.
#[derive(Default)]
struct Askers {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    last: u32,
    answers: HashMap<u32, mpsc::Sender<Vec<u8>>>,
}

impl Askers {
    fn ask(&self, line: &Line, question: &str) -> Vec<u8> {
        let (sender, answer) = mpsc::channel();
        let id = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.last = waiting.last.wrapping_add(1);
            let id = waiting.last;
            waiting.answers.insert(id, sender);
            id
        };
        send(line, &Frame::new(Kind::Ask, id, question));
        let gone = || br#"{"error":"the host does not answer"}"#.to_vec();
        answer
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| gone())
    }

    fn answer(&self, id: u32, body: Vec<u8>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = waiting.answers.remove(&id) {
            // An asker that is gone wants no answer.
            let _ = sender.send(body);
        }
    }
}

/// Lets programs ask.
fn listen(line: Line, askers: Arc<Askers>) -> Result<()> {
    let listener = UnixListener::bind(ASK_SOCKET).context("can't listen for programs")?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (line, askers) = (line.clone(), askers.clone());
            thread::spawn(move || {
                let Ok(mut writer) = stream.try_clone() else {
                    return;
                };
                for question in BufReader::new(stream).lines().map_while(Result::ok) {
                    let mut answer = askers.ask(&line, &question);
                    answer.push(b'\n');
                    if writer.write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    Ok(())
}
