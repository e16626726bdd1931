//! A forked child and the objects that it inherits.

use anyhow::{Context as _, Result, ensure};
use efa_tests::{Node, Remote, Test, alone, write};
use efa_verbs::{
    Access, Buffer, DataPath, DeviceCapabilities, Error, Operations, ProcessMark, QueuePairConfig,
    RecvCompletion, SendCompletion,
};

/// Runs `child` in a forked child, where an error or a panic is told by the exit status.
fn forked(child: impl FnOnce() -> Result<()>) -> Result<()> {
    // SAFETY: the child ends by `_exit`. What it does before allocates, which glibc allows after a fork;
    // it waits for no thread of the parent's.
    let id = unsafe { libc::fork() };
    ensure!(id >= 0, std::io::Error::last_os_error());
    if id == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        let good = match result {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                eprintln!("child: {error:#}");
                false
            }
            Err(_) => false,
        };
        // SAFETY: ends the child, without the handlers of the parent's exit.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: the child was made above, and `status` is valid for the write.
    ensure!(unsafe { libc::waitpid(id, &mut status, 0) } == id);
    ensure!(status == 0, "the child ended with {status:#x}");
    Ok(())
}

fn refused<T>(result: efa_verbs::Result<T>, what: &str) -> Result<()> {
    match result {
        Err(Error::ForkedProcess { .. }) => Ok(()),
        Err(error) => anyhow::bail!("{what}: {error}"),
        Ok(_) => anyhow::bail!("{what} was done"),
    }
}

fn inherited(t: &Test, path: DataPath) -> Result<()> {
    t.need(DeviceCapabilities::RDMA_WRITE)?;
    t.need_loopback()?;
    let config = QueuePairConfig {
        operations: Operations::WRITE,
        completion_channel: path == DataPath::Libefa,
        path,
        ..QueuePairConfig::default()
    };
    if path == DataPath::Direct && efa_verbs::efa_symbol_version() < 4 {
        return Err(efa_tests::skip("the direct path needs rdma-core 59"));
    }
    let mut node = Node::new(t, &config)?;
    let region = node.region(&[1; 64])?;
    let to = node.to(node.address()?)?;
    let there = Remote::from(&region).at(32);
    let request = (1, region.sge(0, 16)?, there);
    node.write(&to, &[request])?;
    node.sent_well(1)?;
    let before = t.objects()?;
    // With a session open: the child may not complete it.
    node.pair().session_start()?;
    // SAFETY: a session is open, and the node keeps region and handle longer than its queue pair.
    unsafe { node.pair().push(2, &to, write(request.1, there, None)) };

    let mark = ProcessMark::here();
    // The child takes its copy out of here and drops it; the parent's stays.
    let mut held = Some((node, region));
    forked(|| {
        ensure!(!mark.is_here());
        let (mut node, region) = held.take().context("nothing inherited")?;
        let domain = node.domain().clone();
        let pair = node.pair();
        refused(pair.session_complete(), "completing a session")?;
        refused(pair.session_start(), "a session")?;
        refused(pair.state(), "a query")?;
        refused(pair.to_error(), "a transition")?;
        refused(pair.take_events(), "taking events")?;
        pair.session_abort();
        refused(
            pair.poll_recv(&mut [RecvCompletion::default()]),
            "polling receives",
        )?;
        refused(domain.context().port().map(|_| ()), "a query of the port")?;
        refused(domain.context().gid(), "a query of the GID")?;
        refused(domain.context().alloc_pd(), "a domain")?;
        refused(
            domain.register(Buffer::zeroed(64)?, Access::LOCAL),
            "a registration",
        )?;
        refused(domain.create_address_handle(domain_gid()), "a handle")?;
        refused(domain.create_queue_pair(&config), "a queue pair")?;
        refused(region.copy_in(0, b"x"), "a copy")?;
        refused(region.copy_out(0, &mut [0]), "a copy")?;
        refused(region.register_again(Access::LOCAL), "another registration")?;
        let watch = region.watch();
        drop((node, domain, region));
        ensure!(!watch.is_deregistered(), "it was deregistered");
        Ok(())
    })?;

    // Everything is as it was, and works.
    let (mut node, _region) = held.context("the child took it")?;
    ensure!(t.objects()? == before, "the child took something away");
    node.pair().session_complete()?;
    node.sent_well(1)?;
    node.write(&to, &[request])?;
    node.sent_well(1)?;
    let polled = node.pair().poll_send(&mut [SendCompletion::default()])?;
    ensure!(polled == 0);
    Ok(())
}

fn domain_gid() -> efa_verbs::Gid {
    efa_verbs::Gid::from_bytes([1; 16])
}

#[test]
fn a_forked_child_can_neither_use_nor_destroy_what_it_inherits_through_libefa() {
    alone().run(|t| inherited(t, DataPath::Libefa));
}

#[test]
fn a_forked_child_can_neither_use_nor_destroy_what_it_inherits_on_the_direct_path() {
    alone().run(|t| inherited(t, DataPath::Direct));
}
