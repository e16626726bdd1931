//! `cargo xtask public-api`: a listing of what the libraries offer, so that nothing is added unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{build, process, rdma_core, workspace};

/// The crates that are listed, by folder.
const CRATES: [&str; 2] = ["efa-verbs", "efa-transport"];

/// Modules of efa-transport that are layers above an endpoint; what an endpoint needs is bounded without them.
const LAYERS: [&str; 4] = ["rails::", "future::", "tokio::", "cuda::"];

/// What efa-transport may have at most, beside its layers.
const MOST_TYPES: usize = 47;
const MOST_ENDPOINT_METHODS: usize = 30;
const MOST_SETTINGS: usize = 10;

/// List the public items of the libraries; fail where the listing differs from the one checked in.
#[derive(Args)]
pub struct PublicApi {
    /// Write the listings instead.
    #[arg(long)]
    bless: bool,
}

pub fn run(args: &PublicApi) -> Result<ExitCode> {
    if args.bless {
        for (krate, items) in listings()? {
            let path = listing_of(krate);
            fs::write(&path, text(&items)).with_context(|| format!("can't write {path:?}"))?;
            println!("{}: {} items", workspace::shown(&path), items.len());
        }
        return Ok(ExitCode::SUCCESS);
    }
    check()?;
    Ok(ExitCode::SUCCESS)
}

/// Fails where a listing differs from the one checked in, or grows beyond its bounds.
pub fn check() -> Result<()> {
    let listings = listings()?;
    for (krate, items) in &listings {
        let path = listing_of(krate);
        let known = fs::read_to_string(&path).unwrap_or_default();
        let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
        let added: Vec<_> = items
            .difference(&known)
            .map(|item| format!("  + {item}"))
            .collect();
        let gone: Vec<_> = known
            .difference(items)
            .map(|item| format!("  - {item}"))
            .collect();
        if !added.is_empty() || !gone.is_empty() {
            bail!(
                "the public items of {krate} have changed:\n{}\nif that is meant, run `cargo xtask public-api \
                 --bless`",
                [added, gone].concat().join("\n")
            );
        }
    }
    let [(_, verbs), (_, transport)] = &listings;
    bounds(verbs, transport)
}

fn bounds(verbs: &BTreeSet<String>, transport: &BTreeSet<String>) -> Result<()> {
    let types = transport
        .iter()
        .filter(|item| is_type(item) && !verbs.contains(*item))
        .count();
    let methods = members(transport, "Endpoint", "method");
    let settings = members(transport, "Config", "structfield");
    println!(
        "efa-transport: {types} types of its own, {methods} methods of Endpoint, {settings} settings in Config"
    );
    ensure!(
        types <= MOST_TYPES,
        "efa-transport has {types} public types, and {MOST_TYPES} at most"
    );
    ensure!(
        methods <= MOST_ENDPOINT_METHODS,
        "Endpoint has {methods} methods, and {MOST_ENDPOINT_METHODS} at most"
    );
    ensure!(
        settings <= MOST_SETTINGS,
        "Config has {settings} settings, and {MOST_SETTINGS} at most"
    );
    Ok(())
}

fn is_type(item: &str) -> bool {
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    kinds.iter().any(|kind| {
        item.strip_prefix(kind)
            .is_some_and(|path| !LAYERS.iter().any(|layer| path.starts_with(layer)))
    })
}

fn members(items: &BTreeSet<String>, of: &str, kind: &str) -> usize {
    let start = format!("{kind} {of}::");
    items.iter().filter(|item| item.starts_with(&start)).count()
}

fn listing_of(krate: &str) -> PathBuf {
    workspace::root().join(krate).join("public-api.txt")
}

fn text(items: &BTreeSet<String>) -> String {
    items.iter().map(|item| format!("{item}\n")).collect()
}

/// The items of each crate, as rustdoc has them.
fn listings() -> Result<[(&'static str, BTreeSet<String>); 2]> {
    let target = workspace::target().join("public-api");
    // Pages of items that are gone would stay.
    let docs = target.join("doc");
    if docs.exists() {
        fs::remove_dir_all(&docs).with_context(|| format!("can't remove {docs:?}"))?;
    }
    let mut command = build::cargo();
    command.args([
        "doc",
        "--quiet",
        "--no-deps",
        "--all-features",
        "--target-dir",
    ]);
    command.arg(&target);
    for krate in CRATES {
        command.args(["--package", krate]);
    }
    rdma_core::resolve(rdma_core::Choice::Auto)?.apply(&mut command);
    process::run(&mut command)?;
    let list = |krate: &'static str| -> Result<_> {
        let folder = docs.join(krate.replace('-', "_"));
        let mut items = BTreeSet::new();
        read_folder(&folder, "", &mut items)?;
        ensure!(!items.is_empty(), "rustdoc shows no item of {krate}");
        Ok((krate, items))
    };
    Ok([list(CRATES[0])?, list(CRATES[1])?])
}

/// Adds the items of a module, whose path ends in `::` unless it is the crate's top.
fn read_folder(folder: &Path, module: &str, items: &mut BTreeSet<String>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("can't read {folder:?}"))?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            // Private modules have folders with redirections only.
            read_folder(&path, &format!("{module}{name}::"), items)?;
        } else if let Some((kind, item)) =
            name.strip_suffix(".html").and_then(|it| it.split_once('.'))
        {
            let page = fs::read_to_string(&path)?;
            if page.contains("http-equiv=\"refresh\"") {
                continue;
            }
            items.insert(format!("{kind} {module}{item}"));
            read_page(&page, &format!("{module}{item}"), items);
        }
    }
    Ok(())
}

/// Adds the members that an item has by itself, not by a trait.
fn read_page(page: &str, item: &str, items: &mut BTreeSet<String>) {
    let ends = ["id=\"trait-implementations\"", "id=\"deref-methods"];
    let end = ends
        .iter()
        .filter_map(|end| page.find(end))
        .min()
        .unwrap_or(page.len());
    for id in page[..end].split("id=\"").skip(1) {
        let id = id.split('"').next().unwrap_or_default();
        let Some((kind, member)) = id.split_once('.') else {
            continue;
        };
        let kinds = [
            "method",
            "tymethod",
            "structfield",
            "variant",
            "associatedconstant",
        ];
        let word = member.chars().all(|c| c.is_alphanumeric() || c == '_');
        if kinds.contains(&kind) && word {
            items.insert(format!("{kind} {item}::{member}"));
        }
    }
}
