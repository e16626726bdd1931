//! Paths as programs write them: relative to a directory, with dots and doubled slashes.
//!
//! A walk that starts in a directory of soft-efa's tree may leave it, and one that starts outside may
//! enter it: tools that visit a hierarchy open one directory relative to the other.

use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::paths::{self, Route};
use super::process::{self, RunInfo};

/// Where `path` leads that is relative to `dirfd`, as for `openat`.
pub fn route_at(dirfd: RawFd, path: &[u8]) -> Route {
    match path.first() {
        None => Route::Real,
        Some(b'/') => paths::route(path),
        Some(_) => relative(dirfd, path).unwrap_or(Route::Real),
    }
}

fn relative(dirfd: RawFd, path: &[u8]) -> Option<Route> {
    let run = process::run()?;
    let mut room = [0; libc::PATH_MAX as usize];
    let base = directory(dirfd, &mut room)?;
    let visible = paths::unroute_in(run, base);
    let in_tree = visible.is_some();
    let mut full = match &visible {
        Some(visible) => visible.clone(),
        None if base == b"/" => Vec::new(),
        None if starts_in(base, b"/sys") || starts_in(base, b"/dev") => base.to_vec(),
        None => return None,
    };
    full.push(b'/');
    full.extend_from_slice(path);
    match paths::route(&full) {
        // Out of the tree again, to a place that it does not have.
        Route::Real if in_tree => Some(Route::Other(clean(run, &full).unwrap_or(full))),
        other => Some(other),
    }
}

/// The path of an open directory, or of the working directory. Nothing is allocated: most are none
/// of ours.
fn directory(dirfd: RawFd, room: &mut [u8]) -> Option<&[u8]> {
    let size = if dirfd == libc::AT_FDCWD {
        // SAFETY: the kernel writes at most as many bytes as there is room.
        let size = unsafe { libc::syscall(libc::SYS_getcwd, room.as_mut_ptr(), room.len()) };
        // The zero at the end counts.
        size - 1
    } else {
        let link = Link::new(dirfd)?;
        // SAFETY: the path is a C string, and there is room for as many bytes as stated.
        unsafe {
            libc::syscall(
                libc::SYS_readlinkat,
                libc::AT_FDCWD,
                link.as_ptr(),
                room.as_mut_ptr(),
                room.len(),
            )
        }
    };
    let path = room.get(..usize::try_from(size).ok()?)?;
    (path.first() == Some(&b'/')).then_some(path)
}

/// `/proc/self/fd/N` as a C string.
struct Link([u8; 32]);

impl Link {
    fn new(fd: RawFd) -> Option<Self> {
        use std::io::Write;
        u32::try_from(fd).ok()?;
        let mut link = [0; 32];
        write!(&mut link[..31], "/proc/self/fd/{fd}").ok()?;
        Some(Self(link))
    }

    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }
}

/// What the program should take the directory behind `fd` (or the working directory) for, if it is
/// in the tree.
pub fn visible_directory(fd: RawFd) -> Option<Vec<u8>> {
    let mut room = [0; libc::PATH_MAX as usize];
    paths::unroute(directory(fd, &mut room)?)
}

fn starts_in(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

/// The same place without empty components, `.` and `..`; `None` if there are none.
pub(super) fn clean(run: &RunInfo, path: &[u8]) -> Option<Vec<u8>> {
    let mut parts = path.split(|byte| *byte == b'/').skip(1).peekable();
    let mut done = Vec::with_capacity(path.len());
    let mut changed = false;
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            b"" | b"." | b".." => {
                if part == b".." {
                    done = parent(run, done);
                }
                if last {
                    // A slash at the end demands a directory.
                    done.push(b'/');
                }
                changed |= !(last && part.is_empty());
            }
            _ => {
                done.push(b'/');
                done.extend_from_slice(part);
            }
        }
    }
    changed.then_some(done)
}

/// The directory that `path/..` is, which the kernel takes from where links lead.
fn parent(run: &RunInfo, path: Vec<u8>) -> Vec<u8> {
    let place = match paths::route_clean(run, &path) {
        Route::Other(place) => place,
        Route::Real | Route::Device(_) => path.clone(),
    };
    let mut physical = std::fs::canonicalize(Path::new(OsStr::from_bytes(&place))).map_or(
        // Whoever opens it sees that it does not exist.
        path,
        |resolved| {
            let resolved = resolved.into_os_string().into_vec();
            paths::unroute_in(run, &resolved).unwrap_or(resolved)
        },
    );
    let end = physical.iter().rposition(|byte| *byte == b'/');
    physical.truncate(end.unwrap_or(0));
    physical
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn run() -> RunInfo {
        RunInfo {
            dir: "/tmp/run".into(),
            options: Options::default(),
        }
    }

    #[test]
    fn paths_are_cleaned() {
        for (path, expected) in [
            ("/sys/class", None),
            ("/sys/class/", None),
            ("/sys//class", Some("/sys/class")),
            ("//sys/./class/.", Some("/sys/class/")),
            ("/sys/nowhere/../class", Some("/sys/class")),
            ("/sys/nowhere/..", Some("/sys/")),
            ("/..", Some("/")),
            ("/../dev/null", Some("/dev/null")),
        ] {
            let cleaned = clean(&run(), path.as_bytes());
            assert_eq!(cleaned.as_deref(), expected.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn directories_have_paths() {
        let mut room = [0; libc::PATH_MAX as usize];
        let cwd = std::env::current_dir().unwrap();
        let found = directory(libc::AT_FDCWD, &mut room).unwrap();
        assert_eq!(found, cwd.as_os_str().as_bytes());
        let file = std::fs::File::open("/").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(directory(fd, &mut room), Some(&b"/"[..]));
        assert_eq!(directory(-1, &mut room), None);
    }
}
