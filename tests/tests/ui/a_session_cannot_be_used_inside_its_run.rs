//! A run has looked up its peer and its region: nothing else may begin meanwhile.

use efa_transport::{Endpoint, Error, PeerId, Region, RemoteRegion};

fn both(
    endpoint: &mut Endpoint,
    peer: PeerId,
    (one, other): (&Region, &Region),
    remote: RemoteRegion,
) -> Result<(), Error> {
    endpoint.post(|session| {
        session.run(peer, one, |run| {
            session.write(peer, other, remote, 0)?;
            run.write(0..8, remote, 1)?;
            Ok(())
        })
    })
}

fn main() {
    let _ = both;
}
