//! Listener and connector over real sockets, in one thread.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::endpoint;
use crate::handshake::wire::{Body, FrameReader};
use crate::handshake::*;

/// Long enough for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

fn listener(config: ListenerConfig) -> (Listener<RosterKey>, SocketAddr) {
    let listener = Listener::bind("127.0.0.1:0", config).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn connector(address: SocketAddr, config: HandshakeConfig) -> Connector<RosterKey> {
    Connector::new(address, ConnectorConfig::default().handshake(config)).unwrap()
}

fn patient() -> HandshakeConfig {
    HandshakeConfig::default().timeout(PATIENCE)
}

fn server() -> Roster {
    Roster::new(endpoint(200, 1, 1))
}

fn client(number: u32) -> Roster {
    Roster::new(endpoint(100, number, 1000 + u64::from(number)))
}

/// Lets both work until the condition holds.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !step() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn both_sides_learn_who_the_other_is_and_keep_the_channel() {
    let config = HandshakeConfig::default().user_data(*b"served");
    let (mut listener, address) = listener(ListenerConfig::default().handshake(config));
    let (mut server, mut client) = (server(), client(7));
    let mut connector = connector(address, HandshakeConfig::default().user_data(*b"asked"));
    let (mut here, mut there) = (None, None);
    until("the handshake", || {
        if here.is_none()
            && let Poll::Ready(result) = connector.poll(&mut client)
        {
            here = Some(result.unwrap());
        }
        if let Some(arrival) = listener.poll(&mut server) {
            there = Some(arrival.result.unwrap());
        }
        here.is_some() && there.is_some()
    });
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    assert_eq!(
        (
            here.info.user_data.as_slice(),
            there.info.user_data.as_slice()
        ),
        (&b"served"[..], &b"asked"[..])
    );
    assert_eq!(here.info.endpoint, server.local());
    assert_eq!(server.standing(there.peer), Standing::Active);
    assert_eq!(client.standing(here.peer), Standing::Active);
    // The channels block again, and carry what the program likes.
    here.channel.write_all(b"more").unwrap();
    let mut more = [0; 4];
    there.channel.read_exact(&mut more).unwrap();
    assert_eq!(&more, b"more");
    assert_eq!(listener.pending(), 0);
}

#[test]
fn two_hundred_clients_at_once_and_bad_ones_among_them() {
    const GOOD: u32 = 200;
    let (mut listener, address) = listener(ListenerConfig::default().handshake(patient()));
    let mut server = server();
    // Something else, silence, half a frame, and gone at once.
    let mut http = TcpStream::connect(address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"EFAh\x01\x01\0\0").unwrap();
    drop(TcpStream::connect(address).unwrap());

    let mut clients: Vec<_> = (0..GOOD)
        .map(|number| {
            let data = number.to_be_bytes().repeat(64);
            (
                client(number),
                Some(connector(address, patient().user_data(data))),
                None,
            )
        })
        .collect();
    let (mut good, mut bad) = (0, Vec::new());
    until("all clients", || {
        for (store, connector, done) in &mut clients {
            if let Some(active) = connector
                && let Poll::Ready(result) = active.poll(store)
            {
                *done = Some(result.unwrap());
                *connector = None;
            }
        }
        while let Some(arrival) = listener.poll(&mut server) {
            match arrival.result {
                Ok(connected) => {
                    let number = connected.info.endpoint.address.queue_pair();
                    assert_eq!(connected.info.user_data, number.to_be_bytes().repeat(64));
                    good += 1;
                }
                Err(error) => bad.push(error),
            }
        }
        good == GOOD && bad.len() == 2 && clients.iter().all(|(_, _, done)| done.is_some())
    });
    assert!(
        bad.iter()
            .any(|error| matches!(error, HandshakeError::Frame(FrameError::Foreign(_)))),
        "{bad:?}"
    );
    assert!(
        bad.iter()
            .any(|error| matches!(error, HandshakeError::Closed(Phase::Greeting))),
        "{bad:?}"
    );
    assert_eq!(listener.pending(), 2);
    assert_eq!(server.len(), GOOD as usize);
    assert_eq!(listener.stats().established, u64::from(GOOD));
    listener.close(&mut server);
    drop((silent, half));
}

#[test]
fn a_client_that_dribbles_is_cut_off_at_its_deadline() {
    let timeout = Duration::from_millis(150);
    let config = ListenerConfig::default().handshake(HandshakeConfig::default().timeout(timeout));
    let (mut listener, address) = listener(config);
    let mut server = server();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.set_nodelay(true).unwrap();
    let frame = b"EFAh\x01\x01\0\0\0\0\x01\x00";
    let mut sent = 0;
    let start = Instant::now();
    let arrival = loop {
        if start.elapsed() > Duration::from_millis(15) * sent as u32 && sent < frame.len() {
            let _ = slow.write(&frame[sent..=sent]);
            sent += 1;
        }
        if let Some(arrival) = listener
            .accept(&mut server, Duration::from_millis(5))
            .unwrap()
        {
            break arrival;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(
        matches!(
            arrival.result,
            Err(HandshakeError::TimedOut(Phase::Greeting))
        ),
        "{arrival:?}"
    );
    assert!(start.elapsed() >= timeout);
    assert!(server.is_empty());
}

#[test]
fn silent_clients_that_fill_all_places_give_way_to_a_good_one() {
    let config = ListenerConfig::default()
        .max_pending(4)
        .patience(Duration::from_millis(50));
    let (mut listener, address) = listener(config);
    let mut server = server();
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut client = client(3);
    let mut connector = connector(address, HandshakeConfig::default());
    let (mut connected, mut evicted) = (false, 0);
    until("the good client", || {
        if !connected && let Poll::Ready(result) = connector.poll(&mut client) {
            result.unwrap();
            connected = true;
        }
        assert!(listener.pending() <= 4);
        while let Some(arrival) = listener.poll(&mut server) {
            match arrival.result {
                Ok(_) => {}
                Err(HandshakeError::Evicted(Phase::Greeting)) => evicted += 1,
                Err(error) => panic!("{error}"),
            }
        }
        connected && listener.stats().established == 1
    });
    assert_eq!(listener.stats().evicted, evicted);
    assert!(evicted >= 17, "{evicted}");
    drop(silent);
}

#[test]
fn both_sides_may_connect_to_each_other_at_once() {
    let mut stores = [server(), client(1)];
    let mut listeners = [
        listener(ListenerConfig::default()),
        listener(ListenerConfig::default()),
    ];
    let mut connectors =
        [1, 0].map(|other: usize| Some(connector(listeners[other].1, HandshakeConfig::default())));
    let mut keys = [Vec::new(), Vec::new()];
    until("both handshakes", || {
        for me in 0..2 {
            if let Some(connector) = &mut connectors[me]
                && let Poll::Ready(result) = connector.poll(&mut stores[me])
            {
                keys[me].push(result.unwrap().peer);
                connectors[me] = None;
            }
            if let Some(arrival) = listeners[me].0.poll(&mut stores[me]) {
                keys[me].push(arrival.result.unwrap().peer);
            }
        }
        keys.iter().all(|keys| keys.len() == 2)
    });
    for (store, keys) in stores.iter().zip(keys) {
        assert_eq!(keys[0], keys[1]);
        assert_eq!(store.len(), 1);
    }
}

#[test]
fn one_endpoint_may_connect_to_itself() {
    let mut store = server();
    let (mut listener, address) = listener(ListenerConfig::default());
    let mut connector = connector(address, HandshakeConfig::default());
    let (mut here, mut there) = (None, None);
    until("the handshake", || {
        if here.is_none()
            && let Poll::Ready(result) = connector.poll(&mut store)
        {
            here = Some(result.unwrap().peer);
        }
        if let Some(arrival) = listener.poll(&mut store) {
            there = Some(arrival.result.unwrap().peer);
        }
        here.is_some() && there.is_some()
    });
    assert_eq!(here, there);
}

#[test]
fn a_connector_waits_for_a_listener_that_comes_later() {
    // Finds a port that is free at the moment.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut client = client(1);
    let mut connector = connector(address, HandshakeConfig::default());
    for _ in 0..20 {
        assert!(connector.poll(&mut client).is_pending());
        connector.wait(Some(Duration::from_millis(5))).unwrap();
    }
    let mut server = server();
    let mut listener = Listener::bind(address, ListenerConfig::default()).unwrap();
    until("the handshake", || {
        let _ = listener.poll(&mut server);
        matches!(connector.poll(&mut client), Poll::Ready(result) if result.is_ok())
    });
}

#[test]
fn a_connector_without_retry_reports_the_refusal_at_once() {
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let connector = Connector::new(address, ConnectorConfig::default().retry(false)).unwrap();
    let start = Instant::now();
    let error = connector.run(&mut client(1)).unwrap_err();
    assert!(
        matches!(&error, HandshakeError::Io { phase: Phase::Connecting, source }
            if source.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_server_that_never_answers_meets_the_deadline() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(500);
    let config = HandshakeConfig::default().timeout(timeout);
    let start = Instant::now();
    let error = connector(mute.local_addr().unwrap(), config)
        .run(&mut client(1))
        .unwrap_err();
    assert!(
        matches!(error, HandshakeError::TimedOut(Phase::Greeting)),
        "{error:?}"
    );
    assert!(start.elapsed() >= timeout && start.elapsed() < PATIENCE);
}

#[test]
fn a_server_that_speaks_something_else_is_a_clear_error() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let speaker = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
        let _ = stream.read(&mut [0; 512]);
    });
    let error = connector(address, HandshakeConfig::default())
        .run(&mut client(1))
        .unwrap_err();
    assert!(error.to_string().contains("SSH-"), "{error}");
    speaker.join().unwrap();
}

#[test]
fn a_refusal_reaches_the_client_with_its_reason() {
    let config = HandshakeConfig::default().require(Capabilities::RDMA_WRITE);
    let (mut listener, address) = listener(ListenerConfig::default().handshake(config));
    let (mut server, mut client) = (server(), client(1));
    let mut connector = connector(address, HandshakeConfig::default());
    let mut error = None;
    until("the refusal", || {
        let _ = listener.poll(&mut server);
        match connector.poll(&mut client) {
            Poll::Ready(result) => error = result.err(),
            Poll::Pending => {}
        }
        error.is_some()
    });
    // Whoever reads the other's requirement first names it.
    let error = error.unwrap();
    let expected = Capabilities::RDMA_WRITE;
    assert!(
        matches!(&error, HandshakeError::Rejected { reason: RejectReason::Capabilities(what), .. } if *what == expected),
        "{error:?}"
    );
    assert!(client.is_empty() && server.is_empty());
}

#[test]
fn a_megabyte_of_user_data_passes_where_it_is_allowed_and_is_refused_where_not() {
    for (allowed, works) in [(MAX_USER_DATA, true), (MAX_USER_DATA - 1, false)] {
        let config = HandshakeConfig::default()
            .max_user_data(allowed)
            .user_data(vec![1; 1000]);
        let (mut listener, address) = listener(ListenerConfig::default().handshake(config));
        let (mut server, mut client) = (server(), client(1));
        let data: Vec<_> = (0..MAX_USER_DATA).map(|n| n as u8).collect();
        let mut connector = connector(address, HandshakeConfig::default().user_data(data.clone()));
        let (mut here, mut there) = (None, None);
        until("the handshake", || {
            if here.is_none()
                && let Poll::Ready(result) = connector.poll(&mut client)
            {
                here = Some(result.map(drop));
            }
            if let Some(arrival) = listener.poll(&mut server) {
                there = Some(arrival.result);
            }
            here.is_some() && there.is_some()
        });
        match there.unwrap() {
            Ok(connected) if works => assert!(connected.info.user_data == data),
            Err(HandshakeError::Frame(FrameError::Oversized { .. })) if !works => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(here.unwrap().is_ok(), works);
    }
}

#[test]
fn closing_the_listener_forgets_what_was_under_way_and_tells_the_clients() {
    let (mut listener, address) = listener(ListenerConfig::default());
    let mut server = server();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut machine = Handshake::new(
        client(1).local(),
        HandshakeConfig::default(),
        Instant::now(),
    )
    .unwrap();
    let mut hello = Vec::new();
    assert!(machine.poll_transmit(&mut hello));
    stream.write_all(&hello).unwrap();
    until("the server to install the client", || {
        assert!(listener.poll(&mut server).is_none());
        server.len() == 1
    });
    listener.close(&mut server);
    assert!(server.is_empty());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut reader = FrameReader::new(0);
    let (mut rest, mut frames) = (answer.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(reader.wanted());
        rest = after;
        frames.extend(reader.push(piece).unwrap().map(|frame| frame.body));
    }
    assert!(
        matches!(
            frames.as_slice(),
            [
                Body::Hello { .. },
                Body::Ready,
                Body::Reject {
                    reason: RejectReason::Closing,
                    ..
                }
            ]
        ),
        "{frames:?}"
    );
}

#[test]
fn waiting_ends_when_a_client_comes() {
    let (mut listener, address) = listener(ListenerConfig::default());
    let mut server = server();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        connector(address, HandshakeConfig::default())
            .run(&mut client(5))
            .map(|connected| connected.info)
    });
    let arrival = listener.accept(&mut server, PATIENCE).unwrap().unwrap();
    assert_eq!(
        arrival.result.unwrap().info.endpoint.address.queue_pair(),
        5
    );
    assert_eq!(other.join().unwrap().unwrap().endpoint, server.local());
    assert!(
        listener
            .accept(&mut server, Duration::from_millis(10))
            .unwrap()
            .is_none()
    );
}
