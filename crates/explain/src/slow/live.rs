//! Verdicts about the connections of this host, from the measures of its sockets and the packets that it drops.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use trawl_capture::session::Attached;
use trawl_pipeline::account::PacketAccount;
use trawl_pipeline::{Blocks, Pressure, UNWATCHED, WriteOutcome, Writer};
use trawl_slow::drops::Direction;
use trawl_slow::measures::{HereDrop, Side};
pub use trawl_slow::news::News;
use trawl_slow::packets::dropped;
use trawl_slow::socket::judge_filtered;
use trawl_slow::sockets::Between;
pub use trawl_slow::sockets::{SocketFinding, SocketReport};
use trawl_source::packets_of;
use trawl_sys::{Error, Result, clock};
use trawl_view::record::RingPackets;

use super::causes::{Causes, Way};
use super::chosen::{Chosen, Transport};
use super::file::packet_of;
use super::record;
use super::sockets::{Judged, MOST_SOCKETS, Sockets};
use crate::why::culprits::Culprits;

/// The reasons, places and rules of drops, by numbers.
struct Droppers {
    causes: Causes,
    culprits: Culprits,
    /// Number of rows when the objects that may have dropped their packets were last read.
    rows_read: usize,
    /// Objects that dropped packets are named at the end, since their counters are compared once.
    is_over: bool,
}

/// The reason, place and rule of a drop.
struct DropName {
    text: String,
    /// The rule answers the packets that it drops.
    rejects: bool,
}

impl Droppers {
    fn new() -> Self {
        Self { causes: Causes::default(), culprits: Culprits::new(true, None), rows_read: 0, is_over: false }
    }

    /// Reads the objects that may have dropped the packets of new rows.
    fn catch_up(&mut self) {
        let rows = &self.causes.tally.rows;
        if rows.len() > self.rows_read {
            self.rows_read = rows.len();
            rows.keys().for_each(|key| self.culprits.read_counters(key));
        }
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

/// The receiver of a report after each look.
pub type Audience<'a> = &'a mut dyn FnMut(&SocketReport) -> Result<()>;

/// A running search for the causes of delay.
pub struct Live<'a> {
    sockets: Sockets,
    packets: RingPackets,
    droppers: Droppers,
    chosen: Chosen<'a>,
    /// Gets all packets.
    file: Option<&'a mut dyn Writer>,
    audience: Option<Audience<'a>>,
    /// Time after which the measures begin anew; `None`: never.
    period: Option<Duration>,
    begun: Instant,
    filtered: HashMap<Direction, Filtered>,
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
        audience: Option<Audience<'a>>,
        period: Option<Duration>,
    ) -> Result<Self> {
        let processes = capture.processes().ok_or_else(|| {
            Error::failed("cannot measure connections", "the processes of sockets are not known")
                .fix("this requires root, and a kernel with cgroups of version 2")
        })?;
        Ok(Self {
            sockets: Sockets::attach(processes)?,
            packets: packets_of(capture),
            droppers: Droppers::new(),
            chosen,
            file,
            audience,
            period,
            begun: Instant::now(),
            filtered: HashMap::new(),
        })
    }

    /// Begins anew: old measures would hide what happens now, and need more memory all the time.
    fn begin_anew(&mut self, sockets: Sockets) {
        self.sockets = sockets;
        self.droppers = Droppers::new();
        self.filtered.clear();
        self.begun = Instant::now();
    }

    /// Looks at all sockets once more, and judges them. Returns also the connections with a verdict.
    pub fn into_report(mut self, account: &PacketAccount) -> Result<(SocketReport, record::Culprits)> {
        self.droppers.is_over = true;
        self.sockets.look()?;
        self.judge(account.lost_total())
    }

    /// Judges the sockets as they were at the last look.
    fn judge(&mut self, lost: u64) -> Result<(SocketReport, record::Culprits)> {
        let lost_events = self.sockets.lost_events() + lost;
        let drops_ahead = clock::wall().saturating_sub(clock::monotonic());
        let (droppers, chosen) = (&mut self.droppers, &mut self.chosen);
        let mut named = |cause| droppers.name_of(cause).text;
        let mut judged = self.sockets.judge(chosen, lost_events > 0, drops_ahead, &mut named)?;
        self.judge_filtered(&mut judged)?;
        self.sockets.judge_names(&mut self.chosen, &mut judged)?;
        Ok((self.sockets.report(judged.findings, lost_events), judged.culprits))
    }

    /// Looks if it is time.
    fn catch_up(&mut self) -> Result<()> {
        self.droppers.catch_up();
        if self.sockets.due() > Instant::now() {
            self.sockets.read_events();
            return Ok(());
        }
        let is_over = self.period.is_some_and(|period| self.begun.elapsed() >= period);
        // They measure before the last look, so that no socket closes unseen.
        let next = is_over.then(|| self.sockets.anew()).transpose()?;
        self.droppers.is_over = is_over;
        self.sockets.look()?;
        if self.audience.is_some() {
            let (report, _) = self.judge(0)?;
            self.audience.as_mut().map_or(Ok(()), |audience| audience(&report))?;
        }
        if let Some(next) = next {
            self.begin_anew(next);
        }
        Ok(())
    }

    /// Judges the connections that show nothing, whose segments a rule has dropped: TCP does not count what it could not
    /// send, and does not miss what has not arrived.
    fn judge_filtered(&mut self, judged: &mut Judged) -> Result<()> {
        for (direction, filtered) in &self.filtered {
            let Direction { sender, receiver } = *direction;
            let (local, remote) = if filtered.way == Way::Output { (sender, receiver) } else { (receiver, sender) };
            if judged.explained.contains(&Direction { sender: local, receiver: remote })
                || !self.chosen.has_label(&filtered.netns, |number| self.sockets.namespace(number))
                || !self.chosen.matches(sender, receiver, Transport::Tcp)?
            {
                continue;
            }
            let side = if local.port() < remote.port() { Side::Server } else { Side::Client };
            let sending = if filtered.way == Way::Output { side } else { side.other() };
            let name = self.droppers.name_of(filtered.cause);
            let dropped = HereDrop { joined: filtered.segments, drop: name.text };
            let between =
                Between { netns: filtered.netns.clone(), side: Some(side), local: Some(local), remote: Some(remote) };
            if let Some(verdict) = judge_filtered(sending, &dropped, name.rejects) {
                judged.culprits.add(sender, receiver, &verdict.text());
                judged.findings.add(&self.sockets.owner(filtered.process, 0), between, verdict);
            }
        }
        Ok(())
    }
}

/// The word in the rules of nftables that answer what they drop.
const REJECT: &str = "reject";

impl Writer for Live<'_> {
    fn write(&mut self, blocks: Blocks<'_>) -> Result<Pressure> {
        let (drops, causes, filtered) = (&mut self.sockets.drops, &mut self.droppers.causes, &mut self.filtered);
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
        Some(self.sockets.due())
    }

    fn delay(&self) -> Duration {
        UNWATCHED
    }

    fn finish(&mut self) -> WriteOutcome {
        self.file.as_mut().map_or_else(WriteOutcome::default, |file| file.finish())
    }
}
