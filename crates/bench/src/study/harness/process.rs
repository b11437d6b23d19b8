//! Programs as child processes of an experiment: run to their end, or in the background until they are not needed.

use std::ffi::OsStr;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use trawl_sys::{Error, Result};

use crate::leftovers::MARK;

/// A command that carries the benchmark's mark, so that it is found if the benchmark is killed.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    trawl_sys::process::with_signals(&mut command)
        .env(MARK, std::process::id().to_string())
        .stdin(Stdio::null());
    command
}

/// The same in a network namespace.
pub fn command_in(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut inside = command("ip");
    inside.args(["netns", "exec", namespace]).arg(program);
    inside
}

/// The same with the mounts of the host, for programs that pin to the bpffs: `ip netns exec` hides it.
pub fn command_beside(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut inside = command("nsenter");
    inside
        .arg(format!("--net=/run/netns/{namespace}"))
        .arg(program);
    inside
}

/// The command as one types it.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs it to its end; what it says is the error where it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let what = words(command);
    let output = command
        .output()
        .map_err(|e| Error::os(format!("cannot start {what}"), e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = match text(&output.stderr) {
        said if said.is_empty() => text(&output.stdout),
        said => said,
    };
    let last: Vec<&str> = said.lines().rev().take(4).collect();
    let last: Vec<&str> = last.into_iter().rev().collect();
    Err(Error::failed(what, last.join("; ")))
}

/// Runs trawl, and reads the JSON that it prints.
pub fn json<A: AsRef<OsStr>>(trawl: &Path, arguments: &[A]) -> Result<Value> {
    json_of(command(trawl).args(arguments))
}

/// Runs a command, and reads the JSON that it prints.
pub fn json_of(command: &mut Command) -> Result<Value> {
    let text = run(command)?;
    serde_json::from_str(&text)
        .map_err(|e| Error::failed(format!("{} printed no JSON", words(command)), e))
}

/// Runs in the background until it is dropped.
#[derive(Debug)]
pub struct Background(std::process::Child);

impl Background {
    /// Starts it, and waits until it prints `ready` on standard output.
    pub fn start(command: &mut Command, ready: &str) -> Result<Self> {
        let what = words(command);
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::os(format!("cannot start {what}"), e))?;
        let mut started = Self(child);
        let mut said = Vec::new();
        let mut byte = [0];
        let mut output = started.0.stdout.take();
        while let Some(pipe) = output.as_mut() {
            if !matches!(pipe.read(&mut byte), Ok(1)) {
                break;
            }
            said.push(byte[0]);
            if said.ends_with(ready.as_bytes()) {
                started.0.stdout = output;
                return Ok(started);
            }
        }
        let _ = started.0.kill();
        if let Some(pipe) = started.0.stderr.as_mut() {
            let _ = pipe.read_to_end(&mut said);
        }
        Err(Error::failed(
            what,
            format!(
                "it ended before it was ready: {}",
                String::from_utf8_lossy(&said).trim()
            ),
        ))
    }

    /// Starts it, whose output goes elsewhere.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let what = words(command);
        let child = command.spawn();
        child
            .map(Self)
            .map_err(|e| Error::os(format!("cannot start {what}"), e))
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
