//! `trawl xdp status`: which programs are on which interfaces.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;
use trawl_kernel::Result;
use trawl_kernel::netns::Namespace;
use trawl_program::Site;
use trawl_program::status::{self, Status};

use crate::doctor::write_out;

/// Shows the XDP programs on interfaces
#[derive(Debug, clap::Args)]
pub struct Args {
    /// This interface, NAME or NAMESPACE:NAME; may be given several times [default: all that have a program]
    #[arg(short, long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    /// All interfaces of this network namespace; may be given several times
    #[arg(long, value_name = "NAME")]
    netns: Vec<String>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut all = Vec::new();
    for text in &args.interfaces {
        let site = Site::find(text, args.netns.first().map(String::as_str))?;
        all.push(status::of(&site)?);
    }
    if args.interfaces.is_empty() {
        let mut namespaces = Vec::new();
        for name in &args.netns {
            namespaces.push(Some(Namespace::open(name)?));
        }
        if namespaces.is_empty() {
            namespaces.push(None);
        }
        for namespace in &namespaces {
            for site in Site::all_in(namespace.as_ref())? {
                all.push(status::of(&site)?);
            }
        }
        all.retain(|one| !one.programs.is_empty());
    }
    let text = match args.json {
        true => format!("{:#}\n", json!({ "interfaces": all })),
        false => for_people(&all),
    };
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn for_people(all: &[Status]) -> String {
    if all.is_empty() {
        return "no XDP programs\n".to_owned();
    }
    let mut text = String::new();
    for one in all {
        if one.programs.is_empty() {
            let _ = writeln!(text, "{}  no XDP program", one.interface);
        }
        for program in &one.programs {
            let owner = match &program.source {
                Some(source) => format!("trawl, from {source}"),
                None => "not trawl's".to_owned(),
            };
            let way = match program.link {
                Some(link) => format!("link {link}"),
                None => "netlink".to_owned(),
            };
            let _ = writeln!(
                text,
                "{}  {}  id {}  {}  tag {}  by {way}  ({owner})",
                one.interface, program.mode, program.id, program.name, program.tag
            );
        }
    }
    text
}
