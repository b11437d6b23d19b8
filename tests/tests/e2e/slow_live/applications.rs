//! Processes of applications, and others that compete with them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A process that ends when it is dropped.
pub struct Application(Child);

impl Application {
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("an application"))
    }

    /// Starts a program of Python; returns once it has written a line.
    pub fn python(program: &str, input: impl Into<Stdio>) -> Self {
        let mut command = Command::new("python3");
        let mut started = Self::start(command.args(["-c", program]).stdin(input).stdout(Stdio::piped()));
        let output = started.0.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut String::new()).expect("a line");
        started
    }

    /// Starts a process that uses a CPU as long as it runs: the one with this number, or any.
    pub fn busy(cpu: Option<u32>) -> Self {
        let hog = ["sh", "-c", "while :; do :; done"];
        match cpu {
            Some(cpu) => Self::start(Command::new("taskset").args(["-c", &cpu.to_string()]).args(hog)),
            None => Self::start(Command::new(hog[0]).args(&hog[1..])),
        }
    }

    pub fn id(&self) -> String {
        self.0.id().to_string()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// Returns the state that ps shows: `T` is stopped.
    pub fn state(&self) -> char {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("it runs");
        let (_, after) = text.rsplit_once(") ").expect("a state");
        after.chars().next().expect("a state")
    }

    /// Returns the time in nanoseconds for which its thread has waited for a CPU.
    pub fn waited(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/schedstat", self.id())).expect("it runs");
        text.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a time")
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
