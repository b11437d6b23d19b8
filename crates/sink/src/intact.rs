//! Detection of changes to a file that is being written: other processes may cut or remove it. Also the errors of a
//! file that accepts no more bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use trawl_io::writeback::NotOnDisk;
use trawl_sys::{Error, errno};

/// Interval between checks while nothing is written.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// A change to a file by another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Cut to this length.
    Cut(u64),
    Removed,
}

impl Harm {
    /// Returns the number of written bytes that remain.
    pub(crate) fn remaining(self) -> u64 {
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

/// A watch over a regular file.
#[derive(Debug)]
pub(crate) struct Watch {
    /// False for a file that never had a name, and so cannot be removed.
    has_name: bool,
    checked: Instant,
}

impl Watch {
    pub(crate) fn of(file: &File) -> Self {
        Self { has_name: file.metadata().is_ok_and(|about| about.nlink() > 0), checked: Instant::now() }
    }

    /// Checks a file of which this many bytes were written.
    pub(crate) fn check_intact(&mut self, file: &File, written: u64) -> Option<Harm> {
        self.checked = Instant::now();
        let about = file.metadata().ok()?;
        if self.has_name && about.nlink() == 0 {
            return Some(Harm::Removed);
        }
        (about.len() < written).then_some(Harm::Cut(about.len()))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.checked.elapsed() >= CHECK_EVERY
    }
}

/// Returns the error of a file that accepts no more bytes, with this many whole ones.
pub(crate) fn refused(name: &str, written: u64, error: io::Error) -> Error {
    let errno = error.raw_os_error();
    let error = Error::os(format!("cannot write to {name}"), error);
    let remedy = match errno {
        Some(errno::ENOSPC | errno::EDQUOT) => "free some space or write elsewhere",
        Some(errno::EFBIG) => "ulimit -f shows the limit",
        _ => return error,
    };
    error.fix(format!("it ends after the last whole packet ({written} bytes); {remedy}"))
}

/// Returns the error of a file without bytes that the page cache had accepted.
pub(crate) fn lost_by_disk(name: &str, failure: NotOnDisk) -> Error {
    let NotOnDisk { from, error } = failure;
    let what = format!("cannot write to {name}");
    let remedy = match error.raw_os_error() {
        Some(errno::ENOSPC | errno::EDQUOT) => "free some space or write elsewhere",
        _ => "dmesg shows the disk's error",
    };
    Error::os(what, error).fix(format!("its first {from} bytes are on the disk, and later packets are lost; {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceeded_quota_and_full_disk_have_the_same_advice() {
        for number in [errno::ENOSPC, errno::EDQUOT] {
            let error = refused("a.pcapng", 28, io::Error::from_raw_os_error(number)).to_string();
            assert!(error.ends_with("(28 bytes); free some space or write elsewhere"), "{error}");
        }
    }
}
