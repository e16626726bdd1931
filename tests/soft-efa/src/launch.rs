//! Starts programs on soft-efa: a run directory and an environment.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::options::Options;
use crate::{needed, sysfs, uverbs};

/// The variable that holds the run directory; a process in which it is set is under soft-efa.
pub const DIR_VAR: &str = "SOFT_EFA_DIR";
/// The variable that holds the text form of [`Options`].
pub const OPTIONS_VAR: &str = "SOFT_EFA_OPTIONS";
/// The variable that holds the path of soft-efa's library, so that a program of a run can start
/// others with other options.
pub const PRELOAD_VAR: &str = "SOFT_EFA_PRELOAD";

/// In a virtual machine of `cargo xtask vm`: the socket of the devices' server.
pub const HOST_VAR: &str = "SOFT_EFA_HOST";

const PREFIX: &str = "soft-efa-";

/// A run directory. Commands that were prepared by [`Run::apply`] need it while they run; it is
/// removed on drop.
///
/// ```no_run
/// use std::path::Path;
/// use std::process::Command;
/// use soft_efa::{launch::Run, options::Options};
///
/// let run = Run::new(&Options::default(), Path::new("libsoft_efa_preload.so"))?;
/// let mut command = Command::new("ibv_devices");
/// run.apply(&mut command)?;
/// let status = command.status()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Run {
    dir: Dir,
    preload: PathBuf,
    options: Options,
}

impl Run {
    /// Makes a run directory for devices with `options`. `preload_so` is the library
    /// `libsoft_efa_preload.so`.
    ///
    /// Directories of earlier runs that were killed are removed.
    pub fn new(options: &Options, preload_so: &Path) -> io::Result<Self> {
        options
            .check()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let preload = preload_so.canonicalize().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("soft-efa's library {}: {error}", preload_so.display()),
            )
        })?;
        if preload
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .any(|byte| matches!(byte, b':' | b' '))
        {
            // The loader separates the entries of LD_PRELOAD at both and has no way to quote them.
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "LD_PRELOAD can't name {}: its path has a space or a colon in it",
                    preload.display()
                ),
            ));
        }
        let run = Self {
            dir: Dir::new(options)?,
            preload,
            options: options.clone(),
        };
        let dir = run.dir();
        sysfs::write(dir, options)?;
        fs::create_dir(dir.join(crate::ctl::DIR))?;
        let limit = uverbs::locked::limit().to_string();
        fs::write(dir.join(uverbs::locked::FILE), limit)?;
        Ok(run)
    }

    /// Makes a run with other options, with the library of the run that this process was
    /// started in (or that [`PRELOAD_VAR`] names).
    pub fn with_options(options: &Options) -> io::Result<Self> {
        let Some(preload) = std::env::var_os(PRELOAD_VAR) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{PRELOAD_VAR} is not set: start this with `cargo xtask soft-efa`"),
            ));
        };
        Self::new(options, Path::new(&preload))
    }

    /// The run directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The options that the run was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the environment in which `command` finds the devices.
    ///
    /// Variables that `command` already has, or would inherit, are kept where they hold lists:
    /// `LD_PRELOAD` and the options of sanitizers.
    pub fn apply(&self, command: &mut Command) -> io::Result<()> {
        let inherited = |name: &str| -> Option<OsString> {
            let explicit = command.get_envs().find(|(key, _)| *key == OsStr::new(name));
            match explicit {
                Some((_, value)) => value.map(OsStr::to_owned),
                None => std::env::var_os(name),
            }
        };
        let preload_list =
            self.preload_list(inherited("LD_PRELOAD"), asan_runtime(command.get_program()));
        // An AddressSanitizer runtime that was linked as a library refuses to start behind a
        // preloaded library; programs started by the command may be built with it, too. The
        // ThreadSanitizer doesn't see the locks in code that wasn't built for it, ours.
        let asan = with_flag(inherited("ASAN_OPTIONS"), "verify_asan_link_order=0");
        let tsan = with_flag(
            inherited("TSAN_OPTIONS"),
            "ignore_noninstrumented_modules=1",
        );
        command
            .env("LD_PRELOAD", preload_list)
            .env("ASAN_OPTIONS", asan)
            .env("TSAN_OPTIONS", tsan)
            .env("SYSFS_PATH", self.dir().join(sysfs::SYS))
            .env(DIR_VAR, self.dir())
            .env(OPTIONS_VAR, self.options.to_string())
            .env(PRELOAD_VAR, &self.preload)
            // A libibverbs that runs from its build folder looks for provider configuration in
            // the installation prefix and finds none.
            .env("RDMAV_DRIVERS", "efa");
        Ok(())
    }

    fn preload_list(&self, inherited: Option<OsString>, asan: Option<String>) -> OsString {
        let mut list = OsString::new();
        if let Some(asan) = asan {
            list.push(asan);
            list.push(":");
        }
        list.push(&self.preload);
        for entry in inherited.iter().flat_map(|value| {
            value
                .as_encoded_bytes()
                .split(|byte| matches!(byte, b':' | b' '))
                .map(<[u8]>::to_vec)
        }) {
            use std::os::unix::ffi::OsStringExt;
            let entry = OsString::from_vec(entry);
            // A run inside a run replaces the outer one.
            let ours = Path::new(&entry).file_name() == self.preload.file_name();
            if !entry.is_empty() && !ours {
                list.push(":");
                list.push(entry);
            }
        }
        list
    }
}

/// A directory of a run, which is removed on drop.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    /// Held locked as long as the run lives, so that others know that the directory is in use.
    _lock: File,
}

impl Dir {
    /// Makes one, and removes those of earlier runs that were killed.
    ///
    /// # Errors
    ///
    /// Whatever the system says when it can't be made.
    pub fn new(options: &Options) -> io::Result<Self> {
        let parent = parent_dir();
        remove_stale(&parent);
        let path = make_dir(&parent)?;
        let locked = lock(&path).and_then(|lock| {
            fs::write(path.join("options"), options.to_string())?;
            Ok(lock)
        });
        match locked {
            Ok(_lock) => Ok(Self { path, _lock }),
            Err(error) => {
                // Nothing to lose: the directory is ours and has nothing of anybody's in it.
                let _ = fs::remove_dir_all(&path);
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A directory that can't be removed now is stale for the next run.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The run directories of this user, the oldest name first: of the run that this process
/// belongs to alone, if it belongs to one.
pub fn runs() -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VAR) {
        return vec![PathBuf::from(dir)];
    }
    // SAFETY: geteuid takes no arguments and can't fail.
    let me = unsafe { libc::geteuid() };
    let mut dirs: Vec<PathBuf> = fs::read_dir(std::env::temp_dir())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(PREFIX.as_bytes())
                && entry
                    .metadata()
                    .is_ok_and(|meta| meta.is_dir() && meta.uid() == me)
        })
        .map(|entry| entry.path())
        .collect();
    dirs.sort();
    dirs
}

/// A sanitizer's options with one more, unless they have it.
fn with_flag(options: Option<OsString>, flag: &str) -> OsString {
    let mut options = options.unwrap_or_default();
    let has = options
        .as_encoded_bytes()
        .split(|byte| *byte == b':')
        .any(|one| one == flag.as_bytes());
    if !has {
        if !options.is_empty() {
            options.push(":");
        }
        options.push(flag);
    }
    options
}

/// Where run directories are made. libibverbs keeps paths of at most 256 bytes, and what is below
/// a run directory takes up to a hundred of them.
fn parent_dir() -> PathBuf {
    let parent = std::env::temp_dir();
    if parent.as_os_str().len() > 120 {
        PathBuf::from("/tmp")
    } else {
        parent
    }
}

fn make_dir(parent: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let mut salt = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    loop {
        let dir = parent.join(format!("{PREFIX}{}-{salt:x}", std::process::id()));
        // Private to the user, as the files below name what the run's processes trust.
        match fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                salt = salt.wrapping_add(1)
            }
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("can't make the run directory {}: {error}", dir.display()),
                ));
            }
        }
    }
}

/// Opens and locks the directory's lock file; `WouldBlock` if somebody else holds it.
fn lock(dir: &Path) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join("lock"))?;
    // SAFETY: flock gets a descriptor that `file` keeps open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Removes run directories of this user whose launcher is gone and whose programs are, too.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    // SAFETY: geteuid takes no arguments and can't fail.
    let me = unsafe { libc::geteuid() };
    for entry in entries.flatten() {
        let dir = entry.path();
        let ours = entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
            && entry
                .metadata()
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == me)
            && dir.join("options").is_file();
        // The lock is held until the directory is gone, so that two cleaners don't meet.
        if ours
            && let Ok(_lock) = lock(&dir)
            && !in_use(&dir)
        {
            // Somebody else's leftovers must not stop this run.
            let _ = fs::remove_dir_all(&dir);
        }
    }
}

/// Whether a process runs with `dir` in its environment (its launcher was killed).
fn in_use(dir: &Path) -> bool {
    let mut wanted = DIR_VAR.as_bytes().to_vec();
    wanted.push(b'=');
    wanted.extend_from_slice(dir.as_os_str().as_encoded_bytes());
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    processes.flatten().any(|process| {
        fs::read(process.path().join("environ")).is_ok_and(|environment| {
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted)
        })
    })
}

/// The AddressSanitizer library that `program` was linked with: it must come first.
fn asan_runtime(program: &OsStr) -> Option<String> {
    let names = needed::libraries(&find_program(program)?)?;
    names
        .into_iter()
        .find(|name| name.starts_with("libasan.so"))
}

fn find_program(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return Some(path.to_owned());
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(path))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> (tempfile::NamedTempFile, Run) {
        let library = tempfile::NamedTempFile::new().unwrap();
        let run = Run::new(&Options::default(), library.path()).unwrap();
        (library, run)
    }

    fn variable(command: &Command, name: &str) -> String {
        let (_, value) = command
            .get_envs()
            .find(|(key, _)| *key == OsStr::new(name))
            .unwrap();
        value.unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_run_directory_lives_as_long_as_its_run() {
        let (_library, run) = run();
        let dir = run.dir().to_owned();
        assert!(dir.join("sys/class/infiniband/efa_0").is_dir());
        drop(run);
        assert!(!dir.exists());
    }

    #[test]
    fn the_preload_list_keeps_what_the_command_had() {
        let (library, run) = run();
        let mut command = Command::new("/bin/true");
        command.env("LD_PRELOAD", "liba.so libb.so");
        run.apply(&mut command).unwrap();
        let ours = library.path().canonicalize().unwrap();
        assert_eq!(
            variable(&command, "LD_PRELOAD"),
            format!("{}:liba.so:libb.so", ours.display())
        );
        // Applying it twice names it once.
        run.apply(&mut command).unwrap();
        assert_eq!(
            variable(&command, "LD_PRELOAD"),
            format!("{}:liba.so:libb.so", ours.display())
        );
        assert_eq!(
            variable(&command, OPTIONS_VAR).parse(),
            Ok(Options::default())
        );
    }

    #[test]
    fn sanitizers_keep_their_options() {
        assert_eq!(with_flag(None, "a=1"), "a=1");
        assert_eq!(with_flag(Some("b=2".into()), "a=1"), "b=2:a=1");
        assert_eq!(with_flag(Some("a=1:b=2".into()), "a=1"), "a=1:b=2");
    }

    #[test]
    fn a_directory_that_a_killed_run_left_is_removed_by_the_next() {
        let (_library, run) = run();
        let left = run
            .dir()
            .with_file_name(format!("{PREFIX}killed-{}", std::process::id()));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("options"), "").unwrap();
        let (_library2, _run2) = self::run();
        assert!(!left.exists());
        assert!(run.dir().exists(), "a directory in use must stay");
    }

    #[test]
    fn a_missing_library_is_named() {
        let error = Run::new(&Options::default(), Path::new("/nonexistent/lib.so")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/lib.so"));
    }
}
