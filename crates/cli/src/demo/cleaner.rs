//! A second process that removes the demo's lab when the demo cannot: it was interrupted, or killed. It stands apart
//! from the terminal's signals, and learns of the end by the pipe between them.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use trawl_kernel::{Error, Result, process};

const ALL_IS_WELL: &str = "done";

#[derive(Debug)]
pub struct Cleaner {
    child: Child,
}

impl Cleaner {
    pub fn start(lab: &str) -> Result<Self> {
        let fail = |e| Error::os("cannot start the process that cleans up", e);
        let trawl = std::env::current_exe().map_err(fail)?;
        let child = Command::new(trawl)
            .args(["demo", "--clean-up", lab])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        Ok(Self { child })
    }

    /// A process that would otherwise keep the lab's namespaces alive.
    pub fn also_end(&mut self, process: u32) -> Result<()> {
        self.tell(&process.to_string())
            .map_err(|e| Error::os("cannot reach the process that cleans up", e))
    }

    /// Nothing is left to clean up.
    pub fn dismiss(mut self) {
        // It ends in any case once it finds the pipe closed.
        let _ = self.tell(ALL_IS_WELL);
    }

    fn tell(&mut self, word: &str) -> io::Result<()> {
        let pipe = self.child.stdin.as_mut();
        pipe.map_or(Ok(()), |pipe| writeln!(pipe, "{word}"))
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The second process's whole life.
pub fn stand_by(lab: &str) {
    let mut processes = Vec::new();
    for line in io::stdin().lines().map_while(io::Result::ok) {
        if line == ALL_IS_WELL {
            return;
        }
        processes.extend(line.parse::<u32>().ok());
    }
    // Nobody is there to be told of a failure, and the lab may be gone already.
    for process in processes {
        let _ = process::interrupt(process);
    }
    let _ = trawl_lab::remove(lab);
}
