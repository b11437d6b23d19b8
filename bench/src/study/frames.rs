//! The cost of a record by the size of its frame, up to TCP's segments of 64 kB, compared with the memory's copy rate and
//! the disk's direct rate.

use std::io::{self, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use trawl_lab::Pair;
use trawl_lab::sender::{self, Engine};
use trawl_sys::netns::run_in;
use trawl_sys::{Error, Result};

use super::capture::configured;
use super::definition::Space;
use super::disk::disk_rate;
use super::{Bench, Case, Comparison, Measured, Outcome, Stop, compared};
use crate::capture::{Running, configuration, lab_for};
use crate::model::{Experiment, Finding};
use crate::outcome::percent;
use crate::recorder::{Choice, Recorder, Setting};
use crate::scratch;
use crate::traffic::{CHECKSUM, SENDER_CPU, Speed, received, send_frames};

/// Suffix of series whose records keep the first 128 bytes.
const CUT: &str = ", 128 bytes";
/// Frames above this size are TCP's: a connection sends segments that the stack does not cut on a veth.
const LARGEST_FRAME: usize = 9018;
/// MTU at which a frame of the largest size passes.
const MTU: u32 = 9000;
/// Most bytes of a burst: a capture's memory holds it, so that the disk does not slow the capture down.
const BURST: u64 = 100_000_000;
const TCP_PIECE: usize = 256 << 10;
/// Memory that the copy rate is measured in, which no cache holds.
const COPY_ROOM: usize = 256 << 20;

#[derive(Clone, Debug)]
struct Plan {
    recorder: Recorder,
    configuration: Choice,
    is_cut: bool,
    size: usize,
    bursts: u64,
    most_frames: u64,
}

pub fn cases(space: &Space) -> Result<Vec<Case>> {
    let (bursts, most_frames) = (space.number("bursts")? as u64, space.number("burst_frames")? as u64);
    Case::each(space, "sizes", |series, size| {
        let name = series.strip_suffix(CUT);
        let (recorder, configuration) = configured(name.unwrap_or(series))?;
        let plan = Plan { recorder, configuration, is_cut: name.is_some(), size: size as usize, bursts, most_frames };
        Ok(move |bench: &Bench| plan.measure(bench))
    })
}

impl Plan {
    fn measure(&self, bench: &Bench) -> Outcome {
        if bench.hosts.is_some() {
            return Err(Stop::NotHere("the sender's process is read on this host".into()));
        }
        let options = if self.is_cut { vec!["-s128".to_owned()] } else { Vec::new() };
        let mtu = (self.size > 1518).then_some(MTU);
        let setting = Setting { configuration: self.configuration, options, mtu, ..Setting::default() };
        let (copy, disk) = (copy_rate(self.size), disk_rate(&bench.scratch)?);
        let chosen = configuration(bench, self.recorder, self.configuration)?;
        let mut alone = Speed::default();
        let (lab, program) = lab_for(self.recorder, chosen, mtu)?;
        for _ in 0..self.bursts {
            alone = alone.and(self.burst(&lab, chosen.gro)?);
        }
        drop((lab, program));
        let running = Running::start(bench, self.recorder, &setting)?;
        let before = running.peer.cpu_seconds();
        let mut with = Speed::default();
        for _ in 0..self.bursts {
            with = with.and(self.burst(&running.lab, chosen.gro)?);
            running.peer.wait_until_idle();
        }
        let writer = running.peer.cpu_seconds() - before;
        let memory_bytes = running.peer.peak_memory();
        let Running { lab, file, peer, .. } = running;
        let claim = self.recorder.claim(&peer.finish()?);
        let recorded = scratch::contents(file.path(), Some(lab.b.mac), self.recorder.tap().is_none())?.packets;
        let lost = with.frames.saturating_sub(recorded);
        let bytes = file.path().metadata().map_or(0, |about| about.len()) as f64;
        let mut values = vec![
            ("lost_percent", percent(lost as f64, with.frames as f64)),
            ("mpps", with.rate() / 1e6),
            ("gbytes", (self.bursts * self.burst_bytes()) as f64 / with.seconds / 1e9),
            ("of_alone_percent", percent(with.rate(), alone.rate())),
            ("of_copy_percent", percent(bytes / with.seconds, copy)),
            ("of_disk_percent", percent(bytes / with.seconds, disk)),
        ];
        // The cost of packets that are lost is not the cost of a record.
        if recorded as f64 >= crate::capture::WHOLE * with.frames as f64 {
            let nanoseconds = |speed: Speed| 1e9 / speed.rate_by_cpu();
            let hook = (nanoseconds(with) - nanoseconds(alone)).max(0.0);
            let writer = writer / with.frames.max(1) as f64 * 1e9;
            values.extend([("hook_ns", hook), ("writer_ns", writer), ("cpu_ns", hook + writer)]);
        }
        Ok(Measured {
            values: values.into_iter().collect(),
            sent: Some(with.frames),
            expected: Some(with.frames),
            recorded: Some(recorded),
            claim,
            seconds: with.seconds,
            memory_bytes,
            cpus: None,
        })
    }

    /// Returns the number of frames of a burst; of TCP, the stack chooses it.
    fn burst_frames(&self) -> u64 {
        (BURST / self.size as u64).min(self.most_frames)
    }

    fn burst_bytes(&self) -> u64 {
        if self.size > LARGEST_FRAME { BURST } else { self.burst_frames() * self.size as u64 }
    }

    /// Sends a burst into the lab.
    fn burst(&self, lab: &Pair, gro: bool) -> Result<Speed> {
        Speed::of(|| {
            let before = received(&lab.b)?;
            if self.size > LARGEST_FRAME {
                send_stream(lab, BURST)?;
            } else {
                // Only a veth whose receive queue is polled accepts XDP frames, and these fit into a page.
                let engine = if gro && self.size <= 1518 { Engine::Live } else { Engine::Packet };
                let frames = [sender::experimental(lab.a.mac, lab.b.mac, self.size - CHECKSUM)];
                send_frames(lab, engine, &frames, self.burst_frames(), None, SENDER_CPU)?;
            }
            Ok(received(&lab.b)? - before)
        })
    }
}

/// Sends this many bytes by TCP.
fn send_stream(lab: &Pair, bytes: u64) -> Result<()> {
    let what = "cannot send by TCP";
    let fail = |e| Error::os(what, e);
    let address = (lab.b.ipv4, 0);
    let listener = run_in(&lab.b.namespace, || TcpListener::bind(address))?.map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    let reader = std::thread::spawn(move || -> io::Result<u64> {
        let (stream, _) = listener.accept()?;
        io::copy(&mut BufReader::with_capacity(TCP_PIECE, stream), &mut io::sink())
    });
    let mut stream = run_in(&lab.a.namespace, || TcpStream::connect(address))?.map_err(fail)?;
    let piece = vec![0xa5; TCP_PIECE];
    let mut left = bytes;
    while left > 0 {
        let count = left.min(TCP_PIECE as u64);
        stream.write_all(&piece[..count as usize]).map_err(fail)?;
        left -= count;
    }
    drop(stream);
    let read = reader.join().map_err(|_| Error::failed(what, "the reader crashed"))?.map_err(fail)?;
    if read == bytes { Ok(()) } else { Err(Error::failed(what, format!("{read} of {bytes} bytes arrived"))) }
}

/// Returns the rate in bytes per second at which one CPU copies pieces of this size from its cache into memory.
fn copy_rate(size: usize) -> f64 {
    let piece = vec![0xa5; size];
    let mut room = vec![1; COPY_ROOM];
    let mut rate: f64 = 0.0;
    for _ in 0..3 {
        let began = Instant::now();
        for to in room.chunks_exact_mut(size) {
            to.copy_from_slice(std::hint::black_box(&piece));
        }
        std::hint::black_box(&room);
        rate = rate.max(room.len() as f64 / began.elapsed().as_secs_f64());
    }
    rate
}

pub fn judge(experiment: &Experiment) -> Finding {
    let pairs = [("trawl tc", "tcpdump"), ("trawl tc, 128 bytes", "tcpdump, 128 bytes")];
    compared(experiment, &pairs, "cpu_ns", Comparison::Share)
}
