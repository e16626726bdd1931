//! Which of the program's paths lead to soft-efa.
//!
//! libibverbs finds its tree by `SYSFS_PATH`; other programs name `/sys/class/infiniband` and the
//! like directly, and everybody names `/dev/infiniband`. Both real directories are hidden: a host's
//! own RDMA devices are not part of the run.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::sysfs::{DEV, MIRRORED, MODULES, OLDER, PCI_ROOT, SYS, UVERBS_BASE_MINOR, UVERBS_MAJOR};

use crate::stats;

use super::libefa;
use super::process::{self, RunInfo};
use super::relative;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Where it says.
    Real,
    /// To the file of a device.
    Device(u32),
    /// To another path.
    Other(Vec<u8>),
}

/// Files whose contents depend on the hardware that a libefa knows.
const IDENTIFYING: [&[u8]; 5] = [
    b"modalias",
    b"device",
    b"subsystem_device",
    b"uevent",
    b"config",
];

/// Where `path` leads. Cheap for paths that are none of ours.
pub fn route(path: &[u8]) -> Route {
    if path.first() != Some(&b'/') {
        return Route::Real;
    }
    let odd = |pair: &[u8]| matches!(pair, b"//" | b"/.");
    let is_odd = path.windows(2).any(odd);
    // An allocator that replaces the C library's opens some of these while it is being set up, and
    // would wait for itself if anything here allocated then.
    let never_ours: [&[u8]; 3] = [b"/proc/", b"/etc/", b"/sys/kernel/"];
    if !is_odd && never_ours.iter().any(|prefix| path.starts_with(prefix)) {
        return Route::Real;
    }
    let Some(run) = process::run() else {
        return Route::Real;
    };
    if is_odd && let Some(cleaned) = relative::clean(run, path) {
        return match route_clean(run, &cleaned) {
            // It may lead there by a way that only we have.
            Route::Real if has_parents(path) && may_be_ours(run, path) => Route::Other(cleaned),
            other => other,
        };
    }
    route_clean(run, path)
}

fn has_parents(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == b"..")
}

fn may_be_ours(run: &RunInfo, path: &[u8]) -> bool {
    path.starts_with(b"/sys/")
        || path.starts_with(b"/dev/")
        || path.starts_with(run.dir.as_os_str().as_bytes())
}

/// Where a path leads that has no dots and doubled slashes.
pub(super) fn route_clean(run: &RunInfo, path: &[u8]) -> Route {
    let route = place(run, path);
    let counters = b"/hw_counters/";
    if path.windows(counters.len()).any(|part| part == counters) {
        let file = match &route {
            Route::Other(target) => target,
            _ => path,
        };
        let file = Path::new(OsStr::from_bytes(file));
        if file.starts_with(&run.dir) {
            stats::refresh(&run.dir, file);
        }
    }
    route
}

fn place(run: &RunInfo, path: &[u8]) -> Route {
    let in_sys = is_below(path, b"/sys");
    let in_dev = path.starts_with(b"/dev/");
    if !in_sys && !in_dev {
        // The tree itself, named by SYSFS_PATH.
        return match path.strip_prefix(run.dir.as_os_str().as_bytes()) {
            Some(rest) if rest.starts_with(b"/sys/") => {
                for_older(run, path).map_or(Route::Real, Route::Other)
            }
            _ => Route::Real,
        };
    }
    let target = if in_dev {
        route_dev(run, path)
    } else {
        route_sys(run, path)
    };
    match target {
        Route::Other(target) => Route::Other(for_older(run, &target).unwrap_or(target)),
        other => other,
    }
}

fn route_dev(run: &RunInfo, path: &[u8]) -> Route {
    let device = |index: u32| {
        if index < run.options.devices {
            Some(Route::Device(index))
        } else {
            None
        }
    };
    if let Some(minor) = path.strip_prefix(format!("/dev/char/{UVERBS_MAJOR}:").as_bytes()) {
        return number(minor)
            .and_then(|minor| minor.checked_sub(UVERBS_BASE_MINOR))
            .and_then(device)
            .unwrap_or(Route::Real);
    }
    let Some(rest) = path.strip_prefix(b"/dev/infiniband") else {
        return Route::Real;
    };
    match rest {
        [] | [b'/', ..] => {
            let index = rest.strip_prefix(b"/uverbs").and_then(number);
            index
                .and_then(device)
                .unwrap_or_else(|| Route::Other(below(run, DEV, rest)))
        }
        _ => Route::Real,
    }
}

fn route_sys(run: &RunInfo, path: &[u8]) -> Route {
    let rest = path.get(b"/sys/".len()..).unwrap_or_default();
    let listed = rest.strip_suffix(b"/").unwrap_or(rest);
    let ours = rest.starts_with(b"class/infiniband")
        || is_below(rest, PCI_ROOT.as_bytes())
        // The list is ours and names what the host has, too; what is below that is the host's.
        || MIRRORED.iter().any(|dir| dir.as_bytes() == listed)
        || rest.starts_with(b"bus/pci/devices/efa0:")
        || rest.starts_with(format!("dev/char/{UVERBS_MAJOR}:").as_bytes())
        || is_below(rest, b"bus/pci/drivers/efa")
        || MODULES
            .iter()
            .any(|name| rest.strip_prefix(b"module/").is_some_and(|rest| is_below(rest, name.as_bytes())));
    if ours {
        Route::Other(below(run, SYS, &path[b"/sys".len()..]))
    } else {
        Route::Real
    }
}

fn is_below(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

fn below(run: &RunInfo, dir: &str, tail: &[u8]) -> Vec<u8> {
    let mut target = run.dir.as_os_str().as_bytes().to_vec();
    target.push(b'/');
    target.extend_from_slice(dir.as_bytes());
    target.extend_from_slice(tail);
    target
}

/// The path of the file that an older libefa gets to see, if it is about one.
fn for_older(run: &RunInfo, target: &[u8]) -> Option<Vec<u8>> {
    let name = target.rsplit(|byte| *byte == b'/').next()?;
    if run.options.profile.is_some() || !IDENTIFYING.contains(&name) || !libefa::is_older() {
        return None;
    }
    let target = Path::new(OsStr::from_bytes(target));
    // Where the links on the way lead.
    let dir = target.parent()?.canonicalize().ok()?;
    let place = dir.strip_prefix(run.dir.join(SYS)).ok()?;
    let older = run.dir.join(OLDER).join(place).join(target.file_name()?);
    // `infiniband/efa_0/device` is a link to the PCI device, whose `device` is a file.
    older.is_file().then(|| older.into_os_string().into_vec())
}

/// What the program should see in place of `resolved`, which the C library made from a path of its
/// own that was routed elsewhere.
pub fn unroute(resolved: &[u8]) -> Option<Vec<u8>> {
    unroute_in(process::run()?, resolved)
}

pub(super) fn unroute_in(run: &RunInfo, resolved: &[u8]) -> Option<Vec<u8>> {
    let rest = resolved.strip_prefix(run.dir.as_os_str().as_bytes())?;
    let visible = rest.strip_prefix(b"/")?;
    if is_below(visible, OLDER.as_bytes()) {
        return Some([b"/sys", &visible[OLDER.len()..]].concat());
    }
    (is_below(visible, SYS.as_bytes()) || is_below(visible, DEV.as_bytes())).then(|| rest.to_vec())
}

fn number(text: &[u8]) -> Option<u32> {
    // No sign, and no leading zeros.
    let plain =
        text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first() != Some(&b'0'));
    if plain {
        std::str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    fn run() -> RunInfo {
        RunInfo {
            dir: "/tmp/run".into(),
            options: Options {
                devices: 2,
                ..Options::default()
            },
        }
    }

    #[test]
    fn device_files_are_recognised() {
        let run = run();
        assert_eq!(
            route_dev(&run, b"/dev/infiniband/uverbs1"),
            Route::Device(1)
        );
        assert_eq!(route_dev(&run, b"/dev/char/231:193"), Route::Device(1));
        assert_eq!(route_dev(&run, b"/dev/char/231:199"), Route::Real);
        for (path, target) in [
            ("/dev/infiniband", "/tmp/run/dev/infiniband"),
            ("/dev/infiniband/uverbs2", "/tmp/run/dev/infiniband/uverbs2"),
            (
                "/dev/infiniband/uverbs01",
                "/tmp/run/dev/infiniband/uverbs01",
            ),
            ("/dev/infiniband/rdma_cm", "/tmp/run/dev/infiniband/rdma_cm"),
        ] {
            assert_eq!(
                route_dev(&run, path.as_bytes()),
                Route::Other(target.into()),
                "{path}"
            );
        }
        assert_eq!(route_dev(&run, b"/dev/infinibandit"), Route::Real);
        assert_eq!(route_dev(&run, b"/dev/null"), Route::Real);
    }

    #[test]
    fn results_are_put_back_in_the_programs_terms() {
        let run = run();
        let back = |path: &[u8]| unroute_in(&run, path);
        assert_eq!(back(b"/tmp/run/sys/class"), Some(b"/sys/class".to_vec()));
        assert_eq!(
            back(b"/tmp/run/dev/infiniband/uverbs0"),
            Some(b"/dev/infiniband/uverbs0".to_vec())
        );
        assert_eq!(
            back(b"/tmp/run/older/devices/x"),
            Some(b"/sys/devices/x".to_vec())
        );
        assert_eq!(back(b"/tmp/run/ctl"), None);
        assert_eq!(back(b"/tmp/running/sys"), None);
        assert_eq!(back(b"/sys/class"), None);
    }

    #[test]
    fn only_our_part_of_sys_is_replaced() {
        let run = run();
        for path in [
            "class/infiniband",
            "class/infiniband/efa_0/ports/1/gids/0",
            "class/infiniband_verbs/abi_version",
            "devices/pciefa0:00/efa0:01:00.0/numa_node",
            "bus/pci/devices/efa0:01:00.0/class",
            "bus/pci/drivers/efa",
            "bus/pci/devices",
            "class",
            "devices/",
        ] {
            let expected = Route::Other(format!("/tmp/run/sys/{path}").into_bytes());
            assert_eq!(
                route_sys(&run, format!("/sys/{path}").as_bytes()),
                expected,
                "{path}"
            );
        }
        for path in [
            "class/net/eth0",
            "classes",
            "devices/system",
            "bus/pci/devices/0000:00:01.0",
            "bus/pci/drivers/efax",
        ] {
            assert_eq!(
                route_sys(&run, format!("/sys/{path}").as_bytes()),
                Route::Real,
                "{path}"
            );
        }
    }
}
