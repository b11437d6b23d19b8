//! `trawl store keep`: the service that indexes a store and removes its old chunks.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::json;
use trawl_front::http::{self, Answer, Request};
use trawl_front::prometheus::{self, Metric, page, single};
use trawl_front::{json, published, terminal};
use trawl_sys::events::{self, Signals};
use trawl_sys::{Error, Result, memory, units};

use super::store::{LimitArgs, pruned_text, say_unreadable};
use trawl_store::{self as store, Backlog, Limits, Store};

/// Keeps a store ready for queries until a signal: adds its new chunks to the catalogue at regular times, and removes old
/// chunks once an hour if a limit is given
///
/// It does the work of trawl store index and trawl store prune. Several hosts may keep one store: only one of them
/// changes it at a time. The metrics of --metrics are about the last round.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az://
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    limits: LimitArgs,
    /// Time from the start of an indexing to the start of the next
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "1m")]
    every: Duration,
    /// Serve metrics and answer probes by HTTP at this address: /metrics, /livez while the work proceeds, /readyz if the
    /// last round succeeded
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Print messages as JSON
    #[arg(long)]
    json: bool,
}

/// Time from one removal to the next: each writes the files of the days again that lose chunks.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// Time without progress after which the service does not count as alive.
const HANGS_AFTER: Duration = Duration::from_secs(600);

pub fn run(args: &Args) -> Result<ExitCode> {
    memory::share_heap();
    let signals = Signals::watch()?;
    let state = Arc::new(Mutex::new(State::new(args.every)));
    // A low port needs the rights of root, which the next call may give up.
    let listener = args.metrics.map(listen).transpose()?;
    let store = Store::open_to_change(&args.url)?;
    if let Some((address, listener)) = listener {
        let state = Arc::clone(&state);
        thread::spawn(move || http::serve(&listener, &|request, _| answer(request, &state.lock())));
        terminal::say(&format!("metrics at http://{address}/metrics"));
    }
    let status = format!("keeping {}", args.url);
    terminal::say(&status);
    published::ready(&status);
    let mut keeper = Keeper { store, limits: args.limits.limits(), state, pruned: None, unreadable: BTreeSet::new() };
    loop {
        let began = Instant::now();
        keeper.round();
        if ends_before(&signals, began, args.every)? {
            published::stopping();
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Waits until the time since `began` is over; returns true as soon as a signal ends the service.
fn ends_before(signals: &Signals, began: Instant, every: Duration) -> Result<bool> {
    loop {
        while let Some(signal) = signals.next() {
            if signal.ends() {
                return Ok(true);
            }
        }
        let rest = every.saturating_sub(began.elapsed());
        if rest.is_zero() {
            return Ok(false);
        }
        events::wait(&[signals.as_fd()], rest)?;
    }
}

fn listen(address: SocketAddr) -> Result<(SocketAddr, TcpListener)> {
    let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
    bound.map_err(|e| Error::os(format!("cannot serve metrics at {address}"), e))
}

struct Keeper {
    store: Store,
    limits: Option<Limits>,
    state: Arc<Mutex<State>>,
    /// Time of the last removal.
    pruned: Option<Instant>,
    /// Chunks that have been reported as not readable.
    unreadable: BTreeSet<String>,
}

impl Keeper {
    /// Does the work of a round, and reports a new error.
    fn round(&mut self) {
        let began = Instant::now();
        let error = self.work().err().map(|error| error.to_string());
        let mut state = self.state.lock();
        if let Some(error) = error.as_ref().filter(|_| error != state.error) {
            json::say("not_kept", json!({ "error": error }), error);
        }
        state.rounds += 1;
        state.failures += u64::from(error.is_some());
        state.error = error;
        state.seconds = began.elapsed().as_secs_f64();
        state.progress = Instant::now();
    }

    fn work(&mut self) -> Result<()> {
        let state = &self.state;
        let indexed = store::index_if_free(&self.store, &mut |_, _| state.lock().progress = Instant::now())?;
        if let Some(indexed) = indexed {
            for chunk in indexed.unreadable {
                if self.unreadable.insert(chunk.clone()) {
                    say_unreadable(&chunk, self.store.url());
                }
            }
        }
        if let Some(limits) = self.limits.filter(|_| self.pruned.is_none_or(|at| at.elapsed() >= PRUNE_EVERY)) {
            let pruned = store::prune(&self.store, limits, false)?;
            self.pruned = Some(Instant::now());
            if pruned.chunks > 0 {
                let text = format!("removed {}", pruned_text(&pruned));
                json::say("pruned", json!(pruned), &text);
            }
            state.lock().pruned += pruned.chunks;
        }
        let backlog = Backlog::read(&self.store)?;
        state.lock().backlog = Some(backlog);
        Ok(())
    }
}

/// The work so far.
#[derive(Debug)]
struct State {
    every: Duration,
    rounds: u64,
    failures: u64,
    /// Error of the last round.
    error: Option<String>,
    /// Duration of the last round.
    seconds: f64,
    progress: Instant,
    pruned: u64,
    /// Backlog after the last round that succeeded.
    backlog: Option<Backlog>,
}

impl State {
    fn new(every: Duration) -> Self {
        Self {
            every,
            rounds: 0,
            failures: 0,
            error: None,
            seconds: 0.0,
            progress: Instant::now(),
            pruned: 0,
            backlog: None,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let seconds = |ns: Option<u64>| ns.map(|ns| single(ns as f64 / 1e9)).unwrap_or_default();
        let chunks = self.backlog.map(|backlog| single(backlog.chunks as f64));
        vec![
            ("store_keep_rounds_total", "Rounds of the service.", single(self.rounds as f64)),
            ("store_keep_failures_total", "Rounds that failed.", single(self.failures as f64)),
            ("store_keep_failed", "1 if the last round failed.", single(f64::from(u8::from(self.error.is_some())))),
            ("store_keep_seconds", "Duration of the last round.", single(self.seconds)),
            ("store_pruned_chunks_total", "Chunks that the service has removed.", single(self.pruned as f64)),
            ("store_waiting_chunks", "Stored chunks that the catalogue does not have.", chunks.unwrap_or_default()),
            (
                "store_waiting_since_seconds",
                "Time since which the oldest of them waits, since 1970.",
                seconds(self.backlog.and_then(|backlog| backlog.since_ns)),
            ),
            (
                "store_newest_chunk_seconds",
                "Time of the newest chunk in the store, since 1970.",
                seconds(self.backlog.and_then(|backlog| backlog.newest_ns)),
            ),
        ]
    }

    /// Returns the reason why the store is not kept.
    fn unready(&self) -> Option<String> {
        match &self.error {
            None if self.rounds == 0 => Some("the first round is not over".to_owned()),
            error => error.clone(),
        }
    }

    fn hangs(&self) -> bool {
        self.progress.elapsed() > self.every.saturating_add(HANGS_AFTER)
    }
}

fn answer(request: &Request, state: &State) -> Answer {
    let unavailable = |why: &str| Answer::plain("503 Service Unavailable", why);
    match request.target.as_str() {
        "/metrics" => Answer::new("200 OK", prometheus::KIND, page(state.metrics())),
        "/livez" if state.hangs() => unavailable("no progress for 10 minutes\n"),
        "/livez" => Answer::plain("200 OK", ""),
        "/readyz" => match state.unready() {
            None => Answer::plain("200 OK", ""),
            Some(why) => unavailable(&format!("{why}\n")),
        },
        _ => Answer::plain("404 Not Found", "no such page: this service answers /metrics, /livez and /readyz\n"),
    }
}
