//! Traffic that `trawl gen` sends from a station of a lab, counted by the sending device; and its reception on a CPU of
//! its own: each queue gets a kernel thread (threaded NAPI), which is pinned and whose time is read.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trawl_lab::sender::{self, Engine, Job};
use trawl_lab::{Pair, Station};
use trawl_sys::{Error, Result};

use crate::machine::{Sample, cpus};
use crate::model::CpuUse;
use crate::outcome::{Measured, Stop};
use crate::process;

/// Share of the requested rate above which a sender counts as having reached it.
pub const RATE_REACHED: f64 = 0.93;
/// Bytes of the checksum at a frame's end, which the studies count and Linux does not show.
pub const CHECKSUM: usize = 4;

pub const SENDER_CPU: usize = 0;

/// Options for frames that the stack drops after every capture has seen them: port unreachable answers would cost the
/// sender's CPU more than the capture does.
pub const UNANSWERED: [&str; 2] = ["--ethertype", "0x1234"];

/// Returns the CPU of captures: another than the sender's, if the machine has two.
pub fn capture_cpu() -> usize {
    usize::from(cpus() > 1)
}

#[derive(Clone, Debug)]
pub struct Traffic {
    /// Length of each frame including its checksum, as in the studies.
    pub size: usize,
    /// Frames per second; `None` at full speed.
    pub rate: Option<f64>,
    pub amount: Amount,
    /// CPU of each sending thread.
    pub cpus: Vec<usize>,
    /// Further arguments of `trawl gen udp`.
    pub more: Vec<String>,
    /// Set to lower the sender's priority below all other work on its CPU.
    pub low_priority: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Amount {
    Frames(u64),
    Time(Duration),
}

#[derive(Clone, Debug)]
pub struct Sent {
    /// By the counter of the device.
    pub frames: u64,
    pub seconds: f64,
    pub cpus: Vec<CpuUse>,
    pub disturbed: Option<String>,
}

impl Sent {
    pub fn per_second(&self) -> f64 {
        self.frames as f64 / self.seconds.max(f64::EPSILON)
    }
}

impl Measured {
    /// Returns the values of a run in which this was sent.
    pub fn after(sent: Sent, values: impl Into<BTreeMap<&'static str, f64>>) -> Self {
        Self {
            values: values.into(),
            sent: Some(sent.frames),
            seconds: sent.seconds,
            cpus: Some((sent.cpus, sent.disturbed)),
            ..Self::default()
        }
    }
}

/// Returns the frames per second that fill this many Mbit/s with frames of this length, including the checksum.
pub fn frames_per_second(megabits: f64, size: usize) -> f64 {
    megabits * 1e6 / 8.0 / size as f64
}

impl Traffic {
    /// Returns traffic at a rate, for a time, from one CPU.
    pub fn at(size: usize, rate: f64, seconds: f64) -> Self {
        Self {
            rate: Some(rate),
            // The time is fixed, because a slow receiver would stretch the time of a fixed number of frames.
            amount: Amount::Time(Duration::from_secs_f64(seconds.max(100.0 / rate))),
            ..Self::flood(size, seconds, &[SENDER_CPU])
        }
    }

    /// Returns traffic at full speed, for a time, from these CPUs.
    pub fn flood(size: usize, seconds: f64, cpus: &[usize]) -> Self {
        Self {
            size,
            rate: None,
            amount: Amount::Time(Duration::from_secs_f64(seconds)),
            cpus: cpus.to_vec(),
            more: Vec::new(),
            low_priority: false,
        }
    }

    pub fn with(mut self, more: &[&str]) -> Self {
        self.more.extend(more.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Returns the arguments of `trawl` that send it.
    pub fn arguments(&self, interface: &str, destination: &str) -> Vec<String> {
        let size = self.size - CHECKSUM;
        let mut text = format!("gen udp --json --yes -i {interface} --dst {destination} --size {size}");
        if let Some(rate) = self.rate {
            text += &format!(" --rate {rate:.0}");
        }
        text += &match self.amount {
            Amount::Frames(count) => format!(" --count {count}"),
            Amount::Time(time) => format!(" --duration {}ms", time.as_millis().max(1)),
        };
        // If threads outnumber the CPUs, they share them in this order.
        let mut cpus: Vec<String> = Vec::new();
        for cpu in self.cpus.iter().map(usize::to_string) {
            if !cpus.contains(&cpu) {
                cpus.push(cpu);
            }
        }
        text += &format!(" --threads {} --cpus {}", self.cpus.len(), cpus.join(","));
        let arguments = text.split(' ').map(str::to_owned);
        arguments.chain(self.more.iter().cloned()).collect()
    }

    pub fn send(&self, trawl: &Path, from: &Station, to: &Station) -> Result<Sent> {
        self.send_to(trawl, from, &to.ipv4.to_string())
    }

    pub fn send_to(&self, trawl: &Path, from: &Station, destination: &str) -> Result<Sent> {
        let mut trawl = process::command(trawl);
        if self.low_priority {
            trawl_sys::process::lower_priority(&mut trawl);
        }
        sent_by(trawl.args(self.arguments(&label(from), destination)), from)
    }
}

/// Runs a command of `trawl gen`, and counts what the device sends.
pub fn sent_by(trawl: &mut Command, from: &Station) -> Result<Sent> {
    let (before, sample) = (transmitted(from)?, Sample::now());
    let said = process::json_of(trawl)?;
    let (cpus, disturbed) = sample.until_now();
    if let Some(why) = said["failure"].as_str() {
        return Err(Error::failed("the sender stopped", why));
    }
    Ok(Sent { frames: transmitted(from)? - before, seconds: said["seconds"].as_f64().unwrap_or(0.0), cpus, disturbed })
}

/// Sends frames from within this process, into a lab.
pub fn send_frames(
    lab: &Pair,
    engine: Engine,
    frames: &[Vec<u8>],
    count: u64,
    rate: Option<u64>,
    cpu: usize,
) -> Result<sender::Sent> {
    sender::send(&Job {
        namespace: Some(&lab.a.namespace),
        interface: &lab.a.interface,
        frames,
        count,
        engine,
        rate,
        cpu: Some(cpu),
    })
}

/// The rate at which this process sends frames, by the clock and by the CPU time of the process, which includes the hook's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    pub frames: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
}

impl Speed {
    /// Measures `send`, which returns the number of frames.
    pub fn of(send: impl FnOnce() -> Result<u64>) -> Result<Self> {
        let cpu = || trawl_sys::process::cpu_seconds(std::process::id());
        let (before, began) = (cpu(), Instant::now());
        let frames = send()?;
        Ok(Self { frames, seconds: began.elapsed().as_secs_f64(), cpu_seconds: cpu() - before })
    }

    pub fn rate(self) -> f64 {
        self.frames as f64 / self.seconds.max(f64::EPSILON)
    }

    pub fn rate_by_cpu(self) -> f64 {
        self.frames as f64 / self.cpu_seconds.max(f64::EPSILON)
    }

    pub fn and(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            seconds: self.seconds + other.seconds,
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
        }
    }
}

/// Returns the interface of a station, for the command line.
pub fn label(station: &Station) -> String {
    format!("{}:{}", station.name, station.interface)
}

pub fn transmitted(station: &Station) -> Result<u64> {
    Ok(station.netlink()?.link(&station.interface)?.statistics.tx_packets)
}

pub fn received(station: &Station) -> Result<u64> {
    Ok(station.netlink()?.link(&station.interface)?.statistics.rx_packets)
}

const TIMEOUT: Duration = Duration::from_secs(5);

/// Returns a unique interface name, which identifies the kernel's threads, even while another lab is being removed.
pub fn interface_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) % 0x1000;
    format!("t{:05x}{count:03x}", std::process::id() % 0x10_0000)
}

/// The kernel's threads that receive for an interface.
#[derive(Debug)]
pub struct Napi {
    threads: Vec<u32>,
}

impl Napi {
    /// Gives each queue a kernel thread, and pins them to one CPU with a higher priority than its other work.
    pub fn pinned(station: &Station, cpu: usize) -> Result<Self, Stop> {
        let setting = format!("/sys/class/net/{}/threaded", station.interface);
        let mut shell = process::command_in(&station.name, "sh");
        process::run(shell.args(["-c", &format!("echo 1 > {setting}")]))
            .map_err(|why| Stop::NotHere(format!("this kernel has no threaded NAPI for a veth: {why}")))?;
        let wanted = format!("napi/{}-", station.interface);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let threads = threads_named(&wanted);
            if !threads.is_empty() {
                for &thread in &threads {
                    trawl_sys::process::pin(thread, cpu)?;
                    trawl_sys::process::prefer(thread)?;
                }
                return Ok(Self { threads });
            }
            if Instant::now() > deadline {
                return Err(Stop::NotHere("the kernel made no threads for NAPI".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the CPU time of the reception so far, independent of other work on the CPU.
    pub fn cpu_seconds(&self) -> f64 {
        let of = |thread: &u32| {
            let text = std::fs::read_to_string(format!("/proc/{thread}/schedstat")).ok();
            let nanoseconds = text.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
            // Kernels without scheduler statistics count ticks.
            nanoseconds.map_or_else(|| trawl_sys::process::cpu_seconds(*thread), |ns| ns / 1e9)
        };
        self.threads.iter().map(of).sum()
    }
}

fn threads_named(prefix: &str) -> Vec<u32> {
    // The kernel cuts names after 15 characters.
    let prefix: String = prefix.chars().take(15).collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
            name.starts_with(&prefix).then_some(id)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_include_the_checksum_and_rates_the_frame() {
        assert_eq!(frames_per_second(512.0, 64), 1e6);
        let arguments = Traffic::at(64, 1000.0, 0.5).arguments("n:v", "10.0.0.1").join(" ");
        assert!(arguments.contains("--size 60 --rate 1000 --duration 500ms --threads 1 --cpus 0"), "{arguments}");
        let arguments = Traffic::flood(128, 0.25, &[0, 1]).with(&["--stamp"]).arguments("n:v", "x").join(" ");
        assert!(arguments.ends_with("--size 124 --duration 250ms --threads 2 --cpus 0,1 --stamp"), "{arguments}");
        let arguments = Traffic::flood(128, 0.25, &[0, 1, 0, 1]).arguments("n:v", "x").join(" ");
        assert!(arguments.ends_with("--threads 4 --cpus 0,1"), "{arguments}");
    }
}
