//! Questions in SQL about a store's index, which trawl-query answers.

use std::io::{self, BufReader, ErrorKind, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;
use trawl_store::search::answer::Part;
use trawl_store::search::limits::{EXCEEDED, WHAT, exceeded};
use trawl_store::search::question::Question;
use trawl_sys::process::{self, companion};
use trawl_sys::{Error, Result};

const PROGRAM: &str = "trawl-query";

/// An answer, read while trawl-query finds it.
pub struct Answer {
    engine: Child,
    out: BufReader<ChildStdout>,
    memory: u64,
    /// The first part, read before the answer begins, so that a failing query fails there.
    first: Option<Vec<u8>>,
    is_over: bool,
}

fn start() -> Result<Child> {
    let path = companion(PROGRAM)?.ok_or_else(|| {
        let why = format!("{PROGRAM}, which answers SQL, is neither next to trawl's binary nor in libexec/trawl");
        Error::failed(WHAT, why).fix("make build-query in trawl's source builds it")
    })?;
    let mut command = Command::new(path);
    process::ends_with_parent(&mut command);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    started.map_err(|e| Error::os(format!("cannot run {PROGRAM}"), e))
}

impl Answer {
    /// Asks a question. Returns once the first row has been found, or the query has failed.
    pub fn to(question: &Question) -> Result<Self> {
        let mut engine = start()?;
        let text = serde_json::to_vec(question).map_err(|e| Error::failed(WHAT, e))?;
        let (input, out) = (engine.stdin.take(), engine.stdout.take());
        let missing = || Error::failed(WHAT, "a pipe is missing");
        let out = BufReader::new(out.ok_or_else(missing)?);
        // If the program has ended already, its answer says why.
        let _ = input.ok_or_else(missing)?.write_all(&text);
        let mut answer = Self { engine, out, memory: question.memory, first: None, is_over: false };
        answer.first = answer.next()?;
        Ok(answer)
    }

    /// Returns the next part of the text; `None` after the last.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        if self.is_over {
            return Ok(None);
        }
        let part = Part::read(&mut self.out);
        self.is_over = !matches!(part, Ok(Part::Text(_)));
        match part {
            Ok(Part::Text(text)) => Ok(Some(text)),
            Ok(Part::End) => Ok(None),
            Ok(Part::Failed(error)) => Err(error),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.ended_early()),
            Err(error) => Err(Error::os(format!("cannot read the answer of {PROGRAM}"), error)),
        }
    }

    fn ended_early(&mut self) -> Error {
        match self.engine.wait() {
            Ok(status) if status.code() == Some(EXCEEDED) => exceeded(self.memory),
            Ok(status) => Error::failed(WHAT, format!("{PROGRAM} has ended early: {status}")),
            Err(error) => Error::os(WHAT, error),
        }
    }

    /// Writes the text as it is found; `write` returns false once the reader is gone.
    pub fn write(mut self, mut write: impl FnMut(&str) -> Result<bool>) -> Result<()> {
        while let Some(part) = self.next()? {
            if !write(&String::from_utf8_lossy(&part))? {
                break;
            }
        }
        Ok(())
    }

    /// Returns the value on each line, followed by the error if the query fails.
    pub fn rows<T: DeserializeOwned>(mut self) -> impl Iterator<Item = io::Result<T>> {
        let mut found = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(row) = found.next() {
                    return Some(row);
                }
                match self.next() {
                    Ok(text) => found = values(&text?).into_iter(),
                    Err(error) => return Some(Err(io::Error::other(error.to_string()))),
                }
            }
        })
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // It may still search.
        let _ = self.engine.kill();
        let _ = self.engine.wait();
    }
}

fn values<T: DeserializeOwned>(lines: &[u8]) -> Vec<io::Result<T>> {
    let values = serde_json::Deserializer::from_slice(lines).into_iter();
    values.map(|value| value.map_err(io::Error::from)).collect()
}
