//! The device behind the registers: carries out the commands of the admin queue.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use zerocopy::FromBytes;

use crate::checks;
use crate::engine::{Engine, EngineConfig, FaultPlan, TraceSink};
use crate::gid::{gid_of, guid_of};
use crate::options::Options;
use crate::profile::{Profile, ProfileName};

use super::bars::Bar;
use super::config::DOORBELLS;
use super::irq::{Interrupts, VECTORS};
use super::layout::{self, Buffer, Feature, GetStats, Response, feature, opcode};
use super::memory::{Mapping, Memory};
use super::objects::Objects;
use super::pages::{INLINE, List};
use super::status::Status;

/// Bytes of the BAR with send rings.
const RING_BYTES: u64 = 256 << 20;
/// Bytes of the BAR with doorbells: a page for each queue.
const DOORBELL_BYTES: u64 = 256 << 20;

/// Groups of asynchronous events, one bit each: fatal errors, warnings, notifications, and
/// keep-alives.
pub(crate) const EVENT_GROUPS: u32 = 0b1_1110;

/// A command in the admin queue.
pub(crate) struct Command<'a> {
    pub(crate) opcode: u8,
    /// There is a buffer of its own.
    pub(crate) buffer: bool,
    /// The buffer lists the pages of another.
    pub(crate) indirect: bool,
    pub(crate) payload: &'a [u8],
}

/// A device of a run.
pub(crate) struct Device {
    index: u32,
    ip: Ipv4Addr,
    options: Options,
    profile: Profile,
    engine: Arc<Engine>,
    objects: Objects,
    memory: Arc<Memory>,
    interrupts: Arc<Interrupts>,
    rings: Arc<Bar>,
    doorbells: Arc<Bar>,
    /// Event groups that the driver wants.
    enabled: u32,
}

impl Device {
    /// Device `index` of a run with `options`.
    pub(crate) fn new(index: u32, options: &Options) -> io::Result<Self> {
        let memory = Arc::new(Memory::default());
        let interrupts = Arc::new(Interrupts::default());
        let rings = Bar::new(c"soft-efa-rings", RING_BYTES)?;
        let doorbells = Bar::new(c"soft-efa-doorbells", DOORBELL_BYTES)?;
        let profile = options.effective_profile(ProfileName::P5en);
        let engine = start(index, options, profile)?;
        let objects = Objects::new(
            engine.clone(),
            profile,
            memory.clone(),
            interrupts.clone(),
            rings.clone(),
            doorbells.clone(),
        );
        Ok(Self {
            index,
            ip: options.ip(index),
            options: options.clone(),
            profile,
            engine,
            objects,
            memory,
            interrupts,
            rings,
            doorbells,
            enabled: 0,
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(crate) fn interrupts(&self) -> &Arc<Interrupts> {
        &self.interrupts
    }

    pub(crate) fn rings(&self) -> &Arc<Bar> {
        &self.rings
    }

    pub(crate) fn doorbells(&self) -> &Arc<Bar> {
        &self.doorbells
    }

    pub(crate) fn objects(&self) -> &Objects {
        &self.objects
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn pci_id(&self) -> u16 {
        self.profile.pci_device
    }

    pub(crate) fn traced(&self) -> bool {
        self.options.trace
    }

    /// The device's name in messages, as the driver calls the first ones.
    pub(crate) fn name(&self) -> String {
        Options::device_name(self.index)
    }

    /// Whether the driver wants this group of asynchronous events.
    pub(crate) fn wants(&self, group: u16) -> bool {
        self.enabled >> group & 1 != 0
    }

    /// Forgets everything that the driver has made.
    pub(crate) fn reset(&mut self) {
        self.objects.clear();
        self.enabled = 0;
    }

    /// Becomes a device with other options.
    pub(crate) fn become_other(&mut self, options: &Options) -> io::Result<()> {
        let profile = options.effective_profile(ProfileName::P5en);
        // The old one has let go of the queue pairs' numbers by then.
        self.reset();
        let engine = start(self.index, options, profile)?;
        self.objects = Objects::new(
            engine.clone(),
            profile,
            self.memory.clone(),
            self.interrupts.clone(),
            self.rings.clone(),
            self.doorbells.clone(),
        );
        self.engine = engine;
        self.profile = profile;
        self.ip = options.ip(self.index);
        self.options = options.clone();
        Ok(())
    }

    /// The client takes memory away.
    pub(crate) fn lose(&mut self, gone: &[Arc<Mapping>]) {
        self.objects.lose(gone);
    }

    /// Carries out a command and fills the response.
    pub(crate) fn execute(
        &mut self,
        command: &Command<'_>,
        out: &mut Response,
    ) -> Result<(), Status> {
        fn read<T: FromBytes>(payload: &[u8]) -> Result<T, Status> {
            T::read_from_prefix(payload)
                .map(|(value, _)| value)
                .map_err(|_| Status::MALFORMED)
        }
        let payload = command.payload;
        let objects = &mut self.objects;
        match command.opcode {
            opcode::CREATE_QP => {
                let made = objects.create_qp(&read(payload)?)?;
                out.u32(made.number.into())
                    .u16(made.number)
                    .u16(0)
                    .u16(0)
                    .u16(made.recv_ring)
                    .u32(made.sq_doorbell)
                    .u32(made.rq_doorbell)
                    .u32(made.sq);
            }
            opcode::MODIFY_QP => objects.modify_qp(&read(payload)?)?,
            opcode::QUERY_QP => {
                let qp = objects.query_qp(u32::from_le_bytes(read(payload)?))?;
                out.u32(checks::qp_state_number(qp.state).into())
                    .u32(qp.qkey)
                    .u32(qp.sq_psn)
                    .u8(qp.sq_draining.into())
                    .u8(qp.rnr_retry);
            }
            opcode::DESTROY_QP => objects.destroy_qp(u32::from_le_bytes(read(payload)?))?,
            opcode::CREATE_AH => {
                out.u16(objects.create_ah(&read(payload)?)?);
            }
            opcode::DESTROY_AH => {
                let request: layout::DestroyAh = read(payload)?;
                objects.destroy_ah(request.pd.get(), request.ah.get())?;
            }
            opcode::REG_MR => {
                let request: layout::RegMr = read(payload)?;
                let buffer: Buffer = read(&request.list)?;
                let list = match (command.buffer, command.indirect) {
                    (true, false) => List::Direct(buffer.address()),
                    (true, true) => List::Chunks(buffer.length.get(), buffer.address()),
                    (false, _) => {
                        let pages: [zerocopy::little_endian::U64; INLINE] = read(&request.list)?;
                        List::Inline(pages.map(|page| page.get()))
                    }
                };
                let key = objects.reg_mr(&request, list)?;
                // All three interconnects are known, and the same.
                out.u32(key).u32(key).u8(7).u8(0).u8(0).u8(0);
            }
            opcode::DEREG_MR => objects.dereg_mr(u32::from_le_bytes(read(payload)?))?,
            opcode::CREATE_CQ => {
                let request: layout::CreateCq = read(payload)?;
                let made = objects.create_cq(&request)?;
                let has_doorbell = self.profile.cq_notifications;
                out.u16(made.number)
                    .u16(request.depth.get())
                    .u32(made.doorbell)
                    .u32(has_doorbell.into());
            }
            opcode::DESTROY_CQ => objects.destroy_cq(u16::from_le_bytes(read(payload)?))?,
            opcode::GET_FEATURE => {
                let request: Feature = read(payload)?;
                self.feature(request.id, out)?;
            }
            opcode::SET_FEATURE => {
                let request: Feature = read(payload)?;
                self.set_feature(command, &request)?;
            }
            opcode::GET_STATS => self.stats(&read(payload)?, out)?,
            opcode::ALLOC_PD => {
                out.u16(objects.alloc_pd()?);
            }
            opcode::DEALLOC_PD => objects.dealloc_pd(u16::from_le_bytes(read(payload)?))?,
            opcode::ALLOC_UAR => {
                out.u16(objects.alloc_uar()?);
            }
            opcode::DEALLOC_UAR => objects.dealloc_uar(u16::from_le_bytes(read(payload)?))?,
            opcode::CREATE_EQ => {
                out.u16(objects.create_eq(&read(payload)?)?);
            }
            opcode::DESTROY_EQ => objects.destroy_eq(u16::from_le_bytes(read(payload)?))?,
            0 => return Err(Status::BAD_OPCODE),
            _ => return Err(Status::UNSUPPORTED),
        }
        Ok(())
    }

    fn features(&self) -> u64 {
        let bit = |id: u8| 1u64 << id;
        let all = bit(feature::DEVICE)
            | bit(feature::AENQ)
            | bit(feature::NETWORK)
            | bit(feature::QUEUES)
            | bit(feature::HINTS)
            | bit(feature::HOST)
            | bit(feature::QUEUES_2);
        if self.profile.cq_notifications {
            all | bit(feature::EVENT_QUEUES)
        } else {
            all
        }
    }

    fn feature(&self, id: u8, out: &mut Response) -> Result<(), Status> {
        let p = &self.profile;
        if id >= 64 || self.features() >> id & 1 == 0 {
            return Err(Status::UNSUPPORTED);
        }
        match id {
            feature::DEVICE => {
                let capabilities = u32::from(p.rdma_read)
                    | u32::from(p.rnr_retry) << 1
                    | u32::from(p.data_polling_128) << 2
                    | u32::from(p.rdma_write) << 3
                    | u32::from(p.unsolicited_write_recv) << 4;
                out.u64(self.features())
                    // The driver keeps a page's size in 32 bits.
                    .u64(p.page_size_cap & 0xffff_ffff)
                    // Firmware, admin interface, hardware.
                    .u32(1)
                    .u32(1)
                    .u32(u32::from(p.pci_device & 0xf))
                    .u16(DOORBELLS as u16)
                    // Bits of physical and virtual addresses.
                    .u8(48)
                    .u8(57)
                    .u32(capabilities)
                    .u32(p.max_rdma_size)
                    .raw(&guid_of(self.ip))
                    .u16(p.link_gbps as u16);
            }
            feature::AENQ => {
                out.u32(EVENT_GROUPS).u32(self.enabled);
            }
            feature::NETWORK => {
                out.raw(&gid_of(self.ip)).u32(p.mtu);
            }
            feature::QUEUES => {
                out.u32(p.max_qp)
                    .u32(p.max_sq_wr)
                    .u32(p.inline_buf_size.into())
                    .u32(p.max_rq_wr)
                    .u32(p.max_cq)
                    .u32(p.max_cqe)
                    .u16(p.sub_cqs_per_cq)
                    .u16(p.min_sq_wr)
                    .u16(p.max_sq_sge)
                    .u16(p.max_rq_sge)
                    .u32(p.max_mr)
                    .u32(u32::try_from(p.max_mr_pages).unwrap_or(u32::MAX))
                    .u32(p.max_pd)
                    .u32(p.max_ah)
                    .u32(p.max_llq_size)
                    .u16(p.max_rdma_sge)
                    .u16(p.max_tx_batch);
            }
            // No hints: the driver's own values are used.
            feature::HINTS => {
                out.u64(0);
            }
            feature::EVENT_QUEUES => {
                let queues = p.comp_vectors.min(VECTORS - 1);
                out.u32(queues).u32(super::events::MOST_ENTRIES).u32(1);
            }
            feature::QUEUES_2 => {
                out.u16(p.inline_buf_size_ex);
            }
            _ => return Err(Status::UNSUPPORTED),
        }
        Ok(())
    }

    fn set_feature(&mut self, command: &Command<'_>, request: &Feature) -> Result<(), Status> {
        match request.id {
            feature::AENQ => {
                let groups = request.value[1].get();
                if groups & !EVENT_GROUPS != 0 {
                    return Err(Status::ILLEGAL);
                }
                self.enabled = groups;
                Ok(())
            }
            feature::HOST => {
                let (mut release, bytes) = ([0; 128], request.buffer.length.get());
                let fits = command.buffer && bytes as usize >= release.len();
                if !fits || !self.memory.read(request.buffer.address(), &mut release) {
                    return Err(Status::ILLEGAL);
                }
                if self.options.trace {
                    let text = String::from_utf8_lossy(&release);
                    let release = text.trim_end_matches('\0').escape_default();
                    eprintln!("{}: the guest runs Linux {release}", self.name());
                }
                Ok(())
            }
            _ => Err(Status::UNSUPPORTED),
        }
    }

    fn stats(&self, request: &GetStats, out: &mut Response) -> Result<(), Status> {
        let counters = self.engine.counters();
        let get = |name: &str| counters.get(name).copied().unwrap_or(0);
        // Of the whole device: nothing is counted for each queue.
        if request.scope != 0 {
            return Err(Status::UNSUPPORTED);
        }
        let names: &[&str] = match request.kind {
            0 => &[
                "bytes_sent",
                "packets_sent",
                "bytes_received",
                "packets_received",
                "packets_wrong_qkey",
                "packets_wrong_qkey",
            ],
            1 => &["send_bytes", "sends_done", "receive_bytes", "receives_done"],
            2 => &[
                "reads_done",
                "read_bytes",
                "read_errors",
                "read_response_bytes",
            ],
            3 => &[
                "writes_done",
                "write_bytes",
                "write_errors",
                "write_received_bytes",
            ],
            4 => {
                let status = |number: u8| get(&format!("send_status_{number}"));
                let lost = get("packets_resent");
                // Bytes and packets sent again, how often time ran out, peers that stopped
                // responding, and links that were impaired.
                out.u64(lost * u64::from(self.profile.mtu))
                    .u64(lost)
                    .u64(lost)
                    .u64(status(13) + status(15))
                    .u64(0);
                return Ok(());
            }
            _ => return Err(Status::ILLEGAL),
        };
        for name in names {
            out.u64(get(name));
        }
        Ok(())
    }

    /// What has happened so far, by name.
    pub(crate) fn counters(&self) -> BTreeMap<String, u64> {
        self.engine.counters()
    }
}

fn start(index: u32, options: &Options, profile: Profile) -> io::Result<Arc<Engine>> {
    let faults: FaultPlan = options.faults.parse().map_err(|error| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the fault plan is not understood: {error}"),
        )
    })?;
    let trace = options.trace.then(|| {
        let sink: TraceSink = Arc::new(|line: &str| eprintln!("{line}"));
        sink
    });
    let ip = options.ip(index);
    Engine::start(EngineConfig {
        device_index: index,
        ip,
        gid: gid_of(ip),
        profile,
        seed: options.seed,
        faults,
        trace,
        max_rdma_size: profile.max_rdma_size,
        mtu: profile.mtu,
        first_qp: options.first_qp,
        stats: None,
    })
}
