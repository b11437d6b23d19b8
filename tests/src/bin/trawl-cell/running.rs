//! trawl as a process of a cell: a command that ends with status 1 or 2 is a refusal, with its message.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trawl_tests::wait::patience;
use trawl_tests::{binary, wait_until};

use crate::cell::Cell;
use crate::check;
use crate::outcome::{Problem, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A started trawl, whose output goes to files.
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// The output of a command that ended successfully.
pub struct Ended {
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    pub fn start(cell: &Cell, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let [stdout, stderr] = ["out", "err"].map(|kind| cell.path(&format!("{number}.{kind}")));
        let create = |path| File::create(path).expect("a file of this cell");
        let child = Command::new(binary::path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(create(&stdout))
            .stderr(create(&stderr))
            .spawn()
            .expect("trawl starts");
        Self { child, stdout, stderr }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).expect("a file of this cell")
    }

    /// Returns once this text is on standard error.
    pub fn ready(mut self, text: &str) -> Result<Self> {
        let deadline = Instant::now() + patience();
        while !self.said().contains(text) {
            if self.child.try_wait().expect("a child of this process").is_some() {
                self.end()?;
                return Err(Problem::Failed(format!("it ended without saying {text:?}")));
            }
            check!(Instant::now() < deadline, "it did not say {text:?} in time, but: {}", self.said());
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(self)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("trawl runs");
    }

    /// Waits for the end of the process.
    pub fn end(&mut self) -> Result<Ended> {
        let mut status = None;
        wait_until("trawl ends", || {
            status = self.child.try_wait().expect("a child of this process");
            status.is_some()
        });
        let stderr = self.said();
        let stdout = fs::read_to_string(&self.stdout).expect("a file of this cell");
        match status.and_then(|status| status.code()) {
            Some(0) => Ok(Ended { stdout, stderr }),
            Some(1 | 2) => Err(Problem::Refused(message(&stderr))),
            _ => Err(Problem::Failed(format!("trawl ended by {status:?}: {stderr}"))),
        }
    }

    /// Interrupts it, and waits for its end.
    pub fn stop(&mut self) -> Result<Ended> {
        self.signal(Signal::INT);
        self.end()
    }

    /// Waits for its end; interrupts it after the time limit, so that it reports its counts.
    pub fn end_or_stop(&mut self, limit: Duration) -> Result<Ended> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if self.child.try_wait().expect("a child of this process").is_some() {
                return self.end();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.stop()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the error of a command's standard error, without progress.
fn message(stderr: &str) -> String {
    let lines = stderr.lines().filter(|line| !line.contains("using tap"));
    let lines: Vec<String> = lines.map(|line| error_in_json(line).unwrap_or_else(|| line.to_owned())).collect();
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_start_matches("trawl: ")).collect();
    lines.join(" / ")
}

/// Returns the sentence of an error that a command with `--json` prints.
fn error_in_json(line: &str) -> Option<String> {
    let value: Value = serde_json::from_str(line).ok()?;
    let error = &value["error"];
    Some(format!("{}: {}", error["what"].as_str()?, error["why"].as_str()?))
}

/// Runs trawl to its end, and returns its standard output.
pub fn trawl(cell: &Cell, arguments: &[&str]) -> Result<String> {
    Ok(Running::start(cell, arguments).end()?.stdout)
}

/// Runs trawl to its end, and returns the JSON that it prints.
pub fn json(cell: &Cell, arguments: &[&str]) -> Result<Value> {
    parse(&trawl(cell, arguments)?)
}

pub fn parse(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Problem::Failed(format!("no JSON ({e}): {text}")))
}

/// Returns the number under a key of the JSON of a feature.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {value}"))
}
