//! Measures of TCP sockets and of name servers: bpf/slow, attached at the kernel's tracepoints.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use libbpf_rs::{Iter, Link, MapCore, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};
use trawl_sys::{Error, Result};

use crate::kernel_types;
use crate::layout::Shared;
use crate::layout::slow::{
    SLOW_CLOSED, SLOW_DROPPED, SLOW_LOOK, SlowAnswers, SlowCounts, SlowDropped, SlowEnds, SlowQuestion, SlowRow,
    SlowSegment, SlowServerKey, SlowTotals, SlowTotalsKey,
};
use crate::object::{SEGMENT_MAPS, SLOW, SLOW_TOTALS, explained, quiet_libbpf};
use crate::probe::{self, KernelFeature};
use crate::process_watch::ProcessWatch;
use crate::table::Table;

const EVENTS: &str = "slow_events";
const SOCKETS: &str = "slow_sockets";
/// The iterators: over existing sockets, over measured ones, and over measured ones that are open files.
const EXISTING: &str = "trawl_slow_existing";
const LOOK: &str = "trawl_slow_look";
const LOOK_AT_FILES: &str = "trawl_slow_look_at_files";
/// Programs that see the answers of name servers: the first runs for datagrams alone, but some kernels allow no program at
/// their functions; the second needs a tracepoint that Linux has since 6.3.
const ANSWERS: [(&str, &str); 2] = [("trawl_slow_answer", "fentry"), ("trawl_slow_ready", READY)];
const READY: &str = "sk_data_ready";
/// Size of the ring for the segments that are dropped and repeated within a second, about 10,000.
const RING_FOR_TOTALS: u32 = 1 << 20;
/// Frequencies of the kernel's clock.
const FREQUENCIES: [u64; 4] = [100, 250, 300, 1000];

/// The tracepoints of the other programs.
const TRACEPOINTS: [&str; 7] = [
    "tcp_probe",
    "tcp_rcv_space_adjust",
    "net_dev_start_xmit",
    "tcp_retransmit_skb",
    "inet_sock_set_state",
    "tcp_receive_reset",
    "tcp_send_reset",
];

/// Returns the reason why connections cannot be measured, if the kernel lacks a tracepoint, or does not describe its
/// arguments.
pub fn obstacle() -> Option<String> {
    let is_there = |name: &&&str| matches!(kernel_types::tracepoint(name), Ok(Some(_)));
    let missing = TRACEPOINTS.iter().find(|name| !is_there(name))?;
    Some(format!("the kernel has no tracepoint {missing} with type information"))
}

/// Returns true if a look sees all sockets, and not only those that are open files.
pub fn sees_all_sockets() -> bool {
    probe::has_storage_iterator()
}

/// Returns true if the kernel allows a program that sees the answers of name servers.
pub fn sees_answers() -> bool {
    KernelFeature::Fentry.probe().is_supported() || matches!(kernel_types::tracepoint(READY), Ok(Some(_)))
}

/// Results of the measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// Events about sockets, and the answers of name servers.
    Events,
    /// Totals of processes, and events about repeated segments.
    Totals,
}

#[derive(Clone, Debug)]
pub enum Event {
    /// The measures of a socket, at a look or as it closed.
    Socket(Box<SlowRow>),
    /// A segment that was repeated, or was missing.
    Segment(Box<SlowSegment>),
    /// A segment that the kernel dropped, if a counter of drops notes them.
    Dropped(Box<SlowDropped>),
}

type Found = Rc<RefCell<Vec<Event>>>;

/// The attached programs.
pub struct SlowWatch {
    events: RingBuffer<'static>,
    found: Found,
    look: Link,
    counts: Table,
    answers: Table,
    questions: Table,
    sees_answers: bool,
    totals: Table,
    _links: Vec<Link>,
    object: Object,
}

impl fmt::Debug for SlowWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowWatch").finish_non_exhaustive()
    }
}

fn fail(why: libbpf_rs::Error) -> Error {
    explained("cannot measure connections".to_owned(), why)
}

fn event(bytes: &[u8]) -> Option<Event> {
    let kind = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    Some(match kind {
        SLOW_LOOK | SLOW_CLOSED => Event::Socket(Box::new(SlowRow::from_bytes(bytes)?)),
        SLOW_DROPPED => Event::Dropped(Box::new(SlowDropped::from_bytes(bytes)?)),
        _ => Event::Segment(Box::new(SlowSegment::from_bytes(bytes)?)),
    })
}

impl SlowWatch {
    /// Attaches the programs, and begins the measures of the sockets that are in the middle of something.
    pub fn attach(owners: &ProcessWatch, results: Results) -> Result<Self> {
        if let Some(why) = obstacle() {
            return Err(Error::failed("cannot measure connections", why).fix("use Linux 6.1 or newer"));
        }
        if results == Results::Totals {
            return Self::attach_with(owners, results, None);
        }
        let wanted = ANSWERS.into_iter().filter(|(_, what)| !probe::is_unwanted(what));
        let attached = wanted.map(|(name, _)| Self::attach_with(owners, results, Some(name))).find(Result::is_ok);
        attached.unwrap_or_else(|| Self::attach_with(owners, results, None))
    }

    /// Attaches the programs, and one that sees the answers of name servers.
    fn attach_with(owners: &ProcessWatch, results: Results, answers: Option<&str>) -> Result<Self> {
        quiet_libbpf();
        let maps = owners.maps();
        let programs = if results == Results::Totals { SLOW_TOTALS } else { SLOW };
        let mut open = ObjectBuilder::default().open_memory(programs).map_err(fail)?;
        if results == Results::Totals {
            open.maps_mut()
                .filter(|map| map.name() == EVENTS)
                .try_for_each(|mut map| map.set_max_entries(RING_FOR_TOTALS))
                .map_err(fail)?;
        }
        for mut map in open.maps_mut() {
            let shared = maps.iter().find(|(name, _)| map.name() == *name);
            shared.map_or(Ok(()), |(_, shared)| map.reuse_fd(*shared)).map_err(fail)?;
        }
        let look = if probe::has_storage_iterator() { LOOK } else { LOOK_AT_FILES };
        for mut program in open.progs_mut() {
            let is_wanted =
                program.autoload() || program.name() == look || answers.is_some_and(|name| program.name() == name);
            program.set_autoload(is_wanted);
        }
        let object = open.load().map_err(fail)?;
        let (mut links, mut existing, mut looking) = (Vec::new(), None, None);
        let sockets = descriptor(&object, SOCKETS)?;
        for program in object.progs_mut().filter(|one| one.autoload()) {
            match program.name().to_str() {
                Some(EXISTING) => existing = Some(program.attach().map_err(fail)?),
                Some(LOOK) => looking = Some(program.attach_iter(sockets.as_fd()).map_err(fail)?),
                Some(LOOK_AT_FILES) => looking = Some(program.attach().map_err(fail)?),
                _ => links.push(program.attach().map_err(fail)?),
            }
        }
        let found = Found::default();
        let queue = Rc::clone(&found);
        let mut builder = RingBufferBuilder::new();
        let ring = object.maps().find(|map| map.name() == EVENTS).ok_or_else(|| missing(EVENTS))?;
        builder
            .add(&ring, move |bytes: &[u8]| {
                queue.borrow_mut().extend(event(bytes));
                0
            })
            .map_err(fail)?;
        let events = builder.build().map_err(fail)?;
        existing.as_ref().map_or(Ok(()), run)?;
        Ok(Self {
            events,
            found,
            look: looking.ok_or_else(|| missing(look))?,
            counts: table(&object, "slow_counts")?,
            answers: table(&object, "slow_answers")?,
            questions: table(&object, "slow_questions")?,
            sees_answers: answers.is_some(),
            totals: table(&object, "slow_totals")?,
            _links: links,
            object,
        })
    }

    /// Returns the events since the last call.
    pub fn events(&self) -> Vec<Event> {
        // An interrupted call leaves the events for the next one.
        let _ = self.events.consume();
        self.found.take()
    }

    /// Returns the maps of a counter of drops that notes lost segments as events.
    pub fn segment_maps(&self) -> Result<Vec<(&'static str, OwnedFd)>> {
        SEGMENT_MAPS.into_iter().map(|name| Ok((name, descriptor(&self.object, name)?))).collect()
    }

    /// Makes events of the measures of all sockets that have something to say.
    pub fn look(&self) -> Result<()> {
        run(&self.look)
    }

    /// Returns the counts of all CPUs.
    pub fn counts(&self) -> Result<SlowCounts> {
        let mut sum = SlowCounts::zeroed();
        let values = self.counts.lookup(&0u32.to_ne_bytes()).map_err(os)?.unwrap_or_default();
        for one in values.chunks(size_of::<SlowCounts>()).filter_map(SlowCounts::from_bytes) {
            sum.ended += one.ended;
            sum.lost_events += one.lost_events;
            sum.looked_at += one.looked_at;
            sum.waiting += one.waiting;
            sum.drop_lost_time = sum.drop_lost_time.max(one.drop_lost_time);
            if one.tick_time > sum.tick_time {
                (sum.tick, sum.tick_time) = (one.tick, one.tick_time);
            }
        }
        Ok(sum)
    }

    /// Returns the answers of each name server to each process.
    pub fn answers(&self) -> Result<Vec<(SlowServerKey, SlowAnswers)>> {
        entries(&self.answers)
    }

    /// Returns the questions to name servers that have no answer yet; none if answers are not seen.
    pub fn questions(&self) -> Result<Vec<(SlowEnds, SlowQuestion)>> {
        if self.sees_answers { entries(&self.questions) } else { Ok(Vec::new()) }
    }

    /// Returns the totals of each process since the last call.
    pub fn take_totals(&self) -> Result<Vec<(SlowTotalsKey, SlowTotals)>> {
        let mut taken = Vec::new();
        for key in self.totals.keys().map_err(os)? {
            let value = self.totals.take(&key).map_err(os)?;
            let totals = value.and_then(|value| SlowTotals::from_bytes(&value));
            taken.extend(SlowTotalsKey::from_bytes(&key).zip(totals));
        }
        Ok(taken)
    }
}

impl SlowTotals {
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.times.iter_mut().zip(&other.times) {
            sum.sum_us += more.sum_us;
            add_each(&mut sum.counts, &more.counts);
        }
        add_each(&mut self.resets, &other.resets);
        add_each(&mut self.limited, &other.limited);
    }
}

fn add_each(sums: &mut [u64], more: &[u64]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Returns the frequency of the kernel's clock, from two ticks and their times in ns.
pub fn frequency([first, last]: [(u64, u64); 2]) -> u64 {
    let ns = last.1.saturating_sub(first.1).max(1);
    let measured = last.0.saturating_sub(first.0) * 1_000_000_000 / ns;
    FREQUENCIES.into_iter().min_by_key(|one| one.abs_diff(measured)).unwrap_or(FREQUENCIES[1])
}

fn os(why: io::Error) -> Error {
    Error::os("cannot measure connections", why)
}

fn missing(name: &str) -> Error {
    Error::failed("cannot measure connections", format!("{name} is missing"))
}

fn run(iterator: &Link) -> Result<()> {
    let mut output = Iter::new(iterator).map_err(fail)?;
    io::copy(&mut output, &mut io::sink()).map(drop).map_err(os)
}

fn descriptor(object: &Object, name: &str) -> Result<OwnedFd> {
    let map = object.maps().find(|map| map.name() == name).ok_or_else(|| missing(name))?;
    map.as_fd().try_clone_to_owned().map_err(os)
}

fn table(object: &Object, name: &str) -> Result<Table> {
    descriptor(object, name).and_then(|map| Table::new(map).map_err(os))
}

fn entries<K: Shared, V: Shared>(table: &Table) -> Result<Vec<(K, V)>> {
    let entries = table.entries().map_err(os)?.into_iter();
    Ok(entries.filter_map(|(key, value)| Some((K::from_bytes(&key)?, V::from_bytes(&value)?))).collect())
}
