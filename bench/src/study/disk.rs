//! Complete captures to the disk at full speed, each with its ceilings measured at the same time: the bare drop, a hook
//! that only reads the clock, the disk's direct rate.

use std::path::Path;
use std::time::{Duration, Instant};

use trawl_bpf::object::{self, Plain};
use trawl_io::disk::{Aligned, Disk as Direct, Piece, Write};
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::{self, Engine, Sent};
use trawl_lab::{Pair, PairOptions};
use trawl_sys::host::free_space;
use trawl_sys::{Error, Result};

use super::capture::configured;
use super::definition::Space;
use super::{Bench, Case, Measured, Outcome, Statements, Stop, of_aims, percent};
use crate::capture::{Running, configuration};
use crate::model::{Experiment, Finding};
use crate::recorder::{Choice, Fate, Recorder, Setting};
use crate::scratch::{self, Scratch};
use crate::traffic::{CHECKSUM, SENDER_CPU, Speed, capture_cpu, send_frames};

/// Number of frames for the ceilings, unless the measurement has fewer.
const CEILING_FRAMES: u64 = 4_000_000;
const SHARE: f64 = 0.6;
/// Files to keep if the disk is too small for the long recording: their number, and the size of each in millions of
/// bytes.
const KEPT: (u64, u64) = (4, 1000);
const DISK_PIECE: usize = 2 << 20;
const DISK_PIECES: usize = 16;
const DISK_ROUNDS: usize = 8;
/// Bytes of a record in addition to the frame.
const RECORD: f64 = 80.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Full,
    /// At 60 % of full speed, for a longer time.
    Share,
    /// From two CPUs to two queues.
    TwoSenders,
}

#[derive(Clone, Copy, Debug)]
struct DiskLoad {
    recorder: Recorder,
    configuration: Choice,
    time: Option<&'static str>,
    load: Load,
    size: usize,
    frames: u64,
    long: Duration,
}

fn record(size: f64) -> f64 {
    size + RECORD
}

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let frames = space.number("frames")? as u64;
    let long = Duration::from_secs_f64(space.number("long_seconds")?);
    let sizes = space.numbers("sizes")?;
    let mut cases = Vec::new();
    for series in space.names("series")? {
        let (rest, load) = match series.rsplit_once(", ") {
            Some((rest, "60 % of the rate")) => (rest, Load::Share),
            Some((rest, "two senders")) => (rest, Load::TwoSenders),
            _ => (series.as_str(), Load::Full),
        };
        let hook = |time| (Recorder::TrawlHook(Fate::Drop), Choice::Best, Some(time));
        let (recorder, configuration, time) = match rest {
            "trawl hook, auto" => hook("auto"),
            "trawl hook, poll" => hook("poll"),
            "trawl hook, precise" => hook("precise"),
            other => {
                let (recorder, configuration) = configured(other)?;
                (recorder, configuration, None)
            }
        };
        // Only the full load is measured with larger frames, which show the rate of the disk.
        let measured = if load == Load::Full { sizes.len() } else { 1 };
        for &size in sizes.iter().take(measured) {
            let plan = DiskLoad {
                recorder,
                configuration,
                time,
                load,
                size: size as usize,
                frames: (frames as f64 * record(sizes[0]) / record(size)) as u64,
                long,
            };
            cases.push(Case::new(&series, size, move |bench| plan.measure(bench)));
        }
    }
    Ok(cases)
}

impl DiskLoad {
    fn measure(self, bench: &Bench) -> Outcome {
        if bench.hosts.is_some() {
            return Err(Stop::NotHere(
                "the ceilings are measured on this host: capture-disk cannot run on other hosts".into(),
            ));
        }
        let bare = self.ceiling(Does::Drop)?;
        let clock = self.ceiling(Does::DropWithHook)?;
        let disk = disk_rate(&bench.scratch)?;
        let (count, rate) = match self.load {
            Load::Share => {
                let rate = bare.rate() * SHARE;
                ((rate * self.long.as_secs_f64()) as u64, Some(rate as u64))
            }
            _ => (self.frames, None),
        };
        let files = match self.exceeds_disk(bench, count)? {
            Some(_) if self.load == Load::Share => Some(KEPT),
            Some(stop) => return Err(stop),
            None => None,
        };
        let mut options = Vec::new();
        if let Some(time) = self.time {
            options.push(format!("--time={time}"));
        }
        if let Some((files, megabytes)) = files {
            options.extend([format!("-W{files}"), format!("-C{megabytes}")]);
        }
        let setting = Setting { configuration: self.configuration, options, ..Setting::default() };
        // A veth accepts XDP frames only if its receive queue is polled, for GRO or a program.
        let engine =
            if configuration(bench, self.recorder, self.configuration)?.gro { Engine::Live } else { Engine::Packet };
        let running = Running::start(bench, self.recorder, &setting)?;
        let cpu_before = running.peer.cpu_seconds();
        let first = self.send(&running.lab, engine, count / 5, rate)?;
        let memory = |running: &Running| running.peer.peak_memory().unwrap_or(0);
        let early = memory(&running);
        let sent = first.and(self.send(&running.lab, engine, count - count / 5, rate)?);
        // The cost includes the writing of the rest.
        if self.recorder.needs_rest() {
            running.peer.wait_until_idle();
        }
        let late = memory(&running);
        let writer = running.peer.cpu_seconds() - cpu_before;
        let said = running.peer.finish()?;
        // trawl's hook sees the sent frames only; others also see the answers of the host.
        let mac = (!matches!(self.recorder, Recorder::TrawlHook(_))).then_some(running.lab.b.mac);
        let claim = self.recorder.claim(&said);
        let counted = claim.as_ref().and_then(|claim| claim.lost).unwrap_or(0);
        let written = match files {
            Some(_) => running.file.series(),
            None => vec![running.file.path().to_owned()],
        };
        let mut bytes = 0.0;
        let (mut recorded, mut disordered) = (0, 0);
        for path in &written {
            let contents = scratch::contents(path, mac, self.recorder.tap().is_none())?;
            recorded += contents.packets;
            disordered += contents.disordered;
            bytes += path.metadata().map_or(0, |about| about.len()) as f64;
        }
        // Files that were replaced by later ones are only in trawl's account.
        if files.is_some() {
            let all = claim.as_ref().and_then(|claim| claim.recorded).unwrap_or(0);
            bytes *= all as f64 / recorded.max(1) as f64;
            recorded = all;
        }
        let lost = sent.frames.saturating_sub(recorded);
        Ok(Measured {
            values: [
                ("lost_percent", percent(lost as f64, sent.frames as f64)),
                ("hidden_percent", percent(lost.saturating_sub(counted) as f64, sent.frames as f64)),
                ("disorder_percent", percent(disordered as f64, recorded as f64)),
                ("recorded_mpps", recorded as f64 / sent.seconds / 1e6),
                ("of_bare_percent", percent(sent.rate(), bare.rate())),
                ("of_bare_cpu_percent", percent(sent.rate_by_cpu(), bare.rate_by_cpu())),
                ("of_clock_cpu_percent", percent(sent.rate_by_cpu(), clock.rate_by_cpu())),
                ("writer_cpu_percent", percent(writer, sent.seconds)),
                ("disk_mbytes", bytes / sent.seconds / 1e6),
                ("of_disk_percent", percent(bytes / sent.seconds, disk)),
                ("memory_growth_mib", late.saturating_sub(early) as f64 / f64::from(1 << 20)),
            ]
            .into(),
            sent: Some(sent.frames),
            expected: Some(sent.frames),
            recorded: Some(recorded),
            claim,
            seconds: sent.seconds,
            memory_bytes: Some(late),
            cpus: None,
        })
    }

    /// Returns the reason if the disk is too small for the recording: a full one would be measured as loss.
    fn exceeds_disk(self, bench: &Bench, count: u64) -> Result<Option<Stop>> {
        let directory = bench.scratch.display();
        let free = free_space(&bench.scratch)
            .map_err(|e| Error::os(format!("cannot determine the free space of {directory}"), e))?;
        let needed = (count as f64 * record(self.size as f64)) as u64;
        if needed <= free / 10 * 9 {
            return Ok(None);
        }
        Ok(Some(Stop::NotHere(format!(
            "the recording needs {:.1} GB, but {directory} has {:.1} GB free: name a larger disk with --scratch, or record \
             less with --set frames={}",
            needed as f64 / 1e9,
            free as f64 / 1e9,
            self.frames / 4,
        ))))
    }

    /// Measures the speed without a recording. In a hook map, if any, is a program that only reads the clock.
    fn ceiling(self, does: Does) -> Result<Speed> {
        let lab = Pair::new(&PairOptions::default())?;
        let program = Loaded::native(does, &lab.b)?;
        let _clock = match does {
            Does::DropWithHook => {
                let clock = Plain::load(object::LAB_XDP, Does::ReadClock.name())?;
                program.put_after_drops(clock.program())?;
                Some(clock)
            }
            _ => None,
        };
        self.send(&lab, Engine::Live, self.frames.min(CEILING_FRAMES), None)
    }

    fn send(self, lab: &Pair, engine: Engine, count: u64, rate: Option<u64>) -> Result<Speed> {
        // The stack does not answer these frames: an answer would cost the sender's CPU more than the capture does.
        let frames = [sender::experimental(lab.a.mac, lab.b.mac, self.size - CHECKSUM)];
        let send = |cpu, count| send_frames(lab, engine, &frames, count, rate, cpu);
        Speed::of(|| {
            let all: Vec<Sent> = match self.load {
                Load::TwoSenders => std::thread::scope(|scope| {
                    let half = count / 2;
                    let other = scope.spawn(move || send(capture_cpu(), half));
                    let one = send(SENDER_CPU, count - half)?;
                    let other = other.join().map_err(|_| Error::failed("the second sender", "it crashed"))??;
                    Ok::<_, Error>(vec![one, other])
                })?,
                _ => vec![send(SENDER_CPU, count)?],
            };
            Ok(all.iter().map(|sent| sent.packets).sum())
        })
    }
}

/// Measures the disk's direct rate in bytes per second, with several large pieces in flight.
pub fn disk_rate(directory: &Path) -> Result<f64> {
    use std::os::fd::AsFd;
    let scratch = Scratch::new(directory, "rate")?;
    let fail = |e| Error::os(format!("cannot write to {}", scratch.path().display()), e);
    let file = std::fs::File::create(scratch.path()).map_err(fail)?;
    let Ok(mut disk) = Direct::open(file.as_fd()) else {
        // The file system does not support direct writes, so the ceiling is unknown.
        return Ok(f64::INFINITY);
    };
    let filled = || -> Result<Aligned> {
        let mut piece = Aligned::new(DISK_PIECE)?;
        piece.extend(&vec![0xa5; DISK_PIECE]);
        Ok(piece)
    };
    let mut pieces: Vec<Aligned> = (0..DISK_PIECES).map(|_| filled()).collect::<Result<_>>()?;
    let began = Instant::now();
    let mut bytes = 0;
    for _ in 0..DISK_ROUNDS {
        let mut writes = Vec::new();
        for piece in pieces.drain(..) {
            writes.push(Write { offset: bytes, piece: Piece::Buffer(piece) });
            bytes += DISK_PIECE as u64;
        }
        disk.start(writes);
        for done in disk.finished(true).unwrap_or_default() {
            if let Piece::Buffer(piece) = done.write.piece {
                pieces.push(piece);
            }
        }
    }
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

pub fn judge(experiment: &Experiment) -> Finding {
    let (smallest, largest) = experiment.ends();
    let median = |series: &str, metric: &str| experiment.median(series, metric, smallest);
    let worst = |series: &str, metric: &str| {
        let runs = experiment.runs.iter();
        let runs = runs.filter(|run| run.series == series && run.x == smallest);
        let values = runs.filter_map(|run| run.values.get(metric).copied());
        values.reduce(f64::max)
    };
    let mut shows: Vec<String> = Vec::new();
    let mut statements = Statements::default();
    let mut aim = |value: Option<f64>, holds: fn(f64) -> bool, text: &dyn Fn(f64) -> String| {
        if let Some(value) = value {
            shows.push(text(value));
            statements.check(text(value), holds(value));
        }
    };
    let (auto, precise, two) = ("trawl hook, auto", "trawl hook, precise", "trawl hook, auto, two senders");
    let long = "trawl hook, auto, 60 % of the rate";
    for series in [auto, precise, long] {
        let lost = worst(series, "lost_percent");
        aim(lost, |lost| lost == 0.0, &|lost| format!("{series} loses {lost:.3} % at worst (aim: 0)"));
    }
    let share = median(auto, "of_bare_cpu_percent");
    aim(share, |share| share >= 80.0, &|share| {
        format!("{auto}: {share:.0} % of the bare drop's rate (aim: at least 80)")
    });
    let share = median(precise, "of_clock_cpu_percent");
    aim(share, |share| share >= 85.0, &|share| format!("{precise}: {share:.0} % of hook and clock (aim: at least 85)"));
    let writer = median(auto, "writer_cpu_percent");
    aim(writer, |writer| writer < 35.0, &|writer| {
        format!("{auto}: the writer uses {writer:.0} % of a CPU (aim: below 35)")
    });
    if let (Some(disorder), Some(hidden)) = (worst(two, "disorder_percent"), worst(two, "hidden_percent")) {
        let counted = worst(two, "lost_percent").unwrap_or(0.0) - hidden;
        aim(Some(disorder + hidden), |wrong| wrong == 0.0, &|_| {
            format!(
                "{two}: {disorder:.3} % out of order, {hidden:.3} % lost and not counted (aim: 0), {counted:.3} % lost and counted"
            )
        });
    }
    if largest > smallest {
        let share = experiment.median(auto, "of_disk_percent", largest);
        aim(share, |share| share >= 90.0, &|share| {
            format!("{auto}: {share:.0} % of the disk's direct rate at {largest} bytes (aim: at least 90)")
        });
    }
    let growth = worst(long, "memory_growth_mib");
    aim(growth, |growth| growth < 8.0, &|growth| format!("memory grows by {growth:.1} MiB (aim: below 8)"));
    let times = |peer: &str| {
        let theirs = median(peer, "recorded_mpps")?;
        Some(median(auto, "recorded_mpps")? / theirs.max(f64::EPSILON))
    };
    let text =
        |peer: &str, times: f64, least: f64| format!("{auto} records {times:.1} times {peer} (aim: at least {least})");
    aim(times("tcpdump"), |times| times >= 4.0, &|times| text("tcpdump", times, 4.0));
    aim(times("dumpcap"), |times| times >= 1.0, &|times| text("dumpcap", times, 1.0));
    aim(times("xdpcap, drop"), |times| times >= 2.5, &|times| text("xdpcap, drop", times, 2.5));
    of_aims(&statements, &shows)
}
