//! The fault plan: its language, and the decisions that follow from it.
//!
//! A decision is a function of the seed, the sender's index, the message, the packet and the
//! attempt. Neither port numbers nor time enter, so the same seed decides the same way again.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::Duration;

/// When something happens: at the n-th occasion (counted from 1), or at a share of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trigger {
    /// Only at the n-th occasion.
    Nth(u64),
    /// At this share of occasions, 0 to 1.
    Rate(f64),
}

impl Trigger {
    const NEVER: Self = Self::Rate(0.0);

    fn is_never(self) -> bool {
        self == Self::NEVER
    }

    fn hits(self, count: u64, draw: u64) -> bool {
        match self {
            Self::Nth(n) => n == count,
            Self::Rate(rate) => unit(draw) < rate,
        }
    }

    fn parse(item: &str, text: &str) -> Result<Self, FaultPlanError> {
        if let Some(n) = text.strip_prefix('@') {
            return match n.parse() {
                Ok(n) if n > 0 => Ok(Self::Nth(n)),
                _ => Err(FaultPlanError::new(
                    item,
                    "after @ comes a number from 1 on",
                )),
            };
        }
        match text.parse() {
            Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(Self::Rate(rate)),
            _ => Err(FaultPlanError::new(
                item,
                "a rate is between 0 and 1, a single occasion is written @N",
            )),
        }
    }

    /// Splits `NAME@N` or `NAME:RATE`.
    fn split(item: &str, text: &str) -> Result<(String, Self), FaultPlanError> {
        let at = text.find(['@', ':']).ok_or_else(|| {
            FaultPlanError::new(item, "it needs @N (the n-th) or :RATE (a share) at its end")
        })?;
        let (name, rest) = text.split_at(at);
        let trigger = Self::parse(item, rest.trim_start_matches(':'))?;
        Ok((name.to_owned(), trigger))
    }
}

/// `@N` or `RATE`.
impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nth(n) => write!(f, "@{n}"),
            Self::Rate(rate) => write!(f, "{rate}"),
        }
    }
}

/// A way of a link cut, seen from the device whose plan says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Both,
    In,
    Out,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    way: Way,
    peer: Option<Ipv4Addr>,
}

/// A verb that allocates, and can therefore be told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the verbs")]
pub enum Verb {
    AllocPd,
    RegMr,
    CreateCq,
    CreateQp,
    CreateAh,
    CreateChannel,
}

impl Verb {
    const ALL: [(Self, &'static str); 6] = [
        (Self::AllocPd, "alloc_pd"),
        (Self::RegMr, "reg_mr"),
        (Self::CreateCq, "create_cq"),
        (Self::CreateQp, "create_qp"),
        (Self::CreateAh, "create_ah"),
        (Self::CreateChannel, "create_channel"),
    ];

    fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// What goes wrong on a device. The text form is described in soft-efa's README under "Faults";
/// `Display` and `FromStr` are each other's inverse.
///
/// ```
/// let plan: soft_efa::engine::FaultPlan = "loss=0.05, status=10@3".parse().unwrap();
/// assert_eq!(plan.to_string(), "loss=0.05,status=10@3");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FaultPlan {
    loss: f64,
    dup: f64,
    delay: Option<(Duration, f64)>,
    reorder: u32,
    corrupt: Trigger,
    status: Vec<(u8, Trigger)>,
    rnr: Trigger,
    stop: bool,
    cuts: Vec<Cut>,
    enomem: Vec<(Option<Verb>, Trigger)>,
    slow: Option<u32>,
    socket: bool,
    timeout: Duration,
}

impl Default for FaultPlan {
    /// No faults. Reordering is part of SRD and not a fault: it is on.
    fn default() -> Self {
        Self {
            loss: 0.0,
            dup: 0.0,
            delay: None,
            reorder: Self::DEFAULT_REORDER,
            corrupt: Trigger::NEVER,
            status: Vec::new(),
            rnr: Trigger::NEVER,
            stop: false,
            cuts: Vec::new(),
            enomem: Vec::new(),
            slow: None,
            socket: false,
            timeout: Self::DEFAULT_TIMEOUT,
        }
    }
}

/// A fault plan that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault {item:?}: {reason}")]
pub struct FaultPlanError {
    item: String,
    reason: String,
}

impl FaultPlanError {
    fn new(item: &str, reason: impl Into<String>) -> Self {
        Self {
            item: item.to_owned(),
            reason: reason.into(),
        }
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut plan = Self::default();
        for item in text
            .split([',', ';'])
            .map(str::trim)
            .filter(|i| !i.is_empty())
        {
            let (key, value) = match item.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (item, None),
            };
            plan.set(item, key, value)?;
        }
        Ok(plan)
    }
}

impl FaultPlan {
    const DEFAULT_REORDER: u32 = 8;
    const MAX_REORDER: u32 = 4096;
    const DEFAULT_TIMEOUT: Duration = Duration::from_secs(4);

    fn set(&mut self, item: &str, key: &str, value: Option<&str>) -> Result<(), FaultPlanError> {
        let needed =
            || value.ok_or_else(|| FaultPlanError::new(item, "it needs a value: NAME=VALUE"));
        let rate = || match Trigger::parse(item, needed()?)? {
            Trigger::Rate(rate) => Ok(rate),
            Trigger::Nth(_) => Err(FaultPlanError::new(item, "it takes a rate only")),
        };
        match key {
            "loss" => self.loss = rate()?,
            "dup" => self.dup = rate()?,
            "delay" => {
                let (time, share) = needed()?.split_once(':').unwrap_or((needed()?, "1"));
                let Trigger::Rate(share) = Trigger::parse(item, share)? else {
                    return Err(FaultPlanError::new(item, "it takes a rate only"));
                };
                self.delay = Some((parse_time(item, time)?, share));
            }
            "reorder" => {
                self.reorder = match needed()?.parse() {
                    Ok(n) if n <= Self::MAX_REORDER => n,
                    _ => return Err(FaultPlanError::new(item, "a window is 0 to 4096 packets")),
                };
            }
            "corrupt" => self.corrupt = Trigger::parse(item, needed()?)?,
            "rnr" => self.rnr = Trigger::parse(item, needed()?)?,
            "status" => {
                let (name, trigger) = Trigger::split(item, needed()?)?;
                match name.parse() {
                    Ok(code @ (1..=15 | 18)) => self.status.push((code, trigger)),
                    _ => return Err(FaultPlanError::new(item, "a status is 1 to 15, or 18")),
                }
            }
            "enomem" => {
                let (name, trigger) = Trigger::split(item, needed()?)?;
                let verb = match name.as_str() {
                    "any" => None,
                    name => match Verb::ALL.iter().find(|(_, n)| *n == name) {
                        Some((verb, _)) => Some(*verb),
                        None => {
                            let names = Verb::ALL.map(|(_, n)| n).join(", ");
                            let reason = format!("the verb is any or one of {names}");
                            return Err(FaultPlanError::new(item, reason));
                        }
                    },
                };
                self.enomem.push((verb, trigger));
            }
            "cut" => self.cuts.push(parse_cut(item, value.unwrap_or("both"))?),
            "stop" if value.is_none() => self.stop = true,
            "socket" if value.is_none() => self.socket = true,
            "stop" | "socket" => return Err(FaultPlanError::new(item, "it takes no value")),
            "slow" => {
                self.slow = match needed()?.parse() {
                    Ok(n) if n > 0 => Some(n),
                    _ => {
                        let reason = "it takes requests per second, 1 or more";
                        return Err(FaultPlanError::new(item, reason));
                    }
                };
            }
            "timeout" => self.timeout = parse_time(item, needed()?)?,
            _ => {
                let reason = "there are loss, dup, delay, reorder, corrupt, status, rnr, stop, \
                              cut, enomem, slow, socket and timeout";
                return Err(FaultPlanError::new(item, reason));
            }
        }
        Ok(())
    }

    /// The device does nothing at all.
    pub(super) fn stopped(&self) -> bool {
        self.stop
    }

    /// Payloads always travel in datagrams.
    pub(super) fn socket_only(&self) -> bool {
        self.socket
    }

    /// How long a request waits for a sign of life of its peer.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Requests per second that the device manages, where it is slow.
    pub(super) fn slow(&self) -> Option<u32> {
        self.slow
    }

    /// How many places a packet or completion may move.
    pub(super) fn reorder_window(&self) -> u32 {
        self.reorder
    }

    /// Packets to this peer don't get through.
    pub(super) fn cut_out(&self, peer: Ipv4Addr) -> bool {
        self.is_cut(peer, Way::Out)
    }

    /// Packets of this peer don't get through.
    pub(super) fn cut_in(&self, peer: Ipv4Addr) -> bool {
        self.is_cut(peer, Way::In)
    }

    fn is_cut(&self, peer: Ipv4Addr, way: Way) -> bool {
        self.cuts.iter().any(|cut| {
            (cut.way == Way::Both || cut.way == way) && cut.peer.is_none_or(|p| p == peer)
        })
    }

    /// The plan can change what happens to packets.
    pub(super) fn touches_packets(&self) -> bool {
        self.loss > 0.0
            || self.dup > 0.0
            || self.delay.is_some()
            || !self.corrupt.is_never()
            || !self.cuts.is_empty()
    }

    /// What becomes of a data packet. `count` is the number of its message, from 1.
    pub(super) fn packet(&self, draw: Draw, count: u64) -> PacketFate {
        PacketFate {
            lost: unit(draw.salted(1)) < self.loss,
            duplicated: unit(draw.salted(2)) < self.dup,
            delay: self
                .delay
                .filter(|(_, share)| unit(draw.salted(3)) < *share)
                .map(|(time, _)| time),
            corrupted: match self.corrupt {
                // Once: the first packet, every time that it is sent.
                Trigger::Nth(n) => n == count && draw.packet == 0,
                Trigger::Rate(rate) => unit(draw.salted(4)) < rate,
            },
        }
    }

    /// Whether an acknowledgement or another answer gets lost.
    pub(super) fn answer_lost(&self, draw: Draw) -> bool {
        unit(draw.salted(5)) < self.loss
    }

    /// A status that the `count`-th request (from 1) of a sender ends with, without being carried
    /// out.
    pub(super) fn status(&self, draw: Draw, count: u64) -> Option<u8> {
        self.status
            .iter()
            .enumerate()
            .find(|(i, (_, trigger))| trigger.hits(count, draw.salted(16 + *i as u64)))
            .map(|(_, (code, _))| *code)
    }

    /// Whether the receiver claims to have no receive posted; `count` is the number of the
    /// question, from 1.
    pub(super) fn receiver_not_ready(&self, draw: Draw, count: u64) -> bool {
        self.rnr.hits(count, draw.salted(6))
    }

    /// Whether an allocation fails: the `count`-th call of `verb`, the `total`-th of all.
    pub(super) fn allocation(&self, draw: Draw, verb: Verb, count: u64, total: u64) -> bool {
        self.enomem.iter().enumerate().any(|(i, (which, trigger))| {
            let draw = draw.salted(64 + i as u64);
            match which {
                None => trigger.hits(total, draw),
                Some(which) => *which == verb && trigger.hits(count, draw),
            }
        })
    }
}

/// What becomes of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketFate {
    pub(super) lost: bool,
    pub(super) duplicated: bool,
    pub(super) delay: Option<Duration>,
    pub(super) corrupted: bool,
}

/// Names one decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) seed: u64,
    pub(super) sender: u64,
    pub(super) message: u64,
    pub(super) packet: u32,
    pub(super) attempt: u32,
}

impl Draw {
    /// 64 random bits for this decision and this question.
    pub(super) fn salted(self, salt: u64) -> u64 {
        let mut x = mix(self.seed ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = mix(x ^ self.sender);
        x = mix(x ^ self.message);
        mix(x ^ (u64::from(self.packet) << 32 | u64::from(self.attempt)))
    }
}

/// The finaliser of splitmix64.
fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 0 ≤ x < 1.
fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / (1u64 << 53) as f64
}

fn parse_time(item: &str, text: &str) -> Result<Duration, FaultPlanError> {
    let at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => 0,
    };
    match number.parse::<u64>() {
        Ok(n) if scale > 0 && n <= 3_600_000_000 / scale => Ok(Duration::from_micros(n * scale)),
        _ => Err(FaultPlanError::new(
            item,
            "a time is a whole number with us, ms or s, at most an hour",
        )),
    }
}

fn parse_cut(item: &str, text: &str) -> Result<Cut, FaultPlanError> {
    let (way, peer) = match text.split_once(':') {
        Some((way, peer)) => (way, Some(peer)),
        None => (text, None),
    };
    let way = match way {
        "both" => Way::Both,
        "in" => Way::In,
        "out" => Way::Out,
        _ => return Err(FaultPlanError::new(item, "the way is both, in or out")),
    };
    let peer = match peer.map(str::parse) {
        None => None,
        Some(Ok(peer)) => Some(peer),
        Some(Err(_)) => {
            let reason = "after the way comes : and the peer's IPv4 address";
            return Err(FaultPlanError::new(item, reason));
        }
    };
    Ok(Cut { way, peer })
}

struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        match us {
            0 => write!(f, "0us"),
            us if us % 1_000_000 == 0 => write!(f, "{}s", us / 1_000_000),
            us if us % 1_000 == 0 => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        if self.loss > 0.0 {
            items.push(format!("loss={}", self.loss));
        }
        if self.dup > 0.0 {
            items.push(format!("dup={}", self.dup));
        }
        if let Some((time, share)) = self.delay {
            items.push(format!("delay={}:{share}", Time(time)));
        }
        if self.reorder != Self::DEFAULT_REORDER {
            items.push(format!("reorder={}", self.reorder));
        }
        if !self.corrupt.is_never() {
            items.push(format!("corrupt={}", self.corrupt));
        }
        let suffix = |trigger: &Trigger| match trigger {
            Trigger::Nth(_) => trigger.to_string(),
            Trigger::Rate(_) => format!(":{trigger}"),
        };
        for (code, trigger) in &self.status {
            items.push(format!("status={code}{}", suffix(trigger)));
        }
        if !self.rnr.is_never() {
            items.push(format!("rnr={}", self.rnr));
        }
        if self.stop {
            items.push("stop".to_owned());
        }
        for cut in &self.cuts {
            let way = match cut.way {
                Way::Both => "both",
                Way::In => "in",
                Way::Out => "out",
            };
            items.push(match cut.peer {
                None => format!("cut={way}"),
                Some(peer) => format!("cut={way}:{peer}"),
            });
        }
        for (verb, trigger) in &self.enomem {
            let verb = verb.map_or("any", Verb::name);
            items.push(format!("enomem={verb}{}", suffix(trigger)));
        }
        if let Some(rate) = self.slow {
            items.push(format!("slow={rate}"));
        }
        if self.socket {
            items.push("socket".to_owned());
        }
        if self.timeout != Self::DEFAULT_TIMEOUT {
            items.push(format!("timeout={}", Time(self.timeout)));
        }
        f.write_str(&items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(message: u64, packet: u32, attempt: u32) -> Draw {
        Draw {
            seed: 7,
            sender: 0,
            message,
            packet,
            attempt,
        }
    }

    #[test]
    fn every_item_survives_a_round_trip() {
        let text = "loss=0.05,dup=0.01,delay=200us:0.1,reorder=32,corrupt=@2,status=7@3,\
                    status=13:0.25,rnr=0.5,stop,cut=both,cut=in:127.0.0.2,enomem=create_qp@2,\
                    enomem=any:0.5,slow=100,socket,timeout=500ms";
        let plan: FaultPlan = text.parse().unwrap();
        assert_eq!(plan.to_string(), text);
        assert_eq!(FaultPlan::default().to_string(), "");
        assert_eq!("".parse(), Ok(FaultPlan::default()));
        assert_eq!(
            " cut ; stop ".parse::<FaultPlan>().unwrap().to_string(),
            "stop,cut=both"
        );
    }

    #[test]
    fn bad_items_are_named_with_the_remedy() {
        for (text, hint) in [
            ("los=1", "there are loss"),
            ("loss", "NAME=VALUE"),
            ("loss=2", "between 0 and 1"),
            ("loss=NaN", "between 0 and 1"),
            ("loss=@1", "rate only"),
            ("status=7", "@N"),
            ("status=16@1", "1 to 15, or 18"),
            ("status=7@0", "from 1 on"),
            ("delay=5", "us, ms or s"),
            ("delay=99999999999999999s", "an hour"),
            ("cut=up", "both, in or out"),
            ("cut=in:localhost", "IPv4"),
            ("enomem=open@1", "create_qp"),
            ("slow=0", "1 or more"),
            ("stop=1", "no value"),
            ("socket=1", "no value"),
            ("reorder=-1", "4096"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(
                error.contains(hint) && error.contains(text),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn rates_are_met_and_decisions_repeat() {
        let plan: FaultPlan = "loss=0.1".parse().unwrap();
        let fates = || (0..10_000).map(|i| plan.packet(draw(i, 0, 0), i + 1).lost);
        let lost = fates().filter(|lost| *lost).count();
        assert!((900..1100).contains(&lost), "{lost}");
        assert!(fates().eq(fates()));
        let again = (0..10_000).filter(|i| plan.packet(draw(*i, 0, 1), i + 1).lost);
        assert!(again.count() < 1100, "another attempt has another fate");
    }

    #[test]
    fn the_nth_occasion_is_hit_once() {
        let plan: FaultPlan = "status=7@3,enomem=reg_mr@2".parse().unwrap();
        let hits: Vec<_> = (1..=5)
            .filter_map(|n| plan.status(draw(n, 0, 0), n))
            .collect();
        assert_eq!(hits, [7]);
        assert_eq!(plan.status(draw(3, 0, 0), 3), Some(7));
        assert!(plan.allocation(draw(0, 0, 0), Verb::RegMr, 2, 9));
        assert!(!plan.allocation(draw(0, 0, 0), Verb::RegMr, 9, 2));
        assert!(!plan.allocation(draw(0, 0, 0), Verb::CreateQp, 2, 2));
    }

    #[test]
    fn cuts_have_a_way_and_a_peer() {
        let a = Ipv4Addr::new(127, 0, 0, 1);
        let b = Ipv4Addr::new(127, 0, 0, 2);
        let plan: FaultPlan = "cut=in:127.0.0.2".parse().unwrap();
        assert!(plan.cut_in(b) && !plan.cut_out(b) && !plan.cut_in(a));
        let plan: FaultPlan = "cut".parse().unwrap();
        assert!(plan.cut_in(a) && plan.cut_out(b));
    }
}
