//! Each ends with the endpoint whose session it is.

use efa_transport::{Endpoint, Error};

fn swap(a: &mut Endpoint, b: &mut Endpoint) -> Result<(), Error> {
    a.post(|first| {
        b.post(|second| {
            std::mem::swap(first, second);
            Ok(())
        })
    })
}

fn main() {
    let _ = swap;
}
