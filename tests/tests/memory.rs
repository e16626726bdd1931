//! Memory that is not an ordinary buffer, and who a message came from.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, bail, ensure};
use efa_tests::{Node, Remote, Test, run, skip};
use efa_verbs::{Access, Buffer, Capabilities, Error, Feature, Operations, Pages, QueuePairConfig};

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
        t.need(Capabilities::RDMA_WRITE)?;
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
            region.deregister().is_err(),
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
            let buffer = region.deregister().ok().context("the region is shared")?;
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
        t.need(Capabilities::CQ_WITH_SGID)?;
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
            stranger.src_gid.map(|gid| gid.0) == Some(address.gid),
            "{stranger:?}"
        );

        let handle = b.domain().create_address_handle(address.gid.into())?;
        a.send(&to, &[(2, source.sge(0, 16)?)])?;
        a.sent_well(1)?;
        let known = b.received(1)?[0];
        ensure!(known.src_handle == Some(handle.number()), "{known:?}");
        ensure!(known.src_gid.is_none(), "{known:?}");
        Ok(())
    });
}
