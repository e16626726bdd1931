//! Misuse that the compiler refuses: each file in `ui/` is one, and the claim is its name.
//!
//! `TRYBUILD=overwrite cargo test -p efa-tests --test compile_fail` writes the expected messages
//! anew after a change of the compiler.

#[test]
fn misuse_does_not_compile() {
    for name in ["LD_PRELOAD", "SYSFS_PATH", "SOFT_EFA_DIR"] {
        // SAFETY: this is the only test of the program, and nothing else runs yet.
        unsafe { std::env::remove_var(name) };
    }
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/*.rs");
}
