//! `trawl xdp test`: runs a program on recorded packets, and compares it with another one.

use std::cell::RefCell;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ArgAction;
use trawl_filter::CompilerOptions;
use trawl_filter::select::{PacketKind, Question, Selector};
use trawl_packet::pcapng::block::{ByteOrder, LINKTYPE_ETHERNET};
use trawl_packet::read::{CaptureReader, Step};
use trawl_program::Site;
use trawl_program::running::Running;
use trawl_source::Input;
use trawl_sys::files::create;
use trawl_sys::{Error, Result};
use trawl_trial::expect::Expected;
use trawl_trial::report::Report;
use trawl_trial::{
    Allowed, ArrivalInterface, FirstContents, Intake, Origin, Plan, Subject, Trial, examples, junit, lcov, page, text,
};
use trawl_view::merge::Merge;
use trawl_view::record::PacketSource;

use crate::args::{LibpcapArg, NamedValue, NetnsArg, VerifierLog, choice};
use crate::{exit_code, json, terminal, units};

/// Runs a program on recorded packets, and compares it with another one or with the recorded verdicts
///
/// Nothing is attached: the kernel runs the program on each packet by itself, with the time at which the packet was
/// recorded. Exit status: 0 if nothing differs, 1 if something does or a limit is missed, 2 if the test cannot be run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The object file of the program
    #[arg(value_name = "NEW.o")]
    program: PathBuf,
    /// Capture files with its packets; - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// One of several programs in the file, by the name of its function or section
    #[arg(long, value_name = "NAME")]
    prog: Option<String>,
    /// Compare it with the program of a file, or with the one that runs on an interface, NAME or NAMESPACE:NAME
    #[arg(long, value_name = "OLD.o|IF")]
    against: Option<String>,
    /// One of several programs there [default: as --prog]
    #[arg(long, value_name = "NAME", requires = "against")]
    against_prog: Option<String>,
    /// First contents of the maps: of the program that runs on an interface, of maps pinned in a directory by the same
    /// names, or none [default: none, and of the program that --against names by its interface]
    #[arg(long, value_name = "IF|DIR|none")]
    maps: Option<String>,
    /// Put an entry into a map; key and value are bytes in hexadecimal digits
    #[arg(long = "map", value_name = "NAME:KEY=VALUE", value_parser = entry)]
    entries: Vec<Entry>,
    /// Run the packets as of this interface and their recorded queues, in a namespace of its own; an existing interface
    /// lends its number and the number of its queues [default: queue 0 of lo]
    #[arg(long = "as", value_name = "IF[:QUEUES]")]
    arrives_by: Option<String>,
    /// Clocks that the programs see: the recorded times, or the host's clocks
    #[arg(long, action = ArgAction::Set, value_name = "WHICH", value_parser = choice(&TIMES), default_value = "recorded")]
    time: bool,
    /// Number from which the programs' random numbers are made
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Accept a difference, as in 'pass>drop where udp port 53'
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Do not compare bytes, or a map: bytes or maps:NAME
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = ignored)]
    ignore: Vec<Ignored>,
    /// Expect the outcomes of an earlier test, which --json printed
    #[arg(long, value_name = "FILE.json")]
    expect: Option<PathBuf>,
    /// Write the lines that the packets reach: for lcov's tools, or as a page if the name ends with .html
    #[arg(long, value_name = "FILE")]
    coverage: Option<PathBuf>,
    /// Share of the lines that the packets must reach, as in 80%
    #[arg(long, value_name = "SHARE", value_parser = percent)]
    min_lines: Option<f64>,
    /// Then run packets that are made of these by small changes for a time, to reach more of the program and to find
    /// more differences; --seed begins their sequence
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    fuzz: Option<Duration>,
    /// Measure the time that the programs need for packets
    #[arg(long)]
    timing: bool,
    /// Time by which the program may be slower than the other one, as in 5%
    #[arg(long, value_name = "SHARE", value_parser = growth, requires_all = ["timing", "against"])]
    slower: Option<f64>,
    /// Write an example of each difference into this directory, as small as possible
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Write the results for continuous integration, as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    libpcap: LibpcapArg,
    #[command(flatten)]
    verifier_log: VerifierLog,
}

/// The values of --time: true for the real clocks.
const TIMES: [NamedValue<bool>; 2] = [
    ("recorded", "the packets' times, so that each run gives the same result", false),
    ("real", "the host's clocks", true),
];

/// An entry of a map: the map's name, the key and the value.
type Entry = (String, Vec<u8>, Vec<u8>);

/// A value of --ignore.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ignored {
    Bytes,
    Map(String),
}

const PACKETS: PacketKind = (LINKTYPE_ETHERNET, ByteOrder::Little);

pub fn run(args: &Args) -> Result<ExitCode> {
    test(args).or_else(|error| {
        trawl_front::end(Err(error));
        Ok(ExitCode::from(CANNOT_RUN))
    })
}

/// Exit status for a test that cannot be run.
const CANNOT_RUN: u8 = 2;

/// Objects of the namespace of the command, which a test with --as leaves.
struct Surroundings {
    against: Option<Subject>,
    origin: Origin,
    arrives_by: Option<ArrivalInterface>,
}

fn test(args: &Args) -> Result<ExitCode> {
    args.libpcap.choose();
    args.verifier_log.begin()?;
    let expected = args.expect.as_deref().map(expected).transpose()?;
    let (against, origin) = against_and_origin(args)?;
    let find = |text: &String| ArrivalInterface::find(text, args.netns.as_deref());
    let arrives_by = args.arrives_by.as_ref().map(find).transpose()?;
    let surroundings = |arrives_by| Surroundings { against, origin, arrives_by };
    match arrives_by {
        Some(interface) => interface.run(|made| test_in(args, surroundings(Some(made)), expected)),
        None => test_in(args, surroundings(None), expected),
    }
}

/// Tests in the namespace that the packets arrive in.
fn test_in(args: &Args, surroundings: Surroundings, expected: Option<Expected>) -> Result<ExitCode> {
    let inputs: Vec<Input> =
        args.files.iter().map(|path| Input::open(path, None, None, json::show_notice)).collect::<Result<_>>()?;
    let mut trial = Trial::begin(plan(args, surroundings)?)?;
    let is_whole = run_packets(&mut trial, inputs)?;
    let mut progress = Progress::new();
    trial.show_progress(move |line| progress.show(line));
    let mut report = trial.finish()?;
    if let Some(expected) = expected {
        report.missed.extend(expected.unmet(&report));
    }
    if !is_whole {
        report.missed.push("a file could not be read to its end".to_owned());
    }
    write_files(args, &report)?;
    if args.json {
        json::print(&report)?;
    } else {
        terminal::write_out(&terminal::wrapped(&text::text(&report)))?;
    }
    Ok(exit_code(report.is_well()))
}

fn plan(args: &Args, surroundings: Surroundings) -> Result<Plan> {
    let Surroundings { against, origin, arrives_by } = surroundings;
    let maps = args.ignore.iter().filter_map(|one| match one {
        Ignored::Map(name) => Some(name.clone()),
        Ignored::Bytes => None,
    });
    Ok(Plan {
        program: Subject::new(args.program.clone(), args.prog.clone()),
        against,
        files: args.files.iter().map(|file| file.display().to_string()).collect(),
        first_contents: FirstContents::new(origin, args.entries.clone()),
        arrives_by,
        real_time: args.time,
        seed: args.seed,
        allowed: args.allow.iter().map(|rule| allowed(rule)).collect::<Result<_>>()?,
        ignores_bytes: args.ignore.contains(&Ignored::Bytes),
        ignored_maps: maps.collect(),
        min_lines: args.min_lines,
        measures_time: args.timing,
        fuzz: args.fuzz,
        slower: args.slower,
    })
}

/// Returns the program to compare with, and the origin of the maps' first contents.
fn against_and_origin(args: &Args) -> Result<(Option<Subject>, Origin)> {
    let program = Subject::new(args.program.clone(), args.prog.clone());
    let name = args.against_prog.as_ref().or(args.prog.as_ref());
    let running = |interface: &str| {
        let site = Site::find(interface, args.netns.as_deref())?;
        let name = name.map_or_else(|| program.name(), |name| Ok(name.clone()))?;
        let running = Running::choose(&site, &name, "--against-prog")?;
        Ok::<_, Error>((site, running))
    };
    let (against, origin) = match args.against.as_deref() {
        None => (None, Origin::Fresh),
        Some(file) if is_file(file) => (Some(Subject::new(file.into(), name.cloned())), Origin::Fresh),
        Some(interface) => {
            let (site, running) = running(interface)?;
            (Some(Subject::running(&site, &running)?), Origin::Running(running))
        }
    };
    let origin = match args.maps.as_deref() {
        None => origin,
        Some(NO_MAPS) => Origin::Fresh,
        Some(directory) if is_directory(directory) => Origin::Pins(directory.into()),
        Some(interface) => Origin::Running(running(interface)?.1),
    };
    Ok((against, origin))
}

/// The value of --maps for maps without contents.
const NO_MAPS: &str = "none";

/// Returns true for an object file; other words name an interface.
fn is_file(word: &str) -> bool {
    let path = Path::new(word);
    word.contains('/') || path.extension().is_some_and(|extension| extension == "o") || path.is_file()
}

/// Returns true for a directory; other words name an interface.
fn is_directory(word: &str) -> bool {
    word.contains('/') || Path::new(word).is_dir()
}

/// Tests a program against the one that it is to replace on an interface, with the contents of that one's maps. Prints
/// the result and fails if a difference is not allowed.
pub(super) fn before_replacing(
    site: &Site,
    new: Subject,
    files: &[PathBuf],
    allow: &[String],
    as_json: bool,
) -> Result<()> {
    let running = Running::choose(site, &new.name()?, "--prog")?;
    let against = Subject::running(site, &running)?;
    let what = format!("cannot replace {} on {}", running.name(), site.label());
    let run = || {
        let inputs = files.iter().map(|path| Input::open(path, None, None, json::show_notice));
        let inputs = inputs.collect::<Result<Vec<Input>>>()?;
        let mut trial = Trial::begin(Plan {
            program: new,
            against: Some(against),
            files: files.iter().map(|file| file.display().to_string()).collect(),
            first_contents: FirstContents::new(Origin::Running(running), Vec::new()),
            allowed: allow.iter().map(|rule| allowed(rule)).collect::<Result<_>>()?,
            ..Plan::default()
        })?;
        let is_whole = run_packets(&mut trial, inputs)?;
        let mut report = trial.finish()?;
        if !is_whole {
            report.missed.push("a file could not be read to its end".to_owned());
        }
        if report.packets == 0 {
            report.missed.push("no packet of the files could be run".to_owned());
        }
        Ok::<_, Error>(report)
    };
    // A trial keeps its thread on one CPU.
    let report = thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|panic| panic::resume_unwind(panic)))?;
    if report.is_well() {
        if !as_json {
            report.notes.iter().for_each(|note| terminal::say(&format!("test: {note}")));
            terminal::say(&format!("test: no difference that is not allowed, {} packets", report.packets));
        }
        return Ok(());
    }
    if as_json {
        json::print(&report)?;
    } else {
        terminal::write_out(&terminal::wrapped(&text::text(&report)))?;
    }
    // A rule of --allow accepts packets; whatever else differs is accepted by not testing.
    let fix = if report.maps.is_empty() && report.missed.is_empty() {
        "accept a difference with --allow 'pass>drop where udp port 53', or leave out --tested"
    } else {
        "to replace it nevertheless, leave out --tested"
    };
    Err(Error::failed(what, "the new program does not do the same").fix(fix))
}

/// Runs all packets. Returns false if a file could not be read to its end.
fn run_packets(trial: &mut Trial, inputs: Vec<Input>) -> Result<bool> {
    let mut inputs = Merge::new(inputs);
    let mut intake = Intake::default();
    let mut is_whole = true;
    let mut progress = Progress::new();
    loop {
        let at_end = match inputs.step() {
            Ok(Some(Step::Packet)) => {
                let file = inputs.index();
                let reader = inputs.source().map(|input| &input.reader);
                if let Some(offset) = reader.and_then(CaptureReader::monotonic_offset) {
                    trial.set_clock_offset(file, offset);
                }
                let packet = reader.and_then(PacketSource::current);
                packet.iter().for_each(|packet| intake.take(packet, file));
                false
            }
            Ok(Some(Step::Block { .. })) => false,
            Ok(None) => true,
            // The writer of a pipe has nothing for now; reading it has waited already.
            Err(error) if error.would_block() => false,
            Err(error) => {
                inputs.source().into_iter().for_each(|input| input.report_unreadable(&error));
                is_whole = false;
                false
            }
        };
        while let Some(packet) = intake.next(at_end) {
            match packet {
                Ok(packet) => {
                    trial.packet(packet)?;
                    progress.count();
                }
                Err((file, why)) => trial.leave_out(file, why),
            }
        }
        if at_end {
            let interfaces = inputs.sources().flat_map(|input| input.reader.interfaces());
            for program in interfaces.filter_map(|interface| interface.program()) {
                trial.set_recorded_at(program.name, program.file_tag());
            }
            intake.circumstances.iter().for_each(|one| trial.note(*one));
            return Ok(is_whole);
        }
    }
}

/// The number of packets so far, or other work that lasts, on a terminal.
struct Progress {
    packets: u64,
    shown: Instant,
    is_visible: bool,
    has_terminal: bool,
}

/// Interval between two lines, and number of packets between two readings of the clock.
const SHOW_EVERY: Duration = Duration::from_secs(1);
const READ_EVERY: u64 = 1024;

impl Progress {
    fn new() -> Self {
        Self { packets: 0, shown: Instant::now(), is_visible: false, has_terminal: terminal::stderr_is_terminal() }
    }

    fn count(&mut self) {
        self.packets += 1;
        if self.packets.is_multiple_of(READ_EVERY) {
            self.show(&format!("{} packets run", self.packets));
        }
    }

    fn show(&mut self, line: &str) {
        if self.has_terminal && self.shown.elapsed() >= SHOW_EVERY {
            self.shown = Instant::now();
            self.is_visible = true;
            terminal::show_over(line);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_visible {
            terminal::end_line();
        }
    }
}

fn write_files(args: &Args, report: &Report) -> Result<()> {
    if let (Some(path), Some(coverage)) = (&args.coverage, &report.coverage) {
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        let content = if is_page { page::page(report) } else { lcov::lcov(coverage) };
        write(path, content.as_bytes())?;
    }
    if let Some(path) = &args.junit {
        write(path, junit::junit(report).as_bytes())?;
    }
    let Some(directory) = &args.save else {
        return Ok(());
    };
    std::fs::create_dir_all(directory)
        .map_err(|e| Error::os(format!("cannot create the directory {}", directory.display()), e))?;
    let application = format!("trawl {}", env!("CARGO_PKG_VERSION"));
    for (number, group) in report.groups.iter().enumerate() {
        let name = format!("{}-{}-{}.pcapng", number + 1, group.before, group.after).to_lowercase();
        if let Some(bytes) = examples::file(group, &application) {
            write(&directory.join(name), &bytes)?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    create::replace(path, bytes).map_err(|e| Error::os(format!("cannot write {}", path.display()), e))
}

fn expected(path: &Path) -> Result<Expected> {
    let what = || format!("cannot read {}", path.display());
    let text = std::fs::read(path).map_err(|e| Error::os(what(), e))?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::failed(what(), e).fix("give a file that trawl xdp test --json printed"))
}

/// Reads a rule of --allow: two verdicts, and a filter for the packets.
fn allowed(rule: &str) -> Result<Allowed> {
    let refused =
        |why: String| Error::usage(format!("cannot allow '{rule}'"), why).fix("--allow 'pass>drop where udp port 53'");
    let (before, after, filter) = parts(rule).map_err(refused)?;
    let mut selector = Selector::new(Question::Expression(filter.to_owned()), CompilerOptions::default());
    selector.prepare(PACKETS).map_err(|e| refused(e.to_string()))?;
    let selector = RefCell::new(selector);
    let matches = move |packet: &[u8]| {
        let matches = selector.borrow_mut().matches(PACKETS, packet, packet.len() as u32);
        matches.unwrap_or(false)
    };
    let (before, after) = (before.to_owned(), after.to_owned());
    Ok(Allowed { rule: rule.to_owned(), before, after, matches: Box::new(matches) })
}

/// Returns the verdicts of a rule, and its filter, which is empty for all packets.
fn parts(rule: &str) -> std::result::Result<(&str, &str, &str), String> {
    let (verdicts, filter) = rule.split_once(" where ").unwrap_or((rule, ""));
    let (before, after) = verdicts.split_once('>').ok_or("a rule begins with two verdicts")?;
    Ok((before.trim(), after.trim(), filter))
}

fn ignored(text: &str) -> std::result::Result<Ignored, String> {
    match text.split_once(':') {
        None if text == "bytes" => Ok(Ignored::Bytes),
        Some(("maps", name)) if !name.is_empty() => Ok(Ignored::Map(name.to_owned())),
        _ => Err("use bytes or maps:NAME".to_owned()),
    }
}

fn percent(text: &str) -> std::result::Result<f64, String> {
    let number = growth(text)?;
    if number <= 100.0 { Ok(number) } else { Err("it is not between 0 and 100 %".to_owned()) }
}

/// Reads a share that may be more than all.
fn growth(text: &str) -> std::result::Result<f64, String> {
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| "it is not a number of percent".to_owned())?;
    if number >= 0.0 && number.is_finite() { Ok(number) } else { Err("it is less than 0 % or has no end".to_owned()) }
}

fn entry(text: &str) -> std::result::Result<Entry, String> {
    let parts = text.split_once(':').and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
    let (name, (key, value)) = parts.ok_or("use NAME:KEY=VALUE")?;
    Ok((name.to_owned(), bytes(key)?, bytes(value)?))
}

fn bytes(digits: &str) -> std::result::Result<Vec<u8>, String> {
    let refused = || format!("'{digits}' is not a number of bytes in hexadecimal digits");
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(refused());
    }
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| refused());
    (0..digits.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_bytes() {
        assert_eq!(entry("ports:0035=01"), Ok(("ports".to_owned(), vec![0, 0x35], vec![1])));
        for wrong in ["ports", "ports:00", "ports:0=01", "ports:0g=01", "ports:+1=01", "ports:=01"] {
            assert!(entry(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_have_two_verdicts() {
        assert_eq!(parts("pass>drop where udp port 53"), Ok(("pass", "drop", "udp port 53")));
        assert_eq!(parts("TX > pass"), Ok(("TX", "pass", "")));
        assert!(parts("pass").is_err());
    }

    #[test]
    fn shares_are_between_nothing_and_all() {
        assert_eq!(percent("80%"), Ok(80.0));
        assert_eq!(percent("99.5"), Ok(99.5));
        assert!(percent("101%").is_err() && percent("many").is_err());
        assert_eq!(growth("150%"), Ok(150.0));
        assert!(growth("-1%").is_err() && growth("inf").is_err());
    }
}
