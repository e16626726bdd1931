//! Endpoints that get to know each other by the handshake, and the memory that they tell each other.

use std::net::SocketAddr;
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Test, introduce, run, under};
use efa_transport::handshake::{
    Capabilities, Connected, Connector, HandshakeConfig, HandshakeErrorKind, Incarnation, Listener,
};
use efa_transport::registration::RegistrationCache;
use efa_transport::{
    Access, Buffer, Config, Domain, Endpoint, ReceivePool, Region, RemoteRegion, connect_over,
};

const SIZE: u64 = 256 << 10;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// An endpoint and memory that its peers may write.
struct Side {
    endpoint: Endpoint,
    source: Region,
    target: Region,
}

impl Side {
    fn new(domain: &Domain, fill: u8) -> Result<Side> {
        let source = domain.register(Buffer::zeroed(SIZE as usize)?, Access::LOCAL)?;
        source.copy_in(0, &vec![fill; SIZE as usize])?;
        let target = domain.register(Buffer::zeroed(SIZE as usize)?, Access::REMOTE_WRITE)?;
        Ok(Side {
            endpoint: Endpoint::new(domain, Config::default())?,
            source,
            target,
        })
    }

    fn config(&self) -> Result<HandshakeConfig> {
        let config = HandshakeConfig::default().timeout(Duration::from_secs(30));
        Ok(config
            .require(Capabilities::RDMA_WRITE)
            .user_data(self.target.remote()?.to_bytes()))
    }

    /// Puts everything, and returns when it is at the peer.
    fn put<C>(&mut self, connected: &Connected<C>) -> Result<()> {
        let remote = RemoteRegion::try_from(connected.user_data.as_slice())?;
        let put = self.endpoint.put(connected.peer, &self.source, remote)?;
        let completion = self.endpoint.wait(put, TIMEOUT)?;
        completion
            .result
            .map_err(|failure| anyhow::anyhow!("{failure}"))
    }

    fn holds(&self, fill: u8) -> Result<()> {
        let bytes = self.target.to_vec(..)?;
        ensure!(
            bytes.iter().all(|&byte| byte == fill),
            "the target does not hold {fill} throughout"
        );
        Ok(())
    }
}

fn domain(t: &Test) -> Result<Domain> {
    let domain = Domain::new(&t.device()?.open()?)?;
    t.need(efa_verbs::DeviceCapabilities::RDMA_WRITE)?;
    Ok(domain)
}

#[test]
fn two_processes_shake_hands_over_tcp_and_put_both_ways() {
    run(|t| {
        let domain = domain(t)?;
        if t.role() == "client" {
            let mut side = Side::new(&domain, 2)?;
            let address: SocketAddr = t.parent().recv()?;
            let connected = Connector::new(address, side.config()?)?.run(&mut side.endpoint)?;
            side.put(&connected)?;
            t.parent().send(&"put")?;
            let _: String = t.parent().recv()?;
            return side.holds(1);
        }
        let mut side = Side::new(&domain, 1)?;
        let mut listener = Listener::bind("127.0.0.1:0", side.config()?)?;
        let client = t.spawn("client")?;
        client.channel().send(&listener.local_addr()?)?;
        let arrival = listener.accept(&mut side.endpoint, Some(Duration::from_secs(30)));
        let connected = arrival.context("nobody came")??;
        side.put(&connected)?;
        client.channel().send(&"put")?;
        let _: String = client.channel().recv()?;
        side.holds(2)?;
        client.finish()
    });
}

/// Drives a connector and a listener in one thread until both have ended.
fn meet(
    listener: (&mut Listener, &mut Side),
    connector: &mut Side,
) -> Result<[Connected<std::net::TcpStream>; 2]> {
    let (listener, server) = listener;
    let mut connecting = Connector::new(listener.local_addr()?, connector.config()?)?;
    let (mut here, mut there) = (None, None);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if there.is_none()
            && let Poll::Ready(result) = connecting.poll(&mut connector.endpoint)
        {
            there = Some(result?);
        }
        if let Some(arrival) = listener.poll(&mut server.endpoint) {
            here = Some(arrival?);
        }
        match (here, there) {
            (Some(here), Some(there)) => return Ok([here, there]),
            unfinished => (here, there) = unfinished,
        }
        ensure!(Instant::now() < deadline, "the handshake does not end");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn many_endpoints_meet_at_one_listener() {
    run(|t| {
        t.need_loopback()?;
        let domain = domain(t)?;
        let mut server = Side::new(&domain, 0)?;
        let mut listener = Listener::bind("127.0.0.1:0", server.config()?)?;
        let mut clients = Vec::new();
        for number in 1..=20 {
            let mut client = Side::new(&domain, number)?;
            let [here, there] = meet((&mut listener, &mut server), &mut client)?;
            client.put(&there)?;
            server.holds(number)?;
            server.put(&here)?;
            client.holds(0)?;
            clients.push((client, here));
        }
        ensure!(
            server.endpoint.peers().count() == 20,
            "{} peers",
            server.endpoint.peers().count()
        );
        ensure!(
            domain.address_handles() == 1,
            "{} handles",
            domain.address_handles()
        );
        // They all still work.
        for (client, here) in &mut clients {
            client.target.copy_in(0, &[9])?;
            server.put(here)?;
            client.holds(0)?;
        }
        Ok(())
    });
}

#[test]
fn shaking_hands_twice_makes_one_peer() {
    run(|t| {
        t.need_loopback()?;
        let domain = domain(t)?;
        let (mut server, mut client) = (Side::new(&domain, 1)?, Side::new(&domain, 2)?);
        let mut listener = Listener::bind("127.0.0.1:0", server.config()?)?;
        let [first, _] = meet((&mut listener, &mut server), &mut client)?;
        let [second, there] = meet((&mut listener, &mut server), &mut client)?;
        ensure!(first.peer == second.peer);
        ensure!(server.endpoint.peers().count() == 1 && client.endpoint.peers().count() == 1);
        client.put(&there)?;
        server.holds(2)
    });
}

#[test]
fn a_handshake_tells_the_longest_message_that_a_side_takes() {
    run(|t| {
        let domain = domain(t)?;
        let mut client = Side::new(&domain, 1)?;
        for (buffers, size) in [(4, Some(499)), (4, None), (0, None)] {
            let config = Config {
                receive_pool: ReceivePool { buffers, size },
                ..Config::default()
            };
            let mut endpoint = Endpoint::new(&domain, config)?;
            let longest = match buffers {
                0 => 0,
                _ => size.unwrap_or(endpoint.limits().max_message),
            };
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            let told = std::thread::scope(|scope| {
                let answering = HandshakeConfig::default().speak_first(false);
                let other =
                    scope.spawn(|| connect_over(theirs, &mut endpoint, answering).map(drop));
                let told = connect_over(ours, &mut client.endpoint, HandshakeConfig::default())?;
                ensure!(matches!(other.join(), Ok(Ok(()))));
                Ok(told.info)
            })?;
            ensure!(told.max_message == longest, "{told:?}");
            ensure!(told.capabilities.contains(Capabilities::MESSAGES) == (buffers > 0));
        }
        Ok(())
    });
}

#[test]
fn a_failed_handshake_leaves_no_peer_and_no_address_handle() {
    run(|t| {
        let domain = domain(t)?;
        let mut server = Side::new(&domain, 1)?;
        let mut client = Side::new(&domain, 2)?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let other = Incarnation::random();
        let expecting = client.config()?.expect_incarnation(other);
        let config = server.config()?.speak_first(false);
        let (mine, its) = std::thread::scope(|scope| {
            let server =
                scope.spawn(|| connect_over(theirs, &mut server.endpoint, config).map(drop));
            let mine = connect_over(ours, &mut client.endpoint, expecting).map(drop);
            (mine, server.join())
        });
        let found = match mine.as_ref().map_err(|error| error.kind()) {
            Err(HandshakeErrorKind::PeerRestarted { expected, found }) => {
                ensure!(*expected == other);
                *found
            }
            other => bail!("{other:?}"),
        };
        let Ok(Err(its)) = its else { bail!("{its:?}") };
        ensure!(
            matches!(its.kind(), HandshakeErrorKind::Rejected { .. }),
            "{its}"
        );
        ensure!(server.endpoint.peers().count() == 0 && client.endpoint.peers().count() == 0);
        ensure!(
            domain.address_handles() == 0,
            "{} handles",
            domain.address_handles()
        );
        // The incarnation that was found is the server's.
        let (peer, _) = introduce(&mut client.endpoint, &mut server.endpoint)?;
        ensure!(client.endpoint.peer(peer)?.incarnation == Some(found));
        Ok(())
    });
}

#[test]
fn a_rebuilt_endpoint_is_another_incarnation_and_takes_the_place_of_the_old_one() {
    run(|t| {
        t.need_loopback()?;
        let domain = domain(t)?;
        let (mut server, mut client) = (Side::new(&domain, 1)?, Side::new(&domain, 2)?);
        let mut listener = Listener::bind("127.0.0.1:0", server.config()?)?;
        let [before, _] = meet((&mut listener, &mut server), &mut client)?;
        client.endpoint.rebuild()?;
        let [after, there] = meet((&mut listener, &mut server), &mut client)?;
        ensure!(before.info.incarnation != after.info.incarnation);
        ensure!(before.peer != after.peer);
        client.put(&there)?;
        server.holds(2)?;
        server.put(&after)?;
        client.holds(1)
    });
}

#[test]
fn what_an_old_device_lacks_is_named_by_the_handshake() {
    under("profile=p4d").run(|t| {
        let domain = Domain::new(&t.device()?.open()?)?;
        let mut reader = Endpoint::new(&domain, Config::default())?;
        let mut other = Endpoint::new(&domain, Config::default())?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        let wants = HandshakeConfig::default().require(Capabilities::RDMA_WRITE);
        let config = HandshakeConfig::default().speak_first(false);
        let (mine, its) = std::thread::scope(|scope| {
            let other = scope.spawn(|| connect_over(theirs, &mut other, config).map(drop));
            (
                connect_over(ours, &mut reader, wants).map(drop),
                other.join(),
            )
        });
        let Ok(Err(its)) = its else { bail!("{its:?}") };
        ensure!(
            matches!(its.kind(), HandshakeErrorKind::WeLack(what) if *what == Capabilities::RDMA_WRITE),
            "{its}"
        );
        let text = mine.err().context("the handshake succeeded")?.to_string();
        ensure!(text.contains("RDMA write"), "{text}");
        Ok(())
    });
}

#[test]
fn a_cached_registration_serves_transfers_until_its_memory_is_invalidated() {
    run(|t| {
        t.need_loopback()?;
        let domain = domain(t)?;
        let (mut server, mut client) = (Side::new(&domain, 1)?, Side::new(&domain, 2)?);
        let mut listener = Listener::bind("127.0.0.1:0", server.config()?)?;
        let [_, there] = meet((&mut listener, &mut server), &mut client)?;
        let remote = RemoteRegion::try_from(there.user_data.as_slice())?;

        // Leaked, so that no mistake here could be worse than a failed test.
        let memory: &'static mut [u8] = vec![77; SIZE as usize].leak();
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: only parts of the leaked memory are passed on, whose one reference ended above.
        let caller = unsafe { efa_verbs::CallerMemory::new(domain.protection_domain().clone()) };
        let mut cache = RegistrationCache::new(&domain, caller)?;
        cache.get(start, SIZE, Access::LOCAL)?;
        for part in [0..SIZE / 2, SIZE / 2..SIZE] {
            let cached = cache.get(
                start + part.start,
                part.end - part.start,
                Access::LOCAL_READ,
            )?;
            let target = remote.slice(part)?;
            let put = client.endpoint.put(there.peer, &cached, target)?;
            // The clone of the transfer keeps the memory registered.
            let given_up = cache.invalidate(start, 1);
            drop((given_up, cached));
            let completion = client.endpoint.wait(put, TIMEOUT)?;
            ensure!(completion.result.is_ok(), "{completion:?}");
            cache.get(start, SIZE, Access::LOCAL)?;
        }
        server.holds(77)?;
        ensure!(
            cache.stats().hits == 2 && cache.stats().misses == 3,
            "{:?}",
            cache.stats()
        );
        Ok(())
    });
}
