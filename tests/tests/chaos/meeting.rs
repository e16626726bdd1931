//! Workers get to know each other by handshakes over TCP, from both sides, as often as it takes.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use efa_transport::handshake::{Connected, Connector, HandshakeConfig, Listener};
use efa_transport::{Endpoint, PeerId};

use crate::Info;

/// Nobody of this machine takes longer, unless it was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Handshakes under way, and whom to make more with.
pub struct Meetings {
    listener: Listener,
    connecting: HashMap<usize, Connector>,
    /// Where everybody listens, as far as is known.
    pub everybody: HashMap<usize, SocketAddr>,
    next: Instant,
}

fn config(info: &Info) -> Result<HandshakeConfig> {
    let text = serde_json::to_vec(info)?;
    Ok(HandshakeConfig::default().timeout(PATIENCE).user_data(text))
}

impl Meetings {
    pub fn new() -> Result<Self> {
        Ok(Self {
            listener: Listener::bind("127.0.0.1:0", HandshakeConfig::default())?,
            connecting: HashMap::new(),
            everybody: HashMap::new(),
            next: Instant::now(),
        })
    }

    pub fn address(&self) -> Result<SocketAddr> {
        Ok(self.listener.local_addr()?)
    }

    /// What is said from now on; handshakes under way are given up.
    pub fn introduce(&mut self, info: &Info) -> Result<()> {
        self.listener.set_user_data(serde_json::to_vec(info)?)?;
        self.connecting.clear();
        Ok(())
    }

    /// Goes on with all handshakes, begins those with workers that are `missing`, and returns
    /// those that have succeeded.
    pub fn turn(
        &mut self,
        endpoint: &mut Endpoint,
        me: &Info,
        missing: impl Fn(usize) -> bool,
    ) -> Result<Vec<(Info, PeerId)>> {
        let mut met = Vec::new();
        let mut note = |connected: Connected<TcpStream>| -> Result<()> {
            let info: Info = serde_json::from_slice(&connected.user_data)
                .context("what a worker says about itself")?;
            met.push((info, connected.peer));
            Ok(())
        };
        while let Some(arrival) = self.listener.poll(endpoint) {
            // One that failed concerns that worker alone; it comes again, or is dead.
            if let Ok(connected) = arrival {
                note(connected)?;
            }
        }
        let mut ended = Vec::new();
        for (&index, connector) in &mut self.connecting {
            if let Poll::Ready(result) = connector.poll(endpoint) {
                ended.push(index);
                if let Ok(connected) = result {
                    note(connected)?;
                }
            }
        }
        for index in ended {
            self.connecting.remove(&index);
        }
        if Instant::now() >= self.next {
            self.next = Instant::now() + Duration::from_millis(50);
            for (&index, &at) in &self.everybody {
                if missing(index) && !self.connecting.contains_key(&index) {
                    self.connecting
                        .insert(index, Connector::new(at, config(me)?)?);
                }
            }
        }
        Ok(met)
    }
}
