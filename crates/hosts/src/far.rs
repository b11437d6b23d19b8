//! trawl on another host: its packets, its messages, its clock, and its end.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use trawl_front::json::Said;
use trawl_packet::read::{CaptureReader, ReadError, Step};
use trawl_pipeline::WriteOutcome;
use trawl_pipeline::report::StageReport;
use trawl_plan::CapturePlan;
use trawl_plan::outputs::{FilePlan, Format, OutputPlan, Rotation};
use trawl_plan::sources::Sources;
use trawl_sys::events::Wake;
use trawl_sys::process::ssh::{Ssh, word};
use trawl_sys::{Error, Result, clock};

use crate::account::{Clock, HostReport};
use crate::{News, OnNews};

/// Size of a read from a host, and number of such pieces that may be queued: 256 MiB for each host.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4096;
/// Number of queued pieces above which packets do not wait long for other hosts' packets.
const BACKLOG: usize = PIECES / 4;

const TIME: &str = "trawl-time ";
const ACCOUNT: &str = "trawl-account ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostState {
    /// No data has arrived since its last packet.
    Waiting,
    /// A packet with this time has arrived and has not been used yet.
    At(u64),
    Ended,
}

pub(crate) struct Far {
    pub name: String,
    pub state: HostState,
    pub reader: Option<CaptureReader<'static>>,
    pub received: u64,
    /// Packets that arrived after the last wanted one.
    pub unwanted: u64,
    /// The packets stay on the host, in a store.
    stored: bool,
    /// Number of pieces in the queue.
    queued: Arc<AtomicUsize>,
    /// `None` once the reader has begun.
    pieces: Option<Pieces>,
    child: Child,
    /// While it is open, trawl keeps running on the host. It ends when this end is closed, also because this process
    /// was killed.
    stdin: Option<ChildStdin>,
    messages: Arc<Mutex<Messages>>,
    listener: Option<JoinHandle<()>>,
    error: Option<String>,
}

/// Messages, clock readings and the summary, read from a host's standard error.
#[derive(Debug, Default)]
struct Messages {
    /// Times of the unanswered clock queries, by the wall clock here.
    asked: VecDeque<u64>,
    clock: Option<Clock>,
    summary: Option<Value>,
    last: Option<String>,
    notices: Vec<Value>,
}

fn lock(messages: &Mutex<Messages>) -> MutexGuard<'_, Messages> {
    messages.lock()
}

impl Far {
    pub fn start(
        name: String,
        ssh: &Ssh,
        pushed: Option<&str>,
        plan: &CapturePlan,
        quiet: bool,
        on_news: OnNews,
        wake: &Wake,
    ) -> Result<Self> {
        let script = script(pushed, plan, quiet);
        let mut child =
            ssh.script(&script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(
                |e| {
                    let program = ssh.program.join(" ");
                    Error::os(format!("cannot start {program}"), e).fix("apt-get install openssh-client")
                },
            )?;
        let (sender, receiver) = sync_channel(PIECES);
        let queued = Arc::new(AtomicUsize::new(0));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let messages = Arc::new(Mutex::new(Messages::default()));
        if let Some(stdout) = stdout {
            let wake = wake.clone();
            let queued = Arc::clone(&queued);
            std::thread::spawn(move || receive(stdout, &sender, &queued, &wake));
        }
        let listener = stderr.map(|stderr| {
            let (messages, name) = (Arc::clone(&messages), name.clone());
            std::thread::spawn(move || {
                let say = |notice: Option<&Value>, text: &str| on_news(&name, &News::Said { notice, text });
                read_messages(stderr, &say, &messages);
            })
        });
        Ok(Self {
            name,
            state: HostState::Waiting,
            reader: None,
            received: 0,
            unwanted: 0,
            stored: plan.store.is_some(),
            pieces: Some(Pieces { receiver, queued: Arc::clone(&queued), rest: Vec::new(), at: 0 }),
            queued,
            stdin: child.stdin.take(),
            child,
            messages,
            listener,
            error: None,
        })
    }

    /// Returns the next packet or block that has arrived.
    pub fn step(&mut self) -> Option<Step> {
        let step = self.try_step();
        match step {
            Ok(Some(Step::Packet)) => {
                let time = self.reader.as_ref().and_then(CaptureReader::time_and_interface);
                self.state = HostState::At(time.map_or(0, |(time, _)| time));
                Some(Step::Packet)
            }
            Ok(Some(block)) => Some(block),
            Ok(None) => {
                self.state = HostState::Ended;
                None
            }
            Err(error) if error.would_block() => None,
            Err(error) => {
                self.state = HostState::Ended;
                if !matches!(error, ReadError::Empty) {
                    self.error = Some(error.to_string());
                }
                None
            }
        }
    }

    fn try_step(&mut self) -> std::result::Result<Option<Step>, ReadError> {
        if let Some(pieces) = &mut self.pieces {
            let would_block = |source| ReadError::Io { offset: 0, source };
            pieces.receive_header().map_err(would_block)?;
            if let Some(pieces) = self.pieces.take() {
                let mut reader = CaptureReader::new(pieces)?;
                reader.name_host(self.name.clone());
                self.reader = Some(reader);
            }
        }
        match &mut self.reader {
            Some(reader) => reader.step(),
            None => Ok(None),
        }
    }

    /// Returns true if many packets have arrived that were not used yet.
    pub fn is_backlogged(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > BACKLOG
    }

    /// Returns the offset of the host's clock from the local one.
    pub fn clock_offset(&self) -> i64 {
        lock(&self.messages).clock.map_or(0, |clock| clock.offset_ns)
    }

    pub fn ask_for_clock(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            lock(&self.messages).asked.push_back(clock::wall());
            if stdin.write_all(b"time\n").and_then(|()| stdin.flush()).is_err() {
                self.stdin = None;
            }
        }
    }

    /// Asks trawl on the host to end; everything recorded still arrives.
    pub fn stop(&mut self) {
        self.stdin = None;
    }

    /// Stops waiting for the host.
    pub fn give_up(&mut self) {
        self.stop();
        let _ = self.child.kill();
    }

    /// Waits for the end, and returns the report. `outcome` has the packets of these interfaces that were not written,
    /// `stages` those that were left out before.
    pub fn report(mut self, outcome: &WriteOutcome, stages: &StageReport, interfaces: &[u32]) -> HostReport {
        self.stop();
        // The remaining data is discarded, which ends the thread that receives it.
        drop((self.reader.take(), self.pieces.take()));
        let status = self.child.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let messages = std::mem::take(&mut *lock(&self.messages));
        let failed = !status.as_ref().is_ok_and(|status| status.success());
        let said = || {
            let said = messages.last.clone();
            said.unwrap_or_else(|| match &status {
                Ok(status) => format!("ssh ended with {status}"),
                Err(error) => error.to_string(),
            })
        };
        let error = self.error.or_else(|| failed.then(said));
        let mut report = HostReport::new(
            self.name,
            (!self.stored).then_some((self.received, self.unwanted)),
            messages.clock,
            messages.summary,
            messages.notices,
            error,
        );
        report.leave_out(stages, interfaces);
        report.take_back(outcome, interfaces);
        report
    }
}

/// The file for the summary of a host, opened by the script.
const ACCOUNT_FILE: &str = "/dev/fd/4";

/// Returns the interfaces to capture on at one host: HOST:IF selects that host alone, IF every host.
fn sources(whole: &Sources, host: &str, hosts: &[String]) -> Result<Sources> {
    let on = |name: &str, host: &str| {
        let rest = name.strip_prefix(host)?.strip_prefix(':')?;
        Some(rest.to_owned())
    };
    let names = whole.names.iter().filter_map(|name| {
        on(name, host).or_else(|| {
            let is_others = hosts.iter().any(|other| on(name, other).is_some());
            (!is_others).then(|| name.clone())
        })
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() && !whole.names.is_empty() {
        let what = format!("cannot capture on {host}");
        let why = "each -i is for another host";
        return Err(Error::usage(what, why).fix(format!("-i {host}:IF")));
    }
    Ok(Sources { names, ..whole.clone() })
}

/// Makes the plan of a host's part: packets are sent here, unless they stay on the host in a store.
pub(crate) fn plan(whole: &CapturePlan, host: &str, hosts: &[String]) -> Result<CapturePlan> {
    let stdout =
        OutputPlan { path: "-".into(), format: Format::Pcapng, compression: None, snaplen: None, listen: None };
    let mut plan = CapturePlan {
        sources: sources(&whole.sources, host, hosts)?,
        outputs: match whole.store {
            Some(_) => Vec::new(),
            None => vec![stdout],
        },
        rotation: Rotation::default(),
        files: FilePlan::default(),
        summary: Some(ACCOUNT_FILE.into()),
        // Packets are anonymized on this machine, so that the key does not leave it.
        anonymize: None,
        ..whole.clone()
    };
    // Duplicates across hosts are removed on this machine, and -c counts the remaining packets.
    if plan.store.is_none() && plan.options.dedup.take().is_some() {
        plan.options.count = None;
    }
    plan.options.across_namespaces |= plan.sources.span_namespaces(plan.options.tap);
    Ok(plan)
}

/// Finds trawl on a host: an installed one, or one that was copied there before.
const FIND: &str = "trawl=$(command -v trawl) || trawl=~/.cache/trawl/trawl
[ -x \"$trawl\" ] || { echo 'trawl is not installed on this host; to copy it there, use --push' >&2; exit 127; }";

/// Runs trawl until it or standard input ends, and answers each input line with the clock.
fn script(pushed: Option<&str>, plan: &CapturePlan, quiet: bool) -> String {
    let trawl = pushed.map_or(FIND.to_owned(), |path| format!("trawl={}", word(path)));
    let plan = plan.to_json().to_string();
    let quiet = if quiet { " -q" } else { "" };
    format!(
        "{trawl}\n\
         d=$(mktemp -d) || exit 1\n\
         exec 3<&0\n\
         printf %s {} > \"$d/plan\"\n\
         \"$trawl\" capture --collected --plan \"$d/plan\"{quiet} </dev/null 3<&- 4>\"$d/account\" &\n\
         p=$!\n\
         (while read -r line <&3; do echo \"{TIME}$(date +%s%N)\" >&2; done; kill -TERM $p) >/dev/null &\n\
         w=$!\n\
         wait $p\n\
         c=$?\n\
         kill $w 2>/dev/null\n\
         [ -s \"$d/account\" ] && echo \"{ACCOUNT}$(cat \"$d/account\")\" >&2\n\
         rm -rf \"$d\"\n\
         exit $c\n",
        word(&plan),
    )
}

/// Receives everything that a host sends, so that its rings need not hold it.
fn receive(mut stdout: impl Read, sender: &SyncSender<Vec<u8>>, queued: &AtomicUsize, wake: &Wake) {
    loop {
        let mut piece = vec![0; PIECE];
        match stdout.read(&mut piece) {
            Ok(count @ 1..) => piece.truncate(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
        }
        queued.fetch_add(1, Ordering::Relaxed);
        if sender.send(piece).is_err() {
            break;
        }
        wake.ring();
    }
    wake.ring();
}

/// Reads a host's standard error, and forwards the messages for people.
fn read_messages(stderr: impl Read, say: &dyn Fn(Option<&Value>, &str), messages: &Mutex<Messages>) {
    for line in BufReader::new(stderr).split(b'\n').map_while(io::Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        if let Some(there) = line.strip_prefix(TIME) {
            let now = clock::wall();
            let mut messages = lock(messages);
            if let (Some(asked), Ok(there)) = (messages.asked.pop_front(), there.parse()) {
                let found = Clock::between(asked, now, there);
                messages.clock = Some(messages.clock.map_or(found, |known| known.or_better(found)));
            }
        } else if let Some(account) = line.strip_prefix(ACCOUNT) {
            lock(messages).summary = serde_json::from_str(account).ok();
        } else if let Ok(Said { notice, text, .. }) = serde_json::from_str(line) {
            say(Some(&notice), &text);
            let mut messages = lock(messages);
            messages.notices.push(notice);
            messages.last = Some(text);
        } else {
            let text = line.strip_prefix("trawl: ").unwrap_or(line);
            // The summaries of all hosts are printed together at the end.
            let is_account = text.contains(" seen, ") && text.contains(" filtered out, ");
            if !is_account && !text.is_empty() {
                lock(messages).last = Some(text.to_owned());
                say(None, text);
            }
        }
    }
}

/// The bytes that have arrived from a host.
pub(crate) struct Pieces {
    receiver: Receiver<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    rest: Vec<u8>,
    at: usize,
}

impl Pieces {
    fn next(&self) -> std::result::Result<Vec<u8>, TryRecvError> {
        let piece = self.receiver.try_recv()?;
        self.queued.fetch_sub(1, Ordering::Relaxed);
        Ok(piece)
    }

    /// Receives the first bytes, which a reader of captures needs together. Fails as blocked until they have arrived.
    fn receive_header(&mut self) -> io::Result<()> {
        while self.rest.len() < 4 {
            match self.next() {
                Ok(more) => self.rest.extend(more),
                Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryRecvError::Disconnected) => break,
            }
        }
        Ok(())
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.rest.len() {
            self.rest = match self.next() {
                Ok(more) => more,
                Err(TryRecvError::Empty) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryRecvError::Disconnected) => return Ok(0),
            };
            self.at = 0;
        }
        let count = (&self.rest[self.at..]).read(buffer)?;
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_with_a_host_are_for_it_alone() {
        let hosts = ["web1", "10.0.0.2"].map(str::to_owned);
        let names = |typed: &[&str], host: &str| {
            let whole = Sources { names: typed.iter().map(|&name| name.to_owned()).collect(), ..Sources::default() };
            sources(&whole, host, &hosts).map(|sources| sources.names)
        };
        let typed = ["lo", "web1:eth0", "10.0.0.2:eth1", "blue:eth2"];
        assert_eq!(names(&typed, "web1").unwrap(), ["lo", "eth0", "blue:eth2"]);
        assert_eq!(names(&typed, "10.0.0.2").unwrap(), ["lo", "eth1", "blue:eth2"]);
        assert_eq!(names(&["web1:web1:eth0"], "web1").unwrap(), ["web1:eth0"]);
        let error = names(&["web1:eth0"], "10.0.0.2").unwrap_err().to_string();
        assert!(error.contains("10.0.0.2"), "{error}");
        assert!(names(&[], "web1").unwrap().is_empty());
    }
}
