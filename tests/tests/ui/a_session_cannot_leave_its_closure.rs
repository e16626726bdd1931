//! It holds the send queue's session open, which ends with the closure.

use efa_transport::{Endpoint, Error};

fn keep<'a>(endpoint: &'a mut Endpoint) -> Result<&'a mut Session<'a>, Error> {
    endpoint.batch(|batch| Ok(session))
}

fn hide(endpoint: &mut Endpoint) -> Result<(), Error> {
    let mut hidden = None;
    endpoint.batch(|batch| {
        hidden = Some(session);
        Ok(())
    })
}

fn main() {
    let _ = (keep, hide);
}
