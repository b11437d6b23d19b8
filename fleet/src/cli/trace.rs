//! `trawl store trace`: the same packet at several interfaces and hosts, identified by its invariant parts, with delays
//! as far as the hosts' clocks can be trusted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_front::{exit_code, json, terminal};
use trawl_spool::key::Object;
use trawl_sys::{Error, Result, units};

use super::query::{PartArgs, StoreArgs, has_index, say_coverage};
use crate::query::Answer;
use trawl_store::search::question::Form;
use trawl_store::{Coverage, Runs, coverage};

/// Finds packets at several interfaces and hosts of a store, and the delay from one to the next
///
/// Two packets are the same if their addresses, ports, protocol, TCP numbers and first 64 bytes of payload are equal.
/// NAT, tunnels and GRO change these: such a packet is found at one interface only. The delay between two hosts is
/// shown with the error of both clocks, and omitted if the error of a clock is unknown.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The packets: host, port, src, dst and protocols joined by 'and', in tcpdump's syntax
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    part: PartArgs,
    /// The packets, by a condition in SQL on the index's columns: "src = '10.0.0.1' AND length > 1000"
    #[arg(long = "where", value_name = "CONDITION")]
    condition: Option<String>,
    /// The longest time between two interfaces
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1s")]
    window: Duration,
    /// Show each packet
    #[arg(long)]
    each: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A row of the index, in the order of hash, flow and time.
#[derive(Debug, Deserialize)]
struct Row {
    hash: u32,
    src: String,
    dst: String,
    sport: Option<u16>,
    dport: Option<u16>,
    protocol: Option<u8>,
    ns: i64,
    host: String,
    interface: String,
    chunk: String,
}

impl Row {
    /// Returns the common part of the keys of its run.
    fn run(&self) -> String {
        match Object::of(&self.chunk) {
            Object::Packets(chunk) => chunk.run().to_owned(),
            _ => String::new(),
        }
    }

    fn is_same_packet(&self, other: &Self) -> bool {
        let key = |row: &Self| (row.hash, row.sport, row.dport, row.protocol);
        key(self) == key(other) && self.src == other.src && self.dst == other.dst
    }
}

/// One packet seen at one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    interface: HostInterface,
    ns: i64,
    bound_ns: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct HostInterface {
    host: String,
    interface: String,
}

impl std::fmt::Display for HostInterface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.interface)
    }
}

/// The step from one interface to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Step {
    ns: i64,
    /// Largest error of the delay; absent if a clock's error is unknown.
    error_bound_ns: Option<u64>,
    /// True if the packet was certainly at the first interface before the second.
    is_ordered: bool,
}

fn steps(path: &[Sighting]) -> Vec<Step> {
    let step = |pair: &[Sighting]| {
        let ns = pair[1].ns - pair[0].ns;
        // One host has one clock, whatever its error.
        let bound = if pair[0].interface.host == pair[1].interface.host {
            Some(0)
        } else {
            pair[0].bound_ns.zip(pair[1].bound_ns).map(|(a, b)| a + b)
        };
        Step { ns, error_bound_ns: bound, is_ordered: bound.is_some_and(|bound| ns.unsigned_abs() > bound) }
    };
    path.windows(2).map(step).collect()
}

/// Classification of one packet's sightings.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// At one interface only.
    Once(HostInterface),
    FlowPath(Vec<Sighting>),
    /// More than once at one interface: a copy, a retransmission or a similar packet.
    Ambiguous,
}

fn classify(mut sightings: Vec<Sighting>) -> Found {
    sightings.sort_by_key(|sighting| sighting.ns);
    let mut interfaces: Vec<&HostInterface> = sightings.iter().map(|sighting| &sighting.interface).collect();
    interfaces.sort();
    if interfaces.windows(2).any(|pair| pair[0] == pair[1]) {
        return Found::Ambiguous;
    }
    match sightings.as_slice() {
        [only] => Found::Once(only.interface.clone()),
        _ => Found::FlowPath(sightings),
    }
}

#[derive(Debug, Serialize)]
struct Trace<'a> {
    coverage: &'a [Coverage],
    window_ns: u64,
    #[serde(rename = "ways")]
    paths: Vec<FlowPath>,
    seen_once: Vec<Once>,
    /// Packets that were seen more than once at one interface.
    ambiguous: u64,
    /// Reasons why a packet is not found again.
    limits: [&'static str; 3],
}

#[derive(Debug, Serialize)]
struct FlowPath {
    #[serde(rename = "places")]
    interfaces: Vec<HostInterface>,
    packets: u64,
    delays: Vec<Delay>,
}

/// The delay from an interface of the path to the next, over all packets.
#[derive(Debug, Serialize)]
struct Delay {
    min_ns: i64,
    p50_ns: i64,
    max_ns: i64,
    /// The largest error; absent if a clock's error is unknown, and with it order and delay.
    error_bound_ns: Option<u64>,
    /// Number of the path's packets whose order at the two interfaces is certain.
    ordered: u64,
}

#[derive(Debug, Serialize)]
struct Once {
    #[serde(flatten)]
    interface: HostInterface,
    packets: u64,
}

const LIMITS: [&str; 3] = ["nat", "tunnels", "joined_packets"];

pub fn run(args: &Args) -> Result<ExitCode> {
    args.store.limit()?;
    let scope = args.part.scope()?;
    let (_, contents) = args.store.open(&scope)?;
    let mut conditions = args.part.conditions(&scope);
    let expression = args.expression.join(" ");
    let refused = conditions.ask_index(&expression);
    refused.map_err(|error| error.fix("--where accepts any condition on the index's columns"))?;
    let condition = args.condition.as_deref().unwrap_or("true");
    let query = format!(
        "SELECT hash, src, dst, sport, dport, protocol, time_ns AS ns, host, interface, chunk \
         FROM packets WHERE src IS NOT NULL AND ({condition}) ORDER BY hash, src, dst, sport, dport, protocol, ns"
    );
    let covered = coverage(&contents.runs, &scope);
    let answer = Answer::to(&args.store.question(contents.files, &conditions, &query, Form::Lines))?;
    say_coverage(&covered, &args.store.url());
    let mut trace = Tracing {
        bounds: bounds(&contents.runs),
        window: args.window,
        paths: BTreeMap::new(),
        once: BTreeMap::new(),
        ambiguous: 0,
        each: args.each && !args.json,
    };
    trace.read(answer.rows::<Row>())?;
    let trace = trace.into_trace(&covered, args.window);
    json::print_as(args.json, &trace, || text(&trace))?;
    Ok(exit_code(has_index(&covered)))
}

/// Returns the largest error of the clock in each run, by the common part of its keys.
fn bounds(runs: &Runs) -> BTreeMap<String, Option<u64>> {
    let runs = runs.0.iter();
    runs.map(|(epoch, run)| (epoch.prefix(), run.clock_error_bound_ns())).collect()
}

struct Tracing {
    bounds: BTreeMap<String, Option<u64>>,
    window: Duration,
    /// The steps of all packets along one path, from each of its interfaces to the next.
    paths: BTreeMap<Vec<HostInterface>, Vec<Vec<Step>>>,
    once: BTreeMap<HostInterface, u64>,
    ambiguous: u64,
    each: bool,
}

impl Tracing {
    fn read(&mut self, rows: impl Iterator<Item = io::Result<Row>>) -> Result<()> {
        let mut first: Option<Row> = None;
        let mut sightings: Vec<Sighting> = Vec::new();
        for row in rows {
            let row = row.map_err(|e| Error::failed("cannot read the index", e))?;
            let sighting = Sighting {
                interface: HostInterface { host: row.host.clone(), interface: row.interface.clone() },
                ns: row.ns,
                bound_ns: self.bounds.get(&row.run()).copied().flatten(),
            };
            let is_same = first.as_ref().is_some_and(|first| {
                let bound = sighting.bound_ns.unwrap_or(0) as i64;
                let span = self.window.as_nanos() as i64;
                first.is_same_packet(&row) && row.ns - first.ns <= span.saturating_add(bound)
            });
            if !is_same {
                self.close(first.as_ref(), std::mem::take(&mut sightings))?;
                first = Some(row);
            }
            sightings.push(sighting);
        }
        self.close(first.as_ref(), sightings)
    }

    fn close(&mut self, row: Option<&Row>, sightings: Vec<Sighting>) -> Result<()> {
        let Some(row) = row else { return Ok(()) };
        let found = classify(sightings);
        if self.each {
            terminal::write_out(&line(row, &found))?;
        }
        match found {
            Found::Ambiguous => self.ambiguous += 1,
            Found::Once(interface) => *self.once.entry(interface).or_default() += 1,
            Found::FlowPath(path) => {
                let steps = steps(&path);
                let interfaces = path.into_iter().map(|sighting| sighting.interface).collect();
                let all = self.paths.entry(interfaces).or_default();
                all.resize(steps.len(), Vec::new());
                all.iter_mut().zip(steps).for_each(|(all, step)| all.push(step));
            }
        }
        Ok(())
    }

    fn into_trace(self, coverage: &[Coverage], window: Duration) -> Trace<'_> {
        let paths = self.paths.into_iter().map(|(interfaces, paths)| FlowPath {
            interfaces,
            packets: paths.first().map_or(0, Vec::len) as u64,
            delays: paths.into_iter().map(delay).collect(),
        });
        Trace {
            coverage,
            window_ns: window.as_nanos() as u64,
            paths: paths.collect(),
            seen_once: self.once.into_iter().map(|(interface, packets)| Once { interface, packets }).collect(),
            ambiguous: self.ambiguous,
            limits: LIMITS,
        }
    }
}

fn delay(mut steps: Vec<Step>) -> Delay {
    steps.sort_by_key(|step| step.ns);
    let bounds: Option<Vec<u64>> = steps.iter().map(|step| step.error_bound_ns).collect();
    let at = |index: usize| steps.get(index).map_or(0, |step| step.ns);
    Delay {
        min_ns: at(0),
        p50_ns: at(steps.len() / 2),
        max_ns: at(steps.len().saturating_sub(1)),
        error_bound_ns: bounds.and_then(|bounds| bounds.into_iter().max()),
        ordered: steps.iter().filter(|step| step.is_ordered).count() as u64,
    }
}

fn microseconds(ns: i64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

fn line(row: &Row, found: &Found) -> String {
    let port = |port: Option<u16>| port.map_or(String::new(), |port| format!(".{port}"));
    let flow = format!("{}{} > {}{}", row.src, port(row.sport), row.dst, port(row.dport));
    let route = match found {
        Found::Once(interface) => format!("{interface} only"),
        Found::Ambiguous => "ambiguous: identical packets at one interface".to_owned(),
        Found::FlowPath(path) => {
            let mut text = path[0].interface.to_string();
            for (sighting, step) in path[1..].iter().zip(steps(path)) {
                let _ = match step {
                    Step { error_bound_ns: None, .. } => {
                        write!(text, " and {} (clock error unknown)", sighting.interface)
                    }
                    Step { is_ordered: false, .. } => write!(text, " and {} (order unknown)", sighting.interface),
                    Step { ns, .. } => {
                        write!(text, " +{} {}", microseconds(ns), sighting.interface)
                    }
                };
            }
            text
        }
    };
    format!("{flow} {:08x}: {route}\n", row.hash)
}

fn text(trace: &Trace<'_>) -> String {
    let mut out = String::new();
    for path in &trace.paths {
        let _ = write!(out, "{:>8}  {}", path.packets, path.interfaces[0]);
        for (interface, delay) in path.interfaces[1..].iter().zip(&path.delays) {
            let certain = delay.ordered == path.packets;
            let _ = write!(out, "{} {interface}", if certain { " ->" } else { " and" });
            let _ = match delay.error_bound_ns {
                None => write!(out, " (delay unknown: a clock's error is not known)"),
                Some(bound) => write!(
                    out,
                    " ({} to {}, p50 {}{}{})",
                    microseconds(delay.min_ns),
                    microseconds(delay.max_ns),
                    microseconds(delay.p50_ns),
                    if bound > 0 { format!(", error up to {}", microseconds(bound as i64)) } else { String::new() },
                    if certain { "" } else { ", order unknown" },
                ),
            };
        }
        out.push('\n');
    }
    for once in &trace.seen_once {
        let _ = writeln!(out, "{:>8}  {} only", once.packets, once.interface);
    }
    if trace.ambiguous > 0 {
        let _ = writeln!(out, "{:>8}  ambiguous: identical packets at one interface", trace.ambiguous);
    }
    if out.is_empty() {
        out.push_str("no packet matches\n");
    }
    out.push_str("NAT, tunnels and joined packets (GRO) keep a packet from being found again.\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, ns: i64, bound_ns: Option<u64>) -> Sighting {
        Sighting { interface: HostInterface { host: host.to_owned(), interface: "eth0".to_owned() }, ns, bound_ns }
    }

    #[test]
    fn an_order_is_claimed_only_beyond_the_clocks_error() {
        let path = [at("a", 0, Some(10)), at("b", 21, Some(10)), at("c", 31, Some(10))];
        let ordered: Vec<bool> = steps(&path).iter().map(|step| step.is_ordered).collect();
        assert_eq!(ordered, [true, false]);
        let unknown = [at("a", 0, None), at("b", 1_000_000, Some(1))];
        assert_eq!(steps(&unknown)[0].error_bound_ns, None);
        assert!(!steps(&unknown)[0].is_ordered);
    }

    #[test]
    fn none_one_and_many_are_distinguished() {
        assert_eq!(classify(vec![at("a", 5, None)]), Found::Once(at("a", 5, None).interface));
        assert_eq!(classify(vec![at("a", 5, None), at("a", 6, None)]), Found::Ambiguous);
        let Found::FlowPath(path) = classify(vec![at("b", 9, None), at("a", 5, None)]) else {
            panic!("seen at two places");
        };
        assert_eq!(path, [at("a", 5, None), at("b", 9, None)]);
    }
}
