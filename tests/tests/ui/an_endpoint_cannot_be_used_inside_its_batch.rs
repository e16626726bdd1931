//! Polling there would take a lock that the batch may hold.

use efa_transport::{Endpoint, Error};

fn poll(endpoint: &mut Endpoint) -> Result<(), Error> {
    endpoint.batch(|_batch| {
        endpoint.poll(|_| {})?;
        Ok(())
    })
}

fn main() {
    let _ = poll;
}
