//! Processes and endpoints that come back under the very numbers of their predecessors: same GID,
//! same queue pair number.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Pair, Process, Test, done, ended, region, under};
use efa_transport::handshake::{
    Connected, Connector, HandshakeConfig, HandshakeErrorKind, Listener,
};
use efa_transport::{
    Config, Endpoint, EndpointAddress, Error, Gone, PeerId, Put, ReceivePool, RemoteRegion,
};
use efa_verbs::VendorStatus;
use serde::{Deserialize, Serialize};

const LENGTH: usize = 100_000;
/// What all lives of the peer on this host are started with.
fn peer_options(host: u8) -> String {
    format!("addr=127.0.61.{host} first-qp=20000 max-rdma-size=4096 faults=timeout=1s")
}

fn config() -> Config {
    Config {
        receive_pool: ReceivePool {
            buffers: 16,
            size: None,
        },
        ..Config::default()
    }
}

/// What the peer is told to do.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Shake hands with the listener there.
    Meet(SocketAddr),
    /// Say what the memory's first byte is, if all bytes are the same.
    Look,
    /// Say how many messages came, and how many of them from a peer that is known.
    Messages,
    /// Say what went wrong since the beginning.
    Stats,
}

/// Offers memory, and does as it is told.
fn peer(t: &Test) -> Result<()> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, config())?;
    endpoint.bring_up()?;
    let memory = region(&domain, &[0; LENGTH])?;
    t.parent().send(&(endpoint.address(), memory.remote()?))?;
    let (mut messages, mut known) = (0u64, 0u64);
    loop {
        endpoint.poll(|_| {})?;
        while let Some(message) = endpoint.next_message() {
            messages += 1;
            known += u64::from(message.peer().is_some());
        }
        match t.parent().try_recv()? {
            None => std::thread::sleep(Duration::from_micros(200)),
            Some(Order::Meet(at)) => {
                let handshake = HandshakeConfig::default().user_data(memory.remote()?.to_bytes());
                Connector::new(at, handshake)?.run(&mut endpoint)?;
                t.parent().send(&())?;
            }
            Some(Order::Look) => {
                let bytes = memory.to_vec(..)?;
                let same = bytes.iter().all(|byte| *byte == bytes[0]);
                t.parent().send(&same.then_some(bytes[0]))?;
            }
            Some(Order::Messages) => t.parent().send(&(messages, known))?,
            Some(Order::Stats) => {
                let stats = endpoint.stats();
                t.parent()
                    .send(&(stats.stale_completions, endpoint.stats().live))?;
            }
        }
    }
}

/// One life of the peer, as the test sees it.
struct Life {
    process: Process,
    address: EndpointAddress,
    memory: RemoteRegion,
}

impl Life {
    fn begin(t: &Test, host: u8) -> Result<Self> {
        let process = t.spawn_under("peer", &peer_options(host))?;
        let (address, memory) = process.channel().recv()?;
        Ok(Self {
            process,
            address,
            memory,
        })
    }

    fn ask<R: serde::de::DeserializeOwned>(&self, order: Order) -> Result<R> {
        self.process.channel().send(&order)?;
        self.process.channel().recv()
    }

    fn meet(&self, host: &mut Host) -> Result<Connected<std::net::TcpStream>> {
        let at = host.listener.local_addr()?;
        self.process.channel().send(&Order::Meet(at))?;
        let arrival = host
            .listener
            .accept(&mut host.endpoint, Some(Duration::from_secs(30)));
        let connected = arrival.context("nobody came")??;
        self.process.channel().recv::<()>()?;
        Ok(connected)
    }

    fn holds(&self, byte: u8) -> Result<()> {
        let found: Option<u8> = self.ask(Order::Look)?;
        ensure!(found == Some(byte), "it holds {found:?}, not {byte}s");
        Ok(())
    }
}

/// The side that lives on.
struct Host {
    endpoint: Endpoint,
    listener: Listener,
}

impl Host {
    fn put(&mut self, peer: PeerId, memory: RemoteRegion, byte: u8) -> Result<()> {
        let source = region(self.endpoint.domain(), &[byte; LENGTH])?;
        let put = self.endpoint.put(peer, &source, memory)?;
        done(&mut self.endpoint, put).map(drop)
    }
}

#[test]
fn a_peer_restarted_under_its_old_number_is_refused_until_it_has_shaken_hands_again() {
    under("max-rdma-size=4096 faults=timeout=1s").run(|t| match t.role() {
        "main" => {
            let domain = t.domain()?;
            let mut host = Host {
                endpoint: Endpoint::new(&domain, config())?,
                listener: Listener::bind("127.0.0.1:0", HandshakeConfig::default())?,
            };
            let mut first = Life::begin(t, 1)?;
            let before = first.meet(&mut host)?;
            let old = before.peer;
            host.put(old, first.memory, 1)?;
            first.holds(1)?;

            // Killed with operations outstanding in both directions.
            t.ctl_of(&first.process)?.pause()?;
            let source = region(&domain, &[2; LENGTH])?;
            let target = region(&domain, &[0; LENGTH])?;
            let mut lost = Vec::new();
            for _ in 0..3 {
                lost.push(host.endpoint.put(old, &source, first.memory)?);
                lost.push(host.endpoint.get(old, &target, first.memory)?);
            }
            host.endpoint.poll(|_| {})?;
            first.process.kill();

            let second = Life::begin(t, 1)?;
            ensure!(
                second.address == first.address,
                "the test needs the same number: {} and {}",
                first.address,
                second.address
            );
            // They end, each once, with a cause, and do not end in the new process's memory.
            for operation in lost {
                let failure = ended(&mut host.endpoint, operation)?.result.unwrap_err();
                let status = failure.vendor_status().unwrap_or(0);
                ensure!([8, 9, 13, 14, 15].contains(&status), "{failure}");
            }
            second.holds(0)?;

            // Its device refuses us, because nobody there has connected to us.
            for memory in [first.memory, second.memory] {
                let put = host.endpoint.put(old, &source, memory)?;
                let failure = ended(&mut host.endpoint, put)?.result.unwrap_err();
                let expected = VendorStatus::UNKNOWN_PEER.0;
                ensure!(failure.vendor_status() == Some(expected), "{failure}");
            }
            second.holds(0)?;
            // A message needs no connection on this fabric, but its receiver is told that it
            // comes from nobody that it knows.
            let send = host.endpoint.send(old, b"still there?")?;
            done(&mut host.endpoint, send)?;
            let (mut messages, mut known) = (0u64, 0u64);
            while messages == 0 {
                (messages, known) = second.ask(Order::Messages)?;
            }
            ensure!((messages, known) == (1, 0), "{messages} and {known}");

            // It is recognised, by whoever insists on the old one too.
            let old_life = before.info.incarnation;
            let expecting = HandshakeConfig::default().expect_incarnation(old_life);
            let mut strict = Listener::bind("127.0.0.1:0", expecting)?;
            let order = Order::Meet(strict.local_addr()?);
            second.process.channel().send(&order)?;
            let arrival = strict.accept(&mut host.endpoint, Some(Duration::from_secs(30)));
            let error = arrival.context("nobody came")?.err();
            match error.as_ref().map(|error| error.kind()) {
                Some(HandshakeErrorKind::PeerRestarted { expected, .. }) => {
                    ensure!(*expected == old_life);
                }
                other => bail!("{other:?}"),
            }
            Ok(())
        }
        "peer" => peer(t),
        role => bail!("{role}?"),
    });
}

#[test]
fn a_peer_restarted_under_its_old_number_is_another_peer_after_the_handshake() {
    under("max-rdma-size=4096 faults=timeout=1s").run(|t| match t.role() {
        "main" => {
            let domain = t.domain()?;
            let mut host = Host {
                endpoint: Endpoint::new(&domain, config())?,
                listener: Listener::bind("127.0.0.1:0", HandshakeConfig::default())?,
            };
            let mut life = Life::begin(t, 2)?;
            let mut peer = life.meet(&mut host)?.peer;
            let mut names = vec![peer];
            host.put(peer, life.memory, 1)?;
            for round in 2..6u8 {
                // Operations of the old life are outstanding until after the new one is here.
                t.ctl_of(&life.process)?.pause()?;
                let source = region(&domain, &[100; LENGTH])?;
                let lost = host.endpoint.put(peer, &source, life.memory)?;
                host.endpoint.poll(|_| {})?;
                life.process.kill();
                let next = Life::begin(t, 2)?;
                ensure!(next.address == life.address, "the number differs");
                life = next;

                let new = life.meet(&mut host)?;
                ensure!(!names.contains(&new.peer), "an old name for a new life");
                match host.endpoint.put(peer, &source, life.memory) {
                    Err(Error::PeerGone {
                        peer: named,
                        reason,
                    }) => ensure!(named == peer && reason == Gone::Restarted),
                    other => bail!("{other:?}"),
                }
                ensure!(host.endpoint.peers().count() == 1);
                peer = new.peer;
                names.push(peer);
                host.put(peer, life.memory, round)?;
                life.holds(round)?;
                ensure!(ended(&mut host.endpoint, lost)?.result.is_err());
                life.holds(round)?;
                ensure!(host.endpoint.stats().stale_completions == 0);
                let (stale, open): (u64, u32) = life.ask(Order::Stats)?;
                ensure!((stale, open) == (0, 0), "{stale} and {open}");
            }
            Ok(())
        }
        "peer" => peer(t),
        role => bail!("{role}?"),
    });
}

/// The same within one process, many times: whatever the last owner of a number has left with
/// the device never completes an operation of the next.
#[test]
fn an_endpoint_with_the_number_of_one_that_was_dropped_never_sees_its_completions() {
    under("addr=127.0.61.3 max-rdma-size=4096 first-qp=20000").run(|t| {
        let domain = t.domain()?;
        let target = region(&domain, &[0; 50_000])?;
        let mut first = None;
        for round in 0..40u8 {
            let mut pair = Pair::on(&domain, Config::default())?;
            let number = pair.a.address().queue_pair();
            ensure!(*first.get_or_insert(number) == number, "the number differs");
            let source = pair.region(&[round; 50_000])?;
            // The last owner's requests, if they are still under way, use the same slots.
            let put = pair
                .a
                .submit(Put::new(pair.ab, &source, target.remote()?).tag(round.into()))?;
            if round % 4 == 3 {
                let completion = done(&mut pair.a, put)?;
                ensure!(completion.tag == u64::from(round), "{completion:?}");
                ensure!(target.to_vec(..)? == [round; 50_000]);
                pair.works(&[round; 20_000])?;
                let stats = pair.a.stats();
                ensure!(
                    stats.stale_completions == 0 && stats.failed == 0,
                    "{stats:?}"
                );
            }
        }
        Ok(())
    });
}

/// A rebuild that gets back the number that the queue pair had two rebuilds ago.
#[test]
fn a_rebuilt_endpoint_may_get_an_old_number_back() {
    under("addr=127.0.61.4 max-rdma-size=4096 first-qp=20000").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let mut numbers = Vec::new();
        for round in 0..6u8 {
            numbers.push(pair.a.address().queue_pair());
            let (source, target) = (pair.region(&[round; 90_000])?, pair.region(&[0; 90_000])?);
            t.ctl()?.pause()?;
            let lost = pair.a.put(pair.ab, &source, target.remote()?)?;
            pair.a.rebuild()?;
            t.ctl()?.resume()?;
            ensure!(ended(&mut pair.a, lost)?.result.is_err());
            pair.ab = pair.a.connect(pair.b.address())?;
            pair.b.disconnect(pair.ba)?;
            pair.ba = pair.b.connect(pair.a.address())?;
            pair.works(&[round; 30_000])?;
            ensure!(pair.a.stats().stale_completions == 0);
        }
        let distinct: std::collections::HashSet<_> = numbers.iter().collect();
        ensure!(distinct.len() < numbers.len(), "{numbers:?}");
        Ok(())
    });
}
