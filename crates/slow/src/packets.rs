//! Connections and questions for names in the packets of a file. The first 128 bytes of each packet are enough.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use trawl_packet::build::flags;
use trawl_packet::net::protocol;
use trawl_packet::pcapng::note::DropNote;
use trawl_packet::walk::{Headers, Tcp, walk};
use trawl_view::why::NETFILTER;

use crate::drops::{Direction, Dropped, Drops};
use crate::flow::{Ended, Flow};
use crate::measures::{Connection, NAMES_PORT, Questions};

/// Time for an answer of a name server.
const ANSWER_NS: u64 = 1_000_000_000;
/// The two hooks of tc, each of which sees one direction of a connection.
const TC: [&str; 2] = ["tc ingress", "tc egress"];

/// Returns the hook of a place: packets of both hooks of tc are packets of one place.
pub fn place_hook(hook: &str) -> &str {
    if TC.contains(&hook) { "tc" } else { hook }
}

/// A packet of a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    pub time_ns: u64,
    pub link_type: u16,
    pub captured: &'a [u8],
    /// Number of the capture point: packets of several points are no repetitions.
    pub place: u32,
    /// True for a sent packet, false for a received one, if that is known.
    pub is_sent: Option<bool>,
    /// Number and name of its process, if that is certain.
    pub process: Option<(u32, &'a str)>,
}

/// The end of a packet that the kernel dropped, and lost.
#[derive(Clone, Copy, Debug)]
pub struct PacketDrop<'a> {
    pub netns: &'a str,
    /// The caller's number of the reason, the function and the rule.
    pub cause: u32,
    /// A rule dropped it.
    pub is_filtered: bool,
}

impl<'a> PacketDrop<'a> {
    pub fn new(drop: &DropNote<'a>, cause: u32) -> Self {
        Self { netns: drop.netns.unwrap_or_default(), cause, is_filtered: drop.reason == NETFILTER }
    }
}

/// Measures of all packets so far.
#[derive(Debug, Default)]
pub struct Analysis {
    /// Maximum number of connections at all places; `None`: all are measured, and questions for names.
    most: Option<usize>,
    flows: HashMap<Key, Flow>,
    /// Connections for whose segments there was no room.
    given_up: HashSet<Key>,
    /// Number of segments that wait for an acknowledgement.
    waiting: usize,
    over: Vec<Ended>,
    drops: Drops,
    questions: HashMap<(IpAddr, SocketAddr), Questions>,
    /// Times of the questions without an answer yet.
    asked: HashMap<(SocketAddr, SocketAddr, u16), u64>,
    last_ns: u64,
    packets: u64,
}

/// The lower end of a flow, and the higher one.
type Ends = (SocketAddr, SocketAddr);
/// The place of a flow, and its ends.
type Key = (u32, Ends);

/// Segments for each connection that may wait for an acknowledgement, if the number of connections is bounded.
const WAITING: usize = 64;

/// Questions of a host to a name server.
#[derive(Clone, Debug)]
pub struct Asked {
    pub host: IpAddr,
    pub server: SocketAddr,
    pub questions: Questions,
}

/// Returns the segment of a packet that the kernel dropped, if it is one.
pub fn dropped<'a>(packet: &Packet<'_>, drop: &PacketDrop<'a>) -> Option<Dropped<'a>> {
    let headers = walk(packet.link_type, packet.captured);
    let (ip, (src, dst), tcp) = (headers.ip?, headers.ports?, headers.tcp?);
    let marks = u32::from(tcp.flags & flags::SYN != 0) + u32::from(tcp.flags & flags::FIN != 0);
    (!headers.incomplete).then(|| Dropped {
        direction: Direction { sender: SocketAddr::new(ip.src, src), receiver: SocketAddr::new(ip.dst, dst) },
        seq: tcp.seq,
        length: u32::try_from(headers.payload_len).unwrap_or(u32::MAX).saturating_add(marks),
        ack: (tcp.flags & flags::ACK != 0).then_some(tcp.ack),
        time_ns: packet.time_ns,
        place: drop.netns,
        cause: drop.cause,
        is_filtered: drop.is_filtered,
    })
}

impl Analysis {
    /// Returns an analysis of the first connections only, whose memory does not grow with the packets.
    pub fn of_first(most: usize) -> Self {
        Self { most: Some(most), ..Self::default() }
    }

    /// Returns true if there is no room for the measures of another connection.
    fn is_full(&self) -> bool {
        let known = self.flows.len() + self.over.len() + self.given_up.len();
        self.most.is_some_and(|most| known >= most)
    }

    pub fn add(&mut self, packet: &Packet<'_>) {
        let headers = walk(packet.link_type, packet.captured);
        self.last_ns = self.last_ns.max(packet.time_ns);
        let (Some(ip), Some((src, dst)), false) = (headers.ip, headers.ports, headers.incomplete) else { return };
        let (from, to) = (SocketAddr::new(ip.src, src), SocketAddr::new(ip.dst, dst));
        match headers.tcp {
            Some(tcp) => self.tcp(packet, &headers, &tcp, from, to),
            None if ip.protocol == protocol::UDP && self.most.is_none() => {
                self.question(headers.payload, from, to, packet.time_ns)
            }
            None => {}
        }
    }

    /// Adds a packet that the kernel dropped. It is no packet of the connection at a capture point.
    pub fn add_drop(&mut self, packet: &Packet<'_>, drop: &PacketDrop<'_>) {
        self.last_ns = self.last_ns.max(packet.time_ns);
        if let Some(dropped) = dropped(packet, drop) {
            self.drops.add(&dropped);
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
            self.waiting -= flow.waiting();
            self.over.push(flow.end(packet.place, packet.time_ns, &mut self.drops));
        }
        if self.given_up.contains(&key) || (self.is_full() && !self.flows.contains_key(&key)) {
            return;
        }
        let flow = self.flows.entry(key).or_insert_with(|| Flow::new(from, to, tcp.flags, packet.time_ns));
        let before = flow.waiting();
        flow.packet(packet, headers, tcp, from);
        self.waiting = self.waiting + flow.waiting() - before;
        let is_bounded = self.most.is_some();
        flow.join(&mut self.drops, |joins| is_bounded || joins.is_full());
        if self.most.is_some_and(|most| self.waiting > most * WAITING) {
            self.waiting -= flow.waiting();
            self.flows.remove(&key);
            self.given_up.insert(key);
        }
    }

    /// Adds a message to or from a name server.
    fn question(&mut self, message: &[u8], from: SocketAddr, to: SocketAddr, now: u64) {
        let [high, low, bits, ..] = *message else { return };
        let (id, is_answer) = (u16::from_be_bytes([high, low]), bits & 0x80 != 0);
        if !is_answer && to.port() == NAMES_PORT {
            let questions = self.questions.entry((from.ip(), to)).or_default();
            questions.asked += 1;
            // The same question once more: the first one was not answered.
            questions.unanswered += u64::from(self.asked.insert((from, to, id), now).is_some());
        } else if is_answer
            && from.port() == NAMES_PORT
            && let Some(asked) = self.asked.remove(&(to, from, id))
        {
            let questions = self.questions.entry((to.ip(), from)).or_default();
            let answered_ns = now.saturating_sub(asked);
            questions.answers.add(answered_ns);
            questions.answers_ns += answered_ns;
        }
    }

    /// Returns the number of packets of connections.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of dropped segments that could not be kept.
    pub fn drops_left_out(&self) -> u64 {
        self.drops.left_out()
    }

    /// Returns the connections, each as the place shows it that has most of its packets, and the questions for names.
    /// `name` returns the text of a drop's cause.
    pub fn end(mut self, name: impl Fn(u32) -> String) -> (Vec<Connection>, Vec<Asked>) {
        let mut open: Vec<(Key, Flow)> = self.flows.into_iter().collect();
        open.sort_by_key(|(key, _)| *key);
        for ((place, _), flow) in open {
            self.over.push(flow.end(place, self.last_ns, &mut self.drops));
        }
        // Connections of two namespaces may have the same addresses, but begin with other numbers.
        let mut begun: HashMap<Ends, u32> = HashMap::new();
        for one in &self.over {
            one.first_seq.map(|seq| begun.entry(one.ends()).or_insert(seq));
        }
        let identity = |one: &Ended| (one.ends(), one.first_seq.or_else(|| begun.get(&one.ends()).copied()));
        let mut places: HashMap<(Ends, Option<u32>), (u32, u64)> = HashMap::new();
        for one in &self.over {
            let seen = places.entry(identity(one)).or_insert((one.place, one.packets));
            if one.packets > seen.1 {
                *seen = (one.place, one.packets);
            }
        }
        let is_best = |one: &Ended| places.get(&identity(one)).is_none_or(|best| best.0 == one.place);
        let best: Vec<bool> = self.over.iter().map(is_best).collect();
        let shown = self.over.into_iter().zip(best).filter(|(_, is_best)| *is_best);
        let mut connections: Vec<Connection> = shown.map(|(one, _)| one.named(&name)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measures::{HereDrop, Side};
    use trawl_packet::build::{Tcp as Header, Template};
    use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

    const MS: u64 = 1_000_000;
    const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);
    const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

    #[derive(Default)]
    struct File {
        analysis: Analysis,
        place: u32,
        is_sent: Option<bool>,
        process: Option<(u32, &'static str)>,
        /// Packets are dropped in this namespace.
        dropped_in: Option<&'static str>,
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
            let packet = Packet {
                time_ns: at_ms * MS,
                link_type: LINKTYPE_ETHERNET,
                captured,
                place: self.place,
                is_sent: self.is_sent,
                process: self.process,
            };
            match &self.dropped_in {
                Some(netns) => {
                    let drop = PacketDrop { netns, cause: 5, is_filtered: true };
                    self.analysis.add_drop(&packet, &drop);
                }
                None => self.analysis.add(&packet),
            }
        }

        fn end(self) -> (Vec<Connection>, Vec<Asked>) {
            self.analysis.end(|cause| cause.to_string())
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
        let (connections, _) = file.end();
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
        let (connections, _) = file.end();
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
            file.end().0[0].reset.expect("a reset")
        };
        let early = reset(Side::Server, true);
        assert_eq!((early.by, early.is_early, early.is_foreign), (Side::Server, true, false));
        assert!(!reset(Side::Client, false).is_early);
        let mut file = File::default();
        file.greet();
        file.segment(Side::Server, 100, 500, 100, flags::FIN | flags::ACK, 0);
        file.segment(Side::Client, 110, 100, 501, flags::ACK, 10);
        file.segment(Side::Server, 120, 501, 0, flags::RST, 0);
        assert!(file.end().0[0].reset.is_none(), "it had ended");
        let mut file = File::default();
        file.segment(Side::Client, 0, 99, 0, flags::SYN, 0);
        file.segment(Side::Server, 1, 0, 100, flags::RST | flags::ACK, 0);
        assert!(file.end().0[0].handshake.is_refused);
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
        let (connections, _) = file.end();
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
        assert_eq!(file.end().0.len(), 2);
    }

    #[test]
    fn memory_of_the_first_connections_is_bounded() {
        let mut file = File { analysis: Analysis::of_first(2), ..File::default() };
        for at in 0..5 {
            file.greet();
            file.segment(Side::Client, at, 100, 500, flags::ACK | flags::FIN, 10);
        }
        assert!(file.analysis.is_full());
        assert_eq!(file.end().0.len(), 2);
        let mut file = File { analysis: Analysis::of_first(2), ..File::default() };
        file.greet();
        for number in 0..1000 {
            file.segment(Side::Client, 50, 100 + number, 500, flags::ACK, 1);
        }
        assert_eq!((file.analysis.waiting, file.analysis.given_up.len()), (0, 1), "nobody acknowledges");
        assert_eq!(file.end().0.len(), 0);
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
        let (_, asked) = file.end();
        let questions = asked[0].questions;
        assert_eq!((questions.asked, questions.unanswered, questions.answers.count()), (5, 1, 3));
        assert!(questions.answers.median_ns().is_some_and(|ns| ns.abs_diff(20 * MS) < 8 * MS));
    }

    /// Adds segments of the client, of which every fourth is dropped and repeated in order; `base` is the first number.
    fn lossy(file: &mut File, base: u32, at_ms: u64, dropped_in: Option<&'static str>) {
        for number in 0..20 {
            let (at, seq) = (at_ms + 50 * u64::from(number), base + 10 * number);
            file.segment(Side::Client, at, seq, 500, flags::ACK, 10);
            if number % 4 == 0 {
                file.dropped_in = dropped_in;
                if dropped_in.is_some() {
                    file.segment(Side::Client, at, seq, 500, flags::ACK, 10);
                    file.dropped_in = None;
                }
                file.segment(Side::Client, at + 20, seq, 500, flags::ACK, 10);
            }
            file.segment(Side::Server, at + 25, 500, seq + 10, flags::ACK, 0);
        }
    }

    fn here(joined: u64) -> Option<HereDrop> {
        Some(HereDrop { joined, drop: "5".to_owned() })
    }

    #[test]
    fn repetitions_are_joined_with_drops() {
        let mut file = File::default();
        file.greet();
        lossy(&mut file, 100, 100, Some("web"));
        let (connections, _) = file.end();
        let one = &connections[0];
        assert_eq!((one.halves[0].repeated, &one.here.data), (5, &[here(5), None]));
        assert_eq!((&one.here.greetings, &one.here.reset), (&[None, None], &None));
    }

    #[test]
    fn copies_that_a_namespace_drops_are_not_the_cause() {
        let mut file = File::default();
        file.greet();
        for number in 0..20 {
            file.dropped_in = Some("mirror");
            file.segment(Side::Client, 100 + 50 * number, 100 + 10 * number as u32, 500, flags::ACK, 10);
            file.dropped_in = None;
        }
        lossy(&mut file, 100, 100, None);
        let (connections, _) = file.end();
        assert_eq!((connections[0].halves[0].repeated, &connections[0].here.data), (5, &[None, None]));
    }

    #[test]
    fn requests_that_were_dropped_are_joined() {
        let mut file = File::default();
        for at in [0, 1000, 3000] {
            file.segment(Side::Client, at, 99, 0, flags::SYN, 0);
            file.dropped_in = Some("web");
            file.segment(Side::Client, at + 1, 99, 0, flags::SYN, 0);
            file.dropped_in = None;
        }
        let (connections, _) = file.end();
        assert_eq!((connections[0].handshake.requests, &connections[0].here.greetings), (3, &[here(3), None]));
        let mut file = File::default();
        file.segment(Side::Client, 0, 99, 0, flags::SYN, 0);
        for at in [1, 1000] {
            file.segment(Side::Server, at, 499, 100, flags::SYN | flags::ACK, 0);
            file.dropped_in = Some("web");
            file.segment(Side::Server, at + 1, 499, 100, flags::SYN | flags::ACK, 0);
            file.dropped_in = None;
        }
        let (connections, _) = file.end();
        assert_eq!((connections[0].handshake.answers, &connections[0].here.greetings), (2, &[None, here(2)]));
    }

    #[test]
    fn reset_that_answers_a_dropped_packet_is_joined() {
        let reset = |seq| {
            let mut file = File::default();
            file.greet();
            file.segment(Side::Client, 100, 100, 500, flags::ACK, 10);
            file.segment(Side::Server, 101, seq, 0, flags::RST, 0);
            file.dropped_in = Some("web");
            file.segment(Side::Client, 102, 100, 500, flags::ACK, 10);
            file.end().0[0].here.reset.clone()
        };
        assert_eq!((reset(500), reset(501)), (Some("5".to_owned()), None));
    }

    /// Sequence numbers begin by a clock, so that they may overlap.
    #[test]
    fn connections_of_two_namespaces_are_told_apart() {
        let mut file = File::default();
        file.greet();
        lossy(&mut file, 100, 100, Some("web"));
        file.place = 1;
        file.segment(Side::Client, 0, 98, 0, flags::SYN, 0);
        file.segment(Side::Server, 40, 600, 99, flags::SYN | flags::ACK, 0);
        for number in 0..20 {
            let (at, seq) = (100 + 50 * u64::from(number), 99 + 10 * number);
            for at in [at, at + 20] {
                file.segment(Side::Client, at, seq, 601, flags::ACK, 10);
            }
        }
        let (connections, _) = file.end();
        let found: Vec<_> = connections.iter().map(|one| (one.halves[0].repeated, one.here.data[0].clone())).collect();
        assert!(found.len() == 2 && found.contains(&(5, here(5))) && found.contains(&(20, None)), "{found:?}");
    }

    #[test]
    fn process_belongs_to_the_side_that_is_here() {
        let found = |is_sent: Option<bool>, answers: Option<(u32, &'static str)>| {
            let mut file = File { is_sent, process: Some((7, "curl")), ..File::default() };
            file.segment(Side::Client, 0, 99, 0, flags::SYN, 0);
            (file.is_sent, file.process) = (is_sent.map(|is_sent| !is_sent), answers);
            file.segment(Side::Server, 40, 499, 100, flags::SYN | flags::ACK, 0);
            file.end().0[0].processes.each_ref().map(|process| process.as_ref().map(|process| process.id))
        };
        let curl = Some((7, "curl"));
        assert_eq!(found(Some(true), curl), [Some(7), None]);
        assert_eq!(found(Some(false), curl), [None, Some(7)]);
        assert_eq!(found(Some(false), None), [None, None], "the packet of a container may name its sender");
    }
}
