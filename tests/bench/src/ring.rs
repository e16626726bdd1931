//! Waiting until completions are there, without polling them.

use std::mem;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_verbs::QueuePair;

/// A queue pair's completion ring, looked at and not touched.
pub struct Ring {
    buffer: *const u8,
    entry_size: usize,
    entries: u32,
    /// Completions waited for so far.
    seen: u32,
}

impl Ring {
    /// The ring of a new queue pair's sends, which must outlive the result.
    pub fn of(pair: &QueuePair) -> Result<Self> {
        let query = efa_sys::optional()
            .efadv_query_cq
            .context("counting needs rdma-core 59 or newer, which tells where the rings are")?;
        // SAFETY: integers and nullable pointers.
        let mut attr: efa_sys::efadv_cq_attr_ex = unsafe { mem::zeroed() };
        // SAFETY: the queue pair and with it its completion queue are alive; `attr` is as large as the
        // length says.
        let error = unsafe {
            let queue = efa_sys::qp_send_cq(pair.as_raw());
            query(queue, &mut attr, mem::size_of_val(&attr) as u32)
        };
        ensure!(error == 0, "efadv_query_cq failed with error {error}");
        Ok(Self {
            buffer: attr.buffer,
            entry_size: attr.entry_size as usize,
            entries: attr.num_entries,
            seen: 0,
        })
    }

    /// Sleeps until `count` more completions are in the ring.
    pub fn wait(&mut self, count: u32) -> Result<()> {
        let last = self.seen + count - 1;
        let phase = (last / self.entries + 1) & 1;
        let offset = (last % self.entries) as usize * self.entry_size + 3;
        for _ in 0..300_000 {
            // SAFETY: inside the ring, which is mapped as long as the queue pair lives.
            let flags = unsafe { self.buffer.add(offset).read_volatile() };
            if u32::from(flags & 1) == phase {
                self.seen += count;
                return Ok(());
            }
            // Not spinning: valgrind runs one thread at a time.
            thread::sleep(Duration::from_micros(100));
        }
        bail!("{count} completions did not arrive in half a minute");
    }
}
