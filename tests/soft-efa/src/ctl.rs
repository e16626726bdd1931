//! The control socket: reads counters and changes faults of a process while it runs.
//!
//! Each process that opened a device listens on `$SOFT_EFA_DIR/ctl/PID.sock`. A request is a
//! line, the answer is a line of JSON: `{"ok": …}` or `{"error": "…"}`.
//!
//! | request | answer |
//! |---|---|
//! | `counters [DEVICE]` | the counters, by name; without a device, summed over all |
//! | `objects [DEVICE]` | live objects, by kind (`pd`, `mr`, `cq`, `qp`, `ah`, `channel`, `context`) |
//! | `faults [DEVICE] SPEC` | replaces the fault plan |
//! | `pause [DEVICE]`, `resume [DEVICE]` | stops the device, and lets it go on |
//! | `options [OPTIONS]` | puts other devices in their places; only where they serve virtual machines |

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::engine::net::out_of_the_way;

/// The directory of the sockets, below the run directory.
pub const DIR: &str = "ctl";

/// Why a request was not done.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// Nobody listens: the process does not exist, or has not opened a device yet.
    #[error(
        "process {pid} can't be reached under {dir}: {source} (it listens once it has opened a device)"
    )]
    Connect {
        /// The process.
        pid: u32,
        /// The run directory.
        dir: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// This process is not under soft-efa.
    #[error(
        "this process does not run on soft-efa: {} is not set",
        crate::launch::DIR_VAR
    )]
    NotOnSoftEfa,
    /// The connection broke.
    #[error("the control connection broke: {0}")]
    Io(#[from] io::Error),
    /// The other side refused the request.
    #[error("{0}")]
    Refused(String),
    /// The answer is not one.
    #[error("the answer {0:?} is not understood")]
    Answer(String),
}

/// A connection to the control socket of one process.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to process `pid` of the run in `dir`.
    pub fn connect(dir: &Path, pid: u32) -> Result<Self, CtlError> {
        let connect = || -> io::Result<UnixStream> {
            let stream = short_path(&socket_path(dir, pid), UnixStream::connect)?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            Ok(stream)
        };
        match connect() {
            Ok(stream) => Ok(Self {
                stream: BufReader::new(stream),
            }),
            Err(source) => Err(CtlError::Connect {
                pid,
                dir: dir.to_owned(),
                source,
            }),
        }
    }

    /// Connects to the server of the devices of this virtual machine, through the socket that
    /// [`HOST_VAR`](crate::launch::HOST_VAR) names.
    fn host(socket: &Path) -> Result<Self, CtlError> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Connects to the devices of this process: to itself, or, in a virtual machine, to the server
    /// that all processes share.
    pub fn own() -> Result<Self, CtlError> {
        if let Some(socket) = std::env::var_os(crate::launch::HOST_VAR) {
            return Self::host(Path::new(&socket));
        }
        let dir = std::env::var_os(crate::launch::DIR_VAR).ok_or(CtlError::NotOnSoftEfa)?;
        Self::connect(Path::new(&dir), std::process::id())
    }

    /// The processes of the run in `dir` that have opened a device and still live.
    pub fn processes(dir: &Path) -> io::Result<Vec<u32>> {
        let mut pids: Vec<u32> = fs::read_dir(dir.join(DIR))?
            .flatten()
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".sock")?
                    .parse()
                    .ok()
            })
            .filter(|pid: &u32| Path::new("/proc").join(pid.to_string()).exists())
            .collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Sends one request line and returns what came after `ok`.
    pub fn request(&mut self, line: &str) -> Result<Value, CtlError> {
        // Two lines would be two requests.
        let line = line.replace('\n', " ");
        self.stream
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        if self.stream.read_line(&mut answer)? == 0 {
            return Err(CtlError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let Ok(Value::Object(mut object)) = serde_json::from_str(&answer) else {
            return Err(CtlError::Answer(answer));
        };
        if let Some(error) = object.get("error").and_then(Value::as_str) {
            return Err(CtlError::Refused(error.to_owned()));
        }
        object.remove("ok").ok_or(CtlError::Answer(answer))
    }

    fn numbers(&mut self, line: &str) -> Result<BTreeMap<String, u64>, CtlError> {
        let answer = self.request(line)?;
        let text = answer.to_string();
        serde_json::from_value(answer).map_err(|_| CtlError::Answer(text))
    }

    /// The counters of all devices of the process, summed.
    pub fn counters(&mut self) -> Result<BTreeMap<String, u64>, CtlError> {
        self.numbers("counters")
    }

    /// How many objects of each kind live in the process.
    pub fn objects(&mut self) -> Result<BTreeMap<String, u64>, CtlError> {
        self.numbers("objects")
    }

    /// How many objects of each kind live on one device in the process.
    pub fn objects_of(&mut self, device: &str) -> Result<BTreeMap<String, u64>, CtlError> {
        self.numbers(&format!("objects {device}"))
    }

    /// Replaces the fault plan of every device of the process.
    pub fn set_faults(&mut self, spec: &str) -> Result<(), CtlError> {
        self.request(&format!("faults {spec}")).map(drop)
    }

    /// Stops the devices of the process: nothing is sent, received or completed.
    pub fn pause(&mut self) -> Result<(), CtlError> {
        self.request("pause").map(drop)
    }

    /// Puts devices with other options in their places: where they serve a virtual machine, whose
    /// driver must have let go of them.
    pub fn change(&mut self, options: &str) -> Result<(), CtlError> {
        self.request(&format!("options {options}")).map(drop)
    }

    /// Lets the devices go on.
    pub fn resume(&mut self) -> Result<(), CtlError> {
        self.request("resume").map(drop)
    }
}

/// What the server asks of the process. `device` is a name, or `None` for all devices.
pub trait Control: Send + Sync {
    /// Counters by name.
    fn counters(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String>;
    /// Live objects by kind.
    fn objects(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String>;
    /// Replaces the fault plan.
    fn set_faults(&self, device: Option<&str>, spec: &str) -> Result<(), String>;
    /// Stops the device (`true`) or lets it go on.
    fn pause(&self, device: Option<&str>, paused: bool) -> Result<(), String>;
    /// Puts devices with other options in the places of these, as if cards were changed.
    fn change(&self, options: &str) -> Result<(), String> {
        let _ = options;
        Err("the devices of a program stay as they are until it ends".to_owned())
    }
    /// Whether there is a device of this name.
    fn is_device(&self, name: &str) -> bool;
}

/// Answers one request line.
pub fn answer(control: &dyn Control, line: &str) -> Value {
    let line = line.trim();
    let (verb, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let (first, tail) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let (device, spec) = if control.is_device(first) {
        (Some(first), tail.trim())
    } else {
        (None, rest)
    };
    let nothing_else = |value: Result<Value, String>| match spec {
        "" => value,
        _ => Err(format!(
            "{spec:?} is neither a device nor understood by {verb:?}"
        )),
    };
    let result = match verb {
        "counters" => nothing_else(control.counters(device).map(|numbers| json!(numbers))),
        "objects" => nothing_else(control.objects(device).map(|numbers| json!(numbers))),
        "faults" => control.set_faults(device, spec).map(|()| Value::Null),
        "pause" | "resume" if !spec.is_empty() => nothing_else(Ok(Value::Null)),
        "pause" => control.pause(device, true).map(|()| Value::Null),
        "resume" => control.pause(device, false).map(|()| Value::Null),
        "options" => control.change(rest).map(|()| Value::Null),
        _ => Err(format!(
            "there is no request {verb:?}; there are counters, objects, faults, pause, resume and \
             options"
        )),
    };
    match result {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error }),
    }
}

/// Listens for requests until the process ends. Runs `serve` of the returned server on a thread.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
}

impl Server {
    /// Binds the socket of this process.
    pub fn bind(dir: &Path) -> io::Result<Self> {
        let path = socket_path(dir, std::process::id());
        // A killed process with the same number may have left its socket.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = short_path(&path, UnixListener::bind)?;
        // Programs expect the lowest numbers for themselves.
        let listener = UnixListener::from(out_of_the_way(OwnedFd::from(listener)));
        Ok(Self { listener, path })
    }

    /// The listening descriptor.
    pub(crate) fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.listener.as_raw_fd()
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests, one connection after another, until accepting fails.
    pub fn serve(&self, control: &dyn Control) {
        for stream in self.listener.incoming() {
            match stream {
                // A client that goes away in the middle concerns nobody.
                Ok(stream) => drop(serve_client(stream, control)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The program closed every descriptor, or has too many open.
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(_) => return,
            }
        }
    }
}

fn serve_client(stream: UnixStream, control: &dyn Control) -> io::Result<()> {
    // The next client must not wait forever behind one that says nothing.
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(io::Read::take(stream, 1 << 20));
    let mut line = String::new();
    while reader.read_line(&mut line)? != 0 {
        let mut text = answer(control, &line).to_string();
        text.push('\n');
        writer.write_all(text.as_bytes())?;
        line.clear();
    }
    Ok(())
}

pub(crate) fn socket_path(dir: &Path, pid: u32) -> PathBuf {
    dir.join(DIR).join(format!("{pid}.sock"))
}

/// Socket addresses hold 108 bytes; a longer path is reached through its opened directory.
fn short_path<T>(path: &Path, use_path: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() < 100 {
        return use_path(path.to_owned());
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = fs::File::open(dir)?;
    use_path(
        Path::new("/proc/self/fd")
            .join(dir.as_raw_fd().to_string())
            .join(name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Default)]
    struct Fake(Mutex<Vec<String>>);

    impl Fake {
        fn note(&self, what: String) {
            self.0.lock().unwrap().push(what);
        }
    }

    impl Control for Fake {
        fn counters(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
            let value = if device.is_some() { 1 } else { 2 };
            Ok(BTreeMap::from([("packets".to_owned(), value)]))
        }
        fn objects(&self, _: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
            Ok(BTreeMap::from([("qp".to_owned(), 3)]))
        }
        fn set_faults(&self, device: Option<&str>, spec: &str) -> Result<(), String> {
            if spec == "bad" {
                return Err("no such fault".to_owned());
            }
            self.note(format!("faults {device:?} {spec}"));
            Ok(())
        }
        fn pause(&self, device: Option<&str>, paused: bool) -> Result<(), String> {
            self.note(format!("pause {device:?} {paused}"));
            Ok(())
        }
        fn is_device(&self, name: &str) -> bool {
            name == "efa_0"
        }
    }

    #[test]
    fn a_client_reaches_the_server_of_its_process() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a socket address holds.
        let long = dir.path().join("x".repeat(120));
        fs::create_dir_all(long.join(DIR)).unwrap();
        let server = Server::bind(&long).unwrap();
        let fake = Arc::new(Fake::default());
        let control = fake.clone();
        std::thread::spawn(move || server.serve(&*control));

        let mut client = Client::connect(&long, std::process::id()).unwrap();
        assert_eq!(client.counters().unwrap()["packets"], 2);
        assert_eq!(client.request("counters efa_0").unwrap()["packets"], 1);
        assert_eq!(client.objects().unwrap()["qp"], 3);
        client.set_faults("loss=0.1 delay=1ms").unwrap();
        client.request("faults efa_0 loss=1").unwrap();
        client.pause().unwrap();
        client.resume().unwrap();
        let refused = client.set_faults("bad").unwrap_err().to_string();
        assert_eq!(refused, "no such fault");
        assert!(
            client
                .request("counters efa_7")
                .unwrap_err()
                .to_string()
                .contains("efa_7")
        );
        assert!(
            client
                .request("explode")
                .unwrap_err()
                .to_string()
                .contains("explode")
        );
        let notes = fake.0.lock().unwrap().clone();
        let expected = [
            "faults None loss=0.1 delay=1ms",
            "faults Some(\"efa_0\") loss=1",
            "pause None true",
            "pause None false",
        ];
        assert_eq!(notes, expected);
        assert_eq!(Client::processes(&long).unwrap(), [std::process::id()]);
    }

    #[test]
    fn a_process_that_does_not_listen_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = Client::connect(dir.path(), 1).unwrap_err().to_string();
        assert!(error.contains("process 1"), "{error}");
    }
}
