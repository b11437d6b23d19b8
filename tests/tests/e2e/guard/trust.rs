//! Attacks by other users of the machine on the guard and on commands that wait for it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};

use trawl_sys::files::lock::{Lock, Rank};

use super::*;

#[test]
fn rules_in_a_directory_of_another_user_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded { lab: &lab };
    let directory = guarded.directory();
    std::fs::create_dir_all(&directory).expect("a directory");
    chown(&directory, Some(65534), Some(65534)).expect("root may");
    for command in [&["deny", "--src", "192.0.2.1"][..], &["load", "veth0"]] {
        let said = guarded.refused(1, command);
        assert!(said.contains("belongs to user 65534"), "{said}");
    }
    assert_eq!(xdp_on(&lab.pair.b), None);
    chown(&directory, Some(0), Some(0)).expect("root may");
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&directory, permissions).expect("root may");
    };
    mode(0o777);
    let said = guarded.refused(1, &["deny", "--src", "192.0.2.1"]);
    assert!(said.contains("chmod go-w"), "{said}");
    mode(0o700);
    guarded.well(&["deny", "--src", "192.0.2.1"]);
    guarded.well(&["remove", "--all"]);
    assert!(!directory.exists());
}

#[test]
fn rules_unused_by_the_attached_program_are_not_listed_as_in_force() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", "192.0.2.7"]);
    let directory = guarded.directory();
    // A user with write access moves the rules away.
    let moved = directory.with_file_name(format!("moved-{}", std::process::id()));
    std::fs::rename(&directory, &moved).expect("it is there");
    let said = guarded.refused(1, &["deny", "--src", &STRANGER.to_string()]);
    let remedy = format!("trawl guard load {}:veth0 --replace", lab.pair.b.name);
    assert!(said.contains(&remedy), "{said}");
    // Rules in force are not discarded without consent.
    let attached = xdp_on(&lab.pair.b);
    let said = guarded.refused(1, &["load", "veth0", "--replace"]);
    assert!(said.contains("would no longer be enforced"), "{said}");
    assert_eq!(xdp_on(&lab.pair.b), attached);
    guarded.well(&["load", "veth0", "--replace", "--yes"]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    guarded.send(&[udp_from(STRANGER, 9)], 3);
    assert_eq!(guarded.hits(1), 3);
    std::fs::remove_dir_all(&moved).expect("it is a test's");
}

/// Another BPF file system, like the one mounted by `ip netns exec`, has no rules of the guard. The advice there does
/// not discard the rules in force.
#[test]
fn advice_inside_ip_netns_exec_is_to_go_outside() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    guarded.well(&["deny", "--src", &STRANGER.to_string()]);
    let (name, attached) = (lab.pair.b.name.clone(), xdp_on(&lab.pair.b));
    let inside = |command: &str| {
        let script =
            format!("mount -t bpf -o mode=0700 bpf /sys/fs/bpf && {} guard {command}", binary::path().display());
        let output = Command::new("ip").args(["netns", "exec", &name, "sh", "-c", &script]).output().expect("ip runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        said
    };
    let said = inside("deny --src 192.0.2.1");
    assert!(said.contains(&format!("outside of ip netns exec, with --netns {name}")), "{said}");
    assert!(!said.contains("--replace"), "{said}");
    let said = inside("load veth0 --replace");
    assert!(said.contains("would be lost"), "{said}");
    assert_eq!(xdp_on(&lab.pair.b), attached);
    guarded.send(&[udp_from(STRANGER, 9)], 3);
    assert_eq!(guarded.hits(1), 3);
}

/// Starts the command, with a /run of its own as in a container, so that it waits for a lock held by this test.
fn waiting(lab: &Lab) -> (Lock, std::process::Child, String) {
    let directory = Guarded { lab }.directory();
    let make = || {
        std::fs::create_dir_all(&directory).expect("a directory");
        Ok(())
    };
    let held = Lock::of_directory(Rank::Guard, &directory, make).expect("a lock");
    let script = format!(
        "mount -t tmpfs -o mode=0700 tmpfs /run/trawl && exec {} guard deny --src 192.0.2.1 --netns {}",
        binary::path().display(),
        lab.pair.b.name
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).stderr(Stdio::piped());
    let mut child = command.spawn().expect("trawl runs");
    let mut line = String::new();
    BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    (held, child, line)
}

#[test]
fn waiting_command_names_the_lock_holder_and_ends_on_a_signal() {
    let Some(lab) = Lab::open() else { return };
    let (held, mut child, line) = waiting(&lab);
    let own = format!("process {} (", std::process::id());
    assert!(line.contains("waiting for the lock") && line.contains(&own), "{line}");
    run("kill", &["-TERM", &child.id().to_string()]);
    assert!(!child.wait().expect("it ends").success());
    drop(held);
    let (held, mut child, _) = waiting(&lab);
    drop(held);
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn other_users_cannot_block_root() {
    let Some(lab) = Lab::open() else { return };
    let guarded = Guarded::load(&lab, &[]);
    let about = std::fs::metadata("/run/trawl").expect("trawl's own directory");
    assert_eq!(about.permissions().mode() & 0o777, 0o700);
    // Any user may lock these files, so trawl must not wait for their locks.
    let usual = std::fs::File::open("/sys/fs/bpf").expect("the BPF file system");
    usual.lock().expect("a lock");
    let namespace = format!("/run/netns/{}", lab.pair.b.name);
    let namespace = std::fs::File::open(namespace).expect("a namespace");
    namespace.lock().expect("a lock");
    guarded.well(&["deny", "--src", "192.0.2.1"]);
    let name = format!("{}:veth0", lab.pair.b.name);
    trawl_tests::xdp::succeeds(&["xdp", "load", &name, "pass", "--replace", "--yes"]);
    trawl_tests::xdp::succeeds(&["xdp", "unload", &name]);
}
