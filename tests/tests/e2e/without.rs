//! Machines with missing features: no BPF file system, no right to mount one, a kernel older than a feature.

use std::process::{Command, Output};

use serde_json::Value;
use trawl_tests::pcapng::Contents;
use trawl_tests::witness::{nothing_attached, run, wait_unloaded, xdp_on};
use trawl_tests::{Capture, Lab, binary, frames, root_or_skip, tools_or_skip, trawl};

/// Runs a script without any visible BPF file system: with its own mounts and process numbers, in a station's network
/// namespace. `$TRAWL` is the binary.
fn without_bpffs(lab: &Lab, script: &str) -> Output {
    let network = format!("--net=/run/netns/{}", lab.pair.b.name);
    let own = "unshare --mount --pid --fork --mount-proc --propagation private sh -c";
    let script = format!("while mountpoint -q /sys/fs/bpf; do umount /sys/fs/bpf || exit 99; done\n{script}");
    Command::new("nsenter")
        .arg(network)
        .args(own.split(' '))
        .arg(script)
        .env("TRAWL", binary::path())
        .output()
        .expect("nsenter runs")
}

fn said(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&both).into_owned();
    assert!(!text.contains("panicked"), "{text}");
    assert_ne!(output.status.code(), Some(99), "{text}");
    text
}

const FIX: &str = "mount -t bpf -o mode=0700 bpf /sys/fs/bpf";

#[test]
fn doctor_reports_a_missing_bpf_file_system() {
    let Some(lab) = Lab::open() else { return };
    let text = said(&without_bpffs(&lab, "$TRAWL doctor"));
    assert!(text.contains("no BPF file system is mounted"), "{text}");
    assert!(text.contains(FIX), "{text}");
    let output = without_bpffs(&lab, "$TRAWL doctor --json");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let of_bpffs = |one: &&Value| one["area"] == "bpffs";
    let one = findings.iter().find(of_bpffs).unwrap_or_else(|| panic!("nothing of bpffs: {report:#}"));
    let fix = one["fix"].as_str().expect("a command");
    assert!(fix.starts_with(FIX), "{one}");
}

#[test]
fn hook_map_cannot_be_found_without_a_bpf_file_system() {
    let Some(lab) = Lab::open() else { return };
    let output = without_bpffs(&lab, "$TRAWL capture -i veth0 --hook /sys/fs/bpf/hook -c 1");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(FIX), "{text}");
}

#[test]
fn capture_needs_no_bpf_file_system() {
    let Some(lab) = Lab::open() else { return };
    let file = lab.file("file.pcapng");
    let script = format!(
        "$TRAWL capture -i veth0 --tap xdp -w {file} & trawl=$!\n\
         until ip -d link show dev veth0 | grep -q prog/xdp; do sleep 0.05; done\n\
         kill -INT $trawl; wait $trawl || exit 1; ! mountpoint -q /sys/fs/bpf"
    );
    let output = without_bpffs(&lab, &script);
    assert!(output.status.success(), "{}", said(&output));
    assert!(Contents::read(&file).frames().is_empty());
    nothing_attached(&lab.pair.b);
}

#[test]
fn loading_a_program_mounts_a_bpf_file_system() {
    let Some(lab) = Lab::open() else { return };
    // The mount ends with its last process, which also unloads the program.
    let script = "$TRAWL xdp load veth0 drop || exit 1\n\
                  mountpoint /sys/fs/bpf || exit 2\n\
                  ip -j -d link show dev veth0 | jq .[0].xdp.prog.id || exit 3\n\
                  $TRAWL xdp status || exit 4\n\
                  $TRAWL xdp unload veth0 || exit 5\n\
                  ls /sys/fs/bpf";
    let output = without_bpffs(&lab, script);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("is a mountpoint"), "{text}");
    assert_eq!(xdp_on(&lab.pair.b), None, "{text}");
    let program = text.lines().find_map(|line| line.trim().parse().ok());
    wait_unloaded(program.unwrap_or_else(|| panic!("no program: {text}")));
}

#[test]
fn missing_right_to_mount_is_reported_with_the_command() {
    let Some(lab) = Lab::open() else { return };
    if !tools_or_skip(&["setpriv"]) {
        return;
    }
    let limited = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin";
    for command in ["xdp load veth0 drop", "guard load veth0"] {
        let output = without_bpffs(&lab, &format!("{limited} $TRAWL {command}"));
        let text = said(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {text}");
        assert!(text.contains(FIX), "{command}: {text}");
        nothing_attached(&lab.pair.b);
    }
}

/// Returns the version of the running kernel: 6, 1 for 6.1.0-56-amd64.
fn kernel() -> (u32, u32) {
    let release = run("uname", &["-r"]);
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let mut next = || numbers.next().expect("a number");
    (next(), next())
}

#[test]
fn kernel_without_tcx_is_reported_and_supported() {
    if !root_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let is_there = kernel() >= (6, 6);
    let output = trawl(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("findings");
    let about = |one: &&Value| one.to_string().contains("tcx links");
    let finding = findings.iter().find(about).expect("a finding about tcx");
    assert_eq!(finding["state"] == "ok", is_there, "{finding}");
    let file = lab.file("file.pcapng");
    let capture = Capture::start(&lab, &["-i", &lab.receiver(), "--tap", "tc", "-w", &file]);
    assert_eq!(!capture.said().contains("clsact"), is_there, "{}", capture.said());
    lab.send(&[frames::silent(64)], 5);
    capture.wait_seen(5);
    capture.stop_well().assert_all_recorded(5);
    assert_eq!(Contents::read(&file).frames().len(), 5);
    nothing_attached(&lab.pair.b);
}
