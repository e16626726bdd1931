//! What an endpoint is made of.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use efa_verbs::{DeviceCapabilities, Operations, QueuePair, QueuePairConfig};
use rustix::event::epoll;

use super::Endpoint;
use crate::address::EndpointAddress;
use crate::config::{Config, Loopback};
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::handshake::Incarnation;
use crate::queue::{Queue, Receives, Rules, SendBuffers};
use crate::scheduler::immediates::{Immediates, MOST_VALUES};
use crate::scheduler::{Credits, Scheduler};

/// PCI device id of the p4d generation, which drops traffic of a device to itself.
const P4D: u32 = 0xefa1;

/// What the operations of the next endpoint of this process are told apart by.
static NUMBER: AtomicU32 = AtomicU32::new(1);

impl Endpoint {
    pub(super) fn make(domain: &Domain, config: Config) -> Result<Self> {
        config.check()?;
        let made = Made::new(domain, &config)?;
        let receives = match config.receive_pool.buffers {
            0 => Receives::NONE,
            buffers => {
                let most = made.rules.max_message;
                let size = config.receive_pool.size.unwrap_or(most).min(most);
                Receives::new(domain, buffers, size)?
            }
        };
        let scheduler = Scheduler::new(
            NUMBER.fetch_add(1, Ordering::Relaxed),
            domain.id(),
            made.credits(),
            config.max_operations,
            made.rules.max_request,
        );
        let incarnation = Incarnation::random();
        let address = made.address;
        let send_buffers = SendBuffers::new(domain);
        tracing::debug!(device = made.rules.device(), %incarnation, %address, "endpoint made");
        let endpoint = Self {
            queue: Queue::new(made.pair, made.rules, scheduler, receives, send_buffers),
            config,
            domain: domain.clone(),
            address,
            incarnation,
            immediates: Immediates::new(MOST_VALUES),
            events: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?,
            held_back: false,
        };
        if let Some(event) = endpoint.queue.receives.event() {
            watch(&endpoint.events, event)?;
        }
        if let Some(channel) = endpoint.queue.pair().completion_channel() {
            watch(&endpoint.events, channel)?;
        }
        Ok(endpoint)
    }

    /// Whether transfers to this address are copied by the CPU.
    pub(super) fn is_local(&self, address: EndpointAddress) -> bool {
        if self.config.loopback == Loopback::Device || address.gid() != self.domain.gid() {
            return false;
        }
        let own = address.queue_pair() == self.address.queue_pair();
        own || self.domain.attributes().vendor_part_id == P4D
    }
}

/// Makes an event of this descriptor one of the endpoint's.
pub(super) fn watch(events: &OwnedFd, fd: impl AsFd) -> Result<()> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(events, fd, data, epoll::EventFlags::IN).map_err(std::io::Error::from)?;
    Ok(())
}

/// The queue pair that a configuration asks for, and what can be done with it.
pub(super) struct Made {
    pub(super) pair: QueuePair,
    pub(super) rules: Rules,
    pub(super) address: EndpointAddress,
}

impl Made {
    pub(super) fn new(domain: &Domain, config: &Config) -> Result<Self> {
        let attributes = domain.attributes();
        let capabilities = attributes.capabilities;
        let mut operations = Operations::supported(capabilities);
        if attributes.max_rdma_size == 0 {
            operations = Operations::SEND | Operations::SEND_WITH_IMMEDIATE;
        }
        let max_request = match config.max_request {
            None => attributes.max_rdma_size,
            Some(limit) if limit == 0 || limit > attributes.max_rdma_size => {
                return Err(Error::TooLong {
                    what: "Config::max_request",
                    length: limit.into(),
                    limit: attributes.max_rdma_size.into(),
                });
            }
            Some(limit) => limit,
        };
        let receive_depth = config.receive_pool.buffers;
        let mut wanted = QueuePairConfig {
            send_depth: config.send_depth,
            recv_depth: receive_depth,
            max_inline: u32::from(attributes.inline_buf_size),
            operations,
            completion_channel: config.events,
            source_gid: capabilities.contains(DeviceCapabilities::CQ_WITH_SGID)
                && receive_depth > 0,
            path: config.path,
            ..QueuePairConfig::default()
        };
        let pd = domain.protection_domain();
        let pair = match pd.create_queue_pair(&wanted) {
            // The device has it, and the library is too old to offer it: go without.
            Err(
                efa_verbs::Error::Unsupported {
                    feature: efa_verbs::Feature::SourceGid,
                    ..
                }
                | efa_verbs::Error::MissingEntryPoints { .. },
            ) if wanted.source_gid => {
                wanted.source_gid = false;
                pd.create_queue_pair(&wanted)?
            }
            made => made?,
        };
        let address = EndpointAddress::new(domain.gid(), pair.number(), config.queue_key);
        let address = address.map_err(|error| efa_verbs::Error::InvalidArgument {
            what: "the endpoint's own address",
            reason: error.to_string(),
        })?;
        let rules = Rules::new(domain, operations, max_request, pair.max_inline());
        Ok(Self {
            pair,
            rules,
            address,
        })
    }

    /// As many as the send queue has places: its completion queue is made as large.
    pub(super) fn credits(&self) -> Credits {
        Credits::new(self.pair.send_capacity(), self.pair.send_capacity())
    }
}
