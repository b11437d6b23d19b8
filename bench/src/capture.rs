//! Runs each tool that captures to a file, trawl and the peers, by the same procedure: starts it on a CPU of its own,
//! sends traffic, ends it, and counts the packets by reading its file back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use trawl_bpf::bpffs;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::{Pair, PairOptions, Station};
use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result};

use crate::configuration::{Configuration, DEFAULTS};
use crate::harness::Bench;
use crate::model::Claim;
use crate::outcome::{Measured, Outcome, Stop};
use crate::process::{self, Peer};
use crate::recorder::{Choice, Fate, Recorder, Setting};
use crate::scratch::{self, Scratch};
use crate::traffic::{SENDER_CPU, Traffic, UNANSWERED, capture_cpu, label};

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
        let configuration = configuration(bench, recorder, setting.configuration)?;
        let (lab, program) = lab_for(recorder, configuration, setting.mtu)?;
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
pub fn lab_for(recorder: Recorder, configuration: Configuration, mtu: Option<u32>) -> Result<(Pair, Option<Loaded>)> {
    let usual = PairOptions::default();
    let lab = Pair::new(&PairOptions { gro: configuration.gro, mtu: mtu.unwrap_or(usual.mtu), ..usual })?;
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
    inspect: impl FnOnce(&Path, &mut Measured) -> Result<()>,
) -> Outcome {
    if let Some(hosts) = &bench.hosts {
        return hosts.capture(recorder, setting, traffic);
    }
    let Running { lab, file, peer, program: _program, pin: _pin } = Running::start(bench, recorder, setting)?;
    let sent = traffic.send(&bench.trawl, &lab.a, &lab.b)?;
    if recorder.needs_rest() {
        peer.wait_until_idle();
    }
    let memory_bytes = peer.peak_memory();
    let claim = recorder.claim(&peer.finish()?);
    let recorded = scratch::contents(file.path(), Some(lab.b.mac), recorder.tap().is_none())?.packets;
    let mut measured =
        Measured { claim, memory_bytes, ..Measured::after(sent, BTreeMap::new()) }.recorded(recorded, setting, traffic);
    inspect(file.path(), &mut measured)?;
    Ok(measured)
}

/// Size of the frames and duration of each burst of the short round.
const SIZE: usize = 64;
const SECONDS: f64 = 1.0;
const PROBES: u32 = 3;

/// Returns the configuration that a setting chooses.
pub fn configuration(bench: &Bench, recorder: Recorder, choice: Choice) -> Result<Configuration, Stop> {
    match choice {
        Choice::Best => best(bench, recorder),
        Choice::Published => Ok(DEFAULTS),
        Choice::Given(configuration) => Ok(configuration),
    }
}

/// Returns the best configuration of a recorder; the first call measures it.
fn best(bench: &Bench, recorder: Recorder) -> Result<Configuration, Stop> {
    bench.tuned.choose(recorder.name(), &recorder.grid(), |configuration| {
        let setting = Setting { configuration: Choice::Given(configuration), ..Setting::default() };
        Ok(complete(bench, recorder, &setting, SIZE, SECONDS, PROBES)?.mpps)
    })
}

/// Rates between which a recorder ceases to be complete.
pub struct Complete {
    /// Highest rate of which it recorded every packet.
    pub mpps: f64,
    /// Lowest rate at which it lost packets; `None` if it was complete at the sender's full speed.
    pub first_loss_mpps: Option<f64>,
    /// The burst at full speed.
    pub flood: Measured,
}

/// Share of the packets that counts as all of them: the machine itself may cause the loss of one in a thousand.
pub const WHOLE: f64 = 0.999;
/// Ratio of the lowest rate with loss to the highest without at which the search ends.
const MAX_RATIO: f64 = 1.06;

/// Searches for the highest rate at which a recorder is complete: first at full speed, then in halves.
pub fn complete(
    bench: &Bench,
    recorder: Recorder,
    setting: &Setting,
    size: usize,
    seconds: f64,
    probes: u32,
) -> Result<Complete, Stop> {
    let held_back = configuration(bench, recorder, setting.configuration)?.held_back() / size as u64;
    let burst = |traffic: Traffic| -> Result<(f64, f64, Measured), Stop> {
        let measured = capture(bench, recorder, setting, &traffic.with(&UNANSWERED))?;
        let sent = measured.sent.unwrap_or(0) as f64;
        let rate = sent / measured.seconds.max(f64::EPSILON) / 1e6;
        let kept = (measured.recorded.unwrap_or(0) + held_back) as f64;
        let share = (kept / sent.max(1.0)).min(1.0);
        Ok((rate, share, measured))
    };
    let (rate, share, flood) = burst(Traffic::flood(size, seconds, &[SENDER_CPU]))?;
    let (mut low, mut high) = if share >= WHOLE { (rate, None) } else { (0.0, Some(rate)) };
    let mut probe = rate * share;
    for _ in 0..probes {
        let Some(lossy) = high.filter(|lossy| *lossy > low * MAX_RATIO) else {
            break;
        };
        let traffic = Traffic::at(size, probe.min(lossy) * 1e6, seconds);
        let (rate, share, _) = burst(traffic)?;
        if share >= WHOLE {
            low = low.max(rate)
        } else {
            high = Some(lossy.min(rate))
        }
        probe = if low > 0.0 { (low * high.unwrap_or(low)).sqrt() } else { probe / 2.0 };
    }
    Ok(Complete { mpps: low, first_loss_mpps: high, flood })
}

/// Returns trawl's command for a capture from these interfaces to a file, and the text that it prints when it is ready.
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

/// Returns tcpdump's command for a capture in a namespace to a file. It stays root, because it could not write to most
/// directories otherwise.
pub fn tcpdump(bench: &Bench, namespace: &str, interface: &str, file: &Path) -> Result<Command, Stop> {
    let mut tcpdump = process::command_in(namespace, bench.peers.path("tcpdump")?);
    tcpdump.args(["-n", "-Z", "root", "-i", interface, "-w"]);
    tcpdump.arg(file);
    Ok(tcpdump)
}

impl Recorder {
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

    /// Returns the command, and the text that it prints on standard error when it is ready.
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
        // Some peers print to standard output that they are ready.
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
                // tcpdump captures through the libpcap of netmap or PF_RING, which need their modules.
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

/// Returns the number before these words, in the last line that has them.
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
    use crate::recorder::RECORDERS;

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
