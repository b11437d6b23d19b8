//! Sending of frames, common to all kinds of traffic.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;

use serde::Serialize;
use serde_json::json;
use trawl_capture::capture_site::CaptureSite;
use trawl_gen::engine::{Device, EngineChoice, EngineOptions, Notes, open};
use trawl_gen::pace::{Profile, Rate, WIRE_OVERHEAD};
use trawl_gen::pattern::{Pattern, PatternSource};
use trawl_gen::run::{RunReport, Sending, run as run_generator};
use trawl_gen::template::Template;
use trawl_gen::traffic::{Limits, Protocol, Spec, pattern};
use trawl_gen::{Source, stamp, target};
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};
use trawl_view::print::{Dump, DumpForm, PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

use super::output::{Frame, Sent, Watch, summary};
use super::traffic::{self, Shape};
use crate::args::{NamedValue, NetnsArg, choice};
use crate::json;
use crate::terminal::write_out;
use crate::units;

/// Frames a second if only a count or a duration is given, and the frames may leave the machine.
const MODEST_RATE: u64 = 1000;
/// Frames a second, and seconds, if no option gives a rate or a limit: enough to see that packets arrive.
const TRIAL_RATE: u64 = 10;
const TRIAL_SECONDS: u64 = 10;

const ENGINES: [NamedValue<EngineChoice>; 4] = [
    ("auto", "The fastest that works in a trial", EngineChoice::Auto),
    ("live", "XDP frames made in the kernel", EngineChoice::Live),
    ("xsk", "An AF_XDP socket", EngineChoice::Xsk),
    ("packet", "A packet socket: works everywhere", EngineChoice::Packet),
];

/// Arguments of all commands that send.
#[derive(Debug, clap::Args)]
pub struct SenderArgs {
    /// Engine that passes frames to the device
    #[arg(long, value_parser = choice(&ENGINES), default_value = "auto")]
    engine: EngineChoice,
    /// Number of frames that the live engine passes to the driver at once [default: 64]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Option<u32>,
    /// The queue of the device that the xsk engine uses; each further thread uses the next
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 0)]
    queue: u32,
    /// Send even on an interface with the default route or a remote session
    #[arg(long)]
    yes: bool,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

impl SenderArgs {
    /// Returns the engine's parameters for one of the threads.
    pub fn engine(&self, thread: usize, notes: &Notes, device: &Device) -> EngineOptions {
        EngineOptions {
            choice: self.engine,
            batch: self.batch,
            queue: self.queue + thread as u32,
            notes: notes.clone(),
            device: device.clone(),
        }
    }

    /// Refuses an interface if sending on it would cut off a session.
    pub fn check(&self, site: &CaptureSite) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        match target::in_use(site.namespace.as_ref(), &site.interface)? {
            None => Ok(()),
            Some(why) => {
                Err(Error::failed(format!("will not send out of {}", site.label), why).fix("use --yes to send anyway"))
            }
        }
    }

    /// Sends from one thread for each entry of the plan, with a source for each.
    pub fn run(
        &self,
        site: &CaptureSite,
        plan: &Sending<'_>,
        source: &(dyn Fn(usize) -> Result<Box<dyn Source>> + Sync),
        watch: &mut Watch,
    ) -> Result<RunReport> {
        let notes = watch.notes().clone();
        let device = Device::default();
        let plan = Sending { device: Some((&device, &site.interface.name)), ..plan.clone() };
        let start = |thread: usize| {
            let mut source = source(thread)?;
            let options = self.engine(thread, &notes, &device);
            let engine = open(&site.interface.name, source.as_mut(), &options)?;
            Ok((engine, source))
        };
        let report = run_generator(&plan, &start, &mut |figures| watch.show(&site.label, figures));
        watch.end_line();
        report
    }
}

/// Interface and output of a run.
#[derive(Debug, clap::Args)]
pub struct SendArgs {
    /// Interface to send on, NAME or NAMESPACE:NAME [default: the one of the route to --dst]
    #[arg(short, long, value_name = "IF", add = crate::completion::interfaces())]
    interface: Option<String>,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    sender: SenderArgs,
    /// Send as fast as the interface accepts frames, until Ctrl-C unless --count or --duration ends it
    #[arg(long, conflicts_with_all = ["rate", "bandwidth"], help_heading = "Pacing")]
    flood: bool,
    /// Show the first N frames, decoded, and send none; with --json one line for each
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    print: Option<u64>,
}

impl SendArgs {
    /// Returns the interface, by its name or by the route to the frames' destination.
    fn site(&self, spec: Option<&Spec>) -> Result<CaptureSite> {
        let name = match (&self.interface, spec) {
            (Some(name), _) => name.clone(),
            (None, Some(spec)) => target::interface_for(spec, self.netns.open()?.as_ref())?,
            (None, None) => {
                return Err(Error::usage("cannot send", "no interface is given").fix("give -i IF"));
            }
        };
        CaptureSite::find(&name, self.netns.as_deref())
    }

    /// Shows or sends the frames of a pattern.
    fn run(
        &self,
        pattern: Pattern,
        profile: Option<&Profile>,
        site: &CaptureSite,
        pacing: &Pacing,
    ) -> Result<ExitCode> {
        if let Some(count) = self.print {
            return print(&pattern, count, self.sender.json);
        }
        self.sender.check(site)?;
        let (rate, duration) = pace(pacing, profile, self.flood, site);
        let cpus = pacing.cpus()?;
        let plan = Sending { rate, profile, duration, ..pacing.plan(site, &cpus) };
        let pattern = Arc::new(pattern);
        let source = |thread| -> Result<Box<dyn Source>> {
            let pattern = Arc::clone(&pattern);
            Ok(Box::new(PatternSource::new(pattern, thread, cpus.len())))
        };
        let mut watch = Watch::new()?;
        let report = self.sender.run(site, &plan, &source, &mut watch)?;
        let sent = Sent::new(&site.label, &report, watch.notes(), None);
        json::print_as(self.sender.json, &sent, || summary(&site.label, &report))?;
        report.failure.map_or(Ok(ExitCode::SUCCESS), Err)
    }
}

/// Returns the rate and the duration. Only `--flood` is both fast and endless.
fn pace(pacing: &Pacing, profile: Option<&Profile>, flood: bool, site: &CaptureSite) -> (Rate, Option<Duration>) {
    let (rate, duration) = (pacing.rate(), pacing.duration);
    if flood || profile.is_some() || rate != Rate::Unlimited {
        return (rate, duration);
    }
    let interface = &site.label;
    if pacing.count.is_none() && duration.is_none() {
        let text = format!(
            "sending {TRIAL_RATE} frames a second to {interface} for {TRIAL_SECONDS} s; use --rate, --count or \
             --duration to send more, --flood to send at full speed"
        );
        let limited = json!({ "interface": interface, "frames_per_second": TRIAL_RATE, "seconds": TRIAL_SECONDS });
        json::say("default_rate", limited, &text);
        let duration = Duration::from_secs(TRIAL_SECONDS);
        return (Rate::Frames(TRIAL_RATE as f64), Some(duration));
    }
    let is_virtual = site.interface.kind.is_some() || site.interface.loopback;
    if is_virtual && is_apart(site) {
        return (rate, duration);
    }
    let text = format!(
        "sending {MODEST_RATE} frames a second, since {interface} is not a virtual interface in a namespace; use \
         --rate to send more, --flood to send at full speed"
    );
    let limited = json!({ "interface": interface, "frames_per_second": MODEST_RATE, "seconds": null });
    json::say("default_rate", limited, &text);
    (Rate::Frames(MODEST_RATE as f64), duration)
}

/// Returns true in a namespace other than the machine's first one, or other than trawl's own if the first one cannot be
/// found.
fn is_apart(site: &CaptureSite) -> bool {
    let first = Namespace::first().map_or_else(Namespace::current, Ok);
    let here = site.namespace.clone().map_or_else(Namespace::current, Ok);
    matches!((first, here), (Ok(first), Ok(here)) if first != here)
}

/// A kind of traffic, its destination and its rate.
#[derive(Debug, clap::Args)]
pub struct Order<T: clap::Args> {
    #[command(flatten)]
    send: SendArgs,
    #[command(flatten)]
    traffic: T,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    pacing: Pacing,
}

impl<T: clap::Args + Serialize> Order<T> {
    pub fn run(&self, protocol: Protocol) -> Result<ExitCode> {
        let (mut spec, ipv6) = traffic::spec(protocol, &self.traffic, &self.shape)?;
        let site = self.send.site(Some(&spec))?;
        target::complete(&mut spec, site.namespace.as_ref(), &site.interface, ipv6)?;
        let limits = Limits {
            mtu: Some(site.interface.mtu),
            seed: self.shape.seed,
            stamp: self.shape.stamp.then(stamp::new_stream),
        };
        let pattern = pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| misfit)?;
        self.send.run(pattern, None, &site, &self.pacing)
    }
}

/// A mix of frames, and phases over time, from a template file
#[derive(Debug, clap::Args)]
pub struct FromFile {
    /// The template; the guide describes its format
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    send: SendArgs,
    /// Use IPv6 if no address is given
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Seed of random values and sizes [default: the file's, or 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End each frame with a stamp, for `trawl gen receive`
    #[arg(long)]
    stamp: bool,
    #[command(flatten)]
    pacing: Pacing,
}

impl FromFile {
    pub fn run(&self) -> Result<ExitCode> {
        let mut template = Template::read(&self.file)?;
        if template.profile().is_some() && self.pacing.rate() != Rate::Unlimited {
            let why = format!("the phases in {} define the rate", self.file.display());
            return Err(Error::usage("cannot use --rate or --bandwidth", why));
        }
        let first = template.specs().next().cloned();
        let site = self.send.site(first.as_ref())?;
        for spec in template.specs() {
            target::complete(spec, site.namespace.as_ref(), &site.interface, self.ipv6)?;
        }
        let limits = Limits {
            mtu: Some(site.interface.mtu),
            seed: self.seed.or(template.seed()).unwrap_or(1),
            stamp: self.stamp.then(stamp::new_stream),
        };
        let pattern = template.pattern(&limits)?;
        self.send.run(pattern, template.profile(), &site, &self.pacing)
    }
}

/// Prints the first frames like `trawl capture -e -v -x`, with their numbers as times.
fn print(pattern: &Pattern, count: u64, in_json: bool) -> Result<ExitCode> {
    let mut printer = Printer::new(PrintOptions {
        link_header: true,
        timestamp: Timestamp::None,
        verbosity: 1,
        dump: (!in_json).then_some(Dump { form: DumpForm::Hex, link_header: true }),
        ..PrintOptions::default()
    });
    let mut text = String::new();
    for number in 0..count {
        let frame = pattern.frame(number);
        let begin = text.len();
        printer.line(
            &mut text,
            &PacketView {
                timestamp_ns: number,
                link_type: LINKTYPE_ETHERNET,
                captured: &frame,
                original_len: frame.len() as u32,
                ..PacketView::default()
            },
        );
        if in_json {
            let decoded = text.split_off(begin);
            text += &json::line(&Frame {
                number,
                length: frame.len(),
                hex: frame.iter().map(|byte| format!("{byte:02x}")).collect(),
                text: decoded.trim_end(),
            })?;
        }
    }
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

// Rate, number and duration: the arguments of all generators.

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Pacing")]
pub struct Pacing {
    /// Frames a second, for example 1.5Mpps
    #[arg(long, value_name = "PPS", value_parser = units::frame_rate, allow_hyphen_values = true)]
    rate: Option<f64>,
    /// Bits a second, for example 500Mbit: of the frames alone, from the Ethernet header to the end of the payload
    #[arg(long, value_name = "BITS", value_parser = units::bandwidth, conflicts_with = "rate", allow_hyphen_values = true)]
    bandwidth: Option<f64>,
    /// Include in --bandwidth the overhead of a frame on the wire: checksum, preamble and gap, 24 bytes
    #[arg(long, hide_short_help = true, requires = "bandwidth")]
    wire: bool,
    /// End after this many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Send from this many threads, each on its own CPU unless --cpus names fewer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// The CPUs to send from, for example 0,2-3 [default: the kernel's choice for a single thread, else from CPU 0 on]
    #[arg(long, alias = "cpu", hide_short_help = true, value_name = "LIST")]
    cpus: Option<String>,
    /// Send this many frames at once, then wait until as many are due
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    burst: Option<u64>,
}

impl Pacing {
    pub fn rate(&self) -> Rate {
        match (self.rate, self.bandwidth) {
            (Some(rate), _) => Rate::Frames(rate),
            (None, Some(per_second)) => Rate::Bits { per_second, overhead: if self.wire { WIRE_OVERHEAD } else { 0 } },
            (None, None) => Rate::Unlimited,
        }
    }

    /// Returns a run at this rate, with an entry of `cpus` for each thread.
    pub fn plan<'a>(&self, site: &'a CaptureSite, cpus: &'a [Option<usize>]) -> Sending<'a> {
        Sending {
            namespace: site.namespace.as_ref(),
            interface: &site.label,
            device: None,
            cpus,
            rate: self.rate(),
            profile: None,
            burst: self.burst.unwrap_or(1),
            count: self.count,
            duration: self.duration,
        }
    }

    /// Returns an entry for each thread.
    pub fn cpus(&self) -> Result<Vec<Option<usize>>> {
        let chosen = self.cpus.as_deref().map(cpu_list).transpose()?;
        let threads = self.threads.map(usize::from);
        match (chosen, threads) {
            (None, None | Some(1)) => Ok(vec![None]),
            (None, Some(threads)) => Ok((0..threads).map(Some).collect()),
            (Some(cpus), None) => Ok(cpus.into_iter().map(Some).collect()),
            (Some(cpus), Some(threads)) if cpus.len() <= threads => {
                Ok(cpus.into_iter().map(Some).cycle().take(threads).collect())
            }
            (Some(cpus), Some(threads)) => Err(Error::usage(
                format!("cannot put {threads} threads on {} CPUs", cpus.len()),
                "some of the CPUs would have no thread",
            )
            .fix("give at least as many --threads as --cpus, or only one of the two")),
        }
    }
}

/// Parses numbers and ranges of CPUs, for example `0,2-3`.
fn cpu_list(text: &str) -> Result<Vec<usize>> {
    let wrong = || Error::usage(format!("cannot use --cpus {text}"), "write for example 0,2-3");
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 8191 {
            return Err(wrong());
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(Error::usage(format!("cannot use --cpus {text}"), format!("CPU {cpu} is named twice")));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0,2-4").unwrap(), [0, 2, 3, 4]);
        for text in ["", "a", "1-0", "1,1", "-1", "0-99999999999"] {
            assert!(cpu_list(text).is_err(), "{text}");
        }
    }
}
