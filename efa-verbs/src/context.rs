//! Finding and opening EFA devices.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use efa_sys as sys;

use crate::attributes::{DeviceAttributes, PortAttributes};
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::process::ProcessMark;
use crate::types::DeviceCapabilities;

/// EFA devices have one port.
pub(crate) const PORT: u8 = 1;

/// A device's context, closed on drop by the process that opened it.
struct Raw {
    context: NonNull<sys::ibv_context>,
    process: ProcessMark,
}

// SAFETY: libibverbs serializes what needs it; any thread may call verbs on a context.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Raw {
    fn open(device: &Device) -> Result<Self> {
        // SAFETY: the device is alive: `device` holds its list.
        let raw = unsafe { sys::ibv_open_device(device.raw()) };
        let process = ProcessMark::here();
        let raw = NonNull::new(raw).map(|context| Self { context, process });
        raw.ok_or_else(|| {
            let error = io::Error::last_os_error();
            let advice = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    Some("the user needs access to /dev/infiniband/uverbs*")
                }
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                    Some("in a container, /dev/infiniband must be passed in")
                }
                _ => None,
            };
            Error::verb("ibv_open_device", device.name(), error).advise(advice)
        })
    }

    /// `efadv_query_device`; `None` for a device of another vendor.
    fn efa_attributes(&self, name: &str) -> Result<Option<sys::efadv_device_attr>> {
        // SAFETY: all fields are integers.
        let mut attr: sys::efadv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open, and `attr` is as large as the length says. A library that
        // knows fewer fields fills those and leaves the rest zero.
        let error = unsafe {
            sys::efadv_query_device(
                self.context.as_ptr(),
                &mut attr,
                mem::size_of_val(&attr) as u32,
            )
        };
        match error {
            0 => Ok(Some(attr)),
            libc::EOPNOTSUPP => Ok(None),
            error => Err(Error::verb(
                "efadv_query_device",
                name,
                io::Error::from_raw_os_error(error),
            )),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.process.is_here() {
            return;
        }
        // SAFETY: the context came from ibv_open_device and is closed once. Every object made of it
        // holds the `Arc` around this, so none is left.
        if unsafe { sys::ibv_close_device(self.context.as_ptr()) } != 0 {
            tracing::warn!(error = %io::Error::last_os_error(), "ibv_close_device failed");
        }
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
    let mut found = Vec::new();
    let mut refused = None;
    for device in device::list()? {
        match is_efa(&device) {
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

fn is_efa(device: &Device) -> Result<bool> {
    let raw = Raw::open(device)?;
    Ok(raw.efa_attributes(device.name())?.is_some())
}

impl Device {
    /// Opens the device and queries what it can do.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the device cannot be opened, which usually is a matter of permissions
    /// on `/dev/infiniband/uverbs*`.
    pub fn open(&self) -> Result<Context> {
        open(self.clone())
    }
}

fn open(device: Device) -> Result<Context> {
    let raw = Raw::open(&device)?;
    let Some(efa) = raw.efa_attributes(device.name())? else {
        return Err(Error::InvalidArgument {
            what: "device",
            reason: format!("{} is not an EFA device", device.name()),
        });
    };
    // SAFETY: all fields are integers, arrays of them, or newtypes of integers.
    let mut attr: sys::ibv_device_attr = unsafe { mem::zeroed() };
    // SAFETY: the context is open; `attr` is valid for the write.
    let error = unsafe { sys::ibv_query_device(raw.context.as_ptr(), &mut attr) };
    if error != 0 {
        let error = io::Error::from_raw_os_error(error);
        return Err(Error::verb("ibv_query_device", device.name(), error));
    }
    // Counts are signed in C and never negative.
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    // SAFETY: libibverbs terminates the text within the array.
    let firmware = unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) };
    let attributes = DeviceAttributes {
        max_sq_wr: efa.max_sq_wr,
        max_rq_wr: efa.max_rq_wr,
        max_sq_sge: efa.max_sq_sge,
        max_rq_sge: efa.max_rq_sge,
        inline_buf_size: efa.inline_buf_size,
        // From rdma-core 63 on this field is where earlier headers have two reserved bytes.
        inline_buf_size_ex: u16::from_ne_bytes(efa.reserved),
        max_rdma_size: efa.max_rdma_size,
        capabilities: DeviceCapabilities::from_bits_retain(efa.device_caps),
        max_cqe: count(attr.max_cqe),
        max_qp: count(attr.max_qp),
        max_ah: count(attr.max_ah),
        max_mr: count(attr.max_mr),
        max_mr_size: attr.max_mr_size,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        firmware: firmware.to_string_lossy().into_owned(),
    };
    tracing::debug!(
        device = device.name(),
        capabilities = %attributes.capabilities,
        max_rdma_size = attributes.max_rdma_size,
        efa_symbols = sys::efa_symbol_version(),
        "opened"
    );
    Ok(Context(Arc::new(Inner {
        raw,
        attributes,
        device,
    })))
}

struct Inner {
    raw: Raw,
    attributes: DeviceAttributes,
    device: Device,
}

/// An open EFA device. Clones are handles to the same one; it is closed when the last handle and
/// everything made of it is gone.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.device_name()).finish()
    }
}

impl Context {
    /// The device's name.
    pub fn device_name(&self) -> &str {
        self.0.device.name()
    }

    /// The device that this is a context of.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Limits and capabilities, as they were when the device was opened.
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.attributes
    }

    /// State and limits of the port, as they are now.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`] when the kernel refuses the query, [`Error::ForkedProcess`].
    pub fn port(&self) -> Result<PortAttributes> {
        self.check_process()?;
        // SAFETY: all fields are integers or newtypes of integers.
        let mut attr: sys::ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open; the shim's inline function knows the struct's size.
        let error = unsafe { sys::ibv_query_port(self.raw(), PORT, &mut attr) };
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            return Err(Error::verb("ibv_query_port", self.device_name(), error));
        }
        Ok(PortAttributes {
            active: attr.state == sys::IBV_PORT_ACTIVE,
            max_message_size: attr.max_msg_sz,
            gid_table_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_table_len: attr.pkey_tbl_len,
        })
    }

    /// The device's address: the GID at index 0, the only one that EFA has.
    ///
    /// # Errors
    ///
    /// [`Error::NoGid`] when the entry is empty, [`Error::Verb`] when it cannot be read,
    /// [`Error::ForkedProcess`].
    pub fn gid(&self) -> Result<Gid> {
        self.check_process()?;
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; `gid` is valid for the write.
        let error = unsafe { sys::ibv_query_gid(self.raw(), PORT, 0, &mut gid) };
        if error != 0 {
            // Returns -1 and sets errno.
            let error = io::Error::last_os_error();
            return Err(Error::verb("ibv_query_gid", self.device_name(), error));
        }
        let gid = Gid::from_raw(gid);
        if gid.is_zero() {
            return Err(Error::NoGid {
                device: self.device_name().to_owned(),
            });
        }
        Ok(gid)
    }

    /// The process that opened the device, the only one in which anything made of it can be used.
    #[inline]
    pub fn process(&self) -> ProcessMark {
        self.0.raw.process
    }

    /// Fails in a process that was forked from the one that opened the device.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        match self.process().is_here() {
            true => Ok(()),
            false => Err(self.forked()),
        }
    }

    #[cold]
    fn forked(&self) -> Error {
        Error::ForkedProcess {
            device: self.device_name().to_owned(),
        }
    }

    /// The C object, for calls that this crate does not make. It stays open as long as `self` lives.
    pub fn as_raw(&self) -> *mut sys::ibv_context {
        self.raw()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.0.raw.context.as_ptr()
    }
}
