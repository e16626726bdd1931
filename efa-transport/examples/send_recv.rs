//! Messages: the client asks, the server answers, both from receive pools.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --example send_recv`

mod common;

use anyhow::{Context, ensure};
use common::{PATIENCE, Side, meet, pair};
use efa_transport::{Config, Endpoint, ReceivePool};

const QUESTIONS: u32 = 100;

fn main() -> anyhow::Result<()> {
    pair(|side, stream, domain| {
        let config = Config {
            receive_pool: Some(ReceivePool {
                buffers: 128,
                ..ReceivePool::default()
            }),
            ..Config::default()
        };
        let mut endpoint = Endpoint::new(&domain, config)?;
        let (peer, _, _stream) = meet(&mut endpoint, stream, b"")?;
        let mut done = Vec::new();

        match side {
            Side::Client => {
                // Short ones travel inside the request; longer ones through a buffer.
                for i in 0..QUESTIONS {
                    let question = format!("{i}, {}", "x".repeat(i as usize));
                    let send = endpoint.send_bytes(peer, question.as_bytes(), Some(i), 0)?;
                    endpoint.wait(send, PATIENCE)?.result?;
                }
                // Messages overtake each other: the immediate data says which is which.
                let mut answered = vec![false; QUESTIONS as usize];
                for _ in 0..QUESTIONS {
                    let answer = endpoint.wait_message(PATIENCE)?;
                    let i = answer.immediate().context("an answer without a number")?;
                    let text = std::str::from_utf8(&answer)?;
                    ensure!(text == format!("{} bytes", format!("{i}, ").len() + i as usize));
                    ensure!(!std::mem::replace(&mut answered[i as usize], true));
                }
                println!("client: {QUESTIONS} questions, {QUESTIONS} answers");
            }
            Side::Server => {
                for _ in 0..QUESTIONS {
                    let question = endpoint.wait_message(PATIENCE)?;
                    ensure!(question.peer() == Some(peer), "a stranger asks");
                    let i = question.immediate();
                    let answer = format!("{} bytes", question.len());
                    drop(question);
                    let send = endpoint.send_bytes(peer, answer.as_bytes(), i, 0)?;
                    endpoint.wait(send, PATIENCE)?.result?;
                    endpoint.poll(&mut done)?;
                }
                println!("server: answered {QUESTIONS} questions");
            }
        }
        Ok(())
    })
}
