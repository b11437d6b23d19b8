//! `kubectl trawl`, with a stand-in for kubectl that runs the commands for a node's pod on this host.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::tmux::Tmux;
use trawl_tests::witness::{capinfos, nothing_attached, tshark};
use trawl_tests::{Lab, binary, frames, wait_until};

use super::Runtime;

const PLUGIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/kubectl-trawl");

/// Answers only the plugin's three requests, because the plugin's role allows no others. The node is a network
/// namespace.
const KUBECTL: &str = r#"#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
assert words[:2] == ['--context', 'lab'], words
words = words[2:]
namespace = 'default'
if words[0] == '-n':
    namespace, words = words[1], words[2:]
pods = {('default', 'web-0'): 'node-a Running', ('default', 'ill'): 'node-a Pending', ('default', 'far'): 'node-b Running'}
if words[:2] == ['get', 'pod']:
    assert words[3:] == ['-o', 'jsonpath={.metadata.namespace} {.spec.nodeName} {.status.phase}'], words
    if (namespace, words[2]) not in pods:
        sys.exit(f'Error from server (NotFound): pods "{words[2]}" not found')
    print(namespace, pods[namespace, words[2]])
elif words[:2] == ['get', 'pods']:
    assert namespace == 'trawl' and words[2:4] == ['-l', 'app.kubernetes.io/name=trawl'], words
    if words[5] == 'spec.nodeName=node-a,status.phase=Running':
        print('pod/trawl-x7z2p')
else:
    assert namespace == 'trawl' and words[:6] == ['exec', '-i', 'trawl-x7z2p', '-c', 'trawl', '--'], words
    os.environ['PATH'] = os.environ['NODE_PATH']
    os.execvp('ip', ['ip', 'netns', 'exec', os.environ['NODE'], *words[6:]])
"#;

fn program(path: &str, text: &str) {
    fs::write(path, text).expect("the directory is the lab's");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).expect("it is there");
}

/// The workstation, with its programs and the node's.
struct Station {
    path: String,
    node: String,
    node_path: String,
    socket: String,
}

impl Station {
    fn new(lab: &Lab) -> Self {
        let (host, pod) = (&lab.pair.a, &lab.pair.b);
        let path = format!("/run/netns/{}", pod.name);
        let pods = json!([{"id": "a1", "name": "web-0", "namespace": "default",
            "info": {"pid": 0, "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": path}]}}}}]);
        let runtime = Runtime::start(lab, &pods);
        let (here, there) = (lab.file("here"), lab.file("there"));
        for folder in [&here, &there] {
            fs::create_dir(folder).expect("the directory is the lab's");
        }
        program(&format!("{here}/kubectl"), KUBECTL);
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", binary::path().display());
        program(&format!("{there}/trawl"), &script);
        Self {
            path: format!("{here}:/usr/bin:/bin:/usr/sbin:/sbin"),
            node: host.name.clone(),
            node_path: format!("{there}:{}", runtime.path),
            socket: runtime.socket,
        }
    }

    fn variables(&self) -> [(&'static str, String); 4] {
        [
            ("PATH", self.path.clone()),
            ("NODE", self.node.clone()),
            ("NODE_PATH", self.node_path.clone()),
            ("CONTAINER_RUNTIME_ENDPOINT", format!("unix://{}", self.socket)),
        ]
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.arg(PLUGIN).args(["--context", "lab"]).args(words).envs(self.variables()).stdin(Stdio::null());
        command
    }

    /// Starts the plugin, and waits until the capture on the node has begun.
    fn start(&self, lab: &Lab, words: &[&str]) -> Child {
        let said = lab.file("said");
        let mut command = self.command(words);
        let child = command
            .stdout(fs::File::create(lab.file("stdout")).expect("a file"))
            .stderr(fs::File::create(&said).expect("a file"))
            .spawn()
            .expect("sh");
        wait_until("the capture runs", || fs::read_to_string(&said).unwrap_or_default().contains("capturing on"));
        child
    }
}

fn send(lab: &Lab, count: u64) {
    send_from(&lab.pair.b, &[frames::ipv4_udp(0)], count, Engine::Live, None, None);
}

#[test]
fn packets_of_a_pod_are_streamed() {
    let Some(lab) = Lab::open() else { return };
    let station = Station::new(&lab);
    let mut plugin = station.start(&lab, &["web-0", "-c", "3", "--tap", "packet", "udp"]);
    send(&lab, 5);
    assert!(plugin.wait().expect("it ends").success());
    let rows = tshark(&lab.file("stdout"), &["frame.interface_name"]);
    assert_eq!(rows, vec![vec![lab.pair.a.interface.clone()]; 3]);
}

/// Ctrl-C ends the capture on the node, whose last packets and statistics still arrive.
#[test]
fn interrupted_capture_leaves_a_whole_file() {
    let Some(lab) = Lab::open() else { return };
    let station = Station::new(&lab);
    let file = lab.file("pod.pcapng");
    let words = ["-n", "default", "-w", &file, "pod/web-0", "--tap", "packet", "udp"];
    let mut plugin = station.start(&lab, &words);
    send(&lab, 5);
    wait_until("packets arrive", || fs::metadata(&file).expect("a file").len() > 800);
    // SIGTERM replaces the interrupt, which a shell cannot trap if its parent ignores it, as for commands in the
    // background.
    kill_process(Pid::from_child(&plugin), Signal::TERM).expect("it runs");
    assert!(plugin.wait().expect("it ends").success());
    assert_eq!(tshark(&file, &["ip.proto"]).len(), 5);
    assert_eq!(capinfos(&file, "Number of stat entries"), "1");
    nothing_attached(&lab.pair.a);
}

/// A killed plugin leaves no capture on the node.
#[test]
fn killed_plugin_ends_the_capture() {
    let Some(lab) = Lab::open() else { return };
    let station = Station::new(&lab);
    let mut plugin = station.start(&lab, &["web-0", "udp"]);
    kill_process(Pid::from_child(&plugin), Signal::KILL).expect("it runs");
    plugin.wait().expect("it ends");
    let said = || fs::read_to_string(lab.file("said")).unwrap_or_default();
    wait_until("the capture has ended", || said().contains("0 recorded"));
    nothing_attached(&lab.pair.a);
}

/// At a terminal, Wireshark gets the packets, and the capture ends with it.
#[test]
fn wireshark_shows_the_packets() {
    let Some(lab) = Lab::open() else { return };
    let station = Station::new(&lab);
    let file = lab.file("seen.pcapng");
    let wireshark = format!(
        "#!/bin/sh\nexec 2>{0}.error; echo \"$*\" >{0}.words\n[ \"$*\" = '-k -i -' ] || exit 1\nexec tshark -i - -c 4 -w {0}\n",
        file
    );
    program(&lab.file("here/wireshark"), &wireshark);
    let variables = station.variables();
    let variables: String = variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
    let command = format!(
        "{variables} sh {PLUGIN} --context lab web-0 --tap packet udp 2>{}; echo status $?; sleep 60",
        lab.file("said")
    );
    let Some(terminal) = Tmux::start("plugin", &command) else {
        return;
    };
    let said = || fs::read_to_string(lab.file("said")).unwrap_or_default();
    wait_until("the capture runs", || said().contains("capturing on"));
    send(&lab, 4);
    terminal.wait_shows("status 0");
    assert_eq!(tshark(&file, &["ip.proto"]).len(), 4);
    nothing_attached(&lab.pair.a);
}

#[test]
fn pods_that_cannot_be_captured_are_refused() {
    let Some(lab) = Lab::open() else { return };
    let station = Station::new(&lab);
    for (words, status, why) in [
        (&["none"][..], 1, "cannot find the pod none"),
        (&["ill"], 1, "is not running; try kubectl get pod -n default ill"),
        (&["far"], 1, "trawl does not run on the node node-b"),
        (&[], 2, "no pod is named"),
        (&["-n"], 2, "-n has no value"),
        (&["--node", "x", "web-0"], 2, "unknown option --node"),
        (&["web-0", "--colour"], 2, "--colour"),
    ] {
        let output = station.command(words).output().expect("sh");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let help = station.command(&["--help"]).output().expect("sh");
    assert!(help.status.success() && help.stdout.starts_with(b"Captures the packets of a pod"));
}
