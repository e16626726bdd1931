//! A program with live objects: what it has, and how it asks for more.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use zerocopy::FromBytes;

use super::super::*;
use super::arena::{Arena, Pages};
use super::calls::{Answer, Command, Mutation, Route, call};
use crate::gid::gid_of;
use crate::uverbs::abi::{self, QPT_DRIVER, QPT_UD, cmd, efa, qp_mask};

/// Which one of the live objects; some numbers name none.
pub(super) type Pick = u16;

/// A queue pair and its mapped queues.
pub(super) struct QueuePair {
    handle: u32,
    pub(super) number: u16,
    pub(super) depth: u16,
    pub(super) posted: u16,
    pub(super) received: u16,
    pub(super) doorbells: Option<Pages>,
    pub(super) sends: Option<Pages>,
    pub(super) receives: Option<Pages>,
}

/// What a program has.
pub(super) struct World<'a> {
    pub(super) file: &'a File,
    pub(super) arena: &'a Arena,
    pub(super) memory: &'a OwnedFd,
    pds: Vec<u32>,
    pub(super) mrs: Vec<(u32, u32)>,
    cqs: Vec<u32>,
    pub(super) qps: Vec<QueuePair>,
    pub(super) ahs: Vec<(u32, u16)>,
    channels: Vec<RawFd>,
}

pub(super) fn pick<T>(all: &[T], which: Pick) -> Option<&T> {
    all.get(usize::from(which) % all.len().max(1))
}

/// How a queue pair is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) pd: Pick,
    pub(super) send_cq: Pick,
    pub(super) recv_cq: Pick,
    pub(super) ud: bool,
    pub(super) extended: bool,
    /// Logarithms of the queues' depths; the highest one stands for no queue.
    pub(super) depths: (u8, u8),
    pub(super) flags: u16,
}

impl<'a> World<'a> {
    pub(super) fn new(file: &'a File, arena: &'a Arena, memory: &'a OwnedFd) -> Self {
        Self {
            file,
            arena,
            memory,
            pds: Vec::new(),
            mrs: Vec::new(),
            cqs: Vec::new(),
            qps: Vec::new(),
            ahs: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Makes what a program has that is about to send something to itself.
    pub(super) fn make_ready(&mut self, route: Route) -> Option<()> {
        self.alloc_pd(route, &[])?;
        self.reg_mr((0, 0, 1 << 15, 7), route, &[])?;
        self.create_cq((64, false, 0, None), route, &[])?;
        self.create_ah((0, true), route, &[])?;
        let shape = Shape {
            pd: 0,
            send_cq: 0,
            recv_cq: 0,
            ud: false,
            extended: true,
            depths: (4, 4),
            flags: 1,
        };
        for which in 0..2 {
            self.create_qp(shape, route, &[])?;
            self.connect(which, route, &[])?;
            self.post_receives(which, &[], 8);
        }
        Some(())
    }

    fn pd(&self, which: Pick) -> u32 {
        pick(&self.pds, which).copied().unwrap_or(which.into())
    }

    fn cq(&self, which: Pick) -> u32 {
        pick(&self.cqs, which).copied().unwrap_or(which.into())
    }

    pub(super) fn qp(&self, which: Pick) -> u32 {
        pick(&self.qps, which).map_or(which.into(), |qp| qp.handle)
    }

    pub(super) fn alloc_pd(&mut self, route: Route, mutations: &[Mutation]) -> Option<()> {
        let command = Command {
            number: cmd::ALLOC_PD,
            core: vec![0; 8],
            response: 4,
            driver_response: 8,
            ..Command::default()
        };
        let answer = command.make(self.file, route, mutations)?;
        self.pds.extend(word(&answer, 0));
        Some(())
    }

    pub(super) fn create_channel(&mut self, route: Route, mutations: &[Mutation]) -> Option<()> {
        let command = Command {
            number: cmd::CREATE_COMP_CHANNEL,
            core: vec![0; 8],
            response: 4,
            ..Command::default()
        };
        let answer = command.make(self.file, route, mutations)?;
        self.channels.extend(word(&answer, 0).map(|fd| fd as RawFd));
        Some(())
    }

    pub(super) fn reg_mr(
        &mut self,
        (pd, at, length, flags): (Pick, u16, u32, u32),
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let start = self.arena.room() + u64::from(at);
        let length = u64::from(length).min(Arena::ROOM - u64::from(at));
        let pd = self.pd(pd);
        if route == Route::Method {
            let (mut lkey, mut rkey) = ([0u8; 4], [0u8; 4]);
            let mut attrs = vec![
                attr(0, 0, 0),
                handle(1, pd),
                number(3, start),
                number(4, start),
                number(5, length),
                number32(6, flags),
                room(9, &mut lkey),
                room(10, &mut rkey),
            ];
            if call(self.file, (7, 5), &mut attrs, mutations).is_ok() {
                let new = attrs.iter().find(|attr| attr.attr_id == 0);
                self.mrs
                    .extend(new.map(|attr| (attr.data as u32, u32::from_ne_bytes(lkey))));
            }
            return Some(());
        }
        let request = abi::RegMr {
            response: 0,
            start,
            length,
            hca_va: start,
            pd_handle: pd,
            access_flags: flags,
        };
        let mut command = Command {
            number: cmd::REG_MR,
            core: request.as_bytes().to_vec(),
            response: 12,
            ..Command::default()
        };
        command.spoil(mutations);
        let mut whole = command.core.clone();
        whole.resize(size_of::<abi::RegMr>(), 0);
        let Ok(spoilt) = abi::RegMr::read_from_bytes(&whole) else {
            return Some(());
        };
        if !self.arena.is_harmless(spoilt.start, spoilt.length) {
            return Some(());
        }
        let answer = command.make(self.file, route, &but_bytes(mutations))?;
        self.mrs.extend(word(&answer, 0).zip(word(&answer, 4)));
        Some(())
    }

    pub(super) fn reg_dmabuf(
        &mut self,
        (pd, offset, length, flags): (Pick, u32, u32, u32),
        mutations: &[Mutation],
    ) {
        let (mut lkey, mut rkey) = ([0u8; 4], [0u8; 4]);
        let mut attrs = vec![
            attr(0, 0, 0),
            handle(1, self.pd(pd)),
            number(2, offset.into()),
            number(3, length.into()),
            number(4, offset.into()),
            number32(5, self.memory.as_raw_fd() as u32),
            number32(6, flags),
            room(7, &mut lkey),
            room(8, &mut rkey),
        ];
        if call(self.file, (7, 4), &mut attrs, mutations).is_ok() {
            let new = attrs.iter().find(|attr| attr.attr_id == 0);
            self.mrs
                .extend(new.map(|attr| (attr.data as u32, u32::from_ne_bytes(lkey))));
        }
    }

    pub(super) fn create_cq(
        &mut self,
        (entries, small, flags, channel): (u32, bool, u8, Option<Pick>),
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let channel = channel.and_then(|which| pick(&self.channels, which).copied());
        let mut driver = vec![0u8; 16];
        driver[4] = if small { 16 } else { 32 };
        driver[8] = 1;
        driver[10] = flags;
        if route == Route::Method {
            let (mut cqe, mut response) = ([0u8; 4], [0u8; 40]);
            let mut attrs = vec![
                handle(0, 0),
                number32(1, entries),
                number(2, 0x77),
                number32(4, 0),
                room(6, &mut cqe),
                data(0x1000, driver.as_slice()),
                room(0x1001, &mut response),
            ];
            attrs.extend(channel.map(|fd| attr(3, 0, fd as u64)));
            // A ring in memory that the program brings.
            if flags & 0x80 != 0 {
                attrs.push(number(9, 1 << 16));
                attrs.push(attr(10, 0, self.memory.as_raw_fd() as u64));
                attrs.push(number(11, 0));
            }
            if call(self.file, (3, 0), &mut attrs, mutations).is_ok() {
                let new = attrs.iter().find(|attr| attr.attr_id == 0);
                self.cqs.extend(new.map(|attr| attr.data as u32));
            }
            return Some(());
        }
        let request = abi::CreateCq {
            user_handle: 0x77,
            cqe: entries,
            comp_channel: channel.unwrap_or(-1),
            ..abi::CreateCq::default()
        };
        let extended = abi::ExCreateCq {
            user_handle: 0x77,
            cqe: entries,
            comp_channel: channel.unwrap_or(-1),
            ..abi::ExCreateCq::default()
        };
        let command = if flags & 0x40 == 0 {
            Command {
                number: cmd::CREATE_CQ,
                core: request.as_bytes().to_vec(),
                response: 8,
                driver,
                driver_response: 40,
            }
        } else {
            Command {
                number: cmd::FLAG_EXTENDED | cmd::CREATE_CQ,
                core: extended.as_bytes().to_vec(),
                response: 16,
                driver,
                driver_response: 40,
            }
        };
        let answer = command.make(self.file, route, mutations)?;
        self.cqs.extend(word(&answer, 0));
        Some(())
    }

    pub(super) fn create_qp(
        &mut self,
        shape: Shape,
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let depth = |log: u8| if log > 8 { 0 } else { 1u32 << log };
        let (sends, receives) = (depth(shape.depths.0), depth(shape.depths.1));
        let cap = abi::QpCap {
            max_send_wr: sends,
            max_recv_wr: receives,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 0,
        };
        let core = abi::CreateQpCore {
            pd_handle: self.pd(shape.pd),
            send_cq_handle: self.cq(shape.send_cq),
            recv_cq_handle: self.cq(shape.recv_cq),
            cap,
            qp_type: if shape.ud { QPT_UD } else { QPT_DRIVER },
            ..abi::CreateQpCore::default()
        };
        let driver = abi::EfaCreateQp {
            rq_ring_size: receives * 16,
            sq_ring_size: sends * 64,
            driver_qp_type: efa::QP_DRIVER_TYPE_SRD,
            flags: shape.flags,
            ..abi::EfaCreateQp::default()
        };
        let (handle, number, made) = if route == Route::Method {
            let (mut cap_room, mut number_room, mut made) = ([0u8; 20], [0u8; 4], [0u8; 64]);
            let mut attrs = vec![
                attr(0, 0, 0),
                handle(2, core.pd_handle),
                handle(4, core.send_cq_handle),
                handle(5, core.recv_cq_handle),
                number(7, 1),
                data(8, cap.as_bytes()),
                number(9, core.qp_type.into()),
                room(13, &mut cap_room),
                room(14, &mut number_room),
                data(0x1000, driver.as_bytes()),
                room(0x1001, &mut made),
            ];
            call(self.file, (4, 0), &mut attrs, mutations).ok().map_or(
                Some((None, 0, made.to_vec())),
                |()| {
                    let new = attrs.iter().find(|attr| attr.attr_id == 0);
                    let number = u32::from_ne_bytes(number_room);
                    Some((new.map(|attr| attr.data as u32), number, made.to_vec()))
                },
            )?
        } else {
            let extended = abi::ExCreateQp {
                core,
                ..abi::ExCreateQp::default()
            };
            let mut command = Command {
                number: cmd::FLAG_EXTENDED | cmd::CREATE_QP,
                core: extended.as_bytes().to_vec(),
                response: 40,
                driver: driver.as_bytes().to_vec(),
                driver_response: 64,
            };
            if !shape.extended {
                command.number = cmd::CREATE_QP;
                command.core = abi::CreateQp { response: 0, core }.as_bytes().to_vec();
                command.response = 32;
            }
            let answer = command.make(self.file, route, mutations)?;
            let number = word(&answer, 4).unwrap_or(0);
            (word(&answer, 0), number, answer.driver)
        };
        let (Some(handle), Ok(made)) = (
            handle,
            abi::EfaCreateQpResp::read_from_prefix(&made).map(|(made, _)| made),
        ) else {
            return Some(());
        };
        let fd = self.file.fd;
        let page = |bytes: u32| u64::from(bytes).next_multiple_of(4096);
        self.qps.push(QueuePair {
            handle,
            number: number as u16,
            depth: sends as u16,
            posted: 0,
            received: 0,
            doorbells: Pages::map(fd, made.sq_db_mmap_key, 4096),
            sends: Pages::map(fd, made.llq_desc_mmap_key, page(sends * 64)),
            receives: Pages::map(fd, made.rq_mmap_key, page(receives * 16)),
        });
        Some(())
    }

    pub(super) fn create_ah(
        &mut self,
        (pd, known): (Pick, bool),
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let request = abi::CreateAh {
            pd_handle: self.pd(pd),
            attr: abi::AhAttr {
                dgid: if known {
                    gid_of(self.file.context.device.ip)
                } else {
                    [7; 16]
                },
                is_global: 1,
                port_num: 1,
                ..abi::AhAttr::default()
            },
            ..abi::CreateAh::default()
        };
        let command = Command {
            number: cmd::CREATE_AH,
            core: request.as_bytes().to_vec(),
            response: 4,
            driver_response: 8,
            ..Command::default()
        };
        let answer = command.make(self.file, route, mutations)?;
        let number = answer
            .driver
            .get(4..6)
            .map(|b| u16::from_ne_bytes([b[0], b[1]]));
        self.ahs.extend(word(&answer, 0).zip(number));
        Some(())
    }

    pub(super) fn modify(
        &mut self,
        (which, state, mask): (Pick, u8, u32),
        extended: bool,
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let base = abi::ModifyQp {
            qp_handle: self.qp(which),
            attr_mask: mask,
            qkey: 0x4242,
            qp_state: state,
            cur_qp_state: state,
            port_num: 1,
            rnr_retry: 3,
            ..abi::ModifyQp::default()
        };
        let mut command = Command {
            number: cmd::MODIFY_QP,
            core: base.as_bytes().to_vec(),
            ..Command::default()
        };
        if extended {
            let request = abi::ExModifyQp {
                base,
                ..abi::ExModifyQp::default()
            };
            command.number |= cmd::FLAG_EXTENDED;
            command.core = request.as_bytes().to_vec();
            command.response = 8;
        }
        command.make(self.file, route, mutations).map(drop)
    }

    /// The usual way up; a spoilt step may fail.
    pub(super) fn connect(
        &mut self,
        which: Pick,
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let init = qp_mask::STATE | qp_mask::PKEY_INDEX | qp_mask::PORT | qp_mask::QKEY;
        self.modify((which, 1, init), false, route, &[])?;
        self.modify((which, 2, qp_mask::STATE), false, route, mutations)?;
        self.modify(
            (which, 3, qp_mask::STATE | qp_mask::SQ_PSN),
            false,
            route,
            &[],
        )
    }

    pub(super) fn destroy(
        &mut self,
        (kind, which): (u8, Pick),
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let (number, object, method, target) = match kind {
            0 => (cmd::DEALLOC_PD, 1, 0, self.pd(which)),
            1 => {
                let mr = pick(&self.mrs, which).map_or(which.into(), |mr| mr.0);
                (cmd::DEREG_MR, 7, 1, mr)
            }
            2 => (cmd::DESTROY_CQ, 3, 1, self.cq(which)),
            3 => (cmd::DESTROY_QP, 4, 1, self.qp(which)),
            _ => {
                let ah = pick(&self.ahs, which).map_or(which.into(), |ah| ah.0);
                (cmd::DESTROY_AH, 6, 0, ah)
            }
        };
        if route == Route::Method {
            let mut response = [0u8; 8];
            let mut attrs = vec![handle(0, target)];
            if matches!(kind, 2 | 3) {
                attrs.push(room(1, &mut response));
            }
            let _ = call(self.file, (object, method), &mut attrs, mutations);
        } else {
            let events = abi::DestroyWithEvents {
                handle: target,
                ..abi::DestroyWithEvents::default()
            };
            let command = if matches!(kind, 2 | 3) {
                Command {
                    number,
                    core: events.as_bytes().to_vec(),
                    response: if kind == 2 { 8 } else { 4 },
                    ..Command::default()
                }
            } else {
                Command {
                    number,
                    core: target.to_ne_bytes().to_vec(),
                    ..Command::default()
                }
            };
            command.make(self.file, route, mutations)?;
        }
        self.forget_dead();
        Some(())
    }

    /// Keeps what still is what it was: the tables of the device say.
    fn forget_dead(&mut self) {
        use crate::uverbs::context::ObjectKind;
        let objects = self.file.context.objects();
        let is = |handle: u32, kind| objects.kind(handle) == Some(kind);
        self.pds.retain(|pd| is(*pd, ObjectKind::Pd));
        self.mrs.retain(|mr| is(mr.0, ObjectKind::Mr));
        self.cqs.retain(|cq| is(*cq, ObjectKind::Cq));
        self.qps.retain(|qp| is(qp.handle, ObjectKind::Qp));
        self.ahs.retain(|ah| is(ah.0, ObjectKind::Ah));
    }
}

/// A number in an answer, if there is one.
fn word(answer: &Answer, at: usize) -> Option<u32> {
    answer.result.ok()?;
    let bytes = answer.core.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// What is left to be done to a command whose parts are spoilt already.
fn but_bytes(mutations: &[Mutation]) -> Vec<Mutation> {
    let done = |m: &&Mutation| {
        !matches!(
            m,
            Mutation::Core(..)
                | Mutation::CoreLength(_)
                | Mutation::Driver(..)
                | Mutation::DriverLength(_)
                | Mutation::Room(_)
                | Mutation::DriverRoom(_)
        )
    };
    mutations.iter().filter(done).copied().collect()
}
