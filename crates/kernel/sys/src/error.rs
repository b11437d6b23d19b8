//! The error type for people: the failed action, the reason, and the remedy.

use std::borrow::Cow;
use std::fmt;
use std::io;

use crate::words::shown;

/// The origin of an error: the request or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong: exit status 2.
    Usage,
    /// The request was valid, but carrying it out failed: exit status 1.
    Failed,
}

/// The remedy for an error, usually a command to type.
pub type Advice = Cow<'static, str>;

/// `what: why; fix`, for example
/// `cannot attach to eth0 in native mode: the driver (r8169) has no XDP support; try --mode skb`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    why: String,
    fix: Option<Advice>,
    errno: Option<i32>,
    refusal: Option<Refusal>,
}

/// Reasons why the kernel rejected a filter that user space can run instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The verifier refused the program.
    Verifier,
    /// The verifier did not finish in time.
    TooSlow,
    /// The program is longer than its jumps reach, or than the kernel accepts.
    TooLong,
}

const MORE_FILES: &str = "raise the limit of open files: ulimit -n";

fn lacks_files(errno: Option<i32>) -> bool {
    matches!(errno, Some(libc::EMFILE | libc::ENFILE))
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Copies an error of the standard library, which does not implement `Clone`.
pub fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => error.kind().into(),
    }
}

impl Error {
    /// Creates the error of a failed action.
    pub fn failed(what: impl Into<String>, why: impl fmt::Display) -> Self {
        let what: String = what.into();
        Self {
            kind: ErrorKind::Failed,
            // The text may contain names that other users chose.
            what: shown(&what).into_owned(),
            why: why.to_string(),
            fix: None,
            errno: None,
            refusal: None,
        }
    }

    /// Creates the error of a failed system call, with the text of its errno as the reason.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        let errno = source.raw_os_error();
        let mut text = source.to_string();
        if let Some(cut) = text.find(" (os error") {
            text.truncate(cut);
        }
        Self { errno, fix: lacks_files(errno).then_some(Cow::Borrowed(MORE_FILES)), ..Self::failed(what, text) }
    }

    /// Creates the error of a request that can never work as it was given.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Usage, ..Self::failed(what, why) }
    }

    /// Adds the remedy, usually a command. A lack of open files, which can make any call fail, keeps its own remedy.
    #[must_use]
    pub fn fix(mut self, how: impl Into<Advice>) -> Self {
        if !lacks_files(self.errno) {
            self.fix = Some(how.into());
        }
        self
    }

    /// Adds the kernel's reason for rejecting a filter.
    #[must_use]
    pub fn refused(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(refusal);
        self
    }

    /// Returns the kernel's reason for rejecting a filter, if it did.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Returns the failed action.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn why(&self) -> &str {
        &self.why
    }

    /// Returns the remedy.
    pub fn how_to_fix(&self) -> Option<&str> {
        self.fix.as_deref()
    }

    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the errno of a failed system call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)?;
        match self.how_to_fix() {
            Some(fix) => write!(f, "; {fix}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any call can fail for lack of open files; the remedy for its usual failures would mislead.
    #[test]
    fn lack_of_open_files_keeps_its_remedy() {
        let error = |errno| {
            let error = std::io::Error::from_raw_os_error(errno);
            Error::os("cannot look", error).fix("this requires root").to_string()
        };
        assert!(error(libc::EMFILE).ends_with("ulimit -n"));
        assert!(error(libc::EPERM).ends_with("this requires root"));
    }
}
