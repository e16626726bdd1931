//! The device, or a peer, may write it at any moment.

fn as_slice(region: &efa_verbs::MemoryRegion) -> &[u8] {
    &region[..]
}

fn by_deref(region: &efa_verbs::MemoryRegion) -> &[u8] {
    region
}

fn main() {
    let _ = (as_slice, by_deref);
}
