//! Cutting transfers into requests: lazy, pure, and with checked arithmetic.
//!
//! A transfer is a list of pieces, each a contiguous local range and the remote range
//! that it goes to or comes from. Every piece becomes requests of at most the device's
//! `max_rdma_size` bytes; a piece of zero bytes is one request, because a program that
//! asks for an empty transfer still wants to hear whether the peer accepts it. Nothing
//! here allocates in proportion to the size of a transfer: request `i` is computed when
//! it is needed, and can be computed again when its completion reports a failure.

use std::sync::Arc;

/// Why a transfer can't be cut into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkError {
    /// `address + length` is more than 64 bits hold.
    Local,
    /// The same on the remote side.
    Remote,
    /// The lengths of all pieces together are more than 64 bits hold.
    Total,
}

/// One contiguous part of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The number of the local memory.
    pub(crate) hold: u32,
    pub(crate) local: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) remote: u64,
    pub(crate) length: u64,
}

/// One request of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) local: u64,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    pub(crate) remote: u64,
    pub(crate) length: u32,
}

/// Pieces that were checked once, and that any number of operations share.
#[derive(Debug)]
pub(crate) struct List {
    pieces: Box<[Piece]>,
    /// The numbers of their memory, each once.
    holds: Box<[u32]>,
    /// Bytes in all.
    length: u64,
    /// Bytes of the longest.
    longest: u64,
}

impl List {
    pub(crate) fn new(pieces: Vec<Piece>) -> Result<Self, ChunkError> {
        let (mut length, mut longest) = (0u64, 0);
        for piece in &pieces {
            check(piece.local, piece.remote, piece.length)?;
            length = length.checked_add(piece.length).ok_or(ChunkError::Total)?;
            longest = longest.max(piece.length);
        }
        let mut holds: Vec<_> = pieces.iter().map(|piece| piece.hold).collect();
        holds.sort_unstable();
        holds.dedup();
        Ok(Self {
            pieces: pieces.into(),
            holds: holds.into(),
            length,
            longest,
        })
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The numbers of the memory, each once.
    pub(crate) fn holds(&self) -> &[u32] {
        &self.holds
    }

    /// Bytes in all.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

/// How many requests `length` bytes need at `max` bytes each.
pub(crate) fn requests(length: u64, max: u32) -> u64 {
    debug_assert!(max > 0);
    length.div_ceil(u64::from(max)).max(1)
}

/// A transfer's pieces and how far it has been posted.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Its own pieces, where it has no list.
    pieces: Vec<Piece>,
    list: Option<Arc<List>>,
    /// Index of each piece's first request, so that a request finds its piece. Empty where every piece
    /// is one request.
    first: Vec<u64>,
    /// Requests in all.
    total: u64,
    /// Bytes in all.
    length: u64,
    /// Next request to post.
    next: u64,
    /// The piece that holds `next`.
    piece: usize,
    max: u32,
}

impl Plan {
    /// An empty plan. Its vectors keep their capacity through
    /// [`clear`](Self::clear), which is what makes reuse free of allocations.
    pub(crate) fn new() -> Self {
        Self {
            pieces: Vec::new(),
            list: None,
            first: Vec::new(),
            total: 0,
            length: 0,
            next: 0,
            piece: 0,
            max: 1,
        }
    }

    /// Forgets the pieces. The caller has given their memory back.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.list = None;
        self.first.clear();
        self.total = 0;
        self.length = 0;
        self.next = 0;
        self.piece = 0;
    }

    /// Sets the largest request. Call it before the first [`push`](Self::push).
    pub(crate) fn set_max(&mut self, max: u32) {
        debug_assert!(self.pieces.is_empty());
        self.max = max.max(1);
    }

    /// Adds a piece.
    pub(crate) fn push(&mut self, piece: Piece) -> Result<(), ChunkError> {
        check(piece.local, piece.remote, piece.length)?;
        let length = self
            .length
            .checked_add(piece.length)
            .ok_or(ChunkError::Total)?;
        // Can't overflow: a piece of n bytes has at most max(n, 1) requests, pieces are
        // limited by memory, and the lengths together fit.
        let total = self
            .total
            .checked_add(requests(piece.length, self.max))
            .ok_or(ChunkError::Total)?;
        self.first.push(self.total);
        self.pieces.push(piece);
        self.total = total;
        self.length = length;
        Ok(())
    }

    /// Makes the pieces of a list those of this plan, which has none. Nothing is done for each of them
    /// unless one is longer than a request.
    pub(crate) fn share(&mut self, list: Arc<List>) -> Result<(), ChunkError> {
        debug_assert!(self.pieces.is_empty());
        self.total = list.pieces.len() as u64;
        if list.longest > u64::from(self.max) {
            self.total = 0;
            for piece in &list.pieces {
                self.first.push(self.total);
                let requests = requests(piece.length, self.max);
                self.total = self.total.checked_add(requests).ok_or(ChunkError::Total)?;
            }
        }
        self.length = list.length;
        self.list = Some(list);
        Ok(())
    }

    /// All pieces.
    #[inline]
    fn all(&self) -> &[Piece] {
        match &self.list {
            Some(list) => &list.pieces,
            None => &self.pieces,
        }
    }

    /// Index of a piece's first request.
    #[inline]
    fn first(&self, piece: usize) -> u64 {
        match self.first.is_empty() {
            true => piece as u64,
            false => self.first[piece],
        }
    }

    /// Requests in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes in all.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Index of the next request to post.
    pub(crate) fn position(&self) -> u64 {
        self.next
    }

    /// Requests not yet posted.
    pub(crate) fn left(&self) -> u64 {
        self.total - self.next
    }

    /// The next request and its index, and moves past it.
    #[inline]
    pub(crate) fn advance(&mut self) -> Option<(u64, Chunk)> {
        if self.next >= self.total {
            return None;
        }
        let index = self.next;
        if self.first.is_empty() {
            self.piece = index as usize;
        } else {
            let begins = |piece| self.first.get(piece).is_some_and(|&first| first <= index);
            while begins(self.piece + 1) {
                self.piece += 1;
            }
        }
        self.next += 1;
        Some((index, self.cut(self.piece, index)))
    }

    /// The number of the memory that the last request was cut from.
    pub(crate) fn hold(&self) -> Option<u32> {
        self.all().get(self.piece).map(|piece| piece.hold)
    }

    /// The numbers of the memory that was taken for it: of each piece, or of a list.
    pub(crate) fn holds(&self) -> impl Iterator<Item = u32> {
        let (listed, own) = match &self.list {
            Some(list) => (list.holds(), [].as_slice()),
            None => ([].as_slice(), &*self.pieces),
        };
        let own = own.iter().map(|piece| piece.hold);
        listed.iter().copied().chain(own)
    }

    /// Goes back to an earlier position, as if the requests since had not been posted.
    pub(crate) fn rewind(&mut self, position: u64) {
        debug_assert!(position <= self.next);
        self.next = position;
        self.piece = self.find(position);
    }

    /// Length of request `index`.
    #[inline]
    pub(crate) fn request_length(&self, index: u64) -> Option<u32> {
        (index < self.total).then(|| self.cut(self.find(index), index).length)
    }

    /// Where in the whole transfer request `index` begins, in bytes.
    pub(crate) fn offset(&self, index: u64) -> Option<u64> {
        if index >= self.total {
            return None;
        }
        let at = self.find(index);
        let before: u64 = self.all()[..at].iter().map(|piece| piece.length).sum();
        Some(before + (index - self.first(at)) * u64::from(self.max))
    }

    #[inline]
    fn find(&self, index: u64) -> usize {
        if self.first.is_empty() {
            return index as usize;
        }
        self.first
            .partition_point(|&first| first <= index)
            .saturating_sub(1)
    }

    #[inline]
    fn cut(&self, at: usize, index: u64) -> Chunk {
        let piece = &self.all()[at];
        // Within the piece's length, which was checked against both addresses.
        let offset = (index - self.first(at)) * u64::from(self.max);
        let length = (piece.length - offset).min(u64::from(self.max)) as u32;
        Chunk {
            local: piece.local + offset,
            lkey: piece.lkey,
            rkey: piece.rkey,
            remote: piece.remote + offset,
            length,
        }
    }
}

/// Whether both ends of a piece stay within 64 bits.
pub(crate) fn check(local: u64, remote: u64, length: u64) -> Result<(), ChunkError> {
    local.checked_add(length).ok_or(ChunkError::Local)?;
    remote.checked_add(length).ok_or(ChunkError::Remote)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(local: u64, remote: u64, length: u64) -> Piece {
        Piece {
            hold: 0,
            local,
            lkey: 1,
            rkey: 2,
            remote,
            length,
        }
    }

    fn plan(max: u32, pieces: &[(u64, u64, u64)]) -> Plan {
        let mut plan = Plan::new();
        plan.set_max(max);
        for &(local, remote, length) in pieces {
            plan.push(piece(local, remote, length)).unwrap();
        }
        plan
    }

    #[test]
    fn zero_bytes_are_one_request() {
        let mut plan = plan(4096, &[(100, 200, 0)]);
        assert_eq!(plan.total(), 1);
        let (index, chunk) = plan.advance().unwrap();
        assert_eq!(
            (index, chunk.length, chunk.local, chunk.remote),
            (0, 0, 100, 200)
        );
        assert!(plan.advance().is_none());
    }

    #[test]
    fn sizes_around_the_limit_split_as_expected() {
        for (length, want) in [
            (1, vec![1]),
            (4095, vec![4095]),
            (4096, vec![4096]),
            (4097, vec![4096, 1]),
            (8192, vec![4096, 4096]),
            (8191, vec![4096, 4095]),
        ] {
            let mut plan = plan(4096, &[(0, 0, length)]);
            let got: Vec<u32> = std::iter::from_fn(|| plan.advance())
                .map(|(_, chunk)| chunk.length)
                .collect();
            assert_eq!(got, want, "{length} bytes");
        }
    }

    #[test]
    fn the_largest_request_can_be_four_gigabytes_less_one() {
        let mut plan = plan(u32::MAX, &[(0, 0, u64::from(u32::MAX) + 1)]);
        assert_eq!(plan.advance().unwrap().1.length, u32::MAX);
        assert_eq!(plan.advance().unwrap().1.length, 1);
    }

    #[test]
    fn overflow_is_refused_and_named() {
        let mut plan = Plan::new();
        plan.set_max(4096);
        assert_eq!(plan.push(piece(u64::MAX, 0, 1)), Err(ChunkError::Local));
        assert_eq!(
            plan.push(piece(0, u64::MAX - 5, 6)),
            Err(ChunkError::Remote)
        );
        plan.push(piece(0, 0, u64::MAX)).unwrap();
        assert_eq!(plan.push(piece(0, 0, 1)), Err(ChunkError::Total));
    }

    #[test]
    fn two_hundred_gibibytes_take_no_memory_in_proportion() {
        let mut plan = plan(1 << 30, &[(0, 0, 200 << 30)]);
        assert_eq!(plan.total(), 200);
        assert_eq!(plan.pieces.capacity().max(4), 4);
        assert_eq!(std::iter::from_fn(|| plan.advance()).count(), 200);
    }

    proptest! {
        #[test]
        fn requests_cover_every_byte_once_and_in_place(
            max in 1u32..5000,
            lengths in prop::collection::vec(0u64..20_000, 1..12),
        ) {
            let pieces: Vec<_> = lengths.iter().enumerate()
                .map(|(i, &n)| (1_000_000 * (i as u64 + 1), 7_000_000 * (i as u64 + 1), n))
                .collect();
            let mut plan = plan(max, &pieces);
            let total: u64 = lengths.iter().sum();
            prop_assert_eq!(plan.length(), total);
            let mut seen = 0u64;
            let mut count = 0;
            let mut cursor = vec![0u64; lengths.len()];
            while let Some((index, chunk)) = plan.advance() {
                prop_assert_eq!(index, count);
                prop_assert_eq!(plan.request_length(index), Some(chunk.length));
                prop_assert_eq!(plan.offset(index), Some(seen));
                let at = (chunk.local / 1_000_000 - 1) as usize;
                prop_assert_eq!(chunk.local, 1_000_000 * (at as u64 + 1) + cursor[at]);
                prop_assert_eq!(chunk.remote, 7_000_000 * (at as u64 + 1) + cursor[at]);
                prop_assert!(chunk.length <= max);
                cursor[at] += u64::from(chunk.length);
                seen += u64::from(chunk.length);
                count += 1;
            }
            prop_assert_eq!(count, plan.total());
            prop_assert_eq!(cursor, lengths);
        }

        #[test]
        fn a_list_is_cut_as_its_pieces_are(
            max in 1u32..5000,
            lengths in prop::collection::vec(0u64..20_000, 1..12),
            back in 0u64..20,
        ) {
            let pieces: Vec<_> = lengths.iter().enumerate()
                .map(|(i, &n)| Piece { hold: i as u32 % 3, ..piece(1 << 40, i as u64, n) })
                .collect();
            let (mut own, mut shared) = (Plan::new(), Plan::new());
            own.set_max(max);
            shared.set_max(max);
            for &piece in &pieces {
                own.push(piece).unwrap();
            }
            shared.share(Arc::new(List::new(pieces.clone()).unwrap())).unwrap();
            prop_assert_eq!((own.total(), own.length()), (shared.total(), shared.length()));
            for index in 0..own.total() {
                prop_assert_eq!(own.request_length(index), shared.request_length(index));
                prop_assert_eq!(own.offset(index), shared.offset(index));
            }
            for _ in 0..2 {
                loop {
                    let (one, other) = (own.advance(), shared.advance());
                    prop_assert_eq!(one, other);
                    prop_assert_eq!(own.hold(), shared.hold());
                    if one.is_none() {
                        break;
                    }
                }
                let to = own.total().saturating_sub(back);
                own.rewind(to);
                shared.rewind(to);
            }
            let mut holds: Vec<_> = pieces.iter().map(|piece| piece.hold).collect();
            holds.sort_unstable();
            holds.dedup();
            prop_assert_eq!(shared.holds().collect::<Vec<_>>(), holds);
        }

        #[test]
        fn rewinding_gives_the_same_requests_again(
            max in 1u32..300,
            lengths in prop::collection::vec(0u64..2000, 1..6),
            back in 0u64..100,
        ) {
            let pieces: Vec<_> = lengths.iter().map(|&n| (0, 0, n)).collect();
            let mut plan = plan(max, &pieces);
            let all: Vec<_> = std::iter::from_fn(|| plan.advance()).collect();
            let to = plan.total().saturating_sub(back);
            plan.rewind(to);
            prop_assert_eq!(plan.left(), plan.total() - to);
            let again: Vec<_> = std::iter::from_fn(|| plan.advance()).collect();
            prop_assert_eq!(&all[to as usize..], &again[..]);
        }

        #[test]
        fn nothing_overflows_or_panics_on_any_numbers(
            local: u64, remote: u64, length: u64, max in 1u32..,
        ) {
            let mut plan = Plan::new();
            plan.set_max(max);
            if plan.push(piece(local, remote, length)).is_ok() {
                let last = plan.total() - 1;
                let n = plan.request_length(last).unwrap();
                prop_assert_eq!(plan.offset(last).unwrap() + u64::from(n), length);
            }
        }
    }
}
