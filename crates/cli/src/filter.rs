//! `trawl filter`: what an expression becomes, what the verifier says of it, and what it finds in a file.

mod check;
pub mod read;

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, ValueEnum};
use serde::Serialize;
use trawl_bpf::probe::{Answer, Feature};
use trawl_filter::lower::{Lowered, Target};
use trawl_filter::{Classic, LinkType, Options};
use trawl_sys::{Error, Result};
use trawl_tap::filter::Filter;

use crate::args::{LibpcapArg, VerifierLog, filter_in_file};
use crate::terminal;
use crate::terminal::write_out;

/// Shows what a filter compiles to, whether the kernel accepts it, and which packets of a file match
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which packets, as tcpdump takes it: 'tcp port 80 and host 10.0.0.1'
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
    /// Hooks to make eBPF instructions for
    #[arg(
        long,
        value_enum,
        value_name = "HOOK,…",
        value_delimiter = ',',
        default_value = "xdp"
    )]
    hook: Vec<HookName>,
    /// Link type of packets; for a file, that of the file
    #[arg(long, value_enum, default_value_t = Link::Ethernet)]
    link: Link,
    /// Value that a match returns; 0 for the default
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = MOST,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST)))]
    snaplen: u32,
    /// The network's mask, which says what `ip broadcast` means
    #[arg(long, value_name = "ADDRESS")]
    netmask: Option<Ipv4Addr>,
    /// Leave out libpcap's optimiser
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
    /// Show which packets of this capture file match, by their numbers as Wireshark counts them
    #[arg(short = 'r', long, value_name = "FILE")]
    read: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// tcpdump's default, and the most it takes.
const MOST: u32 = 262_144;

#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum HookName {
    Xdp,
    Tc,
}

impl HookName {
    /// As the taps at this hook have it.
    fn target(self) -> Target {
        let target = match self {
            Self::Xdp => Target::xdp(),
            Self::Tc => Target::tc(),
        };
        // A user who may not load programs may not try either; most kernels have these jumps.
        let gotol = !matches!(Feature::FarJumps.probe(), Answer::NotSupported { .. });
        Target { gotol, ..target }
    }

    fn word(self) -> &'static str {
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

impl Args {
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

    fn options(&self) -> Options {
        Options {
            link: match self.link {
                Link::Ethernet => LinkType::ETHERNET,
                Link::Raw => LinkType::RAW_IP,
            },
            snaplen: if self.snaplen == 0 {
                MOST
            } else {
                self.snaplen
            },
            netmask: self.netmask,
            optimise: !self.unoptimised,
            file: None,
        }
    }
}

/// All that can be said of a filter; what was not asked for is not there.
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
    read: Option<read::Matches>,
}

#[derive(Debug, Serialize)]
struct ClassicReport {
    instructions: usize,
    listing: Vec<String>,
    /// As `--cbpf` takes it; nothing where lists are looked up in tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
}

/// A filter at one hook.
#[derive(Debug, Serialize)]
struct BlockReport {
    hook: HookName,
    instructions: usize,
    /// Those that a packet meets which is all in one piece.
    fast: usize,
    bounds_checks: usize,
    listing: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<check::Acceptance>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    args.libpcap.choose();
    let (filter, options) = (args.filter()?, args.options());
    args.verifier_log.begin()?;
    if args.dump > 0 {
        write_out(&dump(&filter.classic(&options)?, args.dump)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report {
        filter: filter.text(),
        inner: args.inner,
        classic: None,
        ebpf: Vec::new(),
        read: None,
    };
    // A file's packets are asked for, not instructions, unless those are to be checked as well.
    if args.read.is_none() || args.check {
        let classic = filter.classic(&options)?;
        for hook in &args.hook {
            report
                .ebpf
                .push(block(&filter, &options, *hook, args.check)?);
        }
        report.classic = Some(ClassicReport {
            instructions: classic.instructions().len(),
            listing: lines(&classic.to_string()),
            program: (!classic.has_tables()).then(|| classic.to_ddd()),
        });
    }
    if let Some(path) = &args.read {
        report.read = Some(read::matches(path, &filter, &options)?);
    }
    let text = if args.json {
        let json = serde_json::to_string(&report)
            .map_err(|e| Error::failed("cannot put the filter into JSON", e))?;
        json + "\n"
    } else {
        for_people(&report)
    };
    write_out(&text)?;
    Ok(verdict(&report))
}

/// Failure if the verifier did not accept or a file was not read to its end.
fn verdict(report: &Report) -> ExitCode {
    let unread = report.read.as_ref().and_then(|read| read.error.as_ref());
    if let Some(error) = unread {
        terminal::say(error);
    }
    let refused = report
        .ebpf
        .iter()
        .filter_map(|block| block.check.as_ref())
        .any(|check| check.accepted != Some(true));
    if refused || unread.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn block(
    filter: &Filter,
    options: &Options,
    hook: HookName,
    wants_check: bool,
) -> Result<BlockReport> {
    let target = hook.target();
    let lowered = filter.lower(options, &target)?;
    let Lowered { insns, stats, .. } = &lowered;
    let check = wants_check
        .then(|| check::check(&lowered, &target))
        .transpose()?;
    Ok(BlockReport {
        hook,
        instructions: stats.ebpf,
        fast: stats.fast,
        bounds_checks: stats.checks,
        listing: lines(&trawl_ebpf::disassemble(insns)),
        check,
    })
}

/// The classic program in one of tcpdump's three forms.
/// As tcpdump shows it: for people, as C, or as numbers.
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
        2 => classic
            .instructions()
            .iter()
            .fold(String::new(), |mut text, i| {
                let _ = writeln!(
                    text,
                    "{{ {:#x}, {}, {}, 0x{:08x} }},",
                    i.code, i.jt, i.jf, i.k
                );
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
            if report.inner {
                ", for Ethernet frames inside"
            } else {
                ""
            },
            count(classic.instructions, "instruction")
        );
        write_lines(&mut text, &classic.listing);
    }
    for block in &report.ebpf {
        let _ = writeln!(
            text,
            "\neBPF at {}: {}, {} of them for packets in one piece, {}",
            block.hook.word(),
            count(block.instructions, "instruction"),
            block.fast,
            count(block.bounds_checks, "bounds check"),
        );
        write_lines(&mut text, &block.listing);
    }
    for block in &report.ebpf {
        if let Some(check) = &block.check {
            let _ = writeln!(text, "\n{}: {}", block.hook.word(), check.words());
        }
    }
    if let Some(read) = &report.read {
        if report.classic.is_some() {
            text.push('\n');
        }
        write_lines(&mut text, &read.matched);
        let _ = writeln!(
            text,
            "{} of {} match",
            read.count,
            count(read.packets, "packet")
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert_eq!(count(0, "packet"), "0 packets");
        assert_eq!(count(1, "packet"), "1 packet");
        assert_eq!(count(2, "packet"), "2 packets");
    }
}
