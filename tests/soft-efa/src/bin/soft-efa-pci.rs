//! Serves software EFA devices to virtual machines: `cargo xtask vm` starts it.

use std::path::PathBuf;
use std::process::ExitCode;

use soft_efa::options::Options;
use soft_efa::pci::Host;

const USAGE: &str = "usage: soft-efa-pci DIR [--once] [OPTION=VALUE …]

Serves devices to virtual machines over vfio-user, on the sockets DIR/efa_N.vfio, and control
requests on DIR/ctl/PID.sock. With --once it ends when each device's first client has gone.

The options are those of soft-efa's README in their text form: devices=2 profile=p5 addr=127.0.0.1
seed=1 max-rdma-size=BYTES first-qp=N trace faults=SPEC (faults go last).

QEMU gets a device by
  -object memory-backend-memfd,id=mem,share=on,size=2G -machine q35,memory-backend=mem
  -device '{\"driver\":\"vfio-user-pci\",\"x-no-posted-writes\":true,
            \"socket\":{\"type\":\"unix\",\"path\":\"DIR/efa_0.vfio\"}}'";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let Some(dir) = words.next().filter(|word| !word.starts_with('-')) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let (once, words): (Vec<_>, Vec<_>) = words.partition(|word| word == "--once");
    match run(&PathBuf::from(dir), !once.is_empty(), &words.join(" ")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soft-efa-pci: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(dir: &std::path::Path, once: bool, options: &str) -> std::io::Result<()> {
    let options: Options = options
        .parse()
        .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error))?;
    Host::new(&options)?.serve(dir, once)
}
