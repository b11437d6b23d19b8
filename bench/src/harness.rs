//! Requirements of every measurement: the programs, their configurations, the hosts, and room for files.

use std::path::PathBuf;
use std::process::Command;

use trawl_sys::Result;

use crate::hosts::Hosts;
use crate::peers::Peers;
use crate::process;
use crate::tuning::Tuned;

/// Environment of the measuring code.
pub struct Bench {
    /// The program to measure.
    pub trawl: PathBuf,
    /// Directory for captures; each is removed after it was counted.
    pub scratch: PathBuf,
    pub peers: Peers,
    /// Hosts for captures and traffic, if not this one.
    pub hosts: Option<Hosts>,
    pub tuned: Tuned,
}

impl Bench {
    /// Returns a command of trawl's.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = process::command(&self.trawl);
        command.args(arguments);
        command
    }

    /// Runs a command of trawl's to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        process::run(&mut self.command(arguments))
    }
}
