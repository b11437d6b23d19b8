//! `trawl fleet log`: shows the commands that hosts have logged.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use trawl_front::{json, terminal};
use trawl_sys::{Result, clock, units};
use trawl_view::text::printable;

use super::{OPERATOR, ServerArgs};
use crate::agent::{Labels, Record, Selector};
use crate::bus;

/// Number of letters of a key that a table shows.
const KEY_SHOWN: usize = 8;

/// Shows the commands of all operators, as each host has logged them: who asked for what, and what came of it
///
/// The server keeps the log, to which hosts can only add. A host logs the starts, changes and stops of captures, incidents,
/// the first question of a session for packets that stay there, and what it refuses.
#[derive(Debug, clap::Args)]
pub struct Log {
    /// Hosts to select by their names, as for fleet start
    #[arg(value_name = "SELECTOR", default_value = "*")]
    selector: String,
    /// Only commands of this last time
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = units::duration)]
    last: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Serialize)]
struct Commands {
    commands: Vec<Record>,
}

pub fn run(args: &Log) -> Result<ExitCode> {
    let wanted = Selector::parse(&args.selector)?;
    let config = args.server.bus.config(&args.server.nats, OPERATOR)?;
    let since = SystemTime::UNIX_EPOCH + Duration::from_nanos(clock::wall()).saturating_sub(args.last);
    let found = bus::log::read(&config, since)?;
    let found = found.into_iter().filter(|(host, _)| wanted.selects(host, &Labels::new()));
    let commands = found.filter_map(|(host, text)| record(host, &text)).collect();
    let commands = Commands { commands };
    json::print_as(args.server.json, &commands, || table(&commands.commands))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a record. Its subject, which the server allows to this host only, has the host's name.
fn record(host: String, text: &[u8]) -> Option<Record> {
    let record: Record = serde_json::from_slice(text).ok()?;
    Some(Record { host, ..record })
}

fn table(records: &[Record]) -> String {
    let line = |record: &Record| {
        let time = terminal::date_and_time(record.time_ns);
        let key: String = record.order.operator.as_deref().unwrap_or("-").chars().take(KEY_SHOWN).collect();
        let result = record.refused.as_ref().map_or("followed".to_owned(), |why| format!("refused: {why}"));
        let text = format!("{time} {key:KEY_SHOWN$} {}: {}: {result}", record.host, record.command);
        printable(&text).replace('\n', " ") + "\n"
    };
    records.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_of_the_host_that_may_add_them() {
        let text =
            r#"{"host":"beta","time_ns":5,"operator":"UAO3HXW4","revision":3,"command":"start","capture":"dns"}"#;
        let read = record("alpha".to_owned(), text.as_bytes()).expect("a record");
        assert_eq!(read.host, "alpha");
        assert!(table(&[read]).ends_with("UAO3HXW4 alpha: start dns: followed\n"));
        let newer = r#"{"host":"alpha","time_ns":5,"command":"paint","colour":"red","refused":"no \u001b[31m"}"#;
        let read = record("alpha".to_owned(), newer.as_bytes()).expect("a record");
        assert!(table(&[read]).ends_with("-        alpha: unknown: refused: no \\u001b[31m\n"));
        assert!(record("alpha".to_owned(), b"{}").is_none());
    }
}
