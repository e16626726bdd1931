//! `cargo xtask regenerate`: makes `efa-sys/src/bindings.rs` from rdma-core's headers.
//!
//! The result is checked in, so that nobody who builds the crates needs libclang. It must
//! come out the same on every machine: one file serves x86_64 and aarch64, whatever libclang
//! is at hand. Hence the choices below: structs whose size depends on `pthread_*` are opaque,
//! anonymous enums lose the number that bindgen gives them, and the formatting is
//! `prettyplease`'s, never a local `rustfmt`'s.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The file that [`run`] writes, from the workspace root.
const OUTPUT: &str = "efa-sys/src/bindings.rs";

/// Structs that Rust knows as addresses only; their fields are reached through the C shims. All but
/// `ibv_device` embed `pthread_mutex_t` or `pthread_cond_t`, whose size differs between
/// architectures; `ibv_device` is the library's own business.
const OPAQUE: &[&str] = &[
    "ibv_context",
    "ibv_cq",
    "ibv_cq_ex",
    "ibv_device",
    "ibv_qp",
    "ibv_qp_ex",
    "ibv_srq",
    "ibv_wq",
];

/// Functions that must not be declared: newer than rdma-core 44 or than `EFA_1.1` (a call would
/// be a link error or a load failure there; the useful ones are looked up at run time instead),
/// or wrong to call directly (`ibv_query_port` has a compatibility signature, the list of static
/// providers belongs to a static link).
const NOT_DECLARED: &[&str] = &[
    "ibv_alloc_dmah",
    "ibv_dealloc_dmah",
    "ibv_reg_mr_ex",
    "ibv_wr_opcode_str",
    "ibv_query_port",
    "ibv_static_providers",
    "efadv_create_cq",
    "efadv_cq_from_ibv_cq_ex",
    "efadv_query_mr",
    "efadv_query_qp_wqs",
    "efadv_query_cq",
];

/// Types that only the static-inline functions of `verbs.h` use: no declared function leads to
/// them, but a caller of the shims needs them.
const TYPES_OF_INLINES: &str = "ibv_(cq_init_attr_ex|create_cq_wc_flags|create_cq_attr_flags|\
     poll_cq_attr|modify_cq_attr|cq_moderation|cq_attr_mask|device_attr_ex|query_device_ex_input|\
     td|td_init_attr|parent_domain_init_attr|parent_domain_init_attr_mask|wc|wc_status|wc_opcode|wc_flags|\
     access_flags|send_flags|wr_opcode|send_wr|recv_wr|sge|data_buf|gid_entry|port_attr|port_state|\
     qp_attr_mask|qp_init_attr_mask|qp_create_flags|qp_create_send_ops_flags|cq_init_attr_mask|\
     device_cap_flags|rereg_mr_flags|event_type|mtu|node_type|transport_type|qp_state|qp_type|\
     gid_type|fork_status|pci_atomic_caps|odp_caps|wc_tm_info|rate)|ib_uverbs_advise_mr_advice";

/// Enums that become plain integer constants: those whose values are combined with `|`, and the
/// anonymous ones (bindgen matches an enum that has no name by its variants).
const PLAIN_ENUMS: &str =
    ".*_(flags|flags2|mask|caps|cap_bits|fields)|ibv_placement_type|IBV_.*|EFADV_.*";

/// Writes the bindings, or under `check` compares them with the file that is checked in.
///
/// `source` is an rdma-core source tree (built or not) or a directory that contains
/// `infiniband/verbs.h` and `infiniband/efadv.h`.
pub fn run(source: &Path, check: bool) -> Result<()> {
    let root = workspace_root();
    let include = include_dir(source, &root)?;
    let fresh = generate(&include, &root)?;
    let output = root.join(OUTPUT);
    let present = fs::read_to_string(&output).unwrap_or_default();
    if fresh == present {
        println!("{OUTPUT} is up to date");
        return Ok(());
    }
    if check {
        let line = first_difference(&present, &fresh);
        bail!(
            "{OUTPUT} differs from what the headers give, from line {line} on; \
             mend it with: cargo xtask regenerate"
        );
    }
    fs::write(&output, fresh).with_context(|| format!("could not write {}", output.display()))?;
    println!("wrote {OUTPUT}");
    Ok(())
}

fn workspace_root() -> PathBuf {
    // xtask lives one level below the root.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

fn first_difference(a: &str, b: &str) -> usize {
    let same = a.lines().zip(b.lines()).take_while(|(a, b)| a == b).count();
    same + 1
}

/// A directory that can be given to the compiler with `-I`.
fn include_dir(source: &Path, root: &Path) -> Result<PathBuf> {
    for candidate in [
        source.to_path_buf(),
        source.join("build/include"),
        source.join("include"),
    ] {
        if candidate.join("infiniband/efadv.h").exists() {
            return candidate
                .canonicalize()
                .context("could not resolve the include directory");
        }
    }
    if !source.join("libibverbs/verbs.h").exists() {
        bail!(
            "{} is neither an rdma-core source tree nor a directory with infiniband/efadv.h",
            source.display()
        );
    }
    // An unbuilt tree: lay the headers out as an installation would.
    let include = root.join("target/regenerate/include");
    let infiniband = include.join("infiniband");
    let rdma = include.join("rdma");
    if include.exists() {
        fs::remove_dir_all(&include)?;
    }
    fs::create_dir_all(&infiniband)?;
    fs::create_dir_all(&rdma)?;
    for (from, to) in [
        ("libibverbs/verbs.h", infiniband.join("verbs.h")),
        ("libibverbs/verbs_api.h", infiniband.join("verbs_api.h")),
        ("providers/efa/efadv.h", infiniband.join("efadv.h")),
        (
            "kernel-headers/rdma/ib_user_ioctl_verbs.h",
            infiniband.join("ib_user_ioctl_verbs.h"),
        ),
        (
            "kernel-headers/rdma/ib_user_ioctl_verbs.h",
            rdma.join("ib_user_ioctl_verbs.h"),
        ),
        (
            "kernel-headers/rdma/ib_user_verbs.h",
            rdma.join("ib_user_verbs.h"),
        ),
    ] {
        fs::copy(source.join(from), &to)
            .with_context(|| format!("could not copy {from} of {}", source.display()))?;
    }
    Ok(include)
}

fn generate(include: &Path, root: &Path) -> Result<String> {
    point_at_libclang(root)?;
    let mut builder = bindgen::Builder::default()
        .header_contents(
            "efa-sys.h",
            "#include <infiniband/verbs.h>\n#include <infiniband/efadv.h>\n",
        )
        .clang_arg(format!("-I{}", include.display()));
    // The Python package carries the library without the headers that belong to every
    // compiler (stddef.h and the like), so those of the system's compiler are passed on.
    if let Some(dir) = compiler_include_dir() {
        builder = builder
            .clang_arg("-idirafter")
            .clang_arg(dir.display().to_string());
    }
    builder = builder
        .allowlist_function("ibv_.*|efadv_.*")
        .blocklist_function(NOT_DECLARED.join("|"))
        .allowlist_type(TYPES_OF_INLINES)
        .allowlist_type("efadv_.*")
        .allowlist_var("IBV_.*|EFADV_.*")
        // Blocked, since they are written by hand below; opaque, so that bindgen does not follow
        // their fields.
        .blocklist_type(OPAQUE.join("|"))
        .opaque_type(OPAQUE.join("|"))
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: true,
        })
        .constified_enum(PLAIN_ENUMS)
        .prepend_enum_name(false)
        // Not even Debug: it would read padding-dependent unions, and nobody prints these.
        .derive_debug(false)
        .derive_default(false)
        .layout_tests(true)
        .generate_comments(false)
        .merge_extern_blocks(true)
        .disable_header_comment()
        .use_core()
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| anyhow::anyhow!("{e}"))?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease);
    let raw = builder
        .generate()
        .context("bindgen could not read the headers (the message above says where it stopped)")?;
    finish(&raw.to_string())
}

/// Adds the head of the file and the opaque structs, and names anonymous enums' type by what it
/// is: bindgen counts them, and the count moves with every header that a C library adds.
fn finish(raw: &str) -> Result<String> {
    let mut aliases = Vec::new();
    let mut body = String::new();
    for line in raw.lines() {
        let alias = line
            .strip_prefix("pub type _bindgen_ty_")
            .and_then(|rest| rest.strip_suffix(';'))
            .and_then(|rest| rest.split_once(" = "));
        match alias {
            Some((number, target)) => {
                aliases.push((format!("_bindgen_ty_{number}"), target.to_owned()));
            }
            None => {
                body.push_str(line);
                body.push('\n');
            }
        }
    }
    // The longest name first, so that `_bindgen_ty_1` does not eat the start of `_bindgen_ty_12`.
    aliases.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    for (name, target) in &aliases {
        body = body.replace(&format!(": {name} "), &format!(": {target} "));
    }
    ensure!(
        !body.contains(": _bindgen_ty_"),
        "an anonymous enum kept bindgen's number; its style is not the one that was asked for"
    );
    let mut out = String::from(
        "// Made by `cargo xtask regenerate` from infiniband/verbs.h and infiniband/efadv.h.\n\
         // Not edited by hand; `cargo xtask regenerate --check` tells whether it is current.\n\n",
    );
    for name in OPAQUE {
        out.push_str(&format!(
            "#[repr(C)]\npub struct {name} {{\n    _private: [u8; 0],\n    \
             _pinned: ::core::marker::PhantomData<(*mut u8, ::core::marker::PhantomPinned)>,\n}}\n"
        ));
    }
    out.push_str(&body);
    Ok(out)
}

/// Where the system's C compiler keeps its own headers.
fn compiler_include_dir() -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(compiler)
        .arg("-print-file-name=include")
        .output()
        .ok()?;
    let dir = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    dir.join("stddef.h").exists().then_some(dir)
}

/// Makes sure that bindgen will find libclang: the user's choice, else the system's, else the
/// Python package `libclang`, installed below `target/`.
fn point_at_libclang(root: &Path) -> Result<()> {
    if std::env::var_os("LIBCLANG_PATH").is_some() || system_has_libclang() {
        return Ok(());
    }
    let home = root.join("target/regenerate/libclang");
    let native = home.join("clang/native");
    if !native.join("libclang.so").exists() {
        println!(
            "installing the Python package libclang into {}",
            home.display()
        );
        let status = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(["--root-user-action", "ignore", "--only-binary", ":all:"])
            .arg("--target")
            .arg(&home)
            .arg("libclang")
            .status();
        let ok = status.as_ref().is_ok_and(|status| status.success());
        ensure!(
            ok && native.join("libclang.so").exists(),
            "no libclang: install it (Debian and Ubuntu: apt-get install libclang-dev, Amazon \
             Linux: dnf install clang-devel), or python3-pip so that it can be fetched"
        );
    }
    // SAFETY: xtask is single-threaded at this point: `run` is called from `main` before anything
    // was spawned, so nobody reads the environment meanwhile.
    unsafe { std::env::set_var("LIBCLANG_PATH", &native) };
    Ok(())
}

/// Whether one of the places where distributions put libclang has it. The same places that
/// bindgen's loader searches; asking it directly would make a miss final.
fn system_has_libclang() -> bool {
    let mut dirs: Vec<PathBuf> = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    for entry in fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("llvm-") {
            dirs.push(entry.path().join("lib"));
        }
    }
    dirs.iter().any(|dir| {
        fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                // libclang-cpp is the C++ interface, another library.
                name.starts_with("libclang.so")
                    || name.starts_with("libclang-")
                        && !name.starts_with("libclang-cpp")
                        && name.contains(".so")
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_enums_lose_their_number() {
        let raw = "pub const A: _bindgen_ty_1 = 1;\npub type _bindgen_ty_1 = ::core::ffi::c_uint;\n\
                   pub const B: _bindgen_ty_12 = 2;\npub type _bindgen_ty_12 = ::core::ffi::c_int;\n";
        let text = finish(raw).unwrap();
        assert!(text.contains("pub const A: ::core::ffi::c_uint = 1;"));
        assert!(text.contains("pub const B: ::core::ffi::c_int = 2;"));
        assert!(!text.contains("_bindgen_ty"));
    }

    #[test]
    fn the_first_differing_line_is_named() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), 2);
        assert_eq!(first_difference("a\n", "a\nb\n"), 2);
    }
}
