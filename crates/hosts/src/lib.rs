//! Captures on other hosts: trawl runs on each by ssh, the packets are merged into one timeline, and each host has its
//! part in the report.

mod account;
mod far;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_packet::read::{CaptureReader, Step};
use trawl_plan::CapturePlan;
use trawl_sys::events::{self, Signal, Signals, Wake};
use trawl_sys::process::ssh::Ssh;
use trawl_sys::process::{companion, own_binary};
use trawl_sys::{Error, Result, clock};

pub use account::Report;
use far::{Far, HostState};

/// Time that a packet waits for earlier ones from silent hosts: an idle host's packets have all arrived by then.
const HOLD: Duration = Duration::from_secs(1);
/// The same for a file, which nobody watches: the packets of a host without free CPUs may come later.
const HOLD_FOR_FILE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// Interval between queries of the hosts' clocks: the first answers wait for the connection.
const CLOCK: Duration = Duration::from_secs(5);
const FIRST_CLOCKS: Duration = Duration::from_millis(300);
const FIRST: u32 = 8;

/// News of a host.
#[derive(Debug)]
pub enum News<'a> {
    /// A message of trawl or ssh; its notice, if it has one.
    Said { notice: Option<&'a Value>, text: &'a str },
    /// Number of packets received, which a signal asks for.
    Received(u64),
}

/// Receives the news of the host with this name, from several threads.
pub type Tell = Arc<dyn Fn(&str, &News<'_>) + Send + Sync>;

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
                return Err(Error::usage(what, "it is not a host").fix("--on USER@HOST"));
            }
            let ssh = Ssh { program: program.clone(), destination: destination.clone() };
            let short = short_name(destination);
            let name = match hosts.iter().any(|host| host.name == short) {
                true => destination.trim_start_matches("ssh://").to_owned(),
                false => short.to_owned(),
            };
            hosts.push(Self { name, ssh });
        }
        Ok(hosts)
    }
}

/// Receives the packets and the other blocks of all hosts.
pub trait Output {
    /// Called with a block that is not a packet, of the host with this number.
    fn block(&mut self, host: usize, reader: &CaptureReader<'_>, kind: u32);

    /// Called with a packet; returns false if nobody wants more.
    fn packet(&mut self, host: usize, reader: &CaptureReader<'_>) -> Result<bool>;

    /// Called when nothing more has arrived; returns false if nobody wants more.
    fn flush(&mut self) -> Result<bool>;
}

/// Hosts that store their packets send none.
impl Output for () {
    fn block(&mut self, _host: usize, _reader: &CaptureReader<'_>, _kind: u32) {}

    fn packet(&mut self, _host: usize, _reader: &CaptureReader<'_>) -> Result<bool> {
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool> {
        Ok(true)
    }
}

/// Options for trawl on the hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOptions<'a> {
    /// Copies this trawl to the hosts first, and with a store this program.
    pub push: Option<&'a str>,
    /// Asks for no messages.
    pub quiet: bool,
}

impl Hosts {
    /// Starts the part of the plan of each host.
    pub fn start(
        destinations: &[Destination],
        plan: &CapturePlan,
        options: HostOptions<'_>,
        tell: &Tell,
    ) -> Result<Self> {
        let signals = Signals::watch()?;
        let wake = Wake::new()?;
        let names: Vec<&str> = destinations.iter().map(|host| host.name.as_str()).collect();
        let plans = names.iter().map(|name| far::plan(plan, name, &names)).collect::<Result<Vec<_>>>()?;
        let pushed = destinations.iter().map(|host| {
            let push = options.push.map(|storing| pushed(&host.ssh, plan.store.is_some().then_some(storing)));
            push.transpose()
        });
        let pushed = pushed.collect::<Result<Vec<_>>>()?;
        let hosts = destinations.iter().zip(&plans).zip(&pushed).map(|((host, plan), pushed)| {
            let Destination { name, ssh } = host.clone();
            Far::start(name, &ssh, pushed.as_deref(), plan, options.quiet, Arc::clone(tell), &wake)
        });
        Ok(Self {
            hosts: hosts.collect::<Result<_>>()?,
            hold: hold(plan),
            remaining: plan.options.count,
            wake,
            signals,
            asked: None,
            questions: 0,
            interrupts: 0,
            tell: Arc::clone(tell),
        })
    }

    /// Waits for the end of each host, and returns the summary of all.
    pub fn report(mut self) -> Report {
        self.hosts.iter_mut().for_each(Far::stop);
        Report::new(self.hosts.into_iter().map(Far::report).collect())
    }
}

/// Copies the binary, and the one that stores packets, into a directory that only the user can write to.
fn pushed(ssh: &Ssh, storing: Option<&str>) -> Result<String> {
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

/// Returns the time that packets are held back. A limit of packets should end the capture soon.
fn hold(plan: &CapturePlan) -> Duration {
    let is_file = plan.outputs.first().is_some_and(|output| output.path != Path::new("-"));
    match is_file && plan.options.count.is_none() {
        true => HOLD_FOR_FILE,
        false => HOLD,
    }
}

/// The captures on all hosts, and the merge of their packets.
pub struct Hosts {
    hosts: Vec<Far>,
    hold: Duration,
    /// Number of packets still wanted, if there is a limit.
    remaining: Option<u64>,
    wake: Wake,
    signals: Signals,
    asked: Option<Instant>,
    questions: u32,
    interrupts: u32,
    tell: Tell,
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

impl Hosts {
    /// Hands the packets of all hosts to the output, until each host has ended.
    pub fn run(&mut self, output: &mut dyn Output) -> Result<()> {
        loop {
            self.heed_signals();
            self.ask_for_clocks();
            let mut idle = true;
            for index in 0..self.hosts.len() {
                idle &= !self.advance(index, output);
            }
            while let Some(index) = self.due() {
                idle = false;
                self.take(index, output)?;
                self.advance(index, output);
            }
            if self.hosts.iter().all(|host| host.state == HostState::Ended) {
                return Ok(());
            }
            if idle {
                if !output.flush()? {
                    self.hosts.iter_mut().for_each(Far::stop);
                }
                events::wait(&[self.wake.as_fd(), self.signals.as_fd()], LOOK)?;
                self.wake.hush();
            }
        }
    }

    /// Advances to a host's next packet; returns false if nothing has arrived.
    fn advance(&mut self, index: usize, output: &mut dyn Output) -> bool {
        let mut went_on = false;
        while self.hosts[index].state == HostState::Waiting {
            match self.hosts[index].step() {
                Some(Step::Packet) => went_on = true,
                Some(Step::Block { kind }) => {
                    went_on = true;
                    if let Some(reader) = &self.hosts[index].reader {
                        output.block(index, reader, kind);
                    }
                }
                None => break,
            }
        }
        went_on
    }

    /// Returns the host with the next packet; `None` while a silent host may still send an earlier one.
    fn due(&self) -> Option<usize> {
        let times = self.hosts.iter().enumerate();
        let (time, index) = times
            .filter_map(|(index, host)| match host.state {
                HostState::At(time) => Some((time, index)),
                _ => None,
            })
            .min()?;
        let all_have_come = self.hosts.iter().all(|host| host.state != HostState::Waiting);
        let here = (i128::from(time) - i128::from(self.hosts[index].clock_offset())).max(0);
        // Packets that wait too long fill the queue, and then the host's rings.
        let hold = if self.hosts[index].is_backlogged() { HOLD } else { self.hold };
        let is_past = here + (hold.as_nanos() as i128) < i128::from(clock::wall());
        (all_have_come || is_past).then_some(index)
    }

    fn take(&mut self, index: usize, output: &mut dyn Output) -> Result<()> {
        let host = &mut self.hosts[index];
        host.state = HostState::Waiting;
        if self.remaining == Some(0) {
            host.unwanted += 1;
            return Ok(());
        }
        host.received += 1;
        if let Some(reader) = &host.reader
            && !output.packet(index, reader)?
        {
            self.remaining = Some(0);
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.saturating_sub(1);
            if *remaining == 0 {
                self.hosts.iter_mut().for_each(Far::stop);
            }
        }
        Ok(())
    }

    /// Handles signals: the first asks the hosts to end, the third stops waiting for them.
    fn heed_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            if signal == Signal::Report {
                for host in &self.hosts {
                    (self.tell)(&host.name, &News::Received(host.received));
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

    fn ask_for_clocks(&mut self) {
        let every = if self.questions < FIRST { FIRST_CLOCKS } else { CLOCK };
        if self.asked.is_none_or(|asked| asked.elapsed() > every) {
            self.questions += 1;
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
