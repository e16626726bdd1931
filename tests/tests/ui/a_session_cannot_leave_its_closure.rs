//! It holds the send queue's session open, which ends with the closure.

use efa_transport::{Endpoint, Error, Session};

fn keep<'a>(endpoint: &'a mut Endpoint) -> Result<&'a mut Session<'a>, Error> {
    endpoint.post(|session| Ok(session))
}

fn hide(endpoint: &mut Endpoint) -> Result<(), Error> {
    let mut hidden = None;
    endpoint.post(|session| {
        hidden = Some(session);
        Ok(())
    })
}

fn main() {
    let _ = (keep, hide);
}
