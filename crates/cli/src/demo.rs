//! `trawl demo`: the main task from end to end. An XDP program drops everything on an interface of a lab; tcpdump sees
//! no packets, trawl records each packet with its verdict.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};

use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{Engine, Job, send};
use trawl_lab::{Pair, PairOptions, Removal, Station};
use trawl_packet::build::{Icmp, Tcp, Template, flags};
use trawl_packet::pcapng::Verdict;
use trawl_packet::read::{CaptureReader, ReadError};
use trawl_sys::netns::run_in;
use trawl_sys::process::warden::{Undo, Warden};
use trawl_sys::process::{self, own_binary};
use trawl_sys::{Error, Result, clock};
use trawl_view::print::{PrintOptions, Printer};
use trawl_view::record::PacketView;

use crate::exit_code;
use crate::terminal::write_out;

/// Records in a lab the packets that XDP drops and tcpdump misses
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The capture file to write
    #[arg(short = 'w', long = "write", value_name = "FILE", default_value = "trawl-demo.pcapng")]
    write: PathBuf,
}

/// Number of frames of several kinds, sent slowly before one frame is repeated at full speed.
const MIXED: u64 = 1_000;
const MIXED_RATE: u64 = 100_000;
const FAST: u64 = 99_000;
const SHOWN: usize = 5;
const DISCARD_PORT: u16 = 9;

pub fn run(args: Args) -> Result<ExitCode> {
    let id = format!("demo-{}", std::process::id());
    let mut warden = Warden::default();
    watch(&mut warden, &id, Vec::new())?;
    let lab = Pair::named(&id, &PairOptions::default())?;
    let good = show(&lab, &args.write, &mut warden)?;
    lab.remove()?;
    drop(warden);
    let file = args.write.canonicalize().unwrap_or(args.write);
    say(&format!("\nThe lab is gone. The capture file: {}", file.display()))?;
    Ok(exit_code(good))
}

/// Removes the lab and ends these processes if the demo is killed.
fn watch(warden: &mut Warden, lab: &str, processes: Vec<u32>) -> Result<()> {
    let lab = lab.to_owned();
    warden.watch([Box::new(Removal { lab, processes }) as Box<dyn Undo>])
}

/// Returns true if all results are as expected.
fn show(lab: &Pair, file: &Path, warden: &mut Warden) -> Result<bool> {
    let program = Loaded::native(Does::DropWithHook, &lab.b)?;
    say(&format!(
        "A lab: two network namespaces joined by a veth. On {} in {},\n\
         an XDP program (native mode, with a hook map) drops every packet.\n",
        lab.b.interface, lab.b.name
    ))?;
    let tcpdump = Watcher::tcpdump(&lab.b)?;
    let mut trawl = Watcher::trawl(&lab.b, file, MIXED + FAST)?;
    let watchers = tcpdump.iter().chain([&trawl]);
    watch(warden, lab.id(), watchers.map(Watcher::process).collect())?;
    say(&send_all(lab)?)?;
    let account = trawl.wait()?;
    let (tcpdump_blind, tcpdump_says) = match tcpdump {
        Some(tcpdump) => {
            let report = tcpdump.interrupt()?;
            (report.contains("\n0 packets captured"), indented(&report, "packet"))
        }
        None => (true, "  (it is not installed)\n".to_owned()),
    };
    drop(program);
    say(&format!("\ntcpdump on that interface:\n{tcpdump_says}"))?;
    say(&format!("\ntrawl on that interface:\n{}", indented(&account, "seen")))?;
    let recorded = read_back(file)?;
    say(&format!(
        "\nIn the file: {} packets, {} of them with the verdict DROP. The first ones:\n{}",
        recorded.packets, recorded.dropped, recorded.first
    ))?;
    if let Some(fields) = tshark(file) {
        let titles = "number  interface  queue  packet id  verdict (1 is XDP_DROP)  protocol";
        say(&format!("\ntshark on the file: {titles}\n{fields}"))?;
    }
    let all = MIXED + FAST;
    Ok(tcpdump_blind && recorded.packets == all && recorded.dropped == all)
}

fn say(text: &str) -> Result<()> {
    write_out(&format!("{}\n", text.trim_end_matches('\n')))
}

/// Indents the lines that contain a text.
fn indented(text: &str, word: &str) -> String {
    let lines = text.lines().filter(|line| line.contains(word));
    lines.map(|line| format!("  {line}\n")).collect()
}

fn send_all(lab: &Pair) -> Result<String> {
    let frames = frames(lab);
    let mut job = Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames: &frames,
        count: MIXED,
        engine: Engine::Live,
        rate: Some(MIXED_RATE),
        cpu: None,
    };
    let mixed = send(&job)?;
    job.frames = &frames[..1];
    job.count = FAST;
    job.rate = None;
    let fast = send(&job)?;
    Ok(format!(
        "Sent into it: {} packets of several kinds, and {} more at {:.1} million a second.",
        mixed.packets,
        fast.packets,
        fast.per_second() / 1e6
    ))
}

/// Returns one frame of each kind, from one side of the lab to the other.
fn frames(lab: &Pair) -> Vec<Vec<u8>> {
    let (a, b) = (&lab.a, &lab.b);
    let ethernet = || Template::new().ethernet(a.mac, b.mac);
    let request = Tcp { src: 40_000, dst: 443, seq: 1, flags: flags::SYN, window: 64_240, ..Tcp::default() };
    [
        ethernet().ipv4(a.ipv4, b.ipv4).udp(40_000, DISCARD_PORT).frame_len(60),
        ethernet().ipv4(a.ipv4, b.ipv4).tcp(request),
        ethernet().ipv4(a.ipv4, b.ipv4).icmp(Icmp::echo_request(1, 1)).payload([0; 56]),
        ethernet().ipv6(a.ipv6, b.ipv6).udp(40_000, DISCARD_PORT).payload([0; 100]),
        ethernet().vlan(7).ipv6(a.ipv6, b.ipv6).icmpv6(Icmp::echo_request_v6(1, 1)),
    ]
    .map(|template| template.build())
    .to_vec()
}

/// The contents of the capture file.
#[derive(Debug, Default)]
struct Recorded {
    packets: u64,
    dropped: u64,
    /// The first packets as lines.
    first: String,
}

fn read_back(path: &Path) -> Result<Recorded> {
    let file = File::open(path).map_err(|e| Error::os(format!("cannot read {}", path.display()), e))?;
    count_and_print(file).map_err(|e| Error::failed(format!("cannot read {}", path.display()), e))
}

fn count_and_print(file: File) -> Result<Recorded, ReadError> {
    let mut reader = CaptureReader::new(file)?;
    let mut recorded = Recorded::default();
    let mut printer = Printer::new(PrintOptions { utc_offset: Some(clock::local_offset()), ..PrintOptions::default() });
    while let Some(packet) = reader.next_packet()? {
        let verdict = packet.options.verdict;
        recorded.packets += 1;
        recorded.dropped += u64::from(verdict == Some(Verdict::Xdp(1)));
        if recorded.packets <= SHOWN as u64 {
            let view = PacketView {
                timestamp_ns: packet.timestamp_ns,
                link_type: packet.link_type,
                captured: packet.captured,
                original_len: packet.original_len,
                interface: None,
                direction: packet.options.direction(),
                hook: Some("xdp exit"),
                verdict,
                ..PacketView::default()
            };
            recorded.first.push_str("  ");
            printer.line(&mut recorded.first, &view);
        }
    }
    Ok(recorded)
}

/// Returns Wireshark's view of the same packets, if it is installed.
fn tshark(file: &Path) -> Option<String> {
    let fields = [
        "frame.number",
        "frame.interface_name",
        "frame.interface_queue",
        "frame.packet_id",
        "frame.verdict.ebpf_xdp",
        "_ws.col.Protocol",
    ];
    let output = Command::new("tshark")
        .args(["-n", "-c", "3", "-T", "fields", "-E", "separator=/s"])
        .args(fields.iter().flat_map(|field| ["-e", field]))
        .arg("-r")
        .arg(file)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let mut text = String::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let _ = writeln!(text, "  {line}");
    }
    output.status.success().then_some(text)
}

/// Maximum duration of the capture, far longer than the demo lasts: a capture that misses packets never reaches its
/// count.
const PATIENCE: &str = "20s";

#[derive(Debug)]
pub struct Watcher {
    name: &'static str,
    child: Child,
    stderr: BufReader<ChildStderr>,
    stderr_text: String,
}

impl Watcher {
    /// Starts tcpdump; `None` if it is not installed.
    pub fn tcpdump(station: &Station) -> Result<Option<Self>> {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-i", &station.interface]);
        // A process starts in the namespace of the thread that creates it.
        match run_in(&station.namespace, || spawn(&mut command))? {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            spawned => Self::ready("tcpdump", spawned, "listening on").map(Some),
        }
    }

    /// Records `count` packets at the hook of the station's program.
    pub fn trawl(station: &Station, file: &Path, count: u64) -> Result<Self> {
        let trawl = own_binary()?;
        let mut command = Command::new(trawl);
        command
            .args(["capture", "--tap", "tailcall", "--netns", &station.name])
            .args(["-i", &station.interface, "-c", &count.to_string()])
            .args(["--duration", PATIENCE, "-w"])
            .arg(file);
        Self::ready("trawl capture", spawn(&mut command), "capturing on")
    }

    fn ready(name: &'static str, spawned: io::Result<Child>, sign: &str) -> Result<Self> {
        let mut child = spawned.map_err(|e| Error::os(format!("cannot start {name}"), e))?;
        let stderr = child
            .stderr
            .take()
            .ok_or_else(|| Error::failed(format!("cannot read the messages of {name}"), "no pipe"))?;
        let mut watcher = Self { name, child, stderr: BufReader::new(stderr), stderr_text: String::new() };
        loop {
            let start = watcher.stderr_text.len();
            match watcher.stderr.read_line(&mut watcher.stderr_text) {
                Ok(count) if count > 0 && watcher.stderr_text[start..].contains(sign) => {
                    return Ok(watcher);
                }
                Ok(count) if count > 0 => {}
                _ => {
                    let what = format!("{name} did not start");
                    return Err(Error::failed(what, watcher.stderr_text.trim()));
                }
            }
        }
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Interrupts the process, and returns its output.
    pub fn interrupt(mut self) -> Result<String> {
        process::interrupt(self.child.id())?;
        self.wait()
    }

    /// Waits until the process ends, and returns its output.
    pub fn wait(&mut self) -> Result<String> {
        let read = self.stderr.read_to_string(&mut self.stderr_text);
        read.and_then(|_| self.child.wait()).map_err(|e| Error::os(format!("cannot end {}", self.name), e))?;
        Ok(std::mem::take(&mut self.stderr_text))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The process has ended already, unless an error prevented the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
}
