//! `trawl fleet demo` finds its fault, and leaves nothing behind, whatever ends it.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use trawl_tests::lab::Directory;
use trawl_tests::{Running, binary, fleet_or_skip, root_or_skip, tools_or_skip, wait_until};

fn can_run() -> bool {
    root_or_skip() && fleet_or_skip() && tools_or_skip(&["nft"])
}

/// Starts the demo, with its files below this directory.
fn start(directory: &Path) -> Running {
    let mut demo = Command::new(binary::path());
    demo.args(["fleet", "demo"]).env("TMPDIR", directory);
    Running::of(demo, "")
}

/// Returns the number of namespaces, labs and files of a demo.
fn leftovers(demo: u32, directory: &Path) -> usize {
    let names = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let own = format!("fleet-{demo}");
    let all = [Path::new("/run/netns"), Path::new("/run/trawl/labs"), directory].map(names);
    all.iter().flatten().filter(|name| name.contains(&own)).count()
}

#[test]
fn demo_finds_the_host_that_drops_packets() {
    if !can_run() {
        return;
    }
    let directory = Directory::new();
    let demo = start(directory.path());
    let id = demo.id();
    let done = demo.wait();
    assert_eq!(done.status.code(), Some(0), "{}{}", done.stdout, done.stderr);
    let answer = "The answer: firewall dropped them, for the reason NETFILTER_DROP.";
    assert!(done.stdout.contains(answer), "{}", done.stdout);
    assert_eq!(leftovers(id, directory.path()), 0);
}

#[test]
fn demo_that_is_ended_early_leaves_nothing() {
    if !can_run() {
        return;
    }
    for signal in [Signal::INT, Signal::KILL] {
        let directory = Directory::new();
        let demo = start(directory.path());
        wait_until("the agents run", || demo.shown().contains("web sends small queries"));
        let id = demo.id();
        assert!(leftovers(id, directory.path()) > 0);
        demo.signal(signal);
        demo.wait();
        wait_until("everything is removed", || leftovers(id, directory.path()) == 0);
    }
}
