//! Servers that get too little of a CPU.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use trawl_tests::stage::Stage;
use trawl_tests::traffic::ask;
use trawl_tests::turn::heavy;
use trawl_tests::witness::run;

use super::Kept;
use super::applications::Application;

/// Answers questions from its standard input, each after 10 ms of work.
const SERVER: &str = "
import socket, time
end = socket.socket(fileno=0)
print(flush=True)
while end.recv(100, socket.MSG_WAITALL):
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    end.sendall(bytes(300))
";
const QUESTIONS: u32 = 8;
/// Smallest time for which a starved server waits, in nanoseconds.
const WAITED: u64 = 400_000_000;

/// A control group for processes with a quota, removed when it is dropped, after them.
struct Group(PathBuf);

impl Group {
    /// Makes a group that may use 5 % of a CPU, by the first or the second version of the interface; `None` if there is
    /// no controller of CPUs.
    fn with_quota() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("trawl-tests-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let settings = |version: u8| match version {
            1 => ("/sys/fs/cgroup/cpu", &[("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "5000")][..]),
            _ => ("/sys/fs/cgroup", &[("cpu.max", "5000 100000")][..]),
        };
        [1, 2].into_iter().find_map(|version| {
            let (root, settings) = settings(version);
            let group = Self(Path::new(root).join(&name));
            fs::create_dir(&group.0).ok()?;
            settings.iter().all(|(file, value)| group.set(file, value).is_ok()).then_some(group)
        })
    }

    /// Writes a value to a file of the kernel's, which exists if the group has the controller.
    fn set(&self, file: &str, value: &str) -> std::io::Result<()> {
        File::options().write(true).open(self.0.join(file))?.write_all(value.as_bytes())
    }

    fn add(&self, application: &Application) {
        self.set("cgroup.procs", &application.id()).expect("a group of ours");
    }

    /// Returns the number of periods in which it had to wait.
    fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.stat")).expect("statistics");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("nr_throttled "));
        lines.next().and_then(|count| count.parse().ok()).expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Connects a client to a server that is a process of its own.
fn started(stage: &Stage, server: SocketAddr) -> (TcpStream, Application) {
    let [client, end] = stage.connect(server);
    (client, Application::python(SERVER, OwnedFd::from(end)))
}

/// A kernel without a controller of CPUs has the other kind of starvation only.
pub fn by_quota(stage: &Stage, server: SocketAddr) -> Kept {
    let Some(group) = Group::with_quota() else {
        trawl_tests::skip("there is no controller of CPUs for control groups");
        return by_others(stage, server);
    };
    let (mut client, application) = started(stage, server);
    group.add(&application);
    ask(&mut client, QUESTIONS, Duration::ZERO);
    assert!(group.throttled() > 4 && application.waited() > WAITED, "not planted: {} ns", application.waited());
    Box::new((client, application, group))
}

/// Two processes with a higher priority use the server's CPU.
pub fn by_others(stage: &Stage, server: SocketAddr) -> Kept {
    let turn = heavy();
    let (mut client, application) = started(stage, server);
    let process = application.id();
    run("taskset", &["-cp", "0", &process]);
    run("renice", &["-n", "10", "-p", &process]);
    let busy = [(); 2].map(|()| Application::busy(Some(0)));
    ask(&mut client, QUESTIONS, Duration::ZERO);
    assert!(application.waited() > WAITED, "not planted: {} ns", application.waited());
    drop(busy);
    drop(turn);
    Box::new((client, application))
}
