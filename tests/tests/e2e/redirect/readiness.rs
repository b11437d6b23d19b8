//! Interfaces prepared for a program's transmissions: by concurrent commands, on unsuitable interfaces, and restored
//! afterwards.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use trawl_program::Site;
use trawl_tests::binary;
use trawl_tests::bundled::refused;
use trawl_tests::witness::output;

use super::*;

#[test]
fn setting_is_restored_after_its_last_program() {
    let Some(lab) = unready() else { return };
    let before = features(&lab);
    let (left, right) = (place(&lab.line.left), place(&lab.line.right));
    let gro = || feature(&lab.line.b, "rx-gro");
    done(&["xdp", "load", &left, "redirect", "--to", "right"]);
    done(&["xdp", "load", &right, "redirect", "--to", "right"]);
    done(&["xdp", "unload", &left]);
    assert_eq!(gro(), Some(true), "the other one still needs it");
    done(&["xdp", "unload", &right]);
    assert_eq!(features(&lab), before);
}

/// One command may unload the last program that needs a setting while another command loads one that also needs it.
#[test]
fn programs_that_share_a_setting_load_and_unload_concurrently() {
    let Some(lab) = unready() else { return };
    let before = features(&lab);
    let come_and_go = |station: &Station| {
        let at = place(station);
        for _ in 0..6 {
            done(&["xdp", "load", &at, "redirect", "--to", "right"]);
            let gro = feature(&lab.line.b, "rx-gro");
            assert_eq!(gro, Some(true), "{at} is loaded and needs it");
            done(&["xdp", "unload", &at]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| come_and_go(&lab.line.left));
        scope.spawn(|| come_and_go(&lab.line.right));
    });
    assert_eq!(features(&lab), before);
}

/// Of two concurrent commands, the second may find a setting that the first has changed and not recorded yet.
#[test]
fn setting_changed_by_a_concurrent_command_is_recorded() {
    let Some(lab) = unready() else { return };
    let before = features(&lab);
    let gro = || feature(&lab.line.b, "rx-gro");
    let (left, right) = (place(&lab.line.left), place(&lab.line.right));
    let load = |at| ["xdp", "load", at, "redirect", "--to", "right"];
    // The first command waits for the lock after it has changed the setting.
    let site = Site::find(&left, None).expect("the interface");
    let held = site.lock().expect("the lock of its programs");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| done(&load(&left)));
        wait_until("the first one has switched", || gro() == Some(true));
        let mut second = Command::new(binary::path())
            .args(load(&right))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("trawl");
        // The second command names the holder of the lock, or ends, which also ends its output.
        let mut said = String::new();
        let mut words = BufReader::new(second.stderr.take().expect("a pipe"));
        words.read_line(&mut said).expect("text");
        drop(held);
        first.join().expect("the first one");
        assert!(second.wait().expect("a child").success());
    });
    done(&["xdp", "unload", &left]);
    assert_eq!(gro(), Some(true), "the second one needs it");
    done(&["xdp", "unload", &right]);
    assert_eq!(features(&lab), before);
}

#[test]
fn interface_without_support_is_refused_and_nothing_stays() {
    let Some(lab) = unready() else { return };
    let before = features(&lab);
    let from = place(&lab.line.left);
    let said = refused(&["xdp", "load", &from, "redirect", "--to", "right,lo"], 1);
    assert!(said.contains("accepts none") && said.contains("--mode skb"), "{said}");
    assert_eq!(features(&lab), before);
    nothing_attached(&lab.line.left);
    let pins = output("ls", &["/sys/fs/bpf/trawl"]);
    let left = format!("-{}", lab.line.left.index);
    let listed = String::from_utf8_lossy(&pins.stdout).into_owned();
    let own = std::fs::metadata(format!("/run/netns/{}", lab.line.left.name)).expect("a namespace");
    let own = format!("{}{left}", std::os::unix::fs::MetadataExt::ino(&own));
    assert!(!listed.lines().any(|line| line == own), "{listed}");
}

/// A veth's driver reports only that it accepts no frames, but trawl knows how to fix it.
#[test]
fn target_with_a_downed_peer_is_reported_with_the_fix() {
    if !probe::kernel_is_at_least(6, 3) {
        return;
    }
    let Some(lab) = unready() else { return };
    let before = features(&lab);
    let (left, b) = (place(&lab.line.left), &lab.line.b);
    run("ip", &["-n", &b.name, "link", "set", &b.interface, "down"]);
    let fix = format!("ip netns exec {} ip link set {} up", b.name, b.interface);
    let right = place(&lab.line.right);
    for load in [&["xdp", "load", &left, "redirect", "--to", "right"][..], &["route", "load", &left, &right]] {
        let said = refused(load, 1);
        assert!(said.contains("is down") && said.contains(&fix), "{said}");
        assert_eq!(features(&lab), before);
    }
    let words: Vec<&str> = fix.split(' ').collect();
    run(words[0], &words[1..]);
    done(&["xdp", "load", &left, "redirect", "--to", "right"]);
    done(&["xdp", "unload", &left]);
    assert_eq!(features(&lab), before);
}

#[test]
fn target_that_is_down_is_reported() {
    let Some(lab) = LineLab::open() else { return };
    let (left, right) = (place(&lab.line.left), &lab.line.right);
    let turn = |state| run("ip", &["-n", &right.name, "link", "set", "right", state]);
    let load = ["xdp", "load", &left, "redirect", "--replace", "--mode"];
    turn("down");
    for (mode, targets, others) in [
        ("native", "right", false),
        ("native", "left,right", false),
        ("skb", "right", false),
        ("skb", "left,right", true),
    ] {
        let said = done(&[&load[..], &[mode, "--to", targets]].concat());
        let expected = format!("{} is down", place(right));
        assert!(said.contains(&expected), "{mode} {targets}: {said}");
        assert_eq!(said.contains("the other targets"), others, "{said}");
        done(&["xdp", "unload", &left]);
    }
    turn("up");
    let said = done(&[&load[..], &["skb", "--to", "right"]].concat());
    assert!(!said.contains("is down"), "{said}");
    done(&["xdp", "unload", &left]);
    nothing_attached(&lab.line.left);
}

/// A load that is killed after it has prepared the other interfaces, while it waits to attach, restores everything.
#[test]
fn load_killed_half_way_restores_everything() {
    // SIGINT is not tested, because background children of a shell ignore it.
    for signal in [Signal::KILL, Signal::TERM] {
        let Some(lab) = unready() else { return };
        let before = features(&lab);
        let from = place(&lab.line.left);
        let site = Site::find(&from, None).expect("the interface");
        let held = site.lock().expect("the lock of its programs");
        let mut load = Command::new(binary::path())
            .args(["xdp", "load", &from, "redirect", "--to", "right"])
            .spawn()
            .expect("trawl");
        wait_until("the other end is made ready", || feature(&lab.line.b, "rx-gro") == Some(true));
        let process = Pid::from_child(&load);
        kill_process(process, signal).expect("it waits");
        load.wait().expect("a child");
        wait_until("all features are restored", || features(&lab) == before);
        drop(held);
        nothing_attached(&lab.line.left);
        // The next command succeeds.
        done(&["xdp", "load", &from, "redirect", "--to", "right"]);
        done(&["xdp", "unload", &from]);
        assert_eq!(features(&lab), before);
    }
}
