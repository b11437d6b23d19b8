//! `trawl xdp status`: lists the XDP programs on interfaces.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use trawl_program::reload::removal;
use trawl_program::status::{self, Attached, ProgramFacts, ProgramOrigin, ProgramStatus, Runs};
use trawl_program::status::{Redirect, RedirectEntry, RedirectExit};
use trawl_sys::Result;

use crate::json;
use crate::program_args::SiteArgs;
use crate::terminal::folded;
use crate::units;

/// Shows the XDP programs on interfaces, their chains, and the targets of their redirects
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    sites: SiteArgs,
    /// Measure for this time the number and duration of each program's runs
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    measure: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct Document<'a> {
    interfaces: &'a [ProgramStatus],
}

pub fn run(args: &Args) -> Result<()> {
    let mut all = status::of(&args.sites.find()?, args.measure)?;
    if !args.sites.are_named() {
        all.retain(|one| !one.programs.is_empty() || one.reverted.is_some());
    }
    json::print_as(args.json, &Document { interfaces: &all }, || folded(&for_people(&all)))
}

fn for_people(all: &[ProgramStatus]) -> String {
    if all.is_empty() {
        return "no XDP programs\n".to_owned();
    }
    let mut text = String::new();
    for (index, one) in all.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", one.interface);
        if one.programs.is_empty() {
            text.push_str("  no XDP program\n");
        }
        for attached in &one.programs {
            add_program(&mut text, attached, &one.interface);
        }
        if let Some(reverted) = &one.reverted {
            let _ = writeln!(text, "  {reverted}");
        }
    }
    text
}

fn add_program(text: &mut String, attached: &Attached, interface: &str) {
    let _ = writeln!(text, "  {:<8}{}", attached.mode, headline(&attached.program));
    let ProgramFacts { source, helps, .. } = &attached.program;
    let whose = match (attached.kind, source, helps) {
        (ProgramOrigin::Dispatcher, ..) => "libxdp's dispatcher, which runs the programs below".to_owned(),
        (_, Some(source), _) => format!("loaded by trawl from {source}"),
        (_, _, Some(other)) => format!("put there by trawl for {other}"),
        _ => "not loaded by trawl".to_owned(),
    };
    let attachment = match (attached.link, attached.one_of_links.as_slice()) {
        (Some(link), _) => format!("attached by link {link}"),
        (None, []) => "attached by netlink".to_owned(),
        (None, links) => {
            let links: Vec<_> = links.iter().map(u32::to_string).collect();
            format!("attached by one of the links {}", links.join(", "))
        }
    };
    let _ = writeln!(text, "          {whose}; {attachment}");
    add_removal(text, &attached.program, interface);
    add_details(text, &attached.program);
    for member in &attached.chain {
        let _ = writeln!(
            text,
            "    {}. priority {}, next program runs after {}",
            member.position + 1,
            member.priority,
            if member.chain_actions.is_empty() { "nothing".to_owned() } else { member.chain_actions.join(", ") }
        );
        let _ = writeln!(text, "          {}", headline(&member.program));
        // The details of the first member are shown with the attached program.
        if member.program.id == attached.program.id {
            continue;
        }
        if let Some(source) = &member.program.source {
            let _ = writeln!(text, "          loaded by trawl from {source}");
        }
        add_removal(text, &member.program, interface);
        add_details(text, &member.program);
    }
}

fn add_removal(text: &mut String, program: &ProgramFacts, interface: &str) {
    if let Some(source) = &program.source {
        let command = removal(interface, source, program.id);
        let _ = writeln!(text, "          to remove it: {command}");
    }
}

fn headline(program: &ProgramFacts) -> String {
    format!("id {}  {}  tag {}", program.id, program.name, program.tag)
}

fn add_details(text: &mut String, program: &ProgramFacts) {
    if !program.held_by.is_empty() {
        let _ = writeln!(text, "          held by {}", program.held_by.join(", "));
    }
    for pin in &program.pins {
        let _ = writeln!(text, "          pinned at {}", pin.display());
    }
    if let Some(runs) = &program.runs {
        let _ = writeln!(text, "          {}", describe_runs(runs));
    }
    for redirect in &program.redirects {
        let _ = writeln!(text, "          {}", describe_redirect(redirect));
    }
    for lost in &program.lost {
        let _ = writeln!(text, "          {lost}; to fix: load it again with --replace");
    }
}

/// Maximum number of a map's targets that are listed.
const SHOWN: usize = 16;

fn describe_redirect(redirect: &Redirect) -> String {
    let by = match (&redirect.map, redirect.map_id) {
        (Some(map), Some(id)) => format!("{} {map} (map {id})", redirect.kind),
        _ => "bpf_redirect()".to_owned(),
    };
    let Some(targets) = &redirect.targets else {
        return format!("redirects by {by} to sockets, which the kernel does not list");
    };
    let word = |target: &RedirectEntry| {
        let to = match &target.to {
            RedirectExit::Interface { interface: Some(name), .. } => name.clone(),
            RedirectExit::Interface { index, .. } => format!("interface number {index}"),
            RedirectExit::Cpu { cpu, queue } => format!("CPU {cpu} ({queue} may wait)"),
        };
        match target.program {
            Some(id) => format!("{to}, after program {id}"),
            None => to,
        }
    };
    let mut named: Vec<String> = targets.iter().take(SHOWN).map(word).collect();
    match targets.len() {
        0 => named.push("nothing: the map is empty".to_owned()),
        count if count > SHOWN => named.push(format!("{} more", count - SHOWN)),
        _ => {}
    }
    format!("redirects by {by} to {}", named.join("; "))
}

fn describe_runs(runs: &Runs) -> String {
    let mut text = format!("{} packets", runs.count);
    if let Some(seconds) = runs.seconds {
        let _ = write!(text, " in {seconds} s ({:.0} a second)", runs.count as f64 / seconds);
    }
    if let Some(each) = runs.ns_per_packet {
        let _ = write!(text, ", {each:.1} ns each");
    }
    text
}
