//! Receiving on a CPU of its own: each queue gets a kernel thread (threaded NAPI), which is pinned and whose time is read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use trawl_lab::Station;

use super::process;
use crate::study::Stop;

const PATIENCE: Duration = Duration::from_secs(5);

/// An interface's name by which the kernel's threads of it are found among all others, also among those of a lab that
/// is on its way out.
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
    /// Gives each queue a kernel thread, and puts these on one CPU, before what else runs there.
    pub fn pinned(station: &Station, cpu: usize) -> Result<Self, Stop> {
        let setting = format!("/sys/class/net/{}/threaded", station.interface);
        let mut shell = process::command_in(&station.name, "sh");
        shell.args(["-c", &format!("echo 1 > {setting}")]);
        process::run(&mut shell).map_err(|why| {
            Stop::NotHere(format!(
                "this kernel has no threaded NAPI for a veth: {why}"
            ))
        })?;
        let wanted = format!("napi/{}-", station.interface);
        let deadline = Instant::now() + PATIENCE;
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
                return Err(Stop::NotHere(
                    "the kernel made no threads for NAPI".to_owned(),
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The CPU time that receiving has taken so far, whatever else ran on the same CPU.
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
