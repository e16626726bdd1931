//! Transfers over a network, a device and peers that misbehave. Counters prove that they did.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, Test, done, ended, region, under};
use efa_transport::{Config, Endpoint, EndpointAddress, PeerId, ReceivePool, RemoteRegion};
use efa_verbs::VendorStatus;

/// Transfers of many sizes under the faults of the run, then the counters that must have moved.
fn survives(t: &Test, counters: &[&str]) -> Result<()> {
    let mut pair = Pair::new(t, Config::default())?;
    let mut rng = t.rng();
    for round in 0..12 {
        let length = rng.below(300_000) as usize + 1;
        let bytes = rng.bytes(length);
        pair.works(&bytes)?;
        if round % 3 == 0 {
            let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; length])?);
            let get = pair.a.get(pair.ab, &target, source.remote()?)?;
            done(&mut pair.a, get)?;
            ensure!(target.to_vec(..)? == bytes, "what was got differs");
        }
    }
    let seen = t.counters()?;
    for name in counters {
        ensure!(seen.get(name) > 0, "{name} is 0: {seen:?}");
    }
    Ok(())
}

#[test]
fn lost_packets_are_sent_again() {
    under("max-rdma-size=50000 faults=loss=0.1")
        .run(|t| survives(t, &["packets_lost", "packets_resent"]));
}

#[test]
fn packets_that_arrive_twice_change_nothing() {
    under("max-rdma-size=50000 faults=dup=0.3")
        .run(|t| survives(t, &["packets_duplicated", "packets_repeated"]));
}

#[test]
fn packets_that_are_late_change_nothing() {
    under("max-rdma-size=50000 faults=delay=2ms:0.2,reorder=64")
        .run(|t| survives(t, &["packets_delayed", "packets_out_of_order"]));
}

#[test]
fn loss_duplication_and_delay_at_once_change_nothing() {
    under("max-rdma-size=20000 faults=loss=0.03,dup=0.1,delay=1ms:0.1,reorder=32").run(|t| {
        survives(
            t,
            &[
                "packets_lost",
                "packets_resent",
                "packets_duplicated",
                "packets_delayed",
            ],
        )
    });
}

#[test]
fn a_slow_device_is_waited_for() {
    under("max-rdma-size=4096 faults=slow=3000").run(|t| {
        let config = Config {
            send_depth: 16,
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        let bytes = t.rng().bytes(1 << 20);
        let began = Instant::now();
        pair.works(&bytes)?;
        // 256 requests at 3000 a second.
        ensure!(
            began.elapsed() >= Duration::from_millis(50),
            "{:?}",
            began.elapsed()
        );
        Ok(())
    });
}

#[test]
fn a_receiver_that_is_not_ready_gets_the_message_later() {
    under("faults=rnr=0.4").run(|t| {
        let config = Config {
            receive_pool: ReceivePool {
                buffers: 8,
                size: None,
            },
            ..Config::default()
        };
        let mut pair = Pair::new(t, config)?;
        for i in 0..50u32 {
            let send = pair.a.send(pair.ab, &i.to_be_bytes())?;
            done(&mut pair.a, send)?;
            let message = pair.b.wait_message(Some(Duration::from_secs(60)))?;
            ensure!(message[..] == i.to_be_bytes());
        }
        ensure!(t.counters()?.get("rnr_received") > 0);
        Ok(())
    });
}

#[test]
fn a_link_that_is_cut_for_a_moment_costs_time_only() {
    under("max-rdma-size=20000 faults=timeout=10s").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        let bytes = t.rng().bytes(200_000);
        let (source, target) = (pair.region(&bytes)?, pair.region(&vec![0; bytes.len()])?);
        t.set_faults("timeout=10s,cut=both")?;
        let put = pair.a.put(pair.ab, &source, target.remote()?)?;
        std::thread::sleep(Duration::from_millis(200));
        ensure!(t.counters()?.get("packets_cut") > 0);
        t.set_faults("timeout=10s")?;
        done(&mut pair.a, put)?;
        ensure!(target.to_vec(..)? == bytes);
        Ok(())
    });
}

#[test]
fn a_link_that_stays_cut_is_a_failure_of_the_transfer_and_heals() {
    under("max-rdma-size=20000 faults=timeout=500ms").run(|t| {
        let mut pair = Pair::new(t, Config::default())?;
        pair.works(&[1; 100_000])?;
        for cut in ["both", "out", "in"] {
            t.set_faults(&format!("timeout=500ms,cut={cut}"))?;
            let (source, target) = (pair.region(&[1; 100_000])?, pair.region(&[0; 100_000])?);
            let put = pair.a.put(pair.ab, &source, target.remote()?)?;
            let failure = ended(&mut pair.a, put)?.result.unwrap_err();
            let status = VendorStatus(failure.vendor_status().unwrap_or(0));
            ensure!(
                status == VendorStatus::UNRESPONSIVE_PEER
                    || status == VendorStatus::UNREACHABLE_PEER,
                "cut={cut}: {failure}"
            );
            t.set_faults("timeout=500ms")?;
            for _ in 0..3 {
                pair.works(&[2; 100_000])?;
            }
        }
        Ok(())
    });
}

// ---- other processes ------------------------------------------------------------------

const LENGTH: usize = 200_000;

/// Offers memory until told to stop.
fn target(t: &Test) -> Result<()> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, Config::default())?;
    let memory = region(&domain, &[0; LENGTH])?;
    t.parent().send(&(endpoint.address(), memory.remote()?))?;
    let peer: EndpointAddress = t.parent().recv()?;
    endpoint.connect(peer)?;
    t.parent().send(&())?;
    while t.parent().recv::<bool>()? {
        let got = memory.to_vec(..)?;
        t.parent()
            .send(&(got[0], got.iter().all(|byte| *byte == got[0])))?;
    }
    Ok(())
}

struct Target {
    process: efa_tests::Process,
    peer: PeerId,
    memory: RemoteRegion,
}

fn start(t: &Test, options: &str, endpoint: &mut Endpoint) -> Result<Target> {
    let process = t.spawn_under("target", options)?;
    let (address, memory): (EndpointAddress, RemoteRegion) = process.channel().recv()?;
    let peer = endpoint.connect(address)?;
    process.channel().send(&endpoint.address())?;
    process.channel().recv::<()>()?;
    Ok(Target {
        process,
        peer,
        memory,
    })
}

impl Target {
    /// Fills the target with `value` and has it say so.
    fn fill(&self, endpoint: &mut Endpoint, value: u8) -> Result<()> {
        let source = region(endpoint.domain(), &[value; LENGTH])?;
        let put = endpoint.put(self.peer, &source, self.memory)?;
        done(endpoint, put)?;
        self.process.channel().send(&true)?;
        let (first, all): (u8, bool) = self.process.channel().recv()?;
        ensure!(first == value && all, "the target does not hold {value}s");
        Ok(())
    }
}

#[test]
fn a_peer_killed_in_the_middle_fails_its_transfers_alone_and_its_successor_is_welcome() {
    under("max-rdma-size=4096 faults=timeout=1s").run(|t| match t.role() {
        "main" => {
            let mut endpoint = Endpoint::new(&t.domain()?, Config::default())?;
            let options = |i| format!("addr=127.0.0.{i} max-rdma-size=4096");
            let mut victim = start(t, &options(2), &mut endpoint)?;
            let survivor = start(t, &options(3), &mut endpoint)?;
            victim.fill(&mut endpoint, 1)?;
            survivor.fill(&mut endpoint, 2)?;

            // Killed with requests on their way: it stands still first.
            t.ctl_of(&victim.process)?.pause()?;
            let source = region(endpoint.domain(), &[3; LENGTH])?;
            let lost = endpoint.put(victim.peer, &source, victim.memory)?;
            endpoint.poll(|_| {})?;
            victim.process.kill();
            survivor.fill(&mut endpoint, 4)?;
            let failure = ended(&mut endpoint, lost)?.result.unwrap_err();
            let status = failure.vendor_status().unwrap_or(0);
            ensure!([8, 9, 13, 15].contains(&status), "{failure}");
            ensure!(failure.to_string().len() > 40, "{failure}");

            // Its successor has the same address, and perhaps the same numbers.
            endpoint.disconnect(victim.peer)?;
            let successor = start(t, &options(2), &mut endpoint)?;
            for value in 5..8 {
                successor.fill(&mut endpoint, value)?;
                survivor.fill(&mut endpoint, value)?;
            }
            ensure!(endpoint.stats().stale_completions == 0);
            for target in [successor, survivor] {
                target.process.channel().send(&false)?;
                target.process.finish()?;
            }
            Ok(())
        }
        "target" => target(t),
        role => bail!("{role}?"),
    });
}

#[test]
fn a_peer_whose_device_stands_still_is_unresponsive_and_comes_back() {
    under("max-rdma-size=4096 faults=timeout=500ms").run(|t| match t.role() {
        "main" => {
            let mut endpoint = Endpoint::new(&t.domain()?, Config::default())?;
            let peer = start(t, "addr=127.0.0.2 max-rdma-size=4096", &mut endpoint)?;
            peer.fill(&mut endpoint, 1)?;
            t.ctl_of(&peer.process)?.pause()?;
            let source = region(endpoint.domain(), &[3; LENGTH])?;
            let lost = endpoint.put(peer.peer, &source, peer.memory)?;
            let failure = ended(&mut endpoint, lost)?.result.unwrap_err();
            let expected = VendorStatus::UNRESPONSIVE_PEER.0;
            ensure!(failure.vendor_status() == Some(expected), "{failure}");
            t.ctl_of(&peer.process)?.resume()?;
            peer.fill(&mut endpoint, 4)?;
            peer.process.channel().send(&false)?;
            peer.process.finish()
        }
        "target" => target(t),
        role => bail!("{role}?"),
    });
}
