//! Rights that a capture drops after its setup, and its operation without them.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::PathBuf;
use std::process::Command;

use trawl_lab::program::{Does, Loaded};
use trawl_tests::pcapng::Contents;
use trawl_tests::programs::object_file;
use trawl_tests::witness::{nothing_attached, run, xdp_on};
use trawl_tests::xdp::{CleanUp, succeeds};
use trawl_tests::{Capture, Lab, Running, args, binary, frames, wait_until};

/// The user nobody of every Debian system.
const NOBODY: u32 = 65534;
const BPF: u64 = 1 << 39;
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const SYS_ADMIN: u64 = 1 << 21;
const PERFMON: u64 = 1 << 38;
const DAC_READ_SEARCH: u64 = 1 << 2;

struct Status(String);

impl Status {
    fn of(pid: u32) -> Self {
        Self(std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs"))
    }

    fn field(&self, name: &str) -> String {
        let line = self.0.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("{name} in {}", self.0));
        value.trim().split('\t').next().unwrap_or("").to_owned()
    }

    fn capabilities(&self) -> u64 {
        u64::from_str_radix(&self.field("CapEff:"), 16).expect("a number")
    }

    /// Checks that a process cannot gain rights, and has exactly these.
    #[track_caller]
    fn has_only(&self, capabilities: u64) {
        assert_eq!(self.capabilities(), capabilities, "{}", self.0);
        for other in ["CapPrm:", "CapBnd:"] {
            assert_eq!(self.field(other), self.field("CapEff:"), "{other}");
        }
        for none in ["CapInh:", "CapAmb:"] {
            assert_eq!(self.field(none), "0".repeat(16), "{none}");
        }
        assert_eq!(self.field("NoNewPrivs:"), "1");
        assert_eq!(self.field("Seccomp:"), "2");
    }
}

/// Returns the child processes of a capture, by name, once they have dropped their rights.
fn children_of(pid: u32) -> Vec<(String, u32)> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).expect("it runs");
    let children = text.split_whitespace().filter_map(|id| id.parse().ok());
    let children: Vec<u32> = children.collect();
    assert!(!children.is_empty(), "it has a warden");
    let named = |child: u32| {
        wait_until("it has given up its rights", || Status::of(child).field("Seccomp:") == "2");
        (Status::of(child).field("Name:"), child)
    };
    children.into_iter().map(named).collect()
}

/// Returns a directory of the lab that belongs to nobody.
fn nobodys(lab: &Lab) -> PathBuf {
    let directory = lab.path("nobody");
    std::fs::create_dir_all(&directory).expect("a directory");
    chown(&directory, Some(NOBODY), Some(NOBODY)).expect("root may");
    // The summary file is in the lab's directory.
    chown(lab.path(""), Some(NOBODY), Some(NOBODY)).expect("root may");
    directory
}

#[test]
fn taps_keep_exactly_the_rights_they_need() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let again = BPF | NET_ADMIN | SYS_ADMIN;
    for (tap, kept) in [("packet", 0), ("tc", again), ("xdp", again)] {
        let file = lab.file(tap);
        let capture = Capture::start(&lab, &["-i", &receiver, "--tap", tap, "-w", &file]);
        Status::of(capture.id()).has_only(kept);
        for (name, child) in children_of(capture.id()) {
            if name == "trawl-memory" {
                Status::of(child).has_only(BPF);
                continue;
            }
            assert_eq!(name, "warden");
            // A warden keeps the right to open the hook's next program by its id, or none, to cut the file after its
            // last block.
            let status = Status::of(child);
            match status.capabilities() {
                0 => status.has_only(0),
                _ => status.has_only(BPF | SYS_ADMIN),
            }
        }
        lab.send(&[frames::silent(64)], 5);
        capture.wait_recorded(5);
        capture.stop_well().assert_all_recorded(5);
        nothing_attached(&lab.pair.b);
    }
    let _program = Loaded::native(Does::DropWithHook, &lab.pair.b).expect("the program");
    let file = lab.file("hook");
    let capture = Capture::start(&lab, &["-i", &receiver, "--tap", "tailcall", "-w", &file]);
    Status::of(capture.id()).has_only(again | PERFMON | DAC_READ_SEARCH);
    capture.stop_well();
}

/// A capture in its own namespace needs no right to enter another one.
#[test]
fn own_namespace_needs_no_sys_admin() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("seen.pcapng");
    let mut child = Command::new("nsenter")
        .arg(format!("--net=/run/netns/{}", lab.pair.b.name))
        .arg(binary::path())
        .args(args!("capture -i {} --tap xdp -w {file}", lab.pair.b.interface))
        .args(["-c", "5"])
        .spawn()
        .expect("nsenter is part of every Debian system");
    wait_until("it has given up its rights", || Status::of(child.id()).field("Seccomp:") == "2");
    Status::of(child.id()).has_only(BPF | NET_ADMIN);
    lab.send(&[frames::silent(64)], 5);
    assert!(child.wait().expect("it ends").success());
    assert_eq!(Contents::read(&file).packets.len(), 5);
    nothing_attached(&lab.pair.b);
}

#[test]
fn files_go_on_after_root_is_dropped() {
    let Some(lab) = Lab::open() else { return };
    let directory = nobodys(&lab);
    let who = lab.file("nobody/who");
    let script = lab.file("finished.sh");
    let text = format!("#!/bin/sh\nid -u >> {who}\ngrep CapEff /proc/self/status >> {who}\n");
    std::fs::write(&script, text).expect("a script");
    Command::new("chmod").args(["a+rx", &script]).status().expect("chmod runs");
    let receiver = lab.receiver();
    for sealed in [&[][..], &["--sealed"]] {
        let file = directory.join("ring.pcapng").display().to_string();
        let fixed =
            ["-i", &receiver, "--tap", "packet", "-Z", "nobody", "-w", &file, "-C", "16KiB", "-W", "3", "-z", &script];
        let capture = Capture::start(&lab, &[&fixed[..], sealed].concat());
        let status = Status::of(capture.id());
        status.has_only(0);
        assert_eq!(status.field("Uid:"), NOBODY.to_string());
        assert_eq!(status.field("Groups:").trim(), NOBODY.to_string());
        lab.send(&[frames::silent(1000)], 200);
        capture.wait_recorded(200);
        capture.stop_well().assert_all_recorded(200);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&directory).expect("a directory").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("ring") {
                let about = entry.metadata().expect("a file");
                assert_eq!((about.uid(), about.mode() & 0o777), (NOBODY, 0o600), "{name}");
                files.push(name);
            }
        }
        assert_eq!(files.len(), 3, "{files:?}");
        assert!(files.iter().all(|name| name.ends_with(".pcapng")), "{files:?}");
        let users = std::fs::read_to_string(&who).expect("the command ran");
        assert!(users.lines().count() > 20, "{users}");
        let as_nobody = |line: &str| line == "65534" || line == "CapEff:\t0000000000000000";
        assert!(users.lines().all(as_nobody), "{users}");
    }
}

/// A capture that runs as another user does not stay root to attach to new interfaces.
#[test]
fn pattern_keeps_no_rights_as_another_user() {
    let Some(lab) = Lab::open() else { return };
    let file = nobodys(&lab).join("all.pcapng").display().to_string();
    let pattern = format!("{}:veth*", lab.pair.b.name);
    let arguments = ["-i", &pattern, "--tap", "packet", "-Z", "nobody", "-w", &file];
    let capture = Capture::start(&lab, &arguments);
    let status = Status::of(capture.id());
    status.has_only(0);
    assert_eq!(status.field("Uid:"), NOBODY.to_string());
    lab.send(&[frames::silent(64)], 5);
    capture.wait_recorded(5);
    capture.stop_well().assert_all_recorded(5);
}

/// A capture with a pattern keeps only the rights to attach to new interfaces.
#[test]
fn pattern_keeps_only_the_rights_to_attach() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("all.pcapng");
    let (a, b) = (&lab.pair.a.name, &lab.pair.b.name);
    for tap in ["xdp", "packet", "tc"] {
        let pattern = format!("{b}:*[a-z]0");
        let capture = Capture::start(&lab, &["-i", &pattern, "--tap", tap, "-w", &file]);
        let attaching = BPF | NET_ADMIN | NET_RAW | SYS_ADMIN | PERFMON | DAC_READ_SEARCH;
        Status::of(capture.id()).has_only(attaching);
        let pair = ["link", "add", "new0", "type", "veth", "peer", "name", "new0"];
        run("ip", &[&["-n", a][..], &pair, &["netns", b]].concat());
        run("ip", &["-n", a, "link", "set", "new0", "up"]);
        run("ip", &["-n", b, "link", "set", "new0", "up"]);
        capture.wait_said(&format!("capturing on {b}:new0 at "));
        lab.send(&[frames::silent(64)], 5);
        capture.wait_recorded(5);
        capture.stop_well();
        run("ip", &["-n", a, "link", "del", "new0"]);
        nothing_attached(&lab.pair.b);
    }
}

/// The warden undoes --tappable, so that the capture may run as another user.
#[test]
fn lent_hooks_are_removed_without_rights() {
    let Some(lab) = Lab::open() else { return };
    let _clean = CleanUp::of(&lab);
    let place = lab.receiver();
    let object = object_file(&lab, "drop_ports");
    succeeds(&["xdp", "load", &place, &object]);
    let before = xdp_on(&lab.pair.b).expect("a program").0;
    let file = nobodys(&lab).join("hooks.pcapng").display().to_string();
    for user in [&[][..], &["-Z", "nobody"]] {
        let lend = ["-i", &place, "--tappable", &object, "-w", &file];
        let capture = Capture::start(&lab, &[&lend[..], user].concat());
        Status::of(capture.id()).has_only(BPF | NET_ADMIN | SYS_ADMIN | PERFMON | DAC_READ_SEARCH);
        assert_ne!(xdp_on(&lab.pair.b).expect("a program").0, before);
        lab.send(&[frames::udp(b"hello")], 5);
        capture.wait_recorded(5);
        let done = capture.stop();
        done.summary_of_success().assert_all_recorded(5);
        assert!(!done.stderr.contains("was not put back"), "{}", done.stderr);
        assert_eq!(xdp_on(&lab.pair.b).expect("a program").0, before);
        let _ = std::fs::remove_file(&file);
    }
}

/// A series continues in a directory of another user. The capture has dropped the right to write there, but its helper
/// has kept it.
#[test]
fn rotation_goes_on_in_a_directory_of_another_user() {
    let Some(lab) = Lab::open() else { return };
    let file = nobodys(&lab).join("all.pcapng").display().to_string();
    let receiver = lab.receiver();
    let arguments = ["-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "16KiB"];
    let capture = Capture::start(&lab, &arguments);
    lab.send(&[frames::silent(1000)], 100);
    capture.wait_recorded(100);
    capture.stop_well().assert_all_recorded(100);
    let count = std::fs::read_dir(lab.path("nobody")).expect("a directory").count();
    assert!(count > 5, "{count}");
}

#[test]
fn user_cannot_write_to_a_directory_of_root() {
    let Some(lab) = Lab::open() else { return };
    let directory = lab.path("roots");
    std::fs::create_dir(&directory).expect("a directory");
    let receiver = lab.receiver();
    let file = directory.join("x.pcapng").display().to_string();
    for more in [&[][..], &["-C", "1MiB"]] {
        let fixed = ["capture", "-i", &receiver, "-Z", "nobody", "-w", &file];
        let refused = trawl_tests::trawl(&[&fixed[..], more].concat());
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains("Permission denied"), "{said}");
    }
    let unknown = trawl_tests::trawl(&["capture", "-i", &receiver, "-Z", "no-such-user"]);
    assert_eq!(unknown.status.code(), Some(2));
}

/// Another user plants a link under the next file's name, in a directory that any user may write to.
#[test]
fn no_file_of_a_series_follows_a_planted_link() {
    let Some(lab) = Lab::open() else { return };
    let shared = lab.path("shared");
    std::fs::create_dir(&shared).expect("a directory");
    Command::new("chmod").arg("1777").arg(&shared).status().expect("chmod runs");
    let victim = lab.path("victim");
    std::fs::write(&victim, "precious").expect("a file");
    symlink(&victim, shared.join("part_00003.pcapng")).expect("a link");
    let file = shared.join("part.pcapng").display().to_string();
    let receiver = lab.receiver();
    let running =
        Running::start(&["capture", "-i", &receiver, "--tap", "xdp", "-w", &file, "-C", "16KiB"], "capturing on");
    lab.send(&[frames::silent(1000)], 100);
    let done = running.wait();
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("symbolic link"), "{}", done.stderr);
    assert_eq!(std::fs::read(&victim).expect("a file"), b"precious");
    nothing_attached(&lab.pair.b);
}

/// A capture in front of another one detaches correctly, because its warden has kept the right to attach the other one
/// in its place.
#[test]
fn captures_that_share_a_hook_hand_over() {
    let Some(lab) = Lab::open() else { return };
    let receiver = lab.receiver();
    let start = |name: &str| {
        let file = lab.file(name);
        Capture::start(&lab, &["-i", &receiver, "--tap", "xdp", "-w", &file])
    };
    let (first, second) = (start("first.pcapng"), start("second.pcapng"));
    lab.send(&[frames::silent(64)], 5);
    first.wait_recorded(5);
    first.stop_well();
    lab.send(&[frames::silent(64)], 5);
    second.wait_recorded(10);
    second.stop_well().assert_all_recorded(10);
    nothing_attached(&lab.pair.b);
}
