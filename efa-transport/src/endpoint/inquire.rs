//! Asking peers whether they have taken our immediates. See [`crate::grant`].

use efa_verbs::{Access, Buffer};

use super::Endpoint;
use crate::error::{Error, Result};
use crate::failure::FailureKind;
use crate::flow::GrantId;
use crate::grant::{Found, find};

/// Inquiries under way at a time.
const BUFFERS: usize = 16;

impl Endpoint {
    /// Takes answers, and asks whom it is time to ask. Returns how many answers there were.
    pub(super) fn inquire(&mut self) -> Result<usize> {
        let mut answers = 0;
        while let Some((tag, failure)) = self.core.flow.take_inquired() {
            answers += 1;
            let (id, buffer) = of_tag(tag);
            let found = match failure {
                None => self.read_answer(id, buffer),
                Some(kind) => Found::Failed(kind),
            };
            if let Some(buffer) = self.inquiry_buffers.get_mut(buffer) {
                buffer.1 = false;
            }
            self.core.flow.answered(id, found);
        }
        while self.core.flow.credits.free() > 0 {
            let Some(buffer) = self.inquiry_buffer()? else {
                break;
            };
            let Some((id, peer, what)) = self.core.flow.next_inquiry() else {
                break;
            };
            let region = self.inquiry_buffers[buffer].0.clone();
            let tag = tag_of(id, buffer);
            let posted = region
                .slice(..what.len().min(region.len()))
                .and_then(|part| {
                    let what = what.slice(..part.len())?;
                    self.core.post(&self.rules, |session| {
                        session.inquire(peer, part, what, tag)
                    })
                });
            match posted {
                Ok(_) => {
                    self.core.flow.inquiring();
                    self.inquiry_buffers[buffer].1 = true;
                }
                Err(error) => {
                    tracing::debug!(%peer, %error, "can't ask for the grant");
                    let found = match &error {
                        Error::PostFailed { source, .. } => Found::Failed(FailureKind::Post {
                            errno: source.raw_os_error().unwrap_or(0),
                        }),
                        _ => Found::Nothing,
                    };
                    self.core.flow.answered(id, found);
                    break;
                }
            }
        }
        if answers > 0 && self.core.flow.has_waiting() {
            self.core.pump()?;
        }
        Ok(answers)
    }

    fn read_answer(&self, id: GrantId, buffer: usize) -> Found {
        let Some((region, _)) = self.inquiry_buffers.get(buffer) else {
            return Found::Nothing;
        };
        let Some((first, length)) = self.core.flow.inquiry(id) else {
            return Found::Nothing;
        };
        let length = length.min(region.len());
        match region.to_vec(..length) {
            Ok(bytes) => find(&bytes, first, self.incarnation.number()),
            Err(_) => Found::Nothing,
        }
    }

    /// A buffer that no inquiry uses.
    fn inquiry_buffer(&mut self) -> Result<Option<usize>> {
        if let Some(at) = self.inquiry_buffers.iter().position(|(_, used)| !used) {
            return Ok(Some(at));
        }
        if self.inquiry_buffers.len() >= BUFFERS {
            return Ok(None);
        }
        let bytes = super::TABLE_SLOTS as usize * crate::grant::SLOT as usize;
        let region = self
            .domain
            .register_private(Buffer::zeroed(bytes)?, Access::LOCAL)?;
        self.inquiry_buffers.push((region, false));
        Ok(Some(self.inquiry_buffers.len() - 1))
    }
}

/// An inquiry's tag: index (32), serial (24), buffer (8).
fn tag_of(id: GrantId, buffer: usize) -> u64 {
    u64::from(id.at) | u64::from(id.serial) << 32 | (buffer as u64) << 56
}

fn of_tag(tag: u64) -> (GrantId, usize) {
    let id = GrantId {
        at: tag as u32,
        serial: (tag >> 32) as u32 & 0xff_ffff,
    };
    (id, (tag >> 56) as usize)
}
