//! A process in a container, which has namespaces and a cgroup of its own.

use std::fs;
use std::process::Command;

use trawl_tests::lab::Mounted;
use trawl_tests::pcapng::Contents;
use trawl_tests::{Capture, Lab, args};

const COMMENT: u16 = 1;

/// A cgroup, removed when dropped.
struct Group(String);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn container_and_inner_number_are_in_the_description() {
    let Some(lab) = Lab::open() else { return };
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    // The container's id consists of digits, so that its beginning looks like the number of a cgroup.
    let id = format!("{:032}", std::process::id()).repeat(2);
    let name = format!("trawl-tests-{id}.scope");
    let group = Group(format!("{}/{name}", cgroups.path));
    fs::create_dir(&group.0).expect("a cgroup");
    let (all, filtered) = (lab.file("all.pcapng"), lab.file("filtered.pcapng"));
    let start = |file: &str, more: &str| {
        let sender = lab.sender();
        Capture::start(&lab, &args!("-i {sender} --tap tc -Q out --process{more} -w {file} udp"))
    };
    let captures = [start(&all, ""), start(&filtered, &format!(" --container {}", &id[..20]))];
    let receiver = lab.pair.b.ipv4;
    // `ip netns exec` hides the mount, so the cgroup is entered before. The shell is the first process in its
    // namespaces.
    let inside = format!("echo $$ >/dev/udp/{receiver}/4001");
    let outside = format!(
        "echo $$ >{}/cgroup.procs && exec ip netns exec {} unshare --pid --fork --mount --mount-proc bash -c '{inside}'",
        group.0, lab.pair.a.name
    );
    let run = |script: &str| {
        let status = Command::new("bash").args(["-c", script]).status();
        assert!(status.expect("bash").success(), "{script}");
    };
    run(&outside);
    run(&format!("exec ip netns exec {} bash -c 'echo other >/dev/udp/{receiver}/4002'", lab.pair.a.name));
    for capture in captures {
        capture.stop_well();
    }
    let contents = Contents::read(&all);
    assert_eq!(contents.packets.len(), 2);
    let contents = Contents::read(&filtered);
    let [packet] = &contents.packets[..] else {
        panic!("{:?}", contents.packets);
    };
    assert_eq!(packet.bytes[42..], *b"1\n");
    let (process, _) = packet.process().expect("a process");
    assert_ne!(process, 1);
    let comments: Vec<String> = contents
        .processes
        .iter()
        .filter(|(id, _)| *id == process)
        .filter_map(|(_, options)| options.text(COMMENT))
        .collect();
    let expected = format!("container={} cgroup=/{name} inner_pid=1", &id[..12]);
    assert_eq!(comments.last(), Some(&expected), "{comments:?}");
}
