//! A capture on other hosts: trawl runs on each by ssh, the packets are merged into one timeline, and each host has its
//! row in the summary.

mod account;
mod far;
mod output;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use trawl_packet::read::Step;
use trawl_plan::CapturePlan;
use trawl_sys::events::{self, Signal, Signals, Wake};
use trawl_sys::process::ssh::Ssh;
use trawl_sys::process::{companion, own_binary};
use trawl_sys::rights::privilege::User;
use trawl_sys::{Error, Result, clock};

use super::display::Display;
use far::{Far, HostState};
use output::Output;
use trawl_sink::Output as File;

use crate::helpers::FLEET;
use crate::terminal;

/// Options for other hosts and their connections.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Other hosts")]
pub(super) struct HostArgs {
    /// Capture on this host, by ssh with your own configuration and keys: HOST, USER@HOST or ssh://USER@HOST:PORT; may
    /// be given several times. All other options apply on that host; -i HOST:IF on this one alone
    #[arg(
        long = "on",
        value_name = "HOST",
        conflicts_with_all = [
            "list_interfaces", "compress", "file_size", "file_seconds", "files", "max_disk", "command", "sealed", "io",
            "trigger", "on_verdict", "on_signal",
        ],
        hide_short_help = true
    )]
    pub(super) on: Vec<String>,
    /// Copy this trawl to the hosts first, below the user's ~/.cache, and run that
    #[arg(long, requires = "on", hide_short_help = true)]
    push: bool,
    /// Write notices as JSON, for the trawl that started this one
    #[arg(long, hide = true)]
    collected: bool,
    /// The program that reaches hosts, with its options
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "on", hide_short_help = true)]
    ssh: String,
}

/// Time that a packet waits for earlier ones from silent hosts: an idle host's packets have all arrived by then.
const HOLD: Duration = Duration::from_secs(1);
/// The same for a file, which nobody watches: the packets of a host without free CPUs may come later.
const HOLD_FOR_FILE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(50);
/// Interval between queries of the hosts' clocks: the first answers wait for the connection.
const CLOCK: Duration = Duration::from_secs(5);
const FIRST_CLOCKS: Duration = Duration::from_millis(300);
const FIRST: u32 = 8;

/// Captures on other hosts.
pub(super) fn capture(hosts: &HostArgs, plan: &CapturePlan, display: &Display) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let user = plan.user.as_deref().map(User::find).transpose()?;
    let open = |path: &Path| File::open(path, plan.files.mode, user.as_ref());
    let account = plan.summary.as_deref().map(open).transpose()?;
    let mut output = match plan.store {
        Some(_) => None,
        None => Some(Output::open(&plan.outputs, display, open)?),
    };
    let destinations = hosts.destinations()?;
    let names: Vec<&str> = destinations.iter().map(|(name, _)| name.as_str()).collect();
    let plans = names.iter().map(|name| far::plan(plan, name, &names));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    let started = destinations.iter().zip(&plans).map(|((name, ssh), plan)| {
        let pushed = match hosts.push {
            true => Some(pushed(ssh, plan.store.is_some())?),
            false => None,
        };
        Ok((name, ssh, pushed, plan))
    });
    let hosts = started.collect::<Result<Vec<_>>>()?;
    let started = hosts
        .iter()
        .map(|(name, ssh, pushed, plan)| Far::start((*name).clone(), ssh, pushed.as_deref(), plan, display, &wake));
    let hosts = started.collect::<Result<Vec<_>>>()?;
    let mut timeline = Timeline {
        hosts,
        hold: hold(plan),
        remaining: plan.options.count,
        wake,
        signals,
        asked: None,
        questions: 0,
        interrupts: 0,
    };
    let ran = timeline.run(output.as_mut());
    timeline.hosts.iter_mut().for_each(Far::stop);
    let reports: Vec<_> = timeline.hosts.into_iter().map(Far::report).collect();
    let written = output.map_or(Ok(()), Output::finish);
    let is_whole = account::tell(&reports, account)?;
    ran.and(written)?;
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl HostArgs {
    /// Returns true if another trawl started this one, and reads its output.
    pub(super) fn is_collected(&self) -> bool {
        self.collected
    }

    pub(super) fn are_named(&self) -> bool {
        !self.on.is_empty()
    }

    /// Returns each host's name and its connection.
    fn destinations(&self) -> Result<Vec<(String, Ssh)>> {
        let program: Vec<String> = self.ssh.split_whitespace().map(str::to_owned).collect();
        let mut hosts: Vec<(String, Ssh)> = Vec::new();
        for destination in &self.on {
            if destination.starts_with('-') || destination.is_empty() {
                let what = format!("cannot capture on '{destination}'");
                return Err(Error::usage(what, "it is not a host").fix("--on USER@HOST"));
            }
            let ssh = Ssh { program: program.clone(), destination: destination.clone() };
            let short = short_name(destination);
            let name = match hosts.iter().any(|(name, _)| name == short) {
                true => destination.trim_start_matches("ssh://").to_owned(),
                false => short.to_owned(),
            };
            hosts.push((name, ssh));
        }
        Ok(hosts)
    }
}

/// Copies the binary, and the one that stores packets, into a directory that only the user can write to.
fn pushed(ssh: &Ssh, stores: bool) -> Result<String> {
    let directory = ssh.run("umask 077; mkdir -p ~/.cache/trawl && cd ~/.cache/trawl && pwd")?;
    let path = format!("{directory}/trawl");
    ssh.provide(&own_binary()?, &path)?;
    if stores && let Some(fleet) = companion(FLEET.program)? {
        ssh.provide(&fleet, &format!("{directory}/{}", FLEET.program))?;
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

/// The merge of the hosts' packets into one output.
struct Timeline {
    hosts: Vec<Far>,
    hold: Duration,
    /// Number of packets still wanted, if there is a limit.
    remaining: Option<u64>,
    wake: Wake,
    signals: Signals,
    asked: Option<Instant>,
    questions: u32,
    interrupts: u32,
}

impl Timeline {
    fn run(&mut self, mut output: Option<&mut Output>) -> Result<()> {
        loop {
            self.heed_signals();
            self.ask_for_clocks();
            let mut idle = true;
            for index in 0..self.hosts.len() {
                idle &= !self.advance(index, output.as_deref_mut());
            }
            while let Some(index) = self.due() {
                idle = false;
                self.take(index, output.as_deref_mut())?;
                self.advance(index, output.as_deref_mut());
            }
            if self.hosts.iter().all(|host| host.state == HostState::Ended) {
                return Ok(());
            }
            if idle {
                if let Some(output) = output.as_deref_mut()
                    && !output.flush()?
                {
                    self.hosts.iter_mut().for_each(Far::stop);
                }
                events::wait(&[self.wake.as_fd(), self.signals.as_fd()], LOOK)?;
                self.wake.hush();
            }
        }
    }

    /// Advances to a host's next packet; returns false if nothing has arrived.
    fn advance(&mut self, index: usize, mut output: Option<&mut Output>) -> bool {
        let mut went_on = false;
        while self.hosts[index].state == HostState::Waiting {
            match self.hosts[index].step() {
                Some(Step::Packet) => went_on = true,
                Some(Step::Block { kind }) => {
                    went_on = true;
                    if let (Some(output), Some(reader)) = (output.as_deref_mut(), &self.hosts[index].reader) {
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

    fn take(&mut self, index: usize, output: Option<&mut Output>) -> Result<()> {
        let host = &mut self.hosts[index];
        host.state = HostState::Waiting;
        if self.remaining == Some(0) {
            host.unwanted += 1;
            return Ok(());
        }
        host.received += 1;
        if let (Some(output), Some(reader)) = (output, &host.reader)
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
                    terminal::say(&format!("{}: {} packets received", host.name, host.received));
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
