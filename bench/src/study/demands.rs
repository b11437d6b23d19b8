//! The four demands of study E on any capture: time stamps from the source, order, both directions in one file, and no
//! hidden loss. Frames carry stamps (a number and their time of sending), so the file itself is the evidence.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::SystemTime;

use trawl_gen::stamp::Stamp;
use trawl_lab::{Line, LineOptions};
use trawl_packet::read::CaptureReader;
use trawl_sys::{Error, Result, clock};

use super::definition::Space;
use super::{Bench, Case, Measure, Measured, Stop};
use crate::capture::{Recorder, Setting, capture, capture_and};
use crate::model::{Agreement, Experiment, Finding};
use crate::process;
use crate::process::Peer;
use crate::scratch::Scratch;
use crate::traffic::{Amount, Traffic};

#[derive(Clone, Copy, Debug)]
pub enum Demand {
    Timestamps,
    Order,
    Merge,
    Loss,
}

/// A stamped frame of a file.
struct Seen {
    interface: usize,
    time: u64,
    length: usize,
    stamp: Stamp,
}

/// Length above which a frame is an ICMP error: it quotes a frame with its stamp, and is longer than any frame of 64 bytes
/// with its headers.
const QUOTED: usize = 85;

/// Values of `--time`.
const CLOCKS: [&str; 3] = ["auto", "poll", "precise"];

impl Measure for Demand {
    fn cases(&self, space: &Space, bench: &Bench) -> Result<Vec<Case>> {
        let seconds = space.number("seconds")?;
        let cpu = bench.sender_cpu;
        let me = *self;
        Case::each(space, self.axis(), |series, x| {
            let (way, setting) = set_up(series);
            let way = Recorder::find(way)?;
            Ok(Box::new(move |bench| {
                me.measure(bench, way, &setting, x, seconds, cpu)
            }))
        })
    }

    fn judge(&self, experiment: &Experiment) -> Finding {
        let metric = &experiment.definition.metrics[0];
        let worst = |is: &dyn Fn(&str) -> bool| {
            let own = experiment
                .points
                .iter()
                .filter(|point| point.metric == metric.name && is(&point.series));
            own.map(|point| point.value.median).reduce(f64::max)
        };
        let ours = worst(&|series| series.starts_with("trawl"));
        let shows: Vec<String> = experiment
            .series()
            .into_iter()
            .filter_map(|series| {
                let value = worst(&|one| one == series)?;
                Some(format!("{series} {value:.3} {}", metric.unit))
            })
            .collect();
        let Some(ours) = ours else {
            return Finding::default();
        };
        let (holds, sentence) = match self {
            Self::Timestamps => (
                ours < 100.0,
                format!(
                    "trawl's time stamps are taken at the hook: at most {ours:.1} us (median) after the frame was sent{}.",
                    by_clock(experiment)
                ),
            ),
            Self::Order => (
                ours == 0.0,
                format!("trawl's files have {ours:.4} % of their packets out of order."),
            ),
            Self::Merge => (
                ours == 0.0,
                format!(
                    "In trawl's files {ours:.4} % of the forwarded frames lack one side, or have it in the wrong order."
                ),
            ),
            Self::Loss => (
                ours < 0.01,
                format!(
                    "trawl hides {ours:.4} % of what was sent: all packets missing from its file are in its account."
                ),
            ),
        };
        Finding {
            agrees: if holds { Agreement::Yes } else { Agreement::No },
            shows: format!("{}, worst: {}", metric.label, shows.join(", ")),
            sentence,
        }
    }
}

/// Returns the delays of each of trawl's clocks at the highest rate, by the median and by 99 % of the packets.
fn by_clock(experiment: &Experiment) -> String {
    let at_most = |series: &str, metric: &str| {
        let line = experiment.line(series, metric);
        line.last().map(|point| (point.x, point.value.median))
    };
    let of = |clock: &&str| {
        let series = format!("trawl hook, drop, {clock}");
        let (rate, middle) = at_most(&series, "delay_p50_us")?;
        let (_, late) = at_most(&series, "delay_p99_us")?;
        Some((rate, format!("{clock} {middle:.2} us (99 %: {late:.2})")))
    };
    let found: Vec<(f64, String)> = CLOCKS.iter().filter_map(of).collect();
    let Some((rate, _)) = found.first() else {
        return String::new();
    };
    let clocks: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
    format!("; by clock, at {rate:.0} kpps: {}", clocks.join(", "))
}

/// Splits a series into the tool and trawl's setting.
fn set_up(series: &str) -> (&str, Setting) {
    let mut setting = Setting::default();
    if let Some(way) = series.strip_suffix(", ring 64KiB") {
        setting.ring = Some("64KiB".to_owned());
        return (way, setting);
    }
    for time in CLOCKS {
        let way = series
            .strip_suffix(time)
            .and_then(|way| way.strip_suffix(", "));
        if let Some(way) = way {
            setting.time = Some(time);
            return (way, setting);
        }
    }
    (series, setting)
}

impl Demand {
    fn axis(self) -> &'static str {
        match self {
            Self::Timestamps | Self::Merge => "kpps",
            Self::Order => "threads",
            Self::Loss => "mbits",
        }
    }

    fn measure(
        self,
        bench: &Bench,
        way: Recorder,
        setting: &Setting,
        x: f64,
        seconds: f64,
        cpu: usize,
    ) -> std::result::Result<Measured, Stop> {
        match self {
            Self::Timestamps => {
                let traffic = Traffic::at(64, x * 1e3, seconds, cpu).with(&["--stamp"]);
                capture_and(bench, way, setting, &traffic, delays)
            }
            Self::Order => {
                let cpus: Vec<usize> = (0..x as usize).map(|thread| thread % 2).collect();
                let mut traffic = Traffic::at(64, 200_000.0, seconds, cpu).with(&["--stamp"]);
                traffic.cpus = cpus;
                capture_and(bench, way, setting, &traffic, disorder)
            }
            Self::Merge => merge(bench, way, x * 1e3, seconds),
            Self::Loss => {
                let rate = crate::traffic::frames_per_second(x, 64);
                let mut measured =
                    capture(bench, way, setting, &Traffic::at(64, rate, seconds, cpu))?;
                let expected = measured.expected.unwrap_or(0);
                let lost = expected.saturating_sub(measured.recorded.unwrap_or(0));
                let admitted = measured
                    .claim
                    .as_ref()
                    .and_then(|claim| claim.lost)
                    .unwrap_or(0);
                let percent = |count: u64| count as f64 / expected.max(1) as f64 * 100.0;
                measured.values = [
                    ("hidden_percent", percent(lost.saturating_sub(admitted))),
                    ("lost_percent", percent(lost)),
                ]
                .into();
                Ok(measured)
            }
        }
    }
}

fn read(path: &Path, mut each: impl FnMut(Seen)) -> Result<()> {
    let what = || format!("cannot read {}", path.display());
    let file = File::open(path).map_err(|e| Error::os(what(), e))?;
    let fail = |e| Error::failed(what(), e);
    let mut reader = CaptureReader::new(BufReader::with_capacity(1 << 20, file)).map_err(fail)?;
    while let Some(packet) = reader.next_packet().map_err(fail)? {
        if let Some(stamp) = Stamp::read(packet.captured) {
            each(Seen {
                interface: packet.interface,
                time: packet.timestamp_ns,
                length: packet.captured.len(),
                stamp,
            });
        }
    }
    Ok(())
}

/// Computes the delays from the time of sending in the frame to the time stamp in the file.
fn delays(path: &Path, measured: &mut Measured) -> Result<()> {
    // Stamps are in atomic time, files in universal time.
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos() as u64);
    let offset = clock::tai().wrapping_sub(now) as i64;
    let mut delays = Vec::new();
    read(path, |seen| {
        delays.push(seen.stamp.age_at(seen.time.wrapping_add_signed(offset)))
    })?;
    delays.sort_unstable();
    let at = |share: f64| {
        let place = ((delays.len() as f64 - 1.0) * share).round() as usize;
        delays
            .get(place)
            .map_or(f64::NAN, |&delay| delay as f64 / 1e3)
    };
    measured.values = [("delay_p50_us", at(0.5)), ("delay_p99_us", at(0.99))].into();
    Ok(())
}

/// Counts frames of a stream with a lower number than an earlier one, and time stamps that go back.
fn disorder(path: &Path, measured: &mut Measured) -> Result<()> {
    let mut newest: HashMap<u16, u32> = HashMap::new();
    let (mut all, mut wrong, mut last) = (0u64, 0u64, 0);
    read(path, |seen| {
        all += 1;
        let before = newest.entry(seen.stamp.stream).or_default();
        wrong += u64::from(seen.stamp.sequence < *before || seen.time < last);
        *before = (*before).max(seen.stamp.sequence);
        last = last.max(seen.time);
    })?;
    measured.values = [("disorder_percent", wrong as f64 / all.max(1) as f64 * 100.0)].into();
    Ok(())
}

/// Measures forwarded frames, recorded at the incoming and the outgoing interface in one file.
fn merge(
    bench: &Bench,
    way: Recorder,
    rate: f64,
    seconds: f64,
) -> std::result::Result<Measured, Stop> {
    let line = Line::new(&LineOptions::default())?;
    let file = Scratch::new(&bench.scratch, "merged")?;
    let (router, left, right) = (&line.left.name, &line.left.interface, &line.right.interface);
    let (mut command, ready) = match way {
        Recorder::TrawlTc | Recorder::TrawlPacket => {
            let tap = if way == Recorder::TrawlTc {
                "tc"
            } else {
                "packet"
            };
            let mut trawl = process::command(&bench.trawl);
            trawl.args([
                "capture",
                "--tap",
                tap,
                "-Q",
                "inout",
                "-i",
                &format!("{router}:{left}"),
            ]);
            trawl
                .args(["-i", &format!("{router}:{right}"), "-w"])
                .arg(file.path());
            (trawl, "capturing on")
        }
        Recorder::Dumpcap => {
            let mut dumpcap = process::command_in(router, bench.peers.path("dumpcap")?);
            dumpcap
                .args(["-q", "-n", "-i", left, "-i", right, "-w"])
                .arg(file.path());
            (dumpcap, "File:")
        }
        Recorder::Tcpdump => {
            let mut tcpdump = process::command_in(router, bench.peers.path("tcpdump")?);
            tcpdump
                .args(["-n", "-Z", "root", "-i", "any", "-w"])
                .arg(file.path());
            (tcpdump, "listening on")
        }
        _ => {
            return Err(Stop::NotHere(format!(
                "{} sees one direction only",
                way.name()
            )));
        }
    };
    let peer = Peer::start(&way.name(), &mut command, bench.capture_cpu, ready)?;
    let mut traffic = Traffic::at(64, rate, seconds, bench.sender_cpu).with(&["--stamp"]);
    // A fixed number, since the router's hosts send packets of their own now and then.
    let stamped = ((rate * seconds) as u64).max(100);
    traffic.amount = Amount::Frames(stamped);
    let sent = traffic.send(bench, &line.a, &line.b)?;
    peer.wait_until_idle();
    peer.finish()?;
    let mut sides: HashMap<(u16, u32), Vec<usize>> = HashMap::new();
    read(file.path(), |seen| {
        if seen.length < QUOTED {
            let key = (seen.stamp.stream, seen.stamp.sequence);
            sides.entry(key).or_default().push(seen.interface);
        }
    })?;
    let whole = sides
        .values()
        .filter(|sides| sides.len() == 2 && (sides[0] < sides[1] || way == Recorder::Tcpdump))
        .count();
    let wrong = stamped.saturating_sub(whole as u64);
    Ok(Measured {
        values: [(
            "unmerged_percent",
            wrong as f64 / stamped.max(1) as f64 * 100.0,
        )]
        .into(),
        sent: Some(sent.frames),
        expected: Some(stamped * 2),
        recorded: Some(sides.values().map(|sides| sides.len() as u64).sum()),
        seconds: sent.seconds,
        cpus: Some((sent.cpus, sent.disturbed)),
        ..Measured::default()
    })
}
