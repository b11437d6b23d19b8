//! `trawl capture`: what was asked for turned into plain values, the output opened, and the account printed.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, ValueEnum};
use trawl_kernel::layout::RECORD_MAX_CAPTURED;
use trawl_kernel::ring::Geometry;
use trawl_kernel::warden::{self, Task, WholeBytes};
use trawl_kernel::{Error, Result, clock, errno, host};
use trawl_packet::pcapng;
use trawl_packet::print::{Dump, DumpForm, PrintOptions, Timestamp};
use trawl_packet::verdict;
use trawl_tap::Choice;
use trawl_tap::account::Summary;
use trawl_tap::assembly::{Host, Point};
use trawl_tap::filter::Filter;
use trawl_tap::session::{Ended, Observer, Session};
use trawl_tap::sink::{PcapFile, PcapngFile, Sink};
use trawl_tap::site::{At, Direction, Mode, Options, Site, TimeSource};

use crate::print::{JsonLines, Lines, Place};
use crate::{terminal, units};

/// Records every packet that a hook sees, into a file that Wireshark opens, or as lines on the terminal
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interface to capture on, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", required = true)]
    interfaces: Vec<String>,
    /// Network namespace of the interfaces that name none: a name, a path or a process id
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Where to see the packets
    #[arg(long, value_enum, default_value_t = TapName::Auto)]
    tap: TapName,
    /// Which way the packets go [default: in for the xdp and hook taps, inout for tc and packet]
    #[arg(short = 'Q', long, value_enum, value_name = "WAY")]
    direction: Option<Way>,
    /// At which end of the XDP program to record [default: exit]
    #[arg(long, value_enum)]
    at: Option<AtName>,
    /// Record only packets with these verdicts: aborted, drop, pass, tx, redirect
    #[arg(long, value_name = "LIST")]
    verdict: Option<String>,
    /// The pinned program array that the XDP program jumps through (found by itself where it can be)
    #[arg(long, value_name = "PATH")]
    hook: Option<PathBuf>,
    /// Write the packets to this file, or to standard output with '-'
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Pcapng)]
    format: Format,
    /// Bytes to keep of each packet; 0 for all
    #[arg(
        short = 's',
        long = "snapshot-length",
        value_name = "SNAPLEN",
        default_value_t = 0
    )]
    snaplen: u64,
    /// End after this many recorded packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Memory for packets on their way, for each CPU; a power of two
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::bytes)]
    ring_size: u64,
    /// Leave the interface's promiscuous mode as it is
    #[arg(short = 'p', long = "no-promiscuous-mode")]
    no_promiscuous: bool,
    /// Show figures on standard error this often
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    stats: Option<Duration>,
    /// Write the account as JSON to this file, or to standard output with '-'
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// How to attach trawl's own XDP program [default: native, and skb where the driver cannot]
    #[arg(long, value_enum)]
    mode: Option<ModeName>,
    /// Whose clock stamps the packets
    #[arg(long = "time", value_enum, default_value_t = TimeName::System)]
    clock: TimeName,
    /// Show packets as JSON, one object a line
    #[arg(long, conflicts_with = "write")]
    json: bool,
    /// Say nothing but errors and the account
    #[arg(short = 'q', long)]
    quiet: bool,
    #[command(flatten)]
    choice: ChoiceArgs,
    #[command(flatten)]
    lines: LineArgs,
    /// Which packets, as tcpdump takes it: 'tcp port 80 and host 10.0.0.1'
    #[arg(value_name = "EXPRESSION", trailing_var_arg = true)]
    expression: Vec<String>,
}

/// Which packets are recorded.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filtering")]
struct ChoiceArgs {
    /// A filter as a classic program, as `tcpdump -ddd` prints it, instead of an expression
    #[arg(long, value_name = "PROGRAM", conflicts_with = "expression")]
    cbpf: Option<String>,
    /// Where the XDP program stands when the filter looks: the packet as it came or as it left it
    #[arg(long, value_enum, value_name = "END")]
    filter_at: Option<FilterEnd>,
    /// Only packets of this receive queue
    #[arg(long, value_name = "N")]
    queue: Option<u32>,
    /// Only packets that are handled on this CPU
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// One packet in N of those that match
    #[arg(long, value_name = "1/N", value_parser = units::one_in)]
    sample: Option<u32>,
    /// Record at most this many packets a second, and count the others
    #[arg(long, value_name = "PPS", value_parser = units::rate)]
    limit_rate: Option<u64>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FilterEnd {
    Entry,
    Exit,
}

/// How packets are shown where they are not written.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Printing")]
struct LineArgs {
    /// Show the link layer's header
    #[arg(short = 'e')]
    link_header: bool,
    /// Show numbers for names; trawl always does
    #[arg(short = 'n', action = ArgAction::Count)]
    numeric: u8,
    /// -t no time, -tt seconds since 1970, -ttt since the last packet, -tttt with the date, -ttttt since the first
    #[arg(short = 't', action = ArgAction::Count)]
    time: u8,
    /// Show the packet's bytes in hex; -xx with the link layer's header
    #[arg(short = 'x', action = ArgAction::Count)]
    hex: u8,
    /// Show the packet's bytes in hex and ASCII; -XX with the link layer's header
    #[arg(short = 'X', action = ArgAction::Count)]
    hex_ascii: u8,
    /// Show the packet's bytes in ASCII
    #[arg(short = 'A', action = ArgAction::Count)]
    ascii: u8,
    /// Show more of each header; more with -vv
    #[arg(short = 'v', action = ArgAction::Count)]
    verbosity: u8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TapName {
    Auto,
    Xdp,
    Hook,
    Tc,
    Packet,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    In,
    Out,
    Inout,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AtName {
    Entry,
    Exit,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Pcapng,
    Pcap,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    Native,
    Skb,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TimeName {
    System,
    Hw,
}

impl Args {
    fn filter(&self) -> Option<Filter> {
        match &self.choice.cbpf {
            Some(program) => Some(Filter::Classic(program.clone())),
            None if self.expression.is_empty() => None,
            None => Some(Filter::Expression(self.expression.join(" "))),
        }
    }

    fn options(&self) -> Result<Options> {
        let kind = verdict::Kind::Xdp;
        let verdicts = self
            .verdict
            .as_deref()
            .map(|list| verdict::Set::parse(kind, list))
            .transpose();
        Ok(Options {
            tap: match self.tap {
                TapName::Auto => Choice::Auto,
                TapName::Xdp => Choice::Xdp,
                TapName::Hook => Choice::Hook,
                TapName::Tc => Choice::Tc,
                TapName::Packet => Choice::Packet,
            },
            direction: self.direction.map(|way| match way {
                Way::In => Direction::In,
                Way::Out => Direction::Out,
                Way::Inout => Direction::Both,
            }),
            at: self.at.map(|at| match at {
                AtName::Entry => At::Entry,
                AtName::Exit => At::Exit,
                AtName::Both => At::Both,
            }),
            verdicts: verdicts.map_err(|e| Error::usage("cannot understand --verdict", e))?,
            mode: match self.mode {
                None => Mode::NativeFirst,
                Some(ModeName::Native) => Mode::Native,
                Some(ModeName::Skb) => Mode::Skb,
            },
            hook: self.hook.clone(),
            time: match self.clock {
                TimeName::System => TimeSource::System,
                TimeName::Hw => TimeSource::Hardware,
            },
            filter: self.filter(),
            filter_at: self.choice.filter_at.map(|end| match end {
                FilterEnd::Entry => At::Entry,
                FilterEnd::Exit => At::Exit,
            }),
            queue: self.choice.queue,
            cpu: self.choice.cpu,
            sample: self.choice.sample,
            rate_limit: self.choice.limit_rate,
            snaplen: snaplen(self.snaplen)?,
            count: self.count,
            duration: self.duration,
            geometry: Geometry::for_size(self.ring_size)?,
            promiscuous: !self.no_promiscuous,
        })
    }
}

/// Zero means all, as it does for tcpdump.
fn snaplen(asked: u64) -> Result<u32> {
    match u32::try_from(asked) {
        Ok(0) => Ok(RECORD_MAX_CAPTURED as u32),
        Ok(bytes) if bytes as usize <= RECORD_MAX_CAPTURED => Ok(bytes),
        _ => Err(Error::usage(
            format!("cannot keep {asked} bytes of each packet"),
            format!("{RECORD_MAX_CAPTURED} is the limit"),
        )
        .mend("leave out -s to keep all of it")),
    }
}

impl LineArgs {
    fn options(&self) -> PrintOptions {
        let Self {
            link_header,
            numeric: _,
            time,
            hex,
            hex_ascii,
            ascii,
            verbosity,
        } = *self;
        let dump = |count: u8, form| {
            (count > 0).then_some(Dump {
                form,
                link_header: count > 1,
            })
        };
        PrintOptions {
            link_header,
            timestamp: match time {
                0 => Timestamp::Default,
                1 => Timestamp::None,
                2 => Timestamp::Epoch,
                3 => Timestamp::DeltaPrevious,
                4 => Timestamp::Date,
                _ => Timestamp::DeltaFirst,
            },
            utc_offset: clock::utc_offset(),
            verbosity,
            dump: dump(hex_ascii, DumpForm::HexAscii)
                .or_else(|| dump(hex, DumpForm::Hex))
                .or_else(|| dump(ascii, DumpForm::Ascii)),
        }
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let options = args.options()?;
    let sites = args
        .interfaces
        .iter()
        .map(|text| Site::find(text, args.netns.as_deref()))
        .collect::<Result<Vec<_>>>()?;
    check_format(&args, &sites)?;
    let output = args.write.as_deref().map(Output::open).transpose()?;
    let mut observer = Terminal::new(&args);
    let session = Session::attach(&sites, &options, this_host(), &mut observer);
    let (session, output) = match (session, output) {
        (Ok(session), output) => (session, output),
        (Err(error), output) => {
            output.iter().for_each(Output::discard);
            return Err(error);
        }
    };
    let snaplen = options.snaplen.min(options.geometry.max_captured());
    if snaplen < options.snaplen && args.snaplen != 0 {
        observer.notice(&format!(
            "keeping {snaplen} bytes of each packet: a ring of this size holds no more"
        ));
    }
    let (summary, ended) = match output {
        Some(output) => record(session, output, &args, &mut observer)?,
        None => show(session, &args, &mut observer)?,
    };
    observer.finish();
    report(&args, &summary, &ended)
}

fn record(
    mut session: Session<'_>,
    output: Output,
    args: &Args,
    observer: &mut Terminal,
) -> Result<(Summary, Ended)> {
    let whole = output.start()?;
    if let Some(whole) = &whole {
        let file = warden::hold(output.file.as_fd())?;
        session.warden().watch([Task::CutFile {
            file,
            whole: whole.clone(),
        }])?;
    }
    let first = session.interfaces().first().cloned().unwrap_or_default();
    let mut sink: Box<dyn Sink> = match args.format {
        Format::Pcapng => Box::new(PcapngFile::new(output.file, output.name, whole)),
        Format::Pcap => Box::new(PcapFile::new(
            output.file,
            output.name,
            whole,
            first.link_type,
            first.snaplen,
        )),
    };
    session.run(sink.as_mut(), observer)
}

fn show(session: Session<'_>, args: &Args, observer: &mut Terminal) -> Result<(Summary, Ended)> {
    let place = |(interface, hook): (&pcapng::Interface, String)| Place {
        interface: interface.name.clone().unwrap_or_default(),
        hook,
        link_type: interface.link_type,
    };
    let places = session
        .interfaces()
        .iter()
        .zip(session.hook_names())
        .map(place)
        .collect();
    if args.json {
        return session.run(&mut JsonLines::new(places), observer);
    }
    let mut lines = Lines::new(args.lines.options(), places);
    session.run(&mut lines, observer)
}

fn check_format(args: &Args, sites: &[Site]) -> Result<()> {
    let what = "cannot write the pcap format";
    let mend = "use --format pcapng";
    let first = sites.first().map(|site| site.interface.link_type);
    if args.format == Format::Pcap
        && sites
            .iter()
            .any(|site| Some(site.interface.link_type) != first)
    {
        let why = "it holds one link type, and the interfaces have different ones";
        return Err(Error::usage(what, why).mend(mend));
    }
    let to_terminal =
        args.write.as_deref().is_some_and(is_stdout) && terminal::stdout_is_terminal();
    if to_terminal {
        return Err(Error::usage(
            "cannot write packets to standard output",
            "it is a terminal",
        )
        .mend("name a file, pipe it on, or leave out -w to see lines"));
    }
    Ok(())
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// The file or pipe that packets are written to.
struct Output {
    file: File,
    name: String,
    /// Set for a file that was not there before.
    created: Option<PathBuf>,
    regular: bool,
}

impl Output {
    /// Opens without touching what may be there: the capture may still fail to start.
    fn open(path: &Path) -> Result<Self> {
        let name = if is_stdout(path) {
            "standard output".to_owned()
        } else {
            path.display().to_string()
        };
        let fail = |e| Error::os(format!("cannot write to {name}"), e);
        if is_stdout(path) {
            let file = File::from(
                std::io::stdout()
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(fail)?,
            );
            return Ok(Self {
                regular: false,
                file,
                name,
                created: None,
            });
        }
        let created = (!path.exists()).then(|| path.to_owned());
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(fail)?;
        let regular = file.metadata().map_err(fail)?.is_file();
        Ok(Self {
            file,
            name,
            created,
            regular,
        })
    }

    fn start(&self) -> Result<Option<WholeBytes>> {
        if !self.regular {
            return Ok(None);
        }
        self.file
            .set_len(0)
            .map_err(|e| Error::os(format!("cannot write to {}", self.name), e))?;
        WholeBytes::new().map(Some)
    }

    /// Nothing was captured: a file made for it is not left behind.
    fn discard(&self) {
        if let Some(path) = &self.created {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn this_host() -> Host {
    let host = host::describe();
    Host {
        os: host.os,
        hardware: host.hardware,
        application: format!("trawl {}", env!("CARGO_PKG_VERSION")),
    }
}

/// What is said on standard error while the capture runs.
struct Terminal {
    quiet: bool,
    stats: Option<Duration>,
    live_line: bool,
    previous: Option<(f64, u64)>,
}

impl Terminal {
    fn new(args: &Args) -> Self {
        Self {
            quiet: args.quiet,
            stats: args.stats,
            live_line: false,
            previous: None,
        }
    }

    fn finish(&mut self) {
        if std::mem::take(&mut self.live_line) {
            terminal::end_line();
        }
    }
}

impl Observer for Terminal {
    fn notice(&mut self, text: &str) {
        if !self.quiet {
            self.finish();
            terminal::say(text);
        }
    }

    fn started(&mut self, points: &[Point]) {
        for Point {
            label, hook, mode, ..
        } in points
        {
            let how = if mode.is_empty() {
                String::new()
            } else {
                format!(" ({mode})")
            };
            self.notice(&format!("capturing on {label} at {hook}{how}"));
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.stats
    }

    fn figures(&mut self, summary: &Summary) {
        let (then, recorded) = self.previous.unwrap_or_default();
        let rate = (summary.total.recorded - recorded) as f64 / (summary.seconds - then).max(1e-9);
        self.previous = Some((summary.seconds, summary.total.recorded));
        let text = format!(
            "{:.1} s: {}, {rate:.0} a second",
            summary.seconds, summary.total
        );
        if terminal::stderr_is_terminal() {
            terminal::show_over(&text);
            self.live_line = true;
        } else {
            terminal::say(&text);
        }
    }
}

fn report(args: &Args, summary: &Summary, ended: &Ended) -> Result<ExitCode> {
    let code = match ended {
        Ended::Signal | Ended::Duration | Ended::Count => ExitCode::SUCCESS,
        // The reader has seen enough: no failure of ours.
        Ended::Output(error) if error.errno() == Some(errno::EPIPE) => ExitCode::SUCCESS,
        Ended::Output(error) => {
            terminal::say(&error.to_string());
            ExitCode::FAILURE
        }
        // The observer has said so already, unless it was to be quiet.
        Ended::NoInterface(text) => {
            if args.quiet {
                terminal::say(text);
            }
            ExitCode::FAILURE
        }
    };
    if let Some(path) = &args.summary {
        write_summary(path, summary)?;
    }
    terminal::say(&summary.total.to_string());
    Ok(code)
}

fn write_summary(path: &Path, summary: &Summary) -> Result<()> {
    let fail = |e| Error::os(format!("cannot write the summary to {}", path.display()), e);
    let mut text = serde_json::to_string_pretty(summary)
        .map_err(|e| Error::failed("cannot put the summary into JSON", e))?;
    text.push('\n');
    if is_stdout(path) {
        std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .map_err(fail)
    } else {
        std::fs::write(path, text).map_err(fail)
    }
}
