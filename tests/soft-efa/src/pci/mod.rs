//! A device as a PCI function: the real Linux driver drives it, in a virtual machine whose monitor
//! speaks vfio-user (QEMU 10.1 and newer: `vfio-user-pci`).
//!
//! [`Host`] is a server for the devices of a run. The client of each, which is the monitor, lends
//! the guest's memory and gets the BARs; what the guest writes is nobody's word but the guest's:
//! every address, length and index in it is checked before it is used.

mod bars;
mod config;
mod crc;
mod device;
mod events;
mod function;
mod irq;
mod layout;
mod memory;
mod objects;
mod pages;
mod registers;
mod server;
mod status;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::ctl;
use crate::engine::FaultPlan;
use crate::options::Options;

use function::Function;
use server::{Shared, lock};

/// The devices of a run, for virtual machines.
pub struct Host {
    devices: Vec<(String, Shared)>,
}

/// Where the client of device `index` connects, below the run directory.
pub fn socket(dir: &Path, index: u32) -> PathBuf {
    dir.join(format!("{}.vfio", Options::device_name(index)))
}

impl Host {
    /// Makes the devices.
    ///
    /// # Errors
    ///
    /// Options that can't be used, and whatever the system says when memory or threads can't be
    /// had.
    pub fn new(options: &Options) -> io::Result<Self> {
        options
            .check()
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let devices = (0..options.devices)
            .map(|index| {
                let function = Function::new(index, options)?;
                let name = Options::device_name(index);
                Ok((name, Arc::new(Mutex::new(function))))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { devices })
    }

    /// Serves the devices' clients on sockets in `dir`, and answers control requests there. With
    /// `once`, returns when each device's first client has gone; else serves for ever.
    ///
    /// # Errors
    ///
    /// Whatever the system says when a socket can't be bound.
    pub fn serve(self, dir: &Path, once: bool) -> io::Result<()> {
        let listeners = (0..)
            .zip(&self.devices)
            .map(|(index, _)| UnixListener::bind(socket(dir, index)))
            .collect::<io::Result<Vec<_>>>()?;
        let host = Arc::new(self);
        fs::create_dir_all(dir.join(ctl::DIR))?;
        let control = ctl::Server::bind(dir)?;
        let answering = host.clone();
        std::thread::Builder::new()
            .name("soft-efa-ctl".to_owned())
            .spawn(move || control.serve(&*answering))?;
        let threads = listeners
            .into_iter()
            .zip(&host.devices)
            .map(|(listener, (name, function))| {
                let function = function.clone();
                std::thread::Builder::new()
                    .name(name.clone())
                    .spawn(move || server::listen(&function, &listener, once))
            })
            .collect::<io::Result<Vec<_>>>()?;
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => return Err(io::Error::other("a device's thread panicked")),
            }
        }
        Ok(())
    }

    fn selected(&self, name: Option<&str>) -> Result<Vec<&Shared>, String> {
        let found: Vec<&Shared> = self
            .devices
            .iter()
            .filter(|(own, _)| name.is_none_or(|name| name == own))
            .map(|(_, function)| function)
            .collect();
        if found.is_empty() {
            return Err(format!("there is no device {}", name.unwrap_or("at all")));
        }
        Ok(found)
    }

    fn sum(
        &self,
        name: Option<&str>,
        numbers: impl Fn(&Function) -> BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, u64>, String> {
        let mut sum = BTreeMap::new();
        for function in self.selected(name)? {
            for (name, value) in numbers(&lock(function)) {
                *sum.entry(name).or_default() += value;
            }
        }
        Ok(sum)
    }
}

impl ctl::Control for Host {
    fn counters(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
        self.sum(device, |function| function.device().counters())
    }

    fn objects(&self, device: Option<&str>) -> Result<BTreeMap<String, u64>, String> {
        self.sum(device, |function| function.device().objects().counts())
    }

    fn set_faults(&self, device: Option<&str>, spec: &str) -> Result<(), String> {
        let plan: FaultPlan = spec
            .parse()
            .map_err(|error| format!("the fault plan is not understood: {error}"))?;
        for function in self.selected(device)? {
            let engine = lock(function).device().engine().clone();
            engine.set_faults(plan.clone());
        }
        Ok(())
    }

    fn pause(&self, device: Option<&str>, paused: bool) -> Result<(), String> {
        for function in self.selected(device)? {
            let engine = lock(function).device().engine().clone();
            engine.set_paused(paused);
        }
        Ok(())
    }

    fn change(&self, options: &str) -> Result<(), String> {
        let options: Options = options.parse().map_err(|error| format!("{error}"))?;
        let slots = self.devices.len() as u32;
        if options.devices > slots {
            return Err(format!(
                "the virtual machine has places for {slots} devices, not for {}",
                options.devices
            ));
        }
        for (_, function) in &self.devices {
            lock(function)
                .become_other(&options)
                .map_err(|error| format!("can't make the device: {error}"))?;
        }
        Ok(())
    }

    fn is_device(&self, name: &str) -> bool {
        self.devices.iter().any(|(own, _)| own == name)
    }
}
