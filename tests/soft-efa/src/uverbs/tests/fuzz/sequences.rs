//! Sequences of calls such as programs make, some of them spoilt, on objects that are in use.

use std::os::fd::{FromRawFd, OwnedFd};

use proptest::prelude::*;

use super::super::*;
use super::arena::Arena;
use super::calls::{Mutation, Route, mutations, route};
use super::world::{Pick, Shape, World};
use crate::fuzz;
use crate::uverbs::abi::access;

#[derive(Clone, Debug)]
enum What {
    AllocPd,
    CreateChannel,
    RegMr(Pick, u16, u32, u32),
    RegDmabuf(Pick, u32, u32, u32),
    CreateCq(u32, bool, u8, Option<Pick>),
    CreateQp(Shape),
    CreateAh(Pick, bool),
    Modify(Pick, u8, u32, bool),
    Connect(Pick),
    QueryQp(Pick, u32),
    QueryDevice,
    QueryPort(u16),
    QueryMr(Pick, bool),
    Destroy(u8, Pick),
    Post(Pick, u8, Vec<(u8, u32)>, u8),
    PostReceives(Pick, Vec<(u8, u32)>, u8),
    Scribble(Pick, u8, u16, u32),
}

#[derive(Clone, Debug)]
struct Step {
    what: What,
    route: Route,
    mutations: Vec<Mutation>,
}

fn flags() -> impl Strategy<Value = u32> {
    let good = access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE;
    prop_oneof![6 => Just(good), 2 => 0u32..8, 1 => any::<u32>()]
}

fn shape() -> impl Strategy<Value = Shape> {
    let depth = || prop_oneof![4 => 0u8..9, 1 => Just(9u8)];
    let flags = prop_oneof![4 => Just(0u16), 2 => Just(1u16), 1 => any::<u16>()];
    (
        any::<[Pick; 3]>(),
        prop::bool::weighted(0.2),
        any::<bool>(),
        (depth(), depth()),
        flags,
    )
        .prop_map(
            |([pd, send_cq, recv_cq], ud, extended, depths, flags)| Shape {
                pd,
                send_cq,
                recv_cq,
                ud,
                extended,
                depths,
                flags,
            },
        )
}

fn what() -> impl Strategy<Value = What> {
    let small = || prop_oneof![5 => 0u32..70_000, 1 => any::<u32>()];
    let entries = prop_oneof![6 => (0u32..10).prop_map(|log| 1 << log), 1 => any::<u32>()];
    let cq_flags = prop_oneof![4 => prop::sample::select(vec![0u8, 1, 2, 3, 0x40, 0x41, 0x80]), 1 => any::<u8>()];
    let mask = || prop_oneof![3 => 0u32..1 << 21, 1 => any::<u32>(), 2 => Just(0x71u32), 2 => Just(0x1_0001u32)];
    let words = || prop::collection::vec((any::<u8>(), prop_oneof![0u32..3, small()]), 0..3);
    let bell = prop_oneof![3 => 0u32..70, 1 => any::<u32>()];
    prop_oneof![
        3 => Just(What::AllocPd),
        1 => Just(What::CreateChannel),
        4 => (any::<Pick>(), any::<u16>(), small(), flags())
            .prop_map(|(pd, at, len, flags)| What::RegMr(pd, at, len, flags)),
        1 => (any::<Pick>(), small(), small(), flags())
            .prop_map(|(pd, at, len, flags)| What::RegDmabuf(pd, at, len, flags)),
        4 => (entries, any::<bool>(), cq_flags, any::<Option<Pick>>())
            .prop_map(|(entries, small, flags, channel)| What::CreateCq(entries, small, flags, channel)),
        5 => shape().prop_map(What::CreateQp),
        3 => (any::<Pick>(), prop::bool::weighted(0.9)).prop_map(|(pd, known)| What::CreateAh(pd, known)),
        2 => (any::<Pick>(), 0u8..9, mask(), any::<bool>())
            .prop_map(|(qp, state, mask, extended)| What::Modify(qp, state, mask, extended)),
        5 => any::<Pick>().prop_map(What::Connect),
        1 => (any::<Pick>(), mask()).prop_map(|(qp, mask)| What::QueryQp(qp, mask)),
        1 => Just(What::QueryDevice),
        1 => prop::sample::select(vec![1u16, 2, 5, 6, 7]).prop_map(What::QueryPort),
        1 => (any::<Pick>(), any::<bool>()).prop_map(|(mr, own)| What::QueryMr(mr, own)),
        3 => (0u8..5, any::<Pick>()).prop_map(|(kind, which)| What::Destroy(kind, which)),
        6 => (any::<Pick>(), prop_oneof![4 => 0u8..3, 1 => any::<u8>()], words(), 0u8..9)
            .prop_map(|(qp, op, changes, count)| What::Post(qp, op, changes, count)),
        2 => (any::<Pick>(), words(), 0u8..9)
            .prop_map(|(qp, changes, count)| What::PostReceives(qp, changes, count)),
        2 => (any::<Pick>(), 0u8..3, any::<u16>(), bell)
            .prop_map(|(qp, place, at, value)| What::Scribble(qp, place, at, value)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (what(), route(), mutations()).prop_map(|(what, route, mutations)| Step {
        what,
        route,
        mutations,
    })
}

impl Step {
    /// `None` if something was written beside the room for the answer.
    fn take(&self, world: &mut World<'_>) -> Option<()> {
        let (route, mutations) = (self.route, &*self.mutations);
        match self.what {
            What::AllocPd => world.alloc_pd(route, mutations)?,
            What::CreateChannel => world.create_channel(route, mutations)?,
            What::RegMr(pd, at, len, flags) => {
                world.reg_mr((pd, at, len, flags), route, mutations)?;
            }
            What::RegDmabuf(pd, at, len, flags) => {
                world.reg_dmabuf((pd, at, len, flags), mutations)
            }
            What::CreateCq(entries, small, flags, channel) => {
                world.create_cq((entries, small, flags, channel), route, mutations)?;
            }
            What::CreateQp(shape) => world.create_qp(shape, route, mutations)?,
            What::CreateAh(pd, known) => world.create_ah((pd, known), route, mutations)?,
            What::Modify(qp, state, mask, extended) => {
                world.modify((qp, state, mask), extended, route, mutations)?;
            }
            What::Connect(qp) => world.connect(qp, route, mutations)?,
            What::QueryQp(qp, mask) => world.query_qp((qp, mask), route, mutations)?,
            What::QueryDevice => world.query_device(route, mutations)?,
            What::QueryPort(method) => world.query_port(method, mutations),
            What::QueryMr(mr, own) => world.query_mr(mr, own, mutations),
            What::Destroy(kind, which) => world.destroy((kind, which), route, mutations)?,
            What::Post(qp, op, ref changes, count) => world.post(qp, op, changes, count),
            What::PostReceives(qp, ref changes, count) => world.post_receives(qp, changes, count),
            What::Scribble(qp, place, at, value) => world.scribble((qp, place), at, value),
        }
        Some(())
    }
}

/// A file that stands in for memory of another device.
fn file_in_memory() -> OwnedFd {
    // SAFETY: the name is a C string, and the descriptor that is returned is nobody else's.
    let fd =
        unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC)) };
    let file = std::fs::File::from(fd);
    file.set_len(1 << 17).unwrap();
    file.into()
}

/// Closes what the sequence has not closed: channels and files of events.
fn close_rest(process: &Process, but: &File) {
    for (fd, kind) in process.fds.all() {
        if fd != but.fd && !matches!(kind, Kind::Device(_)) {
            drop(kind);
            process.take_back(fd);
        }
    }
}

#[test]
fn spoilt_sequences_write_into_their_answers_and_leave_nothing_behind() {
    let bystander = File::opened();
    let process = bystander.process;
    let (arena, memory) = (Arena::new(), file_in_memory());
    // Half of them begin with two queue pairs that can reach one another.
    let start = prop::option::of(route());
    let steps = (start, prop::collection::vec(step(), 1..60));
    let name = "spoilt_sequences_write_into_their_answers_and_leave_nothing_behind";
    fuzz::run(name, &steps, |(start, steps)| {
        let before = bystander.context.device.objects();
        let own = File::of(process);
        own.open();
        let mut world = World::new(&own, &arena, &memory);
        if let Some(route) = start {
            prop_assert!(world.make_ready(route).is_some());
        }
        for (index, step) in steps.iter().enumerate() {
            let fine = step.take(&mut world);
            prop_assert!(fine.is_some(), "step {} wrote beside its room", index);
        }
        drop(world);
        drop(own);
        close_rest(process, &bystander);
        prop_assert!(
            arena.is_guarded(),
            "memory that was not registered was written"
        );
        let after = bystander.context.device.objects();
        prop_assert_eq!(before, after, "something was left behind");
        bystander.alloc_pd();
        let pd = bystander.ioctl(1, 0, &mut [handle(0, 0)]);
        prop_assert_eq!(pd, Ok(()));
        Ok(())
    });
}
