//! `trawl fleet`: what is desired of many hosts, changed and looked at over NATS.

mod operator;
mod show;

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use trawl_agent::{Capture, Desired, Refusal, Selector};
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::{Error, Result};

use crate::agent::bus::BusArgs;
use crate::{json, terminal, units};
use operator::{Operator, Put};

/// Starts, stops and shows captures on many hosts, whose agents follow a NATS server
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Start(Box<Start>),
    Stop(Stop),
    Status(Status),
    Watch(Status),
    Key(Key),
}

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// The NATS server
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    nats: String,
    #[command(flatten)]
    bus: BusArgs,
    /// The public key of another operator, whose captures are kept; may be given several times
    #[arg(long = "operator", value_name = "KEY")]
    operators: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Desires a capture of the hosts; each does what its own policy allows
#[derive(Debug, clap::Args)]
struct Start {
    /// Which hosts: a pattern of names, labels, or both: 'web*', role=edge, 'web*,role!=test'. A plain name need not have an
    /// agent yet
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Which packets, as tcpdump takes it; all if there is none
    #[arg(value_name = "EXPR")]
    expression: Vec<String>,
    /// The capture's name; one of the same name is replaced
    #[arg(long, value_name = "NAME", default_value = "fleet")]
    name: String,
    /// Interfaces, as capture -i takes them
    #[arg(short = 'i', long = "interface", value_name = "IF", required = true)]
    interfaces: Vec<String>,
    /// Where the packets go: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(
        long,
        value_name = "URL",
        default_value = "file:///var/lib/trawl/store"
    )]
    store: String,
    /// Taps, as capture --tap takes them
    #[arg(long, value_name = "TAP", value_delimiter = ',')]
    tap: Vec<String>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// End after this many recorded packets
    #[arg(short = 'c', long = "count", value_name = "COUNT")]
    count: Option<u64>,
    /// End after this many recorded bytes
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    size: Option<u64>,
    /// Bytes to keep of each packet
    #[arg(short = 's', long, value_name = "SNAPLEN")]
    snaplen: Option<u32>,
    /// Memory for packets on their way
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// Index each chunk on its host as it is stored
    #[arg(long)]
    index: bool,
    #[command(flatten)]
    place: ServerArgs,
}

/// Stops a capture; without --name all of them
#[derive(Debug, clap::Args)]
struct Stop {
    /// Which hosts, as for fleet start
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Only the capture of this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    place: ServerArgs,
}

/// Shows hosts, what is desired of them, and what their captures do
#[derive(Debug, clap::Args)]
struct Status {
    /// Which hosts, as for fleet start
    #[arg(value_name = "SELECTOR", default_value = "*")]
    selector: String,
    #[command(flatten)]
    place: ServerArgs,
}

/// Shows the public key of an operator, for `operators` in the policies of agents
#[derive(Debug, clap::Args)]
struct Key {
    #[command(flatten)]
    bus: BusArgs,
}

impl ServerArgs {
    fn open(&self, wake: &Wake) -> Result<Operator> {
        Operator::open(&self.nats, &self.operators, &self.bus, wake)
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Start(args) => start(&args),
        Command::Stop(args) => stop(&args),
        Command::Status(args) => status(&args),
        Command::Watch(args) => watch(&args),
        Command::Key(args) => {
            terminal::write_out(&format!("{}\n", operator::public_key(&args.bus)?))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What became of the order for each host.
#[derive(Serialize)]
struct Changes {
    hosts: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    host: String,
    /// Of the desired state; absent where it could not be put.
    revision: Option<u64>,
    error: Option<String>,
}

fn start(args: &Start) -> Result<ExitCode> {
    let capture = Capture {
        name: args.name.clone(),
        interfaces: args.interfaces.clone(),
        store: args.store.clone(),
        filter: args.expression.join(" "),
        taps: args.tap.clone(),
        snaplen: args.snaplen,
        duration_seconds: args.duration.map(|time| time.as_secs().max(1)),
        packets: args.count,
        size_bytes: args.size,
        memory_bytes: args.memory,
        spool_bytes: None,
        index: args.index,
    };
    // What no agent could read is refused here.
    let alone = Desired {
        captures: vec![capture.clone()],
        ..Desired::default()
    };
    let text = serde_json::to_string(&alone);
    Desired::parse(&text.map_err(|e| Error::failed("cannot write JSON", e))?)?;
    change(&args.place, &args.selector, |desired| {
        desired.captures.retain(|one| one.name != capture.name);
        desired.captures.push(capture.clone());
    })
}

fn stop(args: &Stop) -> Result<ExitCode> {
    change(&args.place, &args.selector, |desired| {
        let is_meant = |one: &Capture| args.name.as_ref().is_none_or(|name| *name == one.name);
        desired.captures.retain(|one| !is_meant(one));
    })
}

fn change(place: &ServerArgs, selector: &str, change: impl Fn(&mut Desired)) -> Result<ExitCode> {
    let wake = Wake::new()?;
    let wanted = Selector::parse(selector)?;
    let mut operator = place.open(&wake)?;
    let mut hosts = operator.hosts(&wanted);
    // A host may be told what is desired of it before its agent runs for the first time.
    if hosts.is_empty() && wanted.is_name() {
        crate::agent::bus::check_name(selector)?;
        hosts.push(selector.to_owned());
    }
    if hosts.is_empty() {
        let what = format!("no host matches '{selector}'");
        return Err(
            Error::failed(what, "no agent with such a name or label has reported")
                .fix("trawl fleet status"),
        );
    }
    let mut changes = Vec::new();
    for host in hosts {
        let put = operator.change(&host, &change)?;
        changes.push(match put {
            Put::Stored(revision) => Change {
                host,
                revision: Some(revision),
                error: None,
            },
            Put::Failed(why) => Change {
                host,
                revision: None,
                error: Some(why),
            },
        });
    }
    operator.end();
    let failed = changes.iter().any(|one| one.error.is_some());
    if place.json {
        json::print(&Changes { hosts: changes })?;
    } else {
        for one in &changes {
            match (&one.error, one.revision) {
                (Some(why), _) => terminal::say(&format!("{}: {why}", one.host)),
                (None, Some(revision)) => {
                    terminal::write_out(&format!("{}: desired state {revision}\n", one.host))?;
                }
                (None, None) => {}
            }
        }
    }
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

fn status(args: &Status) -> Result<ExitCode> {
    let wake = Wake::new()?;
    let wanted = Selector::parse(&args.selector)?;
    let operator = args.place.open(&wake)?;
    let fleet = operator.fleet(&wanted);
    operator.end();
    match args.place.json {
        true => json::print(&fleet)?,
        false => terminal::write_out(&terminal::folded(&show::table(&fleet)))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Between two tables.
const SHOW_EVERY: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);

fn watch(args: &Status) -> Result<ExitCode> {
    use std::os::fd::AsFd;
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let wanted = Selector::parse(&args.selector)?;
    let mut operator = args.place.open(&wake)?;
    let mut shown = None;
    loop {
        wake.hush();
        operator.listen()?;
        let fleet = operator.fleet(&wanted);
        if shown.as_ref() != Some(&fleet) {
            let goes_on = match args.place.json {
                true => terminal::write_to_reader(&json::line(&fleet)?)?,
                false => {
                    let text = terminal::frame(SHOW_EVERY, &show::table(&fleet));
                    terminal::write_control(&text)?;
                    true
                }
            };
            if !goes_on {
                break;
            }
            shown = Some(fleet);
        }
        events::wait(&[signals.as_fd(), wake.as_fd()], LOOK)?;
        if signals.next().is_some_and(|signal| signal.ends()) {
            break;
        }
    }
    operator.end();
    Ok(ExitCode::SUCCESS)
}

/// A refusal in words.
fn refusal(refusal: &Refusal) -> String {
    let limit = |what: &str, asked: &Option<u64>, most: &u64| match asked {
        Some(asked) => format!("policy: {what} {asked}, at most {most}"),
        None => format!("policy: no {what} is named, at most {most}"),
    };
    match refusal {
        Refusal::Interface { interface } => format!("policy: interface {interface}"),
        Refusal::Tap { tap } => format!("policy: tap {tap}"),
        Refusal::Index => "policy: no index".to_owned(),
        Refusal::Filter { filter } => {
            format!("policy: the brackets of the filter '{filter}' do not match")
        }
        Refusal::Store { store } => format!("policy: store {store}"),
        Refusal::TooMany { most } => format!("policy: at most {most} captures"),
        Refusal::Duration { asked, most } => limit("duration_seconds", asked, most),
        Refusal::Size { asked, most } => limit("size_bytes", asked, most),
        Refusal::Memory { asked, most } => limit("memory_bytes", &Some(*asked), most),
        Refusal::Spool { asked, most } => limit("spool_bytes", &Some(*asked), most),
        Refusal::Snaplen { asked, most } => {
            limit("snaplen", &asked.map(u64::from), &u64::from(*most))
        }
    }
}
