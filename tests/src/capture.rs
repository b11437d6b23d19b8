//! The binary under test: run to its end, or started and stopped by the test.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use trawl_lab::Station;

use crate::args;
use crate::binary;
use crate::lab::{Files, place};
use crate::pcapng::Contents;
use crate::summary::Summary;
use crate::wait::{patience, wait_until};

/// Variable set for each started trawl, and so for its child processes.
const MARK: &str = "TRAWL_TESTS_MARK";

/// Runs trawl to its end.
pub fn trawl(arguments: &[&str]) -> Output {
    trawl_in(&[], arguments)
}

/// Returns the beginning of a command that runs in a cgroup, by its directory; its arguments name the program.
pub fn in_cgroup(group: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", r#"echo 0 >"$0/cgroup.procs" && exec "$@""#, group]);
    command
}

/// Runs [`trawl`] with variables in its environment.
pub fn trawl_in(environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(binary::path());
    command.args(arguments).stdin(Stdio::null());
    command.envs(environment.iter().copied());
    command.output().expect("trawl runs")
}

/// Returns the ring size from TRAWL_TESTS_RING for tests that set none. Machines that allocate memory slowly use it to
/// start captures with less memory.
fn ring_size(arguments: &[&str]) -> Vec<String> {
    let is_given = arguments.iter().any(|one| one.starts_with("--ring-size") || one.starts_with("--memory"));
    let size = std::env::var("TRAWL_TESTS_RING").ok().filter(|_| !is_given);
    size.map_or_else(Vec::new, |size| vec!["--ring-size".to_owned(), size])
}

/// Output of a pipe, collected as it arrives.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    bytes: Mutex<(Vec<u8>, bool)>,
    more: Condvar,
}

impl Stream {
    pub(crate) fn follow(mut source: impl Read + Send + 'static) -> Arc<Self> {
        let stream = Arc::new(Self::default());
        let writer = Arc::clone(&stream);
        std::thread::spawn(move || {
            let mut buffer = [0; 64 << 10];
            loop {
                let count = source.read(&mut buffer).unwrap_or(0);
                let mut state = writer.bytes.lock().expect("no panic while it is held");
                state.0.extend_from_slice(&buffer[..count]);
                state.1 = count == 0;
                writer.more.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        stream
    }

    /// Waits until `done` of all output so far, or the end of the stream; returns whether it is done.
    pub(crate) fn wait(&self, mut done: impl FnMut(&[u8]) -> bool) -> bool {
        let deadline = Instant::now() + patience();
        let mut state = self.bytes.lock().expect("no panic while it is held");
        loop {
            if done(&state.0) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.1 || left.is_zero() {
                return false;
            }
            state = self.more.wait_timeout(state, left).expect("no panic while it is held").0;
        }
    }

    pub(crate) fn all(&self) -> Vec<u8> {
        self.wait(|_| false);
        self.so_far()
    }

    pub(crate) fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic while it is held").0.clone()
    }
}

/// A running `trawl capture`.
#[derive(Debug)]
pub struct Capture {
    child: Child,
    stderr: Arc<Stream>,
    stdout: Option<Arc<Stream>>,
    summary: String,
    mark: String,
}

/// A capture that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    summary: Option<String>,
}

impl Capture {
    /// Records the first packets that the stack of a station receives while they are sent, up to a number, to this
    /// file.
    pub fn received(lab: &impl Files, at: &Station, file: &str, count: usize, send: impl FnOnce()) -> Contents {
        let (place, count) = (place(at), count.to_string());
        // The stacks on the line send multicasts of their own, which must not count as frames.
        let what = args!("-i {place} --tap packet -Q in -c {count} -w {file} 'not multicast'");
        let capture = Self::start(lab, &what);
        send();
        capture.wait().summary_of_success();
        Contents::read(file)
    }

    /// Starts `trawl capture` with these arguments (and `--summary`); returns once it reports that it is capturing.
    pub fn start(lab: &impl Files, arguments: &[&str]) -> Self {
        Self::start_without("", lab, arguments)
    }

    /// Starts like [`Self::start`], without the named kernel features.
    pub fn start_without(features: &str, lab: &impl Files, arguments: &[&str]) -> Self {
        Self::start_with(("TRAWL_WITHOUT", features), lab, arguments)
    }

    /// Starts like [`Self::start`], with a variable in its environment.
    pub fn start_with(variable: (&str, &str), lab: &impl Files, arguments: &[&str]) -> Self {
        Self::start_in(&[variable], lab, arguments)
    }

    /// Starts like [`Self::start`], with variables in its environment.
    pub fn start_in(environment: &[(&str, &str)], lab: &impl Files, arguments: &[&str]) -> Self {
        Self::launch(Command::new(binary::path()), environment, lab, arguments).followed()
    }

    /// Starts like [`Self::start`], under this host name.
    pub fn start_on_host(host: &str, lab: &impl Files, arguments: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        let renamed = r#"echo "$0" >/proc/sys/kernel/hostname && exec "$@""#;
        command.args(["--uts", "sh", "-c", renamed, host]);
        command.arg(binary::path());
        Self::launch(command, &[], lab, arguments).followed()
    }

    /// Starts like [`Self::start`], in a cgroup, by its directory.
    pub fn start_in_cgroup(group: &str, lab: &impl Files, arguments: &[&str]) -> Self {
        let mut command = in_cgroup(group);
        command.arg(binary::path());
        Self::launch(command, &[], lab, arguments).followed()
    }

    /// Starts like [`Self::start`], in the network namespace of a station.
    pub fn start_inside(at: &Station, lab: &impl Files, arguments: &[&str]) -> Self {
        Self::start_inside_with(&[], at, lab, arguments)
    }

    /// Starts like [`Self::start_inside`], with variables in its environment.
    pub fn start_inside_with(environment: &[(&str, &str)], at: &Station, lab: &impl Files, arguments: &[&str]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &at.name]).arg(binary::path());
        Self::launch(command, environment, lab, arguments).followed()
    }

    fn followed(mut self) -> Self {
        let stdout = self.child.stdout.take().expect("a pipe");
        self.stdout = Some(Stream::follow(stdout));
        self.wait_ready();
        self
    }

    /// Starts like [`Self::start`], with standard output as a pipe that the test reads itself.
    pub fn start_piped(lab: &impl Files, arguments: &[&str]) -> (Self, ChildStdout) {
        let command = Command::new(binary::path());
        let mut capture = Self::launch(command, &[], lab, arguments);
        let stdout = capture.child.stdout.take().expect("a pipe");
        capture.wait_ready();
        (capture, stdout)
    }

    fn launch(mut command: Command, environment: &[(&str, &str)], lab: &impl Files, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        let summary = lab.file(&format!("summary-{number}.json"));
        let mut child = command
            .arg("capture")
            // Options must precede the arguments, because an expression includes everything after it.
            .args(["--summary", &summary])
            .args(ring_size(arguments))
            .args(arguments)
            .env(MARK, &mark)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("trawl starts");
        let stderr = Stream::follow(child.stderr.take().expect("a pipe"));
        Self { child, stderr, stdout: None, summary, mark }
    }

    fn wait_ready(&self) {
        let said = self.stderr.wait(|bytes| contains(bytes, "capturing on"));
        assert!(said, "trawl did not start to capture, but said: {}", self.said());
    }

    /// Returns the standard error so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Waits for a text on standard error.
    #[track_caller]
    pub fn wait_said(&self, words: &str) {
        let said = self.stderr.wait(|bytes| contains(bytes, words));
        assert!(said, "trawl did not say {words:?}, but: {}", self.said());
    }

    /// Waits until the standard output so far satisfies `done`, and returns it.
    #[track_caller]
    pub fn wait_printed(&self, done: impl Fn(&str) -> bool) -> String {
        let stdout = self.stdout.as_ref().expect("standard output is followed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let printed = stdout.wait(|bytes| done(&text(bytes)));
        let so_far = text(&stdout.so_far());
        assert!(printed, "trawl printed {so_far:?}");
        so_far
    }

    /// Waits until the bytes on standard output so far satisfy `done`.
    #[track_caller]
    pub fn wait_output(&self, done: impl Fn(&[u8]) -> bool) {
        let stdout = self.stdout.as_ref().expect("standard output is followed");
        assert!(stdout.wait(done), "trawl wrote only {} bytes", stdout.so_far().len());
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("trawl runs");
    }

    /// Stops the reading process; returns once it is stopped.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.id());
        wait_until("trawl stands still", || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") T ")));
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Requests figures until this many packets were seen in all.
    #[track_caller]
    pub fn wait_seen(&self, count: u64) {
        self.wait_figure("seen", count);
    }

    /// Requests figures until this many packets were recorded in all.
    #[track_caller]
    pub fn wait_recorded(&self, count: u64) {
        self.wait_figure("recorded", count);
    }

    #[track_caller]
    fn wait_figure(&self, name: &str, count: u64) {
        wait_until(&format!("{count} packets are {name}"), || self.figure(name) >= count);
    }

    /// Requests figures, and returns the one of this name (`seen`, `recorded`), summed over all interfaces.
    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        let before = self.stderr.so_far().len();
        self.signal(Signal::USR1);
        let mut latest = None;
        self.stderr.wait(|bytes| {
            let lines = String::from_utf8_lossy(&bytes[before..]).into_owned();
            latest = lines.lines().rev().find_map(|line| figure(line, name));
            lines.ends_with('\n') && latest.is_some()
        });
        latest.unwrap_or_else(|| panic!("trawl gave no figures, but said: {}", self.said()))
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Interrupts it and waits for its end.
    pub fn stop(self) -> Finished {
        self.signal(Signal::INT);
        self.wait()
    }

    /// Interrupts it; it has to end successfully.
    #[track_caller]
    pub fn stop_well(self) -> Summary {
        self.stop().summary_of_success()
    }

    /// Kills it and waits for the end of the process that cleans up after it.
    pub fn kill(self) -> Finished {
        let family = marked_processes(&self.mark);
        self.signal(Signal::KILL);
        let finished = self.wait();
        wait_until("no process of the killed capture is left", || family.iter().all(|process| is_over(*process)));
        finished
    }

    /// Kills it like `pkill -9 trawl`.
    pub fn kill_by_name(self) -> Finished {
        self.kill_matching(|process| {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
            name.is_ok_and(|name| name.contains("trawl"))
        })
    }

    /// Kills all its processes, beginning with those that would clean up.
    pub fn kill_all(self) -> Finished {
        self.kill_matching(|_| true)
    }

    fn kill_matching(self, is_meant: impl Fn(u32) -> bool) -> Finished {
        let mut family = marked_processes(&self.mark);
        family.retain(|process| is_meant(*process));
        family.sort_unstable_by(|one, other| other.cmp(one));
        for process in family {
            if let Some(process) = Pid::from_raw(process as i32) {
                let _ = kill_process(process, Signal::KILL);
            }
        }
        self.kill()
    }

    /// Waits for it to end on its own.
    pub fn wait(mut self) -> Finished {
        let mut status = None;
        wait_until("trawl ends", || {
            status = self.child.try_wait().expect("a child of ours");
            status.is_some()
        });
        Finished {
            status: status.expect("it ended"),
            stdout: self.stdout.as_ref().map(|stdout| stdout.all()).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&self.stderr.all()).into_owned(),
            summary: std::fs::read_to_string(&self.summary).ok(),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Returns the summary, after checking that it adds up and equals the last line on standard error.
    #[track_caller]
    pub fn summary(&self) -> Summary {
        let text = self.summary.as_deref().unwrap_or_else(|| panic!("no summary was written: {}", self.stderr));
        let summary = Summary::parse(text);
        let Summary { seen, filtered_out, recorded, not_kept, merged, .. } = &summary;
        let lost = summary.lost_total();
        let not_kept = match not_kept {
            0 => String::new(),
            count => format!("{count} not kept, "),
        };
        let merged = match merged {
            0 => String::new(),
            count => format!("{count} merged, "),
        };
        let line = format!(
            "trawl: {seen} seen, {filtered_out} filtered out, {recorded} recorded, {not_kept}{merged}{lost} lost"
        );
        let last = self.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with(&line), "the last line is {last:?}, the summary {summary:?}");
        summary
    }

    #[track_caller]
    pub fn summary_of_success(&self) -> Summary {
        assert_eq!(self.status.code(), Some(0), "{}", self.stderr);
        self.summary()
    }

    pub fn printed(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("text")
    }
}

fn contains(bytes: &[u8], words: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(words)
}

/// Returns the number before a name in a summary line.
fn figure(line: &str, name: &str) -> Option<u64> {
    let words: Vec<&str> = line.split([' ', ',']).collect();
    let at = words.iter().position(|word| *word == name)?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

/// Returns the processes of a capture.
fn marked_processes(mark: &str) -> Vec<u32> {
    let wanted = format!("{MARK}={mark}");
    let is_marked = |process: &u32| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(is_marked).collect()
}

/// Returns whether a process is gone or a zombie: it becomes one after it has closed all its files.
fn is_over(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z ") || stat.contains(") X "))
}
