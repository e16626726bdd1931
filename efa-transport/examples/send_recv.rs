//! Messages: the client asks, the server answers, both from receive pools.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example send_recv`

mod common;

use anyhow::{Context, ensure};
use common::{PATIENCE, Side, meet, pair};
use efa_transport::{Config, Endpoint, PeerId, Send};

const QUESTIONS: u32 = 100;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        // The default receive pool takes the messages.
        let mut endpoint = Endpoint::new(&domain, Config::default())?;
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
        let send = endpoint.submit(Send::bytes(peer, question.as_bytes()).immediate(i))?;
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
        let i = question
            .immediate()
            .context("a question without a number")?;
        let answer = format!("{} bytes", question.len());
        // It has a buffer of the pool; this gives it back.
        drop(question);
        let send = endpoint.submit(Send::bytes(peer, answer.as_bytes()).immediate(i))?;
        endpoint.wait(send, PATIENCE)?.result?;
    }
    println!("server: answered {QUESTIONS} questions");
    Ok(())
}
