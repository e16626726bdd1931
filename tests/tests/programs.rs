//! Programs that know nothing of this project, and the libraries that serve them and us.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use efa_tests::{run, under};

/// A program of the system, with the system's libraries: it may use what is private to its own
/// release of rdma-core. A release that was built for the tests has the same programs, first in the
/// search path.
fn system(program: &str) -> Command {
    let mut command = Command::new(Path::new("/usr/bin").join(program));
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// What a program prints, if it succeeds.
fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("can't run {:?}", command.get_program()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}\n{text}\n{errors}",
        output.status
    );
    Ok(text)
}

#[test]
fn ibv_devices_lists_the_devices() {
    run(|t| {
        let devices = t.devices()?;
        t.need_program("ibv_devices", "ibverbs-utils")?;
        let text = output(&mut system("ibv_devices"))?;
        for device in devices {
            let guid = format!("{:016x}", device.guid());
            let line = text.lines().find(|line| line.contains(device.name()));
            ensure!(line.is_some_and(|line| line.contains(&guid)), "{text}");
        }
        Ok(())
    });
}

#[test]
fn ibv_devinfo_prints_what_the_device_says() {
    run(|t| {
        let device = t.device()?;
        t.need_program("ibv_devinfo", "ibverbs-utils")?;
        let context = device.open()?;
        let text = output(system("ibv_devinfo").args(["-v", "-d", device.name()]))?;
        let value = |name: &str| {
            text.lines()
                .find_map(|line| line.trim().strip_prefix(name))
                .map(str::trim)
                .with_context(|| format!("no {name} in:\n{text}"))
        };
        ensure!(value("hca_id:")? == device.name());
        ensure!(value("vendor_id:")? == "0x1d0f");
        ensure!(value("max_qp:")? == context.attributes().max_qp.to_string());
        ensure!(value("max_ah:")? == context.attributes().max_ah.to_string());
        ensure!(value("state:")?.contains("PORT_ACTIVE"));
        // The GID, as address or as groups of hexadecimal digits.
        ensure!(text.contains("GID[  0]"), "{text}");
        Ok(())
    });
}

#[test]
fn several_devices_are_listed_each_with_its_own_address() {
    under("devices=4").run(|t| {
        let devices = t.devices()?;
        ensure!(devices.len() == 4);
        let mut gids = Vec::new();
        for device in &devices {
            gids.push(device.open()?.gid()?);
        }
        gids.dedup();
        ensure!(gids.len() == 4, "{gids:?}");
        if t.need_program("ibv_devices", "ibverbs-utils").is_ok() {
            let text = output(&mut system("ibv_devices"))?;
            for device in &devices {
                ensure!(text.contains(device.name()), "{text}");
            }
        }
        Ok(())
    });
}

/// The file that the dynamic loader takes `symbol` from.
fn provider(symbol: &str) -> Result<String> {
    let name = CString::new(symbol)?;
    // SAFETY: the name is a C string; RTLD_DEFAULT searches what is loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    ensure!(!address.is_null(), "nothing provides {symbol}");
    // SAFETY: integers and nullable pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is valid for the write; any address may be asked for.
    let found = unsafe { libc::dladdr(address, &mut info) };
    ensure!(
        found != 0 && !info.dli_fname.is_null(),
        "{symbol} is in no library"
    );
    // SAFETY: dladdr found an object, whose name is a C string that lives as long as it is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Ok(file.to_string_lossy().into_owned())
}

#[test]
fn every_verb_comes_from_the_real_libraries() {
    run(|t| {
        t.device()?;
        for (library, symbols) in [
            (
                "libibverbs.so.1",
                [
                    "ibv_get_device_list",
                    "ibv_open_device",
                    "ibv_reg_mr",
                    "ibv_modify_qp",
                    "ibv_create_ah",
                ],
            ),
            (
                "libefa.so.1",
                [
                    "efadv_query_device",
                    "efadv_create_qp_ex",
                    "efadv_query_ah",
                    "efadv_create_driver_qp",
                    "efadv_query_device",
                ],
            ),
        ] {
            for symbol in symbols {
                let file = provider(symbol)?;
                let name = file.rsplit('/').next().unwrap_or_default();
                ensure!(name.starts_with(library), "{symbol} comes from {file}");
            }
        }
        Ok(())
    });
}

#[test]
fn the_loader_says_that_the_real_libraries_are_loaded() {
    run(|t| {
        t.device()?;
        t.need_program("ibv_devinfo", "ibverbs-utils")?;
        // A program of ours and a foreign one; the loader writes to standard error.
        let ours = std::env::current_exe()?;
        let mut ours = Command::new(ours);
        ours.args(["--exact", "every_verb_comes_from_the_real_libraries"]);
        let mut foreign = system("ibv_devinfo");
        for command in [&mut ours, &mut foreign] {
            let output = command.env("LD_DEBUG", "libs").output()?;
            ensure!(output.status.success(), "{}", output.status);
            let text = String::from_utf8_lossy(&output.stderr);
            for library in ["libibverbs", "libefa"] {
                // Each is initialised once: there is no second one in front of it.
                let mut files: Vec<_> = text
                    .lines()
                    .filter_map(|line| line.split("calling init: ").nth(1))
                    .filter(|file| {
                        let name = file.rsplit('/').next().unwrap_or_default();
                        name.starts_with(library)
                    })
                    .collect();
                files.dedup();
                ensure!(files.len() == 1, "{library}: {files:?}\n{text}");
            }
        }
        Ok(())
    });
}
