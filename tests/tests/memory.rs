//! Memory that is not an ordinary buffer, and who a message came from.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, bail, ensure};
use efa_tests::{Node, Remote, Test, run, skip};
use efa_verbs::VendorStatus;
use efa_verbs::{
    Access, Buffer, DeviceCapabilities, Error, Feature, Operations, Pages, QueuePairConfig,
};

fn config(t: &Test) -> Result<QueuePairConfig> {
    let can = t.device()?.open()?.attributes().capabilities;
    Ok(QueuePairConfig {
        operations: Operations::supported(can),
        ..QueuePairConfig::default()
    })
}

/// A file in memory, which soft-efa takes for a dmabuf.
fn memory_file(len: u64) -> Result<File> {
    let name = CString::new("dmabuf")?;
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    ensure!(fd >= 0, std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len)?;
    Ok(file)
}

#[test]
fn a_dmabuf_is_named_by_the_addresses_it_was_given() {
    run(|t| {
        t.need_soft_efa()?;
        t.not_in_a_guest("the real kernel takes no other file for a dmabuf")?;
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let mut node = Node::new(t, &config(t)?)?;
        let file = memory_file(1 << 16)?;
        let (offset, len, iova) = (8192, 16384, 0x7000_0000_0000);
        let access = Access::LOCAL | Access::REMOTE_WRITE;
        let made = node
            .domain()
            .register_dmabuf(file.as_fd(), offset, len, iova, access);
        let region = match made {
            Ok(region) => region,
            Err(Error::Unsupported {
                feature: Feature::DmaBuf,
                ..
            }) => {
                return Err(skip("this rdma-core or its ABI does not register dmabufs"));
            }
            Err(error) => return Err(error.into()),
        };
        ensure!(region.addr() == iova && region.len() == len);
        ensure!(region.as_ptr().is_null());
        for result in [region.copy_in(0, b"x"), region.copy_out(0, &mut [0])] {
            ensure!(
                matches!(result, Err(Error::InvalidArgument { .. })),
                "{result:?}"
            );
        }

        // From an ordinary buffer into the dmabuf, and from there into another one.
        let bytes = t.rng().bytes(1000);
        let source = node.region(&bytes)?;
        let target = node.region(&[0; 1000])?;
        let to = node.to(node.address()?)?;
        node.write(
            &to,
            &[(1, source.sge(0, 1000)?, Remote::from(&region).at(100))],
        )?;
        node.sent_well(1)?;
        let mut found = vec![0; 1000];
        file.read_exact_at(&mut found, offset + 100)?;
        ensure!(
            found == bytes,
            "the dmabuf does not have the bytes at its offset"
        );
        node.write(
            &to,
            &[(2, region.sge(100, 1000)?, Remote::from(&target).at(0))],
        )?;
        node.sent_well(1)?;
        target.copy_out(0, &mut found)?;
        ensure!(found == bytes);
        ensure!(
            matches!(region.deregister(), Ok(None)),
            "a dmabuf is no buffer to give back"
        );
        Ok(())
    });
}

#[test]
fn addresses_of_a_dmabuf_do_not_wrap_around() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let file = memory_file(8192)?;
        match domain.register_dmabuf(file.as_fd(), 0, 8192, u64::MAX - 4095, Access::LOCAL) {
            Err(Error::InvalidArgument { what: "iova", .. }) => Ok(()),
            other => bail!("{other:?}"),
        }
    });
}

#[test]
fn buffers_on_large_pages_are_registered_and_transferred() {
    run(|t| {
        t.need_loopback()?;
        let mut node = Node::new(t, &config(t)?)?;
        let to = node.to(node.address()?)?;
        for pages in [Pages::Transparent, Pages::Huge2M] {
            let mut buffer = match Buffer::with_pages(3 << 20, pages) {
                Ok(buffer) => buffer,
                // Without reserved pages there is nothing to test.
                Err(error) if pages == Pages::Huge2M => {
                    ensure!(error.to_string().contains("nr_hugepages"), "{error}");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let last = buffer.len() - 64;
            buffer[last..].copy_from_slice(&[9; 64]);
            let region = node.domain().register(buffer, Access::LOCAL)?;
            node.receive(&[(1, region.sge(0, 64)?)])?;
            node.send(&to, &[(2, region.sge(last, 64)?)])?;
            node.sent_well(1)?;
            ensure!(node.received(1)?[0].byte_len == 64);
            let buffer = region.deregister().ok().flatten();
            let buffer = buffer.context("the region is shared")?;
            ensure!(buffer[..64] == [9; 64]);
        }
        Ok(())
    });
}

#[test]
fn ranges_outside_of_a_region_are_refused() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let region = domain.register(Buffer::from(vec![0; 100]), Access::LOCAL)?;
        region.copy_in(100, &[])?;
        region.sge(0, 100)?;
        for (offset, len) in [
            (100, 1),
            (0, 101),
            (usize::MAX, 1),
            (usize::MAX, 0),
            (101, 0),
        ] {
            let bytes = vec![0; len];
            for error in [
                region.copy_in(offset, &bytes).err(),
                region.copy_out(offset, &mut vec![0; len]).err(),
                region.sge(offset, len as u32).err(),
            ] {
                ensure!(
                    matches!(error, Some(Error::InvalidArgument { .. })),
                    "{offset} {len}: {error:?}"
                );
            }
        }
        Ok(())
    });
}

#[test]
fn an_empty_region_is_refused_and_a_read_only_one_is_not_written() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        match domain.register(Buffer::zeroed(0)?, Access::LOCAL) {
            Err(Error::InvalidArgument { what: "length", .. }) => {}
            other => bail!("{other:?}"),
        }
        let text = b"constant";
        // SAFETY: the bytes live as long as the program, and are registered for reading.
        let region = unsafe {
            domain.register_raw(text.as_ptr().cast_mut(), text.len(), Access::LOCAL_READ)?
        };
        ensure!(region.copy_in(0, b"C").is_err());
        let mut bytes = [0; 8];
        region.copy_out(0, &mut bytes)?;
        ensure!(&bytes == text);
        Ok(())
    });
}

#[test]
fn a_sender_is_known_by_its_handle_and_otherwise_by_its_gid() {
    run(|t| {
        t.need(DeviceCapabilities::CQ_WITH_SGID)?;
        t.need_loopback()?;
        let config = QueuePairConfig {
            source_gid: true,
            ..config(t)?
        };
        // Contexts of their own: a handle of one is not one of the other.
        let (mut a, mut b) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let source = a.region(&[1; 16])?;
        let target = b.region(&[0; 64])?;
        let address = a.address()?;
        let to = a.to(b.address()?)?;
        b.receive(&[(1, target.sge(0, 16)?), (2, target.sge(16, 16)?)])?;

        a.send(&to, &[(1, source.sge(0, 16)?)])?;
        a.sent_well(1)?;
        let stranger = b.received(1)?[0];
        ensure!(stranger.src_qp == address.queue_pair, "{stranger:?}");
        ensure!(stranger.src_handle.is_none(), "{stranger:?}");
        ensure!(
            stranger.src_gid.map(efa_verbs::Gid::to_bytes) == Some(address.gid),
            "{stranger:?}"
        );

        let handle = b
            .domain()
            .create_address_handle(efa_verbs::Gid::from_bytes(address.gid))?;
        a.send(&to, &[(2, source.sge(0, 16)?)])?;
        a.sent_well(1)?;
        let known = b.received(1)?[0];
        ensure!(known.src_handle == Some(handle.number()), "{known:?}");
        ensure!(known.src_gid.is_none(), "{known:?}");
        Ok(())
    });
}

/// A page that is mapped for reading only, unmapped on drop.
struct ReadOnly(*mut u8);

impl ReadOnly {
    fn new() -> Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice disturbs nothing.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0) };
        ensure!(at != libc::MAP_FAILED, std::io::Error::last_os_error());
        Ok(Self(at.cast()))
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the regions of it are dropped before.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

#[test]
fn memory_mapped_for_reading_is_a_source_and_refuses_copies_into_it() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let can = domain.context().attributes().capabilities;
        let memory = ReadOnly::new()?;
        let mut kinds = vec![Access::LOCAL_READ];
        if can.contains(DeviceCapabilities::RDMA_READ) {
            kinds.push(Access::REMOTE_READ);
        }
        for access in kinds {
            // SAFETY: the page is mapped for longer, readable, and nobody refers to it.
            let region = unsafe { domain.register_raw(memory.0, 4096, access) }?;
            match region.copy_in(0, b"x") {
                Err(Error::ReadOnlyMemory { access: named }) => ensure!(named == access),
                other => bail!("{access}: {other:?}"),
            }
            let mut byte = [7];
            region.copy_out(0, &mut byte)?;
            ensure!(byte == [0]);
        }
        // SAFETY: the registration must fail, since the page can't be written.
        let error = unsafe { domain.register_raw(memory.0, 4096, Access::LOCAL) }.unwrap_err();
        ensure!(error.raw_os_error() == Some(libc::EFAULT), "{error}");
        ensure!(
            error.to_string().contains("writing, as the access demands"),
            "{error}"
        );
        Ok(())
    });
}

#[test]
fn a_watch_tells_when_the_callers_memory_is_out_of_use() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let memory = ReadOnly::new()?;
        // SAFETY: the page is mapped for longer, readable, and nobody refers to it.
        let register = || unsafe { domain.register_raw(memory.0, 4096, Access::LOCAL_READ) };
        let region = register()?;
        let (watch, second) = (region.watch(), region.clone());
        ensure!(!region.is_idle() && !watch.is_deregistered());
        drop(region);
        ensure!(second.is_idle() && !watch.is_deregistered());
        drop(second);
        ensure!(watch.is_deregistered());

        let region = register()?;
        let (watch, second) = (region.watch(), region.clone());
        let region = region.deregister().err().context("it has another handle")?;
        drop(second);
        ensure!(matches!(region.deregister(), Ok(None)));
        ensure!(watch.is_deregistered());
        Ok(())
    });
}

#[test]
fn a_second_registration_ends_the_access_of_peers_and_not_our_own() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_READ)?;
        t.need_loopback()?;
        let config = QueuePairConfig {
            operations: Operations::READ | Operations::SEND,
            ..QueuePairConfig::default()
        };
        let (mut ours, mut peer) = (Node::new(t, &config)?, Node::new(t, &config)?);
        let region = ours.region_for(&[5; 64], Access::LOCAL)?;
        let shared = region.register_again(Access::REMOTE_READ)?;
        ensure!(shared.rkey() != region.rkey() && shared.addr() == region.addr());
        let target = peer.region_for(&[0; 64], Access::LOCAL)?;
        let (to_ours, to_peer) = (peer.to(ours.address()?)?, ours.to(peer.address()?)?);
        let there = Remote::from(&shared).at(0);
        peer.read(&to_ours, &[(1, target.sge(0, 64)?, there)])?;
        peer.sent_well(1)?;

        ensure!(matches!(shared.deregister(), Ok(None)));
        peer.read(&to_ours, &[(2, target.sge(0, 64)?, there)])?;
        let status = peer.sent(1)?[0].status;
        ensure!(status == VendorStatus::BAD_ADDRESS, "{status}");
        // Our own side of the memory works on.
        peer.receive(&[(3, target.sge(0, 64)?)])?;
        ours.send(&to_peer, &[(4, region.sge(0, 64)?)])?;
        ours.sent_well(1)?;
        ensure!(peer.received(1)?[0].status.is_ok());
        Ok(())
    });
}

#[test]
fn memory_of_the_callers_is_registered_again_for_no_more_than_was_promised() {
    run(|t| {
        let domain = t.device()?.open()?.alloc_pd()?;
        let memory = ReadOnly::new()?;
        // SAFETY: the page is mapped for longer, readable, and nobody refers to it.
        let region = unsafe { domain.register_raw(memory.0, 4096, Access::LOCAL_READ) }?;
        let again = region.register_again(Access::LOCAL_READ)?;
        ensure!(!region.is_idle(), "the memory may be given up too early");
        drop(again);
        match region.register_again(Access::LOCAL) {
            Err(Error::InvalidArgument { what: "access", .. }) => Ok(()),
            other => bail!("{other:?}"),
        }
    });
}
