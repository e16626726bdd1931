//! The RDMA devices of this machine.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_sys as sys;

use crate::error::{Error, Result};

/// What `ibv_get_device_list` returned; freed when the last [`Device`] of it is gone.
struct DeviceList(NonNull<*mut sys::ibv_device>);

// SAFETY: the list is an array of pointers that nobody writes, and libibverbs lets any thread use
// the devices (its functions on them take no per-thread state).
unsafe impl Send for DeviceList {}
// SAFETY: as above; there is no interior mutability on this side.
unsafe impl Sync for DeviceList {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ibv_get_device_list and is freed once, here. Every device of
        // it that is still in use is held by an open context (libibverbs counts that itself).
        unsafe { sys::ibv_free_device_list(self.0.as_ptr()) }
    }
}

/// An EFA device of this machine, not opened yet.
#[derive(Clone)]
pub struct Device {
    raw: NonNull<sys::ibv_device>,
    name: Arc<str>,
    // Keeps `raw` alive.
    _list: Arc<DeviceList>,
}

// SAFETY: see `DeviceList`: the pointer is to data that libibverbs shares between threads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// The name under which libibverbs knows it, such as `rdmap0s31` or `efa_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node GUID.
    pub fn guid(&self) -> u64 {
        // SAFETY: the device is alive as long as its list, which `self` holds.
        u64::from_be(unsafe { sys::ibv_get_device_guid(self.raw.as_ptr()) })
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_device {
        self.raw.as_ptr()
    }
}

/// Every RDMA device of this machine, those of other vendors included.
pub(crate) fn list() -> Result<Vec<Device>> {
    let mut count = 0;
    // SAFETY: `count` is valid for the call.
    let list = unsafe { sys::ibv_get_device_list(&mut count) };
    let Some(list) = NonNull::new(list) else {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOSYS) {
            // The kernel has no RDMA support at all: that is an empty list.
            return Ok(Vec::new());
        }
        return Err(Error::verb("ibv_get_device_list", "this machine", error));
    };
    let list = Arc::new(DeviceList(list));
    let devices = (0..usize::try_from(count).unwrap_or(0)).map_while(|i| {
        // SAFETY: the list has `count` entries.
        let raw = NonNull::new(unsafe { *list.0.as_ptr().add(i) })?;
        // SAFETY: the device is alive, and so is its NUL-terminated name.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(raw.as_ptr())) };
        Some(Device {
            raw,
            name: name.to_string_lossy().into(),
            _list: Arc::clone(&list),
        })
    });
    Ok(devices.collect())
}
