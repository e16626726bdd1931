//! Each ends with the endpoint whose run it is, and has its own region.

use efa_transport::{Endpoint, Error, PeerId, Region};

fn swap(
    (a, to_a): (&mut Endpoint, PeerId),
    (b, to_b): (&mut Endpoint, PeerId),
    region: &Region,
) -> Result<(), Error> {
    a.post(|first| {
        first.run(to_a, region, |one| {
            b.post(|second| {
                second.run(to_b, region, |other| {
                    std::mem::swap(one, other);
                    Ok(())
                })
            })
        })
    })
}

fn main() {
    let _ = swap;
}
