//! Memory usage of a capture, and captures that have little of it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use trawl_tests::capture::in_cgroup;
use trawl_tests::lab::Mounted;
use trawl_tests::witness::{nothing_attached, packets_in};
use trawl_tests::xdp::succeeds;
use trawl_tests::{Capture, Lab, frames, skip, wait_until};

/// Returns a process's resident memory in MiB.
fn resident(process: u32) -> u64 {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(path).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.expect("a size").trim().split(' ').next();
    words.expect("a number").parse::<u64>().expect("a number") >> 10
}

#[test]
fn memory_is_allocated_on_demand() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let file = lab.file("all.pcapng");
    let fixed = ["-i", &receiver, "--tap", "xdp", "--memory", "256MiB"];
    let start = |more: &[&str]| Capture::start(&lab, &[&fixed[..], more].concat());
    for more in [&["-c", "5"][..], &["-c", "5", "-w", &file], &["-w", &file], &[]] {
        let capture = start(more);
        let size = resident(capture.id());
        assert!(size < 60, "{more:?}: {size} MiB");
        lab.send(&[frames::silent(64)], 5);
        match more {
            ["-c", ..] => capture.wait().summary(),
            _ => {
                capture.wait_recorded(5);
                capture.stop_well()
            }
        }
        .assert_all_recorded(5);
    }
}

/// While the capture itself is stopped, packets wait in added memory.
#[test]
fn memory_grows_while_the_capture_waits() {
    const COUNT: u64 = 20_000;
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let count = COUNT.to_string();
    let fixed = ["-i", &receiver, "--tap", "xdp", "--memory", "128MiB"];
    let capture = Capture::start(&lab, &[&fixed[..], &["-s", "0"]].concat());
    let before = resident(capture.id());
    capture.freeze();
    let sender = lab.sender();
    let send = ["gen", "udp", "-i", &sender, "--rate", "5kpps"];
    succeeds(&[&send[..], &["--size", "1400", "--count", &count]].concat());
    capture.thaw();
    capture.wait_seen(COUNT);
    wait_until("the memory that was added is read", || resident(capture.id()) >= before + 16);
    capture.stop_well().assert_all_recorded(COUNT);
}

/// A cgroup whose processes may use little memory, removed when dropped.
struct Limited {
    group: String,
    _hierarchy: Mounted,
}

impl Limited {
    /// Makes a cgroup with this limit. Returns `None` if the kernel cannot limit memory, which skips the test.
    fn to(lab: &Lab, bytes: u64) -> Option<Self> {
        let unified = Mounted::at(lab, "cgroup2", "rw");
        let controllers = fs::read_to_string(format!("{}/cgroup.controllers", unified.path)).unwrap_or_default();
        let first = fs::read_to_string("/proc/cgroups").unwrap_or_default();
        let limits_in_first = first.lines().any(|line| line.starts_with("memory\t") && line.ends_with("\t1"));
        let limits_in_unified = controllers.split_whitespace().any(|one| one == "memory");
        let (hierarchy, file) = match (limits_in_unified, limits_in_first) {
            (true, _) => {
                fs::write(format!("{}/cgroup.subtree_control", unified.path), "+memory").expect("a controller");
                (unified, "memory.max")
            }
            (false, true) => (Mounted::at(lab, "cgroup", "memory"), "memory.limit_in_bytes"),
            (false, false) => {
                skip("this kernel limits no memory by cgroups");
                return None;
            }
        };
        let group = format!("{}/{}", hierarchy.path, lab.pair.b.name);
        fs::create_dir(&group).expect("a cgroup");
        let limited = Self { group, _hierarchy: hierarchy };
        fs::write(limited.file(file), bytes.to_string()).expect("a limit");
        Some(limited)
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.group)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        wait_until("the cgroup is empty", || fs::remove_dir(&self.group).is_ok());
    }
}

/// Without --memory, a capture takes a part of what its cgroup allows; a refusal names the limit.
#[test]
fn capture_in_a_container_fits_its_memory() {
    let Some(lab) = Lab::open() else { return };
    let Some(limited) = Limited::to(&lab, 96 << 20) else { return };
    let (file, receiver) = (lab.file("a.pcapng"), lab.receiver());
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file];
    let capture = Capture::start_in_cgroup(&limited.group, &lab, &arguments);
    lab.send(&[frames::silent(64)], 1000);
    capture.wait_recorded(1000);
    capture.stop_well().assert_all_recorded(1000);
    let more = in_cgroup(&limited.group)
        .arg(trawl_tests::binary::path())
        .args(["capture", "--memory", "128MiB"])
        .args(arguments)
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&more.stderr);
    let expected = "Cannot allocate memory; choose less than 128 MiB with --memory, or raise the limit of its memory cgroup (96 MiB)";
    assert!(more.status.code() == Some(1) && said.contains(expected), "{said}");
}

/// If the kernel kills a capture for lack of memory, nothing stays attached, and the file has the packets so far.
#[test]
fn capture_killed_for_lack_of_memory_leaves_nothing() {
    let Some(lab) = Lab::open() else { return };
    let Some(limited) = Limited::to(&lab, 96 << 20) else { return };
    let (file, receiver) = (lab.file("a.pcapng"), lab.receiver());
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-U"];
    let mut capture = Capture::start_in_cgroup(&limited.group, &lab, &arguments);
    lab.send(&[frames::silent(64)], 1000);
    wait_until("the packets are in the file", || packets_in(&file) == 1000);
    // The kernel chooses the capture, although the other process of the cgroup uses the memory.
    fs::write(format!("/proc/{}/oom_score_adj", capture.id()), "1000").expect("it runs");
    let greedy = "head -c 200m /dev/zero | tail -c 200m >/dev/null";
    let mut greedy = in_cgroup(&limited.group).args(["sh", "-c", greedy]).spawn().expect("a shell");
    wait_until("the kernel kills the capture", || capture.has_ended());
    let _ = greedy.wait();
    let finished = capture.wait();
    assert_eq!(finished.status.signal(), Some(9));
    wait_until("its cgroup has no process", || {
        fs::read_to_string(limited.file("cgroup.procs")).is_ok_and(|all| all.is_empty())
    });
    nothing_attached(&lab.pair.b);
    assert_eq!(packets_in(&file), 1000);
}

/// A capture may be killed at each step of the growth of its memory: nothing stays attached, and no process is left.
#[test]
fn capture_killed_while_memory_grows_leaves_nothing() {
    const COUNT: u64 = 40_000;
    let Some(lab) = Lab::open() else { return };
    let (file, receiver) = (lab.file("a.pcapng"), lab.receiver());
    let kills = [Capture::kill, Capture::kill_by_name, Capture::kill_all];
    for (step, kill) in kills.into_iter().cycle().take(9).enumerate() {
        let capture = Capture::start(&lab, &["-i", &receiver, "--tap", "xdp", "-w", &file]);
        // Nothing is read, so that the memory grows until all of it is used.
        capture.freeze();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| lab.send(&[frames::patterned(1400)], COUNT));
            std::thread::sleep(Duration::from_millis(step as u64 * 15));
            assert_eq!(kill(capture).status.signal(), Some(9));
            sender.join().expect("it sends");
        });
        nothing_attached(&lab.pair.b);
    }
}
