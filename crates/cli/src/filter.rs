//! `trawl filter`: the compiled form of an expression, the verifier's answer, and its matches in a file.

use std::fmt::Write as _;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgAction, ValueEnum};
use serde::Serialize;
use trawl_capture::filter::Compile;
use trawl_capture::filter::check::{Acceptance, check, has_far_jumps};
use trawl_filter::lower::Lowered;
use trawl_filter::{Classic, CompilerOptions, LinkType, Target};
use trawl_packet::pcapng::block::LINKTYPE_ETHERNET;
use trawl_packet::read::{CaptureReader, ReadError, Step};
use trawl_plan::filter::Filter;
use trawl_source::FileFilter;
use trawl_sys::{Error, Result};

use crate::args::{LibpcapArg, VerifierLog, filter_in_file};
use crate::terminal;
use crate::terminal::write_out;

/// Shows the programs of a filter, and the packets that match
///
/// Prints the classic BPF program and the eBPF program; with --check, also the kernel's verdict on the latter.
#[derive(Debug, clap::Args)]
pub struct FilterArgs {
    /// Filter in tcpdump's syntax: 'tcp port 80 and host 10.0.0.1'
    #[arg(value_name = "EXPRESSION", required_unless_present_any = ["cbpf", "filter_file"])]
    expression: Vec<String>,
    #[command(flatten)]
    libpcap: LibpcapArg,
    /// Read the expression from a file, as tcpdump's -F; `#` begins a comment
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with_all = ["expression", "cbpf"])]
    filter_file: Option<PathBuf>,
    /// A classic program, as `tcpdump -ddd` prints it, instead of an expression
    #[arg(long, value_name = "PROGRAM", conflicts_with = "expression")]
    cbpf: Option<String>,
    /// Apply the expression to the packet inside VXLAN, GENEVE, GRE or IP-in-IP
    #[arg(long, conflicts_with_all = ["cbpf", "dump"])]
    inner: bool,
    /// Hooks for which eBPF instructions are generated
    #[arg(long, value_enum, value_name = "HOOK,…", value_delimiter = ',', default_value = "xdp")]
    hook: Vec<HookName>,
    /// Link type of packets; a file uses its own
    #[arg(long, value_enum, default_value_t = Link::Ethernet)]
    link: Link,
    /// Value that a match returns; 0 for the default
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = MAX_SNAPLEN,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(MAX_SNAPLEN)))]
    snaplen: u32,
    /// The network's mask, which defines `ip broadcast`
    #[arg(long, value_name = "ADDRESS")]
    netmask: Option<Ipv4Addr>,
    /// Disable libpcap's optimiser
    #[arg(short = 'O', long = "no-optimise", visible_alias = "no-optimize")]
    unoptimised: bool,
    /// Show the classic program only, as tcpdump does; -dd as C, -ddd as numbers
    #[arg(short = 'd', action = ArgAction::Count, conflicts_with_all = ["check", "read", "json"])]
    dump: u8,
    /// Check the program with the kernel's verifier
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    verifier_log: VerifierLog,
    /// List the packets of this capture file that match, by their numbers in Wireshark
    #[arg(short = 'r', long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// tcpdump's default, and its maximum.
const MAX_SNAPLEN: u32 = 262_144;

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum HookName {
    Xdp,
    Tc,
}

impl HookName {
    /// Returns the target of the taps at this hook.
    fn target(self) -> Target {
        let target = match self {
            Self::Xdp => Target::xdp(),
            Self::Tc => Target::tc(),
        };
        Target { gotol: has_far_jumps(), ..target }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::Tc => "tc",
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Link {
    Ethernet,
    Raw,
}

impl FilterArgs {
    fn filter(&self) -> Result<Filter> {
        let expression = match &self.filter_file {
            Some(path) => filter_in_file(path)?,
            None => self.expression.join(" "),
        };
        Ok(match &self.cbpf {
            Some(program) => Filter::Classic(program.clone()),
            None if self.inner => Filter::Inner(expression),
            None => Filter::Expression(expression),
        })
    }

    fn options(&self) -> CompilerOptions {
        CompilerOptions {
            link: match self.link {
                Link::Ethernet => LinkType::ETHERNET,
                Link::Raw => LinkType::RAW_IP,
            },
            snaplen: if self.snaplen == 0 { MAX_SNAPLEN } else { self.snaplen },
            netmask: self.netmask,
            optimise: !self.unoptimised,
            file: None,
        }
    }
}

/// All facts about a filter; parts that were not requested are absent.
#[derive(Debug, Serialize)]
struct Report {
    filter: String,
    #[serde(skip)]
    inner: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    classic: Option<ClassicReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ebpf: Vec<BlockReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<Matches>,
}

#[derive(Debug, Serialize)]
struct ClassicReport {
    instructions: usize,
    listing: Vec<String>,
    /// In the form that `--cbpf` accepts; absent if lists are looked up in tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
}

/// A filter at one hook.
#[derive(Debug, Serialize)]
struct BlockReport {
    hook: HookName,
    instructions: usize,
    /// Instructions on the path of a packet in one piece.
    fast: usize,
    bounds_checks: usize,
    listing: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Acceptance>,
}

pub fn run(args: FilterArgs) -> Result<ExitCode> {
    args.libpcap.choose();
    let (filter, options) = (args.filter()?, args.options());
    args.verifier_log.begin()?;
    if args.dump > 0 {
        write_out(&dump(&filter.classic(&options)?, args.dump)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report { filter: filter.text(), inner: args.inner, classic: None, ebpf: Vec::new(), read: None };
    // With a file, the result is its packets. The instructions are left out, unless the verifier is to check them as
    // well.
    if args.read.is_none() || args.check {
        let classic = filter.classic(&options)?;
        for hook in &args.hook {
            report.ebpf.push(block(&filter, &options, *hook, args.check)?);
        }
        report.classic = Some(ClassicReport {
            instructions: classic.instructions().len(),
            listing: lines(&classic.to_string()),
            program: (!classic.has_tables()).then(|| classic.to_ddd()),
        });
    }
    if let Some(path) = &args.read {
        report.read = Some(matches(path, &filter, &options)?);
    }
    let text = if args.json {
        let json = serde_json::to_string(&report).map_err(|e| Error::failed("cannot encode the filter as JSON", e))?;
        json + "\n"
    } else {
        for_people(&report)
    };
    write_out(&text)?;
    Ok(verdict(&report))
}

/// Returns failure if the verifier refused or a file was not read to its end.
fn verdict(report: &Report) -> ExitCode {
    let unread = report.read.as_ref().and_then(|read| read.error.as_ref());
    if let Some(error) = unread {
        terminal::say(error);
    }
    let refused = report.ebpf.iter().filter_map(|block| block.check.as_ref()).any(|check| check.accepted != Some(true));
    if refused || unread.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn block(filter: &Filter, options: &CompilerOptions, hook: HookName, wants_check: bool) -> Result<BlockReport> {
    let target = hook.target();
    let lowered = filter.lower(options, &target)?;
    let Lowered { insns, stats, .. } = &lowered;
    let check = wants_check.then(|| check(&lowered, &target)).transpose()?;
    Ok(BlockReport {
        hook,
        instructions: stats.ebpf,
        fast: stats.fast,
        bounds_checks: stats.checks,
        listing: lines(&trawl_ebpf::disassemble(insns)),
        check,
    })
}

/// Formats the classic program in one of tcpdump's three forms: for people, as C, or as numbers.
pub(crate) fn dump(classic: &Classic, form: u8) -> Result<String> {
    if classic.has_tables() {
        return Err(Error::usage(
            "cannot show this filter as a classic program",
            "its lists of 256 and more members are looked up in tables, which classic programs do not have",
        )
        .fix("leave out -d"));
    }
    Ok(match form {
        1 => classic.to_string(),
        2 => classic.instructions().iter().fold(String::new(), |mut text, i| {
            let _ = writeln!(text, "{{ {:#x}, {}, {}, 0x{:08x} }},", i.code, i.jt, i.jf, i.k);
            text
        }),
        _ => classic.to_ddd().replace(',', "\n") + "\n",
    })
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn for_people(report: &Report) -> String {
    let mut text = String::new();
    if let Some(classic) = &report.classic {
        let _ = writeln!(
            text,
            "classic BPF{}: {}",
            if report.inner { ", for Ethernet frames inside" } else { "" },
            count(classic.instructions, "instruction")
        );
        write_lines(&mut text, &classic.listing);
    }
    for block in &report.ebpf {
        let _ = writeln!(
            text,
            "\neBPF at {}: {}, {} of them for packets in one piece, {}",
            block.hook.name(),
            count(block.instructions, "instruction"),
            block.fast,
            count(block.bounds_checks, "bounds check"),
        );
        write_lines(&mut text, &block.listing);
    }
    for block in &report.ebpf {
        if let Some(check) = &block.check {
            let _ = writeln!(text, "\n{}: {}", block.hook.name(), check.sentence());
        }
    }
    if let Some(read) = &report.read {
        if report.classic.is_some() {
            text.push('\n');
        }
        write_lines(&mut text, &read.matched);
        let _ = writeln!(text, "{} of {} match", read.count, count(read.packets, "packet"));
    }
    text
}

fn write_lines<T: std::fmt::Display>(text: &mut String, lines: &[T]) {
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
}

fn count(number: usize, of: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {of}{plural}")
}

// Packets of a capture file that match a filter.

/// The matches in a file.
#[derive(Debug, Serialize)]
pub struct Matches {
    pub file: String,
    /// Number of packets in the file.
    pub packets: usize,
    pub count: usize,
    /// Numbers of the matching packets, from 1 on.
    pub matched: Vec<u64>,
    /// Error that stopped reading before the end of the file.
    pub error: Option<String>,
}

/// Tests each packet as far as it was captured, with its true length, as tcpdump does.
pub fn matches(path: &Path, filter: &Filter, options: &CompilerOptions) -> Result<Matches> {
    let name = path.display().to_string();
    let source = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
    let file = File::open(source).map_err(|e| Error::os(format!("cannot read {name}"), e))?;
    let unreadable = |e: ReadError| Error::failed(format!("cannot read {name}"), e);
    let mut reader = CaptureReader::new(file).map_err(unreadable)?;
    let mut filter = FileFilter::new(filter, *options);
    let (mut packets, mut matched, mut error) = (0usize, Vec::new(), None);
    let mut numbers = 0u64;
    loop {
        match reader.step() {
            Ok(Some(Step::Packet)) => {}
            Ok(Some(Step::Block { kind })) => {
                numbers += u64::from(WITH_NUMBERS.contains(&kind));
                continue;
            }
            Ok(None) => break,
            Err(e) => {
                error = Some(unreadable(e).to_string());
                break;
            }
        }
        let Some(packet) = reader.current() else {
            continue;
        };
        packets += 1;
        numbers += 1;
        let kind = (packet.link_type, packet.byte_order);
        if filter.matches(kind, packet.captured, packet.original_len)? {
            matched.push(numbers);
        }
    }
    // An invalid filter is reported even for a file without packets.
    if packets == 0 {
        let first = reader.interfaces().first();
        let link_type = first.map_or(LINKTYPE_ETHERNET, |interface| interface.link_type);
        filter.check((link_type, reader.byte_order()))?;
    }
    Ok(Matches { file: name, packets, count: matched.len(), matched, error })
}

/// Blocks without a packet that Wireshark numbers like packets: journal entries and custom blocks.
const WITH_NUMBERS: [u32; 3] = [0x9, 0xbad, 0x4000_0bad];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert_eq!(count(0, "packet"), "0 packets");
        assert_eq!(count(1, "packet"), "1 packet");
        assert_eq!(count(2, "packet"), "2 packets");
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    fn asked(name: &str, file: &[u8], expression: &str) -> Matches {
        trawl_capture::filter::compile_filters();
        let path = std::env::temp_dir().join(format!("trawl-{}-{name}", std::process::id()));
        std::fs::write(&path, file).expect("the temporary directory can be written");
        let filter = Filter::Expression(expression.to_owned());
        let found = matches(&path, &filter, &CompilerOptions::default());
        std::fs::remove_file(&path).expect("it was there");
        found.expect("the file is sound")
    }

    fn frame() -> Vec<u8> {
        [&[0; 12][..], &[8, 0, 0x45], &[0; 45]].concat()
    }

    /// tshark numbers these two packets 2 and 5.
    #[test]
    fn custom_and_journal_blocks_are_numbered() {
        let words = |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let packet = block(6, &[words(&[0, 0, 0, 60, 60]), frame()].concat());
        let file = [
            block(0x0a0d_0d0a, &words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX])),
            block(1, &words(&[1, 0])),
            block(0xbad, &words(&[32473, 0])),
            packet.clone(),
            block(9, b"MESSAGE=hello\n\0\0"),
            block(0x4000_0bad, &words(&[32473, 0])),
            packet,
        ];
        let found = asked("numbers.pcapng", &file.concat(), "ip");
        assert_eq!((found.packets, found.matched), (2, vec![2, 5]));
    }

    /// tcpdump finds no ninth byte of the IP header here.
    #[test]
    fn records_are_cut_to_the_files_snaplen() {
        let words = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 20, 1, 1, 0, 60, 60];
        let header: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let file = [header, frame()].concat();
        assert_eq!(asked("cut.pcap", &file, "ip[8] = 0").count, 0);
        assert_eq!(asked("whole.pcap", &file, "ip").count, 1);
    }
}
