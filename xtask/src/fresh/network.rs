//! What a clean root takes over from this machine so that it reaches the same registries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// The archive that this machine gets Debian from, if it names one; debootstrap knows another.
pub fn mirror() -> Option<String> {
    let mut texts = vec![fs::read_to_string("/etc/apt/sources.list").unwrap_or_default()];
    for entry in fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten()
    {
        texts.push(fs::read_to_string(entry.path()).unwrap_or_default());
    }
    texts.iter().find_map(|text| archive(text))
}

/// The first archive of Debian itself in a list of sources, in either format.
fn archive(sources: &str) -> Option<String> {
    let of_debian = |address: &&str| {
        address.contains("://") && address.trim_end_matches('/').ends_with("/debian")
    };
    sources
        .lines()
        .filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"))
        .flat_map(str::split_whitespace)
        .find(of_debian)
        .map(str::to_owned)
}

/// Copies the configuration.
pub fn copy(root: &Path) -> Result<()> {
    for file in ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"] {
        copy_file(Path::new(file), &inside(root, file))?;
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    for file in [".config/pip/pip.conf", ".pip/pip.conf"] {
        copy_file(&home.join(file), &root.join("root").join(file))?;
    }
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    for file in ["config.toml", "config"] {
        copy_file(&cargo.join(file), &root.join("root/.cargo").join(file))?;
    }
    let mut dump = Command::new("apt-config");
    dump.arg("dump");
    if let Ok(text) = process::output(&mut dump) {
        let file = inside(root, "/etc/apt/apt.conf.d/90as-outside");
        write(&file, apt_settings(&text))?;
    }
    certificates(root)
}

fn inside(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Copies what a link points to; a file that is not there is not needed.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    match fs::read(from) {
        Ok(text) => write(to, text),
        Err(_) => Ok(()),
    }
}

fn write(to: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    let failed = || format!("can't write {}", to.display());
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir).with_context(failed)?;
    }
    // A link in the root would lead to a file of this machine.
    if to.is_symlink() {
        fs::remove_file(to).with_context(failed)?;
    }
    fs::write(to, text).with_context(failed)
}

/// apt's settings about how to reach an archive and what to accept from it.
fn apt_settings(dump: &str) -> String {
    const ABOUT: [&str; 4] = [
        "Acquire::http",
        "Acquire::https",
        "Acquire::Check-",
        "Acquire::Retries",
    ];
    dump.lines()
        .filter(|line| ABOUT.iter().any(|start| line.starts_with(start)))
        .map(|line| format!("{line}\n"))
        .collect()
}

const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The certificates that this machine trusts: as they are for now, and those that Debian does
/// not have where its package of certificates will pick them up.
fn certificates(root: &Path) -> Result<()> {
    let Ok(bundle) = fs::read_to_string(BUNDLE) else {
        return Ok(());
    };
    write(&inside(root, BUNDLE), &bundle)?;
    let mut debians = String::new();
    for entry in fs::read_dir("/usr/share/ca-certificates/mozilla")
        .into_iter()
        .flatten()
        .flatten()
    {
        debians += &fs::read_to_string(entry.path()).unwrap_or_default();
    }
    let known = split(&debians);
    let extra = split(&bundle)
        .into_iter()
        .filter(|one| !known.contains(one));
    for (number, certificate) in extra.enumerate() {
        let name = format!("/usr/local/share/ca-certificates/outside-{number}.crt");
        write(&inside(root, &name), certificate)?;
    }
    Ok(())
}

/// The certificates of a bundle, each in a form that can be compared.
fn split(bundle: &str) -> Vec<String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split(BEGIN)
        .skip(1)
        .filter_map(|part| part.split(END).next())
        .map(|body| format!("{BEGIN}\n{}\n{END}\n", body.trim().replace('\r', "")))
        .collect()
}

/// The variables about reaching registries, without any that may hold a secret.
pub fn variables(all: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    all.filter(|(name, _)| {
        let upper = name.to_uppercase();
        let about = upper.ends_with("_PROXY")
            || upper.starts_with("PIP_")
            || upper.starts_with("CARGO_HTTP_")
            || upper.starts_with("CARGO_NET_")
            || upper.starts_with("CARGO_REGISTR")
            || upper.starts_with("CARGO_SOURCE_")
            || upper == "SSL_CERT_FILE"
            || upper == "TERM";
        about
            && !["TOKEN", "PASSWORD", "SECRET"]
                .iter()
                .any(|word| upper.contains(word))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_archive_is_found_in_both_formats() {
        let lines = "# deb ftp://a/debian x\ndeb ftp://b/cloud c main\ndeb [signed-by=/k] ftp://m.example/debian/ bookworm main\n";
        assert_eq!(archive(lines).as_deref(), Some("ftp://m.example/debian/"));
        let stanza =
            "Types: deb\n# ftp://old/debian\nURIs: ftp://n.example/debian\nSuites: bookworm\n";
        assert_eq!(archive(stanza).as_deref(), Some("ftp://n.example/debian"));
        assert_eq!(archive("deb http://x/ubuntu noble main\n"), None);
    }

    #[test]
    fn apt_takes_over_the_way_to_the_archive_alone() {
        let dump = "APT \"\";\nAcquire::http::Proxy \"http://p:3128\";\nAcquire::Languages \"none\";\nDPkg::Post-Invoke:: \"rm\";\n";
        assert_eq!(
            apt_settings(dump),
            "Acquire::http::Proxy \"http://p:3128\";\n"
        );
    }

    #[test]
    fn certificates_are_compared_without_their_comments() {
        let one = "-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----";
        let two = one.replace("AAA", "BBB");
        let bundle = format!("# first\n{one}\n\n# second\n{two}\r\n");
        let parts = split(&bundle);
        assert_eq!(parts, [format!("{one}\n"), format!("{two}\n")]);
        assert_eq!(split(&one.replace('\n', "\r\n")), parts[..1]);
    }

    #[test]
    fn secrets_stay_outside() {
        let all = [
            ("https_proxy", "p"),
            ("PIP_INDEX_URL", "u"),
            ("CARGO_REGISTRIES_X_TOKEN", "t"),
            ("CARGO_NET_RETRY", "3"),
            ("HOME", "/h"),
        ];
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kept: Vec<_> = variables(all.into_iter())
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(kept, ["https_proxy", "PIP_INDEX_URL", "CARGO_NET_RETRY"]);
    }
}
