//! The options of a run, and their text form in the environment.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::profile::{Profile, ProfileName};

/// The way in which libibverbs talks to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Abi {
    /// Attribute ioctls, as kernels from 4.20 on.
    #[default]
    Ioctl,
    /// Commands written to the device file, as older kernels. Objects that exist only as
    /// ioctl (dmabuf memory regions, the query of a memory region) are missing.
    Write,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ioctl => "ioctl",
            Self::Write => "write",
        })
    }
}

impl FromStr for Abi {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ioctl" => Ok(Self::Ioctl),
            "write" => Ok(Self::Write),
            _ => Err(OptionsError::new("abi", text, "it is ioctl or write")),
        }
    }
}

/// What the devices of a run are like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many devices there are, 1 to [`Options::MAX_DEVICES`].
    pub devices: u32,
    /// The hardware to imitate. `None` is p5en, or p5 in a process whose libefa does not know
    /// p5en's PCI id.
    pub profile: Option<ProfileName>,
    /// The IPv4 address of the first device; device `i` has this address plus `i`.
    pub addr: Ipv4Addr,
    /// Seeds every random decision.
    pub seed: u64,
    /// Lowers the longest RDMA request, in bytes, so that chunking is seen with little data.
    pub max_rdma_size: Option<u32>,
    /// Gives queue pairs the lowest numbers from here on that are free, so that a process that
    /// is started again gets the numbers of its predecessor. `None` lets the system choose.
    pub first_qp: Option<u16>,
    /// The kernel interface to offer.
    pub abi: Abi,
    /// Prints one line per event to standard error.
    pub trace: bool,
    /// The fault plan, in the language of the README; empty is none.
    pub faults: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            devices: 1,
            profile: None,
            addr: Ipv4Addr::LOCALHOST,
            seed: 1,
            max_rdma_size: None,
            first_qp: None,
            abi: Abi::default(),
            trace: false,
            faults: String::new(),
        }
    }
}

/// An option whose value can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("option {option}: {value:?} can't be used: {reason}")]
pub struct OptionsError {
    /// The option's name, without dashes.
    pub option: String,
    /// The value that was given.
    pub value: String,
    /// What the option takes.
    pub reason: String,
}

impl OptionsError {
    fn new(option: &str, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self {
            option: option.to_owned(),
            value: value.to_string(),
            reason: reason.into(),
        }
    }
}

impl Options {
    /// More devices than any instance type has.
    pub const MAX_DEVICES: u32 = 32;

    /// The name of device `index`, as `ibv_devices` prints it.
    pub fn device_name(index: u32) -> String {
        format!("efa_{index}")
    }

    /// The IPv4 address of device `index`.
    pub fn ip(&self, index: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.addr).wrapping_add(index))
    }

    /// The device's limits, where the profile that the run asks for (or `default`, where it
    /// asks for none) is adjusted by the other options.
    pub fn effective_profile(&self, default: ProfileName) -> Profile {
        let mut profile = self.profile.unwrap_or(default).profile();
        if let Some(limit) = self.max_rdma_size {
            profile.max_rdma_size = profile.max_rdma_size.min(limit);
        }
        profile
    }

    /// Checks what the types can't say.
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.devices == 0 || self.devices > Self::MAX_DEVICES {
            let reason = format!("it is a number from 1 to {}", Self::MAX_DEVICES);
            return Err(OptionsError::new("devices", self.devices, reason));
        }
        if self.max_rdma_size == Some(0) {
            let reason =
                "it is a number of bytes above 0; use the profile c5n for a device without RDMA";
            return Err(OptionsError::new("max-rdma-size", 0, reason));
        }
        if self.first_qp == Some(0) {
            let reason = "it is a queue pair number, 1 to 65535";
            return Err(OptionsError::new("first-qp", 0, reason));
        }
        let last = u32::from(self.addr).checked_add(self.devices - 1);
        let usable =
            |ip: Ipv4Addr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast();
        if !usable(self.addr) || !last.is_some_and(|last| usable(Ipv4Addr::from(last))) {
            let reason = "it is the IPv4 address of an interface, and the following devices take the following addresses";
            return Err(OptionsError::new("addr", self.addr, reason));
        }
        Ok(())
    }
}

/// `name=value` words; the fault plan is the rest of the line, because it may contain spaces.
impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "devices={} addr={} seed={} abi={}",
            self.devices, self.addr, self.seed, self.abi
        )?;
        if let Some(profile) = self.profile {
            write!(f, " profile={profile}")?;
        }
        if let Some(limit) = self.max_rdma_size {
            write!(f, " max-rdma-size={limit}")?;
        }
        if let Some(first) = self.first_qp {
            write!(f, " first-qp={first}")?;
        }
        if self.trace {
            f.write_str(" trace")?;
        }
        if !self.faults.is_empty() {
            write!(f, " faults={}", self.faults)?;
        }
        Ok(())
    }
}

impl FromStr for Options {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut options = Self::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            if let Some(faults) = rest.strip_prefix("faults=") {
                options.faults = faults.trim().to_owned();
                break;
            }
            let (word, tail) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            rest = tail.trim_start();
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = |reason: &str| OptionsError::new(name, value, reason);
            match name {
                "devices" => {
                    options.devices = value.parse().map_err(|_| number("it is a number"))?;
                }
                "profile" => {
                    options.profile = Some(
                        value
                            .parse()
                            .map_err(|error| OptionsError::new(name, value, format!("{error}")))?,
                    );
                }
                "addr" => {
                    options.addr = value.parse().map_err(|_| number("it is an IPv4 address"))?;
                }
                "seed" => {
                    options.seed = value.parse().map_err(|_| number("it is a number"))?;
                }
                "max-rdma-size" => {
                    let bytes = value
                        .parse()
                        .map_err(|_| number("it is a number of bytes"))?;
                    options.max_rdma_size = Some(bytes);
                }
                "first-qp" => {
                    let first = value
                        .parse()
                        .map_err(|_| number("it is a queue pair number, 1 to 65535"))?;
                    options.first_qp = Some(first);
                }
                "abi" => options.abi = value.parse()?,
                "trace" if !word.contains('=') => options.trace = true,
                _ => return Err(OptionsError::new(name, value, "there is no such option")),
            }
        }
        options.check()?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let full = Options {
            devices: 4,
            profile: Some(ProfileName::P4d),
            addr: Ipv4Addr::new(10, 0, 0, 7),
            seed: u64::MAX,
            max_rdma_size: Some(4096),
            first_qp: Some(20_000),
            abi: Abi::Write,
            trace: true,
            faults: "loss=0.05, delay=2ms".to_owned(),
        };
        for options in [Options::default(), full] {
            assert_eq!(options.to_string().parse(), Ok(options));
        }
    }

    #[test]
    fn bad_values_are_named_with_what_would_be_right() {
        let cases = [
            ("devices=0", "1 to 32"),
            ("devices=many", "number"),
            ("profile=g5", "p5en"),
            ("addr=::1", "IPv4"),
            ("addr=0.0.0.0", "interface"),
            ("devices=2 addr=255.255.255.254", "interface"),
            ("abi=netlink", "ioctl or write"),
            ("max-rdma-size=0", "c5n"),
            ("first-qp=0", "1 to 65535"),
            ("first-qp=70000", "1 to 65535"),
            ("colour=red", "no such option"),
        ];
        for (text, hint) in cases {
            let error = text.parse::<Options>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn each_device_has_its_own_address() {
        let options = Options::default();
        assert_eq!(options.ip(0), Ipv4Addr::new(127, 0, 0, 1));
        assert_eq!(options.ip(3), Ipv4Addr::new(127, 0, 0, 4));
    }
}
