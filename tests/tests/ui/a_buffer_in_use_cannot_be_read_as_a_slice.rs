//! A region gives its buffer back once nothing uses it, and only by value; until then its bytes are
//! copied. A message's bytes live no longer than the message, which keeps their buffer.

use efa_transport::{Message, Region};

fn index(region: &Region) -> &[u8] {
    &region[..]
}

fn by_deref(region: &Region) -> &[u8] {
    region
}

fn after_the_message(message: Message) -> usize {
    let bytes: &[u8] = &message;
    drop(message);
    bytes.len()
}

fn main() {
    let _ = (index, by_deref, after_the_message);
}
