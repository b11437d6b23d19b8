//! The file or pipe that a capture is written to.

use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use trawl_capture::plan::CapturePlan;
use trawl_pipeline::plan::Compression;
use trawl_sys::privilege::User;
use trawl_sys::warden::WholeBytes;
use trawl_sys::{Error, Result};

use crate::outfile;

/// Returns true if the name stands for standard output.
pub(super) fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns true if the name stands for an open file, as /dev/stdout does: it is never given to another file.
pub(super) fn is_open_already(path: &Path) -> bool {
    let is_link = || {
        path.symlink_metadata()
            .is_ok_and(|about| about.is_symlink())
    };
    is_stdout(path) || ((path.starts_with("/dev") || path.starts_with("/proc")) && is_link())
}

/// Returns true for a named pipe, which can only be opened once it has a reader.
pub(super) fn is_named_pipe(path: &Path) -> bool {
    !is_open_already(path) && std::fs::metadata(path).is_ok_and(|about| about.file_type().is_fifo())
}

/// Returns the identity of a file. Devices have none, since they accept several writers.
fn place_of(about: &Metadata) -> Option<(u64, u64)> {
    (!about.file_type().is_char_device()).then(|| (about.dev(), about.ino()))
}

const STDOUT: &str = "/proc/self/fd/1";

pub(super) fn place_of_stdout() -> Option<(u64, u64)> {
    place_of(&std::fs::metadata(STDOUT).ok()?)
}

/// Returns true if two names are of the same file, existing or not.
pub(super) fn are_same(one: &Path, other: &Path) -> bool {
    let about = |path: &Path| match is_stdout(path) {
        true => std::fs::metadata(STDOUT),
        false => std::fs::metadata(path),
    };
    match (about(one), about(other)) {
        (Ok(one), Ok(other)) => place_of(&one).is_some_and(|one| place_of(&other) == Some(one)),
        _ => one == other,
    }
}

/// Returns the user that owns created files, if it is not this one.
pub(super) fn user_of(plan: &CapturePlan) -> Result<Option<User>> {
    plan.user.as_deref().map(User::find).transpose()
}

/// The file or pipe that packets are written to.
pub(super) struct Output {
    pub(super) file: File,
    pub(super) name: String,
    /// Set for a file that did not exist before.
    created: Option<PathBuf>,
    pub(super) regular: bool,
}

impl Output {
    /// Opens without changing existing contents: the capture may still fail to start.
    pub(super) fn open(path: &Path, plan: &CapturePlan) -> Result<Self> {
        let mode = plan.files.mode;
        match user_of(plan)? {
            Some(user) => user.act_as(|| Self::open_as_is(path, mode)),
            None => Self::open_as_is(path, mode),
        }
    }

    fn open_as_is(path: &Path, mode: Option<u32>) -> Result<Self> {
        let name = if is_stdout(path) {
            "standard output".to_owned()
        } else {
            path.display().to_string()
        };
        let fail = |e| Error::os(format!("cannot write to {name}"), e);
        if is_stdout(path) {
            let file = File::from(
                std::io::stdout()
                    .as_fd()
                    .try_clone_to_owned()
                    .map_err(fail)?,
            );
            return Ok(Self {
                regular: false,
                file,
                name,
                created: None,
            });
        }
        let (file, is_new) = outfile::open(path, mode)?;
        let created = is_new.then(|| path.to_owned());
        let regular = file.metadata().map_err(fail)?.is_file();
        Ok(Self {
            file,
            name,
            created,
            regular,
        })
    }

    /// Returns the identity of the file; `None` for a device.
    pub(super) fn place(&self) -> Option<(u64, u64)> {
        place_of(&self.file.metadata().ok()?)
    }

    /// Refuses compression of a pipe, since the frame table has to be written at a fixed position.
    pub(super) fn check_compression(&self, compression: Option<Compression>) -> Result<()> {
        let is_device = self.place().is_none();
        if compression.is_none() || self.regular || is_device {
            return Ok(());
        }
        let what = format!("cannot compress the output to {}", self.name);
        Err(Error::usage(what, "it is not a named file")
            .fix("name a file, or compress after it: trawl capture -w - | zstd"))
    }

    pub(super) fn start(&self) -> Result<Option<WholeBytes>> {
        if !self.regular {
            return Ok(None);
        }
        self.file
            .set_len(0)
            .map_err(|e| Error::os(format!("cannot write to {}", self.name), e))?;
        WholeBytes::new().map(Some)
    }

    /// Removes a file made for a capture that recorded nothing.
    pub(super) fn discard(&self) {
        if let Some(path) = &self.created {
            let _ = std::fs::remove_file(path);
        }
    }
}
