//! The messages of RDMA netlink's device interface (`rdma/rdma_netlink.h`), as the kernel answers
//! them.

use std::collections::BTreeMap;

use crate::gid::guid_of;
use crate::options::{Abi, Options};
use crate::stats;
use crate::sysfs::{UVERBS_BASE_MINOR, UVERBS_MAJOR, uverbs_name};

use super::super::abi::DRIVER_EFA;

/// A message's header: length, type, flags, sequence number, port.
const HEADER: usize = 16;

const F_REQUEST: u16 = 1;
const F_MULTI: u16 = 2;
const F_ACK: u16 = 4;
const F_DUMP: u16 = 0x300;
/// In an answer: the request is not repeated whole.
const F_CAPPED: u16 = 0x100;

const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
/// Types below are control messages.
const TYPE_MIN: u16 = 0x10;

/// The client number of the device interface; a type is a client and an operation.
const CLIENT_NLDEV: u16 = 5;

const GET: u16 = 1;
const PORT_GET: u16 = 5;
const SYS_GET: u16 = 6;
const RES_GET: u16 = 9;
const GET_CHARDEV: u16 = 15;
const STAT_GET: u16 = 17;
/// The last operation that there is.
const LAST: u16 = 28;

mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const SYS_NETNS_MODE: u16 = 66;
    pub const CHARDEV_TYPE: u16 = 69;
    pub const CHARDEV_NAME: u16 = 70;
    pub const CHARDEV_ABI: u16 = 71;
    pub const CHARDEV: u16 = 72;
    pub const UVERBS_DRIVER_ID: u16 = 73;
    pub const STAT_RES: u16 = 75;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub const DEV_DIM: u16 = 84;
    pub const SYS_COPY_ON_FORK: u16 = 93;
}

const NODE_UNSPECIFIED: u8 = 7;
const PORT_ACTIVE: u8 = 4;
const PORT_LINK_UP: u8 = 5;
/// The ABI of the `uverbs` device that the EFA driver states.
const EFA_ABI: u64 = 1;

/// Datagrams of a list are filled up to this; receivers have a page at least.
const FULL: usize = 3072;

/// What is asked, and by whom.
pub(super) struct Kernel<'a> {
    pub(super) options: &'a Options,
    /// The asking socket's number, which answers carry.
    pub(super) port: u32,
    /// Counts what lives on a device, by kind.
    pub(super) objects: &'a dyn Fn(&str) -> BTreeMap<String, u64>,
    /// What a device tells of its traffic.
    pub(super) stats: &'a dyn Fn(&str) -> stats::Values,
}

/// A message under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16, sequence: u32, port: u32) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        Self(bytes)
    }

    fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        put_attr(&mut self.0, kind, value);
        self
    }

    fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.attr(kind, &[value])
    }

    fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.attr(kind, &with_end(value))
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(aligned(self.0.len()), 0);
        self.0
    }
}

fn with_end(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

fn put_attr(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // Values are short: names and numbers, and tables of a few of them.
    let len = (4 + value.len()) as u16;
    out.extend(len.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(aligned(out.len()), 0);
}

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes of a request; the last of each kind counts.
#[derive(Default)]
struct Attrs<'a>(BTreeMap<u16, &'a [u8]>);

impl<'a> Attrs<'a> {
    /// Trailing bytes that make no attribute are ignored, as the kernel does here.
    fn parse(mut bytes: &'a [u8]) -> Self {
        let mut attrs = Self::default();
        while let (Some(len), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
            let len = usize::from(len);
            let Some(value) = bytes.get(4..len) else {
                break;
            };
            // The upper two bits are flags.
            attrs.0.insert(kind & 0x3fff, value);
            bytes = bytes.get(aligned(len)..).unwrap_or_default();
        }
        attrs
    }

    fn u32(&self, kind: u16) -> Result<u32, i32> {
        let value = self.0.get(&kind).ok_or(libc::EINVAL)?;
        u32_at(value, 0).ok_or(libc::ERANGE)
    }

    fn text(&self, kind: u16) -> Result<&'a [u8], i32> {
        let value = *self.0.get(&kind).ok_or(libc::EINVAL)?;
        Ok(value.split(|byte| *byte == 0).next().unwrap_or_default())
    }
}

/// A request's header, apart.
#[derive(Clone, Copy)]
struct Request<'a> {
    whole: &'a [u8],
    kind: u16,
    flags: u16,
    sequence: u32,
}

impl Request<'_> {
    fn operation(&self) -> u16 {
        self.kind & 0x3ff
    }

    fn is_dump(&self) -> bool {
        self.flags & F_DUMP != 0
    }
}

impl Kernel<'_> {
    /// The datagrams that answer one of the program's.
    pub(super) fn answer(&self, mut datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        while let (Some(len), Some(kind), Some(flags), Some(sequence)) = (
            u32_at(datagram, 0),
            u16_at(datagram, 4),
            u16_at(datagram, 6),
            u32_at(datagram, 8),
        ) {
            let len = len as usize;
            if len < HEADER {
                break;
            }
            let Some(whole) = datagram.get(..len) else {
                break;
            };
            let request = Request {
                whole,
                kind,
                flags,
                sequence,
            };
            self.one(request, &mut answers);
            datagram = datagram.get(aligned(len)..).unwrap_or_default();
        }
        answers
    }

    fn one(&self, request: Request<'_>, answers: &mut Vec<Vec<u8>>) {
        let asks = request.flags & F_REQUEST != 0 && request.kind >= TYPE_MIN;
        let result = if asks {
            self.asked(request, answers)
        } else {
            Ok(())
        };
        match result {
            // A list has its own end.
            Ok(()) if asks && request.is_dump() => {}
            Ok(()) if request.flags & F_ACK == 0 => {}
            Ok(()) => answers.push(self.acknowledge(request, 0)),
            Err(errno) => answers.push(self.acknowledge(request, errno)),
        }
    }

    fn acknowledge(&self, request: Request<'_>, errno: i32) -> Vec<u8> {
        let flags = if errno == 0 { F_CAPPED } else { 0 };
        let mut message = Message::new(TYPE_ERROR, flags, request.sequence, self.port);
        message.0.extend((-errno).to_ne_bytes());
        let repeated = if errno == 0 {
            &request.whole[..HEADER]
        } else {
            request.whole
        };
        message.0.extend(repeated);
        message.finish()
    }

    fn asked(&self, request: Request<'_>, answers: &mut Vec<Vec<u8>>) -> Result<(), i32> {
        if request.kind >> 10 != CLIENT_NLDEV {
            return Err(libc::EINVAL);
        }
        let attrs = Attrs::parse(&request.whole[HEADER..]);
        // Kernels that have no attribute ioctls don't know the newer requests either.
        let older = self.options.abi == Abi::Write;
        match (request.operation(), request.is_dump()) {
            (GET | RES_GET, true) => {
                let all: Vec<_> = (0..self.options.devices)
                    .map(|index| self.about(request, index))
                    .collect();
                self.list(request, all, answers);
            }
            (GET | RES_GET, false) => {
                let index = self.device(&attrs)?;
                answers.push(self.about(request, index));
            }
            (PORT_GET, true) => {
                let index = self.device(&attrs)?;
                self.list(request, vec![self.port(request, index)], answers);
            }
            (PORT_GET, false) => {
                let index = self.device(&attrs)?;
                if attrs.u32(attr::PORT_INDEX)? != 1 {
                    return Err(libc::EINVAL);
                }
                answers.push(self.port(request, index));
            }
            (SYS_GET, false) if !older => {
                let mut message = self.message(request);
                // Devices are seen in every network namespace, and memory stays registered in
                // the parent of a fork.
                message
                    .u8(attr::SYS_NETNS_MODE, 1)
                    .u8(attr::SYS_COPY_ON_FORK, 1);
                answers.push(message.finish());
            }
            (GET_CHARDEV, false) if !older => {
                answers.push(self.device_file(request, &attrs)?);
            }
            // Those of single objects would have a kind; the device has none.
            (STAT_GET, false) if !older && !attrs.0.contains_key(&attr::STAT_RES) => {
                let index = self.device(&attrs)?;
                if attrs.u32(attr::PORT_INDEX)? != 1 {
                    return Err(libc::EINVAL);
                }
                answers.push(self.statistics(request, index));
            }
            (SYS_GET | GET_CHARDEV, true) => return Err(libc::EINVAL),
            (1..=LAST, _) if !older => return Err(libc::EOPNOTSUPP),
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    fn message(&self, request: Request<'_>) -> Message {
        let flags = if request.is_dump() { F_MULTI } else { 0 };
        Message::new(request.kind, flags, request.sequence, self.port)
    }

    fn device(&self, attrs: &Attrs<'_>) -> Result<u32, i32> {
        let index = attrs.u32(attr::DEV_INDEX)?;
        if index < self.options.devices {
            Ok(index)
        } else {
            Err(libc::EINVAL)
        }
    }

    fn about(&self, request: Request<'_>, index: u32) -> Vec<u8> {
        let mut message = self.message(request);
        let name = Options::device_name(index);
        message
            .u32(attr::DEV_INDEX, index)
            .text(attr::DEV_NAME, &name);
        if request.operation() == RES_GET {
            message.attr(attr::RES_SUMMARY, &self.summary(&name));
            return message.finish();
        }
        let guid = u64::from_be_bytes(guid_of(self.options.ip(index)));
        message
            .u32(attr::PORT_INDEX, 1)
            .u64(attr::CAP_FLAGS, 0)
            .u64(attr::NODE_GUID, guid)
            .u64(attr::SYS_IMAGE_GUID, 0)
            .u8(attr::DEV_NODE_TYPE, NODE_UNSPECIFIED)
            .u8(attr::DEV_DIM, 0);
        message.finish()
    }

    fn summary(&self, device: &str) -> Vec<u8> {
        let counts = (self.objects)(device);
        let mut table = Vec::new();
        for (name, counted) in [
            ("pd", "pd"),
            ("cq", "cq"),
            ("qp", "qp"),
            ("cm_id", ""),
            ("mr", "mr"),
            ("ctx", "context"),
            ("srq", ""),
        ] {
            let count = counts.get(counted).copied().unwrap_or(0);
            let mut entry = Vec::new();
            put_attr(&mut entry, attr::RES_SUMMARY_ENTRY_NAME, &with_end(name));
            put_attr(
                &mut entry,
                attr::RES_SUMMARY_ENTRY_CURR,
                &count.to_ne_bytes(),
            );
            put_attr(&mut table, attr::RES_SUMMARY_ENTRY, &entry);
        }
        table
    }

    fn port(&self, request: Request<'_>, index: u32) -> Vec<u8> {
        let mut message = self.message(request);
        message
            .u32(attr::DEV_INDEX, index)
            .text(attr::DEV_NAME, &Options::device_name(index))
            .u32(attr::PORT_INDEX, 1)
            .u8(attr::PORT_STATE, PORT_ACTIVE)
            .u8(attr::PORT_PHYS_STATE, PORT_LINK_UP);
        message.finish()
    }

    fn statistics(&self, request: Request<'_>, index: u32) -> Vec<u8> {
        let name = Options::device_name(index);
        let mut table = Vec::new();
        for (counter, value) in stats::NAMES.iter().zip((self.stats)(&name)) {
            let mut entry = Vec::new();
            put_attr(
                &mut entry,
                attr::STAT_HWCOUNTER_ENTRY_NAME,
                &with_end(counter),
            );
            put_attr(
                &mut entry,
                attr::STAT_HWCOUNTER_ENTRY_VALUE,
                &value.to_ne_bytes(),
            );
            put_attr(&mut table, attr::STAT_HWCOUNTER_ENTRY, &entry);
        }
        let mut message = self.message(request);
        message
            .u32(attr::DEV_INDEX, index)
            .text(attr::DEV_NAME, &name)
            .u32(attr::PORT_INDEX, 1)
            .attr(attr::STAT_HWCOUNTERS, &table);
        message.finish()
    }

    /// Where a device's `uverbs` file is. There are no files of other kinds.
    fn device_file(&self, request: Request<'_>, attrs: &Attrs<'_>) -> Result<Vec<u8>, i32> {
        let kind = attrs.text(attr::CHARDEV_TYPE)?;
        let index = match self.device(attrs) {
            Ok(index) if kind == b"uverbs" => index,
            Err(_) if attrs.0.contains_key(&attr::DEV_INDEX) => return Err(libc::EINVAL),
            _ => return Err(libc::EOPNOTSUPP),
        };
        let minor = UVERBS_BASE_MINOR + index;
        // As the kernel packs numbers: the minor's low byte, the major, the rest of the minor.
        let number = (minor & 0xff) | (UVERBS_MAJOR << 8) | ((minor & !0xff) << 12);
        let mut message = self.message(request);
        message
            .u32(attr::UVERBS_DRIVER_ID, DRIVER_EFA)
            .u64(attr::CHARDEV, number.into())
            .u64(attr::CHARDEV_ABI, EFA_ABI)
            .text(attr::CHARDEV_NAME, &uverbs_name(index));
        Ok(message.finish())
    }

    /// Puts the messages of a list and its end into datagrams.
    fn list(&self, request: Request<'_>, messages: Vec<Vec<u8>>, answers: &mut Vec<Vec<u8>>) {
        let mut end = Message::new(TYPE_DONE, F_MULTI, request.sequence, self.port);
        end.0.extend(0i32.to_ne_bytes());
        let mut datagram = Vec::new();
        for message in messages.into_iter().chain([end.finish()]) {
            if !datagram.is_empty() && datagram.len() + message.len() > FULL {
                answers.push(std::mem::take(&mut datagram));
            }
            datagram.extend(message);
        }
        answers.push(datagram);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(options: &Options, datagram: &[u8]) -> Vec<Vec<u8>> {
        let counts = |device: &str| {
            assert_eq!(device, "efa_0");
            BTreeMap::from([("qp".to_owned(), 3)])
        };
        Kernel {
            options,
            port: 77,
            objects: &counts,
            stats: &|_| {
                let mut values = stats::Values::default();
                values[1] = 9;
                values
            },
        }
        .answer(datagram)
    }

    fn request(operation: u16, flags: u16, attrs: &[u8]) -> Vec<u8> {
        let mut message = Message::new(CLIENT_NLDEV << 10 | operation, flags, 9, 0);
        message.0.extend(attrs);
        message.finish()
    }

    const INDEX_0: [u8; 8] = [8, 0, 1, 0, 0, 0, 0, 0];
    const PORT_1: [u8; 8] = [8, 0, 3, 0, 1, 0, 0, 0];

    #[cfg(target_endian = "little")]
    #[test]
    fn a_port_is_described_by_these_bytes() {
        let asked = request(PORT_GET, F_REQUEST, &[INDEX_0, PORT_1].concat());
        let expected = [
            &[60, 0, 0, 0, 5, 20, 0, 0, 9, 0, 0, 0, 77, 0, 0, 0][..],
            &INDEX_0,
            &[10, 0, 2, 0, b'e', b'f', b'a', b'_', b'0', 0, 0, 0],
            &PORT_1,
            &[5, 0, 12, 0, 4, 0, 0, 0],
            &[5, 0, 13, 0, 5, 0, 0, 0],
        ]
        .concat();
        assert_eq!(answers(&Options::default(), &asked), [expected]);
    }

    #[test]
    fn a_list_has_every_device_and_an_end() {
        let options = Options {
            devices: 32,
            ..Options::default()
        };
        let datagrams = answers(&options, &request(GET, F_REQUEST | F_DUMP | F_ACK, &[]));
        assert!(datagrams.len() > 1 && datagrams.iter().all(|one| one.len() <= FULL));
        let mut kinds = Vec::new();
        let mut rest = &datagrams.concat()[..];
        while let Some(len) = u32_at(rest, 0) {
            assert_eq!(u16_at(rest, 6), Some(F_MULTI));
            kinds.push(u16_at(rest, 4).unwrap());
            rest = &rest[aligned(len as usize)..];
        }
        assert_eq!(kinds.len(), 33);
        assert_eq!(kinds.last(), Some(&TYPE_DONE));
    }

    fn errno(answer: &[u8]) -> i32 {
        assert_eq!(u16_at(answer, 4), Some(TYPE_ERROR));
        -(u32_at(answer, HEADER).unwrap() as i32)
    }

    #[test]
    fn mistakes_are_answered_with_their_errno() {
        let options = Options::default();
        let of = |datagram: &[u8]| errno(answers(&options, datagram).last().unwrap());
        assert_eq!(of(&request(GET, F_REQUEST, &[])), libc::EINVAL);
        let beyond = [8, 0, 1, 0, 1, 0, 0, 0];
        assert_eq!(of(&request(GET, F_REQUEST, &beyond)), libc::EINVAL);
        assert_eq!(of(&request(200, F_REQUEST, &INDEX_0)), libc::EINVAL);
        assert_eq!(of(&request(10, F_REQUEST, &INDEX_0)), libc::EOPNOTSUPP);
        let short = [5, 0, 1, 0, 0, 0, 0, 0];
        assert_eq!(of(&request(GET, F_REQUEST, &short)), libc::ERANGE);
        let mut cm = Vec::new();
        put_attr(&mut cm, attr::CHARDEV_TYPE, b"rdma_cm\0");
        assert_eq!(of(&request(GET_CHARDEV, F_REQUEST, &cm)), libc::EOPNOTSUPP);
        // An acknowledgement is the error 0.
        assert_eq!(of(&request(GET, F_REQUEST | F_ACK, &INDEX_0)), 0);
        assert_eq!(answers(&options, &request(GET, 0, &[])), [[0u8; 0]; 0]);
    }

    #[test]
    fn older_kernels_know_no_device_files() {
        let options = Options {
            abi: Abi::Write,
            ..Options::default()
        };
        let mut attrs = INDEX_0.to_vec();
        put_attr(&mut attrs, attr::CHARDEV_TYPE, b"uverbs\0");
        let asked = request(GET_CHARDEV, F_REQUEST, &attrs);
        assert_eq!(errno(&answers(&options, &asked)[0]), libc::EINVAL);
        let known = &answers(&Options::default(), &asked)[0];
        assert_eq!(u16_at(known, 4), Some(CLIENT_NLDEV << 10 | GET_CHARDEV));
    }

    #[test]
    fn live_objects_are_counted() {
        let asked = request(RES_GET, F_REQUEST, &INDEX_0);
        let answer = &answers(&Options::default(), &asked)[0];
        let entry = [b"qp\0\0".as_slice(), &[12, 0, 18, 0], &3u64.to_ne_bytes()].concat();
        assert!(answer.windows(entry.len()).any(|at| at == entry));
    }

    #[test]
    fn traffic_is_told_by_the_drivers_names() {
        let asked = request(STAT_GET, F_REQUEST, &[INDEX_0, PORT_1].concat());
        let answer = &answers(&Options::default(), &asked)[0];
        let entry = [
            b"tx_pkts\0".as_slice(),
            &[12, 0, 83, 0],
            &9u64.to_ne_bytes(),
        ]
        .concat();
        assert!(answer.windows(entry.len()).any(|at| at == entry));
        let no_port = &answers(&Options::default(), &request(STAT_GET, F_REQUEST, &INDEX_0))[0];
        assert_eq!(errno(no_port), libc::EINVAL);
    }

    #[test]
    fn cut_and_random_bytes_are_answered_without_harm() {
        let whole = request(PORT_GET, F_REQUEST | F_ACK, &[INDEX_0, PORT_1].concat());
        for cut in 0..whole.len() {
            answers(&Options::default(), &whole[..cut]);
        }
        use proptest::prelude::*;
        proptest!(|(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), operation in 0u16..40)| {
            let asked = request(operation, F_REQUEST | F_ACK, &bytes);
            answers(&Options::default(), &asked);
            bytes.extend(&asked);
            answers(&Options::default(), &bytes);
        });
    }
}
