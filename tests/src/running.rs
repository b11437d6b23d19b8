//! A trawl command that runs until it is stopped, and its output.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::binary;
use crate::capture::Stream;
use crate::wait::wait_until;

#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Arc<Stream>,
    stderr: Arc<Stream>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    /// Starts trawl with these arguments; returns once this text is on standard error.
    #[track_caller]
    pub fn start(arguments: &[&str], ready: &str) -> Self {
        Self::start_without("", arguments, ready)
    }

    /// Starts like [`Self::start`], without the named kernel features.
    #[track_caller]
    pub fn start_without(features: &str, arguments: &[&str], ready: &str) -> Self {
        let mut trawl = Command::new(binary::path());
        trawl.args(arguments).env("TRAWL_WITHOUT", features);
        Self::of(trawl, ready)
    }

    /// Starts a command that runs trawl; returns once this text is on standard error.
    #[track_caller]
    pub fn of(mut command: Command, ready: &str) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("trawl starts");
        let running = Self {
            stdout: Stream::follow(child.stdout.take().expect("a pipe")),
            stderr: Stream::follow(child.stderr.take().expect("a pipe")),
            child,
        };
        running.wait_said(ready);
        running
    }

    /// Waits for a text on standard error.
    #[track_caller]
    pub fn wait_said(&self, words: &str) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = self.stderr.wait(|bytes| text(bytes).contains(words));
        let all = text(&self.stderr.so_far());
        assert!(said, "trawl did not say {words:?}, but: {all}");
    }

    /// Returns the standard error so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Returns the standard output so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("trawl runs");
    }

    /// Interrupts it and waits for its end.
    pub fn stop(self) -> Done {
        self.signal(Signal::INT);
        self.wait()
    }

    pub fn kill(self) -> Done {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Waits for it to end on its own.
    pub fn wait(mut self) -> Done {
        let mut status = None;
        wait_until("trawl ends", || {
            status = self.child.try_wait().expect("a child of ours");
            status.is_some()
        });
        let text = |stream: &Stream| String::from_utf8_lossy(&stream.all()).into_owned();
        Done { status: status.expect("it ended"), stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Done {
    /// Returns its output with `--json`, after a successful end.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status.code(), Some(0), "{}", self.stderr);
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}
