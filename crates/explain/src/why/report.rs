//! The output of `trawl why`: rows as text and as JSON, and a consistent summary.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use trawl_bpf::xdp_events::{Event, XdpOutcome};
use trawl_packet::pcapng::Verdict;
use trawl_packet::verdict;
use trawl_pipeline::account::PacketAccount;
use trawl_sys::netlink::counters::CounterKey;
use trawl_sys::netns::Namespace;
use trawl_sys::words::shown;
use trawl_view::why::{DropKey, REASON_XDP, Row, Tally, is_for};

use super::advice;
use super::blame::Blame;
use super::counted::{CountedLoss, Differences};
use super::drops;
use super::noted::{named_in, with_noted};
use super::ruleset::Packets;
use super::socket_drops::SocketKind;

/// Directory of the pages about reasons.
const PAGES: &str = "docs/drops";
/// Number of flows that a row names.
const FLOWS: usize = 3;
/// Multiple of the reference's rate from which on a row is shown.
const FREQUENT: f64 = 10.0;
/// Counters of refused connections, of which the first includes the second.
const LISTEN_DROPS: &str = "TcpExtListenDrops";
const LISTEN_OVERFLOWS: &str = "TcpExtListenOverflows";
/// Reasons of drops of copies for which packet sockets had no room.
const PACKET_SOCKETS: [&str; 4] = ["PACKET_SOCK_ERROR", "@packet_rcv", "@tpacket_rcv", "@packet_rcv_spkt"];

#[derive(Debug, Serialize)]
pub struct LossReport {
    rows: Vec<ReportRow>,
    counters: Vec<Counter>,
    /// Packets that no socket wanted any more, by reason.
    no_losses: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<Compared>,
    account: Sums,
}

#[derive(Debug, Serialize)]
struct ReportRow {
    packets: u64,
    #[serde(flatten)]
    key: DropKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
    /// Number of other processes whose packets are in the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_processes: Option<usize>,
    /// Size of the receive buffer that was full, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_buffer: Option<u32>,
    flows: Vec<Flow>,
    /// Number of further flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    other_flows: Option<usize>,
    /// The change since the reference, if there is one.
    #[serde(flatten)]
    change: Option<Change>,
    /// The rules, qdiscs or programs that dropped them.
    #[serde(flatten)]
    blame: Blame,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    /// The page about the reason, in the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

#[derive(Debug, Serialize)]
struct Process {
    name: String,
    pid: u32,
    packets: u64,
}

#[derive(Debug, Serialize)]
struct Flow {
    flow: String,
    packets: u64,
}

/// A counter that went up.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counter {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    /// Details of a loss by XDP: the program, the verdict or the error, `native` or `skb`, and the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<advice::ProgramName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    function: String,
    difference: u64,
    /// Number of these packets that are in the rows.
    in_rows: u64,
    /// Number in no row: the kernel counted them without freeing a packet as dropped.
    counter_only: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    what: String,
    #[serde(flatten, skip_deserializing)]
    change: Option<Change>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Debug, Serialize)]
struct Sums {
    seen: u64,
    filtered_out: u64,
    recorded: u64,
    lost: u64,
}

/// Facts about rows that their packets do not contain.
#[derive(Debug, Default)]
pub struct Knowledge {
    /// Advice that was found before, since finding it runs other commands.
    pub advice: HashMap<DropKey, Option<String>>,
    /// The objects that dropped the packets.
    pub blames: HashMap<DropKey, Blame>,
}

impl Knowledge {
    /// Returns the facts about rows that a file contains; nothing more can be found about them.
    pub fn of_file(rows: Vec<RowFacts>, tally: &Tally) -> Self {
        let mut known = Self::default();
        let mut recorded = HashMap::new();
        for row in rows {
            known.advice.insert(row.key.clone(), row.advice);
            recorded.insert(row.key, (row.packets, row.blame));
        }
        for (key, row) in &tally.rows {
            known.advice.entry(key.clone()).or_insert(None);
            let (packets, blame) = recorded.remove(key).unwrap_or_default();
            let is_whole = packets.is_none_or(|packets| packets == row.packets);
            let all = blame.culprits.clone();
            let found = with_noted(
                row,
                |name| named_in(&all, name),
                |remaining| {
                    if is_whole {
                        blame
                    } else {
                        blame.of_some(remaining, |rule| Packets::of(key, row, true).may_match(rule))
                    }
                },
            );
            known.blames.insert(key.clone(), found);
        }
        known
    }
}

/// Facts about a row that its packets do not contain.
#[derive(Debug, Serialize, Deserialize)]
pub struct RowFacts {
    #[serde(flatten)]
    key: DropKey,
    advice: Option<String>,
    /// Packets of the row; files of earlier versions lack it.
    #[serde(default)]
    packets: Option<u64>,
    #[serde(flatten)]
    blame: Blame,
}

impl LossReport {
    pub fn new(tally: &Tally, differences: &Differences, account: &PacketAccount, known: &mut Knowledge) -> Self {
        let counters = counters(tally, differences, known);
        name_causes_of_ipsec(tally, &counters, known);
        Self::with_counters(tally, counters, account, known)
    }

    /// Makes a report with these lines of counters.
    pub fn with_counters(
        tally: &Tally,
        counters: Vec<Counter>,
        account: &PacketAccount,
        known: &mut Knowledge,
    ) -> Self {
        let no_losses: u64 = tally.no_losses.values().sum();
        let rows = tally.sorted().into_iter();
        Self {
            rows: rows.map(|(key, row)| ReportRow::new(key, row, known)).collect(),
            counters,
            reference: None,
            no_losses: tally.no_losses.clone(),
            account: Sums {
                seen: account.seen,
                filtered_out: account.filtered_out + no_losses,
                recorded: account.recorded.saturating_sub(no_losses),
                lost: account.lost_total(),
            },
        }
    }

    /// Returns the lines of counters, and the facts about each row that its packets do not contain.
    pub fn facts_without_packets(&self) -> (Vec<Counter>, Vec<RowFacts>) {
        let rows = self.rows.iter().map(|row| RowFacts {
            key: row.key.clone(),
            advice: row.advice.clone(),
            packets: Some(row.packets),
            blame: row.blame.clone(),
        });
        (self.counters.clone(), rows.collect())
    }

    /// Keeps what is new since the reference, or at least ten times as frequent. Both are given with the seconds that
    /// they took.
    pub fn compare(&mut self, seconds: f64, reference: &Self, reference_seconds: f64) {
        let times = (1.0 / seconds, 1.0 / reference_seconds);
        let mut as_before = 0;
        let mut keep = |packets: u64, before: u64, to: &mut Option<Change>| {
            *to = Change::of(packets as f64 * times.0, before as f64 * times.1);
            as_before += usize::from(to.is_none());
            to.is_some()
        };
        // Sockets differ from run to run.
        let place = |key: &DropKey| DropKey { socket: None, ..key.clone() };
        let mut before: HashMap<DropKey, u64> = HashMap::new();
        for row in &reference.rows {
            *before.entry(place(&row.key)).or_default() += row.packets;
        }
        let mut now: HashMap<DropKey, u64> = HashMap::new();
        for row in &self.rows {
            *now.entry(place(&row.key)).or_default() += row.packets;
        }
        self.rows.retain_mut(|row| {
            let place = place(&row.key);
            let before = before.get(&place).copied().unwrap_or(0);
            keep(now[&place], before, &mut row.change)
        });
        self.counters.retain(|counter| counter.counter_only > 0);
        self.counters.retain_mut(|counter| {
            let same = reference.counters.iter().filter(|one| one.is_like(counter));
            let before = same.map(|one| one.counter_only).sum();
            keep(counter.counter_only, before, &mut counter.change)
        });
        self.reference = Some(Compared { as_before });
    }

    /// Returns the most frequent reason that has a page.
    pub fn explained(&self) -> Option<&str> {
        self.rows.iter().find(|row| row.page.is_some()).map(|row| row.key.reason.as_str())
    }

    /// Returns the sum of the rows, and the number of drops missing from them; `None` without either.
    pub fn account(&self) -> Option<String> {
        let Sums { recorded, lost, .. } = self.account;
        if recorded == 0 && lost == 0 {
            return None;
        }
        let packets = if recorded == 1 { "packet" } else { "packets" };
        let mut text = format!("{recorded} {packets} dropped");
        if lost > 0 {
            text += &format!("; {lost} more were dropped that trawl could not record");
        }
        Some(text)
    }
}

impl ReportRow {
    fn new(key: &DropKey, row: &Row, known: &mut Knowledge) -> Self {
        let flow = |(flow, packets): (&str, u64)| Flow { flow: flow.to_owned(), packets };
        // The words for a single further flow would be as long as the flow.
        let named = match row.flows.len().saturating_sub(FLOWS) {
            1 => FLOWS + 1,
            _ => FLOWS,
        };
        let blame = known.blames.get(key).cloned().unwrap_or_default();
        let advice = known.advice.entry(key.clone());
        let advice = advice.or_insert_with(|| advice::of(key, row, &blame));
        Self {
            packets: row.packets,
            key: key.clone(),
            receive_buffer: row.receive_buffer,
            process: row.process().map(|(pid, name, packets)| Process { name: name.to_owned(), pid, packets }),
            other_processes: row.processes.len().checked_sub(1).filter(|&others| others > 0),
            flows: row.largest_flows(named).into_iter().map(flow).collect(),
            other_flows: (row.flows.len() > named).then(|| row.flows.len() - named),
            change: None,
            advice: advice.clone(),
            page: drops::find(&key.reason).map(|reason| format!("{PAGES}/{}", reason.file())),
            blame,
        }
    }
}

/// Comparison with a reference.
#[derive(Clone, Copy, Debug, Serialize)]
struct Compared {
    /// Number of rows and counters that are left out.
    as_before: usize,
}

/// A difference from the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Change {
    /// True: the reference has none of it.
    New(bool),
    /// The rate in multiples of the reference's.
    Times(f64),
}

impl Change {
    /// Compares two rates; `None` if the first is neither new nor ten times the other.
    fn of(now: f64, before: f64) -> Option<Self> {
        if before == 0.0 {
            Some(Self::New(true))
        } else {
            Some(now / before).filter(|times| *times >= FREQUENT).map(|times| Self::Times(times.round()))
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(_) => write!(f, "new"),
            Self::Times(times) => write!(f, "{times} times as frequent"),
        }
    }
}

/// A counter of the kernel's protocols or of the queues of CPUs, and the drops of the same packets.
#[derive(Debug)]
pub struct KnownCounter {
    pub name: &'static str,
    reasons: Vec<&'static str>,
    protocol: Option<&'static str>,
    what: &'static str,
}

impl KnownCounter {
    /// Returns the reasons of the same packets, some with the function after `@`.
    pub fn reasons(&self) -> impl Iterator<Item = &'static str> {
        self.reasons.iter().copied()
    }
}

pub fn known_counters() -> impl Iterator<Item = KnownCounter> {
    let lines = include_str!("known.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    let column = |rest: &'static str| rest.trim_start().split_once(' ');
    lines.filter_map(move |line| {
        let (name, rest) = column(line)?;
        let (reasons, rest) = column(rest)?;
        let (protocol, what) = column(rest)?;
        Some(KnownCounter {
            name,
            reasons: reasons.split(',').filter(|one| *one != "-").collect(),
            protocol: (protocol != "-").then_some(protocol),
            what: what.trim(),
        })
    })
}

/// Finds the advice about packets that only a counter shows.
fn advice_for_counter(key: &CounterKey, reason: &str, known: &mut Knowledge) -> Option<String> {
    let drop_key = DropKey {
        reason: reason.to_owned(),
        interface: key.device.clone(),
        netns: key.netns.clone(),
        ..DropKey::default()
    };
    let advice = known.advice.entry(drop_key.clone());
    advice.or_insert_with(|| advice::of(&drop_key, &Row::default(), &Blame::default())).clone()
}

/// Prefix of the names of IPsec's counters, which are more specific than the reasons of its drops.
const IPSEC: &str = "Xfrm";

/// Gives rows of packets that IPsec dropped the advice of the counters that counted them.
fn name_causes_of_ipsec(tally: &Tally, counters: &[Counter], known: &mut Knowledge) {
    let mut causes: BTreeMap<&DropKey, (u64, Vec<String>)> = BTreeMap::new();
    for one in known_counters().filter(|one| one.name.starts_with(IPSEC)) {
        for counter in counters.iter().filter(|counter| counter.name == one.name) {
            let Some(advice) = &counter.advice else {
                continue;
            };
            let is_counted =
                |key: &&DropKey| key.netns == counter.netns && one.reasons.iter().any(|reason| is_for(key, reason));
            for key in tally.rows.keys().filter(is_counted) {
                let (packets, advice_of_counters) = causes.entry(key).or_default();
                *packets += counter.difference;
                advice_of_counters.push(format!("{}: {advice}", counter.name));
            }
        }
    }
    for (key, (packets, advice_of_counters)) in causes {
        let row = &tally.rows[key];
        let before = known.advice.entry(key.clone()).or_insert_with(|| advice::of(key, row, &Blame::default()));
        let is_by_route = before.as_deref().is_some_and(advice::is_of_route);
        if row.packets <= packets && !is_by_route {
            *before = Some(advice_of_counters.join("; "));
        }
    }
}

fn counters(tally: &Tally, differences: &Differences, known: &mut Knowledge) -> Vec<Counter> {
    let mut all: Vec<Counter> = Vec::new();
    for one in known_counters() {
        let found = differences.counters.iter();
        for (key, difference) in found.filter(|(key, _)| key.name == one.name && key.device.is_none()) {
            let netns = key.netns.as_deref();
            let in_rows = tally.of_reasons(&one.reasons, one.protocol, netns);
            let counter = Counter::new(key, *difference, in_rows);
            let mut elsewhere = tally.no_losses_of(&one.reasons, netns);
            // The kernel counts a refused connection by both counters if the accept queue is full.
            if one.name == LISTEN_DROPS {
                let overflows = CounterKey { name: LISTEN_OVERFLOWS.to_owned(), ..key.clone() };
                elsewhere += differences.counters.get(&overflows).copied().unwrap_or(0);
            }
            let first = one.reasons.first().copied().unwrap_or_default();
            let reason = if one.name.starts_with(IPSEC) { one.name } else { first };
            let mut what = vec![one.what.to_owned()];
            if [LISTEN_DROPS, LISTEN_OVERFLOWS].contains(&one.name) {
                what.extend(differences.sockets.of(netns, SocketKind::Listener));
            }
            all.push(Counter {
                counter_only: counter.counter_only.saturating_sub(elsewhere),
                what: what.join(": "),
                advice: advice_for_counter(key, reason, known),
                ..counter
            });
        }
    }
    for (netns, packets) in differences.sockets.full_packet_sockets() {
        let key = CounterKey { netns: netns.clone(), device: None, name: "PacketSocketDrops".to_owned() };
        let what = differences.sockets.of(netns.as_deref(), SocketKind::Packet).unwrap_or_default();
        all.push(Counter {
            what: format!("buffers of packet sockets full: {what}"),
            advice: advice_for_counter(&key, "PACKET_SOCK_ERROR", known),
            ..Counter::new(&key, packets, tally.of_reasons(&PACKET_SOCKETS, None, netns.as_deref()))
        });
    }
    let mut explained = Explained::default();
    let devices = differences.counters.iter();
    for (key, difference) in devices.filter(|(key, _)| key.device.is_some()) {
        let explained = explained.at(key, tally, differences);
        all.push(of_device(key, *difference, explained, known));
    }
    all.extend(differences.events.iter().map(|loss| of_xdp(tally, loss)));
    all
}

/// Parts of a device's counters that other lines already show. Drivers count by queue: each counter subtracts its
/// share.
#[derive(Default)]
struct Explained(HashMap<(Option<String>, Option<String>), ExplainedLosses>);

struct ExplainedLosses {
    /// Socket buffers that XDP programs dropped.
    rows: u64,
    /// Losses by XDP without a socket buffer: exceptions, and failed redirects.
    exceptions: u64,
    redirects: u64,
}

impl Explained {
    fn at(&mut self, key: &CounterKey, tally: &Tally, differences: &Differences) -> &mut ExplainedLosses {
        let (netns, device) = (key.netns.as_deref(), key.device.as_deref());
        let device_key = (key.netns.clone(), key.device.clone());
        self.0.entry(device_key).or_insert_with(|| {
            let lost = |is_meant: fn(&XdpOutcome) -> bool| {
                let losses = differences.events.iter().filter(|loss| {
                    !loss.event.freed_buffer
                        && is_meant(&loss.event.what)
                        && loss.netns.as_deref() == netns
                        && loss.interface.as_deref() == device
                });
                losses.map(|loss| loss.packets).sum()
            };
            ExplainedLosses {
                rows: tally.of_xdp(device, netns),
                exceptions: lost(|what| matches!(what, XdpOutcome::Exception { .. })),
                redirects: lost(|what| matches!(what, XdpOutcome::Redirect { .. })),
            }
        })
    }
}

fn subtract(from: &mut u64, at_most: u64) -> u64 {
    let difference = (*from).min(at_most);
    *from -= difference;
    difference
}

impl Counter {
    fn new(key: &CounterKey, difference: u64, in_rows: u64) -> Self {
        let in_rows = in_rows.min(difference);
        Self {
            name: key.name.clone(),
            netns: key.netns.clone(),
            interface: key.device.clone(),
            difference,
            in_rows,
            counter_only: difference - in_rows,
            ..Self::default()
        }
    }
}

/// Returns the line of a driver's counter, or of a devlink trap.
fn of_device(key: &CounterKey, difference: u64, explained: &mut ExplainedLosses, known: &mut Knowledge) -> Counter {
    if !key.name.contains("xdp_drop") {
        let mut counter = Counter::new(key, difference, 0);
        // For a failed redirect, veth counts a drop of its own.
        if key.name.ends_with("_drops") {
            counter.counter_only -= subtract(&mut explained.redirects, counter.counter_only);
        }
        return counter;
    }
    let mut counter = Counter::new(key, difference, subtract(&mut explained.rows, difference));
    counter.counter_only -= subtract(&mut explained.exceptions, counter.counter_only);
    Counter {
        mode: Some("native".to_owned()),
        verdict: Some("DROP".to_owned()),
        what: "dropped by an XDP program".to_owned(),
        advice: advice_for_counter(key, REASON_XDP, known),
        ..counter
    }
}

/// Returns the name of the tracepoint.
pub fn event_name(what: &XdpOutcome) -> &'static str {
    match what {
        XdpOutcome::Exception { .. } => "xdp:xdp_exception",
        XdpOutcome::Redirect { .. } => "xdp:xdp_redirect_err",
        XdpOutcome::Devmap { .. } => "xdp:xdp_devmap_xmit",
        XdpOutcome::Cpumap { .. } => "xdp:xdp_cpumap_enqueue",
    }
}

/// Returns the verdict of the program.
pub fn event_verdict(what: &XdpOutcome) -> String {
    match *what {
        XdpOutcome::Exception { verdict } => verdict::text(Verdict::Xdp(verdict.into())),
        _ => "REDIRECT".to_owned(),
    }
}

/// Returns the mode in which the program ran.
pub fn mode(event: &Event) -> &'static str {
    if event.skb_mode { "skb" } else { "native" }
}

pub fn error_text(errno: u32) -> String {
    let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
    let before = text.split(" (os error").next();
    before.unwrap_or_default().to_owned()
}

/// Returns the line of a loss that an XDP tracepoint counted.
fn of_xdp(tally: &Tally, loss: &CountedLoss) -> Counter {
    let (netns, interface) = (loss.netns.as_deref(), loss.interface.as_deref());
    let event = &loss.event;
    let in_rows = if event.freed_buffer { tally.of_xdp(interface, netns).min(loss.packets) } else { 0 };
    let what = match event.what {
        XdpOutcome::Exception { verdict: 0 } => "the program failed".to_owned(),
        XdpOutcome::Exception { .. } => "the verdict could not be carried out".to_owned(),
        XdpOutcome::Redirect { errno, map } => {
            let through = map.map_or(String::new(), |map| format!(" through map {map}"));
            format!("no redirect{through}: {}", error_text(errno))
        }
        XdpOutcome::Devmap { errno: 0 } => "the interface accepted no more packets".to_owned(),
        XdpOutcome::Devmap { errno } => {
            let why = error_text(errno);
            format!("the interface did not accept redirected packets: {why}")
        }
        XdpOutcome::Cpumap { map, cpu } => {
            format!("the queue of CPU {cpu} in cpumap {map} was full")
        }
    };
    let program = (event.program != 0).then(|| advice::ProgramName::of(event.program));
    let is_run = matches!(event.what, XdpOutcome::Exception { .. } | XdpOutcome::Redirect { .. });
    Counter {
        name: event_name(&event.what).to_owned(),
        netns: loss.netns.clone(),
        interface: loss.interface.clone(),
        advice: advice::of_event(&event.what, program.as_ref(), interface, netns),
        program,
        verdict: Some(event_verdict(&event.what)),
        errno: event.what.errno(),
        mode: is_run.then(|| mode(event).to_owned()),
        function: event.function.clone(),
        difference: loss.packets,
        in_rows,
        counter_only: loss.packets - in_rows,
        what,
        change: None,
    }
}

impl ReportRow {
    /// Returns the location of the drops, and the owner of the packets.
    fn columns(&self) -> (String, String) {
        let key = &self.key;
        let hook = key.hook.clone();
        let mut at = vec![hook.unwrap_or_else(|| key.function.clone())];
        at.extend(key.interface.clone());
        at.extend(named_space(key.netns.as_deref()));
        let mut who: Vec<String> = key.socket.iter().cloned().collect();
        if let Some(Process { name, pid, packets }) = &self.process {
            let count = if *packets == self.packets { String::new() } else { format!(" ({packets})") };
            let others = match self.other_processes {
                None => String::new(),
                Some(1) => " and 1 other process".to_owned(),
                Some(others) => format!(" and {others} other processes"),
            };
            who.push(format!("{}[{pid}]{count}{others}", shown(name)));
        }
        who.extend(self.receive_buffer.map(|bytes| match bytes % 1024 {
            0 => format!("receive buffer of {} KiB full", bytes / 1024),
            _ => format!("receive buffer of {bytes} bytes full"),
        }));
        let flows = self.flows.iter();
        let mut flows: Vec<String> = flows.map(|flow| format!("{} ({})", flow.flow, flow.packets)).collect();
        flows.extend(self.other_flows.map(|others| format!("and {others} other flows")));
        let change = self.change.map_or(String::new(), |change| change.to_string());
        let parts = [change, who.join(" "), flows.join(", ")];
        let parts: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        (at.join(" "), parts.join("; "))
    }
}

impl Counter {
    /// Returns true for a counter of the same losses at the same place.
    fn is_like(&self, other: &Self) -> bool {
        let facts = |one: &Self| {
            let place = (one.netns.clone(), one.interface.clone());
            (one.name.clone(), place, one.verdict.clone(), one.errno)
        };
        facts(self) == facts(other)
    }

    fn label(&self) -> String {
        let mut at = vec![self.name.clone()];
        at.extend(self.interface.clone());
        at.extend(named_space(self.netns.as_deref()));
        at.join(" ")
    }

    fn columns(&self) -> String {
        let mut words = vec![self.what.clone()];
        // A driver's counter is described by its name.
        words.extend(self.program.as_ref().map(advice::ProgramName::to_string));
        words.extend(self.mode.as_ref().map(|mode| format!("{mode} mode")));
        words.extend(self.change.map(|change| change.to_string()));
        words.extend((self.in_rows > 0).then(|| format!("{} more are in rows", self.in_rows)));
        words.retain(|word| !word.is_empty());
        words.join(", ")
    }
}

/// Returns the namespace for a row; nothing for the number of this command's own, which has no name.
fn named_space(netns: Option<&str>) -> Option<String> {
    static OWN: OnceLock<Option<String>> = OnceLock::new();
    let number = || Some(Namespace::current().ok()?.identity().1.to_string());
    let netns = netns.filter(|netns| OWN.get_or_init(number).as_deref() != Some(netns))?;
    Some(format!("({})", shown(netns)))
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |packets: u64, name: &str, at: &str, who: &str, more: &[String]| {
            let line = format!("{packets:>8}  {name:<18} {at:<34} {who}");
            writeln!(f, "{}", line.trim_end())?;
            more.iter().try_for_each(|text| writeln!(f, "{:>10}{text}", ""))
        };
        for row in &self.rows {
            let (at, who) = row.columns();
            let more: Vec<String> = row.blame.lines().chain(row.advice.clone()).collect();
            line(row.packets, &row.key.reason, &at, &who, &more)?;
        }
        let counters = self.counters.iter();
        for counter in counters.filter(|counter| counter.counter_only > 0) {
            let advice = counter.advice.as_slice();
            let (at, what) = (counter.label(), counter.columns());
            line(counter.counter_only, "counter only", &at, &what, advice)?;
        }
        let total: u64 = self.no_losses.values().sum();
        if total > 0 {
            let mut reasons: Vec<_> = self.no_losses.iter().collect();
            reasons.sort_by(|a, b| b.1.cmp(a.1));
            let reasons: Vec<String> =
                reasons.into_iter().map(|(reason, packets)| format!("{reason} {packets}")).collect();
            writeln!(f, "not losses: {total} ({}), --all shows them", reasons.join(", "))?;
        }
        if self.rows.is_empty() && self.counters.iter().all(|counter| counter.counter_only == 0) {
            match self.reference {
                Some(_) => writeln!(f, "nothing is new, or ten times as frequent")?,
                None => writeln!(f, "no packet was dropped")?,
            }
        }
        if let Some(Compared { as_before }) = self.reference
            && as_before > 0
        {
            let rows = if as_before == 1 { "row is" } else { "rows are" };
            writeln!(f, "{as_before} {rows} as in the reference, and left out")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_flows_are_counted_if_there_are_several() {
        let text = |flows: usize| {
            let flow = |number| (format!("udp to {number}"), 1);
            let row = Row { packets: flows as u64, flows: (1..=flows).map(flow).collect(), ..Row::default() };
            let key = DropKey { reason: "NOMEM".to_owned(), ..DropKey::default() };
            let mut tally = Tally::default();
            tally.rows.insert(key, row);
            let (none, account) = (Differences::default(), PacketAccount::default());
            LossReport::new(&tally, &none, &account, &mut Knowledge::default()).to_string()
        };
        assert!(!text(4).contains("other flows"), "{}", text(4));
        assert!(text(4).contains("udp to 4 (1)"), "{}", text(4));
        assert!(text(5).contains("and 2 other flows"), "{}", text(5));
    }
}
