//! The measures of this host's sockets, and the verdicts about them.

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::slow::{
    SLOW_FIRST_BITS, SLOW_MISSING, SLOW_PROBED, SLOW_REPEATED, SLOW_UNCLEAR, SlowCounts, SlowDropped, SlowRow,
    SlowSegment,
};
use trawl_bpf::slow_watch::{Event, Results, SlowWatch, frequency};
use trawl_capture::process::Processes;
use trawl_slow::drops::{Direction, Drops};
use trawl_slow::histogram::Histogram;
use trawl_slow::joins::{Found, Joins};
use trawl_slow::judge::judge_names;
use trawl_slow::measures::{HereDrop, NAMES_PORT, Questions, Side};
use trawl_slow::socket::{Queues, Socket, SocketDrops, Stage, judge};
use trawl_slow::sockets::{Between, Findings, Owner, SocketReport};
use trawl_sys::{Result, clock, netns};

use super::chosen::{Chosen, Transport};
use super::record::Culprits;
use super::segments::{Ends, address, ends_of, repetition};
use super::socket::{LISTENING, MICROSECOND, queues_of, socket_of};

/// Interval of looks: a listening socket's queue may be full for a moment only.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of sockets, and of segments that were repeated or missing.
pub(super) const MOST_SOCKETS: usize = 65_536;
const MOST_SEGMENTS: usize = 262_144;
/// Time for an answer of a name server.
const ANSWER_NS: u64 = 2_500_000_000;
/// The kernel's clock, if nothing happened.
const USUAL_FREQUENCY: u64 = 250;

/// Names of network namespaces, by number.
#[derive(Debug, Default)]
struct Names(HashMap<u32, String>);

impl Names {
    /// Reads the names that namespaces have now.
    fn refresh(&mut self) {
        let number = |name: &String| Some(netns::identity_of(name)?.1 as u32);
        self.0.extend(netns::list().into_iter().filter_map(|name| Some((number(&name)?, name))));
    }
}

/// The last measures of all sockets, and the drops behind their repetitions.
#[derive(Debug)]
pub(super) struct Sockets {
    watch: SlowWatch,
    processes: Rc<Processes>,
    pub drops: Drops,
    namespaces: Names,
    /// The last row of each socket, by its cookie and namespace.
    rows: HashMap<u64, SlowRow>,
    /// The longest queues of listening sockets.
    queues: HashMap<u64, Queues>,
    segments: HashMap<Ends, Vec<SlowSegment>>,
    kept: usize,
    left_out: u64,
    looked: Instant,
    /// The kernel's counts at the last look, and of them the connections, and the ones that wait for their processes.
    counts: SlowCounts,
    looked_at: u64,
    waiting: u64,
}

/// The verdicts so far.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub findings: Findings,
    pub culprits: Culprits,
    /// The ends of connections with a verdict.
    pub explained: HashSet<Direction>,
}

impl Sockets {
    pub fn attach(processes: &Rc<Processes>) -> Result<Self> {
        Ok(Self {
            watch: SlowWatch::attach(&processes.watch, Results::Events)?,
            processes: Rc::clone(processes),
            drops: Drops::default(),
            namespaces: Names::default(),
            rows: HashMap::new(),
            queues: HashMap::new(),
            segments: HashMap::new(),
            kept: 0,
            left_out: 0,
            looked: Instant::now(),
            counts: SlowCounts::zeroed(),
            looked_at: 0,
            waiting: 0,
        })
    }

    /// Begins measures of the same processes.
    pub fn anew(&self) -> Result<Self> {
        Self::attach(&self.processes)
    }

    pub fn watch(&self) -> &SlowWatch {
        &self.watch
    }

    /// Returns the name of a namespace, or its number.
    pub fn namespace(&self, number: u32) -> String {
        self.namespaces.0.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }

    /// Returns the time of the next look.
    pub fn due(&self) -> Instant {
        self.looked + LOOK_EVERY
    }

    /// Looks at all sockets. Returns the segments that the kernel dropped, if they are noted.
    pub fn look(&mut self) -> Result<Vec<SlowDropped>> {
        self.looked = Instant::now();
        self.namespaces.refresh();
        let before = self.watch.counts()?;
        self.watch.look()?;
        self.counts = self.watch.counts()?;
        self.looked_at = self.counts.looked_at.saturating_sub(before.looked_at);
        self.waiting = self.counts.waiting.saturating_sub(before.waiting);
        Ok(self.read_events())
    }

    /// Reads the events since the last call. Returns the dropped segments.
    pub fn read_events(&mut self) -> Vec<SlowDropped> {
        let mut dropped = Vec::new();
        for event in self.watch.events() {
            match event {
                Event::Socket(row) => self.note_socket(&row),
                Event::Segment(segment) => self.note_segment(&segment),
                Event::Dropped(segment) => dropped.push(*segment),
            }
        }
        dropped
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

    /// Forgets the sockets that have said nothing since this time, and their segments.
    pub fn forget_before(&mut self, time_ns: u64) {
        self.rows.retain(|_, row| row.time >= time_ns);
        self.queues.retain(|cookie, _| self.rows.contains_key(cookie));
        let open: HashSet<Ends> = self.rows.values().map(|row| ends_of(&row.ends)).collect();
        let is_new = |segments: &[SlowSegment]| segments.iter().any(|one| one.time >= time_ns);
        self.segments.retain(|ends, segments| open.contains(ends) || is_new(segments));
        self.kept = self.segments.values().map(Vec::len).sum();
    }

    /// Returns the number of events that found no room.
    pub fn lost_events(&self) -> u64 {
        self.counts.lost_events + self.left_out + self.drops.left_out()
    }

    /// Returns the report about verdicts.
    pub fn report(&self, findings: Findings, lost_events: u64) -> SocketReport {
        SocketReport {
            connections: self.looked_at + self.counts.ended,
            waiting: self.waiting,
            lost_events,
            findings: findings.sorted(),
        }
    }

    /// Judges the sockets as they were at the last look. `drops_ahead` is what the clock of the drops is ahead, and
    /// `named` names their causes.
    pub fn judge(
        &mut self,
        chosen: &mut Chosen<'_>,
        are_incomplete: bool,
        drops_ahead: u64,
        named: &mut dyn FnMut(u32) -> String,
    ) -> Result<Judged> {
        let hertz = self.frequency(self.counts.tick, self.counts.tick_time);
        let mut judged = Judged::default();
        let rows: Vec<SlowRow> = self.rows.values().filter(|row| chosen.has_row(row)).copied().collect();
        let mut owners = HashMap::new();
        for row in &rows {
            let mut socket = socket_of(row, hertz);
            self.note_drops(row, &mut socket, drops_ahead, named);
            socket.here.are_incomplete = are_incomplete;
            if let Stage::Listening(queues) = &mut socket.stage {
                *queues = self.queues.get(&row.cookie).copied().unwrap_or(*queues);
            }
            let verdicts = judge(&socket);
            if verdicts.is_empty() || !chosen.matches(socket.local, socket.remote, Transport::Tcp)? {
                continue;
            }
            let owner = owners.entry((row.process, row.cgroup)).or_insert_with(|| self.owner(row.process, row.cgroup));
            for verdict in verdicts {
                judged.culprits.add(socket.local, socket.remote, &verdict.text());
                judged.findings.add(owner, Between::of(&socket, self.namespace(socket.netns)), verdict);
            }
            judged.explained.insert(Direction { sender: socket.local, receiver: socket.remote });
        }
        Ok(judged)
    }

    pub fn owner(&self, process: u32, cgroup: u64) -> Owner {
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

    /// Notes the packets of a connection that the kernel here has dropped.
    fn note_drops(
        &mut self,
        row: &SlowRow,
        socket: &mut Socket,
        drops_ahead: u64,
        named: &mut dyn FnMut(u32) -> String,
    ) {
        let ends = ends_of(&row.ends);
        let sent = ends.sent();
        let received = Direction { sender: ends.remote, receiver: ends.local };
        let segments = self.segments.get(&ends).map_or(&[][..], Vec::as_slice);
        let of_kind = |kind| segments.iter().filter(move |one| one.kind as usize == kind);
        let kinds = [(SLOW_REPEATED, sent), (SLOW_PROBED, sent), (SLOW_MISSING, received), (SLOW_UNCLEAR, received)];
        // All are joined before the drops that no kind has caused are counted.
        let joined = kinds.map(|(kind, direction)| {
            let mut joins = Joins::default();
            of_kind(kind).for_each(|one| joins.push(repetition(one, drops_ahead)));
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
        let reset = was_reset.then(|| self.drops.filtered_at(sent, row.time + drops_ahead)).flatten();
        let mut dropped = |found: Found| HereDrop { joined: found.joined, drop: named(found.cause) };
        socket.here = SocketDrops {
            sent: of_sent.map(&mut dropped),
            received: both(missing, unclear).map(&mut dropped),
            reset: reset.map(named),
            are_incomplete: false,
        };
    }

    /// Judges the name servers.
    pub fn judge_names(&self, chosen: &mut Chosen<'_>, judged: &mut Judged) -> Result<()> {
        let now = clock::monotonic();
        let mut unanswered: HashMap<(u32, u32, [u32; 4]), u64> = HashMap::new();
        for (ends, question) in self.watch.questions()? {
            if now.saturating_sub(question.time) >= ANSWER_NS {
                *unanswered.entry((question.process, ends.netns, ends.remote)).or_default() += 1;
            }
        }
        for (key, answers) in self.watch.answers()? {
            let server = SocketAddr::new(address(key.server), NAMES_PORT);
            if !chosen.has_namespace(key.netns) || !chosen.matches(anyone(server), server, Transport::Udp)? {
                continue;
            }
            let questions = Questions {
                asked: answers.asked,
                unanswered: unanswered.get(&(key.process, key.netns, key.server)).copied().unwrap_or(0),
                answers: Histogram::from_buckets(SLOW_FIRST_BITS, answers.times.map(u64::from)),
                answers_ns: answers.sum_us * MICROSECOND,
            };
            for verdict in judge_names(&questions) {
                judged.culprits.add_server(server, &verdict.text());
                let netns = self.namespace(key.netns);
                let between = Between { netns, side: Some(Side::Client), local: None, remote: Some(server) };
                judged.findings.add(&self.owner(key.process, 0), between, verdict);
            }
        }
        Ok(())
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
