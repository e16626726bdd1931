//! A run has looked up its peer and its region: nothing else may begin meanwhile.

use efa_transport::{Endpoint, Error, PeerId, Put, Region, RemoteRegion};

fn both(
    endpoint: &mut Endpoint,
    peer: PeerId,
    (one, other): (&Region, &Region),
    remote: RemoteRegion,
) -> Result<(), Error> {
    endpoint.batch(|batch| {
        session.run(peer, one, |run| {
            batch.add(Put::new(peer, other, remote))?;
            run.write(0..8, remote, 1)?;
            Ok(())
        })
    })
}

fn main() {
    let _ = both;
}
