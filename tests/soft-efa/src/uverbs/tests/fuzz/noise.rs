//! Calls made of noise.

use proptest::prelude::*;

use super::super::*;
use crate::fuzz;

/// Where pointers of random calls lead: nowhere, or into a page that is there.
fn pointer(room: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0u64..2048).prop_map(move |offset| room + offset),
        1 => Just(0u64),
        1 => 1u64..5000,
        1 => Just(u64::MAX - 7),
        1 => Just(1u64 << 47),
    ]
}

fn attribute(room: u64) -> impl Strategy<Value = IoctlAttr> {
    let id = prop_oneof![8 => 0u16..16, 2 => 0x1000u16..0x1006, 1 => any::<u16>()];
    let len = prop_oneof![
        4 => Just(0u16),
        3 => Just(4u16),
        3 => Just(8u16),
        3 => 9u16..120,
        1 => any::<u16>().prop_map(|len| len % 2048),
    ];
    let value = prop_oneof![4 => 0u64..8, 4 => pointer(room), 1 => any::<u64>(), 1 => (0u64..40).prop_map(|v| v | 0xff)];
    let flags = prop_oneof![6 => Just(1u16), 3 => Just(0u16), 1 => any::<u16>()];
    let reserved = prop_oneof![12 => Just(0u16), 1 => any::<u16>()];
    (id, len, value, flags, reserved).prop_map(|(attr_id, len, data, flags, attr_data)| IoctlAttr {
        attr_id,
        len,
        flags,
        attr_data,
        data,
    })
}

/// Bytes that a request of any command could be made of: small numbers, mostly.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        6 => Just(0u32),
        3 => 0u32..5,
        2 => prop_oneof![Just(8u32), Just(16), Just(32), Just(64), Just(512), Just(1024), Just(4096)],
        1 => any::<u32>(),
    ];
    prop::collection::vec(word, 0..40).prop_map(|words| words.as_bytes().to_vec())
}

fn works(file: &File) {
    let pd = file.alloc_pd();
    let cq = file.create_cq(16, &plain_cq()).unwrap();
    file.ioctl(3, 1, &mut [handle(0, cq), room(1, &mut [0; 8])])
        .unwrap();
    file.ioctl(1, 0, &mut [handle(0, pd)]).unwrap();
}

#[derive(Debug, Clone)]
enum Ask {
    Ioctl {
        object: u16,
        method: u16,
        attrs: Vec<IoctlAttr>,
    },
    Invoke {
        command: u32,
        request: Vec<u8>,
        driver: Vec<u8>,
        response: u64,
        len: u16,
    },
    Write(Vec<u8>),
}

/// Commands but those that make descriptors, which nobody would close.
fn command() -> impl Strategy<Value = u32> {
    let extended = prop_oneof![Just(1u32), Just(18), Just(24), Just(26)];
    prop_oneof![
        8 => 0u32..42,
        3 => extended.prop_map(|command| command | 0x8000_0000),
        1 => any::<u32>(),
    ]
    .prop_filter("would make a descriptor", |command| {
        !matches!(command, 0 | 17)
    })
}

fn ask(page: u64) -> impl Strategy<Value = Ask> {
    let object = prop_oneof![8 => 0u16..9, 1 => 15u16..20];
    let method = prop_oneof![8 => 0u16..7, 1 => Just(0x1000u16)];
    let ioctl = (
        object,
        method,
        prop::collection::vec(attribute(page), 0..12),
    )
        .prop_map(|(object, method, attrs)| Ask::Ioctl {
            object,
            method,
            attrs,
        });
    let invoke = (command(), request(), request(), pointer(page), 0u16..400).prop_map(
        |(command, request, driver, response, len)| Ask::Invoke {
            command,
            request,
            driver,
            response,
            len,
        },
    );
    let write = (
        command(),
        any::<u16>(),
        0u16..100,
        pointer(page),
        request(),
        any::<bool>(),
    )
        .prop_map(|(command, odd, out_words, response, request, honest)| {
            let mut body = response.to_ne_bytes().to_vec();
            body.extend_from_slice(&request);
            let in_words = if honest {
                (body.len() / 4 + 2) as u16
            } else {
                odd % 64
            };
            let mut bytes = command.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&in_words.to_ne_bytes());
            bytes.extend_from_slice(&out_words.to_ne_bytes());
            bytes.extend_from_slice(&body);
            Ask::Write(bytes)
        });
    prop_oneof![ioctl, invoke, write]
}

impl Ask {
    fn on(&self, file: &File) {
        // Any answer is fine, as long as there is one.
        let _ = match self {
            // Methods that make descriptors are left to the tests that close them.
            Self::Ioctl { object: 16, .. } => Ok(()),
            Self::Ioctl {
                object,
                method,
                attrs,
            } => file.ioctl(*object, *method, &mut attrs.clone()),
            Self::Invoke {
                command,
                request,
                driver,
                response,
                len,
            } => file.ioctl(
                0,
                0,
                &mut [
                    number(2, (*command).into()),
                    data(0, request.as_slice()),
                    attr(1, (*len).into(), *response),
                    data(0x1000, driver.as_slice()),
                    attr(0x1001, 64, *response),
                ],
            ),
            Self::Write(bytes) => file.write(bytes),
        };
    }
}

#[test]
fn random_calls_are_answered_and_change_nothing_else() {
    // The room that answers go to; it lives to the end of the test.
    let page = vec![0u64; 1024];
    let bystander = File::opened();
    bystander.alloc_pd();
    bystander.create_cq(16, &plain_cq()).unwrap();
    let asks = prop::collection::vec(ask(page.as_ptr() as u64), 1..40);
    let name = "random_calls_are_answered_and_change_nothing_else";
    fuzz::run(name, &asks, |asks| {
        // A file of their own, which goes with everything that was made.
        let before = bystander.context.device.objects();
        let own = File::of(bystander.process);
        own.open();
        for ask in &asks {
            ask.on(&own);
        }
        works(&own);
        works(&bystander);
        drop(own);
        let after = bystander.context.device.objects();
        prop_assert_eq!(before, after, "something was left behind");
        Ok(())
    });
    drop(page);
}
