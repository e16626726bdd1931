//! Listener and connector over real sockets, in one thread.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::{PATIENCE, Store, endpoint, until};
use crate::handshake::wire::{Frame, FrameReader};
use crate::handshake::*;

pub(super) fn listener(config: HandshakeConfig) -> (Listener, SocketAddr) {
    let listener = Listener::bind("127.0.0.1:0", config).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

pub(super) fn connector(address: SocketAddr, config: HandshakeConfig) -> Connector {
    Connector::new(address, config).unwrap()
}

pub(super) fn server() -> Store {
    Store::new(endpoint(200, 1, 1))
}

pub(super) fn client(number: u32) -> Store {
    Store::new(endpoint(100, number, 1000 + u64::from(number)))
}

/// A name with two addresses.
pub(super) struct Name(pub [SocketAddr; 2]);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "name.example:{}", self.0[0].port())
    }
}

impl ToSocketAddrs for Name {
    type Iter = std::array::IntoIter<SocketAddr, 2>;

    fn to_socket_addrs(&self) -> std::io::Result<Self::Iter> {
        Ok(self.0.into_iter())
    }
}

pub(super) type Met = Result<Connected<TcpStream, EndpointInfo>, HandshakeError>;

/// Polls both until both handshakes have ended: the connector's and the listener's.
pub(super) fn meet(
    (mut connector, client): (Connector, &mut Store),
    (listener, server): (&mut Listener, &mut Store),
) -> (Met, Met) {
    let (mut here, mut there) = (None, None);
    until("the handshake", || {
        if here.is_none()
            && let Poll::Ready(result) = connector.poll_in(client)
        {
            here = Some(result);
        }
        there = there.take().or_else(|| listener.poll_in(server));
        here.is_some() && there.is_some()
    });
    (here.unwrap(), there.unwrap())
}

#[test]
fn both_sides_learn_who_the_other_is_and_keep_the_channel() {
    let (mut listener, address) = listener(HandshakeConfig::default().user_data(*b"served"));
    let (mut server, mut client) = (server(), client(7));
    let connector = connector(address, HandshakeConfig::default().user_data(*b"asked"));
    let (here, there) = meet((connector, &mut client), (&mut listener, &mut server));
    let (mut here, mut there) = (here.unwrap(), there.unwrap());
    assert_eq!(
        (&here.user_data[..], &there.user_data[..]),
        (&b"served"[..], &b"asked"[..])
    );
    assert_eq!((here.info, there.info), (server.local, client.local));
    // The channels block again, and carry what the program likes.
    here.channel.write_all(b"more").unwrap();
    let mut more = [0; 4];
    there.channel.read_exact(&mut more).unwrap();
    assert_eq!(&more, b"more");
    assert_eq!(listener.pending(), 0);
}

#[test]
fn a_connection_that_exists_carries_a_handshake_whoever_speaks_first() {
    for first in [true, false] {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let (theirs, _) = socket.accept().unwrap();
        let run = |stream, mut store: Store, first| {
            let config = HandshakeConfig::default().speak_first(first);
            let connector = Connector::from_stream(stream, config).unwrap();
            std::thread::spawn(move || connector.run_in(&mut store))
        };
        let (one, other) = (run(ours, client(1), first), run(theirs, client(2), !first));
        assert_eq!(one.join().unwrap().unwrap().info, client(2).local);
        assert_eq!(other.join().unwrap().unwrap().info, client(1).local);
    }
}

#[test]
fn two_hundred_clients_at_once_and_bad_ones_among_them() {
    const GOOD: u32 = 200;
    let patient = HandshakeConfig::default().timeout(PATIENCE);
    let (mut listener, address) = listener(patient.clone());
    let mut server = server();
    // Something else, silence, half a frame, and gone at once.
    let mut http = TcpStream::connect(address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let silent = TcpStream::connect(address).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(b"EFAh\x02\x01\0\0").unwrap();
    drop(TcpStream::connect(address).unwrap());

    let mut clients: Vec<_> = (0..GOOD)
        .map(|number| {
            let data = number.to_be_bytes().repeat(64);
            let connector = connector(address, patient.clone().user_data(data));
            (client(number), Some(connector))
        })
        .collect();
    let (mut good, mut bad) = (0, Vec::new());
    until("all clients", || {
        for (store, connector) in &mut clients {
            if let Some(active) = connector
                && let Poll::Ready(result) = active.poll_in(store)
            {
                result.unwrap();
                *connector = None;
            }
        }
        while let Some(result) = listener.poll_in(&mut server) {
            match result {
                Ok(connected) => {
                    let number = connected.info.address.queue_pair();
                    assert_eq!(connected.user_data, number.to_be_bytes().repeat(64));
                    good += 1;
                }
                Err(error) => bad.push(error),
            }
        }
        good == GOOD && bad.len() == 2 && clients.iter().all(|(_, left)| left.is_none())
    });
    let has = |what: fn(&HandshakeErrorKind) -> bool| bad.iter().any(|error| what(error.kind()));
    assert!(has(
        |kind| matches!(kind, HandshakeErrorKind::Foreign(start) if start == b"GET ")
    ));
    assert!(has(|kind| matches!(kind, HandshakeErrorKind::Closed)));
    // Each error names its client.
    let http = http.local_addr().unwrap();
    assert!(bad.iter().any(|error| error.remote() == Some(http)));
    assert!(
        bad.iter()
            .any(|error| error.to_string().contains(&http.to_string()))
    );
    assert_eq!(listener.pending(), 2);
    assert_eq!(server.active.len(), GOOD as usize);
    listener.close_in(&mut server);
    drop((silent, half));
}

#[test]
fn both_sides_may_connect_to_each_other_at_once_and_become_one_peer() {
    let mut stores = [server(), client(1)];
    let config = HandshakeConfig::default;
    let mut listeners = [listener(config()), listener(config())];
    let mut connectors = [1, 0].map(|other: usize| Some(connector(listeners[other].1, config())));
    let mut met = [0, 0];
    until("both handshakes", || {
        for me in 0..2 {
            if let Some(connector) = &mut connectors[me]
                && let Poll::Ready(result) = connector.poll_in(&mut stores[me])
            {
                result.unwrap();
                met[me] += 1;
                connectors[me] = None;
            }
            if let Some(result) = listeners[me].0.poll_in(&mut stores[me]) {
                result.unwrap();
                met[me] += 1;
            }
        }
        met == [2, 2]
    });
    for store in &stores {
        assert_eq!((store.active.len(), store.pending.len()), (1, 0));
    }
}

#[test]
fn one_endpoint_may_connect_to_itself() {
    let mut store = server();
    let (mut listener, address) = listener(HandshakeConfig::default());
    let mut connector = connector(address, HandshakeConfig::default());
    let (mut here, mut there) = (None, None);
    until("the handshake", || {
        if here.is_none()
            && let Poll::Ready(result) = connector.poll_in(&mut store)
        {
            here = Some(result.unwrap().peer);
        }
        if let Some(result) = listener.poll_in(&mut store) {
            there = Some(result.unwrap().peer);
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
        assert!(connector.poll_in(&mut client).is_pending());
        connector.wait(Some(Duration::from_millis(5))).unwrap();
    }
    let mut server = server();
    let mut listener = Listener::bind(address, HandshakeConfig::default()).unwrap();
    let (here, there) = meet((connector, &mut client), (&mut listener, &mut server));
    here.unwrap();
    there.unwrap();
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
        .run_in(&mut client(1))
        .unwrap_err();
    assert!(error.to_string().contains("SSH-"), "{error}");
    speaker.join().unwrap();
}

#[test]
fn a_refusal_reaches_the_client_with_its_reason_and_the_name_of_the_target() {
    let needs = Capabilities::RDMA_WRITE;
    let (mut listener, address) = listener(HandshakeConfig::default().require(needs));
    let (mut server, mut client) = (server(), client(1));
    let connector = connector(address, HandshakeConfig::default());
    let (here, there) = meet((connector, &mut client), (&mut listener, &mut server));
    let error = here.unwrap_err();
    match error.kind() {
        HandshakeErrorKind::Rejected { reason, .. } => {
            assert_eq!(*reason, RejectReason::Capabilities(needs));
        }
        other => panic!("{other:?}"),
    }
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(
        matches!(there.unwrap_err().kind(), HandshakeErrorKind::PeerLacks(what) if *what == needs)
    );
    assert!(client.is_empty() && server.is_empty());
}

#[test]
fn a_megabyte_of_user_data_passes_where_it_is_allowed_and_is_refused_by_name_where_not() {
    const MAX: usize = HandshakeConfig::MAX_USER_DATA;
    let data: Vec<_> = (0..MAX).map(|n| n as u8).collect();
    for (allowed, works) in [(MAX, true), (MAX - 1, false)] {
        let config = HandshakeConfig::default().max_user_data(allowed);
        let (mut listener, address) = listener(config.user_data(vec![1; 1000]));
        let (mut server, mut client) = (server(), client(1));
        let connector = connector(address, HandshakeConfig::default().user_data(data.clone()));
        let (here, there) = meet((connector, &mut client), (&mut listener, &mut server));
        if works {
            assert!(there.unwrap().user_data == data && here.is_ok());
            continue;
        }
        let error = there.unwrap_err();
        assert!(matches!(
            error.kind(),
            HandshakeErrorKind::PeerDataTooLong { length: MAX, .. }
        ));
        let error = here.unwrap_err();
        assert!(error.to_string().contains("raise"), "{error}");
    }
}

#[test]
fn user_data_that_nobody_could_receive_is_refused_at_once() {
    let config = HandshakeConfig::default().user_data(vec![0; HandshakeConfig::MAX_USER_DATA + 1]);
    let (mut bound, address) = listener(HandshakeConfig::default());
    let errors = [
        Connector::new(address, config.clone()).map(drop),
        Listener::bind("127.0.0.1:0", config.clone()).map(drop),
        bound.set_user_data(config.user_data.clone()),
        run_over(TcpStream::connect(address).unwrap(), &mut client(1), config).map(drop),
    ];
    for error in errors {
        let kind = error.unwrap_err();
        assert!(matches!(
            kind.kind(),
            HandshakeErrorKind::UserDataTooLong { .. }
        ));
    }
}

#[test]
fn closing_the_listener_forgets_pending_peers_and_tells_the_clients() {
    let (mut listener, address) = listener(HandshakeConfig::default());
    let mut server = server();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut hello = Vec::new();
    wire::put_hello(&mut hello, &client(1).local, 3, Capabilities::empty(), b"");
    stream.write_all(&hello).unwrap();
    until("the server to install the client", || {
        assert!(listener.poll_in(&mut server).is_none());
        server.pending.len() == 1
    });
    listener.close_in(&mut server);
    assert!(server.is_empty());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut reader = FrameReader::new(0);
    let (mut rest, mut frames) = (answer.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(reader.wanted());
        rest = after;
        frames.extend(reader.push(piece).unwrap());
    }
    assert!(
        matches!(
            frames.as_slice(),
            [
                Frame::Hello(_),
                Frame::Ready { answers: 3 },
                Frame::Reject {
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
    let (mut listener, address) = listener(HandshakeConfig::default());
    let mut server = server();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        connector(address, HandshakeConfig::default()).run_in(&mut client(5))
    });
    let arrival = listener.accept_in(&mut server, Some(PATIENCE)).unwrap();
    assert_eq!(arrival.unwrap().info, client(5).local);
    assert_eq!(other.join().unwrap().unwrap().info, server.local);
    let start = Instant::now();
    let nobody = listener.accept_in(&mut server, Some(Duration::from_millis(10)));
    assert!(nobody.is_none() && start.elapsed() >= Duration::from_millis(10));
}

#[test]
fn a_name_with_addresses_of_both_protocols_reaches_a_listener_at_either() {
    for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0", "localhost:0"] {
        let Ok(mut listener) = Listener::bind(bind, HandshakeConfig::default()) else {
            assert!(bind.contains("::"), "{bind}");
            continue; // this host has no IPv6
        };
        let port = listener.local_addr().unwrap().port();
        let [old, new] = [
            (Ipv4Addr::LOCALHOST, port).into(),
            (Ipv6Addr::LOCALHOST, port).into(),
        ];
        for name in [Name([old, new]), Name([new, old])] {
            let connector = Connector::new(&name, HandshakeConfig::default()).unwrap();
            let (mut server, mut client) = (server(), client(1));
            let (here, there) = meet((connector, &mut client), (&mut listener, &mut server));
            assert_eq!(here.unwrap().info, server.local, "{bind}");
            assert_eq!(there.unwrap().info, client.local, "{bind}");
        }
    }
}
