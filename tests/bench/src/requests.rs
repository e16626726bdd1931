//! The time of a request and its response, by who waits for them.
//!
//! Client and server share one thread in each of the three ways, so that they differ in nothing but how
//! they wait: a loop that polls both endpoints; tasks of tokio with an endpoint each; and tasks that talk
//! through channels to an actor, which owns an endpoint and polls it.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use efa_transport::{Endpoint, Message, PeerId, Send};
use efa_verbs::DataPath;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::layer;

/// Each way has its turn so often; the median of its medians counts.
const TURNS: usize = 7;
const LENGTH: usize = 64;

/// Two endpoints that know each other.
struct Pair {
    client: Endpoint,
    server: Endpoint,
    to_server: PeerId,
    to_client: PeerId,
}

impl Pair {
    fn new() -> Result<Self> {
        let (domain, mut client) = layer::talking_endpoint(None)?;
        let (_, mut server) = layer::talking_endpoint(Some(&domain))?;
        ensure!(client.limits().path == DataPath::Libefa);
        Ok(Self {
            to_server: client.connect(server.address())?,
            to_client: server.connect(client.address())?,
            client,
            server,
        })
    }
}

/// Prints the median times.
pub fn measure(count: usize) -> Result<()> {
    ensure!(count > 0, "no requests");
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut medians = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        medians[0].push(spinning(count)?);
        medians[1].push(futures(&runtime, count)?);
        medians[2].push(actors(&runtime, count)?);
    }
    let [spinning, futures, actors] = medians.map(median);
    println!(r#"{{"spinning":{spinning:.9},"futures":{futures:.9},"actors":{actors:.9}}}"#);
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn spinning(count: usize) -> Result<f64> {
    let Pair {
        mut client,
        mut server,
        to_server,
        to_client,
    } = Pair::new()?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        client.send(to_server, &[1; LENGTH])?;
        loop {
            server.poll(drop)?;
            if let Some(message) = server.next_message() {
                server.send(to_client, &message)?;
            }
            client.poll(drop)?;
            if client.next_message().is_some() {
                break;
            }
        }
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(median(times))
}

fn futures(runtime: &Runtime, count: usize) -> Result<f64> {
    let pair = Pair::new()?;
    runtime.block_on(async {
        let client = efa_transport::tokio::Endpoint::from_endpoint(pair.client)?;
        let server = efa_transport::tokio::Endpoint::from_endpoint(pair.server)?;
        let serving = tokio::spawn(async move {
            while let Ok(message) = server.recv().await {
                server.send(pair.to_client, &message).await?;
            }
            Ok::<_, efa_transport::Error>(())
        });
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            let (sent, answer) =
                tokio::join!(client.send(pair.to_server, &[1; LENGTH]), client.recv());
            sent?;
            answer?;
            times.push(start.elapsed().as_secs_f64());
        }
        serving.abort();
        Ok(median(times))
    })
}

/// The task that owns an endpoint.
async fn actor(
    mut endpoint: Endpoint,
    mut requests: mpsc::Receiver<(PeerId, Vec<u8>)>,
    arrivals: mpsc::Sender<Message>,
) -> Result<()> {
    loop {
        match requests.try_recv() {
            Ok((peer, bytes)) => drop(endpoint.submit(Send::bytes(peer, &bytes))?),
            Err(mpsc::error::TryRecvError::Disconnected) => return Ok(()),
            Err(mpsc::error::TryRecvError::Empty) => {}
        }
        endpoint.poll(drop)?;
        while let Some(message) = endpoint.next_message() {
            if arrivals.send(message).await.is_err() {
                bail!("nobody takes messages");
            }
        }
        yield_now().await;
    }
}

fn actors(runtime: &Runtime, count: usize) -> Result<f64> {
    let pair = Pair::new()?;
    runtime.block_on(async {
        let start = |endpoint| {
            let (requests, mailbox) = mpsc::channel(16);
            let (arrivals, messages) = mpsc::channel(16);
            tokio::spawn(actor(endpoint, mailbox, arrivals));
            (requests, messages)
        };
        let (client, mut answers) = start(pair.client);
        let (server, mut questions) = start(pair.server);
        let serving = tokio::spawn(async move {
            while let Some(message) = questions.recv().await {
                if server
                    .send((pair.to_client, message.to_vec()))
                    .await
                    .is_err()
                {
                    break;
                }
            }
        });
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            client.send((pair.to_server, vec![1; LENGTH])).await?;
            answers.recv().await.context("the actor has ended")?;
            times.push(start.elapsed().as_secs_f64());
        }
        serving.abort();
        Ok(median(times))
    })
}
