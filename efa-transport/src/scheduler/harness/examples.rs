//! Cases that are worth a test of their own: fairness, and ids that name nothing.

use std::rc::Rc;

use super::parts::{DOMAIN, Handle, Registry, Session, Token};
use crate::address::EndpointAddress;
use crate::failure::FailureKind;
use crate::operation::{Kind, OperationId};
use crate::peers::{NewPeer, PeerId};
use crate::scheduler::operations::request_id;
use crate::scheduler::plan::Plannable;
use crate::scheduler::{Begin, Credits, Piece, QUANTUM, Scheduler, Unknown};
use efa_verbs::Gid;

/// A scheduler with some peers.
struct Case {
    scheduler: Scheduler<Token, Handle>,
    peers: Vec<PeerId>,
    memory: Token,
}

impl Case {
    fn new(depth: u32, peers: u32) -> Self {
        let mut scheduler = Scheduler::new(1, DOMAIN, Credits::new(depth, depth), 100_000, 1 << 20);
        let peer = |n: u32| NewPeer {
            address: EndpointAddress::new(Gid::from_bytes([1; 16]), n, 1).unwrap(),
            handle: Some(Handle(Rc::new(n as u16))),
            incarnation: 0,
            takes_messages: true,
        };
        let peers = (0..peers).map(|n| scheduler.peers.add(peer(n))).collect();
        Self {
            scheduler,
            peers,
            memory: Registry::default().register(DOMAIN),
        }
    }

    fn submit(&mut self, kind: Kind, peer: usize, lengths: &[u64]) -> OperationId {
        let mut pieces = vec![];
        for &length in lengths {
            pieces.push(Piece {
                hold: self.scheduler.hold(&self.memory),
                local: 0,
                lkey: 0,
                rkey: 0,
                remote: 0,
                length,
            });
        }
        let what = Plannable {
            kind,
            peer: self.peers[peer],
            tag: 0,
            immediate: 0,
            max: None,
        };
        self.scheduler.submit(what, pieces).unwrap()
    }

    /// Posts all that it can. The ids of the requests.
    fn pump(&mut self) -> Vec<u64> {
        let mut session = Session::default();
        self.scheduler.pump(u32::MAX, &mut session);
        self.scheduler.commit();
        session.0.iter().map(|posted| posted.wr_id).collect()
    }

    /// Posts a put of one request in a batch of its own. The id of the request.
    fn begin(&mut self) -> u64 {
        self.scheduler.open();
        let begun = self.scheduler.begin(Begin {
            kind: Kind::Put,
            peer: self.peers[0],
            memory: Some(&self.memory),
            length: 8,
            tag: 0,
        });
        let id = begun.unwrap().operation;
        self.scheduler.batch_posted(1);
        id.word
    }

    /// Whether this request ends an operation in the quick way.
    fn end(&mut self, request: u64) -> bool {
        let ended = self.scheduler.end(request).is_some();
        self.scheduler.ended(ended.into());
        ended
    }

    fn in_flight(&self) -> u64 {
        let peer = self.scheduler.peers.get(self.peers[0]).unwrap();
        peer.counts.in_flight()
    }
}

#[test]
fn a_completion_that_comes_twice_ends_nothing_twice() {
    let mut case = Case::new(4, 1);
    let other = case.begin();
    for status in [0, 7] {
        let request = case.begin();
        // The completion waits to be taken: the slot is not free yet.
        case.scheduler.complete(request, status);
        case.scheduler.complete(request, status);
        assert!(!case.end(request));
        case.scheduler.complete(request, 0);
    }
    assert_eq!(case.scheduler.stats.stale_completions, 4);
    assert_eq!((case.scheduler.credits.used(), case.in_flight()), (1, 1));
    case.scheduler.complete(other, 0);
    assert_eq!(case.in_flight(), 0);
    // And where the slot is free again, and used again.
    let request = case.begin();
    assert!(case.end(request));
    let next = case.begin();
    assert!(!case.end(request));
    case.scheduler.complete(request, 0);
    assert_eq!(case.scheduler.stats.stale_completions, 5);
    assert!(case.end(next));
    case.scheduler.complete(next, 0);
    assert_eq!(case.scheduler.stats.stale_completions, 6);
    assert_eq!(
        std::iter::from_fn(|| case.scheduler.take_parked()).count(),
        3
    );
    assert_eq!((case.scheduler.credits.used(), case.in_flight()), (0, 0));
}

#[test]
fn an_id_that_names_nothing_finds_no_operation() {
    let mut case = Case::new(4, 1);
    for word in [0, u64::from(u32::MAX), u64::MAX, 1 << 20, 1 << 63] {
        let id = OperationId { word, endpoint: 1 };
        assert_eq!(case.scheduler.take(id).map(|_| ()), Err(Unknown));
        assert_eq!(case.scheduler.interrupt(id, FailureKind::Cancelled), None);
        assert!(!case.end(word));
        case.scheduler.complete(word, 0);
    }
    assert_eq!(case.scheduler.stats.stale_completions, 5);
}

#[test]
fn a_small_put_behind_a_64_gib_put_posts_at_once_on_the_reserve() {
    let mut case = Case::new(64, 2);
    case.submit(Kind::Put, 0, &[64 << 30]);
    assert_eq!(
        case.pump().len(),
        56,
        "the long one takes all but the reserve"
    );
    let id = case.submit(Kind::Put, 1, &[8]);
    assert_eq!(case.pump(), [request_id(id.word, 0)]);
}

#[test]
fn the_bound_on_waiting_holds_with_many_peers_and_long_operations() {
    for (depth, count, queued) in [(16, 5, 3), (1, 3, 2), (64, 10, 1)] {
        let mut case = Case::new(depth, count);
        // Long operations at every peer, some of them waiting afresh.
        for _ in 0..queued {
            for peer in 0..count as usize {
                case.submit(Kind::Put, peer, &[64 << 30]);
            }
        }
        // One pump, so that streams exist as well.
        let mut outstanding = case.pump();
        let id = case.submit(Kind::Put, 0, &[8]);
        let mut posted = 0u64;
        let bound = 2 * u64::from(QUANTUM) * (queued + 1) * u64::from(count);
        'search: loop {
            assert!(!outstanding.is_empty());
            case.scheduler.complete(outstanding.remove(0), 0);
            for request in case.pump() {
                if request == request_id(id.word, 0) {
                    break 'search;
                }
                posted += 1;
                outstanding.push(request);
            }
        }
        assert!(
            posted <= bound,
            "{posted} requests before it, the bound is {bound}"
        );
    }
}

#[test]
fn a_stream_is_not_starved_by_a_flood_of_small_operations() {
    let mut case = Case::new(8, 2);
    let long = case.submit(Kind::Put, 0, &[1 << 30]);
    for _ in 0..1000 {
        case.submit(Kind::Put, 1, &[8]);
    }
    let mut order = vec![];
    while order.len() < 400 {
        order.extend(case.pump());
        let next = order[order.len() - case.scheduler.credits.used() as usize];
        case.scheduler.complete(next, 0);
    }
    let key = super::model::key;
    let of_long = order
        .iter()
        .filter(|&&request| key(request) == key(long.word));
    let of_long = of_long.count();
    assert!(of_long > 100, "only {of_long} of {} requests", order.len());
}

#[test]
fn a_list_of_200_gib_waits_without_being_cut() {
    let mut case = Case::new(64, 1);
    case.submit(Kind::Get, 0, &[100 << 30, 100 << 30]);
    assert_eq!(case.scheduler.snapshot().bytes, 200 << 30);
    assert_eq!(
        (
            case.scheduler.snapshot().waiting,
            case.scheduler.credits.used()
        ),
        (1, 0)
    );
}
