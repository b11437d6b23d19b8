//! The arguments of `trawl read`, and their conversion to plain values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ArgAction;
use trawl_capture::filter::Compile;
use trawl_filter::CompilerOptions;
use trawl_filter::select::options_for;
use trawl_front::bound::{Bound, parse_bound};
use trawl_front::lines::LineArgs;
use trawl_front::saving::{Packing, SavingArgs, compression};
use trawl_packet::pcapng::Direction;
use trawl_plan::filter::Filter;
use trawl_plan::options::{self, CaptureOptions, Memory};
use trawl_plan::outputs::{FilePlan, Format, Io, OutputPlan, Rotation};
use trawl_plan::sources::Sources;
use trawl_plan::{CapturePlan, TapChoice};
use trawl_source::{Input, format_for, privacy};
use trawl_sys::{Error, Result};
use trawl_view::print::{Datagrams, PrintOptions};
use trawl_view::rewrite::Privacy;

use super::selection::{End, Selection, Verdicts};
use crate::args::{JsonForm, LibpcapArg, choice, filter_in_file};
use crate::capture::args::DIRECTIONS;
use crate::capture::named_output::NamedOutput;
use crate::terminal::write_out;

/// Shows packets of capture files, or writes them to another file
///
/// Reads pcapng and pcap files, plain or compressed by gzip, zstd or lz4; '-' is standard input. Packets of several
/// files are merged by time.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("compress", |arg| arg.hide_short_help(false).requires("write")),
    mut_arg("file_size", |arg| arg.hide_short_help(true)),
    mut_arg("file_seconds", |arg| arg.hide_short_help(true)),
    mut_arg("link_header", |arg| arg.hide_short_help(false)),
    mut_arg("numeric", |arg| arg.hide_short_help(false)),
    mut_arg("time", |arg| arg.hide_short_help(false)),
    mut_arg("hex", |arg| arg.hide_short_help(false)),
)]
pub struct ReadArgs {
    /// Files, followed by a filter in tcpdump's syntax: a.pcap b.pcapng 'tcp port 80'
    #[arg(value_name = "FILE… [EXPRESSION]", add = crate::completion::paths(), required_unless_present_any = ["read", "read_list", "list_interfaces", "version"])]
    words: Vec<String>,
    /// Read this file, as in tcpdump; all other arguments are the expression
    #[arg(short = 'r', long, value_name = "FILE", hide_short_help = true)]
    read: Vec<PathBuf>,
    /// Read the files that this file names, one a line; '-' is standard input
    #[arg(short = 'V', value_name = "FILE", conflicts_with = "read", hide_short_help = true)]
    read_list: Option<PathBuf>,
    #[command(flatten)]
    saving: SavingArgs,
    /// End after this many packets
    #[arg(short = 'c', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..), hide_short_help = true)]
    limit: Option<u64>,
    /// Show the number of packets instead of the packets
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    count: bool,
    /// Follow a growing file, or files added to a ring; Ctrl-C ends it
    #[arg(short = 'f', long)]
    follow: bool,
    /// List the interfaces, and the tap that a capture on each would use; no file is read
    #[arg(short = 'D', long, hide_short_help = true)]
    pub list_interfaces: bool,
    /// Show the version of trawl and of libpcap
    #[arg(long, hide_short_help = true)]
    pub version: bool,
    /// Read the expression from this file
    #[arg(short = 'F', value_name = "FILE", hide_short_help = true)]
    expression_file: Option<PathBuf>,
    #[command(flatten)]
    pub libpcap: LibpcapArg,
    #[command(flatten)]
    choice: ChoiceArgs,
    /// Show packets as JSON, one object a line, as `trawl capture` does; `array`: as one document
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "lines", conflicts_with = "jsonl")]
    pub json: Option<JsonForm>,
    /// The former name of --json
    #[arg(long, hide = true)]
    jsonl: bool,
    /// Show less of each protocol
    #[arg(short = 'q')]
    quick: bool,
    /// Write each line at once
    #[arg(short = 'l', long, hide_short_help = true)]
    line_buffered: bool,
    /// Write each packet to the file as soon as it is read
    #[arg(short = 'U', long, hide_short_help = true)]
    packet_buffered: bool,
    /// Change to this user once the files are open, if trawl runs as root
    #[arg(short = 'Z', long = "relinquish-privileges", value_name = "USER", add = crate::completion::users(), hide_short_help = true)]
    user: Option<String>,
    #[command(flatten)]
    lines: LineArgs,
    #[command(flatten)]
    tcpdump: TcpdumpArgs,
}

/// Selection of packets by more than an expression.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filtering")]
struct ChoiceArgs {
    /// A filter as a classic program, as `tcpdump -ddd` prints it, instead of an expression
    #[arg(long, value_name = "PROGRAM", hide_short_help = true)]
    cbpf: Option<String>,
    /// Apply the expression to the packet inside a tunnel: VXLAN, GENEVE, GRE or IP-in-IP
    #[arg(long, conflicts_with = "cbpf", hide_short_help = true)]
    inner: bool,
    /// Only packets with these verdicts: aborted, drop, pass, tx, redirect; or tc's: ok, shot, stolen, …
    #[arg(long, value_name = "LIST", add = crate::completion::verdicts())]
    verdict: Option<String>,
    /// Only packets recorded at this end of a hook
    #[arg(long, value_enum)]
    at: Option<End>,
    /// Only packets of this interface, or of those that match: 'veth*'; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interface: Vec<String>,
    /// Only packets from this time on: 14:30, '2026-01-31 14:30:00', seconds since 1970, +10s (after the first packet),
    /// -1h (before now)
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    from: Option<Bound>,
    /// Only packets before this time
    #[arg(long, value_name = "TIME", value_parser = parse_bound, allow_hyphen_values = true)]
    to: Option<Bound>,
}

impl ChoiceArgs {
    /// Returns the wanted interfaces; empty for packets of all.
    fn interfaces(&self) -> Vec<String> {
        if self.interface.iter().any(|name| name == "any") { Vec::new() } else { self.interface.clone() }
    }
}

/// Form of the packets' output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Lines,
    /// The number of packets alone.
    Count,
    /// One document.
    Json,
    JsonLines,
}

/// The request of the command line.
pub(crate) struct Request {
    pub files: Vec<PathBuf>,
    pub filter: Option<Filter>,
    /// Shows the filter's program instead of packets.
    pub dump: Option<ProgramDump>,
    pub selection: Selection,
    pub count: Option<u64>,
    pub follow: bool,
    /// Outputs as given, and what applies to all of them.
    write: Vec<NamedOutput>,
    format: Option<Format>,
    packing: Option<Packing>,
    /// Limits of files, in the packets' time.
    pub rotation: Rotation,
    /// Leaves out packets that another point saw within this time.
    pub dedup: Option<Duration>,
    /// Replaces the addresses in the file written.
    pub anonymize: Option<PathBuf>,
    /// Cuts packets after their headers.
    pub headers: bool,
    /// `None` if packets are only written.
    pub form: Option<Form>,
    pub print: PrintOptions,
    /// Takes the number of digits from the file, unless one was given.
    pub precision_of_file: bool,
    pub flush_each: bool,
    pub user: Option<String>,
}

impl Request {
    /// Returns the plan of the outputs, whose format may follow from the files.
    pub(super) fn plan(&self, inputs: &[Input]) -> CapturePlan {
        let outputs =
            self.write.iter().cloned().map(|NamedOutput { path, snaplen, format, compress, listen }| OutputPlan {
                format: format.or(self.format).unwrap_or_else(|| format_for(&path, inputs)),
                compression: compression(compress.or(self.packing), &path),
                snaplen,
                path,
                listen,
            });
        CapturePlan {
            outputs: outputs.collect(),
            rotation: self.rotation.clone(),
            files: FilePlan { mode: None, io: Io::Buffered },
            ..no_capture()
        }
    }

    /// Returns true if packets are written, not only shown.
    pub(super) fn writes(&self) -> bool {
        !self.write.is_empty()
    }

    /// Returns the changes of `--anonymize` and `--headers`. The key is read.
    pub(super) fn privacy(&self) -> Result<Option<Privacy>> {
        privacy(self.headers, self.anonymize.as_deref())
    }
}

/// Returns a plan without sources and outputs.
pub(super) fn no_capture() -> CapturePlan {
    CapturePlan::new(Sources::default(), CaptureOptions::new(TapChoice::Auto, Memory::default()))
}

impl ReadArgs {
    pub(super) fn resolve(&self) -> Result<Request> {
        self.tcpdump.refuse()?;
        let saving = &self.saving;
        saving.refuse_once()?;
        let (files, words) = self.files_and_words()?;
        let filter = self.filter(&words)?;
        let verdicts = self.choice.verdict.as_deref().map(Verdicts::parse);
        let form = match (self.count, self.json) {
            (true, _) => Form::Count,
            (_, Some(JsonForm::Array)) => Form::Json,
            (_, Some(JsonForm::Lines)) => Form::JsonLines,
            (_, None) if self.jsonl => Form::JsonLines,
            (_, None) => Form::Lines,
        };
        Ok(Request {
            files,
            filter,
            dump: self.tcpdump.dump(),
            selection: Selection {
                verdicts: verdicts.transpose()?,
                at: self.choice.at,
                interfaces: self.choice.interfaces(),
                unwanted_direction: self.tcpdump.unwanted_direction(),
                bounds: (self.choice.from, self.choice.to),
                ..Selection::default()
            },
            count: self.limit,
            follow: self.follow,
            format: saving.format,
            packing: saving.rotation.compress,
            // Without a file, the letters of tcpdump's series have no effect.
            rotation: if saving.write.is_empty() { Rotation::default() } else { saving.rotation.rotation()? },
            write: saving.write.iter().map(|text| NamedOutput::parse(text)).collect::<Result<_>>()?,
            dedup: saving.dedup,
            anonymize: saving.anonymize.clone(),
            headers: saving.headers,
            form: (saving.write.is_empty() || saving.print || self.count).then_some(form),
            print: PrintOptions { datagrams: self.tcpdump.datagrams()?, ..self.lines.options(self.quick) },
            precision_of_file: self.lines.precision().is_none(),
            flush_each: self.line_buffered || self.packet_buffered,
            user: self.user.clone(),
        })
    }

    /// Splits files from the expression, which begins with the first argument that names no file.
    fn files_and_words(&self) -> Result<(Vec<PathBuf>, Vec<String>)> {
        if let Some(list) = &self.read_list {
            return Ok((listed(list)?, self.words.clone()));
        }
        if !self.read.is_empty() {
            return Ok((self.read.clone(), self.words.clone()));
        }
        let (files, words) = split_files(&self.words);
        // No expression has such a token, so it is a missing file.
        if let Some(missing) = words.first().filter(|word| looks_like_a_file(word)) {
            let missing = missing.clone();
            return Err(Error::failed(format!("cannot read {missing}"), "no such file or directory"));
        }
        Ok((files.iter().map(PathBuf::from).collect(), words.to_vec()))
    }

    fn filter(&self, words: &[String]) -> Result<Option<Filter>> {
        let mut text = words.join(" ");
        if let Some(path) = &self.expression_file {
            if !text.is_empty() {
                return Err(Error::usage("cannot use -F", "there is an expression on the command line as well"));
            }
            text = filter_in_file(path)?;
        }
        match &self.choice.cbpf {
            Some(_) if !text.is_empty() => Err(Error::usage("cannot use --cbpf", "there is an expression as well")),
            Some(program) => Ok(Some(Filter::Classic(program.clone()))),
            None if text.trim().is_empty() => Ok(None),
            None if self.choice.inner => Ok(Some(Filter::Inner(text))),
            None => Ok(Some(Filter::Expression(text))),
        }
    }
}

/// Splits files from the expression after them; the first argument is a file, whether it exists or not.
pub(crate) fn split_files(words: &[String]) -> (&[String], &[String]) {
    let is_file = |word: &&String| *word == "-" || Path::new(word).exists();
    let count = words.iter().take_while(is_file).count();
    words.split_at(count.max(1).min(words.len()))
}

/// Returns the files in a list.
fn listed(list: &Path) -> Result<Vec<PathBuf>> {
    let name = list.display();
    let read =
        if list == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(list) };
    let text = read.map_err(|e| Error::os(format!("cannot read the list of files {name}"), e))?;
    let files: Vec<PathBuf> =
        (text.lines().map(str::trim_end)).filter(|line| !line.is_empty()).map(PathBuf::from).collect();
    if files.is_empty() {
        Err(Error::failed(format!("cannot read the files that {name} lists"), "the list is empty"))
    } else {
        Ok(files)
    }
}

/// Splits the files at the beginning from the expression after them.
pub(crate) fn existing_files(words: &[String]) -> (&[String], &[String]) {
    let (files, rest) = split_files(words);
    // No expression begins with such a word: it is a missing file.
    let is_file = |name: &String| name == "-" || Path::new(name).exists() || looks_like_a_file(name);
    if files.first().is_some_and(is_file) { (files, rest) } else { (&[], words) }
}

/// Returns true for a word that is a file's name, and no part of an expression.
fn looks_like_a_file(word: &str) -> bool {
    const ENDINGS: [&str; 9] = [".pcap", ".pcapng", ".cap", ".ntar", ".dump", ".dmp", ".gz", ".zst", ".lz4"];
    !word.contains(' ') && ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// tcpdump's options that have no effect on a file, or that are trawl's default.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Accepted from tcpdump")]
pub(super) struct TcpdumpArgs {
    /// Show the filter's classic program for the first file and end: -dd as C, -ddd as numbers
    #[arg(short = 'd', action = ArgAction::Count, hide_short_help = true)]
    dump: u8,
    /// Do not optimise the program that -d shows
    #[arg(short = 'O', long, hide_short_help = true)]
    no_optimize: bool,
    /// Show all UDP datagrams as this protocol, whatever their ports
    #[arg(short = 'T', value_name = "TYPE", hide_short_help = true)]
    packet_type: Option<String>,
    /// Only packets of this direction, and packets of unknown direction
    #[arg(short = 'Q', long, value_parser = choice(&DIRECTIONS), value_name = "WAY", hide_short_help = true)]
    direction: Option<options::Direction>,
    /// Do not use promiscuous mode; no effect on a file
    #[arg(short = 'p', long, hide_short_help = true)]
    no_promiscuous_mode: bool,
    /// Use monitor mode; no effect on a file
    #[arg(short = 'I', long, hide_short_help = true)]
    monitor_mode: bool,
    /// Deliver packets at once; no effect on a file
    #[arg(long, hide_short_help = true)]
    immediate_mode: bool,
    /// Maximum bytes to capture of a packet; no effect on a file
    #[arg(
        short = 's',
        long = "snapshot-length",
        visible_alias = "snaplen",
        value_name = "BYTES",
        hide_short_help = true
    )]
    snapshot_length: Option<u32>,
    /// Memory for captured packets; no effect on a file
    #[arg(short = 'B', long, value_name = "KIB", hide_short_help = true)]
    buffer_size: Option<u64>,
    /// Clock that stamps packets; no effect on a file
    #[arg(short = 'j', long = "time-stamp-type", value_name = "TYPE", hide_short_help = true)]
    time_stamp_type: Option<String>,
    /// List the types for -j; no effect on a file: its packets are shown
    #[arg(short = 'J', long, hide_short_help = true)]
    list_time_stamp_types: bool,
    /// Link type; no effect on a file, which has its own
    #[arg(short = 'y', long = "linktype", value_name = "TYPE", hide_short_help = true)]
    link_type: Option<String>,
    /// List the types for -y; no effect on a file: its packets are shown
    #[arg(short = 'L', long, hide_short_help = true)]
    list_data_link_types: bool,
    /// Show AS numbers in ASDOT, raw NFS handles, and 802.11s; no effect: trawl shows none of them
    #[arg(short = 'b', short_aliases = ['u', 'H'], action = ArgAction::Count, hide_short_help = true)]
    not_shown: u8,
    /// An option of tcpdump's that is refused by name.
    #[arg(short = 'E', value_name = "KEY", hide = true)]
    decrypt: Option<String>,
    #[arg(short = 'M', value_name = "SECRET", hide = true)]
    secret: Option<String>,
    #[arg(short = 'm', value_name = "MODULE", hide = true)]
    module: Option<String>,
}

/// The types of -T that are decoded, by tcpdump's names.
const DATAGRAMS: [(&str, Datagrams); 6] = [
    ("domain", Datagrams::Domain),
    ("quic", Datagrams::Quic),
    ("radius", Datagrams::Radius),
    ("snmp", Datagrams::Snmp),
    ("tftp", Datagrams::Tftp),
    ("vxlan", Datagrams::Vxlan),
];

impl TcpdumpArgs {
    /// Refuses options that trawl does not support.
    pub fn refuse(&self) -> Result<()> {
        let missing = [
            (
                self.decrypt.is_some(),
                "-E",
                "trawl does not decrypt ESP",
                "leave out -E, or decrypt with tcpdump -E or tshark",
            ),
            (
                self.secret.is_some(),
                "-M",
                "trawl does not check TCP-MD5 digests",
                "leave out -M, or check them with tcpdump -M",
            ),
            (
                self.module.is_some(),
                "-m",
                "trawl shows SNMP's object identifiers as numbers",
                "leave out -m, or show their names with tshark",
            ),
        ];
        match missing.into_iter().find(|(is_given, ..)| *is_given) {
            Some((_, option, why, instead)) => {
                Err(Error::usage(format!("cannot do what tcpdump does for {option}"), why).fix(instead))
            }
            None => Ok(()),
        }
    }

    /// Returns the direction of unwanted packets.
    pub fn unwanted_direction(&self) -> Option<Direction> {
        match self.direction? {
            options::Direction::In => Some(Direction::Out),
            options::Direction::Out => Some(Direction::In),
            options::Direction::Both => None,
        }
    }

    /// Returns the protocol that all datagrams are shown as.
    pub fn datagrams(&self) -> Result<Option<Datagrams>> {
        let Some(name) = &self.packet_type else {
            return Ok(None);
        };
        match DATAGRAMS.iter().find(|(known, _)| known == name) {
            Some((_, datagrams)) => Ok(Some(*datagrams)),
            None => {
                let known = DATAGRAMS.map(|(name, _)| name).join(", ");
                Err(Error::usage(
                    format!("cannot show datagrams as {name}"),
                    format!("trawl decodes these under -T: {known}"),
                )
                .fix("leave out -T, or decode with tcpdump -T or tshark -d"))
            }
        }
    }

    /// Returns the form of the filter's program, if it is wanted instead of packets.
    pub fn dump(&self) -> Option<ProgramDump> {
        (self.dump > 0).then_some(ProgramDump { form: self.dump, optimise: !self.no_optimize })
    }
}

/// Form of the filter's classic program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramDump {
    form: u8,
    optimise: bool,
}

impl ProgramDump {
    /// Shows the program for the packets of this file.
    pub fn show(self, filter: Option<&Filter>, input: &Input) -> Result<()> {
        let first = input.reader.interfaces().first();
        let unlimited = CompilerOptions::default();
        let options = CompilerOptions {
            snaplen: match first.map(|interface| interface.snaplen) {
                None | Some(0) => unlimited.snaplen,
                Some(snaplen) => snaplen,
            },
            optimise: self.optimise,
            ..unlimited
        };
        let everything = Filter::Expression(String::new());
        let classic = filter.unwrap_or(&everything).classic(&options_for(options, input.first_kind()))?;
        write_out(&crate::filter::dump(&classic, self.form)?)
    }
}
