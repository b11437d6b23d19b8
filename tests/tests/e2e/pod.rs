//! `--pod`: asks a container runtime for a pod's veth. `crictl` is a script of the test, and pods are network
//! namespaces; no cluster is needed.

mod chosen;
mod manifest;
mod plugin;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::json;
use trawl_lab::sender::Engine;
use trawl_tests::lab::{Mounted, send_from};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, args, frames, trawl};

/// A minimal crictl, whose socket is a file with the pods.
const CRICTL: &str = r#"#!/usr/bin/env python3
import json, os, sys
arguments = sys.argv[1:]
assert arguments[:2] == ['--timeout', '10s'], arguments
command = arguments[2:]
endpoint = os.environ.get('CONTAINER_RUNTIME_ENDPOINT')
if command[0] == '--runtime-endpoint':
    endpoint, command = command[1], command[2:]
# What follows the first argument is no option for crictl.
assert command[1:3] == ['-o', 'json'], arguments
del command[1:3]
try:
    pods = json.load(open(endpoint.removeprefix('unix://')))
except OSError as error:
    sys.exit(f'time="2026-01-31" level=fatal msg="validate service connection: {error}"')
def sandbox(p):
    return dict(id=p['id'], metadata=dict(name=p['name'], namespace=p['namespace'], uid='u' * 36, attempt=0),
                state=['SANDBOX_READY', 'SANDBOX_NOTREADY'][p.get('state', 0)], createdAt=str(p.get('created', 1)), labels=p.get('labels', {}))
if command == ['pods']:
    print(json.dumps(dict(items=[sandbox(p) for p in pods])))
else:
    name, id = command
    assert name == 'inspectp', command
    [found] = [p for p in pods if p['id'] == id]
    print(json.dumps(dict(status=sandbox(found), info=found['info'])))
"#;

/// Updates the runtime's list of pods atomically.
fn write_pods(list: &str, pods: &serde_json::Value) {
    let fresh = format!("{list}.new");
    std::fs::write(&fresh, pods.to_string()).expect("the directory is the lab's");
    std::fs::rename(&fresh, list).expect("it is there");
}

/// A crictl in a directory of its own, and the file that it reads.
struct Runtime {
    socket: String,
    path: String,
}

impl Runtime {
    fn start(lab: &Lab, pods: &serde_json::Value) -> Self {
        let (socket, folder) = (lab.file("pods.json"), lab.file("bin"));
        write_pods(&socket, pods);
        std::fs::create_dir_all(&folder).expect("the directory is the lab's");
        let program = format!("{folder}/crictl");
        std::fs::write(&program, CRICTL).expect("the directory is the lab's");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("it is there");
        let others = std::env::var("PATH").expect("a path");
        Self { socket, path: format!("{folder}:{others}") }
    }
}

/// Returns the names of IPv4 addresses in a file, as tshark understands them.
fn named(file: &str) -> Vec<String> {
    let text = run("tshark", &args!("-r {file} -q -z hosts,ipv4"));
    let lines = text.lines().filter(|line| line.contains('\t'));
    lines.map(str::to_owned).collect()
}

/// Returns the comments of the interfaces with packets.
fn comments(file: &str) -> Vec<String> {
    let stat = trawl(&args!("stat {file} --json"));
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    let interfaces = stat["files"][0]["interfaces"].as_array().expect("a list");
    let used = interfaces.iter().filter(|one| one["packets"] != 0);
    let all = used.flat_map(|one| one["comments"].as_array().expect("a list").clone());
    all.map(|comment| comment.as_str().expect("a text").to_owned()).collect()
}

/// The lab's b is the pod, and a the host, where trawl runs.
#[test]
fn pod_is_captured_at_the_host_end_of_its_veth() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let path = format!("/run/netns/{}", pod.name);
    let spec = |path: &str| json!({"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": path}]}});
    let pods = json!([
        {"id": "0ld", "name": "web-0", "namespace": "default", "state": 1, "created": 9, "info": {"pid": 0}},
        {"id": "a1", "name": "web-0", "namespace": "default", "created": 5, "info": {"pid": 0, "runtimeSpec": spec(&path)},
         "labels": {"app": "web", "tier": "front", "io.kubernetes.pod.name": "web-0"}},
        {"id": "b2", "name": "web-0", "namespace": "other", "info": {"pid": 0}},
        {"id": "c3", "name": "node", "namespace": "default", "info": {"pid": 1, "runtimeSpec": spec(&format!("/run/netns/{}", host.name))}},
        {"id": "d4", "name": "gone", "namespace": "default", "state": 1, "info": {}},
    ]);
    let runtime = Runtime::start(&lab, &pods);
    let file = lab.file("pod.pcapng");
    let arguments = ["--cri-socket", &runtime.socket, "--pod", "default/web-0"];
    let at = ["--tap", "packet", "-w", &file, "udp"];
    let path = [("PATH", runtime.path.as_str())];
    let capture = Capture::start_inside_with(&path, host, &lab, &[&arguments[..], &at].concat());
    send_from(pod, &[frames::ipv4_udp(0)], 7, Engine::Live, None, None);
    capture.wait_recorded(7);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name"]);
    assert_eq!(rows, vec![vec![host.interface.clone()]; 7]);
    assert_eq!(named(&file), [format!("{}\tdefault/web-0", pod.ipv4)]);
    assert_eq!(comments(&file), ["pod=default/web-0 labels=app=web,tier=front"]);
    for (name, why) in [
        ("default/node", "it uses the host's network"),
        ("default/gone", "it is not running"),
        ("default/web-1", "no such pod"),
        ("other/web-0", "neither its network namespace nor a process"),
    ] {
        let refused = Command::new("ip")
            .args(["netns", "exec", &host.name])
            .arg(trawl_tests::binary::path())
            .args(["capture", "--cri-socket", &runtime.socket, "--pod", name])
            .env("PATH", &runtime.path)
            .output()
            .expect("ip runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{name}: {said}");
    }
    for (path, why) in
        [(runtime.path.as_str(), "validate service connection"), (&lab.file("nothing"), "crictl is not installed")]
    {
        let refused = Command::new(trawl_tests::binary::path())
            .args(args!("capture --cri-socket /nonexistent.sock --pod a/b"))
            .env("PATH", path)
            .output()
            .expect("trawl runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let wrong = trawl(&["capture", "--pod", "web-0"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

/// A restarted pod has another sandbox and another veth.
#[test]
fn restarted_pod_joins_again() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let spec = json!({"linux": {"namespaces": [{"type": "network", "path": format!("/run/netns/{}", pod.name)}]}});
    let info = json!({"pid": 0, "runtimeSpec": spec});
    let first = json!({"id": "a1", "name": "web-0", "namespace": "default", "created": 1, "info": info.clone()});
    let runtime = Runtime::start(&lab, &json!([first]));
    let file = lab.file("restarted.pcapng");
    let arguments = ["--cri-socket", &runtime.socket, "--pod", "default/web-0"];
    let capture = Capture::start_inside_with(
        &[("PATH", &runtime.path)],
        host,
        &lab,
        &[&arguments[..], &["-w", &file, "udp"]].concat(),
    );
    send_from(pod, &[frames::ipv4_udp(0)], 7, Engine::Live, None, None);
    capture.wait_recorded(7);
    let old = host.interface.as_str();
    run("ip", &["-n", &host.name, "link", "del", "dev", old]);
    capture.wait_said(&format!("the interface {old} was removed"));
    let peer = ["type", "veth", "peer", "name", &pod.interface, "netns", &pod.name];
    run("ip", &[&["-n", &host.name, "link", "add", "cali7"], &peer[..]].concat());
    run("ip", &["-n", &host.name, "link", "set", "dev", "cali7", "up"]);
    run("ip", &["-n", &pod.name, "link", "set", "dev", &pod.interface, "up"]);
    let second = json!({"id": "a2", "name": "web-0", "namespace": "default", "created": 2, "info": info});
    write_pods(&lab.file("pods.json"), &json!([second]));
    capture.wait_said("capturing on cali7 at ");
    let sent = trawl(&args!(
        "gen udp -i {}:{} --count 5 --dst 192.0.2.1 --src 192.0.2.2 --dst-mac \
         02:00:00:00:00:01",
        pod.name,
        pod.interface
    ));
    assert!(sent.status.success(), "{sent:?}");
    capture.wait_recorded(12);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name"]);
    let of = |name: &str| rows.iter().filter(|row| row[0] == name).count();
    assert_eq!((of(old), of("cali7")), (7, 5), "{rows:?}");
}

/// A pod without a pair of interfaces is captured in its namespace, and one that uses the host's network by its cgroup.
#[test]
fn pods_without_a_pair_are_captured_too() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let uid = "8a6e0804_2bd0_4672_b79d_d97027f9071a";
    let group = format!("{}/kubepods-{}-pod{uid}.slice", cgroups.path, std::process::id());
    std::fs::create_dir(&group).expect("a cgroup");
    let mut sender = Command::new("ip")
        .args(["netns", "exec", &host.name, "bash", "-c"])
        .arg(format!("read; echo mine >/dev/udp/{}/4001", pod.ipv4))
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip");
    std::fs::write(format!("{group}/cgroup.procs"), sender.id().to_string()).expect("a cgroup");
    let info = |name: &str, pid: u32| {
        let path = format!("/run/netns/{name}");
        json!({"pid": pid, "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": path}]}}})
    };
    let pods = json!([
        {"id": "a1", "name": "own", "namespace": "default", "info": info(&pod.name, 0)},
        {"id": "b2", "name": "node", "namespace": "default", "info": info(&host.name, sender.id())},
    ]);
    let runtime = Runtime::start(&lab, &pods);
    let path = [("PATH", runtime.path.as_str())];
    let file = lab.file("node.pcapng");
    let words = args!("--cri-socket {} --pod default/node -c 1 -w {file} udp", runtime.socket);
    let capture = Capture::start_inside_with(&path, host, &lab, &words);
    let other = format!("echo other >/dev/udp/{}/4002", pod.ipv4);
    run("ip", &["netns", "exec", &host.name, "bash", "-c", &other]);
    writeln!(sender.stdin.take().expect("a pipe")).expect("it reads");
    assert!(sender.wait().expect("it ends").success());
    capture.wait().summary_of_success();
    // tshark counts the descriptions of processes as frames.
    let mut rows = tshark(&file, &["udp.dstport"]);
    rows.retain(|row| !row[0].is_empty());
    assert_eq!(rows, [["4001"]]);
    std::fs::remove_dir(&group).expect("an empty cgroup");
    let file = lab.file("own.pcapng");
    let words = args!("capture --cri-socket {} --pod default/own -c 1 -w {file} udp", runtime.socket);
    // The other end of the pair is not in the namespace in which trawl runs.
    let mut capture = Command::new(trawl_tests::binary::path())
        .args(words)
        .env("PATH", &runtime.path)
        .stderr(Stdio::piped())
        .spawn()
        .expect("trawl runs");
    let mut said = BufReader::new(capture.stderr.take().expect("a pipe")).lines();
    let begins = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains(":veth0 at"));
    assert!(said.any(begins), "it captures inside");
    run("ip", &["netns", "exec", &pod.name, "bash", "-c", &format!("echo x >/dev/udp/{}/4003", host.ipv4)]);
    assert!(capture.wait().expect("it ends").success());
    assert_eq!(tshark(&file, &["udp.dstport"]), [["4003"]]);
}
