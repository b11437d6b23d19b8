//! The output of `trawl why`: rows as text and as JSON, and a consistent summary.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;
use serde_json::json;
use trawl_bpf::xdp_events::{Event, XdpEvents, XdpOutcome};
use trawl_capture::capture_site::CaptureSite;
use trawl_packet::pcapng::Verdict;
use trawl_packet::verdict;
use trawl_pipeline::account::PacketAccount;
use trawl_sys::Result;
use trawl_sys::counters::{self, CounterKey, Counters};
use trawl_sys::netlink::Netlink;
use trawl_sys::netns::{Namespace, NamespaceSearch};
use trawl_view::why::{DropKey, REASON_XDP, Row, Tally};

use super::advice;
use crate::json;

/// Number of flows that a row names.
const FLOWS: usize = 3;
#[derive(Debug, Serialize)]
pub struct LossReport {
    rows: Vec<ReportRow>,
    counters: Vec<Counter>,
    /// Packets that no socket wanted any more, by reason.
    no_losses: BTreeMap<String, u64>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
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
#[derive(Debug, Default, Serialize)]
struct Counter {
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
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    function: String,
    difference: u64,
    /// Number of these packets that are in the rows.
    in_rows: u64,
    /// Number in no row: the kernel counted them without freeing a packet as dropped.
    counter_only: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    what: String,
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

/// Advice that was found before, since finding it runs other commands.
pub type Advice = HashMap<DropKey, Option<String>>;

impl LossReport {
    pub fn new(
        tally: &Tally,
        differences: &Differences,
        account: &PacketAccount,
        known: &mut Advice,
    ) -> Self {
        let no_losses: u64 = tally.no_losses.values().sum();
        let rows = tally.sorted().into_iter();
        Self {
            rows: rows
                .map(|(key, row)| ReportRow::new(key, row, known))
                .collect(),
            counters: counters(tally, differences, known),
            no_losses: tally.no_losses.clone(),
            account: Sums {
                seen: account.seen,
                filtered_out: account.filtered_out + no_losses,
                recorded: account.recorded.saturating_sub(no_losses),
                lost: account.lost_total(),
            },
        }
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
    fn new(key: &DropKey, row: &Row, known: &mut Advice) -> Self {
        let flow = |(flow, packets): (&str, u64)| Flow {
            flow: flow.to_owned(),
            packets,
        };
        let advice = known.entry(key.clone()).or_insert_with(|| {
            let protocols: Vec<&str> = row.protocols.keys().map(String::as_str).collect();
            advice::of(key, row.destination.as_deref(), &row.versions(), &protocols)
        });
        Self {
            packets: row.packets,
            key: key.clone(),
            receive_buffer: row.receive_buffer,
            process: row.process().map(|(pid, name, packets)| Process {
                name: name.to_owned(),
                pid,
                packets,
            }),
            other_processes: row
                .processes
                .len()
                .checked_sub(1)
                .filter(|&others| others > 0),
            flows: row.most_concerned(FLOWS).into_iter().map(flow).collect(),
            advice: advice.clone(),
        }
    }
}

/// A counter of the kernel's protocols or of the queues of CPUs, and the drops of the same packets.
struct KnownCounter {
    name: &'static str,
    reasons: Vec<&'static str>,
    protocol: Option<&'static str>,
    what: &'static str,
}

fn known_counters() -> impl Iterator<Item = KnownCounter> {
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
fn advice_for_counter(key: &CounterKey, reason: &str, known: &mut Advice) -> Option<String> {
    let drop_key = DropKey {
        reason: reason.to_owned(),
        function: String::new(),
        hook: None,
        interface: key.device.clone(),
        netns: key.netns.clone(),
        socket: None,
    };
    let advice = known.entry(drop_key.clone());
    advice
        .or_insert_with(|| advice::of(&drop_key, None, &[4, 6], &[]))
        .clone()
}

fn counters(tally: &Tally, differences: &Differences, known: &mut Advice) -> Vec<Counter> {
    let mut all: Vec<Counter> = Vec::new();
    for one in known_counters() {
        let found = differences.counters.iter();
        for (key, difference) in
            found.filter(|(key, _)| key.name == one.name && key.device.is_none())
        {
            let netns = key.netns.as_deref();
            let in_rows = tally.of_reasons(&one.reasons, one.protocol, netns);
            let counter = Counter::new(key, *difference, in_rows);
            let no_losses = tally.no_losses_of(&one.reasons, netns);
            let reason = one.reasons.first().copied().unwrap_or_default();
            all.push(Counter {
                counter_only: counter.counter_only.saturating_sub(no_losses),
                what: one.what.to_owned(),
                advice: advice_for_counter(key, reason, known),
                ..counter
            });
        }
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

/// Parts of a device's counters that other lines already show. Drivers count by queue: each counter subtracts its share.
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
    fn at(
        &mut self,
        key: &CounterKey,
        tally: &Tally,
        differences: &Differences,
    ) -> &mut ExplainedLosses {
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

fn take(from: &mut u64, at_most: u64) -> u64 {
    let taken = (*from).min(at_most);
    *from -= taken;
    taken
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
fn of_device(
    key: &CounterKey,
    difference: u64,
    explained: &mut ExplainedLosses,
    known: &mut Advice,
) -> Counter {
    if !key.name.contains("xdp_drop") {
        let mut counter = Counter::new(key, difference, 0);
        // For a failed redirect, veth counts a drop of its own.
        if key.name.ends_with("_drops") {
            counter.counter_only -= take(&mut explained.redirects, counter.counter_only);
        }
        return counter;
    }
    let mut counter = Counter::new(key, difference, take(&mut explained.rows, difference));
    counter.counter_only -= take(&mut explained.exceptions, counter.counter_only);
    Counter {
        mode: Some("native"),
        verdict: Some("DROP".to_owned()),
        what: "dropped by an XDP program".to_owned(),
        advice: advice_for_counter(key, REASON_XDP, known),
        ..counter
    }
}

/// Returns the line of a loss that an XDP tracepoint counted.
fn of_xdp(tally: &Tally, loss: &CountedLoss) -> Counter {
    let (netns, interface) = (loss.netns.as_deref(), loss.interface.as_deref());
    let event = &loss.event;
    let error = |errno: u32| {
        let text = std::io::Error::from_raw_os_error(errno as i32).to_string();
        text.split(" (os error")
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let in_rows = match event.freed_buffer {
        true => tally.of_xdp(interface, netns).min(loss.packets),
        false => 0,
    };
    let verdict = match event.what {
        XdpOutcome::Exception { verdict } => verdict::text(Verdict::Xdp(verdict.into())),
        _ => "REDIRECT".to_owned(),
    };
    let (name, errno, what) = match event.what {
        XdpOutcome::Exception { verdict: 0 } => {
            ("exception", None, "the program failed".to_owned())
        }
        XdpOutcome::Exception { .. } => {
            let what = "the verdict could not be carried out".to_owned();
            ("exception", None, what)
        }
        XdpOutcome::Redirect { errno, map } => {
            let through = map.map_or(String::new(), |map| format!(" through map {map}"));
            let what = format!("no redirect{through}: {}", error(errno));
            ("redirect_err", Some(errno), what)
        }
        XdpOutcome::Devmap { errno: 0 } => {
            let what = "the interface accepted no more packets".to_owned();
            ("devmap_xmit", None, what)
        }
        XdpOutcome::Devmap { errno } => {
            let why = error(errno);
            let what = format!("the interface did not take redirected packets: {why}");
            ("devmap_xmit", Some(errno), what)
        }
        XdpOutcome::Cpumap { map, cpu } => {
            let what = format!("the queue of CPU {cpu} in cpumap {map} was full");
            ("cpumap_enqueue", None, what)
        }
    };
    let program = (event.program != 0).then(|| advice::ProgramName::of(event.program));
    let is_run = matches!(
        event.what,
        XdpOutcome::Exception { .. } | XdpOutcome::Redirect { .. }
    );
    Counter {
        name: format!("xdp:xdp_{name}"),
        netns: loss.netns.clone(),
        interface: loss.interface.clone(),
        advice: advice::of_event(&event.what, program.as_ref(), interface, netns),
        program,
        verdict: Some(verdict),
        errno,
        mode: is_run.then_some(if event.skb_mode { "skb" } else { "native" }),
        function: event.function.clone(),
        difference: loss.packets,
        in_rows,
        counter_only: loss.packets - in_rows,
        what,
    }
}

impl ReportRow {
    /// Returns the location of the drops, and the owner of the packets.
    fn columns(&self) -> (String, String) {
        let key = &self.key;
        let hook = key.hook.map(str::to_owned);
        let mut at = vec![hook.unwrap_or_else(|| key.function.clone())];
        at.extend(key.interface.clone());
        at.extend(key.netns.as_ref().map(|netns| format!("({netns})")));
        let mut who: Vec<String> = key.socket.iter().cloned().collect();
        if let Some(Process { name, pid, packets }) = &self.process {
            let count = match *packets == self.packets {
                true => String::new(),
                false => format!(" ({packets})"),
            };
            let others = match self.other_processes {
                None => String::new(),
                Some(1) => " and 1 other process".to_owned(),
                Some(others) => format!(" and {others} other processes"),
            };
            who.push(format!("{name}[{pid}]{count}{others}"));
        }
        who.extend(self.receive_buffer.map(|bytes| match bytes % 1024 {
            0 => format!("receive buffer of {} KiB full", bytes / 1024),
            _ => format!("receive buffer of {bytes} bytes full"),
        }));
        let flows = self.flows.iter();
        let flows: Vec<String> = flows
            .map(|flow| format!("{} ({})", flow.flow, flow.packets))
            .collect();
        let parts = [who.join(" "), flows.join(", ")];
        let parts: Vec<&str> = parts
            .iter()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        (at.join(" "), parts.join("; "))
    }
}

impl Counter {
    fn label(&self) -> String {
        let mut at = vec![self.name.clone()];
        at.extend(self.interface.clone());
        at.extend(self.netns.as_ref().map(|netns| format!("({netns})")));
        at.join(" ")
    }

    fn columns(&self) -> String {
        let mut words = vec![self.what.clone()];
        // A driver's counter is described by its name.
        words.extend(self.program.as_ref().map(advice::ProgramName::to_string));
        words.extend(self.mode.map(|mode| format!("{mode} mode")));
        words.extend((self.in_rows > 0).then(|| format!("{} more are in rows", self.in_rows)));
        words.retain(|word| !word.is_empty());
        words.join(", ")
    }
}

impl fmt::Display for LossReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |packets: u64, name: &str, at: &str, who: &str, advice: Option<&String>| {
            let line = format!("{packets:>8}  {name:<18} {at:<34} {who}");
            writeln!(f, "{}", line.trim_end())?;
            match advice {
                Some(advice) => writeln!(f, "{:>10}{advice}", ""),
                None => Ok(()),
            }
        };
        for row in &self.rows {
            let (at, who) = row.columns();
            line(row.packets, &row.key.reason, &at, &who, row.advice.as_ref())?;
        }
        let counters = self.counters.iter();
        for counter in counters.filter(|counter| counter.counter_only > 0) {
            let advice = counter.advice.as_ref();
            let (at, what) = (counter.label(), counter.columns());
            line(counter.counter_only, "counter only", &at, &what, advice)?;
        }
        let total: u64 = self.no_losses.values().sum();
        if total > 0 {
            let mut reasons: Vec<_> = self.no_losses.iter().collect();
            reasons.sort_by(|a, b| b.1.cmp(a.1));
            let reasons: Vec<String> = reasons
                .into_iter()
                .map(|(reason, packets)| format!("{reason} {packets}"))
                .collect();
            writeln!(
                f,
                "not losses: {total} ({}), --all shows them",
                reasons.join(", ")
            )?;
        }
        if self.rows.is_empty()
            && self
                .counters
                .iter()
                .all(|counter| counter.counter_only == 0)
        {
            writeln!(f, "no packet was dropped")?;
        }
        Ok(())
    }
}

/// Limit, since each namespace requires reading the counters of all its devices.
const MOST_NAMESPACES: usize = 64;

/// Counters from before, to be compared with those after.
#[derive(Debug)]
pub struct Counted {
    namespaces: Vec<Namespace>,
    /// Set if all namespaces are included: events in unknown ones are reported too.
    everywhere: bool,
    /// The selected interfaces with their namespaces, if only some are watched.
    interfaces: Vec<(Namespace, String, u32)>,
    before: Counters,
    events: Option<XdpEvents>,
}

/// The increases since then.
#[derive(Debug, Default)]
pub struct Differences {
    pub counters: Counters,
    pub events: Vec<CountedLoss>,
}

/// Packets that XDP lost, with names for the kernel's numbers.
#[derive(Debug)]
pub struct CountedLoss {
    pub event: Event,
    pub packets: u64,
    pub netns: Option<String>,
    pub interface: Option<String>,
}

impl Counted {
    /// Reads the first counters: of these namespaces, of all that can be found if none is named, or of some interfaces alone.
    pub fn new(sites: &[CaptureSite], named: Vec<Namespace>) -> Result<Self> {
        let everywhere = sites.is_empty() && named.is_empty();
        let mut namespaces = Vec::new();
        let mut interfaces = Vec::new();
        if sites.is_empty() && !everywhere {
            namespaces = named;
        } else if everywhere {
            NamespaceSearch::default().find(|one| {
                namespaces.push(one.clone());
                false
            });
            if namespaces.len() > MOST_NAMESPACES {
                let (compared, all) = (MOST_NAMESPACES, namespaces.len());
                let text = format!(
                    "counters of {compared} of {all} network namespaces are compared: choose one by --netns"
                );
                json::say(
                    "namespaces_left_out",
                    json!({ "compared": compared, "all": all }),
                    &text,
                );
                namespaces.truncate(MOST_NAMESPACES);
            }
        }
        for site in sites {
            let namespace = match &site.namespace {
                Some(namespace) => namespace.clone(),
                None => Namespace::current()?,
            };
            interfaces.push((namespace, site.interface.name.clone(), site.interface.index));
        }
        let events = match XdpEvents::watch() {
            Ok(events) => Some(events),
            Err(error) => {
                let text = error.to_string();
                json::say("not_watched", json!({ "error": text.clone() }), &text);
                None
            }
        };
        let mut counted = Self {
            namespaces,
            everywhere,
            interfaces,
            before: Counters::new(),
            events,
        };
        counted.before = counted.look();
        Ok(counted)
    }

    /// Reads the counters, and skips any that cannot be read, as in a namespace that is gone by now.
    fn look(&self) -> Counters {
        let mut all = counters::of_cpus();
        let mut add = |found: Result<Counters>| all.extend(found.unwrap_or_default());
        for namespace in &self.namespaces {
            add(counters::of_protocols(namespace));
            add(counters::of_devices(namespace, None));
            add(counters::of_traps(namespace));
        }
        for (namespace, interface, _) in &self.interfaces {
            add(counters::of_devices(namespace, Some(interface)));
        }
        all
    }

    pub fn differences(&self) -> Result<Differences> {
        let events = self.events.as_ref().map(XdpEvents::counts).transpose()?;
        Ok(Differences {
            counters: counters::differences(&self.before, &self.look()),
            events: self.losses(events.unwrap_or_default()),
        })
    }

    fn losses(&self, events: Vec<(Event, u64)>) -> Vec<CountedLoss> {
        let mut names = BTreeMap::new();
        let mut losses = Vec::new();
        for (event, packets) in events {
            let Some((netns, interface)) = self.find(&event, &mut names) else {
                continue;
            };
            losses.push(CountedLoss {
                event,
                packets,
                netns,
                interface,
            });
        }
        losses
    }

    /// Returns the names of namespace and interface; `None` if the event is outside the selection.
    fn find(
        &self,
        event: &Event,
        names: &mut BTreeMap<(u32, u32), Option<String>>,
    ) -> Option<(Option<String>, Option<String>)> {
        let is_there = |namespace: &Namespace| namespace.identity().1 == u64::from(event.netns);
        if let Some((namespace, name, _)) = self
            .interfaces
            .iter()
            .find(|(namespace, _, index)| is_there(namespace) && *index == event.ifindex)
        {
            return Some((Some(counters::label(namespace)), Some(name.clone())));
        }
        if let Some(namespace) = self.namespaces.iter().find(|one| is_there(one)) {
            let interface = names
                .entry((event.netns, event.ifindex))
                .or_insert_with(|| {
                    let mut netlink = Netlink::open(Some(namespace)).ok()?;
                    let link = netlink.find_link_by_index(event.ifindex).ok()??;
                    Some(link.name)
                });
            return Some((Some(counters::label(namespace)), interface.clone()));
        }
        // A namespace created since, or none at all: cpumaps belong to no namespace.
        self.everywhere.then(|| {
            let number = (event.netns != 0).then(|| event.netns.to_string());
            (number, None)
        })
    }
}
