//! The part of `/sys` and `/dev` that an EFA device shows, as plain files in a run directory.
//!
//! The tree has the shape of the kernel's: classes are links into `devices`, the PCI device
//! links its driver, and every path that a topology reader follows leads to a PCI address. The
//! PCI domain is `efa0`, which no machine has, so that absolute paths below it can be told from
//! real ones.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::gid::{gid_of, guid_of};
use crate::options::Options;
use crate::profile::{PCI_VENDOR, Profile, ProfileName};
use crate::stats;

/// Major number of the uverbs devices, as the kernel's.
pub const UVERBS_MAJOR: u32 = 231;
/// Minor number of `uverbs0`.
pub const UVERBS_BASE_MINOR: u32 = 192;

/// The directory below the run directory that stands for `/sys`.
pub const SYS: &str = "sys";
/// The directory below the run directory that stands for `/dev/infiniband`.
pub const DEV: &str = "dev/infiniband";
/// The kernel modules that would drive the devices.
pub const MODULES: [&str; 3] = ["efa", "ib_uverbs", "ib_core"];
/// The root of our devices, relative to `/sys`.
pub const PCI_ROOT: &str = "devices/pciefa0:00";
/// The directory below the run directory that has the files of `/sys` that differ for an older
/// libefa.
pub const OLDER: &str = "older";

/// The directories below `/sys` that show what the host has beside what we have.
pub const MIRRORED: [&str; 10] = [
    "",
    "bus",
    "bus/pci",
    "bus/pci/devices",
    "bus/pci/drivers",
    "class",
    "dev",
    "dev/char",
    "devices",
    "module",
];

/// The PCI address of device `index`.
pub fn pci_address(index: u32) -> String {
    format!("efa0:{:02x}:00.0", index + 1)
}

/// The name of the device file of device `index`.
pub fn uverbs_name(index: u32) -> String {
    format!("uverbs{index}")
}

/// The NUMA node of device `index`: as on the large instances, half of the devices each.
pub fn numa_node(index: u32, devices: u32) -> u32 {
    u32::from(devices > 1 && index >= devices.div_ceil(2))
}

/// Writes the trees for all devices of a run below `run_dir`.
pub fn write(run_dir: &Path, options: &Options) -> io::Result<()> {
    let sys = run_dir.join(SYS);
    let dev = run_dir.join(DEV);
    fs::create_dir_all(&dev)?;
    for class in ["class/infiniband", "class/infiniband_verbs"] {
        fs::create_dir_all(sys.join(class))?;
    }
    fs::create_dir_all(sys.join("bus/pci/devices"))?;
    fs::create_dir_all(sys.join("bus/pci/drivers/efa"))?;
    fs::create_dir_all(sys.join("dev/char"))?;
    file(&sys.join("class/infiniband_verbs"), "abi_version", "6")?;
    for module in MODULES {
        let dir = sys.join("module").join(module);
        fs::create_dir_all(&dir)?;
        file(&dir, "initstate", "live")?;
        file(&dir, "refcnt", "0")?;
    }
    symlink(
        "../../../../module/efa",
        sys.join("bus/pci/drivers/efa/module"),
    )?;
    for dir in MIRRORED {
        mirror(dir, &sys.join(dir))?;
    }
    for index in 0..options.devices {
        Device {
            index,
            options,
            run_dir,
            sys: &sys,
        }
        .write()?;
        fs::write(dev.join(uverbs_name(index)), "")?;
    }
    Ok(())
}

/// Lists what the host has in `/sys/{name}` beside what we have. A program that asks for more by
/// such a name is led to the host's.
fn mirror(name: &str, dir: &Path) -> io::Result<()> {
    // A machine without PCI has none of that.
    let Ok(entries) = fs::read_dir(Path::new("/sys").join(name)) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let bytes = entry.file_name();
        let bytes = bytes.as_encoded_bytes();
        let hidden = bytes.starts_with(b"infiniband")
            // A run inside a run: the outer one's devices are hidden.
            || bytes.starts_with(b"efa0:")
            || bytes.starts_with(b"pciefa0:")
            || bytes.starts_with(format!("{UVERBS_MAJOR}:").as_bytes());
        let ours = dir.join(entry.file_name());
        if hidden || ours.symlink_metadata().is_ok() {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            fs::create_dir(ours)?;
        } else {
            symlink(entry.path(), ours)?;
        }
    }
    Ok(())
}

fn file(dir: &Path, name: &str, line: &str) -> io::Result<()> {
    let path = dir.join(name);
    fs::write(&path, format!("{line}\n"))?;
    // These can be written to in the kernel's tree.
    let mode = match name {
        "uevent" | "node_desc" | "lifespan" => 0o644,
        _ => 0o444,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

struct Device<'a> {
    index: u32,
    options: &'a Options,
    run_dir: &'a Path,
    sys: &'a Path,
}

impl Device<'_> {
    fn write(&self) -> io::Result<()> {
        let address = pci_address(self.index);
        let pci: PathBuf = self.sys.join(PCI_ROOT).join(&address);
        let ib_name = Options::device_name(self.index);
        let uverbs_name = uverbs_name(self.index);
        let ib = pci.join("infiniband").join(&ib_name);
        let uverbs = pci.join("infiniband_verbs").join(&uverbs_name);
        fs::create_dir_all(&ib)?;
        fs::create_dir_all(&uverbs)?;

        self.pci_files(&pci)?;
        symlink("../../../bus/pci/drivers/efa", pci.join("driver"))?;
        symlink("../../../bus/pci", pci.join("subsystem"))?;
        symlink(
            format!("../../../../{PCI_ROOT}/{address}"),
            self.sys.join("bus/pci/drivers/efa").join(&address),
        )?;
        symlink(
            format!("../../../{PCI_ROOT}/{address}"),
            self.sys.join("bus/pci/devices").join(&address),
        )?;

        self.ib_files(&ib)?;
        symlink(format!("../../../{address}"), ib.join("device"))?;
        symlink("../../../../../class/infiniband", ib.join("subsystem"))?;
        symlink(
            format!("../../{PCI_ROOT}/{address}/infiniband/{ib_name}"),
            self.sys.join("class/infiniband").join(&ib_name),
        )?;

        let minor = UVERBS_BASE_MINOR + self.index;
        file(&uverbs, "ibdev", &ib_name)?;
        file(&uverbs, "dev", &format!("{UVERBS_MAJOR}:{minor}"))?;
        file(&uverbs, "abi_version", "1")?;
        file(
            &uverbs,
            "uevent",
            &format!(
                "MAJOR={UVERBS_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/{uverbs_name}\nDEVMODE=0666"
            ),
        )?;
        symlink(
            format!("../../{PCI_ROOT}/{address}/infiniband_verbs/{uverbs_name}"),
            self.sys.join(format!("dev/char/{UVERBS_MAJOR}:{minor}")),
        )?;
        symlink(format!("../../../{address}"), uverbs.join("device"))?;
        symlink(
            "../../../../../class/infiniband_verbs",
            uverbs.join("subsystem"),
        )?;
        symlink(
            format!("../../{PCI_ROOT}/{address}/infiniband_verbs/{uverbs_name}"),
            self.sys.join("class/infiniband_verbs").join(&uverbs_name),
        )
    }

    fn pci_files(&self, pci: &Path) -> io::Result<()> {
        let node = numa_node(self.index, self.options.devices);
        for (name, line) in [
            ("vendor", "0x1d0f"),
            ("subsystem_vendor", "0x1d0f"),
            ("class", "0x020000"),
            ("revision", "0x00"),
            ("irq", "0"),
            ("enable", "1"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
        ] {
            file(pci, name, line)?;
        }
        // No memory of the machine is behind it: 13 regions without a place.
        fs::write(
            pci.join("resource"),
            format!("0x{0:016x} 0x{0:016x} 0x{0:016x}\n", 0).repeat(13),
        )?;
        file(pci, "numa_node", &node.to_string())?;
        let (mask, list) = local_cpus(
            node,
            numa_node(self.options.devices - 1, self.options.devices) + 1,
        );
        file(pci, "local_cpus", &mask)?;
        file(pci, "local_cpulist", &list)?;

        self.id_files(pci, self.options.effective_profile(ProfileName::P5en))?;
        if self.options.profile.is_none() {
            let older = self
                .run_dir
                .join(OLDER)
                .join(PCI_ROOT)
                .join(pci_address(self.index));
            fs::create_dir_all(&older)?;
            self.id_files(&older, self.options.effective_profile(ProfileName::P5))?;
        }
        Ok(())
    }

    fn id_files(&self, pci: &Path, profile: Profile) -> io::Result<()> {
        let id = profile.pci_device;
        fs::write(pci.join("config"), config_space(id))?;
        let modalias =
            format!("pci:v{PCI_VENDOR:08X}d{id:08X}sv{PCI_VENDOR:08X}sd{id:08X}bc02sc00i00");
        for name in ["device", "subsystem_device"] {
            file(pci, name, &format!("0x{id:04x}"))?;
        }
        file(pci, "modalias", &modalias)?;
        file(
            pci,
            "uevent",
            &format!(
                "DRIVER=efa\nPCI_CLASS=20000\nPCI_ID={PCI_VENDOR:04X}:{id:04X}\nPCI_SUBSYS_ID={PCI_VENDOR:04X}:{id:04X}\nPCI_SLOT_NAME={}\nMODALIAS={modalias}",
                pci_address(self.index),
            ),
        )
    }

    fn ib_files(&self, ib: &Path) -> io::Result<()> {
        let ip = self.options.ip(self.index);
        let guid = groups(&guid_of(ip));
        for (name, line) in [
            ("node_guid", guid.as_str()),
            ("sys_image_guid", "0000:0000:0000:0000"),
            ("node_type", "7: unspecified"),
            ("node_desc", ""),
            ("fw_ver", ""),
        ] {
            file(ib, name, line)?;
        }

        let profile = self.options.effective_profile(ProfileName::P5en);
        let port = ib.join("ports/1");
        for dir in ["gids", "pkeys", "gid_attrs/types", "gid_attrs/ndevs"] {
            fs::create_dir_all(port.join(dir))?;
        }
        for (name, line) in [
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", "Unknown"),
            ("lid", "0x0"),
            ("lid_mask_count", "1"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
            ("cap_mask", "0x00000000"),
        ] {
            file(&port, name, line)?;
        }
        file(
            ib,
            "uevent",
            &format!("NAME={}", Options::device_name(self.index)),
        )?;
        for (dir, names) in [
            (&port, &stats::NAMES[..]),
            (&ib.to_path_buf(), &stats::DEVICE),
        ] {
            let counters = dir.join("hw_counters");
            fs::create_dir(&counters)?;
            for name in names {
                file(&counters, name, "0")?;
            }
            // How many milliseconds the kernel keeps what the driver told: 10, in ticks of 4.
            file(&counters, "lifespan", "12")?;
        }
        file(&port, "rate", profile.link().sysfs_rate)?;
        file(&port.join("gids"), "0", &groups(&gid_of(ip)))?;
        file(&port.join("pkeys"), "0", "0xffff")?;
        // There is no network device behind a GID.
        let device = port.join("gid_attrs/ndevs/0");
        fs::write(&device, "")?;
        fs::set_permissions(device, fs::Permissions::from_mode(0o444))?;
        file(&port.join("gid_attrs/types"), "0", "IB/RoCE v1")
    }
}

/// The configuration space that PCI tools read: a network controller without anything behind it.
fn config_space(id: u16) -> [u8; 256] {
    let mut config = [0; 256];
    for (at, word) in [
        (0x00, PCI_VENDOR),
        (0x02, id),
        // Memory space and bus mastering are on.
        (0x04, 0x0006),
        // Class 02: network controller.
        (0x0a, 0x0200),
        (0x2c, PCI_VENDOR),
        (0x2e, id),
    ] {
        config[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    config
}

/// `fe80:0000:…`: the kernel's way of writing GIDs and GUIDs.
fn groups(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes
        .chunks(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]))
        .collect();
    words.join(":")
}

/// The processors next to NUMA node `node` of `nodes`, as a mask and as a list.
fn local_cpus(node: u32, nodes: u32) -> (String, String) {
    // SAFETY: sysconf takes no pointers and reads only its argument.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let cpus = u32::try_from(online).unwrap_or(1).clamp(1, 4096);
    let (first, end) = if cpus < nodes {
        (0, cpus)
    } else {
        (cpus * node / nodes, cpus * (node + 1) / nodes)
    };
    let mut words = vec![0u32; cpus.div_ceil(32) as usize];
    for cpu in first..end {
        words[(cpu / 32) as usize] |= 1 << (cpu % 32);
    }
    let mask: Vec<String> = words
        .iter()
        .rev()
        .map(|word| format!("{word:08x}"))
        .collect();
    let last = end - 1;
    let list = if first == last {
        format!("{first}")
    } else {
        format!("{first}-{last}")
    };
    (mask.join(","), list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(options: &Options) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), options).unwrap();
        dir
    }

    fn read(dir: &tempfile::TempDir, path: &str) -> String {
        fs::read_to_string(dir.path().join(path))
            .unwrap()
            .trim_end()
            .to_owned()
    }

    #[test]
    fn class_links_lead_to_a_pci_address_with_a_driver() {
        let dir = tree(&Options {
            devices: 2,
            ..Options::default()
        });
        let device = dir
            .path()
            .join("sys/class/infiniband/efa_1/device")
            .canonicalize()
            .unwrap();
        assert_eq!(device.file_name().unwrap(), "efa0:02:00.0");
        let driver = device.join("driver").canonicalize().unwrap();
        assert_eq!(driver.file_name().unwrap(), "efa");
        assert!(driver.join("efa0:01:00.0/infiniband/efa_0").is_dir());
        assert_eq!(
            read(&dir, "sys/class/infiniband_verbs/uverbs1/ibdev"),
            "efa_1"
        );
        assert_eq!(
            read(&dir, "sys/class/infiniband_verbs/uverbs1/dev"),
            "231:193"
        );
        assert!(
            read(&dir, "sys/bus/pci/devices/efa0:01:00.0/modalias")
                .starts_with("pci:v00001D0Fd0000EFA3sv")
        );
        assert!(read(&dir, "older/devices/pciefa0:00/efa0:01:00.0/modalias").contains("EFA2"));
    }

    #[test]
    fn a_chosen_profile_has_no_older_twin() {
        let options = Options {
            profile: Some(ProfileName::P4d),
            ..Options::default()
        };
        let dir = tree(&options);
        assert_eq!(
            read(&dir, "sys/class/infiniband/efa_0/device/device"),
            "0xefa1"
        );
        assert!(!dir.path().join(OLDER).exists());
    }

    #[test]
    fn the_port_shows_one_gid_that_is_not_roce() {
        let dir = tree(&Options::default());
        let port = "sys/class/infiniband/efa_0/ports/1";
        assert_eq!(
            read(&dir, &format!("{port}/gids/0")),
            "fe80:0000:0000:0000:02ef:7fff:fe00:0001"
        );
        assert_eq!(
            read(&dir, &format!("{port}/gid_attrs/types/0")),
            "IB/RoCE v1"
        );
        assert_eq!(read(&dir, &format!("{port}/state")), "4: ACTIVE");
    }

    #[test]
    fn several_devices_spread_over_two_numa_nodes() {
        let nodes: Vec<u32> = (0..4).map(|index| numa_node(index, 4)).collect();
        assert_eq!(nodes, [0, 0, 1, 1]);
        assert_eq!(numa_node(0, 1), 0);
    }

    #[test]
    fn cpu_masks_are_in_the_kernels_format() {
        let (mask, list) = local_cpus(0, 1);
        assert!(mask.split(',').all(|word| word.len() == 8));
        assert!(list.starts_with('0'));
    }
}
