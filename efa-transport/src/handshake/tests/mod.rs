//! Tests of the handshake. `EFA_FUZZ_CASES` sets how many random cases each of them tries.

mod bytes;
mod descriptors;
mod hostile;
mod pair;
mod tcp;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::*;
use crate::address::EndpointAddress;
use efa_verbs::Gid;

/// The number of random cases: from the environment, or `default`.
fn cases(default: u64) -> u64 {
    match std::env::var("EFA_FUZZ_CASES") {
        Ok(text) => text.parse().expect("EFA_FUZZ_CASES is not a number"),
        Err(_) => default,
    }
}

fn endpoint(host: u8, queue_pair: u32, incarnation: u64) -> EndpointInfo {
    EndpointInfo {
        address: EndpointAddress::new(Gid::from_bytes([host; 16]), queue_pair, 0x4242).unwrap(),
        incarnation: Incarnation::from_number(incarnation).unwrap(),
        capabilities: Capabilities::RDMA_READ | Capabilities::MESSAGES,
        max_message: 8192,
    }
}

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets a step work until it says that it is done.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !step() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// An endpoint without a device, which checks that every install ends exactly once.
#[derive(Debug)]
struct Store {
    local: EndpointInfo,
    pending: HashMap<EndpointInfo, u32>,
    active: HashMap<EndpointAddress, EndpointInfo>,
    /// All peers that were ever installed.
    known: HashSet<EndpointInfo>,
    fails: bool,
}

impl std::hash::Hash for EndpointInfo {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.address, self.incarnation).hash(state);
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the table of handles is full")]
struct Full;

impl Store {
    fn new(local: EndpointInfo) -> Self {
        Store {
            local,
            pending: HashMap::new(),
            active: HashMap::new(),
            known: HashSet::new(),
            fails: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.active.is_empty()
    }

    fn end(&mut self, peer: &EndpointInfo) {
        let count = self.pending.get_mut(peer).expect("it is not installed");
        *count -= 1;
        if *count == 0 {
            self.pending.remove(peer);
        }
    }
}

impl PeerStore for Store {
    type Peer = EndpointInfo;
    type Error = Full;

    fn local(&self) -> EndpointInfo {
        self.local
    }

    fn install(&mut self, peer: &EndpointInfo) -> Result<(), Full> {
        if self.fails {
            return Err(Full);
        }
        *self.pending.entry(*peer).or_default() += 1;
        self.known.insert(*peer);
        Ok(())
    }

    fn activate(&mut self, peer: &EndpointInfo) -> Option<EndpointInfo> {
        self.end(peer);
        self.active.insert(peer.address, *peer);
        Some(*peer)
    }

    fn forget(&mut self, peer: &EndpointInfo) {
        self.end(peer);
    }
}
