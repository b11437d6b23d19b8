//! From what is to be sent to what was sent: what all kinds of traffic have in common.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use trawl_gen::engine::{Choice, Notes, Wish, open};
use trawl_gen::pace::{Profile, Rate};
use trawl_gen::pattern::{Pattern, PatternSource};
use trawl_gen::run::{Sending, run as run_generator};
use trawl_gen::template::Template;
use trawl_gen::traffic::{Limits, Spec, pattern};
use trawl_gen::{Source, stamp, target};
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};
use trawl_tap::capture_site::CaptureSite;
use trawl_view::print::{Dump, DumpForm, PrintOptions, Printer, Timestamp};
use trawl_view::record::PacketView;

use super::json::Frame;
use super::output::Watch;
use super::pacing::Pacing;
use super::traffic::Traffic;
use crate::args::NetnsArg;
use crate::json::{self, Remark};
use crate::terminal::write_out;

/// Frames a second where only a count or a duration is given, and the frames may leave the machine.
const MODEST_RATE: u64 = 1000;
/// Frames a second, and seconds, where no option says how fast or how long: enough to see that packets arrive.
const TRIAL_RATE: u64 = 10;
const TRIAL_SECONDS: u64 = 10;

const LINKTYPE_ETHERNET: u16 = 1;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineName {
    /// The fastest that works, tried for real
    Auto,
    /// XDP frames made in the kernel
    Live,
    /// An AF_XDP socket
    Xsk,
    /// A packet socket: works everywhere
    Packet,
}

/// Where to, by which engine, and how the outcome is told.
#[derive(Debug, clap::Args)]
pub struct SendArgs {
    /// Interface to send on, NAME or NAMESPACE:NAME [default: that of the route to --dst]
    #[arg(short, long, value_name = "IF")]
    pub interface: Option<String>,
    #[command(flatten)]
    pub netns: NetnsArg,
    #[command(flatten)]
    pub engine: EngineChoice,
    /// Send as fast as the interface accepts frames, until Ctrl-C unless --count or --duration ends it
    #[arg(long, conflicts_with_all = ["rate", "bandwidth"], help_heading = "Pacing")]
    flood: bool,
    /// Send even on an interface with the default route or a remote session
    #[arg(long)]
    pub yes: bool,
    /// Show the first N frames, decoded, and send none
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub print: Option<u64>,
    /// Print JSON: the summary, or with --print one line for each frame
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct EngineChoice {
    /// How frames are handed to the device
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    engine: EngineName,
    /// Frames that the live engine makes before it hands them over [default: 64]
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: Option<u32>,
    /// The queue of the device that the xsk engine takes; each further thread takes the next
    #[arg(long, hide_short_help = true, value_name = "N", default_value_t = 0)]
    queue: u32,
}

impl EngineChoice {
    /// For one of the threads.
    pub fn wish(&self, thread: usize, notes: &Notes) -> Wish {
        Wish {
            choice: match self.engine {
                EngineName::Auto => Choice::Auto,
                EngineName::Live => Choice::Live,
                EngineName::Xsk => Choice::Xsk,
                EngineName::Packet => Choice::Packet,
            },
            batch: self.batch,
            queue: self.queue + thread as u32,
            notes: notes.clone(),
        }
    }
}

impl SendArgs {
    /// The interface, by its name or by the route to where the frames go.
    pub fn site(&self, spec: Option<&Spec>) -> Result<CaptureSite> {
        let name = match (&self.interface, spec) {
            (Some(name), _) => name.clone(),
            (None, Some(spec)) => {
                let namespace = self.netns.as_deref().map(Namespace::open).transpose()?;
                target::interface_for(spec, namespace.as_ref())?
            }
            (None, None) => {
                return Err(Error::usage("cannot send", "no interface is given").fix("give -i IF"));
            }
        };
        CaptureSite::find(&name, self.netns.as_deref())
    }

    /// Refuses what would cut somebody off.
    pub fn check(&self, site: &CaptureSite) -> Result<()> {
        if self.yes || self.print.is_some() {
            return Ok(());
        }
        match target::in_use(site.namespace.as_ref(), &site.interface)? {
            None => Ok(()),
            Some(why) => Err(
                Error::failed(format!("will not send out of {}", site.label), why)
                    .fix("use --yes to send anyway"),
            ),
        }
    }
}

/// Returns the rate and the duration. Only `--flood` is both fast and endless.
fn pace(
    pacing: &Pacing,
    profile: Option<&Profile>,
    flood: bool,
    site: &CaptureSite,
) -> (Rate, Option<Duration>) {
    let (rate, duration) = (pacing.rate(), pacing.duration());
    if flood || profile.is_some() || rate != Rate::Unlimited {
        return (rate, duration);
    }
    let interface = &site.label;
    if pacing.count().is_none() && duration.is_none() {
        let text = format!(
            "sending {TRIAL_RATE} frames a second to {interface} for {TRIAL_SECONDS} s; use --rate, --count or \
             --duration to send more, --flood to send at full speed"
        );
        let limited = Remark::DefaultRate {
            interface,
            frames_per_second: TRIAL_RATE,
            seconds: Some(TRIAL_SECONDS),
        };
        json::say(&limited, &text);
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
    let limited = Remark::DefaultRate {
        interface,
        frames_per_second: MODEST_RATE,
        seconds: None,
    };
    json::say(&limited, &text);
    (Rate::Frames(MODEST_RATE as f64), duration)
}

/// In a namespace other than the one that the machine started in; where that cannot be seen, in another than trawl.
fn is_apart(site: &CaptureSite) -> bool {
    let first = Namespace::first().map_or_else(Namespace::current, Ok);
    let here = site.namespace.clone().map_or_else(Namespace::current, Ok);
    matches!((first, here), (Ok(first), Ok(here)) if first != here)
}

pub fn run<T: Traffic>(traffic: &T, way: &SendArgs, pacing: &Pacing) -> Result<ExitCode> {
    let mut spec = traffic.spec()?;
    let site = way.site(Some(&spec))?;
    let v6 = traffic.is_ipv6();
    target::complete(&mut spec, site.namespace.as_ref(), &site.interface, v6)?;
    let limits = Limits {
        mtu: Some(site.interface.mtu),
        seed: traffic.shape().seed,
        stamp: traffic.shape().stamp.then(stamp::new_stream),
    };
    let pattern = pattern(&[(spec, 1)], &limits).map_err(|(_, misfit)| misfit)?;
    show_or_send(pattern, None, &site, way, pacing)
}

/// A mix of frames, and phases over time, from a template file
#[derive(Debug, clap::Args)]
pub struct FromFile {
    /// The template, see the guide for what it holds
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    way: SendArgs,
    /// Use IPv6 if no address is given
    #[arg(short = '6', long)]
    ipv6: bool,
    /// What random values and sizes follow from [default: the file's, or 1]
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
            let why = format!("the phases in {} say how fast", self.file.display());
            return Err(Error::usage("--rate and --bandwidth", why));
        }
        let first = template.specs().next().cloned();
        let site = self.way.site(first.as_ref())?;
        for spec in template.specs() {
            target::complete(spec, site.namespace.as_ref(), &site.interface, self.ipv6)?;
        }
        let limits = Limits {
            mtu: Some(site.interface.mtu),
            seed: self.seed.or(template.seed()).unwrap_or(1),
            stamp: self.stamp.then(stamp::new_stream),
        };
        let pattern = template.pattern(&limits)?;
        show_or_send(pattern, template.profile(), &site, &self.way, &self.pacing)
    }
}

fn show_or_send(
    pattern: Pattern,
    profile: Option<&Profile>,
    site: &CaptureSite,
    way: &SendArgs,
    pacing: &Pacing,
) -> Result<ExitCode> {
    if let Some(count) = way.print {
        return print(&pattern, count, way.json);
    }
    way.check(site)?;
    let (rate, duration) = pace(pacing, profile, way.flood, site);
    let cpus = pacing.cpus()?;
    let plan = Sending {
        namespace: site.namespace.as_ref(),
        interface: &site.label,
        cpus: &cpus,
        rate,
        profile,
        burst: pacing.burst(),
        count: pacing.count(),
        duration,
    };
    let pattern = Arc::new(pattern);
    let notes = Notes::default();
    let start = |thread: usize| {
        let mut source: Box<dyn Source> =
            Box::new(PatternSource::new(Arc::clone(&pattern), thread, cpus.len()));
        let wish = way.engine.wish(thread, &notes);
        let engine = open(&site.interface.name, source.as_mut(), &wish)?;
        Ok((engine, source))
    };
    let mut watch = Watch::new(way.json)?;
    let report = run_generator(&plan, &start, &mut |figures| {
        watch.notes(&notes);
        watch.look(&site.label, figures)
    });
    watch.notes(&notes);
    watch.end(&site.label, &report?, &notes)
}

/// The first frames as `trawl capture -e -v -x` prints them, with their numbers for the time.
fn print(pattern: &Pattern, count: u64, in_json: bool) -> Result<ExitCode> {
    let mut printer = Printer::new(PrintOptions {
        link_header: true,
        timestamp: Timestamp::None,
        verbosity: 1,
        dump: (!in_json).then_some(Dump {
            form: DumpForm::Hex,
            link_header: true,
        }),
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
