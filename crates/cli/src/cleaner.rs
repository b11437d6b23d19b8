//! A second process that removes labs when the first cannot: it was interrupted, or killed. It stands apart from the
//! terminal's signals, and learns of the end by the pipe between them.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result, process};

const ALL_IS_WELL: &str = "done";

/// Waits for the end of standard input, and cleans up after the process at its other end
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lab of a demo
    #[arg(
        long,
        value_name = "LAB",
        required_unless_present = "bench",
        conflicts_with = "bench"
    )]
    lab: Option<String>,
    /// The directory where a benchmark puts its captures
    #[arg(long, value_name = "DIR", requires = "process")]
    bench: Option<PathBuf>,
    /// The benchmark's process. Told and not asked for: it may be gone before this one has begun
    #[arg(long, value_name = "PID", requires = "bench")]
    process: Option<u32>,
}

#[derive(Debug)]
pub struct Cleaner {
    child: Child,
}

impl Cleaner {
    /// Looks after one lab.
    pub fn of_lab(lab: &str) -> Result<Self> {
        Self::start(&["--lab".as_ref(), lab.as_ref()])
    }

    /// Looks after all that a benchmark in this process makes.
    pub fn of_bench(directory: &Path) -> Result<Self> {
        let process = std::process::id().to_string();
        Self::start(&[
            "--bench".as_ref(),
            directory.as_os_str(),
            "--process".as_ref(),
            process.as_ref(),
        ])
    }

    fn start(what: &[&OsStr]) -> Result<Self> {
        let fail = |e| Error::os("cannot start the process that cleans up", e);
        let trawl = own_binary()?;
        let child = Command::new(trawl)
            .arg("stand-by")
            .args(what)
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
pub fn stand_by(args: &Args) {
    let mut processes = Vec::new();
    for line in io::stdin().lines().map_while(io::Result::ok) {
        if line == ALL_IS_WELL {
            return;
        }
        processes.extend(line.parse::<u32>().ok());
    }
    // Nobody is there to be told of a failure, and what is to be removed may be gone already.
    for process in processes {
        let _ = process::interrupt(process);
    }
    if let Some(lab) = &args.lab {
        let _ = trawl_lab::remove(lab);
    }
    if let (Some(directory), Some(process)) = (&args.bench, args.process) {
        trawl_bench::clean_up(process, directory);
    }
}
