//! A listener when the process runs out of file descriptors. It has a process of its own, since the
//! limit holds for all of it.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use efa_transport::address::{EndpointAddress, Gid};
use efa_transport::handshake::{
    Connector, ConnectorConfig, EndpointInfo, Incarnation, Listener, ListenerConfig, Roster,
};
use rustix::process::{Resource, getrlimit, setrlimit};

fn endpoint(queue_pair: u32) -> Roster {
    let address = EndpointAddress::new(Gid::from_bytes([1; 16]), queue_pair, 0x4242).unwrap();
    Roster::new(EndpointInfo::new(address, Incarnation::random()))
}

#[test]
fn a_listener_without_descriptors_takes_a_breath_and_goes_on_when_there_are_some() {
    let (mut server, mut client) = (endpoint(1), endpoint(2));
    let mut listener = Listener::bind("127.0.0.1:0", ListenerConfig::default()).unwrap();
    let target = listener.local_addr().unwrap();
    let mut connector = Connector::new(target, ConnectorConfig::default()).unwrap();
    // The kernel completes the connection without the listener.
    while connector.poll(&mut client).is_pending() {
        if connector.phase() == efa_transport::handshake::Phase::Greeting {
            break;
        }
    }

    let before = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let mut none = before;
    none.current = Some(next as u64);
    setrlimit(Resource::Nofile, none).unwrap();
    let start = Instant::now();
    let mut polls = 0;
    while start.elapsed() < Duration::from_millis(350) {
        assert!(listener.poll(&mut server).is_none());
        listener.wait(Some(Duration::from_millis(350))).unwrap();
        polls += 1;
    }
    let errors = listener.stats().accept_errors;
    assert!((1..=6).contains(&errors), "{errors} failed attempts");
    assert!(polls <= 20, "{polls} polls: it does not sleep");

    setrlimit(Resource::Nofile, before).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let _ = connector.poll(&mut client);
        if let Some(arrival) = listener.poll(&mut server) {
            assert_eq!(
                arrival.result.unwrap().info.endpoint.address.queue_pair(),
                2
            );
            return;
        }
        assert!(Instant::now() < deadline);
    }
}
