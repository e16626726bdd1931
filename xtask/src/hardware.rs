//! Real EFA devices on this machine.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};

/// Where the kernel lists RDMA devices.
const CLASS: &str = "/sys/class/infiniband";

/// The PCI vendor Amazon.
const VENDOR: &str = "0x1d0f";

/// The names of the EFA devices that the kernel knows; none is an error.
pub fn require() -> Result<Vec<String>> {
    let found = devices(Path::new(CLASS));
    if found.is_empty() {
        bail!(
            "this machine has no EFA device: {CLASS} lists none with PCI vendor {VENDOR}; on an \
             instance type with EFA, attach an EFA network interface and load the driver \
             (modprobe efa), or run without --hardware"
        );
    }
    Ok(found)
}

fn devices(class: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(class)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let read = |name: &str| {
                fs::read_to_string(entry.path().join("device").join(name)).unwrap_or_default()
            };
            read("vendor").trim() == VENDOR && read("device").trim().starts_with("0xefa")
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_efa_by_its_pci_ids() {
        let class = std::env::temp_dir().join(format!("xtask-class-{}", std::process::id()));
        for (name, vendor, device) in [
            ("rdmap1", "0x1d0f", "0xefa2"),
            ("mlx5_0", "0x15b3", "0x101b"),
            ("nitro", "0x1d0f", "0x8061"),
        ] {
            let dir = class.join(name).join("device");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(dir.join("device"), format!("{device}\n")).unwrap();
        }
        let found = devices(&class);
        fs::remove_dir_all(&class).unwrap();
        assert_eq!(found, ["rdmap1"]);
        assert!(devices(Path::new("/nonexistent")).is_empty());
    }
}
