//! Every tool that captures to a file, trawl and the peers, with the same procedure: started on a CPU of its own, given
//! traffic, ended, and counted by reading its file back.

use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_bpf::bpffs;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_sys::Error;
use trawl_sys::process::own_binary;

use crate::model::Claim;
use crate::process;
use crate::process::Peer;
use crate::scratch::{self, Scratch};
use crate::study::{Bench, Measured, Stop, named};
use crate::traffic::{RATE_REACHED, Sent, Traffic};

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

const WAYS: &[(&str, Recorder)] = &[
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

/// Settings of a capture.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    pub filter: Option<String>,
    /// Size of xdpcap's buffer, and the number of bytes in it that wakes the reader.
    pub buffer: Option<(usize, usize)>,
    /// Size of trawl's ring for each CPU.
    pub ring: Option<String>,
    /// trawl's clock mode: `--time`.
    pub time: Option<&'static str>,
    /// Number of trawl's latest files that are kept, and the size of each in millions of bytes.
    pub files: Option<(u64, u64)>,
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
    pub fn find(series: &str) -> Result<Self, Error> {
        named(series, WAYS).map(|(_, way)| way)
    }

    fn program(self, station: &Station) -> Result<Option<Loaded>, Error> {
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
        !matches!(
            self,
            Self::TrawlHook(_)
                | Self::TrawlXdp
                | Self::TrawlTraced
                | Self::TrawlTc
                | Self::TrawlPacket
                | Self::Recv
                | Self::Xsk
        )
    }
}

/// A pinned map that is removed on drop.
#[derive(Debug)]
struct Pin(std::path::PathBuf);

impl Pin {
    fn of(program: &Loaded) -> Result<Self, Error> {
        let what = "cannot pin the hook map";
        let hook = program
            .hook()
            .ok_or_else(|| Error::failed(what, "the program has none"))?;
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
#[derive(Debug)]
pub struct Running {
    pub lab: Pair,
    pub file: Scratch,
    pub peer: Peer,
    program: Option<Loaded>,
    pin: Option<Pin>,
}

impl Running {
    pub fn start(bench: &Bench, way: Recorder, setting: &Setting) -> Result<Self, Stop> {
        let lab = Pair::new(&PairOptions::default())?;
        let file = Scratch::new(&bench.scratch, "capture")?;
        let program = way.program(&lab.b)?;
        let pin = match (way, &program) {
            (Recorder::Xdpcap(_), Some(program)) => Some(Pin::of(program)?),
            _ => None,
        };
        let (mut command, ready) =
            way.command(bench, setting, &lab.b, file.path(), pin.as_ref())?;
        let peer = Peer::start(&way.name(), &mut command, bench.capture_cpu, ready)?;
        Ok(Self {
            lab,
            file,
            peer,
            program,
            pin,
        })
    }
}

/// Captures one burst of traffic, in a lab of its own.
pub fn capture(
    bench: &Bench,
    way: Recorder,
    setting: &Setting,
    traffic: &Traffic,
) -> Result<Measured, Stop> {
    capture_and(bench, way, setting, traffic, |_, _| Ok(()))
}

/// Captures one burst, and inspects the file before it is removed.
pub fn capture_and(
    bench: &Bench,
    way: Recorder,
    setting: &Setting,
    traffic: &Traffic,
    look: impl FnOnce(&Path, &mut Measured) -> Result<(), Error>,
) -> Result<Measured, Stop> {
    if let Some(hosts) = &bench.hosts {
        return hosts.capture(way, setting, traffic);
    }
    let Running {
        lab,
        file,
        peer,
        program: _program,
        pin: _pin,
    } = Running::start(bench, way, setting)?;
    let sent: Sent = traffic.send(bench, &lab.a, &lab.b)?;
    if way.needs_rest() {
        peer.wait_until_idle();
    }
    let memory = peer.memory().map(|memory| memory.peak);
    let said = peer.finish()?;
    let recorded = scratch::contents(file.path(), Some(lab.b.mac))?.packets;
    let expected = setting
        .one_in
        .map_or(sent.frames, |every| sent.frames / every);
    let claim = way.claim(&said);
    // The receiving path may hold the sender up.
    let reached = traffic.rate.map_or(1.0, |rate| sent.per_second() / rate);
    let reached = if reached > RATE_REACHED { 1.0 } else { reached };
    let share = recorded as f64 / expected.max(1) as f64;
    let mut measured = Measured {
        values: [
            ("recorded_percent", share.min(1.0) * 100.0),
            ("offered_percent", reached.min(1.0) * 100.0),
            (
                "recorded_mpps",
                recorded as f64 / sent.seconds.max(f64::EPSILON) / 1e6,
            ),
        ]
        .into(),
        sent: Some(sent.frames),
        expected: Some(expected),
        recorded: Some(recorded),
        claim,
        seconds: sent.seconds,
        memory_bytes: memory,
        cpus: Some((sent.cpus, sent.disturbed)),
    };
    look(file.path(), &mut measured)?;
    Ok(measured)
}

impl Recorder {
    pub fn name(self) -> String {
        let found = WAYS.iter().find(|(_, way)| *way == self);
        found.map_or("a capture", |(name, _)| name).to_owned()
    }

    /// Returns the command, and the text on standard error that means it is ready.
    fn command(
        self,
        bench: &Bench,
        setting: &Setting,
        at: &Station,
        file: &Path,
        hook: Option<&Pin>,
    ) -> Result<(Command, &'static str), Stop> {
        let inside = |peer: &str| -> Result<Command, Stop> {
            Ok(process::command_in(&at.name, bench.peers.path(peer)?))
        };
        // Some print to standard output that they are ready.
        let loud = |peer: &str| -> Result<Command, Stop> {
            let mut shell = process::command_in(&at.name, "sh");
            shell
                .args(["-c", "exec \"$0\" \"$@\" 1>&2"])
                .arg(bench.peers.path(peer)?);
            Ok(shell)
        };
        let trawl = |tap: &str| {
            let mut trawl = process::command(&bench.trawl);
            trawl.args(["capture", "--tap", tap, "-Q", "in", "-i"]);
            trawl.arg(format!("{}:{}", at.name, at.interface));
            if let Some(ring) = &setting.ring {
                trawl.args(["--ring-size", ring]);
            }
            if let Some(time) = setting.time {
                trawl.args(["--time", time]);
            }
            if let Some((files, megabytes)) = setting.files {
                trawl.args(["-W", &files.to_string(), "-C", &megabytes.to_string()]);
            }
            match &setting.store {
                Some(store) => {
                    trawl
                        .args(["--store", &store.url, "--spool"])
                        .arg(&store.spool);
                    trawl.envs(store.environment.iter().map(|(name, value)| (name, value)));
                }
                None => {
                    trawl.arg("-w").arg(file);
                }
            }
            trawl.args(&setting.filter);
            (trawl, "capturing on")
        };
        let filter = &setting.filter;
        Ok(match self {
            Self::TrawlHook(_) => trawl("hook"),
            Self::TrawlXdp | Self::TrawlTraced => trawl("xdp"),
            Self::TrawlTc => trawl("tc"),
            Self::TrawlPacket => trawl("packet"),
            Self::Recv | Self::Xsk => {
                let mut receiver = process::command(own_binary()?);
                receiver.args(["receive-xsk", &at.name, &at.interface]);
                let queues = match self {
                    Self::Xsk => PairOptions::default().queues,
                    _ => 0,
                };
                receiver.arg(queues.to_string()).arg(file);
                (receiver, "capturing on")
            }
            Self::Netmap | Self::PfRing | Self::Tcpdump => {
                match self {
                    Self::Netmap => drop(bench.peers.path("netmap")?),
                    Self::PfRing => drop(bench.peers.path("pf_ring")?),
                    _ => {}
                }
                let mut tcpdump = inside("tcpdump")?;
                // As root, since it could not write to most directories otherwise.
                tcpdump
                    .args(["-n", "-Z", "root", "-i", &at.interface, "-w"])
                    .arg(file)
                    .args(filter);
                (tcpdump, "listening on")
            }
            Self::Dumpcap => {
                let mut dumpcap = inside("dumpcap")?;
                dumpcap
                    .args(["-q", "-P", "-i", &at.interface, "-w"])
                    .arg(file);
                if let Some(filter) = filter {
                    dumpcap.args(["-f", filter]);
                }
                (dumpcap, "File:")
            }
            Self::Tshark => {
                let mut tshark = inside("tshark")?;
                tshark
                    .args(["-q", "-n", "-F", "pcap", "-i", &at.interface, "-w"])
                    .arg(file);
                if let Some(filter) = filter {
                    tshark.args(["-f", filter]);
                }
                (tshark, "Capture started")
            }
            Self::NetsniffNg => {
                let mut netsniff = loud("netsniff-ng")?;
                netsniff
                    .args(["--silent", "-Q", "--in", &at.interface, "--out"])
                    .arg(file);
                if let Some(filter) = filter {
                    netsniff.args(["-f", filter]);
                }
                (netsniff, "Running!")
            }
            Self::Xdpcap(_) => {
                let mut xdpcap = process::command(bench.peers.path("xdpcap")?);
                if let Some((buffer, watermark)) = setting.buffer {
                    xdpcap.args([
                        "-buffer",
                        &buffer.to_string(),
                        "-watermark",
                        &watermark.to_string(),
                    ]);
                }
                let hook = hook.ok_or_else(|| Stop::Failed("xdpcap has no hook map".to_owned()))?;
                xdpcap.arg(&hook.0).arg(file).args(filter);
                (xdpcap, "received/matched")
            }
            Self::Xdpdump => {
                let mut xdpdump = loud("xdpdump")?;
                xdpdump.args(["-i", &at.interface, "-w"]).arg(file);
                (xdpdump, "listening on")
            }
        })
    }

    /// Returns the program's own counts from its final output.
    pub fn claim(self, said: &str) -> Option<Claim> {
        let (recorded, lost) = match self {
            Self::Tcpdump | Self::Netmap | Self::PfRing => (
                number_before(said, "packets captured")
                    .or_else(|| number_before(said, "packet captured")),
                number_before(said, "packets dropped by kernel"),
            ),
            Self::Dumpcap => {
                let line = said
                    .lines()
                    .find(|line| line.contains("received/dropped"))?;
                let counts = line.rsplit(": ").next()?;
                let mut counts = counts.split(['/', ' ']).map(|text| text.parse().ok());
                (counts.next()?, counts.next()?)
            }
            Self::Tshark => (number_before(said, "packets captured"), None),
            Self::NetsniffNg => (
                number_before(said, "packets passed filter"),
                number_before(said, "packets failed filter"),
            ),
            Self::Xdpcap(_) => {
                let last = said
                    .lines()
                    .rev()
                    .find(|line| line.contains("received/matched"))?;
                let matched = last.split('\t').filter_map(|part| {
                    part.split_once(": ")?
                        .1
                        .split_once('/')?
                        .1
                        .trim()
                        .parse::<u64>()
                        .ok()
                });
                (Some(matched.sum()), None)
            }
            Self::Xdpdump => (number_before(said, "packets captured"), None),
            _ => (number_before(said, "recorded"), number_before(said, "lost")),
        };
        (recorded.is_some() || lost.is_some()).then_some(Claim {
            recorded,
            lost,
            wrong: false,
        })
    }
}

/// Returns the number in front of this text.
fn number_before(text: &str, words: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| {
        let at = line.find(words)?;
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
        let claim =
            |way: Recorder, said: &str| way.claim(said).map(|claim| (claim.recorded, claim.lost));
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
            claim(
                Recorder::Xdpcap(Fate::Drop),
                "XDPDrop: 9/8\tXDPPass: 1/1\t(received/matched packets)\n"
            ),
            Some((Some(9), None))
        );
        assert_eq!(
            claim(
                Recorder::TrawlXdp,
                "trawl: 9 seen, 0 filtered out, 7 recorded, 2 lost"
            ),
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
        for (name, way) in WAYS {
            assert_eq!(Recorder::find(name).ok(), Some(*way));
            assert_eq!(way.name(), *name);
        }
        assert!(Recorder::find("tcpdumb").is_err());
    }
}
