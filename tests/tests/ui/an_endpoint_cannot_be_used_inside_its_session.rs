//! Polling there would take a lock that the session may hold.

use efa_transport::{Endpoint, Error};

fn poll(endpoint: &mut Endpoint) -> Result<(), Error> {
    endpoint.post(|_session| {
        endpoint.poll(|_| {})?;
        Ok(())
    })
}

fn main() {
    let _ = poll;
}
