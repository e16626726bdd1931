//! Requests and responses on tokio: a server that sleeps when idle, and a client whose thousand tasks share
//! one endpoint. The requests have 64 bytes to 8 KB; the client prints how long they took.
//!
//! `cargo xtask soft-efa -- cargo run -p efa-transport --features tokio --example rpc`

mod common;

use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use common::{Side, pattern};
use efa_transport::handshake::HandshakeConfig;
use efa_transport::tokio::Endpoint;
use efa_transport::{Config, Domain, Message, PeerId, Send};
use slab::Slab;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const TASKS: usize = 1000;
const REQUESTS: usize = 10;
const SHORTEST: usize = 64;
const LONGEST: usize = 8000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Finding each other blocks; what comes after it doesn't.
    let (side, stream, domain, peer_process) = tokio::task::spawn_blocking(common::find).await??;
    match side {
        Side::Server => server(domain, stream).await?,
        Side::Client => client(domain, stream).await?,
    }
    tokio::task::spawn_blocking(|| peer_process.finish()).await?
}

async fn meet(domain: &Domain, stream: TcpStream) -> anyhow::Result<(Endpoint, PeerId)> {
    let endpoint = Endpoint::new(domain, Config::default())?;
    stream.set_nonblocking(true)?;
    let stream = tokio::net::TcpStream::from_std(stream)?;
    let met = endpoint
        .shake_hands(stream, HandshakeConfig::default())
        .await?;
    Ok((endpoint, met.peer))
}

/// Answers each request with its bytes in reverse, until the client says that it is done.
async fn server(domain: Domain, stream: TcpStream) -> anyhow::Result<()> {
    let (endpoint, _) = meet(&domain, stream).await?;
    let mut answers = JoinSet::new();
    let mut served = 0;
    loop {
        let request = endpoint.recv().await?;
        if request.is_empty() {
            break;
        }
        let peer = request.peer().context("a stranger asks")?;
        let number = request.immediate().context("a request without a number")?;
        let answer: Vec<u8> = request.iter().rev().copied().collect();
        // Gives its buffer back to the pool: a server that keeps requests while it answers them holds its
        // clients back.
        drop(request);
        let sent = endpoint.submit(Send::bytes(peer, &answer).immediate(number));
        answers.spawn(sent);
        served += 1;
        while let Some(sent) = answers.try_join_next() {
            sent??; // a service would log it: it concerns that client alone
        }
    }
    while let Some(sent) = answers.join_next().await {
        sent??;
    }
    println!("server: {served} requests");
    endpoint.close(Duration::from_secs(10)).await?;
    Ok(())
}

/// An endpoint for requests: each task has its own answer, whatever the order in which they arrive.
#[derive(Clone)]
struct Requests {
    endpoint: Endpoint,
    server: PeerId,
    /// The immediate of a request, and of its answer, is its number here.
    waiting: Arc<Mutex<Slab<oneshot::Sender<Message>>>>,
}

impl Requests {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Slab<oneshot::Sender<Message>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer, which is not copied: it is a buffer of the receive pool.
    async fn ask(&self, request: &[u8]) -> anyhow::Result<Message> {
        let (sender, answer) = oneshot::channel();
        let number = self.waiting().insert(sender) as u32;
        let request = Send::bytes(self.server, request).immediate(number);
        if let Err(error) = self.endpoint.submit(request).await {
            self.waiting().try_remove(number as usize);
            return Err(error.into());
        }
        answer.await.context("the endpoint was closed")
    }

    /// Hands answers to those who wait for them, until it is dropped.
    async fn deliver(self) -> anyhow::Result<()> {
        loop {
            let answer = self.endpoint.recv().await?;
            let number = answer.immediate().context("an answer without a number")?;
            if let Some(task) = self.waiting().try_remove(number as usize) {
                // Whoever has asked may be gone.
                let _ = task.send(answer);
            }
        }
    }
}

async fn client(domain: Domain, stream: TcpStream) -> anyhow::Result<()> {
    let (endpoint, server) = meet(&domain, stream).await?;
    let waiting = Arc::default();
    let requests = Requests {
        endpoint,
        server,
        waiting,
    };
    let delivering = tokio::spawn(requests.clone().deliver());
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let requests = requests.clone();
        tasks.spawn(async move {
            let length = SHORTEST + task * (LONGEST - SHORTEST) / TASKS;
            let request = pattern(length, task as u8);
            let mut times = Vec::with_capacity(REQUESTS);
            for _ in 0..REQUESTS {
                let start = Instant::now();
                let answer = requests.ask(&request).await?;
                times.push(start.elapsed());
                ensure!(answer.iter().eq(request.iter().rev()), "another's answer");
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(task) = tasks.join_next().await {
        times.extend(task??);
    }
    times.sort();
    let at = |part: usize| times[(times.len() * part / 1000).min(times.len() - 1)];
    println!(
        "client: {} requests of {TASKS} tasks; median {:?}, 99 % {:?}, 99.9 % {:?}",
        times.len(),
        at(500),
        at(990),
        at(999)
    );
    requests.endpoint.send(server, b"").await?;
    delivering.abort();
    requests.endpoint.close(Duration::from_secs(10)).await?;
    Ok(())
}
