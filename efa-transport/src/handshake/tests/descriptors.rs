//! A listener when the process runs out of file descriptors.

use std::os::fd::AsRawFd;
use std::process::Command;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use super::{PATIENCE, Store, endpoint};
use crate::handshake::error::Step;
use crate::handshake::*;

const CHILD: &str = "EFA_TEST_WITHOUT_DESCRIPTORS";

/// The limit holds for the whole process, so the test has one of its own.
#[test]
fn a_listener_without_descriptors_says_so_rests_and_goes_on_when_there_are_some() {
    if std::env::var_os(CHILD).is_some() {
        return without_descriptors();
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = "a_listener_without_descriptors_says_so_rests_and_goes_on_when_there_are_some";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn without_descriptors() {
    let (mut server, mut client) = (Store::new(endpoint(1, 1, 1)), Store::new(endpoint(2, 2, 2)));
    let mut listener = Listener::bind("127.0.0.1:0", HandshakeConfig::default()).unwrap();
    let target = listener.local_addr().unwrap();
    let mut connector = Connector::new(target, HandshakeConfig::default()).unwrap();
    // The kernel completes the connection without the listener.
    while connector.step() != Step::Greeting {
        assert!(connector.poll_in(&mut client).is_pending());
    }

    let before = getrlimit(Resource::Nofile);
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let mut none = before;
    none.current = Some(next as u64);
    setrlimit(Resource::Nofile, none).unwrap();
    let start = Instant::now();
    let (mut polls, mut errors) = (0, 0);
    while start.elapsed() < Duration::from_millis(350) {
        if let Some(result) = listener.poll_in(&mut server) {
            let text = result.unwrap_err().to_string();
            assert!(
                text.contains("accepting") && text.contains("open files"),
                "{text}"
            );
            errors += 1;
        }
        listener.wait(Some(Duration::from_millis(350))).unwrap();
        polls += 1;
    }
    assert!((1..=6).contains(&errors), "{errors} failed attempts");
    assert!(polls <= 30, "{polls} polls: it does not sleep");

    setrlimit(Resource::Nofile, before).unwrap();
    loop {
        if let Poll::Ready(Err(error)) = connector.poll_in(&mut client) {
            panic!("{error}");
        }
        if let Some(Ok(connected)) = listener.poll_in(&mut server) {
            assert_eq!(connected.info, client.local);
            return;
        }
        assert!(start.elapsed() < PATIENCE);
    }
}
