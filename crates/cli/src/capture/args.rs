//! The arguments of `trawl capture`, and the plan that they make.

mod for_test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use trawl_capture::MAX_CAPTURED;
use trawl_front::lines::LineArgs;
use trawl_front::saving;
use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_plan::CapturePlan;
use trawl_plan::TapChoice;
use trawl_plan::filter::Filter;
use trawl_plan::options::{At, CaptureOptions, Direction, Mode, Programs, Recording, Sample, Stamps, Taps, TimeSource};
use trawl_plan::outputs::{FilePlan, Format, OutputPlan};
use trawl_plan::sources::Sources;
use trawl_sink::refuse_rotation;
use trawl_sys::netlink::interface;
use trawl_sys::rights::privilege::User;
use trawl_sys::words::word;
use trawl_sys::{Error, Result, host};
use trawl_view::print::PrintOptions;
use trawl_view::text;

use super::display::{Display, Form};
use super::drops::DropArgs;
use super::named_output::NamedOutput;
use super::peers::PeerArgs;
use super::pod::PodArgs;
use super::processes::ProcessArgs;
use super::recording::{self, RecordingArgs};
use super::remote::HostArgs;
use super::stored::StoreArgs;
use super::tcpdump::{StampType, TcpdumpArgs};
use super::trigger::{self, TriggerArgs};
use crate::args::{JsonForm, NamedValue, NetnsArg, SubjectArgs, VerifierLog, choice, filter_in_file};
use crate::{completion, habits, json, terminal, units};

/// Records packets at XDP, tc or a socket, or shows them as lines
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("netns", |arg| arg.hide_short_help(true)),
    mut_arg("verifier_log", |arg| arg.hide_short_help(true)),
    mut_arg("file_size", |arg| arg.help_heading(OUTPUT)),
    mut_arg("verbosity", |arg| arg.help_heading(OUTPUT)),
)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    filtering: FilterArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// End after this many recorded packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), help_heading = "End")]
    count: Option<u64>,
    /// End after this time, for example 10s
    #[arg(long, value_name = "TIME", value_parser = units::duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Change to this user once the capture is set up; files belong to it, and -z and COMMAND run as it
    ///
    /// Interfaces that appear later and match a pattern of -i are not captured then.
    #[arg(short = 'Z', long = "relinquish-privileges", value_name = "USER", value_parser = user, add = completion::users(), hide_short_help = true)]
    user: Option<User>,
    /// Clock for time stamps, and its reading interval
    #[arg(long = "time", value_enum, default_value_t = TimeName::Auto, hide_short_help = true)]
    clock: TimeName,
    /// Print the plan of the capture, as JSON for --plan, and capture nothing
    #[arg(long, hide_short_help = true)]
    pub(super) dry_run: bool,
    /// Capture according to the plan in this file, which --dry-run printed; '-' for standard input
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(super) plan: Option<PathBuf>,
    #[command(flatten)]
    verifier_log: VerifierLog,
    #[command(flatten)]
    recording: RecordingArgs,
    #[command(flatten)]
    trigger: TriggerArgs,
    #[command(flatten)]
    pub(super) remote: HostArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    pod: PodArgs,
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    subject: SubjectArgs,
    #[command(flatten)]
    pub(super) drops: DropArgs,
    #[command(flatten)]
    peers: PeerArgs,
    #[command(flatten)]
    pub(super) lines: LineArgs,
    #[command(flatten)]
    pub(super) tcpdump: TcpdumpArgs,
}

/// Options that select the interfaces, the tap and the hook.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Where")]
struct SourceArgs {
    /// Interface to capture on; 'veth*' names several
    ///
    /// NAME or NAMESPACE:NAME; may be given several times. any: all interfaces that are up. Patterns name those that
    /// match: 'veth*', '*:eth0' of every named namespace. --tap drop alone needs no interface
    #[arg(short = 'i', long = "interface", value_name = "IF", add = completion::interfaces())]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Tap to capture with
    ///
    /// tc may be combined with xdp or tailcall, drop with any: xdp,tc,drop
    #[arg(long, value_parser = choice(&TapChoice::ALL), value_delimiter = ',', default_value = "auto")]
    tap: Vec<TapChoice>,
    /// Direction of the packets
    ///
    /// [default: in for the xdp and tailcall taps, inout for tc and packet]
    #[arg(short = 'Q', long, value_parser = choice(&DIRECTIONS), value_name = "WAY")]
    direction: Option<Direction>,
    /// Attached XDP program to capture at: a name, an id, or all
    #[arg(long, visible_alias = "prog", value_name = "NAME|ID|all", hide_short_help = true)]
    program: Option<String>,
    /// End of the XDP program to record at [default: exit]
    #[arg(long, value_parser = choice(&ENDS))]
    at: Option<At>,
    /// The pinned program array through which the XDP program makes its tail call [default: found by trawl]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    hook: Option<PathBuf>,
    /// During the capture, add hooks to the attached XDP program, which was loaded from this file; it keeps its maps,
    /// and the program without hooks is restored at the end
    #[arg(long, value_name = "FILE.o", conflicts_with = "hook", hide_short_help = true)]
    tappable: Option<PathBuf>,
    /// Mode of trawl's own XDP program [default: native, and skb if the driver does not support it]
    #[arg(long, value_parser = choice(&MODES), hide_short_help = true)]
    mode: Option<Mode>,
    /// Leave the interface's promiscuous mode as it is
    #[arg(short = 'p', long = "no-promiscuous-mode", hide_short_help = true)]
    no_promiscuous: bool,
    /// List the interfaces, and the tap that a capture on each would use
    #[arg(short = 'D', long, hide_short_help = true)]
    list_interfaces: bool,
}

/// Options that select the packets to record, and their parts.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Which packets")]
struct FilterArgs {
    /// Filter in tcpdump's syntax
    ///
    /// For example 'tcp port 80 and host 10.0.0.1'. Options may follow it
    #[arg(value_name = "EXPRESSION", allow_negative_numbers = true)]
    expression: Vec<String>,
    /// Only packets with these verdicts of XDP
    ///
    /// aborted, drop, pass, tx, redirect
    #[arg(long, value_name = "LIST", add = completion::verdicts())]
    verdict: Option<String>,
    /// Bytes to keep of each packet; 0 for all
    #[arg(
        short = 's',
        long = "snapshot-length",
        visible_alias = "snaplen",
        value_name = "SNAPLEN",
        default_value_t = 0
    )]
    snaplen: u64,
    /// Cut packets after their headers, also inside tunnels
    #[arg(long, hide_short_help = true)]
    headers: bool,
    /// Read the expression from a file, as tcpdump's -F; `#` begins a comment
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with_all = ["expression", "cbpf"], hide_short_help = true)]
    filter_file: Option<PathBuf>,
    /// A filter as a classic program, as `tcpdump -ddd` prints it, instead of an expression
    #[arg(long, value_name = "PROGRAM", conflicts_with = "expression", hide_short_help = true)]
    cbpf: Option<String>,
    /// Apply the expression to the packet inside a tunnel: VXLAN, GENEVE, GRE or IP-in-IP
    #[arg(long, conflicts_with = "cbpf", hide_short_help = true)]
    inner: bool,
    /// Packet that the filter sees: the one that arrived at the XDP program, or the one that left it
    #[arg(long, value_parser = choice(&ENDS[..2]), value_name = "END", hide_short_help = true)]
    filter_at: Option<At>,
    /// Only packets of this receive or transmit queue
    #[arg(long, value_name = "N", hide_short_help = true)]
    queue: Option<u32>,
    /// Only packets that are handled on this CPU
    #[arg(long, alias = "cpus", value_name = "N", hide_short_help = true)]
    cpu: Option<u32>,
    /// One in N matching packets, chosen at random
    #[arg(long, value_name = "1/N", value_parser = units::one_in, conflicts_with = "sample_every", hide_short_help = true)]
    sample: Option<u32>,
    /// Every Nth matching packet, counted on each CPU separately
    #[arg(long, value_name = "N", value_parser = units::one_in, hide_short_help = true)]
    sample_every: Option<u32>,
    /// Record at most this many packets a second, and count the others
    #[arg(long, value_name = "PPS", value_parser = units::rate, hide_short_help = true)]
    limit_rate: Option<u64>,
}

/// Options for the form of written and shown packets.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = OUTPUT)]
struct OutputArgs {
    /// Write the packets to this file; '-' for a pipe
    ///
    /// Give this option several times for several outputs. The name may be followed by ,snaplen=N ,format=pcap|pcapng
    /// ,compress=zstd|lz4|gzip|none for this output alone. tcp-listen:ADDRESS:PORT waits for readers that connect, such
    /// as Wireshark; beyond loopback with ,cert=FILE,key=FILE,client-ca=FILE for TLS, or ,plain
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    write: Vec<PathBuf>,
    /// Format of the file [default: pcap for a FILE that ends in .pcap, else pcapng]
    #[arg(long, value_parser = saving::format(), hide_short_help = true)]
    format: Option<Format>,
    /// Replace addresses by the key in this file, and leave out payload and names: `openssl rand -hex 32 > KEY`
    #[arg(long, value_name = "KEY", conflicts_with = "store", value_hint = clap::ValueHint::FilePath, hide_short_help = true)]
    anonymize: Option<PathBuf>,
    /// Permissions of created files, in octal [default: 600, restricted by the umask]
    #[arg(long, value_name = "MODE", value_parser = units::file_mode, hide_short_help = true)]
    file_mode: Option<u32>,
    /// Keep one record of a packet that several interfaces or hooks see, with a comment that lists them
    ///
    /// A record waits this long for further sightings [default: 100ms]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "100ms", value_parser = units::duration, hide_short_help = true)]
    once: Option<Duration>,
    /// Leave out packets that another interface, direction or host saw within this time, such as 5ms; retransmissions
    /// stay
    #[arg(long, value_name = "TIME", value_parser = units::duration, hide_short_help = true)]
    dedup: Option<Duration>,
    /// Show packets as JSON
    ///
    /// One object per line; with array, one document. Notices become JSON too. With -w, packets are shown only with
    /// --print
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "lines")]
    json: Option<JsonForm>,
    /// Show each packet's identifier as CPU and number: the same for all sightings of one packet, at entry and exit,
    /// after a redirect, at tc and where it is dropped
    #[arg(long, conflicts_with = "write", hide_short_help = true)]
    id: bool,
    /// Print only errors and the summary
    #[arg(short = 'q', long, hide_short_help = true)]
    quiet: bool,
    /// Show statistics on standard error at this interval
    #[arg(long, value_name = "TIME", value_parser = units::duration, hide_short_help = true)]
    stats: Option<Duration>,
    /// Write the summary as JSON to this file, or to standard output with '-'
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    summary: Option<PathBuf>,
}

const OUTPUT: &str = "Output";

pub(crate) const DIRECTIONS: [NamedValue<Direction>; 3] =
    [("in", "", Direction::In), ("out", "", Direction::Out), ("inout", "", Direction::Both)];
/// The ends of a program. `both` is the last, so that an option for a single end can leave it out.
pub(crate) const ENDS: [NamedValue<At>; 3] = [("entry", "", At::Entry), ("exit", "", At::Exit), ("both", "", At::Both)];
const MODES: [NamedValue<Mode>; 2] = [("native", "", Mode::Native), ("skb", "", Mode::Skb)];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TimeName {
    /// The system's, for the first packets of each poll of the device and every 1 to 2 µs after them, if possible
    Auto,
    /// The system's, for each packet
    #[value(alias = "system")]
    Precise,
    /// The system's, once a poll
    Poll,
    /// The network card's, where it stamped the packet
    Hw,
}

/// The facts about a machine that a plan made there depends on.
pub(super) struct Environment {
    /// Bytes of memory.
    available_memory: u64,
    /// Reads an expression from a file.
    filter_file: fn(&Path) -> Result<String>,
}

impl Environment {
    pub(super) fn here() -> Self {
        Self { available_memory: host::available_memory(), filter_file: filter_in_file }
    }
}

/// `trawl capture` without options.
#[derive(Debug, clap::Parser)]
struct Bare {
    #[command(flatten)]
    args: Args,
}

impl Args {
    pub(super) fn lists_interfaces(&self) -> bool {
        self.source.list_interfaces
    }

    /// Reads a plan from a file. Options that would change it are refused.
    pub(super) fn only_plan(&self, file: &Path) -> Result<CapturePlan> {
        let what = || format!("cannot capture by the plan in {}", file.display());
        let bare = Bare::try_parse_from(["capture"]).map_err(|e| Error::failed(what(), e))?.args;
        let environment = &Environment::here();
        let is_bare = self.planned(environment)? == bare.planned(environment)?;
        if !is_bare || self.remote.are_named() {
            let why = "other options conflict with it";
            return Err(Error::usage(what(), why).fix("change the file, or leave out --plan or the other options"));
        }
        let source = match file.to_str() {
            Some("-") => Path::new("/dev/stdin"),
            _ => file,
        };
        let text = std::fs::read_to_string(source).map_err(|e| Error::os(what(), e))?;
        CapturePlan::from_json(&text).map_err(|e| {
            Error::usage(what(), format!("it is not a plan of this version of trawl: {e}"))
                .fix("trawl capture --dry-run … prints one")
        })
    }

    /// Makes the plan of a capture.
    pub(super) fn resolve(&self, environment: &Environment) -> Result<CapturePlan> {
        let plan = self.planned(environment)?;
        self.refuse_without_interface(plan.options.tap)?;
        Ok(plan)
    }

    fn planned(&self, environment: &Environment) -> Result<CapturePlan> {
        let options = self.options(environment)?;
        let outputs = self.outputs(options.snaplen)?;
        let rotation = self.recording.rotation.rotation()?;
        if outputs.is_empty() {
            refuse_rotation(&rotation)?;
        }
        let mut plan = CapturePlan::new(self.sources(), options);
        // Interfaces of the command's namespaces join the interfaces of this namespace.
        plan.options.across_namespaces |= plan.options.joins && self.follows_command();
        plan.relinquish(self.user.as_ref().map(User::name));
        let mut plan = CapturePlan {
            command: self.subject.words.clone(),
            outputs,
            rotation,
            files: FilePlan { mode: self.output.file_mode, io: self.recording.io() },
            store: self.store.plan()?,
            anonymize: self.output.anonymize.clone(),
            tappable: self.source.tappable.clone(),
            summary: self.output.summary.clone(),
            link_type: self.tcpdump.link_type.clone(),
            verifier_log: self.verifier_log.path(),
            ..plan
        };
        if self.recording.for_test {
            for_test::complete(self, &mut plan)?;
        }
        Ok(plan)
    }

    /// Returns true if the interfaces are those that a command uses.
    fn follows_command(&self) -> bool {
        let wanted = self.source.interfaces.is_empty() && self.source.netns.is_none();
        let are_interfaces = self.source.tap.iter().any(|tap| *tap != TapChoice::Drop);
        wanted && are_interfaces && !self.subject.words.is_empty() && self.pod.pods.is_empty()
    }

    fn sources(&self) -> Sources {
        let names = if self.follows_command() { vec!["any".to_owned()] } else { self.source.interfaces.clone() };
        Sources {
            names,
            netns: (*self.source.netns).clone(),
            pods: self.pod.pods.clone(),
            awaits_pods: false,
            cri_socket: self.pod.cri_socket.clone(),
        }
    }

    /// Returns how the packets of a plan are shown on the terminal.
    pub(super) fn display(&self, plan: &CapturePlan) -> Display {
        let is_written = !plan.outputs.is_empty() || plan.store.is_some();
        Display {
            form: match (self.output.json, is_written && !self.recording.print) {
                (_, true) => None,
                (Some(form), false) => Some(Form::Json(form)),
                (None, false) => Some(Form::Lines(PrintOptions {
                    id: self.output.id,
                    colour: !is_written && terminal::colours_wanted(),
                    interface_names: Some(interface::name_of),
                    ..self.lines.options(false)
                })),
            },
            json: self.output.json.is_some() || self.remote.is_collected(),
            quiet: self.output.quiet,
            verbose: self.lines.is_verbose(),
            stats: self.output.stats,
        }
    }

    fn wants_hardware_time(&self) -> bool {
        match self.tcpdump.time_stamp_type {
            Some(stamps) => matches!(stamps, StampType::Adapter),
            None => matches!(self.clock, TimeName::Hw),
        }
    }

    fn taps(&self) -> Result<Taps> {
        let mut taps = Taps::of(&self.source.tap)?;
        if taps.tap == TapChoice::Auto && self.source.tappable.is_some() {
            taps.tap = TapChoice::Tailcall;
        }
        Ok(taps)
    }

    fn refuse_without_interface(&self, tap: TapChoice) -> Result<()> {
        let is_named = !self.source.interfaces.is_empty() || !self.pod.pods.is_empty();
        if is_named || self.follows_command() || tap == TapChoice::Drop || self.source.list_interfaces {
            return Ok(());
        }
        let first = self.filtering.expression.first().filter(|word| habits::is_interface(word));
        if let Some(interface) = first {
            let why = format!("{interface} is an interface, and no filter");
            return Err(Error::usage("cannot capture", why).fix(format!(
                "type: trawl capture -i {}",
                self.filtering.expression.iter().map(|one| word(one)).collect::<Vec<_>>().join(" ")
            )));
        }
        Err(Error::usage("cannot capture", "no interface is named")
            .fix("name one with -i (--interface); trawl capture -D lists them"))
    }

    /// Returns the format of an output without one of its own: from --format, else from the file's extension.
    fn format_of(&self, path: &Path) -> Format {
        let name = path.to_string_lossy();
        let packed = [".zst", ".lz4", ".gz"];
        let name = packed.iter().find_map(|end| name.strip_suffix(end));
        let is_pcap = name.unwrap_or(&path.to_string_lossy()).ends_with(".pcap");
        self.output.format.unwrap_or(if is_pcap { Format::Pcap } else { Format::Pcapng })
    }

    /// Returns the outputs in the order given. If one keeps more of a packet than -s, the others are cut to that.
    fn outputs(&self, kept: u32) -> Result<Vec<OutputPlan>> {
        let common = recording::snaplen(self.filtering.snaplen)?;
        let is_longer = kept > common;
        let named = self.output.write.iter().map(|text| NamedOutput::parse(text));
        let planned = named.map(|named| {
            let NamedOutput { path, snaplen, format, compress, listen } = named?;
            Ok(OutputPlan {
                format: format.unwrap_or_else(|| self.format_of(&path)),
                compression: self.recording.rotation.compression(&path, compress),
                snaplen: snaplen.or(is_longer.then_some(common)),
                path,
                listen,
            })
        });
        planned.collect()
    }

    /// Returns the bytes to keep of a packet: as many as the longest output keeps, or all if an expression triggers on
    /// events.
    fn kept(&self) -> Result<u32> {
        let common = recording::snaplen(self.filtering.snaplen)?;
        if self.trigger.needs_whole_packets() {
            return Ok(MAX_CAPTURED);
        }
        let named = self.output.write.iter().map(|text| NamedOutput::parse(text));
        let named = named.collect::<Result<Vec<_>>>()?;
        let longest = named.iter().filter_map(|one| one.snaplen).max();
        Ok(longest.map_or(common, |longest| longest.max(common)))
    }

    fn filter(&self, environment: &Environment) -> Result<Option<Filter>> {
        let expression = match &self.filtering.filter_file {
            Some(path) => (environment.filter_file)(path)?,
            None => self.filtering.expression.join(" "),
        };
        Ok(match &self.filtering.cbpf {
            Some(program) => Some(Filter::Classic(program.clone())),
            None if expression.is_empty() && self.filtering.inner => {
                return Err(Error::usage("cannot look inside tunnels", "--inner needs an expression"));
            }
            None if expression.is_empty() => None,
            None if self.filtering.inner => Some(Filter::Inner(expression)),
            None => Some(Filter::Expression(expression)),
        })
    }

    fn options(&self, environment: &Environment) -> Result<CaptureOptions> {
        self.tcpdump.refuse()?;
        let taps = self.taps()?;
        let drops = if taps.with_drops {
            Some(self.drops.chosen(self.source.netns.as_deref()))
        } else {
            self.drops.refuse().map(|()| None)?
        };
        self.peers.check(taps.tap)?;
        let kind = VerdictKind::Xdp;
        let verdicts = self.filtering.verdict.as_deref().map(|list| VerdictSet::parse(kind, list)).transpose();
        let verdicts = verdicts.map_err(|e| Error::usage("cannot understand --verdict", e))?;
        let meta = self.recording.meta()?;
        if self.output.once.is_some() && !meta.id {
            return Err(Error::usage("cannot keep one record of each packet", "the records have no identifiers")
                .fix("add id to --meta"));
        }
        let for_one = self.output.once.map(|_| "--once").or(self.output.dedup.map(|_| "--dedup"));
        if let Some(option) = for_one.filter(|_| self.source.at == Some(At::Both)) {
            return Err(Error::usage("cannot keep one record of each packet", "--at both asks for two")
                .fix(format!("leave out {option} or --at both")));
        }
        if self.output.dedup.is_some() && drops.is_some() {
            let why = "the record of a drop would be left out";
            return Err(Error::usage("cannot use --dedup with --tap drop", why)
                .fix("use --once: its records have the comments on drops"));
        }
        let available = environment.available_memory;
        let trigger = self.trigger.plan(meta.verdict, available)?;
        if let Some(plan) = &trigger {
            trigger::check(plan, verdicts.as_ref(), self.count)?;
        }
        Ok(CaptureOptions {
            drops,
            direction: self.source.direction,
            programs: self.source.program.as_deref().map(Programs::parse),
            at: self.source.at,
            verdicts,
            mode: self.source.mode.unwrap_or_default(),
            hook: self.source.hook.clone(),
            time: if self.wants_hardware_time() { TimeSource::Hardware } else { TimeSource::System },
            filter: self.filter(environment)?,
            filter_at: self.filtering.filter_at,
            queue: self.filtering.queue,
            cpu: self.filtering.cpu,
            sample: match (self.filtering.sample, self.filtering.sample_every) {
                (Some(number), _) => Some(Sample::Random(number)),
                (None, every) => every.map(Sample::Every),
            },
            rate_limit: self.filtering.limit_rate,
            snaplen: self.kept()?,
            headers: self.filtering.headers,
            count: self.count,
            duration: self.duration,
            once: self.output.once,
            dedup: self.output.dedup,
            memory: self.recording.memory(self.tcpdump.buffer()),
            prompt: self.tcpdump.is_prompt(),
            recording: Recording {
                meta,
                stamps: match self.clock {
                    TimeName::Auto => Stamps::Auto,
                    TimeName::Poll => Stamps::Poll,
                    TimeName::Precise | TimeName::Hw => Stamps::Precise,
                },
                segments: self.store.is_used(),
            },
            trigger,
            process: self.process.plan(),
            promiscuous: !self.source.no_promiscuous,
            peers: self.peers.resolve(),
            ..taps.usual()
        })
    }
}

/// Prints a plan without the options that were not given: on several lines for people, on one for machines.
pub fn show_plan(plan: &CapturePlan, on_one_line: bool) -> Result<ExitCode> {
    let fail = |e| Error::failed("cannot print the plan", e);
    let mut plan = plan.to_json();
    json::remove_nulls(&mut plan);
    if on_one_line {
        json::print(&plan)?
    } else {
        let text = serde_json::to_string_pretty(&plan).map_err(fail)?;
        terminal::write_out(&format!("{}\n", text::in_json(&text)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn user(name: &str) -> std::result::Result<User, String> {
    User::find(name).map_err(|error| error.why().to_owned())
}

#[cfg(test)]
mod tests {
    use trawl_plan::options::Meta;
    use trawl_plan::outputs::{Compression, Rotation};

    use super::*;

    fn plan(words: &[&str]) -> Result<CapturePlan> {
        let words = [&["capture"][..], words].concat();
        let bare = Bare::try_parse_from(words).map_err(|e| Error::usage("the words", e))?;
        bare.args.resolve(&Environment {
            available_memory: 1 << 30,
            filter_file: |path| Ok(format!("host {}", path.display())),
        })
    }

    #[test]
    fn plan_contains_the_given_options() {
        let words = "-i eth0 -i red:veth* -Q inout -w a.pcap.zst,snaplen=64 -w b -C 10 -F ten udp";
        let words: Vec<&str> = words.split(' ').collect();
        plan(&words).expect_err("an expression and its file");
        let plan = plan(&words[..words.len() - 1]).expect("a plan");
        assert_eq!(plan.sources.names, ["eth0", "red:veth*"]);
        assert_eq!(plan.options.direction, Some(Direction::Both));
        let expression = Filter::Expression("host ten".to_owned());
        assert_eq!(plan.options.filter, Some(expression));
        assert!(plan.options.joins && !plan.options.across_namespaces);
        assert_eq!(plan.rotation.size, Some(10_000_000));
        let [first, second] = &plan.outputs[..] else {
            panic!("two outputs: {plan:?}");
        };
        assert_eq!((first.format, first.compression, first.snaplen), (Format::Pcap, Some(Compression::Zstd), Some(64)));
        assert_eq!((second.format, second.compression, second.snaplen), (Format::Pcapng, None, None));
        assert_eq!(plan.options.snaplen, MAX_CAPTURED);
    }

    #[test]
    fn longest_output_decides_what_is_kept() {
        let plan = plan(&["-i", "lo", "-s", "64", "-w", "a,snaplen=128", "-w", "b"]);
        let plan = plan.expect("a plan");
        assert_eq!(plan.options.snaplen, 128);
        let cut: Vec<_> = plan.outputs.iter().map(|output| output.snaplen).collect();
        assert_eq!(cut, [Some(128), Some(64)]);
    }

    #[test]
    fn recording_for_a_test_has_all_data_and_a_bound() {
        let made = plan(&["-i", "eth0", "--for-test", "-w", "a.pcapng"]).expect("a plan");
        let CaptureOptions { tap, at, recording, snaplen, with_tc, .. } = made.options;
        assert_eq!((tap, at, snaplen, with_tc), (TapChoice::Auto, Some(At::Both), MAX_CAPTURED, false));
        assert_eq!(recording, Recording { meta: Meta::FULL, stamps: Stamps::Precise, segments: false });
        assert_eq!(made.rotation, Rotation { total: Some(1 << 30), ..Rotation::default() });
        let made = plan(&["-i", "eth0", "--for-test", "-w", "a.pcapng", "--sealed"]).expect("a plan");
        assert_eq!(made.rotation.total, Some(1 << 30));
        for bound in [["-C", "5"], ["-G", "60"], ["-W", "3"], ["--max-disk", "1MiB"]] {
            let words = [&["-i", "eth0", "--for-test", "-w", "a.pcapng"][..], &bound].concat();
            let without = plan(&words.iter().copied().filter(|word| *word != "--for-test").collect::<Vec<_>>());
            assert_eq!(plan(&words).expect("a plan").rotation, without.expect("a plan").rotation, "{bound:?}");
        }
        let made = plan(&["-i", "eth0", "--for-test", "--tap", "tailcall", "-w", "-"]).expect("a plan");
        assert_eq!((made.options.tap, made.rotation), (TapChoice::Tailcall, Rotation::default()));
        let made = plan(&["-i", "eth0", "--for-test", "-w", "/"]).expect("a plan");
        assert_eq!(made.outputs[0].path, Path::new("/packets.pcapng"));
    }

    #[test]
    fn options_that_spoil_a_recording_for_a_test_are_refused_by_name() {
        let file = ["-w", "a.pcapng"];
        for (words, part) in [
            (&["--tap", "tc"][..], "leave out --tap,"),
            (&["--tap", "xdp,tc"], "leave out --tap,"),
            (&["--tap", "packet"], "leave out --tap,"),
            (&["--tap", "xdp,drop"], "leave out --tap,"),
            (&["--at", "exit"], "leave out --at,"),
            (&["-Q", "inout"], "leave out -Q,"),
            (&["-s", "96"], "whole packets; leave out -s,"),
            (&["--headers"], "whole packets; leave out --headers,"),
            (&["--anonymize", "key"], "leave out --anonymize,"),
            (&["--once"], "leave out --once,"),
            (&["--dedup", "5ms"], "leave out --dedup,"),
            (&["--meta", "flags,id,verdict"], "leave out --meta,"),
            (&["--time", "hw"], "leave out --time hw,"),
            (&["-j", "adapter"], "leave out -j adapter,"),
            (&["--time", "poll"], "leave out --time poll,"),
            (&["--on", "web1"], "leave out --on,"),
            (&["--format", "pcap"], "write pcapng"),
        ] {
            let all = [&["-i", "lo", "--for-test"][..], &file, words].concat();
            let error = plan(&all).expect_err("refused").to_string();
            assert!(error.contains("cannot record for a test") && error.contains(part), "{words:?}: {error}");
            plan(&[&["-i", "lo"][..], &file, words].concat()).expect("accepted without --for-test");
        }
        let error = plan(&["-i", "lo", "--for-test", "-w", "a,snaplen=64"]).expect_err("refused").to_string();
        assert!(error.contains("leave out snaplen="), "{error}");
        let error = plan(&["-i", "lo", "--for-test"]).expect_err("refused").to_string();
        assert!(error.contains("-w FILE"), "{error}");
    }

    #[test]
    fn contradictions_are_usage_errors() {
        for words in [
            &["--tap", "xdp,packet", "-i", "lo"][..],
            &["udp"],
            &["-i", "lo", "-C", "10"],
            &["-i", "lo", "--reason", "NO_SOCKET"],
            &["-i", "lo", "--trigger", "udp", "-c", "3"],
            &["-i", "lo", "-w", "a,snap=3"],
            &["-i", "lo", "--tap", "xdp", "--at", "both", "--dedup", "5ms"],
            &["-i", "lo", "--tap", "tc,drop", "--dedup", "5ms"],
            &["-i", "lo", "--trigger", "udp", "--trigger-memory", "2GiB"],
        ] {
            let error = plan(words).expect_err("refused");
            assert_eq!(error.kind(), trawl_sys::error::ErrorKind::Usage, "{words:?}");
        }
    }
}
