//! Questions of the page. Each runs a command of `trawl` as a process, which is killed when its client leaves, or its time is
//! over: a question can neither take the server's memory nor end it.

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Deserialize;
use trawl_front::http::Client;
use trawl_sys::events::{self, Wake};
use trawl_sys::process::{self, own_binary};
use trawl_sys::{Error, Result};

use super::places::{NoPlace, Place, Places};

/// Interval at which a question's client and time are checked.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Maximum length of the text that a question writes to standard error.
const REMARKS: u64 = 64 << 10;
const WHAT: &str = "cannot answer the question";

/// Reason why a question has no answer.
#[derive(Debug)]
pub enum Refusal {
    NoPlace(NoPlace),
    Failed(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reason why a question was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    Gone,
    TimeOver,
}

/// A line on standard error: a remark, or the reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// Stable name of a notice in JSON.
    kind: Option<String>,
    pub text: String,
}

/// A line of JSON on standard error.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Error {
        what: String,
        why: String,
        fix: Option<String>,
    },
    #[serde(untagged)]
    Notice {
        notice: Notice,
        text: String,
    },
}

#[derive(Deserialize)]
struct Notice {
    kind: String,
}

impl Remark {
    fn of(line: &str) -> Self {
        match serde_json::from_str(line) {
            Ok(Said::Error { what, why, fix }) => {
                let error = Error::failed(what, why);
                let error = fix.into_iter().fold(error, Error::fix);
                Self { kind: None, text: error.to_string() }
            }
            Ok(Said::Notice { notice, text }) => Self { kind: Some(notice.kind), text },
            Err(_) => Self { kind: None, text: line.strip_prefix("trawl: ").unwrap_or(line).to_owned() },
        }
    }
}

/// End of a question.
#[derive(Debug, Default)]
pub struct Outcome {
    is_success: bool,
    pub stopped: Option<Stop>,
    pub remarks: Vec<Remark>,
}

impl Outcome {
    pub fn is_success(&self) -> bool {
        self.is_success
    }

    /// Returns true if the answer has all packets that the store has.
    pub fn is_whole(&self) -> bool {
        let has = |kind: &str| self.remarks.iter().any(|remark| remark.kind.as_deref() == Some(kind));
        self.is_success || (self.stopped.is_none() && has("packets_missing") && !has("cannot_read"))
    }
}

/// Questions about one store.
#[derive(Debug)]
pub struct Questions {
    /// This program, as its path was at the start: an update replaces it.
    program: PathBuf,
    places: Arc<Places>,
    /// Maximum time of a question.
    time: Duration,
}

impl Questions {
    pub fn new(at_once: usize, time: Duration) -> Result<Self> {
        Ok(Self { program: own_binary()?, places: Arc::new(Places::new(at_once)), time })
    }

    /// Starts `trawl` with these arguments once there is a place for the question.
    pub fn start(&self, arguments: &[OsString], client: &Client) -> std::result::Result<Running, Refusal> {
        let place = self.places.enter(|| client.is_gone()).map_err(Refusal::NoPlace)?;
        let mut command = Command::new(&self.program);
        command.args(arguments);
        Ok(Running::start(command, client.clone(), Instant::now() + self.time, place)?)
    }
}

/// A question that is being answered.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// The answer; absent once it is not read any more.
    out: Option<BufReader<ChildStdout>>,
    over: Wake,
    threads: Option<(JoinHandle<Option<Stop>>, JoinHandle<String>)>,
    _place: Place,
}

impl Running {
    fn start(mut command: Command, client: Client, until: Instant, place: Place) -> Result<Self> {
        let over = Wake::new()?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        process::with_signals(process::ends_with_parent(&mut command));
        let mut child = command.spawn().map_err(|e| Error::os(WHAT, e))?;
        let number = child.id();
        let out = child.stdout.take().map(BufReader::new);
        let remarks = child.stderr.take();
        let remarks = thread::spawn(move || remarks.map(remarks_of).unwrap_or_default());
        let ended = process::end_of(number);
        let wake = over.clone();
        let watcher = thread::spawn(move || watch(number, ended?, &client, &wake, until));
        Ok(Self { child, out, over, threads: Some((watcher, remarks)), _place: place })
    }

    /// Ends the question: the rest of its answer is not needed.
    pub fn stop(&self) {
        self.over.ring();
    }

    /// Waits for the end.
    pub fn finish(&mut self) -> Outcome {
        self.out = None;
        let Some((watcher, remarks)) = self.threads.take() else { return Outcome::default() };
        let stopped = watcher.join().unwrap_or_default();
        let status = self.child.wait();
        let remarks = remarks.join().unwrap_or_default();
        let remarks = remarks.lines().map(Remark::of).collect();
        Outcome { is_success: status.is_ok_and(|status| status.success()), stopped, remarks }
    }
}

impl Read for Running {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.out.as_mut().map_or(Ok(0), |out| out.read(buffer))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        self.finish();
    }
}

/// Waits for the end of a process, and kills it if its answer is not needed any more.
fn watch(number: u32, ended: OwnedFd, client: &Client, over: &Wake, until: Instant) -> Option<Stop> {
    loop {
        let _ = events::wait(&[ended.as_fd(), over.as_fd()], CHECK_EVERY);
        if events::is_readable(ended.as_fd()) {
            return None;
        }
        let stop = match () {
            () if over.clear() => None,
            () if client.is_gone() => Some(Stop::Gone),
            () if Instant::now() >= until => Some(Stop::TimeOver),
            () => continue,
        };
        // The process is still waited for, so no other has its number.
        let _ = process::kill(number);
        return stop;
    }
}

fn remarks_of(mut from: impl Read) -> String {
    let mut text = Vec::new();
    let _ = from.by_ref().take(REMARKS).read_to_end(&mut text);
    // A full pipe would stop the process.
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_are_read_from_text_and_json() {
        let remark = |line: &str| Remark::of(line);
        assert_eq!(remark("trawl: not covered: x").text, "not covered: x");
        let json =
            r#"{"error":{"kind":"usage","what":"cannot answer","why":"no such column","fix":"SELECT *","errno":null}}"#;
        let expected = Error::failed("cannot answer", "no such column").fix("SELECT *").to_string();
        assert_eq!(remark(json), Remark { kind: None, text: expected });
        let json = r#"{"notice":{"kind":"packets_missing","packets":3},"text":"3 packets"}"#;
        let expected = Remark { kind: Some("packets_missing".to_owned()), text: "3 packets".to_owned() };
        assert_eq!(remark(json), expected);
        let outcome = |remarks, stopped| Outcome { is_success: false, stopped, remarks };
        assert!(outcome(vec![expected.clone()], None).is_whole());
        assert!(!outcome(vec![expected], Some(Stop::TimeOver)).is_whole());
        assert!(!outcome(vec![remark("trawl: x")], None).is_whole());
    }
}
