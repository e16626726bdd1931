//! A region gives its buffer back once nothing uses it, and only by value; until then its
//! bytes are copied.

use efa_transport::{Message, Region};

fn index(region: &Region) -> &[u8] {
    &region[..]
}

fn by_deref(region: &Region) -> &[u8] {
    region
}

fn a_message_after_the_next(endpoint: &mut efa_transport::Endpoint) -> Option<Message<'_>> {
    let message = endpoint.next_message();
    endpoint.poll(|_| {}).ok()?;
    message
}

fn main() {
    let _ = (index, by_deref, a_message_after_the_next);
}
