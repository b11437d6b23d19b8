//! Whether a file that is being written is still there as it was written: other processes may cut or remove it. And why
//! a file takes no more.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use trawl_io::writeback::NotOnDisk;
use trawl_sys::{Error, errno};

/// How often it is looked where nothing is written.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What another process did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// It is this long now.
    Cut(u64),
    Removed,
}

impl Harm {
    /// How much of what was written can still be found.
    pub(crate) fn left(self) -> u64 {
        match self {
            Self::Cut(length) => length,
            Self::Removed => 0,
        }
    }

    pub(crate) fn explain(self, name: &str, written: u64) -> Error {
        let what = format!("cannot continue to write to {name}");
        let why = match self {
            Self::Cut(length) => format!("another process cut it to {length} of {written} bytes"),
            Self::Removed => "another process removed it".to_owned(),
        };
        Error::failed(what, format!("{why}: packets that were recorded are lost"))
    }
}

/// Looks after a regular file.
#[derive(Debug)]
pub(crate) struct Watch {
    /// One without a name from the beginning cannot be removed.
    has_name: bool,
    looked: Instant,
}

impl Watch {
    pub(crate) fn of(file: &File) -> Self {
        Self {
            has_name: file.metadata().is_ok_and(|about| about.nlink() > 0),
            looked: Instant::now(),
        }
    }

    /// Looks at a file of which so much was written.
    pub(crate) fn look(&mut self, file: &File, written: u64) -> Option<Harm> {
        self.looked = Instant::now();
        let about = file.metadata().ok()?;
        if self.has_name && about.nlink() == 0 {
            return Some(Harm::Removed);
        }
        (about.len() < written).then_some(Harm::Cut(about.len()))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.looked.elapsed() >= LOOK_EVERY
    }
}

/// Why a file took no more, of which so much is whole.
pub(crate) fn refused(name: &str, written: u64, error: io::Error) -> Error {
    let errno = error.raw_os_error();
    let error = Error::os(format!("cannot write to {name}"), error);
    let remedy = match errno {
        Some(errno::ENOSPC) => "free some space or write elsewhere",
        Some(errno::EFBIG) => "ulimit -f tells the limit",
        _ => return error,
    };
    error.fix(format!(
        "it ends after the last whole packet ({written} bytes); {remedy}"
    ))
}

/// Why a file lacks what the page cache had taken.
pub(crate) fn lost_by_disk(name: &str, failure: NotOnDisk) -> Error {
    let NotOnDisk { from, error } = failure;
    let what = format!("cannot write to {name}");
    let remedy = match error.raw_os_error() {
        Some(errno::ENOSPC | errno::EDQUOT) => "free some space or write elsewhere",
        _ => "dmesg tells what the disk reported",
    };
    Error::os(what, error).fix(format!(
        "the disk took its first {from} bytes, and packets after those are lost; {remedy}"
    ))
}
