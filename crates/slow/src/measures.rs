//! The measures of a connection. A source leaves out the ones that it cannot take.

use std::net::SocketAddr;

use serde::Serialize;

use crate::histogram::Histogram;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Client,
    Server,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// A TCP connection.
#[derive(Clone, Debug)]
pub struct Connection {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// Time from its first to its last packet.
    pub span_ns: u64,
    pub handshake: Handshake,
    pub reset: Option<Reset>,
    /// The data that each side has sent, by `Side`.
    pub halves: [Half; 2],
    pub here: Here,
    /// The process of each side, by `Side`.
    pub processes: [Option<Process>; 2],
}

impl Connection {
    pub fn address(&self, side: Side) -> SocketAddr {
        match side {
            Side::Client => self.client,
            Side::Server => self.server,
        }
    }

    pub fn half(&self, from: Side) -> &Half {
        &self.halves[from as usize]
    }

    /// Returns the shortest round trip between the two ends, if both parts of the path were measured.
    pub fn round_trip_ns(&self) -> Option<u64> {
        let [to_server, to_client] = &self.halves;
        Some(to_server.shortest_ns? + to_client.shortest_ns?)
    }
}

/// A process of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub id: u32,
    pub name: String,
}

/// Drops at this host that explain what happened to a connection.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// Drops of each side's data, by `Side`.
    pub data: [Option<HereDrop>; 2],
    /// Drops of requests for the connection, and of answers to them.
    pub greetings: [Option<HereDrop>; 2],
    /// The drop of the packet that a reset answers, by a rule.
    pub reset: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HereDrop {
    /// Repetitions that follow a drop.
    pub joined: u64,
    /// The reason, place and rule.
    pub drop: String,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Handshake {
    /// Requests for the connection, and answers to them.
    pub requests: u64,
    pub answers: u64,
    /// Time from the first request to the server's answer.
    pub answered_ns: Option<u64>,
    pub is_refused: bool,
    /// True once data or an acknowledgement of the answer was seen.
    pub is_complete: bool,
}

/// A reset of an established connection.
#[derive(Clone, Copy, Debug)]
pub struct Reset {
    pub by: Side,
    /// The packet came from another place than the side's other packets: its time to live differs.
    pub is_foreign: bool,
    /// The other side's data was not acknowledged, or its request not answered.
    pub is_early: bool,
}

/// The data of one side, and the other side's acknowledgements of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Half {
    /// Segments with data, without repetitions, and their bytes.
    pub segments: u64,
    pub bytes: u64,
    /// Segments that the sender repeated.
    pub repeated: u64,
    /// Repetitions of segments that this place had not seen: they were lost before it.
    pub lost_before: u64,
    /// Repetitions of data that had arrived.
    pub needless: u64,
    /// Repetitions after a silence: the sender's timer had run out.
    pub timeouts: u64,
    /// Segments that arrived here after later ones, without a repetition.
    pub out_of_order: u64,
    /// Time in which repeated data was missing.
    pub missing_ns: u64,
    /// Repetitions after a silence of one segment of the largest size, of which none has ever been acknowledged.
    pub full_size_timeouts: u64,
    /// Largest payload that was acknowledged, and the largest that was sent.
    pub largest_acknowledged: u32,
    pub largest: u32,
    /// Round trips from this place to the receiver: the shortest of all, and those under load.
    pub shortest_ns: Option<u64>,
    pub loaded: Histogram,
    /// Times at which the receiver's window was closed, and their sum.
    pub closed: u64,
    pub closed_ns: u64,
    /// True if it was closed at the end.
    pub is_closed: bool,
    /// Times until this side's first byte of an answer, without the path to it and back, and their sum.
    pub answers: Histogram,
    pub answers_ns: u64,
}

/// The port of name servers.
pub const NAMES_PORT: u16 = 53;

/// Questions of a host to a name server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Questions {
    pub asked: u64,
    /// Questions without an answer within the time that `packets` allows.
    pub unanswered: u64,
    /// Times until an answer, and their sum.
    pub answers: Histogram,
    pub answers_ns: u64,
}
