//! Capture programs as child processes: started on a CPU of their own, waited for until they are ready, ended with
//! an interrupt, and read for what they say.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};

use trawl_kernel::process;
use trawl_kernel::{Error, Result};

/// A running capture program.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Peer {
    /// Starts it and waits until it says on standard error that it is ready.
    pub fn start(name: &str, command: &mut Command, cpu: usize, ready: &str) -> Result<Self> {
        let fail = |e| Error::os(format!("cannot start {name}"), e);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        process::pin(child.id(), cpu)?;
        let stderr = child
            .stderr
            .take()
            .ok_or_else(|| Error::failed(format!("cannot read what {name} says"), "no pipe"))?;
        let mut peer = Self {
            name: name.to_owned(),
            child,
            stderr: BufReader::new(stderr),
        };
        let mut said = String::new();
        loop {
            let start = said.len();
            match peer.stderr.read_line(&mut said) {
                Ok(count) if count > 0 && said[start..].contains(ready) => return Ok(peer),
                Ok(count) if count > 0 => {}
                _ => return Err(Error::failed(format!("{name} did not start"), said.trim())),
            }
        }
    }

    /// CPU seconds used so far.
    pub fn cpu_seconds(&self) -> f64 {
        process::cpu_seconds(self.child.id())
    }

    /// Interrupts it and returns what it said at its end.
    pub fn finish(mut self) -> Result<String> {
        process::interrupt(self.child.id())?;
        let mut said = String::new();
        let read = self.stderr.read_to_string(&mut said);
        read.and_then(|_| self.child.wait())
            .map_err(|e| Error::os(format!("cannot end {}", self.name), e))?;
        Ok(said)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Only matters where an error came before `finish`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
