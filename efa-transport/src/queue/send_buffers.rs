//! Registered buffers for messages that are sent from plain bytes.

use efa_verbs::{Access, Buffer};

use crate::domain::Domain;
use crate::error::{Error, Full, Result};
use crate::region::Region;

/// Most buffers of an endpoint.
const MOST: usize = 64;

/// Buffers of the longest message each, made when they are first needed.
pub(crate) struct SendBuffers {
    domain: Domain,
    buffers: Vec<Region>,
    /// Where to look first.
    next: usize,
}

impl SendBuffers {
    pub(crate) fn new(domain: &Domain) -> Self {
        Self {
            domain: domain.clone(),
            buffers: Vec::new(),
            next: 0,
        }
    }

    /// A buffer that no operation uses, with these bytes at its beginning.
    pub(crate) fn copy_of(&mut self, bytes: &[u8]) -> Result<Region> {
        let region = self.idle()?;
        region.copy_in(0, bytes)?;
        Ok(region)
    }

    fn idle(&mut self) -> Result<Region> {
        let count = self.buffers.len();
        let mut places = (0..count).map(|i| (self.next + i) % count);
        if let Some(at) = places.find(|&at| self.buffers[at].is_idle()) {
            self.next = at + 1;
            return Ok(self.buffers[at].clone());
        }
        if count >= MOST {
            return Err(Error::Full(Full::SendBuffers));
        }
        let buffer = Buffer::zeroed(self.domain.max_message_size() as usize)?;
        let region = self.domain.register_private(buffer, Access::LOCAL)?;
        self.buffers.push(region.clone());
        Ok(region)
    }
}
