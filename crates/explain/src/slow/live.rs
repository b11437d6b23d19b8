//! Verdicts about the connections of this host, from the measures of its sockets and the packets that it drops.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::slow::{
    SLOW_CLIENT, SLOW_CLOSED, SLOW_FIRST_BITS, SLOW_FIXED_BUFFER, SLOW_MISSING, SLOW_PROBED, SLOW_REPEATED,
    SLOW_RESET_BY_PEER, SLOW_RESET_EARLY, SLOW_RESET_HERE, SLOW_UNCLEAR, SlowCounts, SlowEnds, SlowRow, SlowSegment,
};
use trawl_bpf::slow_watch::{Event, Results, SlowWatch, frequency};
use trawl_capture::process::Processes;
use trawl_capture::session::Attached;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Pressure, UNWATCHED, WriteOutcome, Writer};
use trawl_slow::drops::{Direction, Drops, Repetition};
use trawl_slow::histogram::Histogram;
use trawl_slow::joins::{Found, Joins};
use trawl_slow::judge::judge_names;
use trawl_slow::measures::{HereDrop, NAMES_PORT, Questions, Reset, Side};
use trawl_slow::packets::dropped;
use trawl_slow::socket::{Closed, Queues, Received, Sent, Socket, SocketDrops, Stage, judge, judge_filtered};
pub use trawl_slow::sockets::SocketReport;
use trawl_slow::sockets::{Between, Findings, Owner};
use trawl_source::packets_of;
use trawl_sys::{Error, Result, clock, netns};
use trawl_view::record::RingPackets;

use super::causes::{Causes, Way};
use super::chosen::{Chosen, Transport};
use super::file::packet_of;
use super::record;
use crate::why::culprits::Culprits;

/// Interval of looks: a listening socket's queue may be full for a moment only.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of sockets, and of segments that were repeated or missing.
const MOST_SOCKETS: usize = 65_536;
const MOST_SEGMENTS: usize = 262_144;
/// Time for an answer of a name server.
const ANSWER_NS: u64 = 2_500_000_000;
const MICROSECOND: u64 = 1000;
/// The kernel's clock, if nothing happened.
const USUAL_FREQUENCY: u64 = 250;
/// States of TCP.
const SYN_SENT: u32 = 2;
const LISTENING: u32 = 10;

/// The ends of a socket's connection, and its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    local: SocketAddr,
    remote: SocketAddr,
    netns: u32,
}

/// Names of network namespaces, by number.
#[derive(Debug, Default)]
struct Names(HashMap<u32, String>);

impl Names {
    /// Reads the names that namespaces have now.
    fn refresh(&mut self) {
        let number = |name: &String| Some(netns::identity_of(name)?.1 as u32);
        self.0.extend(netns::list().into_iter().filter_map(|name| Some((number(&name)?, name))));
    }

    /// Returns the name of a namespace, or its number.
    fn name(&self, number: u32) -> String {
        self.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }
}

/// The reason, place and rule of a drop.
struct DropName {
    text: String,
    /// The rule answers the packets that it drops.
    rejects: bool,
}

/// Segments that a rule here dropped on their way out, or on their way to a process.
#[derive(Debug)]
struct Filtered {
    cause: u32,
    segments: u64,
    process: u32,
    netns: String,
    way: Way,
}

/// A running search for the causes of delay.
pub struct Live<'a> {
    watch: SlowWatch,
    processes: Rc<Processes>,
    packets: RingPackets,
    causes: Causes,
    culprits: Culprits,
    /// Number of rows when the objects that may have dropped their packets were last read.
    rows_read: usize,
    drops: Drops,
    chosen: Chosen<'a>,
    namespaces: Names,
    /// Gets all packets.
    file: Option<&'a mut dyn Writer>,
    /// Gets a report after each look.
    audience: Option<&'a mut dyn FnMut(&SocketReport)>,
    /// The last row of each socket, by its cookie and namespace.
    rows: HashMap<u64, SlowRow>,
    /// The longest queues of listening sockets.
    queues: HashMap<u64, Queues>,
    segments: HashMap<Ends, Vec<SlowSegment>>,
    filtered: HashMap<Direction, Filtered>,
    kept: usize,
    left_out: u64,
    looked: Instant,
    /// The kernel's counts at the last look, and of them the connections, and the ones that wait for their processes.
    counts: SlowCounts,
    looked_at: u64,
    waiting: u64,
    /// Objects that dropped packets are named at the end, since their counters are compared once.
    is_over: bool,
}

impl fmt::Debug for Live<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").finish_non_exhaustive()
    }
}

impl<'a> Live<'a> {
    pub fn begin(
        capture: &Attached,
        chosen: Chosen<'a>,
        file: Option<&'a mut dyn Writer>,
        audience: Option<&'a mut dyn FnMut(&SocketReport)>,
    ) -> Result<Self> {
        let processes = capture.processes().ok_or_else(|| {
            Error::failed("cannot measure connections", "the processes of sockets are not known")
                .fix("this requires root, and a kernel with cgroups of version 2")
        })?;
        Ok(Self {
            watch: SlowWatch::attach(&processes.watch, Results::Events)?,
            processes: Rc::clone(processes),
            packets: packets_of(capture),
            culprits: Culprits::new(true, None),
            rows_read: 0,
            drops: Drops::default(),
            causes: Causes::default(),
            chosen,
            namespaces: Names::default(),
            file,
            audience,
            rows: HashMap::new(),
            queues: HashMap::new(),
            segments: HashMap::new(),
            filtered: HashMap::new(),
            kept: 0,
            left_out: 0,
            looked: Instant::now(),
            counts: SlowCounts::zeroed(),
            looked_at: 0,
            waiting: 0,
            is_over: false,
        })
    }

    /// Looks at all sockets once more, and judges them. Returns also the connections with a verdict.
    pub fn into_report(mut self, account: &PacketAccount) -> Result<(SocketReport, record::Culprits)> {
        self.is_over = true;
        self.look()?;
        self.judge(account.lost_total())
    }

    /// Judges the sockets as they were at the last look.
    fn judge(&mut self, lost: u64) -> Result<(SocketReport, record::Culprits)> {
        let counts = self.counts;
        let hertz = self.frequency(counts.tick, counts.tick_time);
        let lost_events = counts.lost_events + self.left_out + self.drops.left_out() + lost;
        let (mut findings, mut culprits) = (Findings::default(), record::Culprits::default());
        let rows: Vec<SlowRow> = self.rows.values().filter(|row| self.chosen.has_row(row)).copied().collect();
        let (mut names, mut explained) = (HashMap::new(), HashSet::new());
        for row in &rows {
            let mut socket = socket_of(row, hertz);
            self.note_drops(row, &mut socket);
            socket.here.are_incomplete = lost_events > 0;
            if let Stage::Listening(queues) = &mut socket.stage {
                *queues = self.queues.get(&row.cookie).copied().unwrap_or(*queues);
            }
            let verdicts = judge(&socket);
            if verdicts.is_empty() || !self.chosen.matches(socket.local, socket.remote, Transport::Tcp)? {
                continue;
            }
            let owner = names.entry((row.process, row.cgroup)).or_insert_with(|| self.owner(row.process, row.cgroup));
            let owner = owner.clone();
            for verdict in verdicts {
                culprits.add(socket.local, socket.remote, &verdict.text());
                findings.add(&owner, Between::of(&socket, self.namespaces.name(socket.netns)), verdict);
            }
            explained.insert(Direction { sender: socket.local, receiver: socket.remote });
        }
        self.judge_filtered(&explained, &mut findings, &mut culprits)?;
        self.judge_names(&mut findings, &mut culprits)?;
        let report = SocketReport {
            connections: self.looked_at + counts.ended,
            waiting: self.waiting,
            lost_events,
            findings: findings.sorted(),
        };
        Ok((report, culprits))
    }

    fn owner(&self, process: u32, cgroup: u64) -> Owner {
        if process == 0 {
            return Owner::default();
        }
        let name = self.processes.name_of(process, (cgroup != 0).then_some(cgroup));
        Owner { pid: Some(process), process: name.name, container: name.container, pod: name.pod }
    }

    /// Returns the frequency of the kernel's clock, from the first tick that was seen and the last row.
    fn frequency(&self, tick: u64, time: u64) -> u64 {
        let Some(last) = self.rows.values().max_by_key(|row| row.time) else { return USUAL_FREQUENCY };
        frequency([(tick, time), (last.tick, last.time)])
    }

    fn look(&mut self) -> Result<()> {
        self.looked = Instant::now();
        self.namespaces.refresh();
        let before = self.watch.counts()?;
        self.watch.look()?;
        self.counts = self.watch.counts()?;
        self.looked_at = self.counts.looked_at.saturating_sub(before.looked_at);
        self.waiting = self.counts.waiting.saturating_sub(before.waiting);
        self.read_events();
        Ok(())
    }

    /// Reads the objects that may have dropped the packets of new rows, and looks if it is time.
    fn catch_up(&mut self) -> Result<()> {
        let rows = &self.causes.tally.rows;
        if rows.len() > self.rows_read {
            self.rows_read = rows.len();
            rows.keys().for_each(|key| self.culprits.read_counters(key));
        }
        if self.looked.elapsed() >= LOOK_EVERY {
            self.look()?;
            if self.audience.is_some() {
                let (report, _) = self.judge(0)?;
                if let Some(audience) = &mut self.audience {
                    audience(&report);
                }
            }
            return Ok(());
        }
        self.read_events();
        Ok(())
    }

    fn read_events(&mut self) {
        for event in self.watch.events() {
            match event {
                Event::Socket(row) => self.note_socket(&row),
                Event::Segment(segment) => self.note_segment(&segment),
            }
        }
    }

    fn note_socket(&mut self, row: &SlowRow) {
        if self.rows.len() >= MOST_SOCKETS && !self.rows.contains_key(&row.cookie) {
            self.left_out += 1;
            return;
        }
        if row.state == LISTENING {
            let now = queues_of(row);
            let known = self.queues.entry(row.cookie).or_insert(now);
            *known =
                Queues { waiting: known.waiting.max(now.waiting), requests: known.requests.max(now.requests), ..now };
        }
        self.rows.insert(row.cookie, *row);
    }

    fn note_segment(&mut self, segment: &SlowSegment) {
        if self.kept >= MOST_SEGMENTS {
            self.left_out += 1;
            return;
        }
        self.kept += 1;
        self.segments.entry(ends_of(&segment.ends)).or_default().push(*segment);
    }

    /// Notes the packets of a connection that the kernel here has dropped.
    fn note_drops(&mut self, row: &SlowRow, socket: &mut Socket) {
        let ends = ends_of(&row.ends);
        let sent = Direction { sender: ends.local, receiver: ends.remote };
        let received = Direction { sender: ends.remote, receiver: ends.local };
        let segments = self.segments.get(&ends).map_or(&[][..], Vec::as_slice);
        let offset = clock::wall().saturating_sub(clock::monotonic());
        let of_kind = |kind| segments.iter().filter(move |one| one.kind as usize == kind);
        let kinds = [(SLOW_REPEATED, sent), (SLOW_PROBED, sent), (SLOW_MISSING, received), (SLOW_UNCLEAR, received)];
        // All are joined before the drops that no kind has caused are counted.
        let joined = kinds.map(|(kind, direction)| {
            let mut joins = Joins::default();
            of_kind(kind).for_each(|one| joins.push(repetition(one, offset)));
            joins.join(&mut self.drops, direction);
            (joins, direction)
        });
        let ended = |(joins, direction): (Joins, Direction)| joins.end(&mut self.drops, direction, None);
        let [repeated, probed, missing, unclear] = joined.map(ended);
        // A probe of a silent path repeats a segment that may have arrived.
        let probes = probed.map_or(0, |found| found.joined);
        let of_sent = both(repeated, probed);
        if of_sent.is_some() {
            socket.sent.probes = probes;
        }
        socket.sent.again = again(of_kind(SLOW_REPEATED).chain(of_kind(SLOW_PROBED)), socket.sent.size);
        // A segment that filled a gap was lost for certain if it was dropped here.
        socket.received.lost += unclear.map_or(0, |found| found.joined);
        let was_reset = socket.reset.is_some() || matches!(socket.stage, Stage::Failed { .. });
        let reset = was_reset.then(|| self.drops.filtered_at(sent, row.time + offset)).flatten();
        let mut named = |found: Found| HereDrop { joined: found.joined, drop: self.name_of(found.cause).text };
        socket.here = SocketDrops {
            sent: of_sent.map(&mut named),
            received: both(missing, unclear).map(&mut named),
            reset: reset.map(|cause| self.name_of(cause).text),
            are_incomplete: false,
        };
    }

    /// Returns the reason of a drop, and the rule or another object that dropped the packets.
    fn name_of(&mut self, cause: u32) -> DropName {
        let (culprits, is_over) = (&mut self.culprits, self.is_over);
        let mut rejects = false;
        let text = self.causes.text(cause, |tally, key| {
            if !is_over {
                return None;
            }
            let blame = culprits.of(key, tally.rows.get(key)?, tally);
            rejects = blame.culprits.iter().any(|one| one.is_certain && one.name.contains(REJECT));
            blame.only_culprit().map(str::to_owned)
        });
        DropName { text, rejects }
    }

    /// Judges the connections that show nothing, whose segments a rule has dropped: TCP does not count what it could not
    /// send, and does not miss what has not arrived.
    fn judge_filtered(
        &mut self,
        explained: &HashSet<Direction>,
        findings: &mut Findings,
        culprits: &mut record::Culprits,
    ) -> Result<()> {
        let all = std::mem::take(&mut self.filtered);
        for (direction, filtered) in &all {
            let Direction { sender, receiver } = *direction;
            let (local, remote) = if filtered.way == Way::Output { (sender, receiver) } else { (receiver, sender) };
            if explained.contains(&Direction { sender: local, receiver: remote })
                || !self.chosen.has_label(&filtered.netns, |number| self.namespaces.name(number))
                || !self.chosen.matches(sender, receiver, Transport::Tcp)?
            {
                continue;
            }
            let side = if local.port() < remote.port() { Side::Server } else { Side::Client };
            let sending = if filtered.way == Way::Output { side } else { side.other() };
            let name = self.name_of(filtered.cause);
            let dropped = HereDrop { joined: filtered.segments, drop: name.text };
            let between =
                Between { netns: filtered.netns.clone(), side: Some(side), local: Some(local), remote: Some(remote) };
            if let Some(verdict) = judge_filtered(sending, &dropped, name.rejects) {
                culprits.add(sender, receiver, &verdict.text());
                findings.add(&self.owner(filtered.process, 0), between, verdict);
            }
        }
        self.filtered = all;
        Ok(())
    }

    fn judge_names(&mut self, findings: &mut Findings, culprits: &mut record::Culprits) -> Result<()> {
        let now = clock::monotonic();
        let mut unanswered: HashMap<(u32, u32, [u32; 4]), u64> = HashMap::new();
        for (ends, question) in self.watch.questions()? {
            if now.saturating_sub(question.time) >= ANSWER_NS {
                *unanswered.entry((question.process, ends.netns, ends.remote)).or_default() += 1;
            }
        }
        for (key, answers) in self.watch.answers()? {
            let server = SocketAddr::new(address(key.server), NAMES_PORT);
            if !self.chosen.has_namespace(key.netns) || !self.chosen.matches(anyone(server), server, Transport::Udp)? {
                continue;
            }
            let questions = Questions {
                asked: answers.asked,
                unanswered: unanswered.get(&(key.process, key.netns, key.server)).copied().unwrap_or(0),
                answers: Histogram::from_buckets(SLOW_FIRST_BITS, answers.times.map(u64::from)),
                answers_ns: answers.sum_us * MICROSECOND,
            };
            for verdict in judge_names(&questions) {
                culprits.add_server(server, &verdict.text());
                let netns = self.namespaces.name(key.netns);
                let between = Between { netns, side: Some(Side::Client), local: None, remote: Some(server) };
                findings.add(&self.owner(key.process, 0), between, verdict);
            }
        }
        Ok(())
    }
}

/// The word in the rules of nftables that answer what they drop.
const REJECT: &str = "reject";
/// Bytes that a peer may have acknowledged since it sent a segment.
const SENT_SINCE: u32 = 1 << 20;

/// Returns a segment that was repeated or was missing. `offset` is the difference of the clocks.
fn repetition(segment: &SlowSegment, offset: u64) -> Repetition {
    Repetition {
        from: segment.from,
        to: segment.to,
        time_ns: segment.time + offset,
        since_ns: None,
        acks: Some((segment.acknowledgement.wrapping_sub(SENT_SINCE), segment.acknowledgement)),
    }
}

/// Returns the sum of the drops that were found.
fn both(one: Option<Found>, other: Option<Found>) -> Option<Found> {
    let (Some(first), Some(second)) = (one, other) else { return one.or(other) };
    Some(Found { joined: first.joined + second.joined, ..first })
}

/// Returns the number of segments of this size that were repeated again.
fn again<'a>(repetitions: impl Iterator<Item = &'a SlowSegment>, size: u32) -> u64 {
    let mut first: HashMap<u32, u32> = HashMap::new();
    let mut segments = 0;
    for one in repetitions {
        let longest = first.entry(one.from).or_default();
        let length = one.to.wrapping_sub(one.from);
        segments += u64::from(length.min(*longest).div_ceil(size.max(1)));
        *longest = length.max(*longest);
    }
    segments
}

/// Returns an address of the same version that stands for any.
fn anyone(other: SocketAddr) -> SocketAddr {
    let unspecified = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(unspecified, 0)
}

fn address(words: [u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ipv6Addr::from(bytes).to_canonical()
}

fn ends_of(ends: &SlowEnds) -> Ends {
    let of = |words, port: u32| SocketAddr::new(address(words), port as u16);
    Ends { local: of(ends.local, ends.local_port), remote: of(ends.remote, ends.remote_port), netns: ends.netns }
}

fn queues_of(row: &SlowRow) -> Queues {
    Queues {
        dropped: u64::from(row.dropped.wrapping_sub(row.measures.first_segments)),
        waiting: row.backlog.into(),
        requests: row.requests.into(),
        limit: row.backlog_limit.into(),
    }
}

/// Returns the kernel's measures of a socket. `hertz` is the frequency of its clock.
fn socket_of(row: &SlowRow, hertz: u64) -> Socket {
    let Ends { local, remote, netns } = ends_of(&row.ends);
    let measures = &row.measures;
    let has = |flag: usize| usize::from(measures.flags) & flag != 0;
    let is_over = row.kind as usize == SLOW_CLOSED;
    let side = if has(SLOW_CLIENT) { Side::Client } else { Side::Server };
    let ticks = |count: u32| u64::from(count) * 1_000_000_000 / hertz;
    let stage = match row.state {
        SYN_SENT if is_over => Stage::Failed { error: row.error },
        SYN_SENT => Stage::Connecting,
        LISTENING => Stage::Listening(queues_of(row)),
        _ => Stage::Open,
    };
    let window = |times: u16, before: u32, now: u32| Closed {
        times: u64::from(times) + u64::from(now > 0),
        ns: ticks(before) + ticks(now),
        is_now: now > 0,
    };
    let times =
        |buckets: &[u8]| Histogram::from_buckets(SLOW_FIRST_BITS, buckets.iter().map(|count| u64::from(*count)));
    let low = |now: u32, first: u16| u64::from((now as u16).wrapping_sub(first));
    Socket {
        local,
        remote,
        netns,
        side,
        span_ns: row.time.saturating_sub(measures.begun),
        stage,
        retries: u64::from(measures.retries).max(if row.state == SYN_SENT { row.retries.into() } else { 0 }),
        handshake_ns: (measures.handshake_us > 0).then_some(u64::from(measures.handshake_us) * MICROSECOND),
        reset: (has(SLOW_RESET_BY_PEER) || has(SLOW_RESET_HERE)).then_some(Reset {
            by: if has(SLOW_RESET_BY_PEER) { side.other() } else { side },
            is_foreign: has(SLOW_RESET_BY_PEER)
                && measures.ttl != 0
                && measures.reset_ttl != 0
                && measures.ttl != measures.reset_ttl,
            is_early: has(SLOW_RESET_EARLY),
        }),
        sent: Sent {
            segments: u64::from(row.segments.wrapping_sub(measures.first_segments)),
            fast: measures.fast.into(),
            timeouts: measures.timeouts.into(),
            probes: measures.probes.into(),
            repeated: u64::from(row.repeated.wrapping_sub(measures.first_repeated)),
            again: 0,
            needless: low(row.needless, measures.first_needless),
            late: low(row.reordered, measures.first_reordered),
            large_timeouts: measures.large_timeouts.into(),
            size: row.mss,
            has_passed_large: row.acknowledged > u64::from(row.delivered) * u64::from(row.mss) / 2
                && row.acknowledged > u64::from(row.mss),
        },
        received: Received {
            segments: u64::from(row.received.wrapping_sub(measures.first_received)),
            lost: measures.lost.into(),
            late: measures.late.into(),
            needless: measures.duplicates.into(),
        },
        closed_by_peer: window(measures.closures_out, measures.closed_out, row.closed_out),
        closed_here: window(measures.closures_in, measures.closed_in, row.closed_in),
        acknowledgements: measures.acks.into(),
        full: measures.full.into(),
        has_fixed_buffer: has(SLOW_FIXED_BUFFER),
        shortest_ns: (row.shortest_us != 0 && row.shortest_us != u32::MAX)
            .then_some(u64::from(row.shortest_us) * MICROSECOND),
        round_trips: times(&measures.round_trips),
        queue: times(&measures.queue),
        turn_times: times(&measures.turn_times),
        turns: measures.turns.into(),
        turns_ns: u64::from(measures.turns_us) * MICROSECOND,
        waiting_ns: u64::from(measures.waiting_us) * MICROSECOND,
        throttled_ns: u64::from(measures.throttled_us) * MICROSECOND,
        here: SocketDrops::default(),
    }
}

impl Writer for Live<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let (drops, causes, filtered) = (&mut self.drops, &mut self.causes, &mut self.filtered);
        self.packets.each(blocks.bytes(), |packet, _| {
            let drop = packet.drop().and_then(|drop| causes.of(packet, &drop));
            let Some(dropped) = drop.and_then(|drop| dropped(&packet_of(packet, 0), &drop)) else { return };
            drops.add(&dropped);
            let is_known = filtered.len() < MOST_SOCKETS || filtered.contains_key(&dropped.direction);
            let process = packet.process.map_or(0, |process| process.id);
            let way = causes.way(dropped.cause).filter(|way| is_known && (process != 0 || *way == Way::Output));
            if let Some(way) = way {
                let new =
                    || Filtered { cause: dropped.cause, segments: 0, process, netns: dropped.place.to_owned(), way };
                filtered.entry(dropped.direction).or_insert_with(new).segments += u64::from(dropped.length > 0);
            }
        });
        let pressure = match &mut self.file {
            Some(file) => file.write(blocks)?,
            None => Pressure::Idle,
        };
        self.catch_up()?;
        Ok(pressure)
    }

    fn flush(&mut self) -> Result<Pressure> {
        self.catch_up()?;
        self.file.as_mut().map_or(Ok(Pressure::Idle), |file| file.flush())
    }

    fn due(&self) -> Option<Instant> {
        Some(self.looked + LOOK_EVERY)
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        self.file.as_mut().map_or_else(WriteOutcome::default, |file| file.finish())
    }
}
