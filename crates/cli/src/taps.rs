//! `trawl taps`: the table of taps, and whether this machine has them.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use trawl_sys::Result;
use trawl_tap::table::{self, Facts, Missing};

use crate::json;
use crate::terminal::{folded, write_out};

/// Shows all taps: what each sees, gives and needs, and whether this machine has it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The table alone, as Markdown: what README.md holds
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
    /// Whether nothing is missing. That the interface has what the tap needs is not asked here.
    available: bool,
    missing: Vec<Missing>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    if args.markdown {
        return write_out(&table::markdown()).map(|()| ExitCode::SUCCESS);
    }
    let with_machine = |facts: &&'static Facts| {
        let missing = facts.missing();
        Tap {
            facts,
            available: missing.is_empty(),
            missing,
        }
    };
    let taps: Vec<Tap> = table::ALL.iter().map(with_machine).collect();
    match args.json {
        true => json::print(&Taps { taps }),
        false => write_out(&folded(&for_people(&taps))),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn for_people(taps: &[Tap]) -> String {
    let mut text = String::new();
    for tap in taps {
        let state = match (
            &tap.missing[..],
            tap.missing.iter().any(|lack| lack.refused),
        ) {
            ([], _) => "available",
            (_, true) => "refused here",
            (_, false) => "not on this machine",
        };
        let given = tap.facts.gives.named().into_iter();
        let given: Vec<String> = given
            .filter(|(_, has)| *has)
            .map(|(name, _)| name.replace('_', " "))
            .collect();
        let _ = writeln!(text, "{:<7} {state}", tap.facts.name);
        let _ = writeln!(text, "        sees:  {}", tap.facts.sees);
        let _ = writeln!(text, "        gives: {}", given.join(", "));
        let _ = writeln!(text, "        needs: {}", tap.facts.needs);
        for Missing { feature, why, .. } in &tap.missing {
            let _ = writeln!(text, "        lacks: {feature}: {why}");
        }
    }
    text
}
