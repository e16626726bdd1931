//! It holds the send queue's session open, which ends with the closure.

use efa_transport::{Batch, Endpoint, Error};

fn keep<'a>(endpoint: &'a mut Endpoint) -> Result<&'a mut Batch<'a>, Error> {
    endpoint.batch(|batch| Ok(batch))
}

fn hide(endpoint: &mut Endpoint) -> Result<(), Error> {
    let mut hidden = None;
    endpoint.batch(|batch| {
        hidden = Some(batch);
        Ok(())
    })
}

fn main() {
    let _ = (keep, hide);
}
