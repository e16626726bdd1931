//! Handshakes of tasks: names, both families, many at once, and cancelled at every await.

use std::net::{Ipv6Addr, TcpListener as StdListener};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use efa_tests::{run, under};
use efa_transport::handshake::{HandshakeConfig, HandshakeErrorKind};
use efa_transport::tokio::Endpoint;
use efa_transport::{Config, ReceivePool};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{everywhere, handshake, listening};

fn small(config: Config) -> Config {
    Config {
        send_depth: 8,
        receive_pool: ReceivePool {
            buffers: 8,
            size: Some(64),
        },
        ..config
    }
}

#[test]
fn many_tasks_meet_one_listener_at_once() {
    run(|t| {
        t.need_loopback()?;
        everywhere(async |config| {
            const CLIENTS: usize = 16;
            let domain = t.domain()?;
            let config = small(config);
            let server = listening(&domain, config.clone()).await?;
            let port = server.listens_at().context("it listens")?.port();
            let mut clients = JoinSet::new();
            for number in 0..CLIENTS {
                let client = Endpoint::new(&domain, config.clone())?;
                clients.spawn(async move {
                    // A name, whose other addresses nobody may listen at.
                    let target = format!("localhost:{port}");
                    let told = handshake().user_data(vec![number as u8]);
                    let met = client.connect(&target, told).await?;
                    client.send(met.peer, &[number as u8]).await?;
                    Ok::<_, anyhow::Error>(client)
                });
            }
            let mut told = Vec::new();
            for _ in 0..CLIENTS {
                let met = server.accept().await?;
                told.push((met.user_data[0], met.peer));
            }
            for _ in 0..CLIENTS {
                let message = server.recv().await?;
                let from = (message[0], message.peer().context("a peer")?);
                ensure!(told.contains(&from), "{from:?}");
            }
            while let Some(client) = clients.join_next().await {
                client??;
            }
            Ok(())
        })
    });
}

#[test]
fn handshakes_over_ipv6_and_over_streams_that_exist() {
    run(|t| {
        t.need_loopback()?;
        if StdListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
            return Err(efa_tests::skip("this host has no IPv6"));
        }
        everywhere(async |config| {
            let domain = t.domain()?;
            let server = Endpoint::bind(&domain, config.clone(), "[::1]:0", handshake()).await?;
            let client = Endpoint::new(&domain, config)?;
            let target = server.listens_at().context("it listens")?.to_string();
            let (there, here) = tokio::join!(server.accept(), client.connect(&target, handshake()));
            let (there, here) = (there?, here?);
            ensure!(there.channel.peer_addr()? == here.channel.local_addr()?);
            // Both speak at once.
            let listener = TcpListener::bind("[::1]:0").await?;
            let (one, two) = tokio::join!(
                TcpStream::connect(listener.local_addr()?),
                listener.accept()
            );
            let (one, two) = tokio::join!(
                server.shake_hands(one?, handshake()),
                client.shake_hands(two?.0, handshake())
            );
            ensure!(one?.peer == there.peer && two?.peer == here.peer);
            Ok(())
        })
    });
}

#[test]
fn what_a_listener_tells_can_change() {
    run(|t| {
        t.need_loopback()?;
        everywhere(async |config| {
            let domain = t.domain()?;
            let server = listening(&domain, config.clone()).await?;
            let target = server.listens_at().context("it listens")?.to_string();
            let accepting = tokio::spawn({
                let server = server.clone();
                async move { while server.accept().await.is_ok() {} }
            });
            for told in [&b""[..], b"one", b"another"] {
                let client = Endpoint::new(&domain, config.clone())?;
                if !told.is_empty() {
                    server.set_user_data(told)?;
                }
                let met = client.connect(&target, handshake()).await?;
                ensure!(met.user_data == told, "{:?}", met.user_data);
                let Err(error) = client.set_user_data(told) else {
                    bail!("it does not listen");
                };
                ensure!(error.to_string().contains("bind"), "{error}");
            }
            let Err(error) = server.set_user_data(vec![0; HandshakeConfig::MAX_USER_DATA + 1])
            else {
                bail!("it is too long");
            };
            ensure!(
                matches!(error.kind(), HandshakeErrorKind::UserDataTooLong { .. }),
                "{error}"
            );
            accepting.abort();
            Ok(())
        })
    });
}

#[test]
fn a_handshake_that_fails_says_why_and_accept_goes_on() {
    run(|t| {
        t.need_loopback()?;
        everywhere(async |config| {
            let domain = t.domain()?;
            let server = listening(&domain, config.clone()).await?;
            let client = Endpoint::new(&domain, config)?;
            let target = server.listens_at().context("it listens")?.to_string();
            let stranger = async {
                let stream = TcpStream::connect(&target).await?;
                stream.writable().await?;
                stream.try_write(b"GET / HTTP/1.1\r\n\r\n")?;
                Ok::<_, std::io::Error>(stream)
            };
            let (arrival, _stream) = tokio::join!(server.accept(), stranger);
            let Err(error) = arrival else {
                bail!("it shook hands with a stranger");
            };
            ensure!(
                matches!(error.kind(), HandshakeErrorKind::Foreign(_)),
                "{error}"
            );
            let (there, here) = tokio::join!(server.accept(), client.connect(&target, handshake()));
            there?;
            here?;
            let Err(error) = client.accept().await else {
                bail!("it does not listen");
            };
            ensure!(error.to_string().contains("bind"), "{error}");
            let never = HandshakeConfig::default().timeout(Duration::from_millis(50));
            let silent = StdListener::bind("127.0.0.1:0")?;
            let target = silent.local_addr()?.to_string();
            let Err(error) = client.connect(&target, never.clone()).await else {
                bail!("nobody is there");
            };
            ensure!(error.to_string().contains(&target), "{error}");
            ensure!(
                client
                    .connect("no.such.name.invalid:1", never)
                    .await
                    .is_err()
            );
            Ok(())
        })
    });
}

/// Either side is dropped after so many polls, for every number of polls that a handshake takes; and then the
/// same endpoints meet all the same.
#[test]
fn a_handshake_may_be_dropped_at_every_await_and_the_next_one_succeeds() {
    under("max-rdma-size=4096").run(|t| {
        everywhere(async |config| {
            let domain = t.domain()?;
            let config = small(config);
            let mut enumerated = [0; 2];
            for (which, most) in enumerated.iter_mut().enumerate() {
                for polls in 0.. {
                    let server = listening(&domain, config.clone()).await?;
                    let client = Endpoint::new(&domain, config.clone())?;
                    let target = server.listens_at().context("it listens")?.to_string();
                    let ended = {
                        let server = async { server.accept().await.map(drop) };
                        let client = async { client.connect(&target, handshake()).await.map(drop) };
                        match which {
                            0 => drop_after(polls, client, server).await,
                            _ => drop_after(polls, server, client).await,
                        }
                    };
                    if ended {
                        break;
                    }
                    *most = polls;
                    ensure!(polls < 1000, "it never ends");
                    meet_again(&server, &client, &target).await?;
                }
            }
            ensure!(enumerated.iter().all(|&polls| polls >= 2), "{enumerated:?}");
            Ok(())
        })
    });
}

/// Polls `victim` at most so many times while `other` runs, and drops both. True if the victim ended.
async fn drop_after<E>(
    polls: u32,
    victim: impl Future<Output = Result<(), E>>,
    other: impl Future<Output = Result<(), E>>,
) -> bool {
    let (mut victim, mut other) = (pin!(victim), pin!(other));
    let (mut polled, mut other_ended) = (0, false);
    std::future::poll_fn(|context| {
        if !other_ended {
            other_ended = other.as_mut().poll(context).is_ready();
        }
        if polled == polls {
            return Poll::Ready(false);
        }
        polled += 1;
        victim.as_mut().poll(context).map(|_| true)
    })
    .await
}

async fn meet_again(server: &Endpoint, client: &Endpoint, target: &str) -> Result<()> {
    let mut connect = pin!(client.connect(target, handshake()));
    let met = loop {
        tokio::select! {
            met = &mut connect => break met?,
            // Also of the one that was dropped before.
            _ = server.accept() => {}
        }
    };
    let sent = client.send(met.peer, b"hello");
    let mut message = pin!(server.recv());
    let message = loop {
        tokio::select! {
            message = &mut message => break message?,
            _ = server.accept() => {}
        }
    };
    ensure!(&message[..] == b"hello");
    sent.await?;
    let peers = client.peers()?;
    ensure!(peers.len() == 1, "a peer is left over: {peers:?}");
    Ok(())
}
