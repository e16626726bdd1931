//! What is behind a failed verb on this host: [`Diagnosis`].
//!
//! An error number says little: `ENOMEM` from a registration may be the limit for locked memory or a device
//! that is full. This module looks at the process and its limits and says which, and what to do.
//!
//! ```no_run
//! use efa_transport::diagnosis::Diagnosis;
//!
//! let domain = efa_verbs::open_by_name("efa_0")?.alloc_pd()?;
//! let buffer = efa_verbs::Buffer::zeroed(64 << 30)?;
//! if let Err(error) = domain.register(buffer, efa_verbs::Access::LOCAL) {
//!     eprintln!("{error}");
//!     if let Some(diagnosis) = Diagnosis::of(&error, None) {
//!         eprintln!("{diagnosis}");
//!     }
//! }
//! # Ok::<(), efa_verbs::Error>(())
//! ```

use std::fmt;
use std::ops::Range;

use efa_verbs::{Error, Feature};
use rustix::io::Errno;

mod host;

use host::Host;
pub use host::LockedMemory;

/// Why a verb failed, as far as can be told from outside. Its text says so, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// The process may not lock as much memory as the registration needs.
    LockedMemoryLimit(LockedMemory),
    /// The device, or the kernel, has no room for another registration.
    RegistrationsFull,
    /// The device has no address handle left.
    AddressHandlesFull,
    /// The device has no more objects of the kind that the verb makes, or the kernel no memory.
    ObjectsFull {
        /// The verb.
        verb: String,
    },
    /// Device or kernel are busy.
    Busy,
    /// Part of the memory is not mapped.
    NotMapped {
        /// The first address that isn't.
        addr: u64,
    },
    /// Part of the memory is mapped for reading only, and the device was to write it.
    ReadOnlyMapping {
        /// The first such address.
        addr: u64,
        /// The file that is mapped there; empty if there is none.
        file: String,
    },
    /// The memory can't be registered, and it can't be told why: it is of a special kind, such as the
    /// registers of a device.
    UnusableMemory,
    /// The kernel can't register this dmabuf: kernels that know no read-only ones refuse them.
    DmabufRefused,
    /// The device can't be reached from here.
    UnreachableAddress,
    /// The user may not use the device.
    NoPermission,
    /// The process, or the host, has no file descriptor left.
    NoFileDescriptors,
    /// The device is gone or has failed.
    DeviceGone,
    /// The device lacks a capability.
    MissingCapability(Feature),
    /// The installed driver or library is too old for what was asked for.
    OldSoftware {
        /// What it does not do.
        missing: String,
    },
}

impl Diagnosis {
    /// What is behind an error of efa-verbs; `None` where the error says all there is. Give the addresses
    /// of the memory where the error comes from registering it: they make it possible to find
    /// the part that can't be registered.
    ///
    /// It reads files in `/proc`, so it does not belong on a fast path.
    pub fn of(error: &Error, memory: Option<Range<u64>>) -> Option<Diagnosis> {
        match error {
            Error::Verb(failed) => {
                let errno = Errno::from_io_error(failed.io_error())?;
                Self::of_verb(failed.verb(), errno, memory, &Host::current())
            }
            Error::Unsupported {
                feature: Feature::DmaBuf,
                ..
            } => Some(Diagnosis::OldSoftware {
                missing: "registration of dmabufs".into(),
            }),
            Error::Unsupported {
                feature: Feature::DirectPath,
                ..
            } => Some(Diagnosis::OldSoftware {
                missing: "direct access to queues".into(),
            }),
            Error::Unsupported { feature, .. } => Some(Diagnosis::MissingCapability(*feature)),
            Error::MissingEntryPoints { names } => Some(Diagnosis::OldSoftware {
                missing: names.join(", "),
            }),
            _ => None,
        }
    }

    fn of_verb(
        verb: &str,
        errno: Errno,
        memory: Option<Range<u64>>,
        host: &Host,
    ) -> Option<Diagnosis> {
        let registers = matches!(verb, "ibv_reg_mr" | "ibv_reg_dmabuf_mr");
        Some(match errno {
            Errno::NOMEM if verb == "ibv_reg_mr" => {
                let wanted = memory.map(|memory| memory.end.saturating_sub(memory.start));
                match host.locked.forbids(wanted) {
                    true => Diagnosis::LockedMemoryLimit(LockedMemory {
                        wanted,
                        ..host.locked
                    }),
                    false => Diagnosis::RegistrationsFull,
                }
            }
            Errno::NOMEM if registers => Diagnosis::RegistrationsFull,
            Errno::NOMEM if verb == "ibv_create_ah" => Diagnosis::AddressHandlesFull,
            Errno::NOMEM | Errno::NOSPC => Diagnosis::ObjectsFull {
                verb: verb.to_owned(),
            },
            Errno::AGAIN | Errno::BUSY => Diagnosis::Busy,
            Errno::FAULT if verb == "ibv_reg_dmabuf_mr" => Diagnosis::DmabufRefused,
            Errno::FAULT if registers => {
                let fault = memory.and_then(|memory| host.first_fault(memory));
                fault.unwrap_or(Diagnosis::UnusableMemory)
            }
            Errno::INVAL if verb == "ibv_create_ah" => Diagnosis::UnreachableAddress,
            Errno::ACCESS | Errno::PERM => Diagnosis::NoPermission,
            Errno::MFILE | Errno::NFILE => Diagnosis::NoFileDescriptors,
            Errno::NODEV | Errno::NXIO | Errno::IO => Diagnosis::DeviceGone,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::PROTONOSUPPORT => {
                Diagnosis::OldSoftware {
                    missing: verb.to_owned(),
                }
            }
            _ => return None,
        })
    }

    /// Whether the same call may succeed later, with nothing changed but what else is in use.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Diagnosis::RegistrationsFull
                | Diagnosis::AddressHandlesFull
                | Diagnosis::ObjectsFull { .. }
                | Diagnosis::Busy
                | Diagnosis::NoFileDescriptors
        )
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Diagnosis::LockedMemoryLimit(locked) => write!(
                f,
                "The process may lock {}{}, and registered memory is locked. Raise the limit: `ulimit -l \
                 unlimited`, `memlock` in /etc/security/limits.conf, LimitMEMLOCK= for a service, `--ulimit \
                 memlock=-1` for a container.",
                Bytes(locked.limit),
                Usage(locked)
            ),
            Diagnosis::RegistrationsFull => f.write_str(
                "The device or the kernel has no room for another registration. Use huge pages, which take \
                 up to 512 times fewer entries in the device's table, or deregister what is not needed.",
            ),
            Diagnosis::AddressHandlesFull => f.write_str(
                "The device has no address handle left. Share one among all peers behind a GID, as an \
                 endpoint does, and disconnect peers that are gone.",
            ),
            Diagnosis::ObjectsFull { verb } => {
                let kind = match verb.as_str() {
                    "efadv_create_qp_ex" => "queue pair",
                    "ibv_create_cq_ex" | "efadv_create_cq" => "completion queue",
                    "ibv_alloc_pd" => "protection domain",
                    _ => "such object",
                };
                write!(
                    f,
                    "The device has no {kind} left, or the kernel no memory. Close what is not needed, in \
                     other processes too: `rdma resource show` tells who has what."
                )
            }
            Diagnosis::Busy => f.write_str("The device or the kernel is busy. Try again in a moment."),
            Diagnosis::NotMapped { addr } => write!(
                f,
                "Nothing is mapped at {addr:#x}. Check address and length, and that the memory was not \
                 unmapped before; in a registration cache, invalidate memory before unmapping it."
            ),
            Diagnosis::ReadOnlyMapping { addr, file } => {
                write!(f, "The memory at {addr:#x} is mapped for reading only")?;
                if !file.is_empty() {
                    write!(f, " (from {file})")?;
                }
                f.write_str(". Map it writable, or register it with read access only.")
            }
            Diagnosis::UnusableMemory => f.write_str(
                "The kernel can't reach the memory: it is not mapped, mapped for reading only, or of a kind \
                 that can't be registered, such as the registers of a device. Copy the data to ordinary \
                 memory, or register a dmabuf.",
            ),
            Diagnosis::DmabufRefused => f.write_str(
                "The kernel can't map the dmabuf for the device. Older kernels refuse ones that are for \
                 reading only: export it for reading and writing, or update the kernel.",
            ),
            Diagnosis::UnreachableAddress => f.write_str(
                "The GID is not that of an EFA device that can be reached from here. Check that both are in \
                 the same subnet, and that the address is current.",
            ),
            Diagnosis::NoPermission => f.write_str(
                "The user may not use the device. Give the user access to /dev/infiniband/uverbs*; into a \
                 container pass them with --device.",
            ),
            Diagnosis::NoFileDescriptors => f.write_str(
                "No file descriptor is left. Close some, or raise the limit (`ulimit -n`).",
            ),
            Diagnosis::DeviceGone => f.write_str(
                "The device is gone or has failed. Look at dmesg; when it is back, open it again and connect \
                 anew.",
            ),
            Diagnosis::MissingCapability(feature) => write!(
                f,
                "The device has no {feature}. RDMA read needs a p4d-class instance or newer, RDMA write a \
                 p5-class one, both with a current driver; send and receive work on all."
            ),
            Diagnosis::OldSoftware { missing } => write!(
                f,
                "The installed EFA driver or rdma-core is too old for {missing}. Install the current EFA \
                 installer's packages; RDMA write needs rdma-core 46 or newer."
            ),
        }
    }
}

/// A number of bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["GiB", "MiB", "KiB"];
        for (unit, shift) in units.into_iter().zip([30, 20, 10]) {
            if self.0 >> shift > 0 {
                let tenths = (u128::from(self.0) * 10) >> shift;
                return match tenths % 10 {
                    0 => write!(f, "{} {unit}", tenths / 10),
                    digit => write!(f, "{}.{digit} {unit}", tenths / 10),
                };
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// What is locked and wanted, as far as is known.
struct Usage<'a>(&'a LockedMemory);

impl fmt::Display for Usage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(wanted) = self.0.wanted {
            write!(
                f,
                ", has locked {} and wants {} more",
                Bytes(self.0.locked),
                Bytes(wanted)
            )?;
        } else {
            write!(f, " and has locked {}", Bytes(self.0.locked))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(limit: u64, locked: u64, privileged: bool) -> Host {
        let locked = LockedMemory {
            limit,
            locked,
            wanted: None,
            privileged,
        };
        Host {
            locked,
            maps: String::new(),
        }
    }

    const NO_LIMIT: u64 = u64::MAX;

    fn diagnose(verb: &str, errno: Errno, memory: Option<Range<u64>>, host: &Host) -> Diagnosis {
        Diagnosis::of_verb(verb, errno, memory, host).unwrap()
    }

    #[test]
    fn enomem_is_the_limit_only_where_the_limit_is_in_the_way() {
        let memory = Some(0x1000..0x1000 + (1 << 20));
        let of = |host| diagnose("ibv_reg_mr", Errno::NOMEM, memory.clone(), &host);
        let small = of(host(64 << 10, 0, false));
        assert!(matches!(small, Diagnosis::LockedMemoryLimit(_)));
        let text = small.to_string();
        assert!(
            text.contains("may lock 64 KiB, has locked 0 bytes and wants 1 MiB more"),
            "{text}"
        );
        assert_eq!(of(host(NO_LIMIT, 0, false)), Diagnosis::RegistrationsFull);
        assert_eq!(of(host(64 << 10, 0, true)), Diagnosis::RegistrationsFull);
        assert_eq!(of(host(1 << 30, 0, false)), Diagnosis::RegistrationsFull);
        assert!(matches!(
            of(host(1 << 30, 1 << 30, false)),
            Diagnosis::LockedMemoryLimit(_)
        ));
        // Nobody said how much was wanted: a finite limit is the likely cause.
        let unknown = diagnose("ibv_reg_mr", Errno::NOMEM, None, &host(1 << 30, 0, false));
        assert!(matches!(unknown, Diagnosis::LockedMemoryLimit(_)));
    }

    #[test]
    fn the_same_number_means_different_things_for_different_verbs() {
        let host = host(NO_LIMIT, 0, false);
        let of = |verb, errno| diagnose(verb, errno, None, &host);
        assert_eq!(
            of("ibv_create_ah", Errno::NOMEM),
            Diagnosis::AddressHandlesFull
        );
        assert_eq!(
            of("ibv_reg_dmabuf_mr", Errno::NOMEM),
            Diagnosis::RegistrationsFull
        );
        let queue_pair = of("efadv_create_qp_ex", Errno::NOMEM);
        assert!(queue_pair.to_string().contains("no queue pair left"));
        assert_eq!(
            of("ibv_create_ah", Errno::INVAL),
            Diagnosis::UnreachableAddress
        );
        assert_eq!(
            of("ibv_reg_dmabuf_mr", Errno::FAULT),
            Diagnosis::DmabufRefused
        );
        assert_eq!(of("ibv_reg_mr", Errno::FAULT), Diagnosis::UnusableMemory);
        assert_eq!(
            of("ibv_open_device", Errno::ACCESS),
            Diagnosis::NoPermission
        );
        assert_eq!(of("ibv_alloc_pd", Errno::AGAIN), Diagnosis::Busy);
        assert!(of("ibv_alloc_pd", Errno::AGAIN).is_transient());
        assert_eq!(
            Diagnosis::of_verb("ibv_query_qp", Errno::INVAL, None, &host),
            None
        );
    }

    #[test]
    fn a_capability_and_old_software_are_told_apart() {
        let unsupported = |feature| Error::Unsupported {
            device: "efa_0".into(),
            feature,
            advice: None,
        };
        assert_eq!(
            Diagnosis::of(&unsupported(Feature::RdmaWrite), None),
            Some(Diagnosis::MissingCapability(Feature::RdmaWrite))
        );
        assert!(matches!(
            Diagnosis::of(&unsupported(Feature::DmaBuf), None),
            Some(Diagnosis::OldSoftware { .. })
        ));
        let missing = Error::MissingEntryPoints {
            names: vec!["wr_rdma_write"],
        };
        let text = Diagnosis::of(&missing, None).unwrap().to_string();
        assert!(text.contains("too old for wr_rdma_write"), "{text}");
        assert_eq!(Diagnosis::of(&Error::ZeroGid, None), None);
    }

    #[test]
    fn sizes_are_written_for_people() {
        let sizes = [
            0,
            1023,
            1024,
            1536,
            64 << 10,
            3 << 19,
            8 << 30,
            (1 << 20) + 1,
        ];
        let texts = sizes.map(|bytes| Bytes(bytes).to_string());
        let expected = [
            "0 bytes",
            "1023 bytes",
            "1 KiB",
            "1.5 KiB",
            "64 KiB",
            "1.5 MiB",
            "8 GiB",
            "1 MiB",
        ];
        assert_eq!(texts, expected);
    }
}
