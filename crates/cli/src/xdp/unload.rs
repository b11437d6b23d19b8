//! `trawl xdp unload`: programs taken off an interface.

use std::process::ExitCode;

use trawl_kernel::{Error, Result};
use trawl_program::attach::take_off;
use trawl_program::{Site, Standing};

use crate::doctor::write_out;

/// Takes XDP programs off an interface
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The interface, NAME or NAMESPACE:NAME
    #[arg(value_name = "IF")]
    interface: String,
    /// The program's number, as status shows it [default: the one that trawl loaded]
    #[arg(value_name = "ID")]
    id: Option<u32>,
    /// All programs, whoever loaded them
    #[arg(long, conflicts_with = "id")]
    all: bool,
    /// Network namespace of the interface: a name, a path or a process id
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let site = Site::find(&args.interface, args.netns.as_deref())?;
    let present = site.link()?.xdp;
    let what = format!("cannot unload from {}", site.label());
    let mut standing = Standing::all(&site)?;
    let chosen: Vec<u32> = match (args.id, standing.as_slice()) {
        (Some(id), _) => vec![id],
        (None, _) if args.all => present.iter().map(|one| one.program_id).collect(),
        (None, [only]) => vec![only.id()],
        (None, _) => Vec::new(),
    };
    let ids: Vec<_> = present
        .iter()
        .map(|one| one.program_id.to_string())
        .collect();
    if present.is_empty() {
        return Err(Error::failed(what, "no XDP program is on it"));
    }
    if chosen.is_empty() {
        return Err(
            Error::failed(what, "trawl has not loaded what is on it").mend(format!(
                "name what to take off: {}, or --all",
                ids.join(", ")
            )),
        );
    }
    let mut text = String::new();
    for id in chosen {
        let Some(found) = present.iter().find(|one| one.program_id == id) else {
            return Err(Error::failed(what, format!("program {id} is not on it"))
                .mend(format!("those that are: {}", ids.join(", "))));
        };
        match standing.iter().position(|one| one.id() == id) {
            Some(at) => standing.swap_remove(at).detach(&site)?,
            None => take_off(&site, *found)?,
        }
        text.push_str(&format!("unloaded {id} from {}\n", site.label()));
    }
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}
