//! `trawl-query`, which has the query engine: where it is, what it is asked, and what it answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use trawl_sys::process::companion;
use trawl_sys::{Error, Result};

const PROGRAM: &str = "trawl-query";
const WRONG_USAGE: i32 = 2;

/// How rows are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Table,
    Csv,
    Json,
    JsonLines,
}

/// A query under way. Its process ends with it.
pub(super) struct Answer {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Answer {
    /// Returns when the first row is there, or the query is known to be wrong.
    pub fn to(store: &str, form: Form, query: &str) -> Result<Self> {
        let program = companion(PROGRAM)?.unwrap_or_else(|| PROGRAM.into());
        let form = match form {
            Form::Table => "table",
            Form::Csv => "csv",
            Form::Json => "json",
            Form::JsonLines => "jsonl",
        };
        let child = Command::new(&program)
            .args([store, form, query])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|e| {
            let missing = e.kind() == io::ErrorKind::NotFound;
            let error = Error::os(format!("cannot run {}", program.display()), e);
            match missing {
                true => error.fix("build it with make build-query"),
                false => error,
            }
        })?;
        let out = child.stdout.take();
        let out = out.ok_or_else(|| Error::failed("cannot read from trawl-query", "no pipe"))?;
        let mut answer = Self {
            child,
            out: BufReader::new(out),
        };
        if answer.out.fill_buf().is_ok_and(<[u8]>::is_empty) {
            answer.end()?;
        }
        Ok(answer)
    }

    /// Waits for its end, and says how it failed if it did.
    fn end(&mut self) -> Result<()> {
        let what = "cannot answer the query";
        let mut words = String::new();
        if let Some(said) = &mut self.child.stderr {
            let _ = said.read_to_string(&mut words);
        }
        let status = self.child.wait().map_err(|e| Error::os(what, e))?;
        let words = words.trim().to_owned();
        match status.code() {
            Some(0) => Ok(()),
            Some(WRONG_USAGE) => Err(Error::usage(what, words)),
            _ if words.is_empty() => Err(Error::failed(what, format!("{PROGRAM} ended: {status}"))),
            _ => Err(Error::failed(what, words)),
        }
    }

    pub fn copy_out(&mut self) -> Result<()> {
        match io::copy(&mut self.out, &mut io::stdout().lock()) {
            // The reader has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            copied => copied.map_err(|e| Error::os("cannot write to standard output", e))?,
        };
        let _ = io::stdout().flush();
        self.end()
    }

    pub fn whole(&mut self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        let read = self.out.read_to_end(&mut all);
        read.map_err(|e| Error::os("cannot read from trawl-query", e))?;
        self.end()?;
        Ok(all)
    }

    /// Each row as a value, and at the end its failure if it failed.
    pub fn lines<T: DeserializeOwned>(mut self) -> impl Iterator<Item = io::Result<T>> {
        let mut line = String::new();
        let mut ended = false;
        std::iter::from_fn(move || {
            line.clear();
            match self.out.read_line(&mut line) {
                _ if ended => None,
                Ok(0) => {
                    ended = true;
                    self.end()
                        .err()
                        .map(|e| Err(io::Error::other(e.to_string())))
                }
                Ok(_) => Some(serde_json::from_str(&line).map_err(io::Error::from)),
                Err(error) => Some(Err(error)),
            }
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
