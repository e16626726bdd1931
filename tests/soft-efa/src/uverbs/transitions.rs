//! Which changes of a queue pair the driver permits, and with which attributes.

use super::abi::qp_mask::{
    CUR_STATE, EN_SQD_ASYNC_NOTIFY, PKEY_INDEX, PORT, QKEY, RNR_RETRY, SQ_PSN, STATE,
};

/// `IB_QPS_*`.
pub(crate) const RESET: u8 = 0;
pub(crate) const INIT: u8 = 1;
pub(crate) const RTR: u8 = 2;
pub(crate) const RTS: u8 = 3;
pub(crate) const SQD: u8 = 4;
pub(crate) const SQE: u8 = 5;
pub(crate) const ERR: u8 = 6;

/// Attributes that must be given, and those that may be.
type Attributes = (u32, u32);

/// The table for scalable reliable datagrams (`srd_qp_state_table` of the driver). The one for
/// datagrams (of the kernel's core) is the same but for the retry count.
fn transition(from: u8, to: u8, srd: bool) -> Option<Attributes> {
    match (from, to) {
        (RESET, RESET) => Some((0, 0)),
        (RESET, INIT) => Some((PKEY_INDEX | PORT | QKEY, 0)),
        (INIT..=ERR, RESET | ERR) => Some((0, 0)),
        (INIT, INIT) => Some((0, PKEY_INDEX | PORT | QKEY)),
        (INIT, RTR) | (SQD, SQD) => Some((0, PKEY_INDEX | QKEY)),
        (RTR, RTS) => Some((SQ_PSN, CUR_STATE | QKEY | if srd { RNR_RETRY } else { 0 })),
        (RTS | SQD | SQE, RTS) => Some((0, CUR_STATE | QKEY)),
        (RTS, SQD) => Some((0, EN_SQD_ASYNC_NOTIFY)),
        _ => None,
    }
}

/// Whether a change from `from` to `to` with the attributes in `mask` is in the table.
pub(crate) fn is_permitted(from: u8, to: u8, mask: u32, srd: bool) -> bool {
    if mask & CUR_STATE != 0 && !matches!(from, RTR | RTS | SQD | SQE) {
        return false;
    }
    transition(from, to, srd).is_some_and(|(required, optional)| {
        mask & required == required && mask & !(required | optional | STATE) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_up_needs_exactly_its_attributes() {
        let up = [
            (RESET, INIT, PKEY_INDEX | PORT | QKEY),
            (INIT, RTR, 0),
            (RTR, RTS, SQ_PSN),
        ];
        for (from, to, required) in up {
            assert!(is_permitted(from, to, STATE | required, true));
            for bit in (0..26)
                .map(|bit| 1 << bit)
                .filter(|bit| required & bit != 0)
            {
                assert!(
                    !is_permitted(from, to, STATE | required & !bit, true),
                    "{from}→{to} without {bit:#x}"
                );
            }
        }
        assert!(!is_permitted(
            RESET,
            INIT,
            STATE | PKEY_INDEX | PORT | QKEY | SQ_PSN,
            true
        ));
        assert!(is_permitted(INIT, RTR, STATE | QKEY | PKEY_INDEX, true));
        assert!(!is_permitted(INIT, RTR, STATE | PORT, true));
    }

    #[test]
    fn every_state_but_reset_goes_to_error() {
        for from in INIT..=ERR {
            assert!(is_permitted(from, ERR, STATE, true));
            assert!(is_permitted(from, RESET, STATE, true));
        }
        assert!(!is_permitted(RESET, ERR, STATE, true));
    }

    #[test]
    fn steps_can_t_be_skipped() {
        for (from, to) in [
            (RESET, RTR),
            (RESET, RTS),
            (INIT, RTS),
            (RTR, RTR),
            (RTR, INIT),
            (ERR, RTS),
            (SQD, INIT),
        ] {
            assert!(
                !is_permitted(from, to, STATE | PKEY_INDEX | PORT | QKEY | SQ_PSN, true),
                "{from}→{to}"
            );
            assert!(!is_permitted(from, to, STATE, true), "{from}→{to}");
        }
    }

    #[test]
    fn the_retry_count_belongs_to_srd() {
        assert!(is_permitted(RTR, RTS, STATE | SQ_PSN | RNR_RETRY, true));
        assert!(!is_permitted(RTR, RTS, STATE | SQ_PSN | RNR_RETRY, false));
        assert!(!is_permitted(RTS, RTS, RNR_RETRY, true));
    }

    #[test]
    fn a_stated_current_state_makes_sense_late_only() {
        assert!(is_permitted(RTS, RTS, STATE | CUR_STATE, true));
        assert!(!is_permitted(INIT, RTR, STATE | CUR_STATE, true));
    }
}
