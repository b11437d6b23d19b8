//! `trawl doctor` and `trawl lab`, as run by a user.

use std::process::Output;

use serde_json::Value;
use trawl_lab::program::{Does, Loaded};
use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::witness::{ip_link, output, run};
use trawl_tests::{Capture, Lab, args, binary, frames, root_or_skip, trawl};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn doctor_describes_the_machine() {
    let output = trawl(&["doctor"]);
    let text = text(&output);
    for word in ["kernel", "BTF", "JIT", "bpffs"] {
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "{word} is missing in {text}");
    }
    assert!(text.lines().last().is_some_and(|line| line.contains("problem")), "{text}");
}

#[test]
fn doctor_describes_an_interface_and_its_programs() {
    let Some(lab) = Lab::open() else { return };
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let by_prefix = trawl(&["doctor", "-i", &lab.receiver()]);
    let report = text(&by_prefix);
    for word in [lab.receiver().as_str(), "veth", "lab_drop_hook", "queue", "hook"] {
        assert!(report.contains(word), "{word} is missing in {report}");
    }
    // The driver has the function for stamps, but no clock, so stamps must not be offered.
    assert!(!report.contains("the driver's receive stamps"), "{report}");
    let by_option = trawl(&["doctor", "-i", "veth0", "--netns", &lab.pair.b.name]);
    assert!(text(&by_option).contains("lab_drop_hook"));
}

#[test]
fn doctor_prints_json() {
    let Some(lab) = Lab::open() else { return };
    let output = trawl(&["doctor", "-i", &lab.receiver(), "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    assert!(findings.len() > 10);
    for finding in findings {
        for key in ["area", "subject", "state", "text"] {
            assert!(finding[key].is_string(), "{key} in {finding}");
        }
    }
    let problem = report["problem"].as_bool().expect("whether there is a problem");
    assert_eq!(output.status.code(), Some(i32::from(problem)));
    assert!(findings.iter().any(|finding| finding["area"].as_str() == Some(&lab.receiver())));
}

#[test]
fn doctor_refuses_unknown_interfaces() {
    let unknown = trawl(&["doctor", "-i", "trawl-nowhere"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("trawl-nowhere"));
    assert!(unknown.stdout.is_empty());
    assert_eq!(trawl(&["doctor", "--netns", "trawl-no-such-namespace"]).status.code(), Some(1));
}

/// Doctor finds the JIT in any namespace, although its switch is hidden in all but the first.
#[test]
fn doctor_finds_the_jit_in_any_namespace() {
    let Some(lab) = Lab::open() else { return };
    let path = binary::path().display().to_string();
    let inside = ["netns", "exec", &lab.pair.b.name, &path, "doctor", "--json"];
    let report: Value = serde_json::from_slice(&output("ip", &inside).stdout).expect("JSON");
    let of_host: Value = serde_json::from_slice(&trawl(&["doctor", "--json"]).stdout).expect("JSON");
    let jit = |report: &Value| {
        let findings = report["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|one| one["subject"] == "BPF JIT");
        finding.expect("a finding about the JIT")["state"].clone()
    };
    assert_eq!(jit(&report), jit(&of_host));
}

/// Findings that require root are reported as unknown, all others normally.
#[test]
fn doctor_without_root_reports_what_it_can() {
    let Some(lab) = Lab::open() else { return };
    let directory = tempfile_for_everybody();
    let copy = directory.join("trawl");
    binary::copy(binary::path(), &copy);
    let result = std::process::Command::new("ip")
        .args(["netns", "exec", &lab.pair.b.name])
        .args(["setpriv", "--reuid", "65534", "--clear-groups"])
        .args(["--inh-caps=-all", "--bounding-set=-all"])
        .arg(&copy)
        .args(["doctor", "-i", "veth0"])
        .output()
        .expect("ip runs");
    std::fs::remove_dir_all(&directory).expect("the copy is removed");
    let report = text(&result);
    assert!(report.contains("link") && report.contains("tap packet"), "{report}");
    assert!(report.contains("CAP_SYS_ADMIN"), "{report}");
}

fn tempfile_for_everybody() -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("trawl-tests-{}-all", std::process::id()));
    std::fs::create_dir(&path).expect("a directory of the test's own");
    std::os::unix::fs::chown(&path, Some(65534), None).expect("root gives it away");
    path
}

/// A lab made by the command, taken down at the end even after a failure.
struct Made(String);

impl Made {
    fn up(name: &str) -> Self {
        let made = Self(format!("{name}{}", std::process::id()));
        let output = trawl(&["lab", "up", &made.0, "--mtu", "3000"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        made
    }

    fn namespaces(&self) -> [String; 2] {
        ["a", "b"].map(|side| format!("trawl-{}-{side}", self.0))
    }

    fn exists(&self) -> bool {
        let known = run("ip", &["netns", "list"]);
        self.namespaces().iter().any(|name| known.contains(name.as_str()))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        trawl(&["lab", "down", &self.0]);
    }
}

#[test]
fn lab_goes_up_is_listed_and_goes_down() {
    if !root_or_skip() {
        return;
    }
    let made = Made::up("e2e-up-");
    let [first, second] = made.namespaces();
    let link: Value = serde_json::from_str(&run("ip", &["-n", &first, "-j", "link", "show", "veth0"])).expect("JSON");
    assert_eq!((link[0]["mtu"].as_u64(), link[0]["operstate"].as_str()), (Some(3000), Some("UP")));
    // Each end has a route to the other one.
    run("ip", &["-n", &second, "route", "get", "10.77.0.1"]);
    assert!(text(&trawl(&["lab", "list"])).contains(&made.0));
    let listed: Value = serde_json::from_slice(&trawl(&["lab", "list", "--json"]).stdout).expect("JSON");
    assert!(listed.as_array().expect("a list").iter().any(|lab| lab["id"].as_str() == Some(&made.0)));
    // A lab that a user made is kept by `lab clean`.
    trawl(&["lab", "clean"]);
    assert!(made.exists());
    let twice = trawl(&["lab", "up", &made.0]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&twice.stderr).contains(&format!("trawl lab down {}", made.0)));

    let down = trawl(&["lab", "down", &made.0]);
    assert!(down.status.success());
    assert!(!made.exists());
    assert_eq!(trawl(&["lab", "down", &made.0]).status.code(), Some(1));
}

#[test]
fn leftovers_of_dead_processes_are_cleaned() {
    if !root_or_skip() {
        return;
    }
    // The id exceeds the kernel's maximum, so no process has it.
    let stray = "trawl-test-4194399-e2e";
    let is_reported = || {
        run("ip", &["netns", "add", stray]);
        let cleaned = trawl(&["lab", "clean"]);
        assert!(cleaned.status.success());
        assert!(!run("ip", &["netns", "list"]).contains(stray));
        text(&cleaned).contains(stray)
    };
    // Another test may clean at the same moment, and report it instead.
    assert!((0..10).any(|_| is_reported()));
}

#[test]
fn lab_is_ready_for_a_capture() {
    if !root_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let made = Made::up("e2e-cap-");
    let [first, second] = made.namespaces();
    let capture = Capture::start(&lab, &["-i", &format!("{second}:veth0"), "--tap", "xdp", "-c", "10"]);
    let sent = trawl(&["lab", "send", "-i", "veth0", "--netns", &first, "--count", "10"]);
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    capture.wait().summary_of_success().assert_all_recorded(10);
}

#[test]
fn capture_uses_no_more_memory_than_announced() {
    const MIB: u64 = 1 << 20;
    let Some(lab) = Lab::open() else { return };
    let cpus = run("nproc", &["--all"]).trim().parse::<u64>().expect("a number");
    for (size, ring) in [("64KiB", 64 << 10), ("16MiB", 16 * MIB)] {
        for tap in ["xdp", "packet"] {
            let file = lab.file("file.pcapng");
            let arguments = args!("-i {} --tap {tap} -Q in --ring-size {size} -w {file}", lab.receiver());
            let capture = Capture::start(&lab, &arguments);
            // The rate is low enough that a small ring does not overflow before the reader has started.
            let long = [frames::patterned(1500)];
            send_from(&lab.pair.a, &long, 20_000, Engine::Live, None, Some(50_000));
            // A part of the packets suffices, because losses of a socket are reported later.
            capture.wait_recorded(100);
            let used = memory_of(capture.id());
            // The limit includes the process, and its children that clean up and open files.
            let promised = ring * cpus + 40 * MIB;
            assert!(used <= promised, "{tap} with {size}: {used} bytes of {promised}");
            capture.stop_well();
        }
    }
    assert!(ip_link(&lab.pair.b).is_some());
}

/// Returns the memory of a process and its children, with the memory of the maps and sockets which they hold.
pub(crate) fn memory_of(process: u32) -> u64 {
    let children = output("pgrep", &["-P", &process.to_string()]);
    let text = String::from_utf8_lossy(&children.stdout).into_owned();
    let family = text.lines().filter_map(|line| line.parse().ok()).chain([process]);
    let own: u64 = family.map(own_memory).sum();
    own + maps_memory(process)
}

/// Returns the mapped memory, with shared memory in proportion. It excludes the rings of maps and sockets, which are
/// counted separately, and the binary's file, whose size depends on the build.
fn own_memory(process: u32) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{process}/smaps")).expect("a process of ours");
    let mut counts = true;
    let mut sum = 0;
    for line in smaps.lines() {
        match line.strip_prefix("Pss:") {
            Some(size) if counts => sum += kilobytes(size),
            Some(_) => {}
            None if is_heading(line) => counts = !line.contains("bpf-map") && !line.ends_with("/trawl"),
            None => {}
        }
    }
    sum
}

fn is_heading(line: &str) -> bool {
    line.split(' ').next().is_some_and(|word| word.contains('-') && !word.contains(':'))
}

fn kilobytes(text: &str) -> u64 {
    1024 * text.trim().trim_end_matches(" kB").parse::<u64>().expect("kilobytes")
}

fn maps_memory(process: u32) -> u64 {
    let mut seen = Vec::new();
    let mut sum = 0;
    let about = std::fs::read_dir(format!("/proc/{process}/fdinfo")).expect("a process of ours");
    for entry in about.flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        if let (Some(id), Some(size)) = (value("map_id:"), value("memlock:"))
            && !seen.contains(&id)
        {
            seen.push(id);
            sum += size;
        }
    }
    sum
}
