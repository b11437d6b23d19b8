//! The helper `trawl-dpdk`, a process of its own, and the memory shared with it: blocks come through a ring that it
//! writes and we read. The protocol is told in dpdk/exchange.h.

mod exchange;
mod presence;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use trawl_sys::helper::{self, Answer, Duty};
use trawl_sys::memory::Mapping;
use trawl_sys::{Error, Result, events};

use crate::packet_socket::Instruction;
pub use exchange::{Blocks, Broken, Counts};
pub use presence::{PROGRAM, Presence, VARIABLE, find, presence};
pub use trawl_bpf::layout::dpdk::{
    DIRECTION_RECEIVED, DIRECTION_SENT, EXCHANGE_ABI, EXCHANGE_PORTS as PORTS,
};

const POLL: Duration = Duration::from_millis(20);
/// The last words of DPDK's log that an error quotes.
const LOG_LINES: usize = 4;
const LOG_BYTES: u64 = 4096;

/// What it is asked to do.
#[derive(Debug)]
pub struct Request<'a> {
    pub program: &'a Path,
    pub prefix: &'a str,
    /// All of the application's where none is named.
    pub port: Option<u16>,
    pub queue: Option<u32>,
    /// `DIRECTION_…`, together.
    pub directions: u32,
    pub snaplen: u32,
    pub filter: &'a [Instruction],
    pub ring_bytes: usize,
}

/// A line that it said: a word, and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub word: String,
    pub rest: Vec<String>,
}

impl Line {
    fn parse(text: &str) -> Self {
        let mut words = text.split('\t').map(str::to_owned);
        Self {
            word: words.next().unwrap_or_default(),
            rest: words.collect(),
        }
    }

    pub fn field(&self, number: usize) -> &str {
        self.rest.get(number).map_or("", String::as_str)
    }
}

/// The helper at work. When this is dropped it is told to stop, and given time for it.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    log: File,
    said: Said,
    exchange: Arc<Mapping>,
    ring_bytes: u64,
}

impl Helper {
    pub fn start(request: &Request<'_>) -> Result<Self> {
        let what = || format!("cannot run {}", request.program.display());
        let ring_bytes = request.ring_bytes.next_multiple_of(4096) as u64;
        let memory = shared_file("trawl-dpdk ring", exchange::length(ring_bytes))?;
        let log = File::from(shared_file("trawl-dpdk log", 0)?);
        let length = exchange::length(ring_bytes) as usize;
        let mut mapping = Mapping::of_file(memory.as_fd(), length, 0)?;
        exchange::fill(&mut mapping, request, ring_bytes)?;
        let mut command = Command::new(request.program);
        command.args(["--file-prefix", request.prefix]);
        if let Some(port) = request.port {
            command.args(["--ports", &port.to_string()]);
        }
        let log_of_child = log.try_clone().map_err(|e| Error::os(what(), e))?;
        let mut child = command
            .stdin(Stdio::from(memory))
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log_of_child))
            // A terminal's signals are for trawl, which then tells the helper to stop.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::os(what(), e))?;
        let pipe = child
            .stdout
            .take()
            .ok_or_else(|| Error::failed(what(), "its output cannot be read"))?;
        Ok(Self {
            child,
            log,
            said: Said::new(pipe)?,
            exchange: Arc::new(mapping),
            ring_bytes,
        })
    }

    /// The next thing that it says; `None` when it has ended, or nothing came in time.
    pub fn next_line(&mut self, patience: Duration) -> Option<Line> {
        let began = Instant::now();
        loop {
            if let Some(line) = self.said.next() {
                return Some(line);
            }
            if self.said.ended || began.elapsed() >= patience {
                return None;
            }
            // A failed wait is a short one.
            let _ = events::wait(&[self.said.pipe.as_fd()], POLL);
        }
    }

    /// What came without being waited for.
    pub fn line_at_hand(&mut self) -> Option<Line> {
        self.said.next()
    }

    /// It has closed its output: the process is gone.
    pub fn is_gone(&self) -> bool {
        self.said.ended
    }

    /// The end of what DPDK said itself, for people.
    pub fn last_words(&self) -> Option<String> {
        let length = self.log.metadata().ok()?.len();
        let mut bytes = vec![0; length.min(LOG_BYTES) as usize];
        let from = length.saturating_sub(LOG_BYTES);
        self.log.read_exact_at(&mut bytes, from).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        // Devices of the machine that are none of the application's are named at each start.
        let tells = |line: &&str| {
            let of_others = ["not driven by the primary process", "EAL: Requested device"];
            !line.is_empty() && !of_others.iter().any(|words| line.contains(words))
        };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(tells).collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        (!last.is_empty()).then(|| last.join("; "))
    }

    pub fn go(&self) {
        exchange::go(&self.exchange);
    }

    pub fn stop(&self) {
        exchange::stop(&self.exchange);
    }

    pub fn blocks(&self) -> Blocks {
        Blocks {
            exchange: Arc::clone(&self.exchange),
            ring_bytes: self.ring_bytes,
            tail: 0,
        }
    }

    /// Waits for its end; kills it after this time.
    pub fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if began.elapsed() < patience => thread::sleep(Duration::from_millis(2)),
                _ => break,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop();
        self.wait(Duration::from_secs(10));
    }
}

/// A process with all rights that can remove what a killed helper left in an application, for a capture that has given
/// up the right to run programs.
#[derive(Debug)]
pub struct Cleaner(helper::Helper);

impl Cleaner {
    /// To be called before threads are started.
    pub fn start(program: &Path, prefix: &str) -> Result<Self> {
        let mut duty = Clear { program, prefix };
        helper::Helper::start(c"trawl-dpdk-end", None, &mut duty).map(Self)
    }

    /// Removes it now; what the helper said.
    pub fn clear(&self) -> Vec<Line> {
        let said = self.0.ask(b"clear").map(|answer| answer.bytes);
        String::from_utf8_lossy(&said.unwrap_or_default())
            .lines()
            .map(Line::parse)
            .collect()
    }
}

struct Clear<'a> {
    program: &'a Path,
    prefix: &'a str,
}

impl Duty for Clear<'_> {
    fn answer(&mut self, _request: &[u8]) -> Answer {
        let output = Command::new(self.program)
            .args(["--file-prefix", self.prefix, "--clear"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .output();
        Answer {
            bytes: output.map(|output| output.stdout).unwrap_or_default(),
            file: None,
        }
    }
}

/// The helper's lines, as they come.
#[derive(Debug)]
struct Said {
    pipe: ChildStdout,
    bytes: Vec<u8>,
    ended: bool,
}

impl Said {
    fn new(pipe: ChildStdout) -> Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)
            .map_err(|e| Error::os("cannot read from trawl-dpdk", e.into()))?;
        Ok(Self {
            pipe,
            bytes: Vec::new(),
            ended: false,
        })
    }

    fn next(&mut self) -> Option<Line> {
        let mut buffer = [0; 4096];
        while !self.ended && !self.bytes.contains(&b'\n') {
            match self.pipe.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => self.bytes.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
        }
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(Line::parse(String::from_utf8_lossy(&line).trim_end()))
    }
}

fn shared_file(name: &str, bytes: u64) -> Result<OwnedFd> {
    let os =
        |e: rustix::io::Errno| Error::os("cannot make memory to share with trawl-dpdk", e.into());
    let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(os)?;
    ftruncate(&file, bytes).map_err(os)?;
    Ok(file)
}
