//! Queue pair states and the transitions between them.
//!
//! The driver's table for SRD (`srd_qp_state_table` in the EFA kernel driver's `efa_verbs.c`):
//!
//! | from | to | required attributes | optional |
//! |---|---|---|---|
//! | RESET | INIT | partition key index, port, queue key | |
//! | INIT | RTR | | partition key index, queue key |
//! | RTR | RTS | send packet number | queue key, receiver-not-ready retries |
//! | any | RESET | | |
//! | any but RESET | ERR | | |

use std::io;
use std::mem;
use std::sync::PoisonError;

use efa_sys as sys;

use super::pair::{Posting, QueuePair};
use crate::context::PORT;
use crate::error::{Error, Result};
use crate::types::{DeviceCapabilities, Feature, QpState};

/// The queue key that peers use by default.
pub const DEFAULT_QUEUE_KEY: u32 = 0x4242;

impl QueuePair {
    /// The state, as the kernel has it now.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the query fails, [`Error::ForkedProcess`].
    pub fn state(&self) -> Result<QpState> {
        self.check_process()?;
        // SAFETY: integers, newtypes and unions of integers.
        let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        // SAFETY: integers and nullable pointers.
        let mut init: sys::ibv_qp_init_attr = unsafe { mem::zeroed() };
        // The call writes what it found into the C queue pair, without a lock.
        let _alone = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue pair is alive, both structs are valid for the write, and no other thread
        // is in this call or, since it has `&mut self`, in one that reads the state.
        let error = unsafe {
            sys::ibv_query_qp(self.raw(), &mut attr, sys::IBV_QP_STATE as i32, &mut init)
        };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            return Err(Error::verb("ibv_query_qp", self.describe(), error));
        }
        Ok(QpState::from_raw(attr.qp_state))
    }

    /// The state as of the last transition made through this object; no system call.
    #[inline]
    pub fn known_state(&self) -> QpState {
        self.state
    }

    /// RESET to INIT, with the queue key that peers must present.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`]; [`Error::InvalidArgument`] for a key above 0x7fffffff, which marks
    /// privileged keys; [`Error::ForkedProcess`], as for each transition.
    pub fn to_init(&mut self, queue_key: u32) -> Result<()> {
        if queue_key > i32::MAX as u32 {
            return Err(Error::InvalidArgument {
                what: "queue key",
                reason: format!("{queue_key:#x} has the top bit set, which privileged keys have"),
            });
        }
        self.modify(
            QpState::Init,
            sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_QKEY,
            |attr| {
                attr.pkey_index = 0;
                attr.port_num = PORT;
                attr.qkey = queue_key;
            },
        )
    }

    /// INIT to RTR: from now on peers are answered.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`].
    pub fn to_rtr(&mut self) -> Result<()> {
        self.modify(QpState::Rtr, 0, |_| {})
    }

    /// RTR to RTS: from now on requests can be posted.
    ///
    /// `packet_number` is the first one sent. `rnr_retries` limits how often a send is repeated
    /// while the receiver has no buffer posted, 7 meaning forever; `None` leaves the device's
    /// default.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`]; [`Error::Unsupported`] when retries are given and the device does not
    /// have that; [`Error::InvalidArgument`] above 7.
    pub fn to_rts(&mut self, packet_number: u32, rnr_retries: Option<u8>) -> Result<()> {
        let mut mask = sys::IBV_QP_SQ_PSN;
        if let Some(retries) = rnr_retries {
            if retries > 7 {
                return Err(Error::InvalidArgument {
                    what: "receiver-not-ready retries",
                    reason: format!("{retries} is above 7, which means forever"),
                });
            }
            let context = self.domain.context();
            let needs = [(DeviceCapabilities::RNR_RETRY, Feature::RnrRetry)];
            if let Some((feature, why)) = context.attributes().missing(&needs) {
                return Err(Error::Unsupported {
                    device: context.device_name().to_owned(),
                    feature,
                    advice: why.map(Into::into),
                });
            }
            mask |= sys::IBV_QP_RNR_RETRY;
        }
        self.modify(QpState::Rts, mask, |attr| {
            attr.sq_psn = packet_number;
            attr.rnr_retry = rnr_retries.unwrap_or(0);
        })
    }

    /// To ERR: everything outstanding ends as flushed.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`]; a queue pair in RESET cannot go there.
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(QpState::Err, 0, |_| {})
    }

    /// Back to RESET.
    ///
    /// Only for a queue pair that nothing was posted to, such as after a failed transition. A used
    /// one must be destroyed and made anew: a reset does not restore the device's and libefa's
    /// positions in the queues.
    ///
    /// # Errors
    ///
    /// [`Error::Transition`]; [`Error::InvalidState`] once something was posted.
    pub fn to_reset(&mut self) -> Result<()> {
        if self.used {
            return Err(Error::InvalidState {
                queue_pair: self.number,
                action: "be reset",
                state: self.state,
                needed: "a state in which nothing was posted yet; destroy it and make a new one",
            });
        }
        self.modify(QpState::Reset, 0, |_| {})
    }

    fn modify(
        &mut self,
        to: QpState,
        mask: u32,
        fill: impl FnOnce(&mut sys::ibv_qp_attr),
    ) -> Result<()> {
        self.check_process()?;
        if self.session_is_open() {
            return Err(self.session_open());
        }
        // SAFETY: integers, newtypes and unions of integers.
        let mut attr: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        fill(&mut attr);
        attr.qp_state = to.to_raw();
        let mask = (mask | sys::IBV_QP_STATE) as i32;
        // SAFETY: the queue pair is alive, `attr` valid for the call.
        let error = unsafe { sys::ibv_modify_qp(self.raw(), &mut attr, mask) };
        if error != 0 {
            let source = io::Error::from_raw_os_error(error);
            let (queue_pair, from) = (self.number, self.state);
            return Err(Error::Transition {
                queue_pair,
                from,
                to,
                source,
            });
        }
        tracing::debug!(queue_pair = self.number, from = %self.state, %to, "transition");
        self.state = to;
        self.posting = match to {
            QpState::Rts => Posting::Ready,
            _ => Posting::NotReady,
        };
        Ok(())
    }
}
