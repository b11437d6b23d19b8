//! `trawl doctor`: abilities of this machine, their limits, and the fixes.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use trawl_capture::doctor::{self, CheckState, Finding, versions};
use trawl_capture::taps;
use trawl_capture::taps::facts::{Facts, Missing};
use trawl_sys::Result;
use trawl_sys::netns::{self, Namespace};
use trawl_sys::words::word;

use crate::args::NetnsArg;
use crate::helpers;
use crate::terminal::{colours_wanted, folded, printable, wrapped, write_control, write_out};
use crate::{clean, exit_code, json};

/// Checks whether this machine can capture, and prints fixes
///
/// With --clean it removes the leftovers of killed commands and vanished interfaces instead: unused pins, settings,
/// rules and labs. Objects in use stay.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Check this interface too (IF, or NAMESPACE:IF); may be given several times
    #[arg(short, value_name = "IF", add = crate::completion::interfaces())]
    interface: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
    /// Remove the leftovers of killed commands and vanished interfaces
    #[arg(long, conflicts_with_all = ["interface", "netns"])]
    clean: bool,
    /// Remove labs that are in use too
    #[arg(long, requires = "clean")]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct DoctorDocument<'a> {
    findings: &'a [Finding],
    problem: bool,
}

/// Returns a remedy for any interface, which is IF in it, as one for this interface.
fn with_interface(fix: &str, interface: &str) -> String {
    fix.replace(" IF ", &format!(" {} ", word(interface)))
}

pub fn run(args: Args) -> Result<ExitCode> {
    if args.clean {
        return clean::run(args.all, args.json);
    }
    let mut findings = Vec::new();
    // Look-ups that can fail come first: a wrong name is reported at once, and alone.
    for text in &args.interface {
        let (namespace, name) = netns::split_namespace(text, args.netns.as_deref());
        let namespace = namespace.map(Namespace::open).transpose()?;
        findings.extend(doctor::interface(namespace.as_ref(), name)?);
    }
    if args.interface.is_empty() {
        args.netns.open()?;
    }
    let helpers = helpers::ALL.iter().map(|helper| helper.finding());
    findings.splice(0..0, doctor::machine().into_iter().chain(helpers));
    let problem = doctor::has_problem(&findings);
    if let [interface] = &args.interface[..] {
        for fix in findings.iter_mut().filter_map(|one| one.fix.as_mut()) {
            *fix = with_interface(fix, interface);
        }
    }
    if args.json {
        json::print(&DoctorDocument { findings: &findings, problem })?;
    } else {
        write_control(&folded(&for_people(&findings, colours_wanted())))?;
    }
    Ok(exit_code(!problem))
}

fn for_people(findings: &[Finding], colours: bool) -> String {
    let width = findings.iter().map(|finding| finding.subject.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut area = "";
    for finding in findings {
        if finding.area != area {
            let blank = if area.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{blank}{}", paint(&printable(&finding.area), "1", colours));
            area = &finding.area;
        }
        let (mark, colour) = match finding.state {
            CheckState::Ok => ("ok", "32"),
            CheckState::Info => ("- ", ""),
            CheckState::Warn => ("! ", "33"),
            CheckState::Problem => ("x ", "31"),
        };
        let mark = paint(mark, colour, colours);
        let _ = writeln!(text, "  {mark} {:width$}  {}", printable(&finding.subject), printable(&finding.text));
        for (word, more) in [("why", &finding.why), ("fix", &finding.fix)] {
            if let Some(more) = more {
                let _ = writeln!(text, "     {:width$}  {word}: {}", "", printable(more));
            }
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (problems, warnings) = (count(CheckState::Problem), count(CheckState::Warn));
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let _ = writeln!(text, "\n{problems} problem{}, {warnings} warning{}", plural(problems), plural(warnings));
    text
}

fn paint(text: &str, colour: &str, colours: bool) -> String {
    if colours && !colour.is_empty() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// Shows all taps: their packets, requirements, and availability
#[derive(Debug, clap::Args)]
pub struct TapsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the table alone, as Markdown for docs/GUIDE.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct Taps {
    taps: Vec<Tap>,
}

#[derive(Debug, Serialize)]
struct Tap {
    #[serde(flatten)]
    facts: &'static Facts,
    /// True if the machine lacks nothing that the tap requires. The interface is not checked.
    available: bool,
    missing: Vec<Missing>,
}

pub fn taps(args: &TapsArgs) -> Result<ExitCode> {
    if args.markdown {
        return write_out(&taps::markdown()).map(|()| ExitCode::SUCCESS);
    }
    let with_machine = |facts: &'static Facts| {
        let missing = facts.missing();
        Tap { facts, available: missing.is_empty(), missing }
    };
    let taps: Vec<Tap> = taps::all().map(with_machine).collect();
    let text = wrapped(&taps_for_people(&taps));
    json::print_as(args.json, &Taps { taps }, || text).map(|()| ExitCode::SUCCESS)
}

fn taps_for_people(taps: &[Tap]) -> String {
    let mut text = String::new();
    for tap in taps {
        let state = match (&tap.missing[..], tap.missing.iter().any(|lack| lack.refused)) {
            ([], _) => "available",
            (_, true) => "refused here",
            (_, false) => "not on this machine",
        };
        let given = tap.facts.gives.named().into_iter();
        let given: Vec<String> = given.filter(|(_, has)| *has).map(|(name, _)| name.replace('_', " ")).collect();
        let _ = writeln!(text, "{:<8} {state}", tap.facts.name());
        let _ = writeln!(text, "        sees:  {}", tap.facts.sees);
        let _ = writeln!(text, "        gives: {}", given.join(", "));
        let _ = writeln!(text, "        needs: {}", tap.facts.needs);
        for Missing { feature, why, .. } in &tap.missing {
            let _ = writeln!(text, "        lacks: {feature}: {why}");
        }
    }
    text
}

/// Prints the versions; `-V` prints the first line alone.
pub fn version() -> Result<ExitCode> {
    let text = format!(
        "trawl {}\n{}\n{}\n{}",
        env!("CARGO_PKG_VERSION"),
        versions::of_libpcap(),
        versions::of_dpdk_helper(),
        helpers::versions()
    );
    write_out(&text).map(|()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(state: CheckState, fix: Option<&str>) -> Finding {
        Finding {
            area: "kernel".to_owned(),
            subject: "thing".to_owned(),
            state,
            text: "words".to_owned(),
            why: None,
            fix: fix.map(str::to_owned),
        }
    }

    #[test]
    fn lines_are_aligned_and_counted() {
        let findings = [finding(CheckState::Ok, None), finding(CheckState::Problem, Some("do it"))];
        let text = for_people(&findings, false);
        assert_eq!(
            text,
            "kernel\n  ok thing  words\n  x  thing  words\n            fix: do it\n\n1 problem, 0 warnings\n"
        );
    }

    #[test]
    fn remedies_name_the_interface_that_was_asked_about() {
        let fix = with_interface("trawl xdp load IF FILE.o --tappable", "a b:eth0");
        assert_eq!(fix, "trawl xdp load 'a b:eth0' FILE.o --tappable");
    }

    #[test]
    fn colours_are_only_there_when_wanted() {
        let findings = [finding(CheckState::Warn, None)];
        assert!(!for_people(&findings, false).contains('\x1b'));
        assert!(for_people(&findings, true).contains("\x1b[33m!"));
    }
}
