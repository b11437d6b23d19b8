//! Facts about the machine for capture files.

use rustix::system::uname;

use crate::events;
use crate::process::cgroup;

#[derive(Clone, Debug)]
pub struct Description {
    pub os: String,
    pub hardware: String,
}

pub fn describe() -> Description {
    let name = uname();
    let machine = name.machine().to_string_lossy().into_owned();
    let hardware = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        })
        .map_or_else(|| machine.clone(), |model| format!("{model} ({machine})"));
    let os = format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy());
    Description { os, hardware }
}

/// Returns the running kernel's release, as `uname -r` shows it.
pub fn kernel_release() -> String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// Returns the bytes that are free on the file system of a path.
pub fn free_space(path: &std::path::Path) -> std::io::Result<u64> {
    let about = rustix::fs::statvfs(path)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Returns the machine's host name.
pub fn name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}

/// Returns an identifier of this boot of the kernel.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map_or_else(|_| "unknown".to_owned(), |id| id.trim().to_owned())
}

/// Returns the bytes of memory that this process can use without swapping; 0 if the kernel does not report them. A
/// container may have far less than its machine.
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let available = kib.map_or(0, |kib| kib << 10);
    cgroup::memory_limit().map_or(available, |limit| limit.min(available))
}

/// Returns one more than the highest number of a CPU that is online.
pub fn cpus() -> u32 {
    events::one_past_the_last("online") as u32
}
