//! Every tool that captures to a file, trawl and the peers, with the same procedure: started on a CPU of its own, given
//! traffic, ended, and counted by reading its file back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_bpf::bpffs;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result};

use crate::model::Claim;
use crate::process::{self, Peer};
use crate::scratch::{self, Scratch};
use crate::study::{Bench, Measured, Outcome, Stop, named, percent};
use crate::traffic::{RATE_REACHED, Traffic, capture_cpu, label};
use crate::tuning::{Configuration, DEFAULTS};

/// Recorder, and the fate of the packets that it records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorder {
    /// At the hook map of an XDP program that drops, or passes, all packets.
    TrawlHook(Fate),
    /// trawl's own XDP program, which passes them to the stack.
    TrawlXdp,
    /// At the exit of an XDP program that was attached before, by tracing it.
    TrawlTraced,
    TrawlTc,
    TrawlPacket,
    /// The harness's own receivers: a system call for each packet, and AF_XDP.
    Recv,
    Xsk,
    Xdpcap(Fate),
    Tcpdump,
    Dumpcap,
    Tshark,
    NetsniffNg,
    Xdpdump,
    /// The libpcap builds of netmap and PF_RING: through tcpdump, if the host has their modules.
    Netmap,
    PfRing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Drop,
    Pass,
}

pub const RECORDERS: &[(&str, Recorder)] = &[
    ("trawl hook, drop", Recorder::TrawlHook(Fate::Drop)),
    ("trawl hook, pass", Recorder::TrawlHook(Fate::Pass)),
    ("trawl xdp", Recorder::TrawlXdp),
    ("trawl xdp, traced drop", Recorder::TrawlTraced),
    ("trawl tc", Recorder::TrawlTc),
    ("trawl packet", Recorder::TrawlPacket),
    ("AF_PACKET recv", Recorder::Recv),
    ("AF_XDP", Recorder::Xsk),
    ("xdpcap, drop", Recorder::Xdpcap(Fate::Drop)),
    ("xdpcap, pass", Recorder::Xdpcap(Fate::Pass)),
    ("tcpdump", Recorder::Tcpdump),
    ("dumpcap", Recorder::Dumpcap),
    ("tshark", Recorder::Tshark),
    ("netsniff-ng", Recorder::NetsniffNg),
    ("xdpdump", Recorder::Xdpdump),
    ("netmap", Recorder::Netmap),
    ("pf_ring", Recorder::PfRing),
];

/// Configuration of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The best one on this machine.
    #[default]
    Best,
    /// The recorder as it comes, which the studies measured.
    Published,
    Given(Configuration),
}

impl Choice {
    pub fn resolve(self, bench: &Bench, recorder: Recorder) -> Result<Configuration, Stop> {
        match self {
            Self::Best => bench.tuned.best(bench, recorder),
            Self::Published => Ok(DEFAULTS),
            Self::Given(configuration) => Ok(configuration),
        }
    }
}

/// Settings of a capture.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub filter: Option<String>,
    pub configuration: Choice,
    /// Options of the recorder in addition to its configuration's.
    pub options: Vec<String>,
    /// One sent frame in this many passes the filter.
    pub one_in: Option<u64>,
    /// Store that replaces trawl's file.
    pub store: Option<StoreAt>,
}

/// A store, and the settings of a capture into it.
#[derive(Clone, Debug)]
pub struct StoreAt {
    pub url: String,
    pub spool: PathBuf,
    pub environment: Vec<(String, String)>,
}

impl Recorder {
    pub fn find(series: &str) -> Result<Self> {
        named(series, RECORDERS)
    }

    pub fn name(self) -> &'static str {
        let found = RECORDERS.iter().find(|(_, recorder)| *recorder == self);
        found.map_or("a capture", |(name, _)| name)
    }

    /// Returns trawl's tap; `None` for the other tools.
    pub fn tap(self) -> Option<&'static str> {
        match self {
            Self::TrawlHook(_) => Some("hook"),
            Self::TrawlXdp | Self::TrawlTraced => Some("xdp"),
            Self::TrawlTc => Some("tc"),
            Self::TrawlPacket => Some("packet"),
            _ => None,
        }
    }

    fn program(self, station: &Station) -> Result<Option<Loaded>> {
        let does = match self {
            Self::TrawlHook(Fate::Drop) => Does::DropWithHook,
            Self::TrawlHook(Fate::Pass) => Does::PassWithHook,
            Self::Xdpcap(Fate::Drop) => Does::DropForXdpcap,
            Self::Xdpcap(Fate::Pass) => Does::PassForXdpcap,
            Self::Xdpdump | Self::TrawlTraced => Does::Drop,
            _ => return Ok(None),
        };
        Loaded::native(does, station).map(Some)
    }

    /// Returns whether the recorder needs time after the last packet. trawl writes whole blocks as they come; for the
    /// others, packets are still in the kernel.
    pub fn needs_rest(self) -> bool {
        self.tap().is_none() && !matches!(self, Self::Recv | Self::Xsk)
    }
}

/// A pinned map that is removed on drop.
struct Pin(PathBuf);

impl Pin {
    fn of(program: &Loaded) -> Result<Self> {
        let what = "cannot pin the hook map";
        let hook = program.hook().ok_or_else(|| Error::failed(what, "the program has none"))?;
        let name = format!("trawl-bench-{}-hook", std::process::id());
        let path = bpffs::lasting_or_mounted()?.join(name);
        let _ = std::fs::remove_file(&path);
        bpffs::pin(hook, &path)?;
        Ok(Self(path))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A capture that is ready, in a lab of its own.
pub struct Running {
    pub lab: Pair,
    pub file: Scratch,
    pub peer: Peer,
    program: Option<Loaded>,
    pin: Option<Pin>,
}

impl Running {
    pub fn start(bench: &Bench, recorder: Recorder, setting: &Setting) -> Result<Self, Stop> {
        let configuration = setting.configuration.resolve(bench, recorder)?;
        let (lab, program) = lab_for(recorder, configuration)?;
        let file = Scratch::new(&bench.scratch, "capture")?;
        let pin = match (recorder, &program) {
            (Recorder::Xdpcap(_), Some(program)) => Some(Pin::of(program)?),
            _ => None,
        };
        let (mut command, ready) =
            recorder.command(bench, setting, configuration, &lab.b, file.path(), pin.as_ref())?;
        let peer = Peer::start(recorder.name(), &mut command, capture_cpu(), ready)?;
        Ok(Self { lab, file, peer, program, pin })
    }
}

/// Makes the lab in which a recorder captures, with the XDP program that it records at.
pub fn lab_for(recorder: Recorder, configuration: Configuration) -> Result<(Pair, Option<Loaded>)> {
    let lab = Pair::new(&PairOptions { gro: configuration.gro, ..PairOptions::default() })?;
    let program = recorder.program(&lab.b)?;
    Ok((lab, program))
}

/// Captures one burst of traffic, in a lab of its own.
pub fn capture(bench: &Bench, recorder: Recorder, setting: &Setting, traffic: &Traffic) -> Outcome {
    capture_and(bench, recorder, setting, traffic, |_, _| Ok(()))
}

/// Captures one burst, and inspects the file before it is removed.
pub fn capture_and(
    bench: &Bench,
    recorder: Recorder,
    setting: &Setting,
    traffic: &Traffic,
    look: impl FnOnce(&Path, &mut Measured) -> Result<()>,
) -> Outcome {
    if let Some(hosts) = &bench.hosts {
        return hosts.capture(recorder, setting, traffic);
    }
    let Running { lab, file, peer, program: _program, pin: _pin } = Running::start(bench, recorder, setting)?;
    let sent = traffic.send(bench, &lab.a, &lab.b)?;
    if recorder.needs_rest() {
        peer.wait_until_idle();
    }
    let memory_bytes = peer.peak_memory();
    let claim = recorder.claim(&peer.finish()?);
    let recorded = scratch::contents(file.path(), Some(lab.b.mac), recorder.tap().is_none())?.packets;
    let mut measured =
        Measured { claim, memory_bytes, ..Measured::after(sent, BTreeMap::new()) }.recorded(recorded, setting, traffic);
    look(file.path(), &mut measured)?;
    Ok(measured)
}

impl Measured {
    /// Adds the values of a capture of this traffic.
    pub fn recorded(mut self, recorded: u64, setting: &Setting, traffic: &Traffic) -> Self {
        let sent = self.sent.unwrap_or(0);
        let expected = setting.one_in.map_or(sent, |every| sent / every);
        let seconds = self.seconds.max(f64::EPSILON);
        // The receiving path may hold the sender up.
        let reached = traffic.rate.map_or(1.0, |rate| sent as f64 / seconds / rate);
        let reached = if reached > RATE_REACHED { 1.0 } else { reached };
        let share = percent(recorded as f64, expected.max(1) as f64);
        self.values = [
            ("recorded_percent", share.min(100.0)),
            ("offered_percent", reached * 100.0),
            ("recorded_mpps", recorded as f64 / seconds / 1e6),
        ]
        .into();
        self.expected = Some(expected);
        self.recorded = Some(recorded);
        self
    }
}

/// Returns a capture of trawl's from these interfaces to a file, and the text that means it is ready.
pub fn trawl_capture(
    bench: &Bench,
    tap: &str,
    directions: &str,
    interfaces: &[&str],
    file: &Path,
) -> (Command, &'static str) {
    let mut trawl = bench.command(&["capture", "--tap", tap, "-Q", directions, "-w"]);
    trawl.arg(file);
    for interface in interfaces {
        trawl.args(["-i", interface]);
    }
    (trawl, "capturing on")
}

/// Returns a capture of tcpdump's in a namespace to a file, as root: it could not write to most directories otherwise.
pub fn tcpdump(bench: &Bench, namespace: &str, interface: &str, file: &Path) -> Result<Command, Stop> {
    let mut tcpdump = process::command_in(namespace, bench.peers.path("tcpdump")?);
    tcpdump.args(["-n", "-Z", "root", "-i", interface, "-w"]);
    tcpdump.arg(file);
    Ok(tcpdump)
}

impl Recorder {
    /// Returns the command, and the text on standard error that means it is ready.
    fn command(
        self,
        bench: &Bench,
        setting: &Setting,
        configuration: Configuration,
        at: &Station,
        file: &Path,
        hook: Option<&Pin>,
    ) -> Result<(Command, &'static str), Stop> {
        let filter = setting.filter.as_deref();
        let chosen = configuration.options.iter().copied();
        let options: Vec<&str> = chosen.chain(setting.options.iter().map(String::as_str)).collect();
        if let Some(tap) = self.tap() {
            let (mut trawl, ready) = match &setting.store {
                None => trawl_capture(bench, tap, "in", &[&label(at)], file),
                Some(store) => {
                    let arguments = ["capture", "--tap", tap, "-Q", "in", "-i", &label(at)];
                    let mut trawl = bench.command(&arguments);
                    trawl.args(["--store", &store.url, "--spool"]);
                    trawl.arg(&store.spool);
                    trawl.envs(store.environment.iter().map(|(name, value)| (name, value)));
                    (trawl, "capturing on")
                }
            };
            trawl.args(options).args(filter);
            return Ok((trawl, ready));
        }
        // The peer's command with its options, the file, and the filter after its option.
        let interface = at.interface.as_str();
        let inside = |peer: &str, arguments: &[&str], option: Option<&str>| -> Result<Command, Stop> {
            let mut command = process::command_in(&at.name, bench.peers.path(peer)?);
            command.args(&options).args(arguments).arg(file);
            if let Some((option, filter)) = option.zip(filter) {
                command.args([option, filter]);
            }
            Ok(command)
        };
        // Some print to standard output that they are ready.
        let loud = |peer: &str, arguments: &[&str], option: Option<&str>| -> Result<Command, Stop> {
            let quiet = inside(peer, arguments, option)?;
            let mut arguments = quiet.get_args().skip(3);
            let mut shell = process::command_in(&at.name, "sh");
            shell.args(["-c", "exec \"$0\" \"$@\" 1>&2"]).args(&mut arguments);
            Ok(shell)
        };
        Ok(match self {
            Self::Recv | Self::Xsk => {
                let mut receiver = process::command(own_binary()?);
                receiver.args(["receive-xsk", &at.name, interface]);
                let queues = match self {
                    Self::Xsk => PairOptions::default().queues,
                    _ => 0,
                };
                receiver.arg(queues.to_string()).arg(file);
                (receiver, "capturing on")
            }
            Self::Dumpcap => {
                let arguments = ["-q", "-P", "-i", interface, "-w"];
                (inside("dumpcap", &arguments, Some("-f"))?, "File:")
            }
            Self::Tshark => {
                let arguments = ["-q", "-n", "-F", "pcap", "-i", interface, "-w"];
                (inside("tshark", &arguments, Some("-f"))?, "Capture started")
            }
            Self::NetsniffNg => {
                let arguments = ["--silent", "-Q", "--in", interface, "--out"];
                (loud("netsniff-ng", &arguments, Some("-f"))?, "Running!")
            }
            Self::Xdpdump => {
                let arguments = ["-i", interface, "-w"];
                (loud("xdpdump", &arguments, None)?, "listening on")
            }
            Self::Xdpcap(_) => {
                let mut xdpcap = process::command(bench.peers.path("xdpcap")?);
                xdpcap.args(&options);
                let hook = hook.ok_or_else(|| Stop::Failed("xdpcap has no hook map".to_owned()))?;
                xdpcap.arg(&hook.0).arg(file).args(filter);
                (xdpcap, "received/matched")
            }
            other => {
                // tcpdump captures by the libpcap of these.
                match other {
                    Self::Netmap => drop(bench.peers.path("netmap")?),
                    Self::PfRing => drop(bench.peers.path("pf_ring")?),
                    _ => {}
                }
                let mut tcpdump = tcpdump(bench, &at.name, interface, file)?;
                tcpdump.args(&options).args(filter);
                (tcpdump, "listening on")
            }
        })
    }

    /// Returns the program's own counts from its final output.
    pub fn claim(self, said: &str) -> Option<Claim> {
        let number = |text| number_before(said, text);
        let (recorded, lost) = match self {
            Self::Tcpdump | Self::Netmap | Self::PfRing => {
                (number("packets captured").or_else(|| number("packet captured")), number("packets dropped by kernel"))
            }
            Self::Dumpcap => {
                let mut lines = said.lines();
                let line = lines.find(|line| line.contains("received/dropped"))?;
                let counts = line.rsplit(": ").next()?;
                let mut counts = counts.split(['/', ' ']).map(|text| text.parse().ok());
                (counts.next()?, counts.next()?)
            }
            Self::NetsniffNg => (number("packets passed filter"), number("packets failed filter")),
            Self::Xdpcap(_) => {
                let mut lines = said.lines().rev();
                let last = lines.find(|line| line.contains("received/matched"))?;
                let matched = |part: &str| -> Option<u64> {
                    let (_, counts) = part.split_once(": ")?;
                    counts.split_once('/')?.1.trim().parse().ok()
                };
                (Some(last.split('\t').filter_map(matched).sum()), None)
            }
            Self::Tshark | Self::Xdpdump => (number("packets captured"), None),
            _ => (number("recorded"), number("lost")),
        };
        (recorded.is_some() || lost.is_some()).then_some(Claim { recorded, lost, wrong: false })
    }
}

/// Returns the number in front of this text.
fn number_before(text: &str, arguments: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| {
        let at = line.find(arguments)?;
        let before = line[..at].trim_end();
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_from_each_output() {
        let claim = |recorder: Recorder, said: &str| recorder.claim(said).map(|claim| (claim.recorded, claim.lost));
        assert_eq!(
            claim(
                Recorder::Tcpdump,
                "120 packets captured\n130 packets received by filter\n10 packets dropped by kernel"
            ),
            Some((Some(120), Some(10)))
        );
        assert_eq!(
            claim(
                Recorder::Dumpcap,
                "Packets: 7\nPackets received/dropped on interface 'veth0': 7/3 (pcap:3/dumpcap:0)"
            ),
            Some((Some(7), Some(3)))
        );
        assert_eq!(
            claim(Recorder::Xdpcap(Fate::Drop), "XDPDrop: 9/8\tXDPPass: 1/1\t(received/matched packets)\n"),
            Some((Some(9), None))
        );
        assert_eq!(
            claim(Recorder::TrawlXdp, "trawl: 9 seen, 0 filtered out, 7 recorded, 2 lost"),
            Some((Some(7), Some(2)))
        );
        assert_eq!(
            claim(
                Recorder::NetsniffNg,
                "   9 packets incoming (0 unread on exit)\n   8 packets passed filter\n   1 packets failed filter (out of space)"
            ),
            Some((Some(8), Some(1)))
        );
        assert_eq!(claim(Recorder::Tcpdump, "nothing"), None);
    }

    #[test]
    fn every_recorder_is_found_by_its_name() {
        for (name, recorder) in RECORDERS {
            assert_eq!(Recorder::find(name).ok(), Some(*recorder));
            assert_eq!(recorder.name(), *name);
        }
        assert!(Recorder::find("tcpdumb").is_err());
    }
}
