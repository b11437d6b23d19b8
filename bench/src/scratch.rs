//! Files and directories of an experiment: newly made, counted, and removed, also after an interruption.
//!
//! Packets are counted in the written files, independently of a capture's own counts.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use trawl_packet::read::{CaptureReader, Packet};
use trawl_sys::process::warden::Undo;
use trawl_sys::{Error, Result, files::create, process};

/// A file that is removed after the run. It is newly made: a planted file of that name is not written to.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(directory: &Path, name: &str) -> Result<Self> {
        made(directory, name, |path| create::new_file(path, PRIVATE).map(drop)).map(Self)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the files of a capture to several files, which it names `NAME_00000` and so on.
    pub fn series(&self) -> Vec<PathBuf> {
        let directory = self.0.parent().unwrap_or(Path::new("."));
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        let first = format!("{name}_");
        let is_of_series =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&first));
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|one| one.path()).filter(is_of_series).collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for file in self.series().iter().chain([&self.0]) {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// A directory of a benchmark, which is removed with its contents.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(parent: &Path, name: &str) -> Result<Self> {
        made(parent, name, |path| std::fs::create_dir(path)).map(Self)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Number of names to try if others exist.
const ATTEMPTS: u32 = 100;
const PRIVATE: u32 = 0o600;

/// Makes a new file or directory of this process, and returns its path.
fn made(parent: &Path, name: &str, make: impl Fn(&Path) -> std::io::Result<()>) -> Result<PathBuf> {
    let prefix = file_prefix(std::process::id());
    let mut number = 0;
    loop {
        let path = parent.join(format!("{prefix}{number}-{name}"));
        match make(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && number < ATTEMPTS => number += 1,
            Err(e) => return Err(Error::os(format!("cannot make {}", path.display()), e)),
        }
    }
}

/// Packet counts of a capture file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contents {
    pub packets: u64,
    /// Packets stamped earlier than a predecessor.
    pub disordered: u64,
}

/// Counts the packets of a file, or the ones addressed to this MAC, which excludes the host's answers. A peer's file
/// may be damaged, as xdpcap's can be; then the packets before the damage count.
pub fn contents(path: &Path, mac: Option<[u8; 6]>, is_a_peers: bool) -> Result<Contents> {
    let (mut contents, mut latest) = (Contents::default(), 0);
    let read = each_packet(path, |packet| {
        if mac.is_none_or(|mac| packet.captured.starts_with(&mac)) {
            contents.packets += 1;
            contents.disordered += u64::from(packet.timestamp_ns < latest);
            latest = latest.max(packet.timestamp_ns);
        }
    });
    match read {
        Err(error) if !(is_a_peers && contents.packets > 0) => Err(error),
        _ => Ok(contents),
    }
}

/// Reads all packets of a file.
pub fn each_packet(path: &Path, mut each: impl FnMut(&Packet<'_>)) -> Result<()> {
    let what = || format!("cannot read the packets of {}", path.display());
    let file = File::open(path).map_err(|e| Error::os(what(), e))?;
    let fail = |e| Error::failed(what(), e);
    let mut reader = CaptureReader::new(BufReader::with_capacity(1 << 20, file)).map_err(fail)?;
    while let Some(packet) = reader.next_packet().map_err(fail)? {
        each(&packet);
    }
    Ok(())
}

/// Environment variable of all processes of a benchmark: its process id.
pub const MARK: &str = "TRAWL_BENCH";

/// Returns the prefix of a benchmark's file names.
pub fn file_prefix(process: u32) -> String {
    format!("trawl-bench-{process}-")
}

/// Remains of a benchmark, for the warden to remove if it is killed.
#[derive(Debug)]
pub struct Remains {
    process: u32,
    directory: PathBuf,
}

impl Remains {
    /// Remains of this process, whose captures are in `directory`.
    pub fn of_this_process(directory: &Path) -> Self {
        Self { process: std::process::id(), directory: directory.to_owned() }
    }
}

impl Undo for Remains {
    fn undo(&self) -> Result<()> {
        for peer in marked(self.process) {
            let _ = process::interrupt(peer);
        }
        for lab in trawl_lab::list().unwrap_or_default() {
            if lab.owner.is_some_and(|owner| owner.pid == self.process) {
                let _ = trawl_lab::remove(&lab.id);
            }
        }
        let prefix = file_prefix(self.process);
        let entries = std::fs::read_dir(&self.directory);
        for entry in entries.into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    std::fs::remove_dir_all(entry.path())
                } else {
                    std::fs::remove_file(entry.path())
                };
            }
        }
        Ok(())
    }

    /// Keeps standard output and error open, so that their readers wait until everything is removed.
    fn descriptors(&self) -> Vec<RawFd> {
        vec![1, 2]
    }

    fn unmounts(&self) -> bool {
        true
    }
}

/// Returns the processes with the mark of a benchmark.
fn marked(process: u32) -> Vec<u32> {
    let mark = format!("{MARK}={process}");
    let carries = |id: &u32| {
        std::fs::read(format!("/proc/{id}/environ"))
            .is_ok_and(|all| all.split(|&byte| byte == 0).any(|one| one == mark.as_bytes()))
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(carries)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn planted_link_is_not_followed() {
        let directory = std::env::temp_dir().join(format!("trawl-scratch-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let victim = directory.join("victim");
        std::fs::write(&victim, "precious").expect("a file");
        let first = Scratch::new(&directory, "capture").expect("a file");
        let planted = first.path().to_owned();
        drop(first);
        symlink(&victim, &planted).expect("a link");
        let scratch = Scratch::new(&directory, "capture").expect("a file");
        let about = scratch.path().symlink_metadata().expect("a directory");
        assert!(about.is_file() && about.mode() & 0o777 == PRIVATE);
        assert_ne!(scratch.path(), planted);
        assert_eq!(std::fs::read_to_string(&victim).expect("a file"), "precious");
        std::fs::remove_dir_all(&directory).expect("it can be removed");
    }
}
