//! How fast the engine is beside plain loopback UDP of the same sizes, in the same minute. Run by
//! hand, optimised: `cargo test -p soft-efa --profile preload --lib -- --ignored --nocapture speed`

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::rig::*;

/// Messages a second, and processor time of this process for each.
struct Rate {
    per_second: f64,
    cost: Duration,
}

fn processor_time() -> Duration {
    // SAFETY: plain data that the call fills.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a local of the right type.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |t: libc::timeval| {
        Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn measured(messages: usize, run: impl FnOnce()) -> Rate {
    let (start, before) = (Instant::now(), processor_time());
    run();
    Rate {
        per_second: messages as f64 / start.elapsed().as_secs_f64(),
        cost: (processor_time() - before) / messages as u32,
    }
}

fn engine(net: u8, plan: &str, op: u8, len: usize, messages: usize) -> Rate {
    let mut p = Pair::with(net, plan, 1, QpOptions::default());
    let source = pattern(len, 1);
    let target = vec![0u8; len];
    let lkey = p.a.register(&source, ALL);
    let rkey = p.b.register(&target, ALL);
    let to = p.b();
    let entry = Entry::rdma(op, 1, to, (&source, lkey), (target.as_ptr(), rkey));
    p.qa.post(std::slice::from_ref(&entry));
    p.qa.send_cq.wait();
    let rate = measured(messages, || {
        let (mut posted, mut done) = (0, 0);
        while done < messages {
            let free = usize::from(DEPTH) - (posted - done);
            let batch = free.min(messages - posted);
            if batch >= 16 || (batch > 0 && batch == messages - posted) {
                p.qa.post(&vec![entry.clone(); batch]);
                posted += batch;
            }
            let before = done;
            while let Some(completion) = p.qa.send_cq.poll() {
                assert_eq!(completion[2], 0);
                done += 1;
            }
            if before == done {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    });
    for name in [
        "packets_sent",
        "packets_resent",
        "datagrams_sent",
        "acks_sent",
    ] {
        print!("{name} {}, ", p.a.counter(name) + p.b.counter(name));
    }
    println!();
    rate
}

fn udp(len: usize, messages: usize) -> Rate {
    let receiver = UdpSocket::bind("127.0.7.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.7.2:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    receiver
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    let part = len.min(61_440);
    let parts = len.div_ceil(part) * messages;
    let credit = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let got = credit.clone();
    measured(messages, || {
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while receiver.recv(&mut buffer).is_ok() {
                if got.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1 == parts {
                    break;
                }
            }
        });
        let bytes = vec![1; part];
        let ahead = if part > 1000 { 3 } else { 100 };
        for sent in 0..parts {
            // As much flow control as the socket needs to lose nothing.
            while sent > credit.load(std::sync::atomic::Ordering::Relaxed) + ahead {
                std::thread::yield_now();
            }
            sender.send(&bytes).unwrap();
        }
        thread.join().unwrap();
    })
}

#[test]
#[ignore = "a measurement, judged by nobody: `cargo test -p soft-efa -- --ignored --nocapture speed`"]
fn speed() {
    for (i, (len, messages)) in [(8, 200_000), (4096, 50_000), (1 << 20, 2000)]
        .into_iter()
        .enumerate()
    {
        let plain = udp(len, messages);
        println!(
            "{len} B: UDP {:.0}/s, {:?} each",
            plain.per_second, plain.cost
        );
        let ways = [
            ("write", "", 2),
            ("write by socket", "socket", 2),
            ("read", "", 1),
        ];
        for (j, (name, plan, op)) in ways.into_iter().enumerate() {
            let net = 140 + 8 * i as u8 + 2 * j as u8;
            let rate = engine(net, plan, op, len, messages);
            println!(
                "{len} B: {name} {:.0}/s, {:?} each: {:.2} of UDP's rate, {:.2} of its cost",
                rate.per_second,
                rate.cost,
                rate.per_second / plain.per_second,
                rate.cost.as_secs_f64() / plain.cost.as_secs_f64(),
            );
        }
    }
}
