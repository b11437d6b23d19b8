//! The one shape of an error a person gets to read: what failed, why, and what fixes it.

use std::borrow::Cow;
use std::fmt;

/// Whether the caller asked for something impossible or the machine would not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request itself is wrong: exit status 2.
    Usage,
    /// The request was fine, carrying it out failed: exit status 1.
    Failed,
}

/// The remedy for an error, usually a command to type.
pub type Advice = Cow<'static, str>;

/// `what: why; fix`, for example
/// `cannot attach to eth0 in native mode: the driver (r8169) has no XDP support; try --mode skb`.
#[derive(Clone, Debug)]
pub struct Error {
    kind: Kind,
    what: String,
    why: String,
    fix: Option<Advice>,
    errno: Option<i32>,
    refusal: Option<Refusal>,
}

/// Why the kernel did not take a filter, where user space can filter in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The verifier refused the program.
    Verifier,
    /// The verifier did not finish in time.
    TooSlow,
    /// The program is longer than its jumps reach, or than the kernel takes.
    TooLong,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Something was tried and did not work.
    pub fn failed(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Failed,
            what: what.into(),
            why: why.to_string(),
            fix: None,
            errno: None,
            refusal: None,
        }
    }

    /// A system call failed: the reason is its errno in words.
    pub fn os(what: impl Into<String>, source: std::io::Error) -> Self {
        let errno = source.raw_os_error();
        let mut words = source.to_string();
        if let Some(cut) = words.find(" (os error") {
            words.truncate(cut);
        }
        Self {
            errno,
            ..Self::failed(what, words)
        }
    }

    /// The request can never work as it was put.
    pub fn usage(what: impl Into<String>, why: impl fmt::Display) -> Self {
        Self {
            kind: Kind::Usage,
            ..Self::failed(what, why)
        }
    }

    /// Adds what the person can do about it, usually a command.
    #[must_use]
    pub fn fix(mut self, how: impl Into<Advice>) -> Self {
        self.fix = Some(how.into());
        self
    }

    /// Says why the kernel did not take a filter.
    #[must_use]
    pub fn refused(mut self, refusal: Refusal) -> Self {
        self.refusal = Some(refusal);
        self
    }

    /// Why the kernel did not take a filter, if it is that.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// What was tried.
    pub fn what(&self) -> &str {
        &self.what
    }

    pub fn why(&self) -> &str {
        &self.why
    }

    /// What the person can do about it.
    pub fn how_to_fix(&self) -> Option<&str> {
        self.fix.as_deref()
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its errno, when a system call said no.
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
