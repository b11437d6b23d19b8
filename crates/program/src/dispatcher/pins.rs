//! The pins that keep the programs behind a dispatcher in their places, where libxdp looks for them, and the lock that
//! all who change them take.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use trawl_kernel::lock::{self, Rank};
use trawl_kernel::{Result, bpffs};

use super::config::SLOTS;
use trawl_attach::site::{Site, make_directory};

/// Where libxdp's BPF file system is, if not at the usual place.
const VARIABLE: &str = "LIBXDP_BPFFS";
const DIRECTORY: &str = "xdp";

/// The right to change dispatchers, anyone's.
#[derive(Debug)]
pub struct Lock {
    directory: PathBuf,
    _lock: lock::Lock,
}

impl Lock {
    pub fn take() -> Result<Self> {
        let mount = match std::env::var_os(VARIABLE) {
            Some(path) => PathBuf::from(path),
            None => bpffs::lasting_or_mounted()?,
        };
        let directory = mount.join(DIRECTORY);
        make_directory(&directory)?;
        Ok(Self {
            _lock: lock::Lock::shared_with_others(Rank::Dispatchers, &directory)?,
            directory,
        })
    }

    /// The directory of one dispatcher's pins.
    pub fn of(&self, site: &Site, dispatcher: u32) -> PathBuf {
        self.directory
            .join(format!("dispatch-{}-{dispatcher}", site.index()))
    }
}

/// The pins of a dispatcher that is being made; gone again unless they are kept.
#[derive(Debug)]
pub struct Pins {
    directory: PathBuf,
    kept: bool,
}

impl Pins {
    pub fn new(directory: PathBuf) -> Result<Self> {
        make_directory(&directory)?;
        Ok(Self {
            directory,
            kept: false,
        })
    }

    pub fn add(&self, slot: usize, program: &OwnedFd, link: &OwnedFd) -> Result<()> {
        bpffs::pin(program.as_fd(), &program_path(&self.directory, slot))?;
        bpffs::pin(link.as_fd(), &link_path(&self.directory, slot))
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if !self.kept {
            remove(&self.directory);
        }
    }
}

/// Removes a dispatcher's pins.
pub fn remove(directory: &Path) {
    for slot in 0..SLOTS {
        let _ = fs::remove_file(link_path(directory, slot));
        let _ = fs::remove_file(program_path(directory, slot));
    }
    let _ = fs::remove_dir(directory);
}

fn program_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-prog"))
}

fn link_path(directory: &Path, slot: usize) -> PathBuf {
    directory.join(format!("prog{slot}-link"))
}
