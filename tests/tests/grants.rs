//! Grants of unsolicited immediates among our own peers: they are kept, they come back, and
//! nothing ever waits for one that can't come.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{Pair, Process, Test, done, ended, info_of, introduce, region, under};
use efa_transport::handshake::{
    Connector, ConnectorConfig, HandshakeConfig, Listener, ListenerConfig, PeerStore,
};
use efa_transport::{Config, Endpoint, FailureKind, OperationId, Region, RemoteRegion};
use efa_verbs::VendorStatus;

const GRANT: u32 = 4;

fn config() -> Config {
    Config {
        unsolicited: Some(true),
        immediate_room: 4 * GRANT,
        immediate_grant: GRANT,
        ..Config::default()
    }
}

/// Two endpoints that have shaken hands, and what their immediates go with.
struct Ends {
    pair: Pair,
    source: Region,
    target: Region,
}

impl Ends {
    fn new(t: &Test) -> Result<Self> {
        t.need_loopback()?;
        Self::of(Pair::introduced(&t.domain()?, config())?)
    }

    fn of(pair: Pair) -> Result<Self> {
        let (source, target) = (pair.region(&[1; 8])?, pair.region(&[0; 8])?);
        Ok(Self {
            pair,
            source,
            target,
        })
    }

    fn tell(&mut self) -> Result<OperationId> {
        let remote = self.target.remote()?;
        let Pair { a, ab, .. } = &mut self.pair;
        Ok(a.put_with_immediate(*ab, &self.source, remote, 7, 0)?)
    }

    /// More immediates than were granted arrive, while both sides poll.
    fn flows(&mut self) -> Result<()> {
        let before = self.pair.b.stats();
        let count = u64::from(3 * GRANT);
        for _ in 0..count {
            let put = self.tell()?;
            let ends = std::time::Instant::now() + Duration::from_secs(30);
            let completion = loop {
                self.pair.b.poll(&mut Vec::new())?;
                match self.pair.a.wait(put, Some(Duration::from_millis(1))) {
                    Err(efa_transport::Error::TimedOut(_)) => {}
                    ended => break ended?,
                }
                ensure!(
                    std::time::Instant::now() < ends,
                    "an immediate waits for ever"
                );
            };
            completion.result?;
        }
        while self.pair.b.stats().immediates < before.immediates + count {
            self.pair.b.poll(&mut Vec::new())?;
        }
        ensure!(self.pair.b.stats().ungranted == before.ungranted);
        Ok(())
    }

    /// As many immediates as were granted are on their way or not taken, and no more.
    fn is_bounded(&mut self) -> Result<()> {
        let before = self.pair.b.stats().immediates;
        for _ in 0..3 * GRANT {
            self.tell()?;
        }
        for _ in 0..50 {
            self.pair.a.poll(&mut Vec::new())?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.pair.b.poll(&mut Vec::new())?;
        let arrived = self.pair.b.stats().immediates - before;
        ensure!(
            arrived == u64::from(GRANT),
            "{arrived} came before one was taken, {GRANT} were granted"
        );
        while self.pair.a.operations() > 0 {
            self.pair.a.poll(&mut Vec::new())?;
            self.pair.b.poll(&mut Vec::new())?;
        }
        Ok(())
    }
}

#[test]
fn no_more_immediates_are_outstanding_than_were_granted() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::new(t)?;
        ends.is_bounded()?;
        ends.flows()?;
        ends.is_bounded()
    });
}

/// One side may be told that all is well before the other: what it sends meanwhile is its own.
#[test]
fn what_arrives_before_our_own_side_has_finished_the_handshake_counts_as_the_peers() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::of(Pair::on(&t.domain()?, config())?)?;
        let Pair { a, b, ab, ba, .. } = &mut ends.pair;
        a.disconnect(*ab)?;
        b.disconnect(*ba)?;
        *ba = b.install(&info_of(a))?;
        *ab = a.install(&info_of(b))?;
        PeerStore::activate(a, ab);
        let early = b.put(*ba, &ends.source, ends.target.remote()?, 0);
        ensure!(early.is_err(), "{early:?}");
        ends.flows()?;
        PeerStore::activate(&mut ends.pair.b, &ends.pair.ba);
        ends.flows()?;
        ends.is_bounded()
    });
}

#[test]
fn a_sender_that_disconnects_and_comes_back_keeps_to_its_grant() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::new(t)?;
        for _ in 0..3 {
            ends.flows()?;
            let pair = &mut ends.pair;
            pair.a.disconnect(pair.ab)?;
            (pair.ab, pair.ba) = introduce(&mut pair.a, &mut pair.b)?;
            ends.is_bounded()?;
        }
        Ok(())
    });
}

#[test]
fn a_sender_that_was_disconnected_and_comes_back_has_its_whole_grant() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::new(t)?;
        for _ in 0..3 {
            ends.flows()?;
            let pair = &mut ends.pair;
            pair.b.disconnect(pair.ba)?;
            (pair.ab, pair.ba) = introduce(&mut pair.a, &mut pair.b)?;
            ends.flows()?;
            ends.is_bounded()?;
        }
        Ok(())
    });
}

/// Whether an immediate that failed by silence has arrived, nobody knows. Those that follow
/// end all the same, and connecting anew settles it.
#[test]
fn immediates_that_were_lost_without_a_word_hang_nobody() {
    under("profile=p5en faults=timeout=300ms").run(|t| {
        let mut ends = Ends::new(t)?;
        ends.flows()?;
        t.set_faults("timeout=300ms,status=13:1")?;
        for _ in 0..GRANT {
            let put = ends.tell()?;
            let failure = ended(&mut ends.pair.a, put)?.result.unwrap_err();
            ensure!(
                failure.vendor_status() == Some(VendorStatus::UNRESPONSIVE_PEER.0),
                "{failure}"
            );
        }
        t.set_faults("")?;
        let put = ends.tell()?;
        let ended = ended(&mut ends.pair.a, put)?;
        if let Err(failure) = ended.result {
            ensure!(failure.kind() == FailureKind::NotGranted, "{failure}");
            ensure!(failure.to_string().contains("connect"), "{failure}");
        }
        let pair = &mut ends.pair;
        pair.a.disconnect(pair.ab)?;
        (pair.ab, pair.ba) = introduce(&mut pair.a, &mut pair.b)?;
        ends.flows()
    });
}

#[test]
fn an_immediate_that_certainly_never_arrived_gives_its_grant_back() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::new(t)?;
        t.set_faults("status=7:1")?;
        ends.pair.a.poll(&mut Vec::new())?;
        for _ in 0..3 * GRANT {
            let put = ends.tell()?;
            ensure!(ended(&mut ends.pair.a, put)?.result.is_err());
        }
        t.set_faults("")?;
        ends.flows()
    });
}

/// Cancelled with the device holding it: it still arrives, and still counts.
#[test]
fn cancelled_immediates_do_not_eat_up_the_grant() {
    under("profile=p5en").run(|t| {
        let mut ends = Ends::new(t)?;
        ends.flows()?;
        for _ in 0..3 {
            t.ctl()?.pause()?;
            for _ in 0..2 * GRANT {
                let put = ends.tell()?;
                ensure!(ends.pair.a.cancel(put));
            }
            t.ctl()?.resume()?;
            ends.flows()?;
        }
        Ok(())
    });
}

// ---- a peer that is gone ----------------------------------------------------------------

fn peer_to_be_killed(t: &Test) -> Result<()> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, config())?;
    let memory = region(&domain, &[0; 64])?;
    let handshake = HandshakeConfig::default().user_data(memory.remote()?.to_bytes());
    let listening = ListenerConfig::default().handshake(handshake);
    let mut listener = Listener::bind("127.0.0.1:0", listening)?;
    t.parent().send(&listener.local_addr()?)?;
    let arrival = listener.accept(&mut endpoint, Duration::from_secs(30))?;
    arrival.context("nobody came")?.result?;
    t.parent().send(&())?;
    loop {
        endpoint.poll(&mut Vec::new())?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_first_immediate_to_a_peer_that_was_killed_fails_with_the_cause() {
    under("profile=p5en faults=timeout=500ms").run(|t| match t.role() {
        "main" => {
            let domain = t.domain()?;
            let mut endpoint = Endpoint::new(&domain, config())?;
            let mut process: Process = t.spawn_under("victim", "profile=p5en addr=127.0.0.2")?;
            let at: std::net::SocketAddr = process.channel().recv()?;
            let connector = Connector::new(at, ConnectorConfig::default())?;
            let connected = connector.run(&mut endpoint)?;
            process.channel().recv::<()>()?;
            process.kill();
            let memory = RemoteRegion::try_from(connected.info.user_data.as_slice())?;
            let source = region(&domain, &[1; 8])?;
            for _ in 0..2 {
                let put = endpoint.put_with_immediate(connected.peer, &source, memory, 1, 0)?;
                let failure = ended(&mut endpoint, put)?.result.unwrap_err();
                let status = failure.vendor_status().unwrap_or(0);
                ensure!([8, 9, 13, 15].contains(&status), "{failure}");
                ensure!(
                    failure.peer_address() == Some(connected.info.endpoint.address),
                    "{failure}"
                );
            }
            // Others are not concerned.
            let myself = endpoint.connect(endpoint.address())?;
            let target = region(&domain, &[0; 8])?;
            let put = endpoint.put(myself, &source, target.remote()?, 0)?;
            done(&mut endpoint, put)?;
            Ok(())
        }
        "victim" => peer_to_be_killed(t),
        role => bail!("{role}?"),
    });
}
