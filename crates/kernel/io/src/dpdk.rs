//! The helper process `trawl-dpdk`, and the memory shared with it: a ring of blocks that the helper writes and trawl
//! reads. The protocol is described in dpdk/exchange.h.

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
    COMMAND_GO, COMMAND_STOP, EXCHANGE_ALIGN, EXCHANGE_ALL_QUEUES, EXCHANGE_FILTER_MAX, EXCHANGE_HEADER,
    EXCHANGE_PORTS, Exchange, ExchangeInstruction, ExchangePort,
};
use trawl_sys::memory::Mapping;
use trawl_sys::process::companion;
use trawl_sys::rights::helper::{self, Duty, HelperAnswer};
use trawl_sys::{Error, Result, events};

use crate::packet_socket::Instruction;
pub use trawl_bpf::layout::dpdk::{DIRECTION_RECEIVED, DIRECTION_SENT, EXCHANGE_ABI, EXCHANGE_PORTS as PORTS};

const POLL: Duration = Duration::from_millis(20);
/// Number of last lines of DPDK's log that an error quotes.
const LOG_LINES: usize = 4;
const LOG_BYTES: u64 = 4096;

/// The parameters of a capture by the helper.
#[derive(Debug)]
pub struct DpdkRequest<'a> {
    pub program: &'a Path,
    pub prefix: &'a str,
    /// Port of the application; `None` for all of its ports.
    pub port: Option<u16>,
    pub queue: Option<u32>,
    /// Set of `DIRECTION_…` bits.
    pub directions: u32,
    pub snaplen: u32,
    pub filter: &'a [Instruction],
    pub ring_bytes: usize,
}

/// A line of the helper's output: a keyword and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkLine {
    pub word: String,
    pub rest: Vec<String>,
}

impl DpdkLine {
    fn parse(text: &str) -> Self {
        let mut fields = text.split('\t').map(str::to_owned);
        Self { word: fields.next().unwrap_or_default(), rest: fields.collect() }
    }

    pub fn field(&self, number: usize) -> &str {
        self.rest.get(number).map_or("", String::as_str)
    }
}

/// The running helper. Dropping it asks the helper to stop, and waits for a limited time.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    log: File,
    output: HelperOutput,
    exchange: Arc<Mapping>,
    ring_bytes: u64,
}

impl Helper {
    pub fn start(request: &DpdkRequest<'_>) -> Result<Self> {
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
            // A terminal's signals go to trawl alone, which then asks the helper to stop.
            .process_group(0)
            .spawn()
            .map_err(|e| Error::os(what(), e))?;
        let pipe = child.stdout.take().ok_or_else(|| Error::failed(what(), "its output cannot be read"))?;
        Ok(Self { child, log, output: HelperOutput::new(pipe)?, exchange: Arc::new(mapping), ring_bytes })
    }

    /// Returns the next line; `None` if the helper has ended or no line arrived in time.
    pub fn next_line(&mut self, patience: Duration) -> Option<DpdkLine> {
        let began = Instant::now();
        loop {
            if let Some(line) = self.output.next() {
                return Some(line);
            }
            if self.output.ended || began.elapsed() >= patience {
                return None;
            }
            // A failed wait counts as a short one.
            let _ = events::wait(&[self.output.pipe.as_fd()], POLL);
        }
    }

    /// Returns a line that has already arrived, without waiting.
    pub fn line_at_hand(&mut self) -> Option<DpdkLine> {
        self.output.next()
    }

    /// Returns true if the helper has closed its output: its process is gone.
    pub fn is_gone(&self) -> bool {
        self.output.ended
    }

    /// Returns the last lines of DPDK's own log, for people.
    pub fn last_message(&self) -> Option<String> {
        let length = self.log.metadata().ok()?.len();
        let mut bytes = vec![0; length.min(LOG_BYTES) as usize];
        let from = length.saturating_sub(LOG_BYTES);
        self.log.read_exact_at(&mut bytes, from).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        // At each start, DPDK lists devices of the machine that the application does not use.
        let is_relevant = |line: &&str| {
            let unused_devices = ["not driven by the primary process", "EAL: Requested device"];
            !line.is_empty() && !unused_devices.iter().any(|text| line.contains(text))
        };
        let lines: Vec<&str> = text.lines().map(str::trim).filter(is_relevant).collect();
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
        Blocks { exchange: Arc::clone(&self.exchange), ring_bytes: self.ring_bytes, tail: 0 }
    }

    /// Waits for the helper to end; kills it after this time.
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

/// A fully privileged process that can remove the remains of a killed helper from an application, for a capture that
/// has given up the right to run programs.
#[derive(Debug)]
pub struct Cleaner(helper::Helper);

impl Cleaner {
    /// Starts the process. Requires that no threads have been started.
    pub fn start(program: &Path, prefix: &str) -> Result<Self> {
        let mut duty = Clear { program, prefix };
        helper::Helper::start(c"trawl-dpdk-end", None, &mut duty).map(Self)
    }

    /// Removes the remains now, and returns the helper's output.
    pub fn clear(&self) -> Vec<DpdkLine> {
        let said = self.0.ask(b"clear").map(|answer| answer.bytes);
        String::from_utf8_lossy(&said.unwrap_or_default()).lines().map(DpdkLine::parse).collect()
    }
}

struct Clear<'a> {
    program: &'a Path,
    prefix: &'a str,
}

impl Duty for Clear<'_> {
    fn answer(&mut self, _request: &[u8]) -> HelperAnswer {
        let output = Command::new(self.program)
            .args(["--file-prefix", self.prefix, "--clear"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .output();
        HelperAnswer { bytes: output.map(|output| output.stdout).unwrap_or_default(), file: None }
    }
}

/// The lines that the helper prints, in order.
#[derive(Debug)]
struct HelperOutput {
    pipe: ChildStdout,
    bytes: Vec<u8>,
    ended: bool,
}

impl HelperOutput {
    fn new(pipe: ChildStdout) -> Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true).map_err(|e| Error::os("cannot read from trawl-dpdk", e.into()))?;
        Ok(Self { pipe, bytes: Vec::new(), ended: false })
    }

    fn next(&mut self) -> Option<DpdkLine> {
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
        Some(DpdkLine::parse(String::from_utf8_lossy(&line).trim_end()))
    }
}

fn shared_file(name: &str, bytes: u64) -> Result<OwnedFd> {
    let os = |e: rustix::io::Errno| Error::os("cannot create memory to share with trawl-dpdk", e.into());
    let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(os)?;
    ftruncate(&file, bytes).map_err(os)?;
    Ok(file)
}

// Presence of the helper, and its build.

/// Name of the helper, which is next to trawl's own binary.
pub const PROGRAM: &str = "trawl-dpdk";
/// Environment variable that names another helper.
pub const VARIABLE: &str = "TRAWL_DPDK";

/// Finds the helper: the path in the environment, next to trawl's binary, or the directory of the packages.
pub fn find() -> Result<Option<PathBuf>> {
    if let Some(named) = env::var_os(VARIABLE) {
        return Ok(Some(PathBuf::from(named)).filter(|path| path.is_file()));
    }
    companion(PROGRAM)
}

/// State of the helper, found without an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    NotThere,
    /// The helper cannot run, for example because DPDK's libraries are missing.
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

/// Runs the helper to learn its version.
pub fn presence() -> Presence {
    match find() {
        Ok(Some(program)) => presence_of(program),
        Ok(None) => Presence::NotThere,
        Err(error) => Presence::DoesNotRun { program: PROGRAM.into(), said: error.to_string() },
    }
}

fn presence_of(program: PathBuf) -> Presence {
    let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    let said = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
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
        Some(dpdk) => Presence::Ready { dpdk: dpdk.to_owned(), program },
        None => Presence::OtherBuild { program },
    }
}

// The memory that is shared with the helper: a first page with the request and the state, and a ring of finished
// blocks. The protocol is described in dpdk/exchange.h.

const BLOCK_ENHANCED_PACKET: u32 = 6;
/// Length of the shortest block: a header and the trailing length.
const BLOCK_MIN: u64 = 32;
/// Number of pieces in which the ring is given back to the helper.
const PIECES_PER_RING: u64 = 64;

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

/// Error: the contents of the ring are invalid.
#[derive(Clone, Copy, Debug)]
pub struct Broken;

impl Blocks {
    /// Returns the time, in nanoseconds since 1970, before which no further block can lie. It is read before `drain`,
    /// which then passes on all earlier blocks.
    pub fn horizon(&self) -> u64 {
        word(&self.exchange, offset_of!(Exchange, horizon)).load(Ordering::Acquire)
    }

    /// Returns true if the helper has written its last block; `drain` passes on the rest.
    pub fn is_done(&self) -> bool {
        word(&self.exchange, offset_of!(Exchange, done)).load(Ordering::Acquire) != 0
    }

    pub fn counts(&self, port: usize) -> Counts {
        let base = offset_of!(Exchange, ports) + size_of::<ExchangePort>() * (port % EXCHANGE_PORTS);
        let of = |offset| word(&self.exchange, base + offset).load(Ordering::Acquire);
        Counts {
            accepted: of(offset_of!(ExchangePort, accepted)),
            filtered: of(offset_of!(ExchangePort, filtered)),
            no_buffer: of(offset_of!(ExchangePort, no_buffer)),
            ring_full: of(offset_of!(ExchangePort, ring_full)),
            handed_over: of(offset_of!(ExchangePort, handed_over)),
        }
    }

    pub fn request_stop(&self) {
        stop(&self.exchange);
    }

    /// Passes each finished block to `show`, and returns their number.
    pub fn drain(&mut self, show: &mut dyn FnMut(&[u8])) -> Result<u64, Broken> {
        let head = word(&self.exchange, offset_of!(Exchange, head)).load(Ordering::Acquire);
        if head.wrapping_sub(self.tail) > self.ring_bytes {
            return Err(Broken);
        }
        // The helper reads the tail, so that each store costs it a cache miss: the tail is not stored for each block.
        let piece = self.ring_bytes / PIECES_PER_RING;
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

    /// Returns the bytes that have been read to the helper.
    fn give_back(&self) {
        word(&self.exchange, offset_of!(Exchange, tail)).store(self.tail, Ordering::Release);
    }

    /// Returns the length of the block at this offset, of which `finished` bytes are written; 0 if the rest of the ring
    /// is left empty.
    fn length(&self, at: u64, finished: u64) -> Result<u64, Broken> {
        let offset = EXCHANGE_HEADER + at as usize;
        if finished < EXCHANGE_ALIGN as u64 {
            return Err(Broken);
        }
        match self.exchange.short(offset).load(Ordering::Relaxed) {
            0 => Ok(0),
            BLOCK_ENHANCED_PACKET => {
                let length = u64::from(self.exchange.short(offset + 4).load(Ordering::Relaxed));
                (length >= BLOCK_MIN && length.is_multiple_of(4) && length <= finished).then_some(length).ok_or(Broken)
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

/// Returns the length of the memory for a ring of this length.
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

/// Writes the request into the shared memory.
fn fill(exchange: &mut Mapping, request: &DpdkRequest<'_>, ring_bytes: u64) -> Result<()> {
    if request.filter.len() > EXCHANGE_FILTER_MAX {
        let why = format!("it has {} instructions, and the maximum is {EXCHANGE_FILTER_MAX}", request.filter.len());
        return Err(Error::failed("cannot use this filter with the dpdk tap", why));
    }
    exchange.write(offset_of!(Exchange, ring_bytes), &ring_bytes.to_ne_bytes());
    let mut number = |offset, value: u32| exchange.write(offset, &value.to_ne_bytes());
    number(offset_of!(Exchange, snaplen), request.snaplen);
    number(offset_of!(Exchange, queue), request.queue.unwrap_or(EXCHANGE_ALL_QUEUES as u32));
    number(offset_of!(Exchange, directions), request.directions);
    number(offset_of!(Exchange, filter_length), request.filter.len() as u32);
    for (index, one) in request.filter.iter().enumerate() {
        let instruction = ExchangeInstruction {
            operation: u32::from(one.code) | u32::from(one.jt) << 16 | u32::from(one.jf) << 24,
            k: one.k,
        };
        let at = offset_of!(Exchange, filter) + size_of::<ExchangeInstruction>() * index;
        exchange.write(at, &instruction.to_bytes());
    }
    Ok(())
}
