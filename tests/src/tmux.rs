//! A terminal that tests type into and read from.

use std::process::Command;

use crate::args;
use crate::{skip, wait_until};

/// A terminal on a tmux server of its own.
#[derive(Debug)]
pub struct Tmux(String);

impl Tmux {
    /// Opens a terminal; `None` without tmux, which is reported.
    #[must_use]
    pub fn start(name: &str, command: &str) -> Option<Self> {
        let socket = format!("trawl-test-{}-{name}", std::process::id());
        let tmux = Self(socket);
        let mut start = Command::new("tmux");
        let session = args!("-L {} -f /dev/null new-session -d -x 120 -y 40", tmux.0);
        start.args(session).arg(command);
        match start.status() {
            Ok(status) => {
                assert!(status.success());
                Some(tmux)
            }
            Err(_) => {
                skip("tmux is not installed");
                None
            }
        }
    }

    pub fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-L", &self.0]).args(arguments).output();
        String::from_utf8_lossy(&output.expect("tmux runs").stdout).into_owned()
    }

    #[track_caller]
    pub fn wait_shows(&self, part: &str) {
        wait_until(part, || self.run(&["capture-pane", "-p"]).contains(part));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}
