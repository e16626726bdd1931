//! Bytes arrive: every size, both ways, in one process and between two, in any order.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use efa_tests::{Pair, Process, Test, done, region, run, soft_efa_dir, under};
use efa_transport::{
    Config, Connection, DataPath, Domain, Endpoint, EndpointAddress, Error, Full, Get, Put,
    RemoteRegion, RequestCompletion,
};
use efa_verbs::DeviceCapabilities;

/// What surrounds a transfer in its target, to show that nothing else was written.
const MARGIN: usize = 64;
const BLANK: u8 = 0xee;

/// Waits for all requests of a transfer; every id must come once.
fn finish(connection: &mut Connection, posted: efa_transport::Posted) -> Result<()> {
    let mut all: Vec<RequestCompletion> = Vec::new();
    let ends = std::time::Instant::now() + Duration::from_secs(60);
    while (all.len() as u64) < posted.count {
        if connection.poll(&mut all)? == 0 {
            ensure!(
                std::time::Instant::now() < ends,
                "{} of {posted:?}",
                all.len()
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let mut ids: Vec<u64> = all.iter().map(|completion| completion.id).collect();
    ids.sort_unstable();
    ensure!(
        ids == posted.ids().collect::<Vec<_>>(),
        "{ids:?} of {posted:?}"
    );
    for completion in all {
        completion.result?;
    }
    Ok(())
}

fn connections(t: &Test) -> Result<(Domain, Connection, Connection)> {
    t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
    t.need_loopback()?;
    let domain = t.domain()?;
    let mut a = Connection::new(&domain, Config::default())?;
    let mut b = Connection::new(&domain, Config::default())?;
    a.connect(b.info())?;
    b.connect(a.info())?;
    Ok((domain, a, b))
}

/// Puts and gets `length` bytes, and checks them, what is around them, and the requests.
fn there_and_back(
    t: &Test,
    domain: &Domain,
    connection: &mut Connection,
    length: usize,
) -> Result<()> {
    let most = connection.max_message_size() as usize;
    let requests = length.div_ceil(most).max(1) as u64;
    let bytes = t.rng().bytes(length);
    // A region can't be empty, a transfer can.
    let mut padded = bytes.clone();
    padded.push(0);
    let source = region(domain, &padded)?;
    let target = region(domain, &vec![BLANK; length + 2 * MARGIN])?;
    let middle = MARGIN as u64..(MARGIN + length) as u64;
    let remote = target.remote()?.slice(middle.clone())?;

    let posted = connection.put(source.slice(..length as u64)?, remote)?;
    ensure!(posted.count == requests, "a put of {length}: {posted:?}");
    finish(connection, posted)?;
    let got = target.to_vec(..)?;
    ensure!(
        got[MARGIN..MARGIN + length] == bytes,
        "a put of {length} bytes differs"
    );
    let around = got[..MARGIN].iter().chain(&got[MARGIN + length..]);
    ensure!(
        around.copied().all(|byte| byte == BLANK),
        "a put of {length} wrote elsewhere"
    );

    let back = region(domain, &vec![BLANK; length + 2 * MARGIN])?;
    let posted = connection.get(back.slice(middle)?, remote)?;
    ensure!(posted.count == requests, "a get of {length}: {posted:?}");
    finish(connection, posted)?;
    let got = back.to_vec(..)?;
    ensure!(
        got[MARGIN..MARGIN + length] == bytes,
        "a get of {length} bytes differs"
    );
    let around = got[..MARGIN].iter().chain(&got[MARGIN + length..]);
    ensure!(
        around.copied().all(|byte| byte == BLANK),
        "a get of {length} wrote elsewhere"
    );
    Ok(())
}

#[test]
fn put_and_get_move_every_byte() {
    run(|t| {
        let (domain, mut a, _b) = connections(t)?;
        for length in [0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 100_000, 1 << 20] {
            there_and_back(t, &domain, &mut a, length)?;
        }
        Ok(())
    });
}

#[test]
fn transfers_around_multiples_of_the_largest_request_are_cut_right() {
    under("max-rdma-size=4096").run(|t| {
        let (domain, mut a, _b) = connections(t)?;
        let chunk = 4096;
        ensure!(a.max_message_size() == chunk as u32);
        for multiple in [1, 2, 5, 16] {
            for length in [multiple * chunk - 1, multiple * chunk, multiple * chunk + 1] {
                there_and_back(t, &domain, &mut a, length)?;
            }
        }
        for length in [0, 1, 100, 3 * chunk + 100] {
            there_and_back(t, &domain, &mut a, length)?;
        }
        Ok(())
    });
}

#[test]
fn request_ids_count_up_from_transfer_to_transfer() {
    under("max-rdma-size=4096").run(|t| {
        let (domain, mut a, _b) = connections(t)?;
        let (source, target) = (region(&domain, &[1; 8192])?, region(&domain, &[0; 8192])?);
        let mut next = 0;
        for length in [1, 4096, 4097, 8192, 5] {
            let posted = a.put(source.slice(..length)?, target.remote()?)?;
            ensure!(posted.first == next, "{posted:?}");
            next += posted.count;
            finish(&mut a, posted)?;
        }
        Ok(())
    });
}

/// Offers memory to another process and says what became of it.
fn target(t: &Test, length: usize) -> Result<()> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, Config::default())?;
    let bytes = t.rng().bytes(length);
    let (sink, source) = (region(&domain, &vec![0; length])?, region(&domain, &bytes)?);
    t.parent().send(&endpoint.address())?;
    let peer: EndpointAddress = t.parent().recv()?;
    endpoint.connect(peer)?;
    t.parent()
        .send(&(sink.remote()?, source.remote()?, sum(&bytes)))?;
    t.parent().recv::<()>()?;
    t.parent().send(&sum(&sink.to_vec(..)?))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(7, |sum: u64, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    })
}

/// Connects to a [`target`] in another process, puts and gets, and compares checksums.
fn with_target(t: &Test, child: &Process, length: usize) -> Result<()> {
    let domain = t.domain()?;
    let mut endpoint = Endpoint::new(&domain, Config::default())?;
    let peer = endpoint.connect(child.channel().recv()?)?;
    child.channel().send(&endpoint.address())?;
    let (sink, source, right): (RemoteRegion, RemoteRegion, u64) = child.channel().recv()?;
    let bytes = t.rng().bytes(length);
    let local = region(&domain, &bytes)?;
    let put = endpoint.submit(Put::new(peer, &local, sink).tag(1))?;
    let back = region(&domain, &vec![0; length])?;
    let get = endpoint.submit(Get::new(peer, &back, source).tag(2))?;
    for operation in [get, put] {
        let completion = done(&mut endpoint, operation)?;
        ensure!(completion.bytes == length as u64, "{completion:?}");
    }
    ensure!(sum(&back.to_vec(..)?) == right, "what was got differs");
    child.channel().send(&())?;
    ensure!(
        child.channel().recv::<u64>()? == sum(&bytes),
        "what was put differs"
    );
    Ok(())
}

#[test]
fn two_processes_put_and_get() {
    const LENGTH: usize = 3 << 20;
    run(|t| match t.role() {
        "main" => {
            t.need(DeviceCapabilities::RDMA_READ | DeviceCapabilities::RDMA_WRITE)?;
            t.need_loopback()?;
            let child = t.spawn("target")?;
            with_target(t, &child, LENGTH)?;
            child.finish()
        }
        _ => target(t, LENGTH),
    });
}

#[test]
fn two_processes_on_two_devices_put_and_get() {
    const LENGTH: usize = 100_000;
    // Devices of a run are shared by its processes; a second run brings another address.
    under("addr=127.0.0.1 max-rdma-size=10000").run(|t| match t.role() {
        "main" => {
            let child = t.spawn_under("target", "addr=127.0.0.2 max-rdma-size=7000")?;
            with_target(t, &child, LENGTH)?;
            child.finish()
        }
        _ => target(t, LENGTH),
    });
}

#[test]
fn ten_queue_pairs_at_once_do_not_mix_their_bytes() {
    run(|t| {
        t.need(DeviceCapabilities::RDMA_WRITE)?;
        t.need_loopback()?;
        let domain = t.domain()?;
        let mut pairs = Vec::new();
        for index in 0..10u8 {
            let mut pair = Pair::on(&domain, Config::default())?;
            let (source, target) = (pair.region(&[index; 50_000])?, pair.region(&[255; 50_000])?);
            let put = pair
                .a
                .submit(Put::new(pair.ab, &source, target.remote()?).tag(u64::from(index)))?;
            pairs.push((pair, put, target));
        }
        for (index, (pair, put, target)) in pairs.iter_mut().enumerate() {
            let completion = done(&mut pair.a, *put)?;
            ensure!(completion.tag == index as u64);
            ensure!(
                target
                    .to_vec(..)?
                    .iter()
                    .all(|byte| usize::from(*byte) == index)
            );
        }
        Ok(())
    });
}

/// Many requests in flight, the data checked.
fn many_at_once(t: &Test) -> Result<()> {
    t.need(DeviceCapabilities::RDMA_WRITE)?;
    t.need_loopback()?;
    let mut pair = Pair::new(t, Config::default())?;
    for round in 0..4 {
        let bytes = t.rng().bytes(600_000 + round);
        pair.works(&bytes)?;
    }
    Ok(())
}

#[test]
fn data_is_right_although_packets_and_completions_come_out_of_order() {
    under("max-rdma-size=20000").run(|t| {
        many_at_once(t)?;
        let counters = t.counters()?;
        for name in ["packets_out_of_order", "completions_out_of_order"] {
            ensure!(counters.get(name) > 0, "{name} is 0: {counters:?}");
        }
        Ok(())
    });
}

#[test]
fn the_same_transfers_fail_their_check_where_packets_are_corrupted() {
    run(|t| match t.role() {
        "main" => {
            if soft_efa_dir().is_none() {
                return Err(efa_tests::skip("it needs soft-efa"));
            }
            let child = t.spawn_under("corrupted", "max-rdma-size=20000 faults=corrupt=0.02")?;
            let (error, corrupted): (Option<String>, u64) = child.channel().recv()?;
            ensure!(corrupted > 0, "nothing was corrupted");
            ensure!(error.as_deref() == Some("the data differs"), "{error:?}");
            child.finish()
        }
        "corrupted" => {
            let error = many_at_once(t).err().map(|error| error.to_string());
            let corrupted = t.counters()?.get("packets_corrupted");
            t.parent().send(&(error, corrupted))
        }
        role => bail!("{role}?"),
    });
}

#[test]
fn requests_take_the_path_that_was_asked_for() {
    run(|t| {
        let domain = t.domain()?;
        let made = |path| {
            let config = Config {
                path,
                ..Config::default()
            };
            Endpoint::new(&domain, config)
        };
        ensure!(made(DataPath::Libefa)?.limits().path == DataPath::Libefa);
        let first_choice = made(DataPath::Auto)?.limits().path;
        match made(DataPath::Direct) {
            Ok(endpoint) => ensure!(endpoint.limits().path == DataPath::Direct),
            // Then it must be nobody's first choice either.
            Err(_) => ensure!(first_choice == DataPath::Libefa),
        }
        // How the same tests are run on both.
        if let Ok(asked) = std::env::var("EFA_DATA_PATH") {
            ensure!(
                format!("{first_choice:?}").to_lowercase() == asked || asked == "auto",
                "{first_choice:?} instead of {asked}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_connection_reaches_what_an_endpoint_reaches_on_a_p4d() {
    under("profile=p4d").run(|t| {
        let domain = t.domain()?;
        let bytes = t.rng().bytes(10_000);
        let source = region(&domain, &bytes)?;
        let mut a = Connection::new(&domain, Config::default())?;
        let mut b = Connection::new(&domain, Config::default())?;
        a.connect(b.info())?;
        b.connect(a.info())?;
        let target = region(&domain, &[0; 10_000])?;
        let posted = a.get(&target, source.remote()?)?;
        finish(&mut a, posted)?;
        ensure!(target.to_vec(..)? == bytes);

        let mut pair = Pair::on(&domain, Config::default())?;
        let target = region(&domain, &[0; 10_000])?;
        let get = pair.a.get(pair.ab, &target, source.remote()?)?;
        done(&mut pair.a, get)?;
        ensure!(target.to_vec(..)? == bytes);
        Ok(())
    });
}

/// A failure in the middle leaves no request behind, and no id used.
#[test]
fn a_connection_posts_all_requests_of_a_transfer_or_none() {
    under("max-rdma-size=4096").run(|t| {
        let domain = t.domain()?;
        let config = Config {
            max_operations: 2,
            ..Config::default()
        };
        for to_itself in [true, false] {
            let mut a = Connection::new(&domain, config.clone())?;
            let mut b = Connection::new(&domain, config.clone())?;
            let peer = if to_itself { a.info() } else { b.info() };
            a.connect(peer)?;
            b.connect(a.info())?;
            let source = region(&domain, &[3; 3 * 4096])?;
            let target = region(&domain, &[0; 3 * 4096])?;
            let three = a.put(&source, target.remote()?);
            ensure!(
                matches!(three, Err(Error::Full(Full::Operations { capacity: 2 }))),
                "{three:?}"
            );
            // What was begun would end by now.
            let mut all = Vec::new();
            for _ in 0..20 {
                a.poll(&mut all)?;
                std::thread::sleep(Duration::from_millis(1));
            }
            ensure!(all.is_empty() && target.to_vec(..)? == [0; 3 * 4096]);
            let posted = a.put(source.slice(..8192)?, target.remote()?)?;
            ensure!((posted.first, posted.count) == (0, 2), "{posted:?}");
            finish(&mut a, posted)?;
            ensure!(target.to_vec(..8192)? == [3; 8192]);
            ensure!(target.to_vec(8192..)? == [0; 4096]);
        }
        Ok(())
    });
}
