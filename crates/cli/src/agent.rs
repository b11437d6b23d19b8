//! `trawl agent`: follows the desired state of this host, from a file or a bus, within the limits of the host's policy.
//! `trawl_agent::Machine` makes the decisions; this module has the processes, the files and the clock.

pub(crate) mod bus;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Bus, BusArgs, shown};
use clap::ValueEnum;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use trawl_agent::{
    Action, Capture, Counts, Desired, End, Event, HostReport, Machine, Memory, Now, Policy,
};
use trawl_capture::filter::Filter;
use trawl_capture::options::{self, MemorySize, Options};
use trawl_capture::plan::CapturePlan;
use trawl_capture::sources::Sources;
use trawl_pipeline::plan::StorePlan;
use trawl_spool::default_spool;
use trawl_sys::events::{self, Signals, Wake};
use trawl_sys::process::{self, own_binary};
use trawl_sys::{Error, Result, clock, create, host, run, text_file};

use crate::capture::args::{self, TapName, Taps};
use crate::capture::recording;
use crate::published::{self, Kind, RunningCapture};
use crate::{json, terminal};

/// Keeps the captures of this host as desired: started once, bounded, and stopped when they are desired no more
///
/// The policy file is TOML and limits only the keys that it names: labels (a table), interfaces, taps and stores (lists with
/// *), filter (joined to each capture's by "and"), max_captures, max_duration_seconds, max_size_bytes, max_memory_bytes,
/// max_spool_bytes, max_snaplen and index (false: chunks are not indexed here). With --nats, operators (a list of public
/// keys) names the operators whose commands are followed. Captures end with the agent, and go on while the bus is away.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Follow this file, in TOML or JSON; it is read again when it changes
    #[arg(long, value_name = "FILE", required_unless_present = "nats")]
    state: Option<PathBuf>,
    /// Follow trawl.cmd.HOST at this NATS server, and put the state to trawl.state.HOST
    #[arg(
        long,
        value_name = "URL",
        conflicts_with = "state",
        requires = "policy"
    )]
    nats: Option<String>,
    #[command(flatten)]
    bus: bus::BusArgs,
    /// Policy of this host: the limits of its captures
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The host's name on the bus [default: the machine's host name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Directory in which chunks wait until they are stored
    #[arg(long, value_name = "DIR", default_value_os_t = default_spool())]
    spool: PathBuf,
    /// Directory in which the agent remembers its captures, and locks them: one agent a directory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/trawl/agent")]
    memory: PathBuf,
    /// Write the state to this file when it changes
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the state when it changes, one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Interval at which processes and files are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which the counts of running captures are read.
const COUNT: Duration = Duration::from_secs(1);

pub fn run(args: Args) -> Result<ExitCode> {
    let what = "cannot run an agent";
    let policy = match &args.policy {
        Some(path) => Policy::parse(&text_file::read(path)?)?,
        None => Policy::default(),
    };
    std::fs::create_dir_all(&args.memory)
        .map_err(|e| Error::os(format!("cannot make {}", args.memory.display()), e))?;
    run::check_owner(&args.memory)?;
    let signals = Signals::watch()?;
    let wake = Wake::new()?;
    let host = args.host.clone().unwrap_or_else(host::name);
    let source = match (&args.state, &args.nats) {
        (Some(path), _) => Source::file(path.clone()),
        (None, Some(url)) => {
            if policy.operators.is_empty() {
                let what = format!("cannot follow {}", bus::shown(url));
                let why = "the policy names no operator whose commands are followed";
                return Err(Error::usage(what, why)
                    .fix("operators = [\"U…\"] in the policy, with the key that trawl fleet key --nkey FILE shows"));
            }
            let operators = policy.operators.clone();
            let revision = args.memory.join("revision");
            Source::bus(url, &host, operators, revision, &args.bus, &wake)?
        }
        (None, None) => return Err(Error::usage(what, "--state and --nats are missing")),
    };
    let memory = args.memory.join("captures.json");
    let remembered = remembered(&memory);
    let mut agent = Agent {
        machine: Machine::new(policy, remembered.clone()),
        source,
        directory: args.memory,
        spool: args.spool,
        host,
        running: Vec::new(),
        push: None,
        memory,
        remembered,
        report: args.report,
        json: args.json,
        reported: None,
        counted: Instant::now(),
    };
    agent.source.check()?;
    let status = format!("following {}", agent.source);
    terminal::say(&status);
    published::ready(&status);
    while !agent.machine.is_over() {
        wake.hush();
        while let Some(signal) = signals.next() {
            if signal.ends() {
                published::stopping();
                agent.step(Event::Shutdown);
            }
        }
        agent.look()?;
        events::wait(&[signals.as_fd(), wake.as_fd()], LOOK)?;
    }
    agent.tell()?;
    agent.source.end();
    Ok(ExitCode::SUCCESS)
}

fn now() -> Now {
    Now {
        monotonic: clock::monotonic(),
        wall: clock::wall(),
    }
}

/// Reads the remembered captures; without the file, or with a damaged one, captures begin anew.
fn remembered(path: &Path) -> Vec<Memory> {
    let text = std::fs::read(path).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

struct Agent {
    machine: Machine,
    source: Source,
    directory: PathBuf,
    spool: PathBuf,
    host: String,
    running: Vec<Running>,
    push: Option<Child>,
    memory: PathBuf,
    remembered: Vec<Memory>,
    report: Option<PathBuf>,
    json: bool,
    reported: Option<HostReport>,
    counted: Instant,
}

impl Agent {
    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.machine.step(now(), event) {
                events.extend(self.act(action));
            }
        }
    }

    /// Carries out an action of the machine; returns its immediate result.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start { run, capture } => {
                let counts = Counts::default();
                let end = match Running::start(run, &capture, &self.directory, &self.spool) {
                    Ok(running) => {
                        self.running.push(running);
                        return None;
                    }
                    Err(Refused::Held) => End::Held,
                    Err(Refused::Failed(error)) => {
                        terminal::say(&error.to_string());
                        End::Failed(error.to_string())
                    }
                };
                Some(Event::Ended { run, end, counts })
            }
            Action::Stop { run, force } => {
                let mut these = self.running.iter().filter(|one| one.run == run);
                these.by_ref().for_each(|one| one.stop(force));
                None
            }
            Action::Push => match push(&self.spool) {
                Ok(child) => {
                    self.push = Some(child);
                    None
                }
                Err(_) => Some(Event::Pushed { all: false }),
            },
        }
    }

    /// Handles everything that may have happened.
    fn look(&mut self) -> Result<()> {
        for event in self.source.events() {
            self.step(event);
        }
        let mut events = Vec::new();
        let counting = self.counted.elapsed() >= COUNT;
        if counting {
            self.counted = Instant::now();
        }
        self.running.retain_mut(|one| {
            let run = one.run;
            if one.became_ready() {
                events.push(Event::Ready { run });
            }
            if let Some((end, counts)) = one.ended() {
                events.push(Event::Ended { run, end, counts });
                return false;
            }
            if counting && let Some(counts) = one.counts() {
                events.push(Event::Counted { run, counts });
            }
            true
        });
        if let Some(child) = &mut self.push
            && let Ok(Some(status)) = child.try_wait()
        {
            self.push = None;
            events.push(Event::Pushed {
                all: status.success(),
            });
        }
        events.push(Event::Tick);
        events.into_iter().for_each(|event| self.step(event));
        self.tell()
    }

    /// Writes down the changes.
    fn tell(&mut self) -> Result<()> {
        let memory = self.machine.memory();
        if memory != self.remembered {
            replace(&self.memory, &memory)?;
            self.remembered = memory;
        }
        let report = self
            .machine
            .report(&self.host, env!("CARGO_PKG_VERSION"), now());
        let is_news = self.reported.as_ref().is_none_or(|old| {
            let same_time = HostReport {
                time_ns: old.time_ns,
                ..report.clone()
            };
            *old != same_time
        });
        if !is_news {
            return Ok(());
        }
        if let Some(path) = &self.report {
            replace(path, &report)?;
        }
        if self.json {
            json::print(&report)?;
        }
        self.source.tell(&report);
        self.reported = Some(report);
        Ok(())
    }
}

/// Replaces a file atomically: readers see the old file or the new one.
fn replace(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let what = || format!("cannot write {}", path.display());
    let text = serde_json::to_vec(value).map_err(|e| Error::failed(what(), e))?;
    create::replace(path, &text).map_err(|e| Error::os(what(), e))
}

/// Start of the sd_notify message that a capture sends once it is attached.
const READY: &[u8] = b"READY=1";

struct Running {
    pub run: u64,
    child: Child,
    /// Socket on which the capture reports that it is attached.
    notices: UnixDatagram,
    _socket: OwnFile,
    is_ready: bool,
    summary: OwnFile,
    _plan: OwnFile,
    last_words: Arc<Mutex<String>>,
}

/// A file of one start, which is removed after it.
struct OwnFile(PathBuf);

impl OwnFile {
    /// Removes a file of an earlier start.
    fn new(path: PathBuf) -> Self {
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reasons why a capture could not be started.
enum Refused {
    /// An earlier process still has the lock of this capture.
    Held,
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Takes the lock of a capture. The process inherits it as its standard input, so that it is held as long as any process of
/// that capture lives, with or without its agent.
fn lock(directory: &Path, name: &str) -> std::result::Result<File, Refused> {
    let path = directory.join(format!("{name}.lock"));
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    let file = opened.map_err(|e| Error::os(format!("cannot open {}", path.display()), e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(_) => Err(Refused::Held),
    }
}

impl Running {
    pub fn start(
        run: u64,
        capture: &Capture,
        directory: &Path,
        spool: &Path,
    ) -> std::result::Result<Self, Refused> {
        let lock = lock(directory, &capture.name)?;
        let summary = OwnFile::new(directory.join(format!("{}.summary", capture.name)));
        let what = || format!("cannot start the capture '{}'", capture.name);
        // In a directory of this user's alone: any user may bind an abstract name.
        let socket = OwnFile::new(directory.join(format!("notify-{run}")));
        let notices = UnixDatagram::bind(&socket.0).map_err(|e| Error::os(what(), e))?;
        let made = notices.set_nonblocking(true);
        made.map_err(|e| Error::os(what(), e))?;
        let plan_file = OwnFile::new(directory.join(format!("{}.plan", capture.name)));
        let plan = plan(capture, &summary.0, spool)?;
        let text = serde_json::to_string(&plan).map_err(|e| Error::failed(what(), e))?;
        std::fs::write(&plan_file.0, text).map_err(|e| Error::os(what(), e))?;
        let own = own_binary()?;
        let mut command = Command::new(own);
        command
            .args(["capture", "-q", "--plan"])
            .arg(&plan_file.0)
            .env("NOTIFY_SOCKET", &socket.0)
            .stdin(Stdio::from(lock))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        process::with_signals(&mut command);
        process::ends_with_parent(&mut command);
        let mut child = command.spawn().map_err(|e| Error::os(what(), e))?;
        let last_words = Arc::default();
        if let Some(stderr) = child.stderr.take() {
            let (name, last) = (capture.name.clone(), Arc::clone(&last_words));
            std::thread::spawn(move || relay(&name, BufReader::new(stderr), &last));
        }
        Ok(Self {
            run,
            child,
            notices,
            _socket: socket,
            is_ready: false,
            summary,
            _plan: plan_file,
            last_words,
        })
    }

    /// Returns true when the capture first reports that it is attached.
    pub fn became_ready(&mut self) -> bool {
        let mut message = [0; 4096];
        let mut told = false;
        while let Ok(length) = self.notices.recv(&mut message) {
            told |= message[..length].starts_with(READY);
        }
        let news = told && !self.is_ready;
        self.is_ready |= told;
        news
    }

    pub fn stop(&self, force: bool) {
        // The capture may have ended already.
        let _ = match force {
            true => process::kill(self.child.id()),
            false => process::interrupt(self.child.id()),
        };
    }

    pub fn counts(&self) -> Option<Counts> {
        let told: RunningCapture = published::of(Kind::Capture, self.child.id())?;
        Some(counts(
            told.seen,
            told.filtered_out,
            told.recorded,
            told.lost,
        ))
    }

    /// Returns the outcome, once the capture has ended.
    pub fn ended(&mut self) -> Option<(End, Counts)> {
        let status = self.child.try_wait().ok().flatten()?;
        let counts = self.counted_at_end().unwrap_or_default();
        let end = match status.success() {
            true => End::Well,
            false => End::Failed(self.why(status)),
        };
        Some((end, counts))
    }

    fn why(&self, status: ExitStatus) -> String {
        let words = self.last_words.lock().clone();
        match words.is_empty() || status.code().is_none() {
            true => format!("the capture ended: {status}"),
            false => words,
        }
    }

    fn counted_at_end(&self) -> Option<Counts> {
        #[derive(Deserialize)]
        struct Summary {
            #[serde(flatten)]
            total: trawl_pipeline::account::Account,
        }
        let text = std::fs::read(&self.summary.0).ok()?;
        let Summary { total } = serde_json::from_slice(&text).ok()?;
        Some(counts(
            total.seen,
            total.filtered_out,
            total.recorded,
            total.lost,
        ))
    }
}

fn counts(
    seen: u64,
    filtered_out: u64,
    recorded: u64,
    lost: BTreeMap<Cow<'static, str>, u64>,
) -> Counts {
    let lost = lost.into_iter().filter(|(_, count)| *count > 0);
    Counts {
        seen,
        filtered_out,
        recorded,
        lost: lost
            .map(|(reason, count)| (reason.into_owned(), count))
            .collect(),
    }
}

/// Passes the capture's messages on to the agent's own output, with the capture's name before them.
fn relay(name: &str, from: impl BufRead, last: &Mutex<String>) {
    for line in from.lines().map_while(std::result::Result::ok) {
        let line = line.strip_prefix("trawl: ").unwrap_or(&line);
        terminal::say(&format!("{name}: {line}"));
        *last.lock() = line.to_owned();
    }
}

/// Makes the plan of a desired capture.
fn plan(capture: &Capture, summary: &Path, spool: &Path) -> Result<CapturePlan> {
    let names = capture.taps.iter().map(|name| {
        TapName::from_str(name, false)
            .map_err(|why| Error::usage(format!("cannot use the tap '{name}'"), why))
    });
    let names = names.collect::<Result<Vec<_>>>()?;
    let taps = match names.is_empty() {
        true => Taps::of(&[TapName::Auto])?,
        false => Taps::of(&names)?,
    };
    let usual = args::usual(&taps);
    let expression = capture.filter.trim();
    let options = Options {
        filter: (!expression.is_empty()).then(|| Filter::Expression(expression.to_owned())),
        snaplen: match capture.snaplen {
            Some(bytes) => recording::snaplen(bytes.into())?,
            None => usual.snaplen,
        },
        count: capture.packets,
        duration: capture.duration_seconds.map(Duration::from_secs),
        memory: options::Memory {
            size: capture
                .memory_bytes
                .map_or(MemorySize::Usual, MemorySize::Total),
            at_first: None,
        },
        ..usual
    };
    let store = StorePlan {
        spool: Some(spool.to_owned()),
        spool_bytes: capture.spool_bytes.unwrap_or(StorePlan::SPOOL_BYTES),
        size: capture.size_bytes,
        index: capture.index,
        ..StorePlan::new(capture.store.clone(), capture.name.clone())
    };
    let sources = Sources {
        names: capture.interfaces.clone(),
        ..Sources::default()
    };
    Ok(CapturePlan {
        store: Some(store),
        summary: Some(summary.to_owned()),
        ..CapturePlan::new(sources, options)
    })
}

/// Stores the chunks that captures left in the spool, in a separate process as captures have.
fn push(spool: &Path) -> Result<Child> {
    let what = "cannot store what is in the spool";
    let own = own_binary()?;
    let mut command = Command::new(own);
    command
        .args(["store", "push", "--json", "--spool"])
        .arg(spool)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    process::with_signals(&mut command);
    process::ends_with_parent(&mut command);
    command.spawn().map_err(|e| Error::os(what, e))
}

const READ_EVERY: Duration = Duration::from_millis(500);
/// Time between two starts of trawl-bus, if it ends.
const RESTART: Duration = Duration::from_secs(2);
/// Time between two puts of an unchanged state: the bus may have lost its bucket.
const PUT_EVERY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum News {
    Connected,
    Disconnected,
    Refused { why: String },
    Desired { revision: u64, value: String },
}

#[derive(Serialize)]
struct Put<'a> {
    state: &'a HostReport,
}

enum Source {
    File {
        path: PathBuf,
        /// The text that was read last, or the error.
        last: Option<std::result::Result<String, String>>,
        /// Number of changes.
        revision: u64,
        read: Option<Instant>,
    },
    Bus(Box<OnBus>),
}

struct OnBus {
    url: String,
    host: String,
    operators: Vec<String>,
    args: BusArgs,
    wake: Wake,
    bus: Option<Bus<News>>,
    started: Instant,
    put: Instant,
    last_state: Option<HostReport>,
    said: Option<String>,
    /// The latest revision that was reported.
    revision: u64,
    revision_file: PathBuf,
}

/// Returns the remembered revision; zero if the file is missing or damaged.
fn remembered_revision(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Bus(bus) => write!(f, "trawl.cmd.{} at {}", bus.host, shown(&bus.url)),
        }
    }
}

impl Source {
    pub fn file(path: PathBuf) -> Self {
        Self::File {
            path,
            last: None,
            revision: 0,
            read: None,
        }
    }

    /// Creates the source of the operators' desired state. The last revision is remembered in a file: older ones are ignored
    /// from any sender.
    pub fn bus(
        url: &str,
        host: &str,
        operators: Vec<String>,
        revision_file: PathBuf,
        args: &BusArgs,
        wake: &Wake,
    ) -> Result<Self> {
        let bus = Bus::start("agent", url, host, &operators, args, Some(wake))?;
        Ok(Self::Bus(Box::new(OnBus {
            url: url.to_owned(),
            host: host.to_owned(),
            operators,
            args: args.clone(),
            wake: wake.clone(),
            bus: Some(bus),
            started: Instant::now(),
            put: Instant::now(),
            last_state: None,
            said: None,
            // The current state is reported again.
            revision: remembered_revision(&revision_file).saturating_sub(1),
            revision_file,
        })))
    }

    /// Checks the file: an error at the start is a usage error; later the previous state stays.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::File { path, .. } => Desired::parse(&text_file::read(path)?).map(drop),
            Self::Bus(_) => Ok(()),
        }
    }

    pub fn events(&mut self) -> Vec<Event> {
        match self {
            Self::File {
                path,
                last,
                revision,
                read,
            } => {
                if read.is_some_and(|read| read.elapsed() < READ_EVERY) {
                    return Vec::new();
                }
                *read = Some(Instant::now());
                let text = text_file::read(path).map_err(|e| e.to_string());
                if last.as_ref() == Some(&text) {
                    return Vec::new();
                }
                *revision += 1;
                *last = Some(text.clone());
                vec![event(*revision, text)]
            }
            Self::Bus(bus) => bus.events(),
        }
    }

    pub fn tell(&mut self, report: &HostReport) {
        if let Self::Bus(bus) = self {
            bus.last_state = Some(report.clone());
            bus.put();
        }
    }

    pub fn end(self) {
        if let Self::Bus(bus) = self
            && let Some(bus) = bus.bus
        {
            bus.end();
        }
    }
}

fn event(revision: u64, text: std::result::Result<String, String>) -> Event {
    let parsed = text.and_then(|text| Desired::parse(&text).map_err(|e| e.to_string()));
    match parsed {
        Ok(desired) => Event::Desired { revision, desired },
        Err(why) => {
            terminal::say(&format!("{why}; the previous state stays"));
            Event::Unreadable { revision, why }
        }
    }
}

impl OnBus {
    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        let news: Vec<News> = self
            .bus
            .iter()
            .flat_map(|bus| bus.news.try_iter())
            .collect();
        for one in news {
            match one {
                // The same revision is repeated, in case it was missed.
                News::Desired { revision, value } if revision > self.revision => {
                    self.revision = revision;
                    let text = revision.to_string();
                    if let Err(error) = create::replace(&self.revision_file, text.as_bytes()) {
                        let path = self.revision_file.display();
                        self.say(format!("cannot write {path}: {error}"));
                    }
                    events.push((revision, value));
                }
                News::Desired { .. } => {}
                News::Connected => {
                    self.say(format!("connected to {}", shown(&self.url)));
                    self.put();
                }
                News::Disconnected => self.say(format!(
                    "no connection to {}; captures continue",
                    shown(&self.url)
                )),
                News::Refused { why } => self.say(format!("{}: {why}", shown(&self.url))),
            }
        }
        if self.bus.as_mut().is_none_or(Bus::is_over) && self.started.elapsed() >= RESTART {
            self.started = Instant::now();
            self.say("trawl-bus ended and is started again".to_owned());
            self.bus = None;
            let (url, host, operators) = (&self.url, &self.host, &self.operators);
            match Bus::start("agent", url, host, operators, &self.args, Some(&self.wake)) {
                Ok(bus) => self.bus = Some(bus),
                Err(error) => self.say(error.to_string()),
            }
            self.put();
        }
        if self.put.elapsed() >= PUT_EVERY {
            self.put();
        }
        let events = events.into_iter();
        events
            .map(|(revision, value)| event(revision, Ok(value)))
            .collect()
    }

    fn put(&mut self) {
        self.put = Instant::now();
        if let (Some(bus), Some(state)) = (&mut self.bus, &self.last_state) {
            // An ended process is started again.
            let _ = bus.send(&Put { state });
        }
    }

    /// Prints a message, unless it repeats the last one.
    fn say(&mut self, words: String) {
        if self.said.as_ref() != Some(&words) {
            terminal::say(&words);
            self.said = Some(words);
        }
    }
}
