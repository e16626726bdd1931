//! Peers that are slow, silent or hostile; targets that can't be reached; times without end.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::tcp::{Name, client, connector, listener, server};
use super::{PATIENCE, Store, endpoint, until};
use crate::handshake::*;

const SHORT: Duration = Duration::from_millis(300);

fn short() -> HandshakeConfig {
    HandshakeConfig::default().timeout(SHORT)
}

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::put_hello(&mut bytes, &client(9).local, 6, Capabilities::empty(), b"");
    bytes
}

/// Reads the beginning of the peer's hello, and confirms it.
fn confirm(stream: &mut TcpStream) {
    let mut head = [0; 28];
    stream.read_exact(&mut head).unwrap();
    let mut ready = Vec::new();
    wire::put_ready(
        &mut ready,
        u64::from_be_bytes(head[20..].try_into().unwrap()),
    );
    stream.write_all(&ready).unwrap();
}

/// More than the buffers of a local connection hold.
fn much() -> HandshakeConfig {
    short().user_data(vec![7; HandshakeConfig::MAX_USER_DATA])
}

/// Gives the kernel's buffers of a socket, and of the connections that it accepts, little room.
fn narrow(socket: impl std::os::fd::AsFd) {
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
}

#[test]
fn a_client_that_confirms_and_stops_reading_pins_neither_the_listener_nor_those_behind_it() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    narrow(&socket);
    let address = socket.local_addr().unwrap();
    let mut listener = Listener::from_socket(socket, much()).unwrap();
    let mut server = server();
    let mut evil = TcpStream::connect(address).unwrap();
    narrow(&evil);
    evil.write_all(&hello()).unwrap();
    let evil = std::thread::spawn(move || {
        confirm(&mut evil);
        evil.write_all(b"more, which nobody reads").unwrap();
        evil
    });
    let mut errors = Vec::new();
    let mut mutes = Vec::new();
    let mut waits = 0;
    let start = Instant::now();
    while errors.len() < 4 {
        assert!(start.elapsed() < PATIENCE, "{errors:?}");
        if mutes.is_empty() && start.elapsed() > SHORT / 3 {
            mutes.extend([(); 3].map(|()| TcpStream::connect(address).unwrap()));
        }
        while let Some(result) = listener.poll_in(&mut server) {
            errors.push(result.unwrap_err());
        }
        listener.wait(Some(SHORT / 3)).unwrap();
        waits += 1;
    }
    for error in &errors {
        assert!(
            matches!(error.kind(), HandshakeErrorKind::TimedOut(_)),
            "{error}"
        );
    }
    assert!(errors[0].to_string().contains("sending"), "{}", errors[0]);
    // It sleeps: the room that the client's kernel makes is a wake-up now and then.
    assert!(waits < 2_000, "{waits} wake-ups");
    assert!(server.is_empty() && listener.pending() == 0);
    assert!(listener.next_timeout().is_none());
    drop((evil.join().unwrap(), mutes));
}

#[test]
fn a_listener_that_confirms_and_stops_reading_does_not_pin_a_connector() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    narrow(&socket);
    let address = socket.local_addr().unwrap();
    let evil = std::thread::spawn(move || {
        let (mut stream, _) = socket.accept().unwrap();
        stream.write_all(&hello()).unwrap();
        confirm(&mut stream);
        stream
    });
    let stream = TcpStream::connect(address).unwrap();
    narrow(&stream);
    let mut client = client(1);
    let connector = Connector::from_stream(stream, much()).unwrap();
    let error = connector.run_in(&mut client).unwrap_err();
    assert!(
        matches!(error.kind(), HandshakeErrorKind::TimedOut(_)),
        "{error}"
    );
    assert!(error.to_string().contains("sending"), "{error}");
    assert!(client.is_empty());
    drop(evil.join().unwrap());
}

/// A channel that confirms and takes no byte more than a hello's head.
#[derive(Debug)]
struct Pinned {
    taken: Cell<usize>,
    answer: io::Cursor<Vec<u8>>,
}

impl Read for Pinned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.answer.read(buffer)? {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Pinned {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.taken.get() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        wire::put_ready(
            self.answer.get_mut(),
            u64::from_be_bytes(bytes[20..28].try_into().unwrap()),
        );
        self.taken.set(28);
        Ok(28)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_channel_that_stops_taking_bytes_does_not_pin_connect_over() {
    let channel = Pinned {
        taken: Cell::new(0),
        answer: io::Cursor::new(hello()),
    };
    let mut store = client(1);
    let error = run_over(channel, &mut store, short()).unwrap_err();
    assert!(
        matches!(error.kind(), HandshakeErrorKind::TimedOut(_)),
        "{error}"
    );
    assert!(store.is_empty());
}

#[test]
fn a_client_that_sends_one_byte_at_a_time_is_cut_off_at_its_deadline() {
    let (mut listener, address) = listener(short());
    let mut server = server();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.set_nodelay(true).unwrap();
    let start = Instant::now();
    let mut frame = hello().into_iter();
    let error = loop {
        // Too slow for a whole frame.
        let sent = hello().len() - frame.len();
        if start.elapsed() > SHORT / 50 * sent as u32
            && let Some(byte) = frame.next()
        {
            let _ = slow.write(&[byte]);
        }
        let step = Some(Duration::from_millis(2));
        if let Some(result) = listener.accept_in(&mut server, step) {
            break result.unwrap_err();
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(
        matches!(error.kind(), HandshakeErrorKind::TimedOut(_)),
        "{error}"
    );
    assert!(start.elapsed() >= SHORT);
    assert!(server.is_empty());
}

#[test]
fn silent_clients_that_fill_all_places_give_way_to_a_good_one() {
    let (listener, address) = listener(HandshakeConfig::default());
    let patience = Duration::from_millis(50);
    let mut listener = listener.max_pending(4).patience(patience);
    let mut server = server();
    let silent: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let good = std::thread::spawn(move || {
        connector(address, HandshakeConfig::default())
            .run_in(&mut client(3))
            .map(drop)
    });
    let (mut connected, mut evicted) = (false, 0);
    until("the good client", || {
        assert!(listener.pending() <= 4);
        while let Some(result) = listener.poll_in(&mut server) {
            match result {
                Ok(_) => connected = true,
                Err(error) => match error.kind() {
                    HandshakeErrorKind::Evicted => evicted += 1,
                    _ => panic!("{error}"),
                },
            }
        }
        connected
    });
    good.join().unwrap().unwrap();
    assert!(evicted >= 17, "{evicted}");
    drop(silent);
}

#[test]
fn two_programs_that_both_wait_in_run_learn_that_no_listener_is_polled() {
    let listeners = [listener(short()), listener(short())];
    let waiting = [0, 1].map(|me: usize| {
        let connector = connector(listeners[1 - me].1, short());
        std::thread::spawn(move || connector.run_in(&mut client(me as u32)).map(drop))
    });
    for (me, thread) in waiting.into_iter().enumerate() {
        let error = thread.join().unwrap().unwrap_err();
        assert!(
            matches!(error.kind(), HandshakeErrorKind::Silent(SHORT)),
            "{error}"
        );
        let text = error.to_string();
        let target = listeners[1 - me].1.to_string();
        for part in [&target, "listener is not polled", "in one loop"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[test]
fn an_address_that_stays_silent_leaves_time_for_the_others() {
    // A port that is free on two addresses.
    let (_mute, port, mut good) = (0..100)
        .find_map(|_| {
            let mute = TcpListener::bind("127.0.0.2:0").unwrap();
            let port = mute.local_addr().unwrap().port();
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            let good = Listener::bind(address, HandshakeConfig::default()).ok()?;
            Some((mute, port, good))
        })
        .unwrap();
    let address = good.local_addr().unwrap();
    let timeout = Duration::from_secs(1);
    let connector = Connector::new(both(port), HandshakeConfig::default().timeout(timeout));
    let thread = std::thread::spawn(move || connector.unwrap().run_in(&mut client(1)));
    let mut server = server();
    let arrival = good.accept_in(&mut server, Some(PATIENCE)).unwrap();
    arrival.unwrap();
    let connected = thread.join().unwrap().unwrap();
    assert_eq!(connected.channel.peer_addr().unwrap(), address);
}

fn both(port: u16) -> Name {
    Name([2, 1].map(|host| SocketAddr::from(([127, 0, 0, host], port))))
}

#[test]
fn the_error_of_a_name_has_the_error_of_each_of_its_addresses() {
    // A port that nobody has on either address.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    for retry in [true, false] {
        let connector = Connector::new(both(port), short()).unwrap().retry(retry);
        let error = connector.run_in(&mut client(1)).unwrap_err();
        let text = error.to_string();
        for part in ["name.example", "127.0.0.1:", "127.0.0.2:", "refused"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(matches!(error.kind(), HandshakeErrorKind::Io(source)
            if source.kind() == ErrorKind::ConnectionRefused));
    }
}

#[test]
fn a_target_that_can_never_be_reached_is_refused_at_once_with_its_name() {
    let patient = || HandshakeConfig::default().timeout(PATIENCE * 10);
    let start = Instant::now();
    // A link-local address without its interface: EINVAL, which would be tried until the deadline.
    let mut errors = vec![("[fe80::1]:5", None)];
    for target in ["localhost", "127.0.0.1:0", "256.1.1.1:7"] {
        errors.push((target, Some(Connector::new(target, patient()).unwrap_err())));
    }
    for (target, error) in errors {
        let error = error.unwrap_or_else(|| {
            let connector = Connector::new(target, patient()).unwrap();
            connector.run_in(&mut client(1)).unwrap_err()
        });
        assert!(error.to_string().contains(target), "{error}");
    }
    let taken = listener(HandshakeConfig::default());
    let error = Listener::bind(taken.1, HandshakeConfig::default()).unwrap_err();
    assert!(error.to_string().contains(&taken.1.to_string()), "{error}");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_server_that_hangs_up_on_a_writing_client_after_a_refusal_shows_the_refusal() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    narrow(&stream);
    let config = HandshakeConfig::default().user_data(vec![7; HandshakeConfig::MAX_USER_DATA]);
    let mut connector = Connector::from_stream(stream, config).unwrap();
    let mut store = client(1);
    assert!(connector.poll_in(&mut store).is_pending());
    // The client has begun to write, and goes on when all of this has happened.
    let (mut stream, _) = socket.accept().unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    let mut reject = Vec::new();
    wire::put_reject(&mut reject, RejectReason::WrongPeer, "not today");
    stream.write_all(&reject).unwrap();
    // Unread bytes make the kernel reset the connection.
    drop(stream);
    let error = connector.run_in(&mut store).unwrap_err();
    assert!(error.to_string().contains("not today"), "{error}");
}

#[test]
fn a_channel_that_cannot_be_written_but_holds_a_refusal_shows_the_refusal() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut reject = Vec::new();
    wire::put_reject(&mut reject, RejectReason::Busy, "");
    theirs.write_all(&reject).unwrap();
    drop(theirs);
    let error = run_over(ours, &mut client(1), short()).unwrap_err();
    assert!(matches!(
        error.kind(),
        HandshakeErrorKind::Rejected {
            reason: RejectReason::Busy,
            ..
        }
    ));
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let error = run_over(ours, &mut client(1), short()).unwrap_err();
    assert!(matches!(error.kind(), HandshakeErrorKind::Io(source)
        if source.kind() == ErrorKind::BrokenPipe));
}

#[test]
fn endless_and_zero_times_are_allowed_everywhere() {
    for timeout in [Duration::MAX, Duration::ZERO] {
        let config = || HandshakeConfig::default().timeout(timeout);
        let (listener, address) = listener(config());
        let mut listener = listener.patience(timeout).max_pending(1);
        let mut server = server();
        let clients = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        for _ in 0..20 {
            let _ = listener.poll_in(&mut server);
            listener.wait(Some(Duration::from_millis(1))).unwrap();
            listener.next_timeout();
        }
        drop(clients);
        listener.wait(Some(timeout)).unwrap();
        let gone = listener.accept_in(&mut server, Some(timeout));
        assert!(gone.is_none_or(|result| result.is_err()));

        let mut refused = connector(([127, 0, 0, 1], 9).into(), config()).retry(false);
        let _ = refused.poll_in(&mut client(1));
        refused.wait(Some(Duration::ZERO)).unwrap();
        assert!(refused.run_in(&mut client(1)).is_err());

        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(run_over(ours, &mut client(1), config()).is_err());
    }
    // A good one, without any limit.
    let endless = || HandshakeConfig::default().timeout(Duration::MAX);
    let (mut listener, address) = listener(endless());
    let thread = std::thread::spawn(move || connector(address, endless()).run_in(&mut client(2)));
    let mut server = Store::new(endpoint(1, 1, 1));
    let arrival = listener.accept_in(&mut server, Some(Duration::MAX));
    assert!(arrival.unwrap().is_ok());
    assert!(thread.join().unwrap().is_ok());
}
