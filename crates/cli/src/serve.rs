//! `trawl serve`: figures of this machine over HTTP: for Prometheus, as JSON, and as one small page.

mod http;
mod metrics;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trawl_kernel::events::Signals;
use trawl_kernel::netns::Namespace;
use trawl_kernel::privilege::Kept;
use trawl_kernel::{Error, Result, events};
use trawl_tap::account::{Account, Summary};
use trawl_view::record::PacketView;
use trawl_view::stat::{Flow, Interface, Statistics};

use crate::figures::{self, Counters};
use crate::json::{self, Remark};
use crate::live::{self, Viewer, Wanted};
use crate::netns::NetnsArg;
use crate::published::{self, Kind};
use crate::{service, terminal};

/// Serves Prometheus metrics, the same figures as JSON, and a page with live figures
///
/// /metrics is for Prometheus, /figures.json has the same numbers, / is the page. Nothing is asked of who reads them,
/// so only this machine can connect unless --listen says otherwise.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464")]
    listen: SocketAddr,
    /// Capture on this interface, for verdicts, flows and the account; may be given several times
    #[arg(short = 'i', long = "interface", value_name = "IF")]
    interfaces: Vec<String>,
    #[command(flatten)]
    netns: NetnsArg,
}

/// All that is served.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    #[serde(flatten)]
    pub counters: Counters,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    /// The captures and generators of other commands that run on this machine.
    pub captures: Vec<RunningCapture>,
    pub generators: Vec<RunningGenerator>,
}

/// The account of a capture that another command makes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunningCapture {
    pub pid: u32,
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    pub lost: BTreeMap<Cow<'static, str>, u64>,
}

impl RunningCapture {
    pub fn new(total: &Account) -> Self {
        Self {
            pid: std::process::id(),
            seen: total.seen,
            filtered_out: total.filtered_out,
            recorded: total.recorded,
            lost: total.lost.clone(),
        }
    }
}

/// What a generator has sent so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RunningGenerator {
    pub pid: u32,
    pub interface: String,
    pub frames: u64,
    pub bytes: u64,
    pub refused: u64,
}

/// The account of this command's own capture.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Capture {
    pub seen: u64,
    pub filtered_out: u64,
    pub recorded: u64,
    /// By reason.
    pub lost: BTreeMap<Cow<'static, str>, u64>,
    pub verdicts: Vec<Interface>,
    pub flows: Vec<Flow>,
}

type Shared = Arc<Mutex<Option<Capture>>>;

/// Flows that are told.
const FLOWS: usize = 20;
/// Flows are those of so long a time.
const RENEW: Duration = Duration::from_secs(60);

pub fn run(args: Args) -> Result<ExitCode> {
    let namespace = args.netns.as_deref().map(Namespace::open).transpose()?;
    let listener = TcpListener::bind(args.listen).map_err(|e| cannot_listen(args.listen, e))?;
    let address = listener
        .local_addr()
        .map_err(|e| Error::os("cannot find the address", e))?;
    // Before any thread is started, so that all leave signals to this one.
    let signals = Signals::watch()?;
    let shared: Shared = Arc::default();
    let served = Arc::clone(&shared);
    let takes = Kept {
        user: None,
        capabilities: figures::TAKES,
    };
    if args.interfaces.is_empty() {
        takes.confine()?;
    }
    std::thread::spawn(move || {
        // Its own rights only: those of the capture are given up when that is set up.
        if let Err(error) = takes.give_up_others() {
            terminal::say(&error.to_string());
            return;
        }
        let figures = || {
            Counters::read(namespace.as_ref(), &[]).map(|counters| Figures {
                counters,
                capture: served
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone(),
                captures: published::all(Kind::Capture),
                generators: published::all(Kind::Generator),
            })
        };
        http::serve(&listener, &figures);
    });
    let url = format!("http://{address}/");
    let serving = format!("serving {url}");
    json::say(&Remark::Serving { url: &url }, &serving);
    if !address.ip().is_loopback() {
        let text = format!(
            "anybody who reaches {address} can read these figures: no password is asked for"
        );
        json::say(&Remark::ServingOthers { url: &url }, &text);
    }
    if args.interfaces.is_empty() {
        service::ready(&serving);
        while signals.next().is_none() {
            events::wait(
                &[std::os::fd::AsFd::as_fd(&signals)],
                Duration::from_secs(3600),
            )?;
        }
        service::stopping();
        return Ok(ExitCode::SUCCESS);
    }
    drop(signals);
    let wanted = Wanted {
        interfaces: args.interfaces,
        netns: args.netns.as_deref().map(str::to_owned),
        keeps: figures::TAKES,
        ..Wanted::default()
    };
    let mut viewer = Watching {
        shared,
        statistics: Statistics::new(Vec::new()),
        since: std::time::Instant::now(),
        verdicts: Vec::new(),
        serving,
    };
    let ended = live::run(&wanted, &mut viewer);
    service::stopping();
    ended?;
    Ok(ExitCode::SUCCESS)
}

fn cannot_listen(address: SocketAddr, error: std::io::Error) -> Error {
    let fix = match error.kind() {
        ErrorKind::AddrInUse => Some(format!(
            "give another port with --listen, or end the command that listens there: ss -ltnp 'sport = :{}'",
            address.port()
        )),
        ErrorKind::AddrNotAvailable => {
            Some("give an address of this machine with --listen: ip address".to_owned())
        }
        ErrorKind::PermissionDenied => {
            Some("give a port above 1023 with --listen, or run as root".to_owned())
        }
        _ => None,
    };
    let error = Error::os(format!("cannot listen on {address}"), error);
    match fix {
        Some(fix) => error.fix(fix),
        None => error,
    }
}

struct Watching {
    shared: Shared,
    statistics: Statistics,
    since: std::time::Instant,
    /// Counts of verdicts before the flows were last renewed.
    verdicts: Vec<Interface>,
    /// What the service manager is told.
    serving: String,
}

impl Viewer for Watching {
    fn packet(&mut self, packet: &PacketView<'_>) {
        self.statistics.add(packet);
    }

    fn started(&mut self) {
        service::ready(&self.serving);
    }

    fn rest(&mut self) -> bool {
        true
    }

    fn interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    fn figures(&mut self, summary: &Summary) {
        let report = self.statistics.report(Vec::new(), FLOWS);
        let mut verdicts = self.verdicts.clone();
        for new in report.verdicts {
            let is_same = |old: &&mut Interface| old.hook == new.hook && old.verdict == new.verdict;
            match verdicts.iter_mut().find(is_same) {
                Some(old) => {
                    old.packets += new.packets;
                    old.bytes += new.bytes;
                }
                None => verdicts.push(new),
            }
        }
        if self.since.elapsed() >= RENEW {
            self.since = std::time::Instant::now();
            self.statistics = Statistics::new(Vec::new());
            self.verdicts.clone_from(&verdicts);
        }
        let total = &summary.total;
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(Capture {
            seen: total.seen,
            filtered_out: total.filtered_out,
            recorded: total.recorded,
            lost: total.lost.clone(),
            verdicts,
            flows: report.flows,
        });
    }
}
