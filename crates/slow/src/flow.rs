//! A connection, as packets of one place show it.

use std::net::SocketAddr;

use trawl_packet::build::flags;
use trawl_packet::walk::{Headers, Tcp};

use crate::drops::{Direction, Drops, Repetition};
use crate::joins::{Found, Joins};
use crate::measures::{Connection, Half, Handshake, Here, HereDrop, Process, Reset, Side};
use crate::options::Options;
use crate::packets::Packet;
use crate::tcp::{Acknowledgement, Segment, Standing, Stream};

/// Length of a TCP header without options.
const TCP_HEADER: usize = 20;

/// A connection at one place after its end.
#[derive(Debug)]
pub struct Ended {
    pub place: u32,
    pub packets: u64,
    /// The number of the first request for it.
    pub first_seq: Option<u32>,
    connection: Connection,
    data: [Option<Found>; 2],
    greetings: [Option<Found>; 2],
    reset: Option<u32>,
}

impl Ended {
    /// Returns the client and the server.
    pub fn ends(&self) -> (SocketAddr, SocketAddr) {
        (self.connection.client, self.connection.server)
    }

    /// Returns the connection with the texts of its drops.
    pub fn named(self, name: impl Fn(u32) -> String) -> Connection {
        let drop = |found: Found| HereDrop { joined: found.joined, drop: name(found.cause) };
        let here = Here {
            data: self.data.map(|found| found.map(drop)),
            greetings: self.greetings.map(|found| found.map(drop)),
            reset: self.reset.map(&name),
        };
        Connection { here, ..self.connection }
    }
}

/// The processes in a side's packets.
#[derive(Clone, Debug, Default)]
struct Owner {
    sent: Option<Process>,
    received: Option<Process>,
    /// It has sent a packet without a process: a received packet may name the other side's process.
    is_unknown: bool,
}

/// A packet of the handshake.
#[derive(Clone, Copy, Debug)]
struct Greeting {
    seq: u32,
    ack: Option<u32>,
    time_ns: u64,
}

impl Greeting {
    /// Returns its repetition at a time.
    fn repeated(&self, time_ns: u64) -> Repetition {
        let Self { seq, ack, .. } = *self;
        let acks = ack.map(|ack| (ack, ack));
        Repetition { from: seq, to: seq.wrapping_add(1), time_ns, since_ns: Some(self.time_ns), acks }
    }
}

/// A connection at one place.
#[derive(Debug)]
pub struct Flow {
    client: SocketAddr,
    server: SocketAddr,
    begun_ns: u64,
    last_ns: u64,
    packets: u64,
    handshake: Handshake,
    first_request: Option<u64>,
    first_seq: Option<u32>,
    last_answer: Option<u64>,
    /// The last request for the connection, and the last answer, with their repetitions.
    greetings: [Option<Greeting>; 2],
    greeting_joins: [Joins; 2],
    reset: Option<Reset>,
    /// Side, time and numbers of the first reset.
    reset_numbers: Option<(Side, u64, Tcp)>,
    owners: [Owner; 2],
    /// A side has ended or reset the connection.
    pub is_over: bool,
    /// The sides that have ended it.
    has_ended: [bool; 2],
    streams: [Stream; 2],
    scales: [Option<u8>; 2],
    /// Times to live of each side's packets.
    hops: [Option<u8>; 2],
    /// The side that spoke last, and when.
    spoke: Option<(Side, u64)>,
}

impl Flow {
    /// Begins with a packet. Without a handshake, the server is the side with the lower port.
    pub fn new(from: SocketAddr, to: SocketAddr, flags: u8, now: u64) -> Self {
        let is_syn = flags & flags::SYN != 0;
        let is_by_client = if is_syn { flags & flags::ACK == 0 } else { from.port() >= to.port() };
        let (client, server) = if is_by_client { (from, to) } else { (to, from) };
        Self {
            client,
            server,
            begun_ns: now,
            last_ns: now,
            packets: 0,
            handshake: Handshake::default(),
            first_request: None,
            first_seq: None,
            last_answer: None,
            greetings: [None; 2],
            greeting_joins: Default::default(),
            reset: None,
            reset_numbers: None,
            owners: Default::default(),
            is_over: false,
            has_ended: [false; 2],
            streams: Default::default(),
            scales: [None; 2],
            hops: [None; 2],
            spoke: None,
        }
    }

    pub fn packet(&mut self, packet: &Packet<'_>, headers: &Headers<'_>, tcp: &Tcp, from: SocketAddr) {
        let now = packet.time_ns;
        self.last_ns = self.last_ns.max(now);
        self.packets += 1;
        let side = if from == self.client { Side::Client } else { Side::Server };
        let options = headers.transport_at.and_then(|at| packet.captured.get(at + TCP_HEADER..headers.payload_at));
        let options = Options::parse(options.unwrap_or_default());
        let has = |flag: u8| tcp.flags & flag != 0;
        self.owned(packet, side);
        if has(flags::RST) {
            self.is_over = true;
            self.reset_numbers.get_or_insert((side, now, *tcp));
            return self.was_reset(side, headers.ip.map(|ip| ip.ttl));
        }
        self.hops[side as usize] = headers.ip.map(|ip| ip.ttl);
        if has(flags::SYN) {
            self.scales[side as usize] = options.scale;
            return self.greet(&Greeting { seq: tcp.seq, ack: has(flags::ACK).then_some(tcp.ack), time_ns: now });
        }
        if has(flags::ACK) {
            self.acknowledged(side, tcp, &options, now);
        }
        self.is_over |= has(flags::FIN);
        self.has_ended[side as usize] |= has(flags::FIN);
        let payload = u32::try_from(headers.payload_len).unwrap_or(u32::MAX);
        let way = self.streams[side.other() as usize].half.shortest_ns;
        let timestamp = options.timestamps.map(|(own, _)| own);
        let segment = Segment { seq: tcp.seq, ack: tcp.ack, payload, ends: has(flags::FIN), timestamp };
        let standing = self.streams[side as usize].segment(&segment, now, way);
        if payload > 0 {
            self.speak(side, standing, now);
        }
    }

    /// Notes the process of a packet.
    fn owned(&mut self, packet: &Packet<'_>, from: Side) {
        let process = packet.process.map(|(id, name)| Process { id, name: name.to_owned() });
        if packet.is_sent == Some(true) {
            let owner = &mut self.owners[from as usize];
            owner.is_unknown |= process.is_none();
            owner.sent = process.or(owner.sent.take());
        } else {
            let owner = &mut self.owners[from.other() as usize];
            owner.received = process.or(owner.received.take());
        }
    }

    /// Adds a packet of the handshake.
    fn greet(&mut self, greeting: &Greeting) {
        let (now, is_answer) = (greeting.time_ns, greeting.ack.is_some());
        let last = self.greetings[usize::from(is_answer)].replace(*greeting);
        if let Some(last) = last.filter(|last| last.seq == greeting.seq) {
            self.greeting_joins[usize::from(is_answer)].push(last.repeated(now));
        }
        if !is_answer {
            self.handshake.requests += 1;
            self.first_request.get_or_insert(now);
            self.first_seq.get_or_insert(greeting.seq);
            return;
        }
        self.handshake.answers += 1;
        if self.handshake.answered_ns.is_none()
            && let Some(first) = self.first_request
        {
            self.handshake.answered_ns = Some(now.saturating_sub(first));
            if self.handshake.requests == 1 {
                self.streams[Side::Client as usize].round_trip(now.saturating_sub(first));
            }
        }
        self.last_answer = Some(now);
    }

    fn acknowledged(&mut self, side: Side, tcp: &Tcp, options: &Options, now: u64) {
        self.handshake.is_complete = true;
        let other = side.other() as usize;
        if let Some(answer) = self.last_answer.take()
            && side == Side::Client
        {
            self.streams[other].round_trip(now.saturating_sub(answer));
        }
        // Windows are scaled only if both sides offered it; a closed one is closed in any case.
        let scale = self.scales[0].and(self.scales[1]).and(self.scales[side as usize]).unwrap_or(0);
        let stream = &mut self.streams[other];
        let echo = options.timestamps.map(|(_, echo)| echo);
        let acknowledgement = Acknowledgement { number: tcp.ack, is_duplicate: options.is_duplicate(tcp.ack), echo };
        stream.acknowledge(&acknowledgement, now);
        stream.window(u32::from(tcp.window) << scale, now);
    }

    /// Measures the time until a side's answer: until its first new byte after the other's.
    fn speak(&mut self, side: Side, standing: Standing, now: u64) {
        match (self.spoke, standing) {
            (Some((last, asked)), Standing::New) if last != side => {
                let way = self.streams[last as usize].half.shortest_ns.unwrap_or(0);
                let took = now.saturating_sub(asked).saturating_sub(way);
                let half: &mut Half = &mut self.streams[side as usize].half;
                half.answers.add(took);
                half.answers_ns += took;
            }
            // A repeated question is asked anew.
            (Some((last, _)), Standing::Repeated) if last == side => {}
            (_, Standing::New) => {}
            _ => return,
        }
        self.spoke = Some((side, now));
    }

    /// Notes a reset. A side that has ended the connection refuses what still arrives.
    fn was_reset(&mut self, by: Side, hops: Option<u8>) {
        if self.has_ended[by as usize] {
            return;
        }
        if !self.handshake.is_complete && by == Side::Server && self.handshake.requests > 0 {
            self.handshake.is_refused = true;
            return;
        }
        let other = &self.streams[by.other() as usize];
        let is_unanswered = self.spoke.is_some_and(|(side, _)| side != by);
        let known = self.hops[by as usize];
        self.reset.get_or_insert(Reset {
            by,
            is_foreign: known.is_some() && known != hops,
            is_early: other.waiting() > 0 || is_unanswered,
        });
    }

    fn direction(&self, from: Side) -> Direction {
        let (sender, receiver) = match from {
            Side::Client => (self.client, self.server),
            Side::Server => (self.server, self.client),
        };
        Direction { sender, receiver }
    }

    /// Returns the number of segments that wait for an acknowledgement.
    pub fn waiting(&self) -> usize {
        self.streams.iter().map(Stream::waiting).sum()
    }

    /// Joins the repetitions with drops where `is_due`.
    pub fn join(&mut self, drops: &mut Drops, is_due: impl Fn(&Joins) -> bool) {
        for side in Side::BOTH {
            let direction = self.direction(side);
            for joins in [&mut self.streams[side as usize].joins, &mut self.greeting_joins[side as usize]] {
                if is_due(joins) {
                    joins.join(drops, direction);
                }
            }
        }
    }

    /// Adds the last request, or the last answer to it, as if it had been repeated: nobody has answered it.
    fn repeat_unanswered_greetings(&mut self, now: u64) {
        let unanswered = match (self.handshake.answered_ns, self.handshake.is_complete) {
            (_, true) => return,
            (None, false) => Side::Client,
            (Some(_), false) => Side::Server,
        };
        if let Some(last) = self.greetings[unanswered as usize] {
            self.greeting_joins[unanswered as usize].push(last.repeated(now));
        }
    }

    /// Returns the measures at the end of the packets.
    pub fn end(mut self, place: u32, now: u64, drops: &mut Drops) -> Ended {
        self.repeat_unanswered_greetings(now);
        let reset = self.reset_numbers.and_then(|(by, time_ns, tcp)| {
            drops.answered_by_reset(self.direction(by.other()), tcp.seq, tcp.ack, time_ns)
        });
        let directions = Side::BOTH.map(|side| self.direction(side));
        let now = if self.is_over { self.last_ns } else { now };
        let halves = self.streams.each_mut().map(|stream| stream.end(now));
        let mut found =
            |joins: Joins, side: Side, acknowledged| joins.end(drops, directions[side as usize], acknowledged);
        let [client, server] = self.streams;
        let [requests, answers] = self.greeting_joins;
        let connection = Connection {
            client: self.client,
            server: self.server,
            span_ns: self.last_ns - self.begun_ns,
            handshake: self.handshake,
            reset: self.reset,
            halves,
            here: Here::default(),
            processes: self.owners.map(|owner| owner.sent.or(owner.received.filter(|_| !owner.is_unknown))),
        };
        Ended {
            place,
            packets: self.packets,
            first_seq: self.first_seq,
            connection,
            greetings: [
                found(requests, Side::Client, client.acknowledged),
                found(answers, Side::Server, server.acknowledged),
            ],
            data: [
                found(client.joins, Side::Client, client.acknowledged),
                found(server.joins, Side::Server, server.acknowledged),
            ],
            reset,
        }
    }
}
