//! The direct path against libefa: the same requests make the same bytes and the same results.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::{Rng, Test, read, run, send, skip, write};
use efa_verbs::{
    Access, AddressHandle, Buffer, DEFAULT_QUEUE_KEY, DataPath, Destination, Error, MemoryRegion,
    Operations, ProtectionDomain, QueuePair, QueuePairConfig, ReceiveRequest, RecvCompletion,
    RemoteMemory, Request, SendCompletion, Sge, VendorStatus,
};

const DEPTH: u32 = 32;
const ENTRY: usize = 64;
const LONGEST: u64 = 512;
const RECV_DEPTH: u32 = 512;

fn pair(domain: &ProtectionDomain, path: DataPath) -> Result<QueuePair> {
    let can = domain.context().attributes().capabilities;
    let mut pair = domain.create_queue_pair(&QueuePairConfig {
        send_depth: DEPTH,
        recv_depth: RECV_DEPTH,
        max_send_sge: 2,
        max_inline: 32,
        operations: Operations::supported(can),
        path,
        ..QueuePairConfig::default()
    })?;
    pair.to_init(DEFAULT_QUEUE_KEY)?;
    pair.to_rtr()?;
    pair.to_rts(0, None)?;
    Ok(pair)
}

/// A send queue's memory, as the library reports it.
struct SendQueue {
    buffer: *const u8,
    entries: u32,
    doorbell: *const u32,
}

impl SendQueue {
    fn of(pair: &QueuePair) -> Result<Self> {
        let Some(query) = efa_sys::optional().efadv_query_qp_wqs else {
            bail!("no efadv_query_qp_wqs");
        };
        // SAFETY: integers and nullable pointers.
        let (mut sq, mut rq): (efa_sys::efadv_wq_attr, efa_sys::efadv_wq_attr) =
            unsafe { mem::zeroed() };
        // SAFETY: the queue pair is alive and the structs are as large as the length says.
        let error = unsafe {
            query(
                pair.as_raw(),
                &mut sq,
                &mut rq,
                mem::size_of_val(&sq) as u32,
            )
        };
        ensure!(error == 0, "efadv_query_qp_wqs: {error}");
        ensure!(
            sq.entry_size as usize == ENTRY,
            "entries of {}",
            sq.entry_size
        );
        Ok(Self {
            buffer: sq.buffer,
            entries: sq.num_entries,
            doorbell: sq.doorbell,
        })
    }

    /// The entry at a count, without its request id: the two sides may number as they like.
    fn entry(&self, count: u32) -> [u8; ENTRY] {
        let index = (count % self.entries) as usize;
        // SAFETY: the index is inside the queue, which soft-efa keeps in ordinary memory. Nobody
        // writes it meanwhile.
        let mut entry: [u8; ENTRY] = unsafe {
            self.buffer
                .add(index * ENTRY)
                .cast::<[u8; ENTRY]>()
                .read_volatile()
        };
        entry[..2].fill(0);
        entry
    }

    fn doorbell(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.doorbell.read_volatile() }
    }
}

/// One request, as both sides are to post it.
#[derive(Clone, Debug)]
enum Posted {
    Write(RemoteMemory, Sge),
    WriteImm(RemoteMemory, Sge, u32),
    Read(RemoteMemory, Sge),
    Send(Sge),
    SendImm(Sge, u32),
    List(Vec<Sge>, Option<u32>),
    Inline(Vec<u8>, Option<u32>),
}

/// Makes requests whose memory is the region's.
struct Maker<'a> {
    local: &'a MemoryRegion,
    remote: &'a MemoryRegion,
    rng: Rng,
}

impl Maker<'_> {
    fn sge(&mut self) -> Result<Sge> {
        let length = self.rng.below(LONGEST + 1);
        let offset = self.rng.below(self.local.len() as u64 - length);
        let mut sge = self.local.sge(offset as usize, length as u32)?;
        if self.rng.one_in(50) {
            sge.lkey ^= 1;
        }
        Ok(sge)
    }

    fn there(&mut self) -> RemoteMemory {
        let mut rkey = self.remote.rkey();
        if self.rng.one_in(20) {
            rkey ^= 1;
        }
        RemoteMemory {
            addr: self.remote.addr() + self.rng.below(self.remote.len() as u64 - LONGEST),
            rkey,
        }
    }

    fn immediate(&mut self) -> u32 {
        self.rng.next_u64() as u32
    }

    fn request(&mut self) -> Result<Posted> {
        Ok(match self.rng.below(7) {
            0 => Posted::Write(self.there(), self.sge()?),
            1 => Posted::WriteImm(self.there(), self.sge()?, self.immediate()),
            2 => Posted::Read(self.there(), self.sge()?),
            3 => Posted::Send(self.sge()?),
            4 => Posted::SendImm(self.sge()?, self.immediate()),
            5 => {
                let pieces = (0..=self.rng.below(2))
                    .map(|_| self.sge())
                    .collect::<Result<_>>()?;
                let immediate = self.rng.one_in(2).then(|| self.immediate());
                Posted::List(pieces, immediate)
            }
            _ => {
                let length = self.rng.below(33) as usize;
                let bytes = self.rng.bytes(length);
                let immediate = self.rng.one_in(2).then(|| self.immediate());
                Posted::Inline(bytes, immediate)
            }
        })
    }
}

/// Pushes a request.
///
/// # Safety
///
/// A session is open; memory and address handle outlive the queue pair.
unsafe fn push(pair: &mut QueuePair, id: u64, to: &Destination, request: &Posted) {
    // SAFETY: the caller's promise.
    unsafe {
        let (one, many);
        let request = match request {
            Posted::Write(there, here) => write(*here, *there, None),
            Posted::WriteImm(there, here, imm) => write(*here, *there, Some(*imm)),
            Posted::Read(there, here) => read(*here, *there),
            Posted::Send(here) => {
                one = [*here];
                send(&one, None)
            }
            Posted::SendImm(here, imm) => {
                many = [*here];
                send(&many, Some(*imm))
            }
            Posted::List(pieces, imm) => send(pieces, *imm),
            Posted::Inline(bytes, immediate) => Request::SendInline {
                bytes,
                immediate: *immediate,
            },
        };
        pair.push(id, to, request);
    }
}

/// One of the two sides.
struct Side {
    pair: QueuePair,
    queue: SendQueue,
    outstanding: usize,
    ended: HashMap<u64, VendorStatus>,
}

impl Side {
    fn new(domain: &ProtectionDomain, path: DataPath) -> Result<Self> {
        let pair = pair(domain, path)?;
        ensure!(pair.path() == path, "{:?}", pair.path());
        Ok(Self {
            queue: SendQueue::of(&pair)?,
            pair,
            outstanding: 0,
            ended: HashMap::new(),
        })
    }

    /// Posts the requests as one session, or drops them at the end. True: posted.
    ///
    /// # Safety
    ///
    /// Memory and address handle outlive the queue pair.
    unsafe fn post(
        &mut self,
        first: u64,
        to: &Destination,
        requests: &[Posted],
        abort: bool,
    ) -> Result<bool> {
        self.pair.session_start()?;
        for (id, request) in (first..).zip(requests) {
            // SAFETY: a session is open; the rest is the caller's promise.
            unsafe { push(&mut self.pair, id, to, request) };
        }
        if abort {
            self.pair.session_abort();
            return Ok(false);
        }
        match self.pair.session_complete() {
            Ok(()) => {
                self.outstanding += requests.len();
                Ok(true)
            }
            Err(Error::SendQueueFull { capacity }) => {
                ensure!(capacity == self.queue.entries);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&mut self, most: usize) -> Result<()> {
        let mut some = [SendCompletion::default(); 16];
        let most = some.len().min(most);
        let n = self.pair.poll_send(&mut some[..most])?;
        for completion in &some[..n] {
            let before = self.ended.insert(completion.wr_id, completion.status);
            ensure!(before.is_none(), "{} ended twice", completion.wr_id);
        }
        ensure!(n <= self.outstanding, "more completions than requests");
        self.outstanding -= n;
        Ok(())
    }
}

/// The peer: takes what is sent to it, and posts its receives again.
struct Sink {
    pair: QueuePair,
    buffers: MemoryRegion,
    got: usize,
}

impl Sink {
    fn new(domain: &ProtectionDomain) -> Result<Self> {
        let len = RECV_DEPTH as usize * 2 * LONGEST as usize;
        let mut sink = Self {
            pair: pair(domain, DataPath::Auto)?,
            buffers: domain.register(Buffer::zeroed(len)?, Access::LOCAL)?,
            got: 0,
        };
        sink.post(0..u64::from(RECV_DEPTH))?;
        Ok(sink)
    }

    fn post(&mut self, ids: impl IntoIterator<Item = u64>) -> Result<()> {
        let size = 2 * LONGEST as usize;
        let requests = ids
            .into_iter()
            .map(|wr_id| {
                let buffer = self.buffers.sge(wr_id as usize * size, size as u32)?;
                Ok(ReceiveRequest { wr_id, buffer })
            })
            .collect::<Result<Vec<_>>>()?;
        // SAFETY: the buffers outlive the queue pair, and nobody looks at their bytes.
        match unsafe { self.pair.post_recv(&requests) } {
            Ok(_) => Ok(()),
            Err((_, error)) => Err(error.into()),
        }
    }

    fn poll(&mut self) -> Result<()> {
        let mut some = [RecvCompletion::default(); 64];
        let n = self.pair.poll_recv(&mut some)?;
        self.got += n;
        self.post(some[..n].iter().map(|completion| completion.wr_id))
    }
}

fn differ(t: &Test) -> Result<()> {
    t.need_soft_efa()?;
    if efa_verbs::efa_symbol_version() < 4 {
        return Err(skip("the direct path needs rdma-core 59"));
    }
    let context = t.device()?.open()?;
    t.need(efa_verbs::DeviceCapabilities::RDMA_READ)?;
    t.need(efa_verbs::DeviceCapabilities::RDMA_WRITE)?;
    let domain = context.alloc_pd()?;
    let handle: AddressHandle = domain.create_address_handle(context.gid()?)?;
    let everything = Access::LOCAL | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let local = domain.register(Buffer::zeroed(1 << 16)?, everything)?;
    let remote = domain.register(Buffer::zeroed(1 << 16)?, everything)?;
    let mut sink = Sink::new(&domain)?;
    let to = handle.destination(sink.pair.number(), DEFAULT_QUEUE_KEY);
    let mut sides = [
        Side::new(&domain, DataPath::Libefa)?,
        Side::new(&domain, DataPath::Direct)?,
    ];
    let mut maker = Maker {
        local: &local,
        remote: &remote,
        rng: t.rng(),
    };

    let (mut first, mut count) = (0, 0);
    let (mut aborted, mut full) = (0, 0);
    let ends = Instant::now() + Duration::from_secs(60);
    for _ in 0..400 {
        let requests = (0..=maker.rng.below(20))
            .map(|_| maker.request())
            .collect::<Result<Vec<_>>>()?;
        let abort = maker.rng.one_in(8);
        // What fits depends on completions: have both sides in the same position.
        let keep = maker.rng.below(u64::from(DEPTH)) as usize;
        while sides.iter().any(|side| side.outstanding > keep) {
            for side in &mut sides {
                side.poll(side.outstanding.saturating_sub(keep))?;
            }
            sink.poll()?;
            ensure!(Instant::now() < ends, "requests do not complete");
            std::thread::sleep(Duration::from_micros(20));
        }
        let mut posted = [false; 2];
        for (side, posted) in sides.iter_mut().zip(&mut posted) {
            // SAFETY: regions and handle are dropped after the queue pairs.
            *posted = unsafe { side.post(first, &to, &requests, abort) }?;
        }
        ensure!(posted[0] == posted[1], "{posted:?} for {requests:?}");
        first += requests.len() as u64;
        if !posted[0] {
            if abort {
                aborted += 1
            } else {
                full += 1
            }
            continue;
        }
        for (i, request) in requests.iter().enumerate() {
            let position = count + i as u32;
            let [theirs, ours] = [0, 1].map(|side: usize| sides[side].queue.entry(position));
            ensure!(
                theirs == ours,
                "entry {position}, {request:?}:\nlibefa {theirs:02x?}\ndirect {ours:02x?}"
            );
        }
        count += requests.len() as u32;
        let doorbells = sides.each_ref().map(|side| side.queue.doorbell());
        ensure!(
            doorbells == [count & 0xffff; 2],
            "{doorbells:?} after {count}"
        );
    }
    while sides.iter().any(|side| side.outstanding > 0) {
        for side in &mut sides {
            side.poll(16)?;
        }
        sink.poll()?;
        ensure!(Instant::now() < ends, "requests do not complete");
        std::thread::sleep(Duration::from_micros(20));
    }
    let [theirs, ours] = &sides;
    ensure!(theirs.ended.len() == count as usize);
    for (id, status) in &theirs.ended {
        ensure!(
            ours.ended.get(id) == Some(status),
            "{id}: {status} and {:?}",
            ours.ended.get(id)
        );
    }
    ensure!(
        aborted > 0 && full > 0,
        "{aborted} aborted, {full} full: too few to tell"
    );
    ensure!(
        ours.ended.values().any(|status| !status.is_ok()),
        "no request failed"
    );
    ensure!(sink.got > 0, "nothing was received");
    Ok(())
}

#[test]
fn the_direct_path_writes_what_libefa_writes() {
    run(differ);
}
