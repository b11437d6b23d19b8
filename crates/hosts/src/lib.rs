//! Captures on other hosts: trawl runs on each by ssh, the packets are merged into one timeline, and each host has its
//! part in the report.

mod account;
mod far;

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_packet::pcapng::block::{Block, INTERFACE_STATISTICS, LINKTYPE_ETHERNET, blocks};
use trawl_packet::pcapng::write::{InterfaceStatistics, interface_statistics, with_deliveries};
use trawl_packet::read::Step;
use trawl_pipeline::report::StageReport;
use trawl_pipeline::{Blocks, Counts, Feed, LIVE, Patience, Pressure, Reader, Source, SourceState, WriteOutcome};
use trawl_plan::CapturePlan;
use trawl_sys::events::{self, Signal, Signals, Wake};
use trawl_sys::process::ssh::Ssh;
use trawl_sys::process::{companion, own_binary};
use trawl_sys::{Error, Result, clock};
use trawl_view::rewrite::Rewriter;

pub use account::Report;
use far::{Far, HostState};

/// Time that a packet waits for earlier ones from silent hosts: an idle host's packets have all arrived by then.
const HOLD: Duration = Duration::from_secs(1);
/// The same for a file, which nobody watches meanwhile: packets of a host without free CPUs may arrive later.
const HOLD_FOR_FILE: Duration = Duration::from_secs(5);
/// Number of bytes that are gathered before a write.
const GATHER: usize = 256 << 10;
/// Longest time between two calls of the function that the caller runs between polls.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Intervals between queries of the hosts' clocks. The first queries follow each other faster, because the best answer
/// counts and the first one waits for the connection.
const CLOCK_EVERY: Duration = Duration::from_secs(5);
const FIRST_CLOCKS_EVERY: Duration = Duration::from_millis(300);
const FIRST_CLOCKS: u32 = 8;

/// News of a host.
#[derive(Debug)]
pub enum News<'a> {
    /// A message of trawl or ssh; its notice, if it has one.
    Said { notice: Option<&'a Value>, text: &'a str },
    /// Number of packets received, which a signal asks for.
    Received(u64),
}

/// Receives the news of the host with this name, from several threads.
pub type OnNews = Arc<dyn Fn(&str, &News<'_>) + Send + Sync>;

/// A host by name, and its connection.
#[derive(Clone, Debug)]
pub struct Destination {
    name: String,
    ssh: Ssh,
}

impl Destination {
    /// Returns the hosts that are named, reached by this program with its options.
    pub fn all(program: &str, named: &[String]) -> Result<Vec<Self>> {
        let program: Vec<String> = program.split_whitespace().map(str::to_owned).collect();
        let mut hosts: Vec<Self> = Vec::new();
        for destination in named {
            if destination.starts_with('-') || destination.is_empty() {
                let what = format!("cannot capture on '{destination}'");
                return Err(Error::usage(what, "it is not a host name").fix("--on USER@HOST"));
            }
            let ssh = Ssh { program: program.clone(), destination: destination.clone() };
            let short = short_name(destination);
            let name = if hosts.iter().any(|host| host.name == short) {
                destination.trim_start_matches("ssh://").to_owned()
            } else {
                short.to_owned()
            };
            hosts.push(Self { name, ssh });
        }
        Ok(hosts)
    }
}

/// Options for trawl on the hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions<'a> {
    /// Copies this trawl to the hosts first; with a store, also the program of this name.
    pub push: Option<&'a str>,
    /// Asks for no messages.
    pub quiet: bool,
}

/// The part of a host before it starts.
struct Planned {
    host: Destination,
    /// The copied trawl.
    pushed: Option<String>,
    plan: CapturePlan,
}

impl Hosts {
    /// Plans the part of each host, and copies trawl to it. `application` is named in the packets' file.
    pub fn prepare(
        destinations: Vec<Destination>,
        plan: &CapturePlan,
        application: String,
        options: HostOptions<'_>,
        on_news: OnNews,
    ) -> Result<Self> {
        let signals = Signals::watch()?;
        let names: Vec<String> = destinations.iter().map(|host| host.name.clone()).collect();
        let planned = destinations.into_iter().map(|host| {
            let plan = far::plan(plan, &host.name, &names)?;
            Ok(Planned { host, pushed: None, plan })
        });
        let mut planned = planned.collect::<Result<Vec<_>>>()?;
        if let Some(storing) = options.push {
            for Planned { host, pushed, plan } in &mut planned {
                *pushed = Some(push(&host.ssh, plan.store.is_some().then_some(storing))?);
            }
        }
        Ok(Self {
            planned,
            hosts: Vec::new(),
            quiet: options.quiet,
            hold: hold(plan),
            remaining: plan.options.count.filter(|_| plan.options.dedup.is_none()),
            most: plan.options.count.filter(|_| plan.options.dedup.is_some()),
            rewriter: Rewriter::new(false, application),
            is_begun: false,
            bytes: Vec::new(),
            statistics: Vec::new(),
            written: Counts::default(),
            wake: Wake::new()?,
            signals,
            asked: None,
            queries: 0,
            interrupts: 0,
            patience: None,
            on_news,
        })
    }

    /// Waits for the end of each host, and returns the summary of all. `outcome` has the packets that were not written,
    /// `stages` those that were left out before.
    pub fn report(mut self, outcome: &WriteOutcome, stages: &StageReport) -> Report {
        self.hosts.iter_mut().for_each(Far::stop);
        let mut interfaces = vec![Vec::new(); self.hosts.len()];
        for (id, host) in self.rewriter.files() {
            interfaces[host].push(id);
        }
        let reports = self.hosts.into_iter().zip(&interfaces);
        Report::new(reports.map(|(host, interfaces)| host.report(outcome, stages, interfaces)).collect())
    }
}

/// Copies the binary, and the one that stores packets, into a directory that only the user can write to.
fn push(ssh: &Ssh, storing: Option<&str>) -> Result<String> {
    let directory = ssh.run("umask 077; mkdir -p ~/.cache/trawl && cd ~/.cache/trawl && pwd")?;
    let path = format!("{directory}/trawl");
    ssh.provide(&own_binary()?, &path)?;
    if let Some(program) = storing
        && let Some(path) = companion(program)?
    {
        ssh.provide(&path, &format!("{directory}/{program}"))?;
    }
    Ok(path)
}

/// Returns the host's name without user and port.
fn short_name(destination: &str) -> &str {
    let rest = destination.trim_start_matches("ssh://");
    let host = rest.rsplit('@').next().unwrap_or(rest);
    match host.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, _)) => address,
        None if host.matches(':').count() == 1 => host.split(':').next().unwrap_or(host),
        None => host,
    }
}

/// Returns the time for which packets are held back. It is short with a limit of packets, which should end the capture
/// soon.
fn hold(plan: &CapturePlan) -> Duration {
    let is_file = plan.outputs.first().is_some_and(|output| !output.is_stdout() && output.listen.is_none());
    if is_file && plan.options.count.is_none() { HOLD_FOR_FILE } else { HOLD }
}

/// The captures on all hosts, and the merge of their packets.
pub struct Hosts {
    planned: Vec<Planned>,
    hosts: Vec<Far>,
    quiet: bool,
    hold: Duration,
    /// Number of packets still wanted, if there is a limit.
    remaining: Option<u64>,
    /// Limit of packets, if the stage that removes duplicates counts them.
    most: Option<u64>,
    rewriter: Rewriter,
    /// True once the section header is written.
    is_begun: bool,
    /// Blocks for the feed.
    bytes: Vec<u8>,
    /// Statistics of the interfaces, which end the blocks.
    statistics: Vec<u8>,
    /// Packets handed to the feed.
    written: Counts,
    wake: Wake,
    signals: Signals,
    asked: Option<Instant>,
    queries: u32,
    interrupts: u32,
    /// Patience with a reader that does not read, since the first interrupt.
    patience: Option<Patience>,
    on_news: OnNews,
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

impl Source for Hosts {
    fn start(&mut self) -> Result<()> {
        for Planned { host: Destination { name, ssh }, pushed, plan } in std::mem::take(&mut self.planned) {
            let on_news = Arc::clone(&self.on_news);
            self.hosts.push(Far::start(name, &ssh, pushed.as_deref(), &plan, self.quiet, on_news, &self.wake)?);
        }
        Ok(())
    }

    fn link_type(&mut self) -> Result<u16> {
        self.rewriter.begin(&mut self.bytes);
        loop {
            self.handle_events();
            self.advance_all();
            let readers = self.hosts.iter().filter_map(|host| host.reader.as_ref());
            let first = readers.filter_map(|reader| reader.interfaces().first()).next();
            let described = first.map(|interface| interface.link_type);
            if let Some(link_type) = described.or(self.has_ended().then_some(LINKTYPE_ETHERNET)) {
                return Ok(link_type);
            }
            self.wait_for_hosts(None, POLL_EVERY)?;
        }
    }

    fn poll(&mut self, feed: &mut Feed<'_>) -> Result<SourceState> {
        self.handle_events();
        if let Pressure::Blocked(reader) = &feed.pressure {
            let is_ending = self.interrupts > 0;
            let is_over = is_ending && self.patience.get_or_insert_with(Patience::begin).is_over(reader);
            return Ok(if is_over { SourceState::Ended } else { SourceState::Idle });
        }
        if !self.is_begun {
            self.is_begun = true;
            self.rewriter.begin(&mut self.bytes);
            self.write(feed)?;
        }
        self.advance_all();
        while self.bytes.len() < GATHER
            && let Some(index) = self.next_host()
        {
            self.append(index);
            self.advance(index);
        }
        let moved = !self.bytes.is_empty();
        self.write(feed)?;
        if self.most.is_some_and(|most| feed.report().handed_on >= Some(most)) {
            self.stop();
        }
        if self.has_ended() {
            let report = feed.report();
            self.written.subtract(&report.merged);
            self.written.subtract(&report.beyond);
            self.append_statistics();
            self.write(feed)?;
            return Ok(SourceState::Ended);
        }
        Ok(if moved { SourceState::Moved } else { SourceState::Idle })
    }

    fn wait(&mut self, feed: &Feed<'_>) -> Result<()> {
        if let Pressure::Blocked(reader) = &feed.pressure {
            return self.wait_for_hosts(reader.outlet(), Reader::SLEEP);
        }
        let due = feed.due().map(|due| due.saturating_duration_since(Instant::now()).max(LIVE));
        let now = i128::from(clock::wall());
        let held = self.hosts.iter().filter_map(|host| Some((self.held_until(host)? - now).max(0)));
        let held = held.map(|nanoseconds| Duration::from_nanos(nanoseconds as u64));
        let at_most = held.chain(due).fold(POLL_EVERY, Duration::min);
        self.wait_for_hosts(None, at_most)
    }

    fn stop(&mut self) {
        self.hosts.iter_mut().for_each(Far::stop);
    }
}

impl Hosts {
    /// Writes the gathered blocks.
    fn write(&mut self, feed: &mut Feed<'_>) -> Result<()> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        self.written.add_blocks(&self.bytes);
        let written = feed.write(Blocks::Bytes(&self.bytes));
        self.bytes.clear();
        written
    }

    fn handle_events(&mut self) {
        self.handle_signals();
        self.ask_for_clocks();
    }

    /// Waits until data arrives from a host, a query of the clocks is due, or the time is over.
    fn wait_for_hosts(&mut self, outlet: Option<BorrowedFd<'_>>, at_most: Duration) -> Result<()> {
        let of_clocks = self.asked.map(|asked| self.clock_interval().saturating_sub(asked.elapsed()));
        let at_most = of_clocks.map_or(at_most, |of_clocks| of_clocks.min(at_most));
        events::wait_also(&[self.wake.as_fd(), self.signals.as_fd()], outlet, at_most)?;
        self.wake.clear();
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.hosts.iter().all(|host| host.state == HostState::Ended)
    }

    fn advance_all(&mut self) {
        (0..self.hosts.len()).for_each(|index| self.advance(index));
    }

    /// Advances to a host's next packet, if it has arrived.
    fn advance(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        while host.state == HostState::Waiting
            && let Some(step) = host.step()
        {
            if let (Step::Block { kind }, Some(reader)) = (step, &host.reader) {
                // A host that ends earlier than others must not end their file.
                let out = match kind {
                    INTERFACE_STATISTICS => &mut self.statistics,
                    _ => &mut self.bytes,
                };
                self.rewriter.block(out, index, reader, kind);
            }
        }
    }

    /// Appends the statistics of all interfaces, with the packets delivered here; a host that was cut off has sent none.
    fn append_statistics(&mut self) {
        let number = |block: &Block<'_>| Some(u32::from_le_bytes(*block.body.first_chunk()?));
        let mut described = HashSet::new();
        for block in blocks(&std::mem::take(&mut self.statistics)) {
            if let Some(id) = number(&block) {
                described.insert(id);
                with_deliveries(&mut self.bytes, &block, self.written.sum(&[id]), 0);
            }
        }
        let mut others: Vec<u32> = self.rewriter.files().map(|(id, _)| id).collect();
        others.retain(|id| !described.contains(id));
        others.sort_unstable();
        for interface_id in others {
            let statistics = InterfaceStatistics {
                interface_id,
                timestamp_ns: clock::wall(),
                user_delivered: Some(self.written.sum(&[interface_id])),
                ..InterfaceStatistics::default()
            };
            interface_statistics(&mut self.bytes, &statistics);
        }
    }

    /// Returns the host with the next packet; `None` while a silent host may still send an earlier one.
    fn next_host(&self) -> Option<usize> {
        let times = self.hosts.iter().enumerate();
        let (_, index) = times
            .filter_map(|(index, host)| match host.state {
                HostState::At(time) => Some((time, index)),
                _ => None,
            })
            .min()?;
        let all_have_arrived = self.hosts.iter().all(|host| host.state != HostState::Waiting);
        let is_past = self.held_until(&self.hosts[index]).is_some_and(|until| until <= i128::from(clock::wall()));
        (all_have_arrived || is_past).then_some(index)
    }

    /// Returns the time, on this machine's clock, until which the next packet of a host waits for earlier ones.
    fn held_until(&self, host: &Far) -> Option<i128> {
        let HostState::At(time) = host.state else {
            return None;
        };
        let here = (i128::from(time) - i128::from(host.clock_offset())).max(0);
        // Packets that wait too long fill the queue, and then the host's rings.
        let hold = if host.is_backlogged() { HOLD } else { self.hold };
        Some(here + hold.as_nanos() as i128)
    }

    /// Appends a host's packet, if it is wanted.
    fn append(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.state = HostState::Waiting;
        if self.remaining == Some(0) {
            host.unwanted += 1;
            return;
        }
        host.received += 1;
        if let Some(reader) = &host.reader {
            self.rewriter.packet(&mut self.bytes, index, reader);
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
            if *remaining == 0 {
                self.stop();
            }
        }
    }

    /// Handles signals: the first asks the hosts to end, the third stops waiting for them.
    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal == Signal::Report {
                for host in &self.hosts {
                    (self.on_news)(&host.name, &News::Received(host.received));
                }
                continue;
            }
            self.interrupts += 1;
            for host in &mut self.hosts {
                match self.interrupts {
                    1 | 2 => host.stop(),
                    _ => host.give_up(),
                }
            }
        }
    }

    fn clock_interval(&self) -> Duration {
        if self.queries < FIRST_CLOCKS { FIRST_CLOCKS_EVERY } else { CLOCK_EVERY }
    }

    fn ask_for_clocks(&mut self) {
        let every = self.clock_interval();
        if self.asked.is_none_or(|asked| asked.elapsed() >= every) {
            self.queries += 1;
            self.asked = Some(Instant::now());
            self.hosts.iter_mut().for_each(Far::ask_for_clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_shortly() {
        for (destination, name) in [
            ("web1", "web1"),
            ("root@web1", "web1"),
            ("ssh://root@web1:2222", "web1"),
            ("ssh://web1", "web1"),
            ("root@2001:db8::1", "2001:db8::1"),
            ("ssh://root@[2001:db8::1]:22", "2001:db8::1"),
        ] {
            assert_eq!(short_name(destination), name);
        }
    }
}
