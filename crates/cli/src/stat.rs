//! `trawl stat`: statistics of capture files, or of interfaces over a while.

use std::fs::{File, Metadata};
use std::io::{self, BufReader};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use sha2::{Digest, Sha256};
use trawl_capture::event::Event;
use trawl_packet::pcapng::Interface;
use trawl_packet::read::Step;
use trawl_plan::filter::Filter;
use trawl_sys::{Error, Result, rights::privilege};
use trawl_view::merge::Merge;
use trawl_view::record::{PacketSource, PacketView};
use trawl_view::stat::{Field, FileFacts, FileFigures, FileReport, Statistics, Stored};

use crate::args::{LibpcapArg, NetnsArg};
use crate::exit_code;
use crate::json;
use crate::read::split_files;
use crate::terminal;
use crate::units;
use trawl_source::FileFilter;
use trawl_source::live::{self, LiveOptions, Viewer};
use trawl_source::{Input, file_filter};

/// Shows statistics of capture files or interfaces
///
/// The statistics cover protocols, talkers, flows, verdicts, lengths, rate and gaps.
///
/// The arguments are files, followed by a filter expression, as for `trawl read`. With -i they are the expression.
#[derive(Debug, clap::Args)]
pub struct StatArgs {
    /// Files to read, and a filter in tcpdump's syntax: a.pcap b.pcapng 'tcp port 80'
    #[arg(
        value_name = "FILE… [EXPRESSION]",
        add = crate::completion::paths(),
        required_unless_present = "interfaces"
    )]
    words: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
    /// Interface to measure, NAME or NAMESPACE:NAME; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF", add = crate::completion::interfaces())]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Time to measure interfaces [default: 10s, or until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "interfaces")]
    duration: Option<Duration>,
    /// End after this many packets
    #[arg(short = 'c', long = "count", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Count by the values of these fields too: src, dst, sport, dport, smac, dmac, protocol, ethertype, vlan, ttl,
    /// dscp, flags, window, length, icmptype, icmpcode, family, ecn, mpls, linktype, interface, direction, hook,
    /// verdict, reason, queue, process, container, second, minute
    #[arg(long, value_name = "FIELD,…", value_delimiter = ',', add = crate::completion::of_list(&Field::names()))]
    by: Vec<Field>,
    /// Talkers, flows and groups to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const LIVE_DURATION: Duration = Duration::from_secs(10);

pub fn run(args: StatArgs) -> Result<ExitCode> {
    args.libpcap.choose();
    let mut statistics = Statistics::new(args.by.clone());
    let (reports, whole) = if args.interfaces.is_empty() {
        files(&args, &mut statistics)?
    } else {
        measure(&args, &mut statistics)?;
        (Vec::new(), true)
    };
    let report = statistics.report(reports, args.top);
    json::print_as(args.json, &report, || report.text(time))?;
    Ok(exit_code(whole))
}

/// An open file, and the facts known about it.
struct Opened {
    figures: FileFigures,
    facts: FileFacts,
    /// Hashed later, unless it is a pipe.
    file: Option<File>,
}

/// Reads the files in the order of their packets' times; returns false if one could not be read to its end.
fn files(args: &StatArgs, statistics: &mut Statistics) -> Result<(Vec<FileReport>, bool)> {
    if args.netns.is_some() {
        return Err(
            Error::usage("cannot use --netns", "files are in no network namespace").fix("name an interface: -i IF")
        );
    }
    let (files, words) = split_files(&args.words);
    let expression = words.join(" ");
    let filter = (!expression.is_empty()).then_some(Filter::Expression(expression));
    let mut inputs = Vec::new();
    let mut opened = Vec::new();
    for name in files {
        let input = Input::open(Path::new(name), None, None, json::show_notice)?;
        opened.push(open(name, &input)?);
        inputs.push(input);
    }
    let mut filter = file_filter(filter.as_ref(), inputs.first())?;
    // All files are open: untrusted bytes are parsed with no more rights than that needs.
    privilege::keep_none()?;
    privilege::forbid_all_but_files();
    let mut sources = Merge::new(inputs);
    while args.count.is_none_or(|count| statistics.packets() < count) {
        let step = sources.step();
        let index = sources.index();
        let (Some(input), Some(of_file)) = (sources.source(), opened.get_mut(index)) else {
            break;
        };
        match step {
            Ok(Some(Step::Packet)) => of_file.packet(input, &mut filter, statistics)?,
            Ok(Some(Step::Block { kind })) => {
                let reader = &input.reader;
                let first = reader.first_interface();
                let figures = &mut of_file.figures;
                figures.block(kind, reader.raw(), reader.byte_order(), first);
            }
            Ok(None) => break,
            Err(error) if error.would_block() => {}
            Err(error) => {
                input.report_unreadable(&error);
                of_file.facts.error = Some(error.to_string());
            }
        }
    }
    let whole = opened.iter().all(|file| file.facts.error.is_none());
    let mut reports = Vec::new();
    sources.sources().for_each(Input::report_flawed_times);
    let inputs = sources.into_sources();
    for (file, input) in opened.into_iter().zip(inputs) {
        reports.push(file.report(input.reader.interfaces())?);
    }
    Ok((reports, whole))
}

fn open(name: &str, input: &Input) -> Result<Opened> {
    let os = |e| Error::os(format!("cannot read {name}"), e);
    // A pipe is not opened twice: that would wait for another writer.
    let metadata = (name != "-").then(|| std::fs::metadata(name)).transpose();
    let regular = metadata.map_err(os)?.filter(Metadata::is_file);
    let file = regular.as_ref().map(|_| File::open(name)).transpose();
    Ok(Opened {
        figures: FileFigures::default(),
        facts: FileFacts {
            name: input.name.clone(),
            format: input.reader.format().name(),
            compression: input.compression.name(),
            size_bytes: regular.as_ref().map(Metadata::len),
            ..FileFacts::default()
        },
        file: file.map_err(os)?,
    })
}

impl Opened {
    /// Counts a packet: its file counts all, the common statistics only those that match the filter.
    fn packet(
        &mut self,
        input: &Input,
        filter: &mut Option<FileFilter<'_>>,
        statistics: &mut Statistics,
    ) -> Result<()> {
        let (Some(packet), Some(stored), Some((timestamp_ns, interface))) =
            (PacketSource::current(input), input.reader.stored(), input.reader.time_and_interface())
        else {
            return Ok(());
        };
        self.figures.packet(&Stored {
            timestamp_ns,
            interface,
            link_type: packet.link_type,
            captured: stored.len() as u32,
            original_len: packet.original_len,
            direction: packet.direction,
        });
        if let Some(filter) = filter {
            let kind = (packet.link_type, input.reader.byte_order());
            if !filter.matches(kind, packet.captured, packet.original_len)? {
                return Ok(());
            }
        }
        statistics.add(&PacketView { captured: stored, ..packet });
        Ok(())
    }

    fn report(mut self, interfaces: &[Interface]) -> Result<FileReport> {
        if let Some(file) = &self.file {
            let hash = sha256(file);
            let hash = hash.map_err(|e| Error::os(format!("cannot read {}", self.facts.name), e));
            self.facts.sha256 = Some(hash?);
        }
        Ok(self.figures.report(self.facts, interfaces))
    }
}

/// Returns SHA-256 of the file as stored.
fn sha256(mut file: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut BufReader::with_capacity(1 << 18, &mut file), &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

struct Counting<'a>(&'a mut Statistics);

impl Viewer for Counting<'_> {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.0.add(packet);
    }

    fn idle(&mut self) -> bool {
        true
    }
}

fn measure(args: &StatArgs, statistics: &mut Statistics) -> Result<()> {
    let options = LiveOptions {
        interfaces: args.interfaces.clone(),
        netns: args.netns.as_deref().map(str::to_owned),
        duration: Some(args.duration.unwrap_or(LIVE_DURATION)),
        count: args.count,
        filter: args.words.clone(),
        processes: args.by.iter().any(|field| field.is_about_processes()),
        ..LiveOptions::default()
    };
    let account = live::run(&options, &mut Counting(statistics), crate::report_unless_on_screen)?;
    json::event(&Event::Account(account.total.clone()));
    Ok(())
}

/// Formats seconds since 1970 as date and time of day, as in lines of packets.
fn time(epoch: &str) -> String {
    let (seconds, nanoseconds) = epoch.split_once('.').unwrap_or((epoch, "0"));
    let ns = seconds.parse::<u64>().ok().zip(nanoseconds.parse::<u64>().ok());
    let Some((seconds, nanoseconds)) = ns else {
        return epoch.to_owned();
    };
    terminal::date_and_time(seconds * 1_000_000_000 + nanoseconds)
}
