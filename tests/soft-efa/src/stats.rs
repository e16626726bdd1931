//! What a device tells of its traffic in `hw_counters`, as the EFA driver does.
//!
//! Each process that opens a device keeps its own numbers in a file of the run directory, mapped by
//! its engine, so that they outlive it however it ends. The device's are the sums.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a port, by the driver's names.
pub const NAMES: [&str; 17] = [
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
];

/// The counters of a device, by the driver's names: its commands and what it refused. soft-efa has no
/// commands, and leaves all of them 0.
pub const DEVICE: [&str; 12] = [
    "submitted_cmds",
    "completed_cmds",
    "cmds_err",
    "no_completion_cmds",
    "keep_alive_rcvd",
    "alloc_pd_err",
    "create_qp_err",
    "create_cq_err",
    "reg_mr_err",
    "alloc_ucontext_err",
    "create_ah_err",
    "mmap_err",
];

/// The value of each.
pub type Values = [u64; NAMES.len()];

/// The directory below the run directory that has the processes' files.
const DIR: &str = "stats";
const FILE_BYTES: usize = 4096;

fn dir_of(run_dir: &Path, device: &str) -> PathBuf {
    run_dir.join(DIR).join(device)
}

/// The numbers of one device in this process.
#[derive(Debug)]
pub struct Writer {
    words: *const [AtomicU64; NAMES.len()],
}

// SAFETY: the mapping belongs to the value and holds atomics.
unsafe impl Send for Writer {}

impl Writer {
    /// New numbers, all 0.
    ///
    /// # Errors
    ///
    /// Whatever the system says when the file can't be made or mapped.
    pub fn new(run_dir: &Path, device: &str) -> io::Result<Self> {
        let dir = dir_of(run_dir, device);
        fs::create_dir_all(&dir)?;
        let file = Self::create(&dir)?;
        file.set_len(FILE_BYTES as u64)?;
        // SAFETY: a new mapping of a file of that length, at no address in particular.
        let words = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if words == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            words: words.cast(),
        })
    }

    /// A program may replace itself, so its number may have a file already.
    fn create(dir: &Path) -> io::Result<File> {
        let pid = std::process::id();
        let mut again = 0;
        loop {
            let path = dir.join(format!("{pid}.{again}"));
            let made = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(path);
            match made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => again += 1,
                other => return other,
            }
        }
    }

    /// Publishes the numbers.
    pub fn store(&self, values: &Values) {
        // SAFETY: the mapping is longer, aligned to pages, and lives as long as the value.
        let words = unsafe { &*self.words };
        for (word, value) in words.iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // SAFETY: the value's own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.words.cast_mut().cast(), FILE_BYTES) };
    }
}

/// The numbers of a device: of all processes that have it or had it.
pub fn sum(run_dir: &Path, device: &str) -> Values {
    let mut sum = Values::default();
    for entry in fs::read_dir(dir_of(run_dir, device))
        .into_iter()
        .flatten()
        .flatten()
    {
        let bytes = fs::read(entry.path()).unwrap_or_default();
        for (total, word) in sum.iter_mut().zip(bytes.chunks_exact(8)) {
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            *total = total.wrapping_add(word);
        }
    }
    sum
}

/// Writes the present value of the counter that `file` shows. Nothing happens for any other file.
pub fn refresh(run_dir: &Path, file: &Path) -> Option<()> {
    let name = file.file_name()?.to_str()?;
    let at = NAMES.iter().position(|known| *known == name)?;
    // …/efa_0/ports/1/hw_counters/NAME
    let device = file.ancestors().nth(4)?.file_name()?.to_str()?;
    let value = sum(run_dir, device)[at];
    let fresh = run_dir
        .join(DIR)
        .join(format!("{name}.{}", std::process::id()));
    fs::create_dir_all(run_dir.join(DIR)).ok()?;
    fs::write(&fresh, format!("{value}\n")).ok()?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o444)).ok()?;
    fs::rename(&fresh, file).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_processes_add_up_and_outlive_them() {
        let run = tempfile::tempdir().unwrap();
        let first = Writer::new(run.path(), "efa_0").unwrap();
        let second = Writer::new(run.path(), "efa_0").unwrap();
        Writer::new(run.path(), "efa_1")
            .unwrap()
            .store(&[100; NAMES.len()]);
        let mut values = Values::default();
        values[1] = 5;
        first.store(&values);
        values[16] = 7;
        second.store(&values);
        drop(second);
        let total = sum(run.path(), "efa_0");
        assert_eq!((total[0], total[1], total[16]), (0, 10, 7));
        let dir = run.path().join("efa_0/ports/1/hw_counters");
        fs::create_dir_all(&dir).unwrap();
        assert!(refresh(run.path(), &dir.join("tx_pkts")).is_some());
        assert_eq!(fs::read_to_string(dir.join("tx_pkts")).unwrap(), "10\n");
        assert!(refresh(run.path(), &dir.join("lifespan")).is_none());
    }
}
