//! Commands of trawl that run for the agent.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use trawl_sys::process::{self, trawl_binary};
use trawl_sys::{Error, Result};

/// Minimum time between two starts of a command.
const AGAIN: Duration = Duration::from_secs(5);

/// Gets the lines of a command's standard output.
type OnLine = Arc<dyn Fn(String) + Send + Sync>;

/// A command that ends with the agent, and is restarted if it ends earlier.
pub struct Companion {
    arguments: Vec<String>,
    on_line: Option<OnLine>,
    child: Child,
    started: Instant,
}

impl Companion {
    pub fn start(arguments: Vec<String>, on_line: Option<OnLine>) -> Result<Self> {
        let what = || format!("cannot run 'trawl {}'", arguments.join(" "));
        let mut command = Command::new(trawl_binary()?);
        command.args(&arguments).env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(if on_line.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        process::with_signals(&mut command);
        process::ends_with_parent(&mut command);
        let mut child = command.spawn().map_err(|e| Error::os(what(), e))?;
        if let (Some(out), Some(on_line)) = (child.stdout.take(), on_line.clone()) {
            let lines = BufReader::new(out).lines().map_while(std::result::Result::ok);
            thread::spawn(move || lines.for_each(|line| on_line(line)));
        }
        Ok(Self { arguments, on_line, child, started: Instant::now() })
    }

    pub fn restart_if_ended(&mut self) -> Result<()> {
        let has_ended = !matches!(self.child.try_wait(), Ok(None));
        if has_ended && self.started.elapsed() >= AGAIN {
            *self = Self::start(self.arguments.clone(), self.on_line.clone())?;
        }
        Ok(())
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = process::interrupt(self.child.id());
        let _ = self.child.wait();
    }
}
