//! Bringing a queue pair up: RESET, INIT, RTR, RTS, and what happens when a step fails.

use efa_verbs::{QpState, QueuePair};

use crate::address::EndpointAddress;
use crate::error::Error;

/// The transitions that connecting needs; a seam for tests.
pub(crate) trait Transitions {
    /// The state as far as this side knows it.
    fn known(&self) -> QpState;
    /// The state as the device has it.
    fn actual(&self) -> QpState;
    fn to_init(&mut self, queue_key: u32) -> Result<(), efa_verbs::Error>;
    fn to_rtr(&mut self) -> Result<(), efa_verbs::Error>;
    fn to_rts(&mut self, rnr_retries: Option<u8>) -> Result<(), efa_verbs::Error>;
    fn to_reset(&mut self) -> Result<(), efa_verbs::Error>;
}

impl Transitions for QueuePair {
    fn known(&self) -> QpState {
        self.known_state()
    }

    fn actual(&self) -> QpState {
        self.state().unwrap_or(QpState::Unknown)
    }

    fn to_init(&mut self, queue_key: u32) -> Result<(), efa_verbs::Error> {
        QueuePair::to_init(self, queue_key)
    }

    fn to_rtr(&mut self) -> Result<(), efa_verbs::Error> {
        QueuePair::to_rtr(self)
    }

    fn to_rts(&mut self, rnr_retries: Option<u8>) -> Result<(), efa_verbs::Error> {
        QueuePair::to_rts(self, 0, rnr_retries)
    }

    fn to_reset(&mut self) -> Result<(), efa_verbs::Error> {
        QueuePair::to_reset(self)
    }
}

/// A step failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: &'static str,
    /// Where the queue pair is now.
    pub(crate) state: QpState,
    pub(crate) source: efa_verbs::Error,
}

impl Failed {
    pub(crate) fn with(self, address: EndpointAddress) -> Error {
        Error::Connect {
            address,
            step: self.step,
            state: self.state,
            source: self.source,
        }
    }
}

/// Takes a queue pair in RESET to RTS. One that is in RTS already stays as it is. If a
/// transition fails, the queue pair goes back to RESET, so that connecting can be tried
/// again; if that fails too, the error says in which state it was left.
pub(crate) fn bring_up(
    pair: &mut impl Transitions,
    queue_key: u32,
    rnr_retries: Option<u8>,
) -> Result<(), Failed> {
    if pair.known() == QpState::Rts {
        return Ok(());
    }
    for step in ["RESET to INIT", "INIT to RTR", "RTR to RTS"] {
        let done = match step {
            "RESET to INIT" => pair.to_init(queue_key),
            "INIT to RTR" => pair.to_rtr(),
            _ => pair.to_rts(rnr_retries),
        };
        if let Err(source) = done {
            let state = match pair.to_reset() {
                Ok(()) => QpState::Reset,
                Err(_) => pair.actual(),
            };
            return Err(Failed {
                step,
                state,
                source,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        state: QpState,
        fail_at: Option<QpState>,
        reset_fails: bool,
        log: Vec<QpState>,
    }

    impl Fake {
        fn go(&mut self, to: QpState) -> Result<(), efa_verbs::Error> {
            self.log.push(to);
            if self.fail_at == Some(to) || (to == QpState::Reset && self.reset_fails) {
                return Err(efa_verbs::Error::ZeroGid);
            }
            self.state = to;
            Ok(())
        }
    }

    impl Transitions for Fake {
        fn known(&self) -> QpState {
            self.state
        }
        fn actual(&self) -> QpState {
            self.state
        }
        fn to_init(&mut self, _: u32) -> Result<(), efa_verbs::Error> {
            self.go(QpState::Init)
        }
        fn to_rtr(&mut self) -> Result<(), efa_verbs::Error> {
            self.go(QpState::Rtr)
        }
        fn to_rts(&mut self, _: Option<u8>) -> Result<(), efa_verbs::Error> {
            self.go(QpState::Rts)
        }
        fn to_reset(&mut self) -> Result<(), efa_verbs::Error> {
            self.go(QpState::Reset)
        }
    }

    fn fake(fail_at: Option<QpState>, reset_fails: bool) -> Fake {
        Fake {
            state: QpState::Reset,
            fail_at,
            reset_fails,
            log: vec![],
        }
    }

    #[test]
    fn the_way_up_is_init_rtr_rts_and_the_second_time_nothing() {
        let mut pair = fake(None, false);
        bring_up(&mut pair, 1, None).unwrap();
        bring_up(&mut pair, 1, None).unwrap();
        assert_eq!(pair.log, [QpState::Init, QpState::Rtr, QpState::Rts]);
    }

    #[test]
    fn a_failed_transition_goes_back_to_reset_and_can_be_tried_again() {
        for (at, step) in [
            (QpState::Init, "RESET to INIT"),
            (QpState::Rtr, "INIT to RTR"),
            (QpState::Rts, "RTR to RTS"),
        ] {
            let mut pair = fake(Some(at), false);
            let failed = bring_up(&mut pair, 1, None).unwrap_err();
            assert_eq!((failed.step, failed.state), (step, QpState::Reset));
            assert_eq!(pair.state, QpState::Reset);
            pair.fail_at = None;
            bring_up(&mut pair, 1, None).unwrap();
            assert_eq!(pair.state, QpState::Rts);
        }
    }

    #[test]
    fn where_reset_fails_too_the_state_is_named() {
        let mut pair = fake(Some(QpState::Rts), true);
        let failed = bring_up(&mut pair, 1, None).unwrap_err();
        assert_eq!(failed.state, QpState::Rtr);
    }
}
