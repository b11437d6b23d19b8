//! Connections and questions for names in the packets of a file. The first 128 bytes of each packet are enough.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use trawl_packet::build::flags;
use trawl_packet::net::protocol;
use trawl_packet::walk::{Headers, Tcp, walk};

use crate::measures::{Connection, Half, Handshake, Questions, Reset, Side};
use crate::options::Options;
use crate::tcp::{Acknowledgement, Segment, Standing, Stream};

const DNS_PORT: u16 = 53;
/// Time for an answer of a name server.
const ANSWER_NS: u64 = 1_000_000_000;
/// Length of a TCP header without options.
const TCP_HEADER: usize = 20;

/// A packet of a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub time_ns: u64,
    pub link_type: u16,
    pub captured: &'a [u8],
    /// Number of the capture point: packets of several points are no repetitions.
    pub place: u32,
}

/// Measures of all packets so far.
#[derive(Debug, Default)]
pub struct Analysis {
    flows: HashMap<(u32, Ends), Flow>,
    over: Vec<(u32, Connection, u64)>,
    questions: HashMap<(IpAddr, SocketAddr), Questions>,
    /// Times of the questions without an answer yet.
    asked: HashMap<(SocketAddr, SocketAddr, u16), u64>,
    last_ns: u64,
    packets: u64,
}

/// The lower end of a flow, and the higher one.
type Ends = (SocketAddr, SocketAddr);

/// Questions of a host to a name server.
#[derive(Clone, Debug)]
pub struct Asked {
    pub host: IpAddr,
    pub server: SocketAddr,
    pub questions: Questions,
}

impl Analysis {
    pub fn add(&mut self, packet: &Packet<'_>) {
        let headers = walk(packet.link_type, packet.captured);
        self.last_ns = self.last_ns.max(packet.time_ns);
        let (Some(ip), Some((src, dst)), false) = (headers.ip, headers.ports, headers.incomplete) else { return };
        let (from, to) = (SocketAddr::new(ip.src, src), SocketAddr::new(ip.dst, dst));
        match headers.tcp {
            Some(tcp) => self.tcp(packet, &headers, &tcp, from, to),
            None if ip.protocol == protocol::UDP => self.question(headers.payload, from, to, packet.time_ns),
            None => {}
        }
    }

    fn tcp(&mut self, packet: &Packet<'_>, headers: &Headers<'_>, tcp: &Tcp, from: SocketAddr, to: SocketAddr) {
        self.packets += 1;
        let key = (packet.place, (from.min(to), from.max(to)));
        let begins = tcp.flags & (flags::SYN | flags::ACK) == flags::SYN;
        // A new connection may have the addresses of an earlier one.
        if begins
            && let Some(known) = self.flows.get(&key)
            && known.is_over
            && let Some(flow) = self.flows.remove(&key)
        {
            self.over.push(flow.end(packet.place, packet.time_ns));
        }
        let flow = self.flows.entry(key).or_insert_with(|| Flow::new(from, to, tcp.flags, packet.time_ns));
        flow.packet(packet, headers, tcp, from);
    }

    /// Adds a message to or from a name server.
    fn question(&mut self, message: &[u8], from: SocketAddr, to: SocketAddr, now: u64) {
        let [high, low, bits, ..] = *message else { return };
        let (id, is_answer) = (u16::from_be_bytes([high, low]), bits & 0x80 != 0);
        if !is_answer && to.port() == DNS_PORT {
            let questions = self.questions.entry((from.ip(), to)).or_default();
            questions.asked += 1;
            // The same question once more: the first one was not answered.
            questions.unanswered += u64::from(self.asked.insert((from, to, id), now).is_some());
        } else if is_answer
            && from.port() == DNS_PORT
            && let Some(asked) = self.asked.remove(&(to, from, id))
        {
            let questions = self.questions.entry((to.ip(), from)).or_default();
            questions.answers.add(now.saturating_sub(asked));
        }
    }

    /// Returns the number of packets of connections.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the connections, each as the place shows it that has most of its packets, and the questions for names.
    pub fn end(mut self) -> (Vec<Connection>, Vec<Asked>) {
        let flows = self.flows.into_iter().map(|((place, _), flow)| flow.end(place, self.last_ns));
        self.over.extend(flows);
        let mut places: HashMap<Ends, (u32, u64)> = HashMap::new();
        for (place, connection, packets) in &self.over {
            let seen = places.entry((connection.client, connection.server)).or_insert((*place, *packets));
            if *packets > seen.1 {
                *seen = (*place, *packets);
            }
        }
        let is_best =
            |place: u32, one: &Connection| places.get(&(one.client, one.server)).is_none_or(|best| best.0 == place);
        let mut connections: Vec<Connection> =
            self.over.into_iter().filter(|(place, one, _)| is_best(*place, one)).map(|(_, one, _)| one).collect();
        connections.sort_by_key(|one| (one.server, one.client));
        for ((from, to, _), asked) in self.asked {
            if self.last_ns.saturating_sub(asked) >= ANSWER_NS {
                self.questions.entry((from.ip(), to)).or_default().unanswered += 1;
            }
        }
        let mut questions: Vec<Asked> =
            self.questions.into_iter().map(|((host, server), questions)| Asked { host, server, questions }).collect();
        questions.sort_by_key(|asked| (asked.server, asked.host));
        (connections, questions)
    }
}

/// A connection at one place.
#[derive(Debug)]
struct Flow {
    client: SocketAddr,
    server: SocketAddr,
    begun_ns: u64,
    last_ns: u64,
    packets: u64,
    handshake: Handshake,
    first_request: Option<u64>,
    last_answer: Option<u64>,
    reset: Option<Reset>,
    /// A side has ended or reset the connection.
    is_over: bool,
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
    fn new(from: SocketAddr, to: SocketAddr, flags: u8, now: u64) -> Self {
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
            last_answer: None,
            reset: None,
            is_over: false,
            has_ended: [false; 2],
            streams: Default::default(),
            scales: [None; 2],
            hops: [None; 2],
            spoke: None,
        }
    }

    fn packet(&mut self, packet: &Packet<'_>, headers: &Headers<'_>, tcp: &Tcp, from: SocketAddr) {
        let now = packet.time_ns;
        self.last_ns = self.last_ns.max(now);
        self.packets += 1;
        let side = if from == self.client { Side::Client } else { Side::Server };
        let options = headers.transport_at.and_then(|at| packet.captured.get(at + TCP_HEADER..headers.payload_at));
        let options = Options::parse(options.unwrap_or_default());
        let has = |flag: u8| tcp.flags & flag != 0;
        if has(flags::RST) {
            self.is_over = true;
            return self.was_reset(side, headers.ip.map(|ip| ip.ttl));
        }
        self.hops[side as usize] = headers.ip.map(|ip| ip.ttl);
        if has(flags::SYN) {
            self.scales[side as usize] = options.scale;
            return self.greet(has(flags::ACK), now);
        }
        if has(flags::ACK) {
            self.acknowledged(side, tcp, &options, now);
        }
        self.is_over |= has(flags::FIN);
        self.has_ended[side as usize] |= has(flags::FIN);
        let payload = u32::try_from(headers.payload_len).unwrap_or(u32::MAX);
        let way = self.streams[side.other() as usize].half.shortest_ns;
        let timestamp = options.timestamps.map(|(own, _)| own);
        let segment = Segment { seq: tcp.seq, payload, ends: has(flags::FIN), timestamp };
        let standing = self.streams[side as usize].segment(&segment, now, way);
        if payload > 0 {
            self.speak(side, standing, now);
        }
    }

    /// Adds a packet of the handshake.
    fn greet(&mut self, is_answer: bool, now: u64) {
        if !is_answer {
            self.handshake.requests += 1;
            self.first_request.get_or_insert(now);
            return;
        }
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
            is_early: other.has_unacknowledged() || is_unanswered,
        });
    }

    /// Returns the place, the measures at the end of the packets, and the number of packets.
    fn end(self, place: u32, now: u64) -> (u32, Connection, u64) {
        let now = if self.is_over { self.last_ns } else { now };
        let connection = Connection {
            client: self.client,
            server: self.server,
            span_ns: self.last_ns - self.begun_ns,
            handshake: self.handshake,
            reset: self.reset,
            halves: self.streams.map(|stream| stream.end(now)),
        };
        (place, connection, self.packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trawl_packet::build::{Tcp as Header, Template};
    use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

    const MS: u64 = 1_000_000;
    const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
    const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

    #[derive(Default)]
    struct File {
        analysis: Analysis,
        place: u32,
    }

    impl File {
        /// Adds a segment: its side, time, sequence number, acknowledgement, flags and payload.
        fn segment(&mut self, side: Side, at_ms: u64, seq: u32, ack: u32, flags: u8, payload: usize) {
            let (from, to) = if side == Side::Client { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
            let header = Header { src: from.1, dst: to.1, seq, ack, flags, window: 1000, ..Header::default() };
            let frame = Template::new()
                .ethernet([2; 6], [4; 6])
                .ipv4(from.0, to.0)
                .tcp(header)
                .payload(vec![0; payload])
                .build();
            self.frame(at_ms, &frame);
        }

        fn frame(&mut self, at_ms: u64, frame: &[u8]) {
            let captured = &frame[..frame.len().min(128)];
            let packet = Packet { time_ns: at_ms * MS, link_type: LINKTYPE_ETHERNET, captured, place: self.place };
            self.analysis.add(&packet);
        }

        fn greet(&mut self) {
            self.segment(Side::Client, 0, 99, 0, flags::SYN, 0);
            self.segment(Side::Server, 40, 499, 100, flags::SYN | flags::ACK, 0);
            self.segment(Side::Client, 41, 100, 500, flags::ACK, 0);
        }

        fn dns(&mut self, at_ms: u64, id: u16, is_answer: bool) {
            let (from, to) = if is_answer { ((SERVER.0, 53), CLIENT) } else { (CLIENT, (SERVER.0, 53)) };
            let [high, low] = id.to_be_bytes();
            let message = [high, low, if is_answer { 0x81 } else { 1 }, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            let template = Template::new().ethernet([2; 6], [4; 6]).ipv4(from.0, to.0).udp(from.1, to.1);
            self.frame(at_ms, &template.payload(message).build());
        }
    }

    #[test]
    fn handshake_measures_both_parts_of_the_way() {
        let mut file = File::default();
        file.greet();
        let (connections, _) = file.analysis.end();
        let [one] = &connections[..] else { panic!("{connections:?}") };
        assert_eq!((one.client.port(), one.server.port()), (40_000, 80));
        assert_eq!(one.halves.map(|half| half.shortest_ns), [Some(40 * MS), Some(MS)]);
        assert_eq!((one.handshake.requests, one.handshake.answered_ns), (1, Some(40 * MS)));
    }

    #[test]
    fn answers_exclude_the_way_and_repetitions_of_the_question() {
        let mut file = File::default();
        file.greet();
        for turn in 0..4_u64 {
            let (at, seq) = (1000 * (turn + 1), 100 + 10 * turn as u32);
            file.segment(Side::Client, at, seq, 500 + 5 * turn as u32, flags::ACK, 10);
            // The question is repeated once.
            if turn == 3 {
                file.segment(Side::Client, at + 400, seq, 515, flags::ACK, 10);
            }
            let answered = at + if turn == 3 { 740 } else { 340 };
            file.segment(Side::Server, answered, 500 + 5 * turn as u32, seq + 10, flags::ACK, 5);
        }
        let (connections, _) = file.analysis.end();
        let half = connections[0].half(Side::Server);
        assert_eq!((half.answers.count(), half.answers_ns), (4, 4 * 300 * MS));
        assert_eq!(connections[0].half(Side::Client).answers.count(), 3, "pauses");
    }

    #[test]
    fn resets_have_a_side_a_distance_and_a_time() {
        let reset = |by: Side, unanswered: bool| {
            let mut file = File::default();
            file.greet();
            if unanswered {
                file.segment(Side::Client, 100, 100, 500, flags::ACK, 10);
            }
            file.segment(by, 200, if by == Side::Client { 100 } else { 500 }, 0, flags::RST, 0);
            file.analysis.end().0[0].reset.expect("a reset")
        };
        let early = reset(Side::Server, true);
        assert_eq!((early.by, early.is_early, early.is_foreign), (Side::Server, true, false));
        assert!(!reset(Side::Client, false).is_early);
        let mut file = File::default();
        file.greet();
        file.segment(Side::Server, 100, 500, 100, flags::FIN | flags::ACK, 0);
        file.segment(Side::Client, 110, 100, 501, flags::ACK, 10);
        file.segment(Side::Server, 120, 501, 0, flags::RST, 0);
        assert!(file.analysis.end().0[0].reset.is_none(), "it had ended");
        let mut file = File::default();
        file.segment(Side::Client, 0, 99, 0, flags::SYN, 0);
        file.segment(Side::Server, 1, 0, 100, flags::RST | flags::ACK, 0);
        assert!(file.analysis.end().0[0].handshake.is_refused);
    }

    #[test]
    fn packets_of_two_places_are_no_repetitions() {
        let mut file = File::default();
        for place in [1, 2] {
            file.place = place;
            file.greet();
            for number in 0..5 + u32::from(place == 2) {
                file.segment(Side::Client, 100 + u64::from(number), 100 + 10 * number, 500, flags::ACK, 10);
            }
        }
        let (connections, _) = file.analysis.end();
        let [one] = &connections[..] else { panic!("{connections:?}") };
        assert_eq!((one.halves[0].segments, one.halves[0].repeated), (6, 0), "the place with most packets");
    }

    #[test]
    fn connections_with_the_same_ports_follow_each_other() {
        let mut file = File::default();
        for begin in [0, 1000] {
            file.greet();
            file.segment(Side::Client, begin + 50, 100, 500, flags::ACK | flags::FIN, 10);
        }
        assert_eq!(file.analysis.end().0.len(), 2);
    }

    #[test]
    fn questions_for_names_are_matched() {
        let mut file = File::default();
        for id in 0..4 {
            file.dns(100 * u64::from(id), id, false);
            if id != 2 {
                file.dns(100 * u64::from(id) + 20, id, true);
            }
        }
        // The last one may still be answered.
        file.dns(5000, 9, false);
        let (_, asked) = file.analysis.end();
        let questions = asked[0].questions;
        assert_eq!((questions.asked, questions.unanswered, questions.answers.count()), (5, 1, 3));
        assert!(questions.answers.median_ns().is_some_and(|ns| ns.abs_diff(20 * MS) < 8 * MS));
    }
}
