//! What a program asks about its objects.

use zerocopy::IntoBytes;

use super::super::*;
use super::calls::{Command, Mutation, Route, call};
use super::world::{Pick, World, pick};
use crate::uverbs::abi::{self, cmd};

impl World<'_> {
    pub(super) fn query_qp(
        &mut self,
        (which, mask): (Pick, u32),
        route: Route,
        mutations: &[Mutation],
    ) -> Option<()> {
        let request = abi::QueryQp {
            response: 0,
            qp_handle: self.qp(which),
            attr_mask: mask,
        };
        let command = Command {
            number: cmd::QUERY_QP,
            core: request.as_bytes().to_vec(),
            response: 128,
            ..Command::default()
        };
        command.make(self.file, route, mutations).map(drop)
    }

    pub(super) fn query_device(&mut self, route: Route, mutations: &[Mutation]) -> Option<()> {
        let command = Command {
            number: cmd::FLAG_EXTENDED | cmd::QUERY_DEVICE,
            core: vec![0; 8],
            response: 304,
            driver_response: 24,
            ..Command::default()
        };
        command.make(self.file, route, mutations).map(drop)
    }

    /// Questions about the port that have methods of their own.
    pub(super) fn query_port(&mut self, method: u16, mutations: &[Mutation]) {
        let (mut first, mut second) = ([0u8; 64], [0u8; 64]);
        let mut attrs = match method {
            2 => vec![number(0, 1), room(1, &mut first)],
            5 => vec![
                number(0, 32),
                number32(1, 0),
                room(2, &mut first),
                room(3, &mut second),
            ],
            6 => vec![
                number(0, 1),
                number(1, 0),
                number32(2, 0),
                room(3, &mut first),
            ],
            7 => vec![number(0, 1), room(1, &mut first[..8])],
            _ => vec![number(0, 7), room(1, &mut first[..4]), room(2, &mut second)],
        };
        let _ = call(self.file, (0, method), &mut attrs, mutations);
    }

    pub(super) fn query_mr(&mut self, which: Pick, own: bool, mutations: &[Mutation]) {
        let mr = pick(&self.mrs, which).map_or(which.into(), |mr| mr.0);
        let mut rooms = [[0u8; 8]; 4];
        let [a, b, c, d] = &mut rooms;
        let mut attrs = if own {
            vec![
                handle(0x1000, mr),
                room(0x1001, &mut a[..2]),
                room(0x1002, &mut b[..2]),
                room(0x1003, &mut c[..2]),
                room(0x1004, &mut d[..2]),
            ]
        } else {
            vec![
                handle(0, mr),
                room(1, &mut a[..4]),
                room(2, &mut b[..4]),
                room(3, c),
                room(4, d),
            ]
        };
        let method = if own { 0x1000 } else { 3 };
        let _ = call(self.file, (7, method), &mut attrs, mutations);
    }
}
