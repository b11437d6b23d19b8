//! Entries of Wireshark's list for stored packets: the packets of an incident, and the answer of a query.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use trawl_sys::process::companion;
use trawl_sys::{Error, Result};

use crate::helpers::FLEET;

/// The entries, whose names are longer than an interface's name can be.
const INCIDENT: &str = "packets-of-an-incident";
const QUERY: &str = "packets-of-a-store";

/// The query for all packets of the chosen time and host.
const ALL: &str = "SELECT * FROM packets";

/// The options of these entries.
#[derive(Debug, clap::Args)]
pub(super) struct StoredArgs {
    /// The store
    #[arg(long, value_name = "URL", default_value = "")]
    store: String,
    /// Only packets of this incident
    #[arg(long, value_name = "NAME", default_value = "")]
    incident: String,
    /// The query that selects packets
    #[arg(long, value_name = "SQL", default_value = "")]
    sql: String,
    /// Only packets from this time on
    #[arg(long, value_name = "TIME", default_value = "", allow_hyphen_values = true)]
    from: String,
    /// Only packets before this time
    #[arg(long, value_name = "TIME", default_value = "", allow_hyphen_values = true)]
    to: String,
    /// Only packets of this host
    #[arg(long, value_name = "HOST", default_value = "")]
    host: String,
}

/// Returns the names and texts of the entries that work on this host.
pub(super) fn entries() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_installed = matches!(companion(FLEET.program), Ok(Some(_)));
    let entries = [
        (INCIDENT, "packets of an incident, from all hosts, chosen in its options"),
        (QUERY, "packets that a query finds in a store, chosen in its options"),
    ];
    entries.into_iter().filter(move |_| is_installed)
}

pub(super) fn is_entry(name: &str) -> bool {
    config(name).is_some()
}

/// Returns the dialog of an entry's options; `None` for other entries.
pub(super) fn config(name: &str) -> Option<&'static str> {
    match name {
        INCIDENT => Some(include_str!("incident.txt")),
        QUERY => Some(include_str!("query.txt")),
        _ => None,
    }
}

/// Replaces this process by the one that fetches the packets. The packets go to the pipe, and errors to standard error,
/// which Wireshark shows.
pub(super) fn run(entry: &str, pipe: File, args: &super::Args) -> Result<ExitCode> {
    let chosen = &args.stored;
    let filter = args.extcap_capture_filter.as_deref().unwrap_or_default();
    let only = [
        ("--store", &*chosen.store),
        ("--incident", &*chosen.incident),
        ("--from", &*chosen.from),
        ("--to", &*chosen.to),
        ("--host", &*chosen.host),
        ("--filter", filter),
    ];
    if entry == INCIDENT && chosen.incident.is_empty() {
        return Err(Error::usage("no incident is chosen", "the field \"Incident\" in the entry's options is empty"));
    }
    let mut command = FLEET.command()?;
    command.args(["store", "query", "--packets", "-", "--format", "pcapng"]).stdout(pipe);
    // One word for each option: a value may begin with a hyphen.
    command.args(only.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}={value}")));
    let is_asked = !(filter.is_empty() && chosen.incident.is_empty());
    match &*chosen.sql {
        "" if is_asked => {}
        "" => _ = command.arg(ALL),
        sql => _ = command.arg("--").arg(sql),
    }
    let error = command.exec();
    Err(Error::os(format!("cannot run {}", FLEET.program), error))
}
