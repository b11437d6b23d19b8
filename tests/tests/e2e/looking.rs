//! Read-only commands change nothing: neither working objects, nor others' leftovers.

use std::path::Path;
use std::process::Command;

use trawl_lab::Station;
use trawl_lab::program::{Does, Loaded};
use trawl_sys::netns::Mark;
use trawl_tests::witness::run;
use trawl_tests::xdp::succeeds;
use trawl_tests::{Lab, LineLab, args, binary, root_or_skip, tools_or_skip, trawl};

/// Returns other tools' view of these namespaces, with trawl's pins and run-time files for them.
fn state(stations: &[&Station]) -> String {
    let mut all = String::new();
    for station in stations {
        let name = station.name.as_str();
        all += &run("ip", &["-n", name, "-d", "link", "show"]);
        let inside = ["netns", "exec", name];
        all += &run("ip", &[&inside[..], &["bpftool", "-j", "net", "show"]].concat());
        all += &run("ip", &[&inside[..], &["ethtool", "-k", &station.interface]].concat());
        let mark = Mark::of(Some(&station.namespace)).expect("a mark");
        for root in ["/sys/fs/bpf/trawl", "/run/trawl"] {
            if Path::new(root).exists() {
                let found = run("find", &[root, "-path", &format!("*{mark}*")]);
                let mut lines: Vec<&str> = found.lines().collect();
                lines.sort_unstable();
                all += &lines.join("\n");
            }
        }
    }
    all
}

#[track_caller]
fn changes_nothing(stations: &[&Station], commands: &[&[&str]]) {
    let before = state(stations);
    for command in commands {
        let done = trawl(command);
        // A command may report a problem, but must be valid usage.
        assert!(done.status.code() != Some(2), "{command:?}: {done:?}");
        let after = state(stations);
        assert_eq!(before, after, "{command:?} changed something");
    }
}

#[test]
fn status_stats_maps_and_lists_change_nothing() {
    if !root_or_skip() || !tools_or_skip(&["bpftool", "ethtool", "unshare"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/looking.sh");
    let output = Command::new("unshare")
        .args(["--mount", "--net", "--propagation", "private", "bash"])
        .arg(script)
        .arg(binary::path())
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let wrong = |line: &&&str| ["CHANGED", "USAGE", "STAYS"].iter().any(|w| line.starts_with(w));
    let wrong: Vec<&&str> = lines.iter().filter(wrong).collect();
    assert!(wrong.is_empty(), "{said}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(lines.last(), Some(&"looked"), "{said}\n{errors}");
}

#[test]
fn reading_a_balancer_changes_nothing() {
    let Some(lab) = LineLab::open() else { return };
    let left = &lab.line.left;
    let place = format!("{}:{}", left.name, left.interface);
    succeeds(&["balance", "load", &place]);
    changes_nothing(
        &[left, &lab.line.right],
        &[
            &["balance", "vip", "list", "--on", &place, "--json"],
            &["balance", "stats", "--on", &place],
            &["xdp", "status", "-i", &place],
            &["xdp", "maps", "-i", &place],
        ],
    );
    succeeds(&["xdp", "unload", &place, "--all"]);
}

#[test]
fn capture_at_another_tools_program_changes_nothing() {
    let Some(lab) = Lab::open() else { return };
    let program = Loaded::native(Does::PassWithHook, &lab.pair.b).expect("a program");
    let (near, far) = (&lab.pair.b, &lab.pair.a);
    let place = lab.receiver();
    let file = lab.file("file.pcapng");
    for tap in ["tailcall", "packet", "tc", "auto"] {
        let capture = args!("capture -i {place} --tap {tap} --duration 100ms -w {file}");
        changes_nothing(&[near, far], &[&capture]);
    }
    drop(program);
}
