//! Address handles.

use std::fmt;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_sys as sys;

use crate::context::PORT;
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::request::Destination;

struct Inner {
    ah: NonNull<sys::ibv_ah>,
    number: u16,
    gid: Gid,
    domain: ProtectionDomain,
}

// SAFETY: an address handle is not written after it was made, and libibverbs lets any thread
// destroy it.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.domain.context().process().is_here() {
            return;
        }
        // SAFETY: came from ibv_create_ah and is destroyed once. That every request naming it has
        // completed is what the unsafe posting functions demand.
        let error = unsafe { sys::ibv_destroy_ah(self.ah.as_ptr()) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!(gid = %self.gid, %error, "ibv_destroy_ah failed");
        }
    }
}

/// The handle by which requests name a remote device. Clones are handles to the same one.
///
/// It must outlive the completion of every request that names it: destroyed earlier, those
/// requests end as flushed.
#[derive(Clone)]
pub struct AddressHandle(Arc<Inner>);

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle")
            .field("gid", &self.0.gid)
            .field("number", &self.0.number)
            .finish()
    }
}

impl ProtectionDomain {
    /// Makes the handle by which requests name the device `gid`. One handle serves every queue pair
    /// there, and a device has a limited number, so keep and share them.
    ///
    /// A responder too must hold a handle for the requester's GID before it accepts RDMA.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroGid`]; [`Error::Verb`]: EINVAL for an address that cannot be reached, ENOMEM
    /// when the device's table is full; [`Error::ForkedProcess`].
    pub fn create_address_handle(&self, gid: Gid) -> Result<AddressHandle> {
        AddressHandle::create(self.clone(), gid)
    }
}

impl AddressHandle {
    fn create(domain: ProtectionDomain, gid: Gid) -> Result<Self> {
        domain.context().check_process()?;
        if gid.is_zero() {
            return Err(Error::ZeroGid);
        }
        let object = || format!("{gid} on {}", domain.context().device_name());
        // SAFETY: all fields are integers or unions of integers.
        let mut attr: sys::ibv_ah_attr = unsafe { mem::zeroed() };
        // The device resolves the destination from dgid alone; the kernel insists on the other two.
        attr.is_global = 1;
        attr.port_num = PORT;
        attr.grh.dgid = gid.to_raw();
        attr.grh.sgid_index = 0;
        // SAFETY: the domain is alive, `attr` valid for the call.
        let ah = unsafe { sys::ibv_create_ah(domain.raw(), &mut attr) };
        let Some(ah) = NonNull::new(ah) else {
            let error = io::Error::last_os_error();
            let advice = match error.raw_os_error() {
                Some(libc::EINVAL) => {
                    Some("the GID is not that of a device in the same subnet and availability zone")
                }
                Some(libc::ENOMEM) => {
                    Some("the device has no address handle left: share one per GID")
                }
                _ => None,
            };
            return Err(Error::verb("ibv_create_ah", object(), error).advise(advice));
        };
        // From here on the handle is destroyed on every path.
        let mut inner = Inner {
            ah,
            number: 0,
            gid,
            domain: domain.clone(),
        };
        // SAFETY: all fields are integers.
        let mut efa: sys::efadv_ah_attr = unsafe { mem::zeroed() };
        // SAFETY: the handle is alive, and `efa` is as large as the length says.
        let error =
            unsafe { sys::efadv_query_ah(ah.as_ptr(), &mut efa, mem::size_of_val(&efa) as u32) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            return Err(Error::verb("efadv_query_ah", object(), error));
        }
        inner.number = efa.ahn;
        tracing::debug!(%gid, number = efa.ahn, "address handle made");
        Ok(Self(Arc::new(inner)))
    }

    /// The remote device.
    pub fn gid(&self) -> Gid {
        self.0.gid
    }

    /// The device's number for the handle, which receive completions name their sender by.
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// The protection domain it belongs to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// A queue pair behind this handle, as the posting functions take it.
    #[inline]
    pub fn destination(&self, queue_pair: u32, queue_key: u32) -> Destination {
        Destination {
            ah: self.0.ah.as_ptr(),
            queue_pair,
            queue_key,
            number: self.0.number,
        }
    }
}
