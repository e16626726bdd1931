//! Why something failed on this host, and what to do: [`Error::explain`].
//!
//! An error number says little: ENOMEM from a registration may be the limit for locked memory or a device
//! that is full, EFAULT a hole, a mapping for reading only, or the addresses of a GPU. The explanation comes
//! from everything that can be looked at: the access that was asked for, the mappings of the process and
//! its limits, the version of libefa, and the device's generation.
//!
//! ```no_run
//! use efa_transport::{Access, Buffer, Domain};
//!
//! let domain = Domain::open_first()?;
//! if let Err(error) = domain.register(Buffer::zeroed(64 << 30)?, Access::LOCAL) {
//!     eprintln!("{error}");
//!     if let Some(explanation) = error.explain() {
//!         eprintln!("{explanation}");
//!     }
//! }
//! # Ok::<(), efa_transport::Error>(())
//! ```
//!
//! What a failed operation is about is told by its [`Failure`](crate::Failure).

use std::fmt;

use efa_verbs::Access;
use rustix::io::Errno;

use crate::error::Error;
use crate::operation::Kind;

mod explanation;
mod feature;
mod host;
mod memory;

pub use explanation::Explanation;
use feature::Lacking;
use host::LockedMemory;
use memory::Fault;

impl Error {
    /// Cause and remedy, as far as they can be told from outside; `None` where the error says all there is.
    ///
    /// It reads files in `/proc` and may open the device, so it does not belong on a fast path. Ask
    /// soon: it looks at the process as it is now.
    pub fn explain(&self) -> Option<Explanation> {
        match self {
            Error::Register {
                addr,
                length,
                access,
                source,
            } => {
                let memory = Memory {
                    addr: *addr,
                    length: *length,
                    access: *access,
                };
                of_verbs(source, Some(&memory))
            }
            Error::Verbs(error)
            | Error::Connect { source: error, .. }
            | Error::PostFailed { source: error, .. } => of_verbs(error, None),
            Error::NotSupported {
                device, operation, ..
            } => {
                let feature = match operation {
                    Kind::Get => efa_verbs::Feature::RdmaRead,
                    _ => efa_verbs::Feature::RdmaWrite,
                };
                Some(Lacking::on(device, feature).explanation())
            }
            _ => None,
        }
    }
}

/// What was to be registered.
struct Memory {
    /// `None` where nobody knows it, or for memory that is freed by now.
    addr: Option<u64>,
    length: u64,
    access: Access,
}

fn of_verbs(error: &efa_verbs::Error, memory: Option<&Memory>) -> Option<Explanation> {
    match error {
        efa_verbs::Error::Verb(failed) => {
            let errno = Errno::from_io_error(failed.io_error())?;
            Some(Cause::find(failed.verb(), errno, memory)?.explanation())
        }
        efa_verbs::Error::Unsupported {
            device, feature, ..
        } => Some(Lacking::on(device, *feature).explanation()),
        efa_verbs::Error::MissingEntryPoints { names } => {
            Some(Cause::OldSoftware(names.join(", ")).explanation())
        }
        _ => None,
    }
}

/// Why a verb failed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    LockedMemoryLimit {
        locked: LockedMemory,
        wanted: Option<u64>,
    },
    /// With the bytes that were to be registered.
    RegistrationsFull(Option<u64>),
    AddressHandlesFull,
    ObjectsFull(&'static str),
    Busy,
    Memory(Fault),
    /// It can't be told where the fault is; with the access that was asked for.
    UnusableMemory(Option<Access>),
    DmabufRefused,
    UnreachableAddress,
    NoPermission,
    NoFileDescriptors,
    DeviceGone,
    OldSoftware(String),
}

impl Cause {
    fn find(verb: &str, errno: Errno, memory: Option<&Memory>) -> Option<Self> {
        Some(match errno {
            Errno::NOMEM if verb == "ibv_reg_mr" => {
                Self::no_room(LockedMemory::current(), memory.map(|memory| memory.length))
            }
            Errno::NOMEM if verb == "ibv_reg_dmabuf_mr" => Self::RegistrationsFull(None),
            Errno::NOMEM if verb == "ibv_create_ah" => Self::AddressHandlesFull,
            Errno::NOMEM | Errno::NOSPC => Self::ObjectsFull(match verb {
                "efadv_create_qp_ex" => "queue pair",
                "ibv_create_cq_ex" | "efadv_create_cq" => "completion queue",
                "ibv_alloc_pd" => "protection domain",
                _ => "such object",
            }),
            Errno::AGAIN | Errno::BUSY => Self::Busy,
            Errno::FAULT if verb == "ibv_reg_dmabuf_mr" => Self::DmabufRefused,
            Errno::FAULT if verb == "ibv_reg_mr" => {
                let fault = memory.and_then(|memory| {
                    let addr = memory.addr?;
                    Fault::first(
                        &host::mappings(),
                        addr..addr.saturating_add(memory.length),
                        memory.access,
                    )
                });
                match fault {
                    Some(fault) => Self::Memory(fault),
                    None => Self::UnusableMemory(memory.map(|memory| memory.access)),
                }
            }
            Errno::INVAL if verb == "ibv_create_ah" => Self::UnreachableAddress,
            Errno::ACCESS | Errno::PERM => Self::NoPermission,
            Errno::MFILE | Errno::NFILE => Self::NoFileDescriptors,
            Errno::NODEV | Errno::NXIO | Errno::IO => Self::DeviceGone,
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::PROTONOSUPPORT => {
                Self::OldSoftware(verb.to_owned())
            }
            _ => return None,
        })
    }

    fn no_room(locked: LockedMemory, wanted: Option<u64>) -> Self {
        match locked.forbids(wanted) {
            true => Self::LockedMemoryLimit { locked, wanted },
            false => Self::RegistrationsFull(wanted),
        }
    }

    /// The table of causes and remedies.
    fn explanation(self) -> Explanation {
        match self {
            Self::LockedMemoryLimit { locked, wanted } => {
                let more = wanted.map(|wanted| format!(" and wants {} more", Bytes(wanted)));
                Explanation::new(
                    format!(
                        "Registered memory is locked, and the process may lock {}: it has locked {}{}.",
                        Bytes(locked.limit),
                        Bytes(locked.locked),
                        more.unwrap_or_default()
                    ),
                    "Raise the limit: `ulimit -l unlimited`, `memlock` in /etc/security/limits.conf, \
                     LimitMEMLOCK= for a service, `--ulimit memlock=-1` for a container.",
                )
            }
            Self::RegistrationsFull(wanted) => {
                let mut cause =
                    String::from("The device or the kernel has no room for another registration");
                // Of about 24 million, so that a hundredth is worth telling.
                if let Some(pages) = wanted.map(|wanted| wanted / 4096)
                    && pages > 240_000
                {
                    cause += &format!(
                        ": it takes up to {pages} entries, one for each page of 4 KiB, of about 24 \
                         million that a device has in all"
                    );
                }
                Explanation::new(
                    cause + ".",
                    "Use huge pages (Buffer::with_pages), which take up to 512 times fewer entries of \
                     the device's table, or deregister what is not needed.",
                )
                .transient()
            }
            Self::AddressHandlesFull => Explanation::new(
                "The device has no address handle left.",
                "Disconnect peers that are gone, in other processes too. The endpoints of one Domain share \
                 a handle for all peers behind a GID: use one Domain per process.",
            )
            .transient(),
            Self::ObjectsFull(kind) => Explanation::new(
                format!("The device has no {kind} left, or the kernel no memory."),
                "Close what is not needed, in other processes too: `rdma resource show` tells who has \
                 what.",
            )
            .transient(),
            Self::Busy => Explanation::new("The device or the kernel is busy.", "Try again later.")
                .transient(),
            Self::Memory(fault) => fault.explanation(),
            Self::UnusableMemory(access) => Explanation::new(
                format!(
                    "Part of the memory is not mapped {}, or is of a kind that can't be registered, such \
                     as a GPU's or another device's.",
                    match access {
                        Some(access) if access.contains(Access::LOCAL) =>
                            "for reading and writing, as the access demands",
                        Some(_) => "for reading",
                        None => "as the access demands",
                    }
                ),
                "Check address, length and access. Register a GPU's memory as a dmabuf \
                 (Domain::register_dmabuf).",
            ),
            Self::DmabufRefused => Explanation::new(
                "The kernel can't map the dmabuf for the device. Older kernels refuse one that is exported \
                 for reading only.",
                "Export it for reading and writing, or update the kernel.",
            ),
            Self::UnreachableAddress => Explanation::new(
                "The GID is not that of an EFA device that can be reached from here.",
                "Check that both are in the same subnet, and that the address is current.",
            ),
            Self::NoPermission => Explanation::new(
                "The user may not use the device.",
                "Give the user access to /dev/infiniband/uverbs*; into a container pass them with \
                 --device.",
            ),
            Self::NoFileDescriptors => Explanation::new(
                "No file descriptor is left.",
                "Close some, or raise the limit (`ulimit -n`).",
            )
            .transient(),
            Self::DeviceGone => Explanation::new(
                "The device is gone or has failed.",
                "Look at dmesg; when it is back, open it again and connect anew.",
            ),
            Self::OldSoftware(missing) => Explanation::new(
                format!("The installed EFA driver or rdma-core is too old for {missing}."),
                "Install the current EFA installer's packages.",
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

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: u64 = u64::MAX;

    #[test]
    fn enomem_is_the_limit_only_where_the_limit_is_in_the_way() {
        let of = |limit, locked, privileged, wanted| {
            let locked = LockedMemory {
                limit,
                locked,
                privileged,
            };
            Cause::no_room(locked, wanted)
        };
        let is_limit = |cause: &Cause| matches!(cause, Cause::LockedMemoryLimit { .. });
        let small = of(64 << 10, 0, false, Some(1 << 20));
        assert!(is_limit(&small));
        let text = small.explanation().to_string();
        assert!(
            text.contains("may lock 64 KiB: it has locked 0 bytes and wants 1 MiB more"),
            "{text}"
        );
        assert!(!is_limit(&of(NO_LIMIT, 0, false, Some(1 << 20))));
        assert!(!is_limit(&of(64 << 10, 0, true, Some(1 << 20))));
        assert!(!is_limit(&of(1 << 30, 0, false, Some(1 << 20))));
        assert!(is_limit(&of(1 << 30, 1 << 30, false, Some(1 << 20))));
        // Nobody said how much was wanted: a finite limit is the likely cause.
        assert!(is_limit(&of(1 << 30, 0, false, None)));
    }

    #[test]
    fn a_region_beyond_the_page_table_is_told_how_many_entries_it_takes() {
        let of = |bytes| Cause::RegistrationsFull(Some(bytes)).explanation();
        let huge = of(100 << 30);
        assert!(huge.cause().contains("26214400 entries"), "{huge}");
        assert!(huge.remedy().contains("huge pages"), "{huge}");
        assert!(!of(1 << 20).cause().contains("entries"));
    }

    #[test]
    fn the_same_number_means_different_things_for_different_verbs() {
        let of = |verb, errno| Cause::find(verb, errno, None).unwrap();
        assert_eq!(of("ibv_create_ah", Errno::NOMEM), Cause::AddressHandlesFull);
        assert_eq!(
            of("ibv_reg_dmabuf_mr", Errno::NOMEM),
            Cause::RegistrationsFull(None)
        );
        let queue_pair = of("efadv_create_qp_ex", Errno::NOMEM).explanation();
        assert!(queue_pair.cause().contains("no queue pair left"));
        assert_eq!(of("ibv_create_ah", Errno::INVAL), Cause::UnreachableAddress);
        assert_eq!(of("ibv_reg_dmabuf_mr", Errno::FAULT), Cause::DmabufRefused);
        assert_eq!(of("ibv_reg_mr", Errno::FAULT), Cause::UnusableMemory(None));
        assert_eq!(of("ibv_open_device", Errno::ACCESS), Cause::NoPermission);
        assert!(
            of("ibv_alloc_pd", Errno::AGAIN)
                .explanation()
                .is_transient()
        );
        assert_eq!(Cause::find("ibv_query_qp", Errno::INVAL, None), None);
    }

    #[test]
    fn memory_of_unknown_place_is_not_said_to_be_for_reading_only() {
        let of = |access| Cause::UnusableMemory(access).explanation().to_string();
        for text in [
            of(None),
            of(Some(Access::LOCAL)),
            of(Some(Access::REMOTE_READ)),
        ] {
            assert!(!text.contains("reading only"), "{text}");
        }
        assert!(of(Some(Access::LOCAL)).contains("reading and writing"));
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
