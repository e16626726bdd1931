//! A call as a program would make it, over either interface, and the ways to spoil it.

use proptest::prelude::*;

use super::super::*;
use crate::uverbs::abi::cmd;

/// How a call reaches the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A command in the method that takes them.
    Invoke,
    /// A command that is written.
    Write,
    /// A method of its own, where there is one.
    Method,
}

/// What is done to a well-formed call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mutation {
    /// A byte of the core's part is another.
    Core(u16, u8),
    /// A byte of the driver's part is another.
    Driver(u16, u8),
    /// The core's part is longer or shorter.
    CoreLength(i8),
    /// The driver's part is longer or shorter.
    DriverLength(i8),
    /// There is less or more room for the answer.
    Room(i8),
    /// There is less or more room for the driver's answer.
    DriverRoom(i8),
    /// The answers would go where nothing is.
    NoRoom,
    /// An attribute is missing.
    Without(u8),
    /// An attribute is there twice.
    Twice(u8),
    /// An attribute's length is another.
    Length(u8, u16),
    /// An attribute's flags are others.
    Flags(u8, u16),
    /// A small or inline attribute carries another number.
    Number(u8, u64),
    /// The header's lengths are not those of the call.
    Header(i8),
}

pub(super) fn route() -> impl Strategy<Value = Route> {
    prop_oneof![Just(Route::Invoke), Just(Route::Write), Just(Route::Method)]
}

pub(super) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let byte = || prop_oneof![Just(0u8), Just(1), Just(2), Just(0xff), any::<u8>()];
    let step = || {
        prop_oneof![
            Just(-8i8),
            Just(-4),
            Just(-1),
            Just(1),
            Just(4),
            Just(8),
            any::<i8>()
        ]
    };
    let number = prop_oneof![
        0u64..8,
        Just(u64::MAX),
        Just(1 << 31),
        Just(1 << 32),
        any::<u64>()
    ];
    let mutation = prop_oneof![
        4 => (0u16..130, byte()).prop_map(|(at, with)| Mutation::Core(at, with)),
        4 => (0u16..30, byte()).prop_map(|(at, with)| Mutation::Driver(at, with)),
        1 => step().prop_map(Mutation::CoreLength),
        1 => step().prop_map(Mutation::DriverLength),
        1 => step().prop_map(Mutation::Room),
        1 => step().prop_map(Mutation::DriverRoom),
        1 => Just(Mutation::NoRoom),
        1 => (0u8..14).prop_map(Mutation::Without),
        1 => (0u8..14).prop_map(Mutation::Twice),
        1 => (0u8..14, 0u16..64).prop_map(|(which, len)| Mutation::Length(which, len)),
        1 => (0u8..14, any::<u16>()).prop_map(|(which, flags)| Mutation::Flags(which, flags)),
        2 => (0u8..14, number).prop_map(|(which, value)| Mutation::Number(which, value)),
        1 => step().prop_map(Mutation::Header),
    ];
    prop_oneof![
        5 => Just(Vec::new()),
        3 => prop::collection::vec(mutation, 1..3),
    ]
}

/// A place for an answer, between bytes that must stay as they are.
pub(super) struct Room {
    bytes: Vec<u8>,
    len: usize,
}

impl Room {
    const GUARD: usize = 64;
    const MARK: u8 = 0xa5;

    fn new(len: usize) -> Self {
        let mut bytes = vec![Self::MARK; len + 2 * Self::GUARD];
        bytes[Self::GUARD..Self::GUARD + len].fill(0);
        Self { bytes, len }
    }

    fn address(&mut self) -> u64 {
        self.bytes[Self::GUARD..].as_mut_ptr() as u64
    }

    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[Self::GUARD..Self::GUARD + self.len]
    }

    fn is_guarded(&self) -> bool {
        let (before, rest) = self.bytes.split_at(Self::GUARD);
        let fine = |part: &[u8]| part.iter().all(|byte| *byte == Self::MARK);
        fine(before) && fine(&rest[self.len..])
    }
}

/// A command with a fixed layout.
#[derive(Default)]
pub(super) struct Command {
    pub(super) number: u32,
    /// The core's part; it begins with the address of the answer where there is one.
    pub(super) core: Vec<u8>,
    pub(super) response: usize,
    pub(super) driver: Vec<u8>,
    pub(super) driver_response: usize,
}

/// What came of a call.
pub(super) struct Answer {
    pub(super) result: Result<(), i32>,
    pub(super) core: Vec<u8>,
    pub(super) driver: Vec<u8>,
}

fn resize(bytes: &mut Vec<u8>, by: i8) {
    let len = bytes.len().saturating_add_signed(by.into());
    // What is added is mostly what a newer library would add: zeros.
    bytes.resize(len, u8::from(by == 1));
}

fn grown(len: usize, by: i8) -> usize {
    len.saturating_add_signed(by.into())
}

/// Nothing is there.
const NOWHERE: u64 = 64;

impl Command {
    fn is_extended(&self) -> bool {
        self.number & cmd::FLAG_EXTENDED != 0
    }

    /// Whether the core's part begins with the address of the answer.
    fn has_address(&self) -> bool {
        self.response > 0 && !self.is_extended()
    }

    /// Changes the parts whose bytes are told apart by their place.
    pub(super) fn spoil(&mut self, mutations: &[Mutation]) {
        for mutation in mutations {
            match *mutation {
                Mutation::Core(at, with) => {
                    // The address of the answer is the room's, or nowhere.
                    let first = if self.has_address() { 8 } else { 0 };
                    if let Some(byte) = self.core.get_mut(first + usize::from(at)) {
                        *byte = with;
                    }
                }
                Mutation::Driver(at, with) => {
                    if let Some(byte) = self.driver.get_mut(usize::from(at)) {
                        *byte = with;
                    }
                }
                Mutation::CoreLength(by) => resize(&mut self.core, by),
                Mutation::DriverLength(by) => resize(&mut self.driver, by),
                Mutation::Room(by) => self.response = grown(self.response, by),
                Mutation::DriverRoom(by) => self.driver_response = grown(self.driver_response, by),
                _ => {}
            }
        }
    }

    /// Makes the call. `None` if something was written beside its room.
    pub(super) fn make(
        mut self,
        file: &File,
        route: Route,
        mutations: &[Mutation],
    ) -> Option<Answer> {
        self.spoil(mutations);
        if route == Route::Write {
            self.write(file, mutations)
        } else {
            self.invoke(file, mutations)
        }
    }

    fn invoke(self, file: &File, mutations: &[Mutation]) -> Option<Answer> {
        let (mut core, mut driver) = (Room::new(self.response), Room::new(self.driver_response));
        let nowhere = mutations.iter().any(|m| matches!(m, Mutation::NoRoom));
        let place = |room: &mut Room| if nowhere { NOWHERE } else { room.address() };
        let mut attrs = vec![number(2, self.number.into())];
        if !self.core.is_empty() {
            attrs.push(data(0, self.core.as_slice()));
        }
        if self.response > 0 {
            attrs.push(attr(1, self.response, place(&mut core)));
        }
        if !self.driver.is_empty() {
            attrs.push(data(0x1000, self.driver.as_slice()));
        }
        if self.driver_response > 0 {
            attrs.push(attr(0x1001, self.driver_response, place(&mut driver)));
        }
        let result = call(file, (0, 0), &mut attrs, mutations);
        (core.is_guarded() && driver.is_guarded()).then(|| Answer {
            result,
            core: core.get().to_vec(),
            driver: driver.get().to_vec(),
        })
    }

    fn write(mut self, file: &File, mutations: &[Mutation]) -> Option<Answer> {
        // Lengths are told in words of 4 or 8 bytes.
        let word = if self.is_extended() { 8 } else { 4 };
        for part in [&mut self.core, &mut self.driver] {
            part.resize(part.len().next_multiple_of(word), 0);
        }
        let words = |len: usize| (len / word) as u16;
        let (out, driver_out) = (
            self.response.next_multiple_of(word),
            self.driver_response.next_multiple_of(word),
        );
        let mut room = Room::new(out + driver_out);
        let nowhere = mutations.iter().any(|m| matches!(m, Mutation::NoRoom));
        let address = match room.len {
            0 => 0,
            _ if nowhere => NOWHERE,
            _ => room.address(),
        };
        let odd: i8 = mutations
            .iter()
            .find_map(|m| match m {
                Mutation::Header(by) => Some(*by),
                _ => None,
            })
            .unwrap_or(0);
        let odd = |words: u16| words.wrapping_add_signed(odd.into());
        let mut bytes = self.number.to_ne_bytes().to_vec();
        if self.is_extended() {
            bytes.extend_from_slice(&odd(words(self.core.len())).to_ne_bytes());
            bytes.extend_from_slice(&words(out).to_ne_bytes());
            bytes.extend_from_slice(&address.to_ne_bytes());
            bytes.extend_from_slice(&words(self.driver.len()).to_ne_bytes());
            bytes.extend_from_slice(&words(driver_out).to_ne_bytes());
            bytes.extend_from_slice(&[0; 4]);
        } else {
            if self.has_address() && self.core.len() >= 8 {
                self.core[..8].copy_from_slice(&address.to_ne_bytes());
            }
            let len = 8 + self.core.len() + self.driver.len();
            bytes.extend_from_slice(&odd(words(len)).to_ne_bytes());
            bytes.extend_from_slice(&words(out + driver_out).to_ne_bytes());
        }
        bytes.extend_from_slice(&self.core);
        bytes.extend_from_slice(&self.driver);
        let result = file.write(&bytes);
        let split = out.min(room.len);
        room.is_guarded().then(|| Answer {
            result,
            core: room.get()[..split].to_vec(),
            driver: room.get()[split..].to_vec(),
        })
    }
}

/// Makes an ioctl after spoiling its attributes.
pub(super) fn call(
    file: &File,
    (object, method): (u16, u16),
    attrs: &mut Vec<IoctlAttr>,
    mutations: &[Mutation],
) -> Result<(), i32> {
    let at = |which: u8, attrs: &[IoctlAttr]| usize::from(which) % attrs.len().max(1);
    let mut off = 0;
    for mutation in mutations {
        if attrs.is_empty() {
            break;
        }
        match *mutation {
            Mutation::Without(which) => drop(attrs.remove(at(which, attrs))),
            Mutation::Twice(which) => attrs.push(attrs[at(which, attrs)]),
            Mutation::Length(which, len) => {
                let at = at(which, attrs);
                let own = &mut attrs[at];
                // The buffers behind the attributes are as long as these say.
                let points = own.data >= 1 << 32;
                own.len = if points { len.min(own.len) } else { len % 9 };
            }
            Mutation::Flags(which, flags) => {
                let at = at(which, attrs);
                attrs[at].flags = flags;
            }
            Mutation::Number(which, value) => {
                let at = at(which, attrs);
                if attrs[at].len <= 8 && attrs[at].data < 1 << 32 {
                    attrs[at].data = value;
                }
            }
            Mutation::Header(by) => off = by,
            _ => {}
        }
    }
    let header = IoctlHeader {
        length: ((24 + 16 * attrs.len()) as u16).wrapping_add_signed(off.into()),
        object_id: object,
        method_id: method,
        num_attrs: attrs.len() as u16,
        driver_id: DRIVER_EFA,
        ..IoctlHeader::default()
    };
    file.ioctl_with(header, attrs)
}
