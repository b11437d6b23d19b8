//! The helper `trawl-dpdk`, a process of its own, and the memory shared with it: blocks come through a ring that it
//! writes and we read. The protocol is told in dpdk/exchange.h.

use std::env;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use trawl_bpf::layout::Shared as _;
use trawl_bpf::layout::dpdk::{
    COMMAND_GO, COMMAND_STOP, EXCHANGE_ALIGN, EXCHANGE_ALL_QUEUES, EXCHANGE_FILTER_MAX,
    EXCHANGE_HEADER, EXCHANGE_PORTS, Exchange, ExchangeInstruction, ExchangePort,
};
use trawl_sys::helper::{self, Answer, Duty};
use trawl_sys::memory::Mapping;
use trawl_sys::process::companion;
use trawl_sys::{Error, Result, events};

use crate::packet_socket::Instruction;
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
        let memory = shared_file("trawl-dpdk ring", length(ring_bytes))?;
        let log = File::from(shared_file("trawl-dpdk log", 0)?);
        let length = length(ring_bytes) as usize;
        let mut mapping = Mapping::of_file(memory.as_fd(), length, 0)?;
        fill(&mut mapping, request, ring_bytes)?;
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
        go(&self.exchange);
    }

    pub fn stop(&self) {
        stop(&self.exchange);
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

// Whether the helper is installed, and whether it is of this build.

/// What the helper is called, beside trawl's own binary.
pub const PROGRAM: &str = "trawl-dpdk";
/// Names another one.
pub const VARIABLE: &str = "TRAWL_DPDK";

/// Where the helper is: where the environment says, beside trawl's binary, or where packages put it.
pub fn find() -> Result<Option<PathBuf>> {
    if let Some(named) = env::var_os(VARIABLE) {
        return Ok(Some(PathBuf::from(named)).filter(|path| path.is_file()));
    }
    companion(PROGRAM)
}

/// The helper, as it is seen without an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    NotThere,
    /// It cannot be run: the libraries of DPDK are gone, say.
    DoesNotRun {
        program: PathBuf,
        said: String,
    },
    OtherBuild {
        program: PathBuf,
    },
    Ready {
        program: PathBuf,
        dpdk: String,
    },
}

/// Asks the helper for its version.
pub fn presence() -> Presence {
    match find() {
        Ok(Some(program)) => presence_of(program),
        Ok(None) => Presence::NotThere,
        Err(error) => Presence::DoesNotRun {
            program: PROGRAM.into(),
            said: error.to_string(),
        },
    }
}

fn presence_of(program: PathBuf) -> Presence {
    let output = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let said = match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Presence::DoesNotRun { program, said };
        }
        Err(error) => {
            let said = error.to_string();
            return Presence::DoesNotRun { program, said };
        }
    };
    match said.strip_prefix(&format!("{PROGRAM} {EXCHANGE_ABI} ")) {
        Some(dpdk) => Presence::Ready {
            dpdk: dpdk.to_owned(),
            program,
        },
        None => Presence::OtherBuild { program },
    }
}

// The memory that is shared with the helper: its first page says what to do and what is done, and a ring of finished
// blocks follows. The protocol is told in dpdk/exchange.h.

const BLOCK_ENHANCED_PACKET: u32 = 6;
/// A header and the length once more.
const BLOCK_LEAST: u64 = 32;
/// The ring is given back to the helper in this many pieces.
const GIVEN_BACK_IN: u64 = 64;

/// A port's counts, by DPDK and by the helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub accepted: u64,
    pub filtered: u64,
    pub no_buffer: u64,
    pub ring_full: u64,
    pub handed_over: u64,
}

/// The reading side of the ring.
#[derive(Debug)]
pub struct Blocks {
    exchange: Arc<Mapping>,
    ring_bytes: u64,
    tail: u64,
}

/// The ring's contents are not what they should be.
#[derive(Clone, Copy, Debug)]
pub struct Broken;

impl Blocks {
    /// From this time on more may come, in nanoseconds since 1970. To be asked before `take`, which then shows all that
    /// is earlier.
    pub fn horizon(&self) -> u64 {
        word(&self.exchange, offset_of!(Exchange, horizon)).load(Ordering::Acquire)
    }

    /// The helper has said all: what `take` shows from now on is the rest.
    pub fn is_done(&self) -> bool {
        word(&self.exchange, offset_of!(Exchange, done)).load(Ordering::Acquire) != 0
    }

    pub fn counts(&self, port: usize) -> Counts {
        let base =
            offset_of!(Exchange, ports) + size_of::<ExchangePort>() * (port % EXCHANGE_PORTS);
        let of = |offset| word(&self.exchange, base + offset).load(Ordering::Acquire);
        Counts {
            accepted: of(offset_of!(ExchangePort, accepted)),
            filtered: of(offset_of!(ExchangePort, filtered)),
            no_buffer: of(offset_of!(ExchangePort, no_buffer)),
            ring_full: of(offset_of!(ExchangePort, ring_full)),
            handed_over: of(offset_of!(ExchangePort, handed_over)),
        }
    }

    pub fn tell_to_stop(&self) {
        stop(&self.exchange);
    }

    /// Shows the blocks that are there, each whole; says how many.
    pub fn take(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<u64, Broken> {
        let head = word(&self.exchange, offset_of!(Exchange, head)).load(Ordering::Acquire);
        if head.wrapping_sub(self.tail) > self.ring_bytes {
            return Err(Broken);
        }
        // The helper reads that word: it is not written for each block.
        let piece = self.ring_bytes / GIVEN_BACK_IN;
        let (mut shown, mut given_back) = (0, self.tail);
        while self.tail != head {
            let at = self.tail % self.ring_bytes;
            let finished = (head - self.tail).min(self.ring_bytes - at);
            self.tail += match self.length(at, finished)? {
                0 => self.ring_bytes - at,
                length => {
                    show(self.bytes(at, length));
                    shown += 1;
                    length.next_multiple_of(EXCHANGE_ALIGN as u64)
                }
            };
            if self.tail > head {
                return Err(Broken);
            }
            if self.tail - given_back >= piece {
                given_back = self.tail;
                self.give_back();
            }
        }
        self.give_back();
        Ok(shown)
    }

    /// The helper may write again up to where has been read.
    fn give_back(&self) {
        word(&self.exchange, offset_of!(Exchange, tail)).store(self.tail, Ordering::Release);
    }

    /// How long the block at this place is, of which this many bytes are finished; 0 where the rest is left empty.
    fn length(&self, at: u64, finished: u64) -> Result<u64, Broken> {
        let place = EXCHANGE_HEADER + at as usize;
        if finished < EXCHANGE_ALIGN as u64 {
            return Err(Broken);
        }
        match self.exchange.short(place).load(Ordering::Relaxed) {
            0 => Ok(0),
            BLOCK_ENHANCED_PACKET => {
                let length = u64::from(self.exchange.short(place + 4).load(Ordering::Relaxed));
                (length >= BLOCK_LEAST && length.is_multiple_of(4) && length <= finished)
                    .then_some(length)
                    .ok_or(Broken)
            }
            _ => Err(Broken),
        }
    }

    fn bytes(&self, at: u64, length: u64) -> &[u8] {
        let start = self.exchange.at(EXCHANGE_HEADER + at as usize);
        let _ = self.exchange.at(EXCHANGE_HEADER + (at + length) as usize);
        // SAFETY: the range lies within the mapping (just checked), was finished before the head was read with acquire
        // ordering, and the helper does not write there again before the tail has passed it, which needs `&mut self`.
        unsafe { slice::from_raw_parts(start, length as usize) }
    }
}

/// How long the memory is for a ring of this length.
fn length(ring_bytes: u64) -> u64 {
    EXCHANGE_HEADER as u64 + ring_bytes
}

fn word(exchange: &Mapping, offset: usize) -> &AtomicU64 {
    exchange.word(offset)
}

fn go(exchange: &Mapping) {
    word(exchange, offset_of!(Exchange, command)).store(COMMAND_GO as u64, Ordering::Release);
}

fn stop(exchange: &Mapping) {
    word(exchange, offset_of!(Exchange, command)).store(COMMAND_STOP as u64, Ordering::Release);
}

/// Puts in what the helper is to do.
fn fill(exchange: &mut Mapping, request: &Request<'_>, ring_bytes: u64) -> Result<()> {
    if request.filter.len() > EXCHANGE_FILTER_MAX {
        let why = format!(
            "it has {} instructions, and DPDK takes {EXCHANGE_FILTER_MAX}",
            request.filter.len()
        );
        return Err(Error::failed(
            "cannot use this filter with the dpdk tap",
            why,
        ));
    }
    exchange.write(offset_of!(Exchange, ring_bytes), &ring_bytes.to_ne_bytes());
    let mut number = |offset, value: u32| exchange.write(offset, &value.to_ne_bytes());
    number(offset_of!(Exchange, snaplen), request.snaplen);
    number(
        offset_of!(Exchange, queue),
        request.queue.unwrap_or(EXCHANGE_ALL_QUEUES as u32),
    );
    number(offset_of!(Exchange, directions), request.directions);
    number(
        offset_of!(Exchange, filter_length),
        request.filter.len() as u32,
    );
    for (place, one) in request.filter.iter().enumerate() {
        let instruction = ExchangeInstruction {
            operation: u32::from(one.code) | u32::from(one.jt) << 16 | u32::from(one.jf) << 24,
            k: one.k,
        };
        let at = offset_of!(Exchange, filter) + size_of::<ExchangeInstruction>() * place;
        exchange.write(at, &instruction.to_bytes());
    }
    Ok(())
}
