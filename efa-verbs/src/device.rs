//! Finding EFA devices.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use efa_sys as sys;

use crate::context::{self, Context};
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

    /// Opens the device and queries what it can do.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the device cannot be opened, which usually is a matter of permissions
    /// on `/dev/infiniband/uverbs*`.
    pub fn open(&self) -> Result<Context> {
        context::open(self.clone())
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_device {
        self.raw.as_ptr()
    }
}

/// Every EFA device of this machine. RDMA devices of other vendors are skipped.
///
/// Whether a device is an EFA device is asked of libefa, which needs the device opened for a
/// moment.
///
/// # Errors
///
/// [`Error::Verb`] when the list cannot be had; also when no device turned out to be usable and one
/// could not be opened, since that one is probably what the caller is looking for.
///
/// ```no_run
/// for device in efa_verbs::devices()? {
///     println!("{} {:016x}", device.name(), device.guid());
/// }
/// # Ok::<(), efa_verbs::Error>(())
/// ```
pub fn devices() -> Result<Vec<Device>> {
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
    let mut found = Vec::new();
    let mut refused = None;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let Some(raw) = NonNull::new(unsafe { *list.0.as_ptr().add(i) }) else {
            break;
        };
        // SAFETY: the device is alive, and so is its NUL-terminated name.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(raw.as_ptr())) };
        let name = name.to_string_lossy().into();
        let device = Device {
            raw,
            name,
            _list: Arc::clone(&list),
        };
        match context::is_efa(&device) {
            Ok(true) => found.push(device),
            Ok(false) => tracing::debug!(device = device.name(), "skipped: not an EFA device"),
            Err(error) => {
                tracing::debug!(device = device.name(), %error, "skipped: cannot be opened");
                refused = Some(error);
            }
        }
    }
    match refused {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Opens the EFA device called `name`.
///
/// # Errors
///
/// [`Error::DeviceNotFound`], with the names there are; otherwise as for [`devices`] and
/// [`Device::open`].
pub fn open_by_name(name: &str) -> Result<Context> {
    let devices = devices()?;
    match devices.iter().find(|device| device.name() == name) {
        Some(device) => device.open(),
        None => Err(Error::DeviceNotFound {
            name: name.to_owned(),
            available: devices
                .iter()
                .map(|device| device.name().to_owned())
                .collect(),
        }),
    }
}

/// Held for writing by [`fork_init`], for reading by whatever enters memory in its books.
static FORK: RwLock<()> = RwLock::new(());

/// To be held while memory is registered or deregistered.
pub(crate) fn registering() -> RwLockReadGuard<'static, ()> {
    FORK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Makes memory registrations survive `fork` in the parent: `ibv_fork_init`.
///
/// Must be called before the first registration. Needed only before kernel 5.13 or rdma-core 35;
/// with both, the kernel copies registered pages at fork and the call changes nothing.
///
/// # Errors
///
/// [`Error::Verb`]: EINVAL after a registration was made.
pub fn fork_init() -> Result<()> {
    let _alone = FORK.write().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it makes the tree that registrations are entered in, without a lock: no other call of
    // it and no registration runs meanwhile, since all of them take `FORK`. A late call is refused.
    match unsafe { sys::ibv_fork_init() } {
        0 => Ok(()),
        error => Err(Error::verb(
            "ibv_fork_init",
            "this process",
            io::Error::from_raw_os_error(error),
        )
        .advise(Some("call it before the first memory registration"))),
    }
}
