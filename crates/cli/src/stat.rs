//! `trawl stat`: figures of capture files, or of what interfaces see for a while.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use trawl_kernel::{Error, Result, clock};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::{CaptureReader, compressed};
use trawl_tap::filter::Filter;
use trawl_view::print::{PrintOptions, Printer, Timestamp};
use trawl_view::record::{PacketView, Source};
use trawl_view::select::Selector;
use trawl_view::stat::{Field, Statistics};

use crate::filter::read::{explain, question};
use crate::libpcap::LibpcapArg;
use crate::live::{self, Viewer, Wanted};
use crate::terminal::{self, write_out};
use crate::units;

/// Shows figures of capture files, or of what interfaces see: protocols, talkers, flows, verdicts, lengths, rate, gaps
///
/// The words are files, and after them a filter expression, as for `trawl read`. With -i they are the expression.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(
        value_name = "FILE… [EXPRESSION]",
        required_unless_present = "interfaces"
    )]
    words: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
    /// Look at this interface, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// Network namespace of interfaces that name none
    #[arg(long, value_name = "NAME", requires = "interfaces")]
    netns: Option<String>,
    /// How long to look at interfaces [default: 10s, or until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "interfaces")]
    duration: Option<Duration>,
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Count by the values of these fields too: src, dst, sport, dport, smac, dmac, protocol, ethertype, vlan, ttl, dscp, flags, length, interface, direction, hook, verdict, queue
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',')]
    by: Vec<Field>,
    /// Talkers, flows and groups to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// As JSON
    #[arg(long)]
    json: bool,
}

const LIVE_DURATION: Duration = Duration::from_secs(10);

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let mut statistics = Statistics::new(args.by.clone());
    let (names, whole) = if args.interfaces.is_empty() {
        files(&args, &mut statistics)?
    } else {
        look(&args, &mut statistics)?;
        (args.interfaces.clone(), true)
    };
    let report = statistics.report(names, args.top);
    let text = if args.json {
        let json = serde_json::to_string(&report)
            .map_err(|e| Error::failed("cannot put the figures into JSON", e))?;
        json + "\n"
    } else {
        report.text(time)
    };
    write_out(&text)?;
    Ok(if whole {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads the files; false if one could not be read to its end.
fn files(args: &Args, statistics: &mut Statistics) -> Result<(Vec<String>, bool)> {
    let is_file = |word: &&String| *word == "-" || Path::new(word).exists();
    let count = args.words.iter().take_while(is_file).count().max(1);
    let (files, words) = args.words.split_at(count.min(args.words.len()));
    let expression = words.join(" ");
    let filter = (!expression.is_empty()).then_some(Filter::Expression(expression));
    let mut whole = true;
    for name in files {
        let unreadable = |why: String| Error::failed(format!("cannot read {name}"), why);
        let path = match name.as_str() {
            "-" => PathBuf::from("/dev/stdin"),
            name => PathBuf::from(name),
        };
        let file =
            std::fs::File::open(&path).map_err(|e| Error::os(format!("cannot read {name}"), e))?;
        let (source, _) = compressed::open(file).map_err(|e| unreadable(e.to_string()))?;
        let mut reader = CaptureReader::new(source).map_err(|e| unreadable(e.to_string()))?;
        if let Err(error) = one_file(&mut reader, filter.as_ref(), args.count, statistics)? {
            terminal::say(&format!("cannot read {name}: {error}"));
            whole = false;
        }
    }
    Ok((files.to_vec(), whole))
}

/// The inner error is why the file could not be read to its end.
fn one_file<R: Read>(
    reader: &mut CaptureReader<R>,
    filter: Option<&Filter>,
    count: Option<u64>,
    statistics: &mut Statistics,
) -> Result<std::result::Result<(), String>> {
    let options = trawl_filter::Options {
        link: trawl_filter::LinkType::ETHERNET,
        snaplen: 262_144,
        netmask: None,
        optimise: true,
        file: None,
    };
    let mut selector = filter.map(|filter| (filter, Selector::new(question(filter), options)));
    if let Some((filter, selector)) = &mut selector {
        let first = reader.interfaces().first();
        let link_type = first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type);
        let prepared = selector.prepare((link_type, reader.byte_order()));
        prepared.map_err(|error| explain(filter, error))?;
    }
    while count.is_none_or(|count| statistics.packets() < count) {
        match reader.advance() {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Ok(Err(error.to_string())),
        }
        let order = reader.byte_order();
        let Some(packet) = Source::current(reader) else {
            continue;
        };
        if let Some((filter, selector)) = &mut selector {
            let kind = (packet.link_type, order);
            let matches = selector.matches(kind, packet.captured, packet.original_len);
            if !matches.map_err(|error| explain(filter, error))? {
                continue;
            }
        }
        statistics.add(&packet);
    }
    Ok(Ok(()))
}

struct Counting<'a>(&'a mut Statistics);

impl Viewer for Counting<'_> {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.0.add(packet);
    }

    fn rest(&mut self) -> bool {
        true
    }
}

fn look(args: &Args, statistics: &mut Statistics) -> Result<()> {
    let wanted = Wanted {
        interfaces: args.interfaces.clone(),
        netns: args.netns.clone(),
        duration: Some(args.duration.unwrap_or(LIVE_DURATION)),
        count: args.count,
        filter: args.words.clone(),
        ..Wanted::default()
    };
    let account = live::run(&wanted, &mut Counting(statistics))?;
    terminal::say(&account.total.to_string());
    Ok(())
}

/// Seconds since 1970 with date and time of day, as lines of packets have them.
fn time(epoch: &str) -> String {
    let (seconds, nanoseconds) = epoch.split_once('.').unwrap_or((epoch, "0"));
    let ns = seconds
        .parse::<u64>()
        .ok()
        .zip(nanoseconds.parse::<u64>().ok());
    let Some((seconds, nanoseconds)) = ns else {
        return epoch.to_owned();
    };
    let mut printer = Printer::new(PrintOptions {
        timestamp: Timestamp::Date,
        utc_offset: clock::utc_offset(),
        ..PrintOptions::default()
    });
    printer.time(seconds * 1_000_000_000 + nanoseconds)
}
