//! Verdicts about connections, and their texts.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;
use trawl_view::text::count;

use crate::measures::Side;

/// The certainty of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Likely,
    Certain,
}

/// A cause, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    #[serde(flatten)]
    pub cause: Cause,
    pub level: Level,
    /// The part of the connection's time that it explains, from 0 to 1; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

impl Verdict {
    /// Returns the cause and its evidence.
    pub fn text(&self) -> String {
        format!("{}: {}", self.cause.why(), self.cause)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// Segments of a side were lost: before the place of the capture, behind it, or both.
    Loss {
        of: Side,
        repeated: u64,
        segments: u64,
        /// Losses before the place; absent if an end of the connection cannot know them.
        #[serde(skip_serializing_if = "Option::is_none")]
        lost_before: Option<u64>,
        timeouts: u64,
        /// Drops of this host may be missing among the ones that are known.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        place_unknown: bool,
    },
    /// The kernel here dropped segments of a side: `joined` of its repetitions follow a drop.
    LossHere {
        of: Side,
        joined: u64,
        repeated: u64,
        /// 0: unknown, since TCP has not counted the dropped segments.
        segments: u64,
        /// The reason, place and rule, as `trawl why` names them.
        drop: String,
    },
    /// Segments overtook each other, and the sender repeated some without need.
    Reordering {
        of: Side,
        needless: u64,
        out_of_order: u64,
        segments: u64,
    },
    /// Most of the time was spent on round trips.
    Distance {
        round_trip_ns: u64,
        rounds: u64,
    },
    /// A side's data waits in a queue.
    Queue {
        of: Side,
        shortest_ns: u64,
        loaded_ns: u64,
    },
    /// Data waits in the queue of this host's interface.
    LocalQueue {
        delay_ns: u64,
        round_trip_ns: u64,
    },
    /// The send buffer of the process is too small for the round trip.
    SendBuffer {
        full: u64,
        acks: u64,
    },
    /// The process of this host waits for a CPU, or for the quota of its cgroup, before it answers.
    CpuStarvation {
        answers: u64,
        median_ns: u64,
        waiting_ns: u64,
        throttled_ns: u64,
    },
    /// The process of this host accepts connections too slowly.
    ListenQueueFull {
        overflows: u64,
        length: u64,
        limit: u64,
    },
    /// More clients than the kernel allows have not completed their handshake.
    SynQueueFull {
        overflows: u64,
        length: u64,
        limit: u64,
    },
    /// The process of a side reads more slowly than data arrives.
    SlowReader {
        at: Side,
        closed: u64,
        closed_ns: u64,
        to_the_end: bool,
    },
    /// The process of a side takes long to answer.
    SlowAnswer {
        by: Side,
        answers: u64,
        median_ns: u64,
    },
    /// Large segments of a side do not pass, and small ones do.
    LargeSegments {
        of: Side,
        timeouts: u64,
        payload: u32,
        /// The largest payload that passed, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        passed: Option<u32>,
    },
    /// The server answered a request for a connection only when it was repeated.
    LateAnswer {
        requests: u64,
        answered_ns: u64,
    },
    /// Nobody answered the requests for a connection.
    NoAnswer {
        requests: u64,
    },
    Refused,
    /// A side has reset the connection, or a device on the path in its name.
    Reset {
        by: Side,
        is_foreign: bool,
    },
    /// A rule here has dropped a packet, and reset its connection.
    ResetHere {
        /// The reason, place and rule, as `trawl why` names them.
        drop: String,
    },
    SlowNames {
        answers: u64,
        median_ns: u64,
    },
    SilentNames {
        unanswered: u64,
        asked: u64,
    },
}

/// A duration with two or three digits.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 as f64 / 1e6;
        match self.0 {
            0..10_000_000 => write!(f, "{ms:.1} ms"),
            10_000_000..10_000_000_000 => write!(f, "{ms:.0} ms"),
            _ => write!(f, "{:.0} s", ms / 1e3),
        }
    }
}

impl Cause {
    /// Returns the side whose process or host has to be looked at; `None` for the path between them.
    pub fn at(&self) -> Option<Side> {
        match self {
            Self::SlowReader { at: side, .. }
            | Self::SlowAnswer { by: side, .. }
            | Self::Reset { by: side, is_foreign: false } => Some(*side),
            Self::Refused | Self::LateAnswer { .. } | Self::NoAnswer { .. } => Some(Side::Server),
            _ => None,
        }
    }

    /// Returns false if nobody is to blame: a peer may be far away.
    pub fn has_culprit(&self) -> bool {
        !matches!(self, Self::Distance { .. })
    }

    /// Returns the drop at this host that is the cause.
    pub fn drop(&self) -> Option<&str> {
        match self {
            Self::LossHere { drop, .. } | Self::ResetHere { drop } => Some(drop),
            _ => None,
        }
    }

    /// Returns the cause in a few words.
    pub fn why(&self) -> Cow<'static, str> {
        let text = match self {
            Self::LossHere { drop, .. } => return format!("loss here: {drop}").into(),
            Self::ResetHere { drop } => return format!("reset by a rule here: {drop}").into(),
            Self::Loss { place_unknown: true, .. } => "loss, place unknown",
            Self::Loss { lost_before: Some(0), .. } => "loss behind this place",
            Self::Loss { lost_before, repeated, .. } if *lost_before == Some(*repeated) => "loss before this place",
            Self::Loss { .. } => "loss on the path",
            Self::Reordering { .. } => "reordering on the path",
            Self::Distance { .. } => "distance",
            Self::Queue { .. } => "queue on the path",
            Self::LocalQueue { .. } => "queue of this host's interface",
            Self::SendBuffer { .. } => "send buffer too small",
            Self::CpuStarvation { .. } => "CPU starvation here",
            Self::ListenQueueFull { .. } => "listen queue full",
            Self::SynQueueFull { .. } => "SYN queue full",
            Self::SlowReader { to_the_end: true, .. } => "does not read",
            Self::SlowReader { .. } => "reads slowly",
            Self::SlowAnswer { .. } => "answers slowly",
            Self::LargeSegments { .. } => "large packets vanish (MTU)",
            Self::LateAnswer { .. } => "accepts connections late",
            Self::NoAnswer { .. } => "does not answer",
            Self::Refused => "refuses connections",
            Self::Reset { is_foreign: true, .. } => "reset on the path",
            Self::Reset { .. } => "resets connections",
            Self::SlowNames { .. } => "DNS slow",
            Self::SilentNames { .. } => "DNS silent",
        };
        text.into()
    }

    /// Returns what to do next.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Loss { .. } | Self::LateAnswer { .. } => "trawl why, on the hosts of the path",
            Self::LossHere { .. } | Self::ResetHere { .. } => "trawl why",
            Self::Reordering { .. } => "one path for each flow (layer 4 hash)",
            Self::Distance { .. } => "fewer round trips, or a nearer server",
            Self::Queue { .. } => "fq_codel or cake at the slowest link",
            Self::LocalQueue { .. } => "fq_codel or cake at the interface",
            Self::SendBuffer { .. } => "no SO_SNDBUF, or a larger one",
            Self::CpuStarvation { throttled_ns, waiting_ns, .. } if 2 * throttled_ns >= *waiting_ns => {
                "a larger cpu.max of its cgroup"
            }
            Self::CpuStarvation { .. } => "fewer processes, or more CPUs",
            Self::ListenQueueFull { .. } => "a larger backlog, or accept sooner",
            Self::SynQueueFull { .. } => "net.ipv4.tcp_syncookies=1",
            Self::SlowReader { .. } | Self::SlowAnswer { .. } => "profile the process",
            Self::LargeSegments { .. } => "let ICMP pass, or a lower MTU",
            Self::NoAnswer { .. } => "trawl why, at the server",
            Self::Refused => "start the service, or its port",
            Self::Reset { .. } => "rules and logs there",
            Self::SlowNames { .. } | Self::SilentNames { .. } => "another resolver, or a cache",
        }
    }
}

fn of(side: Side) -> &'static str {
    match side {
        Side::Client => "client's",
        Side::Server => "server's",
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

impl fmt::Display for Cause {
    /// Writes the evidence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss { of: side, repeated, segments, timeouts, .. } => {
                let part = percent(*repeated, *segments);
                write!(f, "{part:.2} % of the {} segments, {}", of(*side), count(*timeouts, "timeout"))
            }
            Self::LossHere { joined, segments: 0, .. } => {
                write!(f, "{} dropped", count(*joined, "segment"))
            }
            Self::LossHere { joined, repeated, segments, .. } => {
                write!(f, "{:.2} %, {joined} of {repeated} joined", percent(*repeated, *segments))
            }
            Self::Reordering { of: side, needless, out_of_order, segments } => {
                write!(f, "{needless} needless repetitions, {out_of_order} late of {segments} {} segments", of(*side))
            }
            Self::Distance { round_trip_ns, rounds } => write!(f, "{rounds} round trips of {}", Time(*round_trip_ns)),
            Self::Queue { of: side, shortest_ns, loaded_ns } => {
                write!(f, "{} data: RTT {}, min {}", of(*side), Time(*loaded_ns), Time(*shortest_ns))
            }
            Self::LocalQueue { delay_ns, round_trip_ns } => {
                write!(f, "{} of RTT {}", Time(*delay_ns), Time(*round_trip_ns))
            }
            Self::SendBuffer { full, acks } => write!(f, "full at {full} of {acks} acknowledgements"),
            Self::CpuStarvation { answers, median_ns, waiting_ns, throttled_ns } => {
                write!(f, "median {} of {answers} answers, {} without a CPU", Time(*median_ns), Time(*waiting_ns))?;
                if *throttled_ns > 0 { write!(f, ", {} throttled", Time(*throttled_ns)) } else { Ok(()) }
            }
            Self::ListenQueueFull { overflows, length, limit } | Self::SynQueueFull { overflows, length, limit } => {
                write!(f, "{length} of {limit}, {}", count(*overflows, "overflow"))
            }
            Self::SlowReader { closed, closed_ns, .. } => {
                write!(f, "window closed {}, {}", count(*closed, "time"), Time(*closed_ns))
            }
            Self::SlowAnswer { answers, median_ns, .. } => {
                write!(f, "median {} of {answers} answers", Time(*median_ns))
            }
            Self::LargeSegments { timeouts, payload, passed, .. } => {
                write!(f, "{} of {payload} bytes", count(*timeouts, "timeout"))?;
                passed.map_or(Ok(()), |passed| write!(f, ", {passed} pass"))
            }
            Self::LateAnswer { requests, answered_ns } => {
                write!(f, "answered after {requests} requests, {}", Time(*answered_ns))
            }
            Self::NoAnswer { requests } => f.write_str(&count(*requests, "request")),
            Self::Refused => f.write_str("reset of the first packet"),
            Self::Reset { is_foreign: true, .. } => f.write_str("from another distance (TTL) than the data"),
            Self::ResetHere { .. } => f.write_str("it answers the dropped packet"),
            Self::Reset { .. } => f.write_str("with data on the way, or unanswered"),
            Self::SlowNames { answers, median_ns } => write!(f, "median {} of {answers} answers", Time(*median_ns)),
            Self::SilentNames { unanswered, asked } => write!(f, "{unanswered} of {asked} questions unanswered"),
        }
    }
}
