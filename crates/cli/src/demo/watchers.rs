//! The two programs that watch the lab's interface at the same time: tcpdump and trawl.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use trawl_lab::Station;
use trawl_sys::netns::run_in;
use trawl_sys::process::own_binary;
use trawl_sys::{Error, Result, process};

/// Far longer than the demo takes: a capture that misses packets ends too.
const PATIENCE: &str = "20s";

#[derive(Debug)]
pub struct Watcher {
    name: &'static str,
    child: Child,
    stderr: BufReader<ChildStderr>,
    said: String,
}

impl Watcher {
    /// `None` where tcpdump is not installed.
    pub fn tcpdump(station: &Station) -> Result<Option<Self>> {
        let mut command = Command::new("tcpdump");
        command.args(["-n", "-i", &station.interface]);
        // A process starts in the namespace of the thread that starts it.
        match run_in(&station.namespace, || spawn(&mut command))? {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            spawned => Self::ready("tcpdump", spawned, "listening on").map(Some),
        }
    }

    /// Records `count` packets at the hook of the program there.
    pub fn trawl(station: &Station, file: &Path, count: u64) -> Result<Self> {
        let trawl = own_binary()?;
        let mut command = Command::new(trawl);
        command
            .args(["capture", "--tap", "hook", "--netns", &station.name])
            .args(["-i", &station.interface, "-c", &count.to_string()])
            .args(["--duration", PATIENCE, "-w"])
            .arg(file);
        Self::ready("trawl capture", spawn(&mut command), "capturing on")
    }

    fn ready(name: &'static str, spawned: io::Result<Child>, sign: &str) -> Result<Self> {
        let mut child = spawned.map_err(|e| Error::os(format!("cannot start {name}"), e))?;
        let stderr = child
            .stderr
            .take()
            .ok_or_else(|| Error::failed(format!("cannot read what {name} says"), "no pipe"))?;
        let mut watcher = Self {
            name,
            child,
            stderr: BufReader::new(stderr),
            said: String::new(),
        };
        loop {
            let start = watcher.said.len();
            match watcher.stderr.read_line(&mut watcher.said) {
                Ok(count) if count > 0 && watcher.said[start..].contains(sign) => {
                    return Ok(watcher);
                }
                Ok(count) if count > 0 => {}
                _ => {
                    let what = format!("{name} did not start");
                    return Err(Error::failed(what, watcher.said.trim()));
                }
            }
        }
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and returns all that it said.
    pub fn interrupt(mut self) -> Result<String> {
        process::interrupt(self.child.id())?;
        self.wait()
    }

    /// Waits until it ends by itself, and returns all that it said.
    pub fn wait(&mut self) -> Result<String> {
        let read = self.stderr.read_to_string(&mut self.said);
        read.and_then(|_| self.child.wait())
            .map_err(|e| Error::os(format!("cannot end {}", self.name), e))?;
        Ok(std::mem::take(&mut self.said))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Does nothing unless an error came before it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(command: &mut Command) -> io::Result<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}
