//! `trawl xdp stats`: counts of the bundled programs, once or repeatedly with rates.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use serde_json::json;
use trawl_program::bundled::stats::{NamedCount, ProgramAccount, Rate};
use trawl_program::{Installed, Site};
use trawl_sys::{Error, Result};

use crate::args::{InterfaceArgs, NetnsArg, WatchArg};
use crate::json::{self, rounded_option};
use crate::program_args::find_all;
use trawl_sys::words::word;

/// Shows the counts of the bundled programs: packets and bytes by outcome
#[derive(Debug, clap::Args)]
#[command(mut_arg("interfaces", |arg| arg.help("These interfaces, NAME or NAMESPACE:NAME [default: all that have a bundled program]")))]
pub struct Args {
    #[command(flatten)]
    interfaces: InterfaceArgs,
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    options: ShowArgs,
}

/// Options for showing counts.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// Print JSON; with --watch one line each time
    #[arg(long)]
    json: bool,
    /// Show the packets of each CPU
    #[arg(long)]
    cpus: bool,
    /// Show the packets of each receive queue, which drop, pass, aborted, tx and redirect count
    #[arg(long)]
    queues: bool,
    #[command(flatten)]
    watch: WatchArg,
}

/// One interface's counts at one moment.
#[derive(Debug)]
pub struct Counted {
    pub interface: String,
    pub account: ProgramAccount,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    // A program's missing settings are reported once, not at each reading.
    let mut is_reported = false;
    args.options.show(|| {
        let say = |site: &Site, installed: &Installed| {
            for lost in installed.lost(site) {
                let interface = site.label();
                let text = format!("{interface}: {lost}");
                json::say("unknown", json!({ "interface": interface }), &text);
            }
        };
        if std::mem::replace(&mut is_reported, true) { read(args, |_, _| {}) } else { read(args, say) }
    })
}

fn read(args: &Args, on_program: impl Fn(&Site, &Installed)) -> Result<Vec<Counted>> {
    let mut found = Vec::new();
    let names = args.interfaces.names();
    let sites =
        if names.is_empty() { Site::all_in(args.netns.open()?.as_ref())? } else { find_all(&names, &args.netns)? };
    for site in &sites {
        let before = found.len();
        for installed in Installed::all(site)? {
            on_program(site, &installed);
            if let Some(account) = ProgramAccount::read(&installed)? {
                found.push(Counted { interface: site.label().to_owned(), account });
            }
        }
        if !names.is_empty() && found.len() == before {
            return Err(Error::failed(format!("cannot count on {}", site.label()), "no bundled program is on it")
                .fix(format!("trawl xdp load {} drop", word(site.label()))));
        }
    }
    Ok(found)
}

impl ShowArgs {
    /// Shows the counts that `read` returns. From the second reading on, it also shows their rates.
    pub fn show(&self, mut read: impl FnMut() -> Result<Vec<Counted>>) -> Result<ExitCode> {
        let mut before: Option<(Vec<Counted>, Instant)> = None;
        self.watch.show(self.json, || {
            let now = read()?;
            let rate = |one: &Counted| {
                let (earlier, read_at) = before.as_ref()?;
                let same = earlier.iter().find(|old| old.interface == one.interface)?;
                one.account.since(&same.account, read_at.elapsed())
            };
            let rates: Vec<Option<Rate>> = now.iter().map(rate).collect();
            let text =
                if self.json { json::line(&Document::new(&now, &rates))? } else { for_people(&now, &rates, self) };
            before = Some((now, Instant::now()));
            Ok(text)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct Document<'a> {
    interfaces: Vec<OnInterface<'a>>,
}

#[derive(Debug, Serialize)]
struct OnInterface<'a> {
    interface: &'a str,
    #[serde(flatten)]
    account: &'a ProgramAccount,
    #[serde(serialize_with = "rounded_option", skip_serializing_if = "Option::is_none")]
    packets_per_second: Option<f64>,
    #[serde(serialize_with = "rounded_option", skip_serializing_if = "Option::is_none")]
    bits_per_second: Option<f64>,
}

impl<'a> Document<'a> {
    fn new(counted: &'a [Counted], rates: &[Option<Rate>]) -> Self {
        let one = |(counted, rate): (&'a Counted, &Option<Rate>)| OnInterface {
            interface: &counted.interface,
            account: &counted.account,
            packets_per_second: rate.map(|rate| rate.packets),
            bits_per_second: rate.map(|rate| rate.bytes * 8.0),
        };
        Self { interfaces: counted.iter().zip(rates).map(one).collect() }
    }
}

fn for_people(counted: &[Counted], rates: &[Option<Rate>], args: &ShowArgs) -> String {
    if counted.is_empty() {
        return "no bundled program is loaded\n".to_owned();
    }
    let mut text = String::new();
    for (Counted { interface, account }, rate) in counted.iter().zip(rates) {
        let _ = write!(
            text,
            "{interface}  {} (id {}, {}): {} packets, {} bytes",
            account.program, account.id, account.mode, account.packets, account.bytes
        );
        if let Some(rate) = rate {
            let _ = write!(text, "; {:.0} packets/s, {:.1} Mbit/s", rate.packets, rate.bytes * 8.0 / 1e6);
        }
        text.push('\n');
        let mut line = |name: &str, packets: u64, bytes: Option<u64>| {
            let bytes = bytes.map_or(String::new(), |bytes| format!(" {bytes:>16} bytes"));
            let _ = writeln!(text, "    {name:<52} {packets:>14} packets{bytes}");
        };
        // A single outcome with a generic name is the total, which is shown already.
        let is_total = |one: &NamedCount| one.name == "any" && account.outcomes.len() == 1;
        let outcomes = account.outcomes.iter().filter(|one| !is_total(one));
        for outcome in outcomes.chain(&account.far) {
            line(outcome.text, outcome.packets, Some(outcome.bytes));
        }
        if let Some(packets) = account.not_there.filter(|count| *count > 0) {
            line("waiting for the other CPU, or lost in its full queue", packets, None);
        }
        for queue in account.queues.iter().filter(|_| args.queues) {
            let above = if queue.and_above { " and above" } else { "" };
            line(&format!("from queue {}{above}", queue.queue), queue.packets, Some(queue.bytes));
        }
        for cpu in account.cpus.iter().filter(|_| args.cpus) {
            line(&format!("on CPU {}", cpu.cpu), cpu.packets, Some(cpu.bytes));
        }
    }
    text
}
