//! A device as one process sees it: its engine, its domains and what is alive on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::engine::{Engine, EngineConfig, FaultPlan, TraceSink};
use crate::gid::gid_of;
use crate::options::Options;
use crate::profile::{Profile, ProfileName};
use crate::stats;

use super::fds::lock;
use super::{libefa, process};

/// Kinds of objects that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    Context,
    Pd,
    Mr,
    Cq,
    Qp,
    Ah,
    Channel,
}

const COUNTED: [(Counted, &str); 7] = [
    (Counted::Context, "context"),
    (Counted::Pd, "pd"),
    (Counted::Mr, "mr"),
    (Counted::Cq, "cq"),
    (Counted::Qp, "qp"),
    (Counted::Ah, "ah"),
    (Counted::Channel, "channel"),
];

#[derive(Debug, Default)]
struct Counts([AtomicU64; COUNTED.len()]);

/// Counts an object as long as it lives.
#[derive(Debug)]
pub(crate) struct Alive {
    device: Arc<Device>,
    kind: Counted,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.device.counts.0[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// One device in one process.
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) ip: Ipv4Addr,
    options: Options,
    profile: OnceLock<Profile>,
    engine: OnceLock<Arc<Engine>>,
    starting: Mutex<()>,
    domains: Mutex<BTreeSet<u16>>,
    counts: Counts,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("ip", &self.ip)
            .finish_non_exhaustive()
    }
}

impl Device {
    pub(crate) fn new(index: u32, options: &Options) -> Arc<Self> {
        Arc::new(Self {
            index,
            name: Options::device_name(index),
            ip: options.ip(index),
            options: options.clone(),
            profile: OnceLock::new(),
            engine: OnceLock::new(),
            starting: Mutex::new(()),
            domains: Mutex::default(),
            counts: Counts::default(),
        })
    }

    /// The device's limits. Where the options leave the hardware open, the libefa that is loaded
    /// when this is first asked decides.
    pub(crate) fn profile(&self) -> &Profile {
        self.profile.get_or_init(|| {
            let default = if libefa::is_older() {
                ProfileName::P5
            } else {
                ProfileName::P5en
            };
            self.options.effective_profile(default)
        })
    }

    /// Completion vectors: the driver makes no more event queues than there are processors.
    pub(crate) fn comp_vectors(&self) -> u32 {
        // SAFETY: sysconf takes no pointers and reads only its argument.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let online = u32::try_from(online).unwrap_or(1).max(1);
        self.profile().comp_vectors.min(online)
    }

    /// The device's address on the fabric.
    pub(crate) fn gid(&self) -> [u8; 16] {
        gid_of(self.ip)
    }

    /// The engine, started if need be.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, i32> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let _starting = lock(&self.starting);
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let engine = self.start().map_err(|(errno, reason)| {
            eprintln!("soft-efa: device {} can't start: {reason}", self.name);
            errno
        })?;
        Ok(self.engine.get_or_init(|| engine))
    }

    fn start(&self) -> Result<Arc<Engine>, (i32, String)> {
        let faults: FaultPlan = self.options.faults.parse().map_err(|error| {
            (
                libc::EINVAL,
                format!("the fault plan is not understood: {error}"),
            )
        })?;
        // The address is needed only when a queue pair is made, and the errno of that alone would
        // leave people puzzled.
        if let Err(error) = std::net::UdpSocket::bind((self.ip, 0)) {
            eprintln!(
                "soft-efa: device {} can't make queue pairs: its address {} is not one of an \
                 interface here ({error}); --addr chooses another",
                self.name, self.ip
            );
        }
        let profile = *self.profile();
        let trace = self.options.trace.then(|| {
            let sink: TraceSink = Arc::new(move |line: &str| eprintln!("soft-efa {line}"));
            sink
        });
        Engine::start(EngineConfig {
            device_index: self.index,
            ip: self.ip,
            gid: self.gid(),
            profile,
            seed: self.options.seed,
            faults,
            trace,
            max_rdma_size: profile.max_rdma_size,
            mtu: profile.mtu,
            first_qp: self.options.first_qp,
            // Without it the device works all the same.
            stats: process::run().and_then(|run| stats::Writer::new(&run.dir, &self.name).ok()),
        })
        .map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            (errno, format!("on {}: {error}", self.ip))
        })
    }

    /// The engine, if it has been started.
    pub(crate) fn started(&self) -> Option<&Arc<Engine>> {
        self.engine.get()
    }

    /// A number for a new protection domain.
    pub(crate) fn take_domain(&self) -> Result<u16, i32> {
        let mut domains = lock(&self.domains);
        let limit = u16::try_from(self.profile().max_pd).unwrap_or(u16::MAX);
        let free = (0..limit)
            .find(|number| !domains.contains(number))
            .ok_or(libc::ENOMEM)?;
        domains.insert(free);
        Ok(free)
    }

    /// Gives the number of a domain back.
    pub(crate) fn give_domain(&self, number: u16) {
        lock(&self.domains).remove(&number);
    }

    /// Counts an object.
    pub(crate) fn count(self: &Arc<Self>, kind: Counted) -> Alive {
        self.counts.0[kind as usize].fetch_add(1, Ordering::Relaxed);
        Alive {
            device: self.clone(),
            kind,
        }
    }

    /// How many objects of each kind live.
    pub(crate) fn objects(&self) -> BTreeMap<String, u64> {
        COUNTED
            .into_iter()
            .map(|(kind, name)| {
                (
                    name.to_owned(),
                    self.counts.0[kind as usize].load(Ordering::Relaxed),
                )
            })
            .collect()
    }
}
