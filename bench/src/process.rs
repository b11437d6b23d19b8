//! Child processes of an experiment: run to their end, in the background until they are not needed, or a capture on a
//! CPU of its own, which is awaited until it is ready, ended with an interrupt, and read for its output.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use trawl_sys::{Error, Result, process};

use crate::scratch::MARK;

/// Returns a command with the benchmark's mark, by which its processes are found if the benchmark is killed.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    process::with_signals(&mut command).env(MARK, std::process::id().to_string()).stdin(Stdio::null());
    command
}

/// Returns such a command in a network namespace.
pub fn command_in(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut inside = command("ip");
    inside.args(["netns", "exec", namespace]).arg(program);
    inside
}

/// Returns such a command with the mounts of the host, for programs that pin to the bpffs: `ip netns exec` hides it.
pub fn command_in_network(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut inside = command("nsenter");
    inside.arg(format!("--net=/run/netns/{namespace}")).arg(program);
    inside
}

/// Returns the command line.
fn command_line(command: &Command) -> String {
    let command_line = std::iter::once(command.get_program()).chain(command.get_args());
    command_line.map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Runs a command to its end; its output is the error if it fails.
pub fn run(command: &mut Command) -> Result<String> {
    let what = command_line(command);
    let output = command.output().map_err(|e| Error::os(format!("cannot start {what}"), e))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = match text(&output.stderr) {
        said if said.is_empty() => text(&output.stdout),
        said => said,
    };
    Err(Error::failed(what, last_lines(&said, 4)))
}

/// Runs a command, and parses the JSON that it prints.
pub fn json_of(command: &mut Command) -> Result<Value> {
    let text = run(command)?;
    serde_json::from_str(&text).map_err(|e| Error::failed(format!("{} printed no JSON", command_line(command)), e))
}

/// A process that runs in the background until it is dropped.
pub struct Background(Child);

impl Background {
    /// Starts a command, and waits until it prints `ready` on standard output.
    pub fn start(command: &mut Command, ready: &str) -> Result<Self> {
        let what = command_line(command);
        let mut started = Self::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
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
        Err(Error::failed(what, format!("it ended before it was ready: {}", String::from_utf8_lossy(&said).trim())))
    }

    /// Starts a command whose output the caller has redirected.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let what = command_line(command);
        let child = command.spawn();
        child.map(Self).map_err(|e| Error::os(format!("cannot start {what}"), e))
    }

    /// Starts a command, keeps its standard error for [`Self::last_errors`], and discards its standard output.
    pub fn spawn_with_errors(command: &mut Command) -> Result<Self> {
        Self::spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Ends it, and returns the last lines of its errors.
    pub fn last_errors(&mut self) -> String {
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            let _ = pipe.read_to_string(&mut said);
        }
        match last_lines(&said, 3) {
            last if last.is_empty() => "it sent nothing and printed nothing".to_owned(),
            last => last,
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The interrupt lets it detach its programs.
        let _ = process::interrupt(self.0.id());
        let deadline = Instant::now() + TIME_TO_END;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the last lines of a text that are not empty, as one.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

const TIME_TO_END: Duration = Duration::from_secs(1);
/// Time without CPU use after which a capture has processed everything: tcpdump receives a partly filled block after a
/// second.
pub const IDLE: Duration = Duration::from_millis(1500);
const MAX_IDLE_WAIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A running capture program.
pub struct Peer {
    name: String,
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Its line of output when it was ready.
    last_line: String,
}

impl Peer {
    /// Starts a command, and waits until it prints `ready` on standard error.
    pub fn start(name: &str, command: &mut Command, cpu: usize, ready: &str) -> Result<Self> {
        let fail = |e| Error::os(format!("cannot start {name}"), e);
        let mut child = process::with_signals(command)
            .env(MARK, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        process::pin(child.id(), cpu)?;
        let stderr =
            child.stderr.take().ok_or_else(|| Error::failed(format!("cannot read the output of {name}"), "no pipe"))?;
        let peer = Self { name: name.to_owned(), child, stderr: BufReader::new(stderr), last_line: String::new() };
        peer.wait_for(ready)
    }

    /// Waits until it prints `ready` on standard error.
    pub fn wait_for(mut self, ready: &str) -> Result<Self> {
        let mut said = String::new();
        loop {
            let start = said.len();
            match self.stderr.read_line(&mut said) {
                Ok(count) if count > 0 && said[start..].contains(ready) => {
                    said[start..].clone_into(&mut self.last_line);
                    return Ok(self);
                }
                Ok(count) if count > 0 => {}
                _ => {
                    let what = format!("{} did not start", self.name);
                    return Err(Error::failed(what, said.trim()));
                }
            }
        }
    }

    /// Returns the number at the end of the awaited line.
    pub fn last_number(&self) -> u32 {
        let digits = self.last_line.split_whitespace().last();
        digits.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Reads its output until it ends on its own.
    pub fn read_to_end(mut self) -> Result<String> {
        let mut said = String::new();
        let read = self.stderr.read_to_string(&mut said);
        read.and_then(|_| self.child.wait()).map_err(|e| Error::os(format!("cannot end {}", self.name), e))?;
        Ok(said)
    }

    /// Returns the CPU seconds used so far.
    pub fn cpu_seconds(&self) -> f64 {
        process::cpu_seconds(self.child.id())
    }

    /// Returns how often its threads have waited so far; each of them ended with a wake-up.
    pub fn wake_ups(&self) -> u64 {
        process::wake_ups(self.child.id())
    }

    /// Returns its peak resident size in bytes, including rings; `None` if the kernel does not report it.
    pub fn peak_memory(&self) -> Option<u64> {
        bytes_in(&self.status()?, "VmHWM:")
    }

    /// Returns its resident size now.
    pub fn resident_memory(&self) -> Option<u64> {
        bytes_in(&self.status()?, "VmRSS:")
    }

    fn status(&self) -> Option<String> {
        std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()
    }

    /// Waits until the process has processed all packets, which is the case once its CPU time stops increasing.
    pub fn wait_until_idle(&self) {
        let start = Instant::now();
        let mut last = (self.cpu_seconds(), start);
        while last.1.elapsed() < IDLE && start.elapsed() < MAX_IDLE_WAIT {
            std::thread::sleep(POLL_INTERVAL);
            let now = self.cpu_seconds();
            if now > last.0 {
                last = (now, Instant::now());
            }
        }
    }

    /// Interrupts it and returns its final output.
    pub fn finish(self) -> Result<String> {
        process::interrupt(self.child.id())?;
        self.read_to_end()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process is still running only if an error occurred before `finish`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the bytes in a line of /proc/PID/status.
fn bytes_in(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\ttrawl\nVmHWM:\t    9000 kB\nVmRSS:\t 8000 kB\n";
        assert_eq!(bytes_in(status, "VmHWM:"), Some(9000 << 10));
        assert_eq!(bytes_in(status, "VmRSS:"), Some(8000 << 10));
        assert_eq!(bytes_in("", "VmRSS:"), None);
    }
}
