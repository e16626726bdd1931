//! Page tables: [`PageList`].

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::region::{Region, Slice};
use crate::remote::RemoteRegion;
use crate::scheduler::{ChunkError, List, Piece};

/// Which pages here belong to which pages at a peer: what [`Put::pages`](crate::Put::pages) and
/// [`Get::pages`](crate::Get::pages) transfer as one operation.
///
/// It is checked once, when it is made; cloning and submitting it cost the same whatever its length, up to
/// millions of pages. It keeps its regions alive, and takes 40 bytes per page.
///
/// ```no_run
/// use efa_transport::{Endpoint, Error, PageList, PeerId, Put, Region, RemoteRegion};
///
/// /// Moves the pages of a sequence to the decoder, which learns of it when all of them have landed.
/// fn send_sequence(
///     endpoint: &mut Endpoint, decoder: PeerId, cache: &Region, theirs: RemoteRegion,
///     ours: &[u32], targets: &[u32],
/// ) -> Result<(), Error> {
///     let pairs = ours.iter().zip(targets).map(|(&here, &there)| (here.into(), there.into()));
///     let pages = PageList::new(cache, theirs, 65536, pairs)?;
///     endpoint.submit(Put::pages(decoder, &pages).immediate(7))?;
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct PageList {
    list: Arc<List>,
    /// Each once, in no order.
    regions: Arc<[Region]>,
}

impl PageList {
    /// Pages of `page` bytes. Each pair is the number of a page of `local` and that of a page of `remote`,
    /// both counted from 0.
    ///
    /// ```no_run
    /// # use efa_transport::{PageList, Region, RemoteRegion};
    /// # fn f(cache: &Region, theirs: RemoteRegion) -> Result<(), efa_transport::Error> {
    /// // Our pages 4 and 9 with their pages 100 and 7.
    /// let pages = PageList::new(cache, theirs, 65536, [(4, 100), (9, 7)])?;
    /// assert_eq!((pages.len(), pages.bytes()), (2, 131_072));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::EmptyList`]; [`Error::PageSize`] where a page has no bytes, or more than are on either side;
    /// [`Error::Part`] with [`Error::NoSuchPage`], which tells the first page that is beyond the end.
    pub fn new<'m>(
        local: impl Into<Slice<'m>>,
        remote: RemoteRegion,
        page: u64,
        pages: impl IntoIterator<Item = (u64, u64)>,
    ) -> Result<Self> {
        let local = local.into();
        if page == 0 || page > local.len() || page > remote.len() {
            return Err(Error::PageSize {
                page,
                local: local.len(),
                remote: remote.len(),
            });
        }
        let (here, there) = (local.len() / page, remote.len() / page);
        let region = local.region();
        let piece = |(ours, theirs): (u64, u64)| {
            let no_page = |side, page, pages| Err(Error::NoSuchPage { side, page, pages });
            match (ours < here, theirs < there) {
                (false, _) => no_page("local", ours, here),
                (_, false) => no_page("remote", theirs, there),
                // Within memory whose end is an address.
                (true, true) => Ok(Piece {
                    hold: region.number(),
                    local: local.addr() + ours * page,
                    lkey: region.lkey(),
                    rkey: remote.rkey(),
                    remote: remote.addr() + theirs * page,
                    length: page,
                }),
            }
        };
        Self::of(collect(pages.into_iter().map(piece))?, vec![region.clone()])
    }

    /// Parts of any length and of any regions, each as long here as there.
    ///
    /// # Errors
    /// [`Error::EmptyList`]; [`Error::Part`] with [`Error::LocalTooSmall`] or [`Error::RemoteTooSmall`]
    /// where the sides of a part differ; [`Error::Overflow`].
    pub fn parts<'m>(parts: impl IntoIterator<Item = (Slice<'m>, RemoteRegion)>) -> Result<Self> {
        let mut regions: Vec<Region> = Vec::new();
        let mut known = std::collections::HashSet::new();
        let pieces = parts.into_iter().map(|(local, remote)| {
            let (here, there) = (local.len(), remote.len());
            if here < there {
                return Err(Error::LocalTooSmall {
                    local: here,
                    remote: there,
                });
            }
            if here > there {
                return Err(Error::RemoteTooSmall {
                    local: here,
                    remote: there,
                });
            }
            let region = local.region();
            if known.insert(region.number()) {
                regions.push(region.clone());
            }
            Ok(Piece {
                hold: region.number(),
                local: local.addr(),
                lkey: region.lkey(),
                rkey: remote.rkey(),
                remote: remote.addr(),
                length: here,
            })
        });
        Self::of(collect(pieces)?, regions)
    }

    fn of(pieces: Vec<Piece>, regions: Vec<Region>) -> Result<Self> {
        if pieces.is_empty() {
            return Err(Error::EmptyList);
        }
        let list = List::new(pieces).map_err(|error| match error {
            ChunkError::Local | ChunkError::Remote | ChunkError::Total => Error::Overflow,
        })?;
        Ok(Self {
            list: Arc::new(list),
            regions: regions.into(),
        })
    }

    /// Pages, or parts. Never 0.
    #[expect(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.list.pieces().len()
    }

    /// Bytes of all of them together.
    pub fn bytes(&self) -> u64 {
        self.list.length()
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    pub(crate) fn list(&self) -> &Arc<List> {
        &self.list
    }
}

/// Room that is made at once. What an iterator says of its length is not to be trusted: it may end early, at
/// a page that is wrong.
const ROOM: usize = 1 << 16;

fn collect(pieces: impl Iterator<Item = Result<Piece>>) -> Result<Vec<Piece>> {
    let mut collected = Vec::with_capacity(pieces.size_hint().0.min(ROOM));
    for (at, piece) in pieces.enumerate() {
        collected.push(piece.map_err(|source| Error::Part {
            at: at as u64,
            source: Box::new(source),
        })?);
    }
    Ok(collected)
}

impl fmt::Debug for PageList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageList")
            .field("len", &self.len())
            .field("bytes", &self.bytes())
            .field("regions", &self.regions.len())
            .finish()
    }
}
