//! The process that stores a run's chunks, as the capture sees it. The capture closes the process's standard input when
//! the run has ended; a line of the process's standard output is a [`Report`].

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Lines};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::{Deserialize, Serialize};
use trawl_sys::error::ErrorKind;
use trawl_sys::{Error, Result, process};

use crate::spool::Spool;

/// A message of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The store is open.
    Opened,
    /// The store cannot be used, and the process ends.
    Refused { is_usage: bool, what: String, why: String, fix: Option<String> },
    /// The first of several failures.
    Delayed { why: String },
    /// The chunk with this key, which has left the spool, is in the store.
    Stored { key: String },
    /// The process ends; the reason if it leaves chunks in the spool.
    Ended { trouble: Option<String> },
}

impl Report {
    pub fn refused(error: &Error) -> Self {
        Self::Refused {
            is_usage: error.kind() == ErrorKind::Usage,
            what: error.what().to_owned(),
            why: error.why().to_owned(),
            fix: error.how_to_fix().map(str::to_owned),
        }
    }
}

#[derive(Debug)]
pub struct Uploader {
    child: Child,
    reports: Lines<BufReader<ChildStdout>>,
}

impl Uploader {
    /// Starts the process for the run of a spool; returns once it has opened the store.
    pub fn start(command: &mut Command, spool: &mut Spool) -> Result<Self> {
        let what = format!("cannot start {}", command.get_program().display());
        let fail = |e| Error::os(what.clone(), e);
        let (news, input) = UnixStream::pair().map_err(fail)?;
        // The capture must never wait for this process.
        news.set_nonblocking(true).map_err(fail)?;
        process::with_signals(command);
        let mut child = command
            .arg(spool.directory())
            .stdin(Stdio::from(OwnedFd::from(input)))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let out = child.stdout.take().ok_or_else(|| Error::failed(what.clone(), "it has no output"))?;
        let mut uploader = Self { child, reports: BufReader::new(out).lines() };
        spool.news = Some(news);
        match uploader.next() {
            Some(Report::Opened) => Ok(uploader),
            Some(Report::Refused { is_usage, what, why, fix }) => {
                let error = if is_usage { Error::usage(what, why) } else { Error::failed(what, why) };
                Err(fix.into_iter().fold(error, |error, fix| error.fix(Cow::Owned(fix))))
            }
            _ => Err(Error::failed("cannot store packets", uploader.end())),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the next message; returns `None` once the process has ended.
    fn next(&mut self) -> Option<Report> {
        let line = self.reports.next()?.ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Waits for the end of a process that has closed its output.
    fn end(&mut self) -> String {
        let program = "the process that stores chunks ended";
        match self.child.wait() {
            Ok(status) => format!("{program}: {status}"),
            Err(error) => format!("{program}: {error}"),
        }
    }

    /// Follows the process to its end, and returns the reason if it leaves chunks in the spool. `complain` receives
    /// errors of the store.
    pub(crate) fn follow(mut self, spool: &Spool, complain: &dyn Fn(&str)) -> Option<String> {
        let trouble = loop {
            match self.next() {
                Some(Report::Delayed { why }) => complain(&why),
                Some(Report::Stored { key }) => spool.stored(&key),
                Some(Report::Ended { trouble }) => break trouble,
                Some(_) => {}
                None => {
                    let why = self.end();
                    complain(&why);
                    break Some(why);
                }
            }
        };
        let _ = self.child.wait();
        trouble
    }
}
