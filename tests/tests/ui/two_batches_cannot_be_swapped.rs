//! Each ends with the endpoint whose batch it is.

use efa_transport::{Endpoint, Error};

fn swap(a: &mut Endpoint, b: &mut Endpoint) -> Result<(), Error> {
    a.batch(|first| {
        b.batch(|second| {
            std::mem::swap(first, second);
            Ok(())
        })
    })
}

fn main() {
    let _ = swap;
}
