//! Pods chosen by label, also later ones, in files and in stores; pods with several kinds of interfaces.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trawl_lab::sender::Engine;
use trawl_tests::lab::{Mounted, send_from};
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, Running, args, binary, fleet_or_skip, frames, trawl, wait_until};

use super::{Runtime, comments, named, write_pods};

fn info(namespace: &str) -> Value {
    let path = format!("/run/netns/{namespace}");
    json!({"pid": 0, "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": path}]}}})
}

/// Returns trawl in a network namespace, where it finds the runtime.
fn inside(namespace: &str, runtime: &Runtime) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(binary::path()).env("PATH", &runtime.path);
    command
}

#[test]
fn pods_of_a_label_join_when_they_start() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let pods = |app: &str| {
        json!([
            {"id": "n1", "name": "node", "namespace": "default", "labels": {"app": app}, "info": info(&host.name)},
            {"id": "a1", "name": "web-0", "namespace": "default", "labels": {"app": app}, "info": info(&pod.name)},
        ])
    };
    let runtime = Runtime::start(&lab, &pods("other"));
    let file = lab.file("later.pcapng");
    let mut command = inside(&host.name, &runtime);
    command.args(args!(
        "capture --cri-socket {} --pod default/app=web,tier!=db --tap packet -c 7 -w {file} udp",
        runtime.socket
    ));
    let capture = Running::of(command, "no pod default/app=web,tier!=db runs here yet: waiting");
    write_pods(&runtime.socket, &pods("web"));
    capture.wait_said(&format!("capturing on {} at", host.interface));
    capture.wait_said("the pod default/node uses the host's network: it is captured only without");
    send_from(pod, &[frames::ipv4_udp(0)], 7, Engine::Live, None, None);
    let done = capture.wait();
    assert!(done.status.success(), "{}", done.stderr);
    let expected = "the pod default/node uses the host's network";
    assert_eq!(done.stderr.matches(expected).count(), 1, "{}", done.stderr);
    let rows = tshark(&file, &["frame.interface_name"]);
    assert_eq!(rows, vec![vec![host.interface.clone()]; 7]);
    assert_eq!(named(&file), [format!("{}\tdefault/web-0", pod.ipv4)]);
    assert_eq!(comments(&file), ["pod=default/web-0 labels=app=web"]);
}

/// A second interface without an end on the host is captured inside, with the pod's name.
#[test]
fn macvlan_interface_of_a_pod_is_captured_inside() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    for words in [
        args!("-n {} link add mac0 link {} type macvlan mode bridge", host.name, host.interface),
        args!("-n {} link set mac0 netns {}", host.name, pod.name),
        args!("-n {} link add inner0 type bridge", pod.name),
        args!("-n {} link set inner0 up", pod.name),
        args!("-n {} link set mac0 up", pod.name),
        args!("-n {} address add 192.0.2.7/24 dev mac0", pod.name),
        args!("-n {} neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev mac0", pod.name),
    ] {
        run("ip", &words);
    }
    let pods = json!([{"id": "a1", "name": "two", "namespace": "default", "info": info(&pod.name)}]);
    let runtime = Runtime::start(&lab, &pods);
    let file = lab.file("macvlan.pcapng");
    let words = args!("--cri-socket {} --pod default/two --tap packet -Q out -w {file} udp", runtime.socket);
    let path = [("PATH", runtime.path.as_str())];
    let capture = Capture::start_inside_with(&path, host, &lab, &words);
    assert!(!capture.said().contains("inner0"), "{}", capture.said());
    let say = "for n in 1 2 3 4 5; do echo $n >/dev/udp/192.0.2.1/4001; done";
    run("ip", &["netns", "exec", &pod.name, "bash", "-c", say]);
    // The host's interface below the macvlan also sends the packets.
    capture.wait_recorded(10);
    capture.stop_well();
    let inside = format!("/run/netns/{}:mac0", pod.name);
    let rows = tshark(&file, &["frame.interface_name"]);
    let of = |name: &str| rows.iter().filter(|row| row[0] == name).count();
    assert_eq!((of(&inside), of(&host.interface)), (5, 5), "{rows:?}");
    let mut names = named(&file);
    names.sort();
    let expected = [pod.ipv4.to_string(), "192.0.2.7".to_owned()];
    let mut expected = expected.map(|address| format!("{address}\tdefault/two"));
    expected.sort();
    assert_eq!(names, expected);
}

/// A container sees only its own cgroups, because it runs in a cgroup namespace of its own.
#[test]
fn pod_on_the_host_is_found_from_another_cgroup_namespace() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let cgroups = Mounted::at(&lab, "cgroup2", "rw");
    let made = |name: &str| {
        let group = format!("{}/trawl-test-{}-{name}", cgroups.path, std::process::id());
        fs::create_dir(&group).expect("a cgroup");
        group
    };
    let (own, others) = (made("own"), made("pod8a6e0804_2bd0_4672_b79d_d97027f90000.slice"));
    let mut sender = Command::new("ip")
        .args(["netns", "exec", &host.name, "bash", "-c"])
        .arg(format!("read; echo mine >/dev/udp/{}/4001", pod.ipv4))
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip");
    fs::write(format!("{others}/cgroup.procs"), sender.id().to_string()).expect("a cgroup");
    let mut info = info(&host.name);
    info["pid"] = sender.id().into();
    let pods = json!([{"id": "b2", "name": "node", "namespace": "default", "labels": {"app": "node"}, "info": info}]);
    let runtime = Runtime::start(&lab, &pods);
    let file = lab.file("node.pcapng");
    // The cgroup namespace begins at the cgroup of the process that makes it.
    let script = "echo $$ >\"$0/cgroup.procs\" && exec unshare --cgroup \"$@\"";
    let words = args!("capture --cri-socket {} --pod app=node -c 1 -w {file} udp", runtime.socket);
    let mut command = Command::new("bash");
    command.args(["-c", script, &own]).args(["ip", "netns", "exec", &host.name]);
    command.arg(binary::path()).args(words).env("PATH", &runtime.path);
    let capture = Running::of(command, "capturing on");
    capture.wait_said("the pod default/node uses the host's network: capturing");
    let other = format!("echo other >/dev/udp/{}/4002", pod.ipv4);
    run("ip", &["netns", "exec", &host.name, "bash", "-c", &other]);
    drop(sender.stdin.take());
    assert!(sender.wait().expect("it ends").success());
    let done = capture.wait();
    assert!(done.status.success(), "{}", done.stderr);
    let mut rows = tshark(&file, &["udp.dstport"]);
    rows.retain(|row| !row[0].is_empty());
    assert_eq!(rows, [["4001"]]);
    assert_eq!(comments(&file), ["pod=default/node labels=app=node"]);
    assert_eq!(named(&file), [""; 0], "the host's addresses are not the pod's");
    for group in [own, others] {
        wait_until("its processes have left", || fs::remove_dir(&group).is_ok());
    }
}

/// The agent waits for pods, within the policy; the store has their names and labels.
#[test]
fn agent_stores_the_packets_of_chosen_pods() {
    if !fleet_or_skip() {
        return;
    }
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let runtime = Runtime::start(&lab, &json!([]));
    let (store, report) = (lab.file("store"), lab.file("report"));
    let capture = |name: &str, pods: &str| {
        format!(
            "[[capture]]\nname = \"{name}\"\npods = [\"{pods}\"]\ntaps = [\"packet\"]\nstore = \"file://{store}\"\n\
             filter = \"udp\"\nindex = true\n"
        )
    };
    let state = capture("web", "default/app=web") + &capture("all", "*");
    fs::write(lab.file("agent.toml"), state).expect("a file");
    fs::write(lab.file("policy.toml"), "pods = [\"default/*\"]\n").expect("a file");
    let mut command = inside(&host.name, &runtime);
    command.args(args!(
        "fleet agent --state {} --policy {} --spool {} --memory {} --report {report} --health 127.0.0.1:9417",
        lab.file("agent.toml"),
        lab.file("policy.toml"),
        lab.file("spool"),
        lab.file("memory")
    ));
    let endpoint = format!("unix://{}", runtime.socket);
    command.env("CONTAINER_RUNTIME_ENDPOINT", endpoint);
    let agent = Running::of(command, "following");
    let reported = || -> Value { serde_json::from_slice(&fs::read(&report).unwrap_or_default()).unwrap_or_default() };
    let phase = |at: usize| reported()["captures"][at]["phase"].clone();
    wait_until("the capture waits for a pod", || phase(1) == "running");
    assert_eq!(phase(0), "refused");
    assert_eq!(reported()["captures"][0]["refused"], json!({"kind": "pod", "pod": "*"}));
    // Kubernetes asks by HTTP whether the agent works, and whether all desired captures run.
    let probe = |path: &str| {
        let ask = format!("exec 3<>/dev/tcp/127.0.0.1/9417; printf 'GET {path} HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3");
        run("ip", &["netns", "exec", &host.name, "bash", "-c", &ask])
    };
    assert!(probe("/livez").starts_with("HTTP/1.1 200 OK\r\n"));
    let ready = probe("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 "), "{ready}");
    assert!(ready.ends_with("the capture 'all' is refused: policy: pod *"), "{ready}");
    let web = json!([{"id": "a1", "name": "web-0", "namespace": "default", "labels": {"app": "web", "tier": "front"},
        "info": info(&pod.name)}]);
    fs::write(lab.file("agent.toml"), capture("web", "default/app=web")).expect("a file");
    wait_until("the agent is ready", || probe("/readyz").starts_with("HTTP/1.1 200 OK"));
    write_pods(&runtime.socket, &web);
    wait_until("packets of the pod are counted", || {
        send_from(pod, &[frames::ipv4_udp(0)], 1, Engine::Live, None, None);
        reported()["captures"][0]["account"]["recorded"].as_u64() >= Some(1)
    });
    assert!(agent.stop().status.success());
    let spool = lab.file("spool");
    let asked = |more: &[&str]| {
        let base = args!("store query --store file://{store} --spool {spool}");
        let answer = trawl(&[&base[..], more].concat());
        assert!(answer.status.success(), "{answer:?}");
        answer.stdout
    };
    let rows = asked(&["--json", "SELECT DISTINCT interface, pod, pod_labels FROM packets"]);
    let rows: Value = serde_json::from_slice(&rows).expect("JSON");
    let row = json!([{"interface": host.interface, "pod": "default/web-0", "pod_labels": "app=web,tier=front"}]);
    assert_eq!(rows["rows"], row);
    let file = lab.file("found.pcapng");
    asked(&["--packets", &file, "--filter", "udp"]);
    assert_eq!(named(&file), [format!("{}\tdefault/web-0", pod.ipv4)]);
    assert_eq!(comments(&file), ["pod=default/web-0 labels=app=web,tier=front"]);
}
