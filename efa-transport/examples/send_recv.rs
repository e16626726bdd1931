//! Messages: the client asks, the server answers, both from receive pools.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example send_recv`

mod common;

use anyhow::{Context, ensure};
use common::{PATIENCE, Side, meet, pair};
use efa_transport::{Config, Endpoint, PeerId, ReceivePool};

const QUESTIONS: u32 = 100;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        // Buffers for messages, which the endpoint posts, and posts again when they were read.
        let config = Config {
            receive_pool: Some(ReceivePool {
                buffers: 128,
                ..ReceivePool::default()
            }),
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(&domain, config)?;
        // Nothing but the handshake needs the stream; it stays open until both are done.
        let (peer, _, _stream) = meet(&mut endpoint, stream, b"")?;
        match side {
            Side::Client => client(&mut endpoint, peer),
            Side::Server => server(&mut endpoint, peer),
        }
    })
}

fn client(endpoint: &mut Endpoint, peer: PeerId) -> anyhow::Result<()> {
    for i in 0..QUESTIONS {
        let question = format!("{i}, {}", "x".repeat(i as usize));
        // The bytes are copied at once. Short ones travel inside the request; longer ones
        // through a buffer.
        let send = endpoint.send_bytes(peer, question.as_bytes(), Some(i), 0)?;
        endpoint.wait(send, PATIENCE)?.result?;
    }
    // Messages overtake each other: the immediate data says which is which.
    let mut answered = vec![false; QUESTIONS as usize];
    for _ in 0..QUESTIONS {
        let answer = endpoint.wait_message(PATIENCE)?;
        let i = answer.immediate().context("an answer without a number")?;
        let bytes = format!("{i}, ").len() + i as usize;
        ensure!(std::str::from_utf8(&answer)? == format!("{bytes} bytes"));
        let twice = std::mem::replace(&mut answered[i as usize], true);
        ensure!(!twice, "question {i} was answered twice");
    }
    println!("client: {QUESTIONS} questions, {QUESTIONS} answers");
    Ok(())
}

fn server(endpoint: &mut Endpoint, peer: PeerId) -> anyhow::Result<()> {
    for _ in 0..QUESTIONS {
        let question = endpoint.wait_message(PATIENCE)?;
        ensure!(question.peer() == Some(peer), "a stranger asks");
        let i = question.immediate();
        let answer = format!("{} bytes", question.len());
        // It is lent from the pool; this gives it back.
        drop(question);
        let send = endpoint.send_bytes(peer, answer.as_bytes(), i, 0)?;
        endpoint.wait(send, PATIENCE)?.result?;
    }
    println!("server: answered {QUESTIONS} questions");
    Ok(())
}
