//! Debian packages beside those of the system: fetched by apt with a state of its own, unpacked
//! into folders, never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::fresh::mirror;
use crate::{process, workspace};

/// The keys that Debian's archives are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where everything of the virtual machines is.
pub fn home() -> PathBuf {
    workspace::target().join("vm")
}

/// A view of Debian's archive: some of its suites, the last of them preferred.
pub struct Archive {
    dir: PathBuf,
    suites: &'static [&'static str],
}

impl Archive {
    /// The view of these suites. Its lists are fetched if they are not there; `renew` fetches them
    /// again.
    pub fn open(suites: &'static [&'static str], renew: bool) -> Result<Self> {
        ensure!(
            process::on_path("apt-get") && process::on_path("dpkg-deb"),
            "virtual machines are made of Debian's packages, and this machine has no apt-get; run \
             this on Debian 12 or newer, or in a container of it"
        );
        let archive = mirror().context(
            "apt's sources name no archive of Debian (an address that ends in /debian), from which \
             QEMU and a kernel could be fetched; run this on Debian 12 or newer",
        )?;
        ensure!(
            Path::new(KEYRING).is_file(),
            "{KEYRING} is missing; install the package debian-archive-keyring"
        );
        let this = Self {
            dir: home().join("apt").join(suites.join("+")),
            suites,
        };
        for dir in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(this.dir.join(dir))
                .with_context(|| format!("can't make {}", this.dir.display()))?;
        }
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {archive} {suite} main\n"))
            .collect();
        let known = fs::read_to_string(this.dir.join("sources.list")).unwrap_or_default();
        // Nothing counts as installed.
        fs::write(this.dir.join("status"), "")?;
        if renew || known != sources || !this.dir.join("fetched").exists() {
            fs::write(this.dir.join("sources.list"), &sources)?;
            process::run_logged(
                &format!("fetching the package lists of {}", suites.join(" and ")),
                this.command("apt-get").arg("update"),
                &this.dir.join("update.log"),
            )?;
            fs::write(this.dir.join("fetched"), "")?;
        }
        Ok(this)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("DEBIAN_FRONTEND", "noninteractive");
        let dir = self.dir.display();
        for option in [
            format!("Dir::State={dir}"),
            format!("Dir::State::lists={dir}/lists"),
            format!("Dir::State::status={dir}/status"),
            format!("Dir::Cache={dir}/cache"),
            format!("Dir::Etc::SourceList={dir}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        if let [.., last] = self.suites {
            command.args(["-o", &format!("APT::Default-Release={last}")]);
        }
        command
    }

    /// What the package depends on, by name: the first alternative of each.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "--no-recommends", "--no-suggests", package]);
        let text = process::output(&mut command)?;
        Ok(text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .map(str::to_owned)
            .collect())
    }

    /// Fetches these packages, with everything that they depend on if `whole`, and unpacks them
    /// into `to`. What is there already, made from the same packages, stays.
    pub fn unpack(&self, what: &str, packages: &[&str], whole: bool, to: &Path) -> Result<()> {
        let stamp = to.join(".unpacked");
        let recipe = packages.join(" ");
        if fs::read_to_string(&stamp).is_ok_and(|text| text == recipe) {
            return Ok(());
        }
        let fresh = to.with_extension("new");
        let debs = to.with_extension("debs");
        for dir in [&fresh, &debs] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir_all(dir).with_context(|| format!("can't make {}", dir.display()))?;
        }
        let mut command = self.command("apt-get");
        if whole {
            fs::create_dir_all(debs.join("partial"))?;
            command
                .args([
                    "install",
                    "--download-only",
                    "--no-install-recommends",
                    "-y",
                ])
                .args(["-o", &format!("Dir::Cache::archives={}", debs.display())]);
        } else {
            command.arg("download").current_dir(&debs);
        }
        command.args(packages);
        let log = to.with_extension("log");
        process::run_logged(&format!("fetching {what}"), &mut command, &log)?;
        let mut count = 0;
        for entry in fs::read_dir(&debs)?.flatten() {
            let deb = entry.path();
            if deb.extension().is_some_and(|end| end == "deb") {
                let mut command = Command::new("dpkg-deb");
                process::output(command.arg("-x").arg(&deb).arg(&fresh))?;
                count += 1;
            }
        }
        if count == 0 {
            bail!("apt-get fetched none of these packages: {recipe}");
        }
        fs::write(fresh.join(".unpacked"), recipe)?;
        let _ = fs::remove_dir_all(to);
        fs::rename(&fresh, to).with_context(|| format!("can't make {}", to.display()))?;
        fs::remove_dir_all(&debs)?;
        Ok(())
    }
}
