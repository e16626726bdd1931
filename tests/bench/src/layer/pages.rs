//! Page tables: many pages as one operation.

use anyhow::Result;
use efa_transport::{Completion, Endpoint, EndpointAddress, PageList, PeerId, Region};
use efa_verbs::{DEFAULT_QUEUE_KEY, DataPath};

use super::{Layer, name};
use crate::ring::Ring;
use crate::target::Target;

/// An endpoint that puts page tables, of as many pages as a batch has requests.
pub struct Pages {
    endpoint: Endpoint,
    ring: Ring,
    peer: PeerId,
    region: Region,
    target: Target,
    pages: Option<PageList>,
    ended: u32,
}

#[inline(never)]
#[unsafe(export_name = "measure_post_pages")]
fn post(pages: &mut Pages) -> Result<()> {
    pages.submit()
}

#[inline(never)]
#[unsafe(export_name = "measure_poll_pages")]
fn poll(pages: &mut Pages) -> Result<()> {
    pages.poll_once()
}

impl Pages {
    /// An endpoint that puts to `target`.
    pub fn new(path: DataPath, target: &Target) -> Result<Self> {
        let (domain, mut endpoint) = super::endpoint(path, false)?;
        let [number, _] = target.queue_pairs;
        let address = EndpointAddress::new(domain.gid(), number, DEFAULT_QUEUE_KEY)?;
        Ok(Self {
            peer: endpoint.connect(address)?,
            ring: Ring::of(endpoint.queue_pair())?,
            region: super::region(&domain, target)?,
            target: target.clone(),
            endpoint,
            pages: None,
            ended: 0,
        })
    }

    fn submit(&mut self) -> Result<()> {
        if let Some(pages) = &self.pages {
            let put = efa_transport::Put::pages(self.peer, pages);
            self.endpoint.submit(put)?;
        }
        Ok(())
    }

    fn poll_once(&mut self) -> Result<()> {
        let mut ended = 0;
        self.endpoint.poll(|completion: Completion| {
            assert!(completion.result.is_ok(), "a put failed: {completion:?}");
            ended += 1;
        })?;
        self.ended += ended;
        Ok(())
    }

    /// Pages whose operation has ended.
    fn ended(&mut self) -> u32 {
        let each = self.pages.as_ref().map_or(0, PageList::len) as u32;
        std::mem::take(&mut self.ended) * each
    }
}

impl Layer for Pages {
    fn prepare(&mut self, size: u32, batch: u32) -> Result<()> {
        let size = u64::from(size);
        // Where there are too few pages for so many pairs, they have several turns.
        let all = self.target.length / size;
        let pairs = (0..u64::from(batch)).map(|at| (at % all, (at + 1) % all));
        let remote = self.target.remote()?;
        self.pages = Some(PageList::new(&self.region, remote, size, pairs)?);
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        self.submit()
    }

    fn poll(&mut self, _most: u32) -> Result<u32> {
        self.poll_once()?;
        Ok(self.ended())
    }

    fn measure_post(&mut self) -> Result<()> {
        post(self)
    }

    fn measure_poll(&mut self, _most: u32) -> Result<u32> {
        poll(self)?;
        Ok(self.ended())
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn path(&self) -> &'static str {
        name(self.endpoint.limits().path)
    }
}
