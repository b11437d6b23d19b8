//! `trawl fleet`: changes and shows the desired state of many hosts over NATS.

mod demo;
mod draft;
mod init;
mod log;
mod operator;
mod server;
mod trigger;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use nkeys::KeyPair;
use serde::Serialize;
use trawl_front::{exit_code, json, terminal};
use trawl_plan::options::ProcessDetail;
use trawl_plan::outputs::PacketsAt;
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::{Error, Result, files::create, units};

use super::agent;
use super::bus::BusArgs;
use crate::agent::{Capture, CaptureReport, HostReport, IncidentReport, Labels, Phase, Request, Selector, State};
use crate::bus::{Config, OPERATOR, check_name};
use operator::Operator;

/// Starts, stops and shows captures on many hosts, whose agents follow a NATS server or a file
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Agent(Box<agent::Args>),
    Bus(server::Bus),
    Init(init::Init),
    Demo(demo::Demo),
    Start(Box<Start>),
    Stop(Stop),
    Trigger(Box<trigger::Trigger>),
    Status(Status),
    Watch(Status),
    Log(log::Log),
    Key(Key),
}

const NANOSECONDS: u64 = 1_000_000_000;

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// The NATS server, or several, separated by commas
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    nats: String,
    /// Copies of each state, on as many servers; applies when the first command creates the streams
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    replicas: u8,
    #[command(flatten)]
    bus: BusArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Operators whose captures a change may replace and end.
#[derive(Debug, clap::Args)]
struct ReplaceArgs {
    /// Replace and end captures of this operator, too: a public key, or the start of one; may be given several times
    #[arg(long = "replace", value_name = "OPERATOR")]
    replaced: Vec<String>,
}

/// Requests a capture from the hosts, each of which applies its own policy
///
/// Fails if a host refuses the capture or does not answer within 10 s; the hosts that accepted it keep it. A host
/// without an agent follows its desired state as soon as an agent runs.
#[derive(Debug, clap::Args)]
struct Start {
    /// Hosts to select: a pattern of names, labels, or both: 'web*', role=edge, 'web*,role!=test'. A plain name selects
    /// a host that has never reported, too
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Filter in tcpdump's syntax; all packets if there is none
    #[arg(value_name = "EXPR")]
    expression: Vec<String>,
    /// The capture's name; one of the same name is replaced, unless it is another operator's
    #[arg(long, value_name = "NAME", default_value = "fleet")]
    name: String,
    /// Interfaces, as for capture -i
    #[arg(short = 'i', long = "interface", value_name = "IF", required_unless_present = "pods")]
    interfaces: Vec<String>,
    /// Kubernetes pods, as for capture --pod; a host without such a pod waits for one
    #[arg(long = "pod", value_name = "POD")]
    pods: Vec<String>,
    /// Store for the packets: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(long, value_name = "URL", default_value = "file:///var/lib/trawl/store")]
    store: String,
    /// Taps, as for capture --tap
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
    /// Memory for packets that are not stored yet
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    memory: Option<u64>,
    /// Store a chunk at this size, compressed [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    chunk_size: Option<u64>,
    /// Store a chunk after this time [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    chunk_time: Option<Duration>,
    /// Wait until the capture runs on each host, at most this time; fail if it does not
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "30s", value_parser = units::duration)]
    wait: Option<Duration>,
    /// Index each chunk on its host as it is stored
    #[arg(long)]
    index: bool,
    /// Place of the packets: store, or host. With host, the newest stay in the spool of each host, and only their index
    /// is stored
    #[arg(long, value_name = "WHERE", value_parser = place)]
    packets_at: Option<PacketsAt>,
    /// Only packets with these verdicts of XDP programs, as capture --verdict
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    verdict: Vec<String>,
    /// Only drops for these reasons, as capture --reason, with --tap drop
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    reason: Vec<String>,
    /// Recorded packets a second from which the host reports an event to trawl fleet trigger --on-event
    #[arg(long, value_name = "COUNT")]
    event_rate: Option<u64>,
    /// Record the process of each packet, as capture --process: plain, full or comment
    #[arg(long, value_name = "DETAIL", value_parser = detail)]
    process: Option<ProcessDetail>,
    /// Only packets of processes with this name
    #[arg(long, value_name = "NAME")]
    comm: Option<String>,
    /// Only packets of processes of the user with this number
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Only packets of processes in this cgroup or container, as for capture --cgroup and --container
    #[arg(long, value_name = "CGROUP")]
    cgroup: Option<String>,
    #[command(flatten)]
    replace: ReplaceArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Stops a capture, or without --name all captures
#[derive(Debug, clap::Args)]
struct Stop {
    /// Hosts to select, as for fleet start
    #[arg(value_name = "SELECTOR")]
    selector: String,
    /// Only the capture of this name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    replace: ReplaceArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Shows hosts, their desired captures, and the state of each capture
#[derive(Debug, clap::Args)]
struct Status {
    /// Hosts to select, as for fleet start
    #[arg(value_name = "SELECTOR", default_value = "*")]
    selector: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Shows the public key of an operator, for `operators` in the policies of agents; with --new, creates a key
#[derive(Debug, clap::Args)]
struct Key {
    /// Create a private key in this file, which must not exist yet, for --nkey
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nkey", "creds"])]
    new: Option<PathBuf>,
    #[command(flatten)]
    bus: BusArgs,
}

fn place(text: &str) -> std::result::Result<PacketsAt, String> {
    serde_json::from_value(text.into()).map_err(|why| why.to_string())
}

fn detail(text: &str) -> std::result::Result<ProcessDetail, String> {
    serde_json::from_value(text.into()).map_err(|why| why.to_string())
}

impl ServerArgs {
    fn open(&self, wake: &Wake) -> Result<Operator> {
        let config = self.bus.config(&self.nats, OPERATOR)?;
        Operator::open(Config { replicas: self.replicas.into(), ..config }, wake)
    }

    /// Opens the bus for changes, which may replace the captures of these operators.
    fn open_replacing(&self, replace: &ReplaceArgs) -> Result<Operator> {
        let mut operator = self.open(&Wake::new()?)?;
        operator.replaces(&replace.replaced);
        Ok(operator)
    }
}

pub fn run(args: Args) -> Result<ExitCode> {
    match args.command {
        Command::Agent(args) => agent::run(*args),
        Command::Bus(args) => server::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Start(args) => start(&args),
        Command::Stop(args) => stop(&args),
        Command::Trigger(args) => trigger::run(&args),
        Command::Status(args) => status(&args),
        Command::Watch(args) => watch(&args),
        Command::Log(args) => log::run(&args),
        Command::Key(args) => key(&args),
    }
}

/// Shows the public key of an operator's private key, which `--new` makes.
fn key(args: &Key) -> Result<ExitCode> {
    let public = match &args.new {
        Some(path) => {
            let key = KeyPair::new_user();
            let what = format!("cannot create a private key in {}", path.display());
            let seed = key.seed().map_err(|e| Error::failed(what.clone(), e))?;
            let file = create::new_file(path, 0o600);
            let written = file.and_then(|mut file| writeln!(file, "{seed}"));
            written.map_err(|e| Error::os(what, e))?;
            key.public_key()
        }
        None => {
            let config = args.bus.config("", OPERATOR)?;
            let missing = config.nkey.is_none() && config.credentials.is_none();
            let key = config.key().map_err(|why| {
                let error = Error::failed("cannot show a public key", why);
                if missing {
                    error.fix("trawl fleet key --new operator.nk makes a key, and shows its public key")
                } else {
                    error
                }
            });
            key?.public_key()
        }
    };
    terminal::write_out(&format!("{public}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Outcome of the change for each host.
#[derive(Serialize)]
struct Changes {
    hosts: Vec<Change>,
}

#[derive(Serialize)]
struct Change {
    host: String,
    /// Revision of the desired state; absent if it could not be put.
    revision: Option<u64>,
    /// Reason why the host was not changed, or why its capture does not run.
    error: Option<String>,
    /// State of a started capture; absent without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    /// The host's part of a triggered incident; absent without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    incident: Option<IncidentReport>,
}

impl Change {
    fn new(host: String, put: operator::Changed) -> Self {
        Self { host, revision: put.as_ref().ok().copied(), error: put.err(), phase: None, incident: None }
    }
}

fn start(args: &Start) -> Result<ExitCode> {
    let capture = Capture {
        name: args.name.clone(),
        interfaces: args.interfaces.clone(),
        pods: args.pods.clone(),
        store: args.store.clone(),
        filter: args.expression.join(" "),
        taps: args.tap.clone(),
        snaplen: args.snaplen,
        duration_seconds: args.duration.map(|time| time.as_secs().max(1)),
        packets: args.count,
        size_bytes: args.size,
        memory_bytes: args.memory,
        spool_bytes: None,
        chunk_bytes: args.chunk_size,
        chunk_seconds: args.chunk_time.map(|time| time.as_secs().max(1)),
        index: args.index,
        packets_at: args.packets_at.unwrap_or_default(),
        verdicts: args.verdict.clone(),
        reasons: args.reason.clone(),
        event_rate: args.event_rate,
        process: args.process,
        comm: args.comm.clone(),
        uid: args.uid,
        cgroup: args.cgroup.clone(),
    };
    // The state is checked here, so that none is sent that agents would refuse.
    let alone = Request { requested: 0, capture: capture.clone() };
    State { captures: vec![alone], ..State::default() }.check_form()?;
    let mut operator = args.server.open_replacing(&args.replace)?;
    let hosts = selected(&mut operator, &args.selector, true)?;
    let mut changes = change(&mut operator, &hosts, &|_, draft| draft.start(&capture))?;
    operator.await_start(&mut changes, &capture.name, args.wait)?;
    report(&args.server, operator, changes)
}

fn stop(args: &Stop) -> Result<ExitCode> {
    let mut operator = args.server.open_replacing(&args.replace)?;
    let hosts = selected(&mut operator, &args.selector, false)?;
    let changes = change(&mut operator, &hosts, &|_, draft| draft.stop(args.name.as_deref()))?;
    report(&args.server, operator, changes)
}

/// Returns the selected hosts. A start waits for hosts that have not reported yet: their agents may have just started.
fn selected(operator: &mut Operator, selector: &str, is_start: bool) -> Result<Vec<String>> {
    let wanted = Selector::parse(selector)?;
    let hosts = operator.hosts(&wanted);
    if !hosts.is_empty() {
        return Ok(hosts);
    }
    // A host may get its desired state before its agent first runs.
    if wanted.is_name() {
        check_name(selector)?;
        return Ok(vec![selector.to_owned()]);
    }
    let what = format!("no host matches '{selector}'");
    let why = "no agent with such a name or label has reported";
    if is_start {
        terminal::say(&format!("{what}: {why}; waiting for agents, for 10 s at most"));
        let hosts = operator.await_hosts(&wanted)?;
        if !hosts.is_empty() {
            return Ok(hosts);
        }
    }
    Err(Error::failed(what, why).fix("trawl fleet status"))
}

/// Changes the desired states of hosts.
fn change(operator: &mut Operator, hosts: &[String], change: &operator::Alter<'_>) -> Result<Vec<Change>> {
    let changed = operator.change(hosts, change)?;
    Ok(changed.into_iter().map(|(host, put)| Change::new(host, put)).collect())
}

fn report(server: &ServerArgs, operator: Operator, changes: Vec<Change>) -> Result<ExitCode> {
    operator.end();
    let failed = changes.iter().any(|one| one.error.is_some());
    if server.json {
        json::print(&Changes { hosts: changes })?;
    } else {
        for one in &changes {
            match (&one.error, one.revision) {
                (Some(why), _) => terminal::say(&format!("{}: {why}", one.host)),
                (None, Some(revision)) => {
                    let phase = one.phase.map(|phase| format!(", {}", phase_text(phase)));
                    let phase = phase.unwrap_or_default();
                    let text = format!("{}: desired state {revision}{phase}\n", one.host);
                    terminal::write_out(&text)?;
                }
                (None, None) => {}
            }
        }
    }
    Ok(exit_code(!failed))
}

fn status(args: &Status) -> Result<ExitCode> {
    let wake = Wake::new()?;
    let wanted = Selector::parse(&args.selector)?;
    let operator = args.server.open(&wake)?;
    let fleet = operator.fleet(&wanted);
    operator.end();
    json::print_as(args.server.json, &fleet, || table(&fleet))?;
    Ok(ExitCode::SUCCESS)
}

/// Time between two tables.
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the bus is read without news.
const CHECK_EVERY: Duration = Duration::from_millis(500);

fn watch(args: &Status) -> Result<ExitCode> {
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let wanted = Selector::parse(&args.selector)?;
    let mut operator = args.server.open(&wake)?;
    let mut shown = None;
    loop {
        wake.clear();
        operator.listen()?;
        let fleet = operator.fleet(&wanted);
        let text = if args.server.json { json::line(&fleet)? } else { table(&fleet) };
        // In JSON, a change of the ages alone is not printed.
        let compared = if args.server.json { json::line(&fleet.without_ages())? } else { text.clone() };
        if shown.as_ref() != Some(&compared) {
            let goes_on = if args.server.json {
                terminal::write_to_reader(&text)?
            } else {
                terminal::write_control(&terminal::frame(SHOW_EVERY, &text))?;
                true
            };
            if !goes_on {
                break;
            }
            shown = Some(compared);
        }
        events::wait(&[signals.as_fd(), wake.as_fd()], CHECK_EVERY)?;
        if signals.next().is_some_and(|signal| signal.ends()) {
            break;
        }
    }
    operator.end();
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Serialize)]
struct Fleet {
    pub hosts: Vec<Host>,
}

impl Fleet {
    fn without_ages(mut self) -> Self {
        self.hosts.iter_mut().for_each(|host| host.age_ns = None);
        self
    }
}

#[derive(Debug, Serialize)]
struct Host {
    pub host: String,
    pub labels: Labels,
    /// Revision of the desired state, the latest of all operators; 0 if none ever set one.
    pub revision: u64,
    /// Public key of the operator of each desired capture, by name.
    pub operators: BTreeMap<String, String>,
    /// The revision that the host has of an operator's state, and the one that it does not follow yet.
    #[serde(skip)]
    pub behind: Option<(u64, u64)>,
    /// True if the host's last state follows all operators' revisions.
    pub follows: bool,
    /// Error in the desired state.
    pub error: Option<String>,
    /// Age of the host's last report, if it ever sent one.
    pub age_ns: Option<u64>,
    /// True if the agent should have reported since: it was killed, or it has no connection.
    pub silent: bool,
    pub state: Option<HostReport>,
}

fn age_text(ns: u64) -> String {
    match ns / NANOSECONDS {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn phase_text(phase: Phase) -> String {
    format!("{phase:?}").to_lowercase()
}

/// Maximum number of characters of a cell.
const WIDEST: usize = 64;

fn remark(capture: &CaptureReport) -> String {
    match (&capture.refused, &capture.error) {
        (Some(refusal), _) => refusal.to_string(),
        (None, Some(error)) => error.clone(),
        (None, None) => capture.capture.filter.clone(),
    }
}

fn describe_state(host: &Host) -> String {
    match (&host.state, &host.error) {
        (_, Some(error)) => error.clone(),
        (None, None) => "no agent has reported".to_owned(),
        (Some(state), None) => match (&state.error, host.behind) {
            (Some(error), _) => error.clone(),
            _ if state.stopping => "the agent has ended".to_owned(),
            _ if host.silent => not_heard(host.age_ns),
            (None, Some((has, wanted))) => format!("has applied revision {has}, not yet {wanted}"),
            (None, None) => String::new(),
        },
    }
}

fn not_heard(age_ns: Option<u64>) -> String {
    format!("not heard for {}", age_text(age_ns.unwrap_or(0)))
}

fn table(fleet: &Fleet) -> String {
    let header = ["HOST", "CAPTURE", "STATE", "SEEN", "RECORDED", "LOST", "AGE"];
    let mut rows: Vec<(Vec<String>, String)> = Vec::new();
    for host in &fleet.hosts {
        let age = host.age_ns.map_or("-".to_owned(), age_text);
        let captures = host.state.iter().flat_map(|state| &state.captures);
        let before = rows.len();
        for capture in captures {
            let account = &capture.account;
            let lost = account.lost.values().fold(0u64, |sum, one| sum.saturating_add(*one));
            let cells = vec![
                host.host.clone(),
                capture.capture.name.clone(),
                phase_text(capture.phase),
                account.seen.to_string(),
                account.recorded.to_string(),
                lost.to_string(),
                age.clone(),
            ];
            rows.push((cells, remark(capture)));
        }
        let said = describe_state(host);
        if rows.len() == before || !said.is_empty() {
            let mut cells = vec![host.host.clone()];
            cells.resize(header.len() - 1, "-".to_owned());
            cells.push(age);
            rows.push((cells, said));
        }
    }
    // Reported texts may have any length.
    for (cells, _) in &mut rows {
        for cell in cells.iter_mut().filter(|cell| cell.chars().count() > WIDEST) {
            *cell = cell.chars().take(WIDEST - 3).collect::<String>() + "...";
        }
    }
    let width = |column: usize| {
        let cells = rows.iter().map(|(cells, _)| cells[column].chars().count());
        cells.max().unwrap_or(0).max(header[column].len())
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String], remark: &str| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Numbers are aligned to the right.
            if column < 3 { line += &format!("{cell:<width$}  ") } else { line += &format!("{cell:>width$}  ") }
        }
        line += remark;
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&header.map(str::to_owned), "");
    for (cells, remark) in &rows {
        text += &line(cells, remark);
    }
    text
}
