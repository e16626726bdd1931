//! What happened, in numbers, so that a test can prove that a fault or a reordering took place.

use std::collections::BTreeMap;

use super::entry::{Op, Status};
use crate::stats;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one device.
        #[derive(Clone, Debug)]
        pub(super) struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Send-side completions by vendor status.
            pub send_status: [u64; 32],
            /// Receive-side completions by vendor status.
            pub recv_status: [u64; 32],
        }

        impl Counters {
            pub(super) fn new() -> Self {
                Self { $($name: 0,)* send_status: [0; 32], recv_status: [0; 32] }
            }

            /// Every counter by name. Statuses that never occurred are left out.
            pub(super) fn to_map(&self) -> BTreeMap<String, u64> {
                let mut map = BTreeMap::new();
                $(map.insert(stringify!($name).to_owned(), self.$name);)*
                for (side, list) in [("send", &self.send_status), ("recv", &self.recv_status)] {
                    for (status, count) in list.iter().enumerate().filter(|(_, n)| **n > 0) {
                        map.insert(format!("{side}_status_{status}"), *count);
                    }
                }
                map
            }
        }
    };
}

counters! {
    /// Data packets handed to the network, resent ones and duplicates included.
    packets_sent,
    /// Data packets that arrived and were valid.
    packets_received,
    /// Data packets that the fault plan lost.
    packets_lost,
    /// Data packets sent again because no acknowledgement came.
    packets_resent,
    /// Data packets that the fault plan sent twice.
    packets_duplicated,
    /// Data packets that the fault plan held back for a time.
    packets_delayed,
    /// Data packets that the fault plan changed.
    packets_corrupted,
    /// Data packets that the plan's link cut swallowed, either way.
    packets_cut,
    /// Data packets whose payload was taken straight from the sender's process.
    packets_near,
    /// Data packets that arrived after a later one of the same sender.
    packets_out_of_order,
    /// Data packets that had arrived before; they changed nothing.
    packets_repeated,
    /// Data packets for a message older than everything the sender still waits for.
    packets_stale,
    /// Data packets dropped because of their queue key.
    packets_wrong_qkey,
    /// Datagrams that were not soft-efa's, or damaged; they changed nothing.
    datagrams_malformed,
    /// Datagrams meant for an earlier owner of a queue pair's number.
    datagrams_wrong_incarnation,
    /// Datagrams handed to the network.
    datagrams_sent,
    /// Datagrams that arrived.
    datagrams_received,
    /// Datagrams that the system refused to take; they count as lost on the wire.
    datagrams_refused,
    /// Acknowledgements sent.
    acks_sent,
    /// Acknowledgements received.
    acks_received,
    /// Payload bytes sent, resent ones included.
    bytes_sent,
    /// Payload bytes that landed in memory.
    bytes_received,
    /// Requests fetched from send queues.
    requests_posted,
    /// Requests fetched from receive queues.
    receives_posted,
    /// Send-side completions written.
    completions_send,
    /// Receive-side completions written.
    completions_recv,
    /// Send-side completions written before that of an earlier request of the same queue pair.
    completions_out_of_order,
    /// Receive-side completions without a posted receive.
    completions_unsolicited,
    /// Completions that the fault plan made up.
    completions_injected,
    /// Completions written over ones that the program had not polled yet.
    cq_overruns,
    /// Completion events raised.
    cq_events,
    /// Answers "receiver not ready" sent.
    rnr_sent,
    /// Answers "receiver not ready" received.
    rnr_received,
    /// Doorbell values that no program could have meant.
    doorbells_invalid,
    /// Allocation verbs that the fault plan let fail.
    allocations_failed,
    /// Sends that ended well.
    sends_done,
    /// Their bytes.
    send_bytes,
    /// Sends received.
    receives_done,
    /// Their bytes.
    receive_bytes,
    /// Reads that ended well.
    reads_done,
    /// Their bytes.
    read_bytes,
    /// Reads that failed.
    read_errors,
    /// Bytes sent in answer to reads.
    read_response_bytes,
    /// Writes that ended well.
    writes_done,
    /// Their bytes.
    write_bytes,
    /// Writes that failed.
    write_errors,
    /// Bytes of writes that landed here.
    write_received_bytes,
    /// Times a peer's queue pair turned out to be another one than before.
    peers_reset,
}

impl Counters {
    /// Counts a request that ended.
    pub(super) fn ended(&mut self, op: Op, len: u64, status: Status) {
        let (done, bytes, errors) = match op {
            Op::Send => (&mut self.sends_done, &mut self.send_bytes, None),
            Op::Read => (
                &mut self.reads_done,
                &mut self.read_bytes,
                Some(&mut self.read_errors),
            ),
            Op::Write => (
                &mut self.writes_done,
                &mut self.write_bytes,
                Some(&mut self.write_errors),
            ),
        };
        if status == Status::OK {
            *done += 1;
            *bytes += len;
        } else if let Some(errors) = errors {
            *errors += 1;
        }
    }

    /// What a device tells of itself, in the order of [`stats::NAMES`].
    pub(super) fn hardware(&self) -> stats::Values {
        [
            self.bytes_sent,
            self.packets_sent,
            self.bytes_received,
            self.packets_received,
            self.packets_wrong_qkey,
            self.send_bytes,
            self.sends_done,
            self.receive_bytes,
            self.receives_done,
            self.reads_done,
            self.read_bytes,
            self.read_errors,
            self.read_response_bytes,
            self.writes_done,
            self.write_bytes,
            self.write_errors,
            self.write_received_bytes,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_appear_once_they_occurred() {
        let mut counters = Counters::new();
        assert_eq!(counters.to_map()["packets_sent"], 0);
        assert!(!counters.to_map().contains_key("send_status_7"));
        counters.send_status[7] += 2;
        assert_eq!(counters.to_map()["send_status_7"], 2);
    }
}
