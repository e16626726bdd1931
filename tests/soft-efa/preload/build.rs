//! Compiles the C functions with a variable number of arguments, which Rust can't define.

fn main() {
    println!("cargo::rerun-if-changed=csrc/variadic.c");
    cc::Build::new()
        .file("csrc/variadic.c")
        .flag_if_supported("-fvisibility=hidden")
        .warnings_into_errors(false)
        .compile("soft_efa_variadic");
}
