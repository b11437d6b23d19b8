//! `--pod`: a pod's veth is found by way of a container runtime's socket. The runtime is a gRPC
//! server of the test's own, pods are network namespaces. No cluster takes part.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use trawl_lab::sender::Engine;
use trawl_tests::lab::send_from;
use trawl_tests::s3::python_packages;
use trawl_tests::witness::{run, tshark};
use trawl_tests::{Capture, Lab, frames, skip, trawl};

/// CRI's messages, as api.proto of runtime.v1 declares them, and answers taken from a file.
const RUNTIME: &str = r#"
import json, sys
try:
    import grpc
    from concurrent import futures
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    sys.exit(77)
F = descriptor_pb2.FieldDescriptorProto
file = descriptor_pb2.FileDescriptorProto(name='cri.proto', package='runtime.v1', syntax='proto3')
def message(name, *fields):
    m = file.message_type.add(name=name)
    for number, field, kind in fields:
        f = m.field.add(name=field, number=number, label=F.LABEL_OPTIONAL)
        if kind.startswith('*'):
            f.label, kind = F.LABEL_REPEATED, kind[1:]
        if kind in ('STRING', 'INT64', 'INT32', 'UINT32', 'BOOL'):
            f.type = getattr(F, 'TYPE_' + kind)
        else:
            f.type, f.type_name = F.TYPE_MESSAGE, '.runtime.v1.' + kind
message('Metadata', (1, 'name', 'STRING'), (2, 'uid', 'STRING'), (3, 'namespace', 'STRING'), (4, 'attempt', 'UINT32'))
message('Sandbox', (1, 'id', 'STRING'), (2, 'metadata', 'Metadata'), (3, 'state', 'INT32'), (4, 'created_at', 'INT64'), (7, 'runtime_handler', 'STRING'))
message('ListRequest', (1, 'filter', 'Metadata'))
message('ListResponse', (1, 'items', '*Sandbox'))
message('StatusRequest', (1, 'pod_sandbox_id', 'STRING'), (2, 'verbose', 'BOOL'))
message('Entry', (1, 'key', 'STRING'), (2, 'value', 'STRING'))
message('StatusResponse', (1, 'status', 'Sandbox'), (2, 'info', '*Entry'))
pool = descriptor_pool.DescriptorPool(); pool.Add(file)
T = {n: message_factory.GetMessageClass(pool.FindMessageTypeByName('runtime.v1.' + n)) for n in ('ListRequest', 'ListResponse', 'StatusRequest', 'StatusResponse')}
def pods():
    return json.load(open(sys.argv[2]))
def sandbox(p):
    return dict(id=p['id'], metadata=dict(name=p['name'], namespace=p['namespace'], uid='u' * 36), state=p.get('state', 0), created_at=p.get('created', 1), runtime_handler='runc')
def listing(request, context):
    return T['ListResponse'](items=[sandbox(p) for p in pods()])
def status(request, context):
    found = [p for p in pods() if p['id'] == request.pod_sandbox_id]
    if not found:
        context.abort(grpc.StatusCode.NOT_FOUND, 'no such sandbox')
    info = [dict(key='info', value=json.dumps(found[0]['info']))] if request.verbose else []
    return T['StatusResponse'](status=sandbox(found[0]), info=[dict(key='other', value='{}')] + info)
def method(call, name):
    return grpc.unary_unary_rpc_method_handler(call, T[name + 'Request'].FromString, T[name + 'Response'].SerializeToString)
server = grpc.server(futures.ThreadPoolExecutor(2))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('runtime.v1.RuntimeService', {
    'ListPodSandbox': method(listing, 'List'), 'PodSandboxStatus': method(status, 'Status')}),))
server.add_insecure_port('unix://' + sys.argv[1])
server.start()
print('ready', flush=True)
sys.stdin.read()
"#;

/// Tells the runtime which pods there are, at once.
fn tell(list: &str, pods: &serde_json::Value) {
    let fresh = format!("{list}.new");
    std::fs::write(&fresh, pods.to_string()).expect("the directory is the lab's");
    std::fs::rename(&fresh, list).expect("it is there");
}

struct Runtime {
    child: Child,
    socket: String,
}

impl Runtime {
    fn start(lab: &Lab, pods: &serde_json::Value) -> Option<Self> {
        let (socket, list) = (lab.file("cri.sock"), lab.file("pods.json"));
        tell(&list, pods);
        let mut child = Command::new("python3")
            .args(["-c", RUNTIME, &socket, &list])
            .env("PYTHONPATH", python_packages())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
        said.read_line(&mut line).expect("it is text");
        if line.trim() == "ready" {
            return Some(Self { child, socket });
        }
        assert_eq!(child.wait().expect("it ends").code(), Some(77));
        skip("Python's grpcio is not installed: pip install grpcio protobuf");
        None
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lab's b is the pod, and a the host: trawl runs in a.
#[test]
fn a_pod_is_captured_at_the_hosts_end_of_its_veth() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let path = format!("/run/netns/{}", pod.name);
    let spec = |path: &str| json!({"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": path}]}});
    let pods = json!([
        {"id": "0ld", "name": "web-0", "namespace": "default", "state": 1, "created": 9, "info": {"pid": 0}},
        {"id": "a1", "name": "web-0", "namespace": "default", "created": 5, "info": {"pid": 0, "runtimeSpec": spec(&path)}},
        {"id": "b2", "name": "web-0", "namespace": "other", "info": {"pid": 0}},
        {"id": "c3", "name": "node", "namespace": "default", "info": {"pid": 1, "runtimeSpec": spec(&format!("/run/netns/{}", host.name))}},
        {"id": "d4", "name": "gone", "namespace": "default", "state": 1, "info": {}},
    ]);
    let Some(runtime) = Runtime::start(&lab, &pods) else {
        return;
    };
    let file = lab.file("pod.pcapng");
    let arguments = ["--cri-socket", &runtime.socket, "--pod", "default/web-0"];
    let at = ["--tap", "packet", "-w", &file, "udp"];
    let capture = Capture::start_inside(host, &lab, &[&arguments[..], &at].concat());
    send_from(pod, &[frames::ipv4_udp(0)], 7, Engine::Live, None, None);
    capture.wait_recorded(7);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name"]);
    assert_eq!(rows, vec![vec![host.interface.clone()]; 7]);
    for (name, why) in [
        ("default/node", "it uses the host's network"),
        ("default/gone", "it does not run"),
        ("default/web-1", "no such pod"),
        ("other/web-0", "neither its network namespace nor a process"),
    ] {
        let refused = Command::new("ip")
            .args(["netns", "exec", &host.name])
            .arg(trawl_tests::binary::path())
            .args(["capture", "--cri-socket", &runtime.socket, "--pod", name])
            .output()
            .expect("ip runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains(why), "{name}: {said}");
    }
    let socket = ["--cri-socket", "/nonexistent.sock", "--pod", "a/b"];
    let refused = trawl(&[&["capture"], &socket[..]].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let wrong = trawl(&["capture", "--pod", "web-0"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}

/// A pod that is started again has another sandbox and another veth.
#[test]
fn a_restarted_pod_joins_again() {
    let Some(lab) = Lab::open() else { return };
    let (host, pod) = (&lab.pair.a, &lab.pair.b);
    let spec = json!({"linux": {"namespaces": [{"type": "network", "path": format!("/run/netns/{}", pod.name)}]}});
    let info = json!({"pid": 0, "runtimeSpec": spec});
    let first = json!({"id": "a1", "name": "web-0", "namespace": "default", "created": 1, "info": info.clone()});
    let Some(runtime) = Runtime::start(&lab, &json!([first])) else {
        return;
    };
    let file = lab.file("restarted.pcapng");
    let arguments = ["--cri-socket", &runtime.socket, "--pod", "default/web-0"];
    let capture = Capture::start_inside(
        host,
        &lab,
        &[&arguments[..], &["-w", &file, "udp"]].concat(),
    );
    send_from(pod, &[frames::ipv4_udp(0)], 7, Engine::Live, None, None);
    capture.wait_recorded(7);
    let old = host.interface.as_str();
    run("ip", &["-n", &host.name, "link", "del", "dev", old]);
    capture.wait_said(&format!("the interface {old} was removed"));
    let peer = [
        "type",
        "veth",
        "peer",
        "name",
        &pod.interface,
        "netns",
        &pod.name,
    ];
    run(
        "ip",
        &[&["-n", &host.name, "link", "add", "cali7"], &peer[..]].concat(),
    );
    run(
        "ip",
        &["-n", &host.name, "link", "set", "dev", "cali7", "up"],
    );
    run(
        "ip",
        &["-n", &pod.name, "link", "set", "dev", &pod.interface, "up"],
    );
    let second =
        json!({"id": "a2", "name": "web-0", "namespace": "default", "created": 2, "info": info});
    tell(&lab.file("pods.json"), &json!([second]));
    capture.wait_said("capturing on cali7 at ");
    let sent = trawl(&[
        "gen",
        "udp",
        "-i",
        &format!("{}:{}", pod.name, pod.interface),
        "--count",
        "5",
        "--dst",
        "192.0.2.1",
        "--src",
        "192.0.2.2",
        "--dst-mac",
        "02:00:00:00:00:01",
    ]);
    assert!(sent.status.success(), "{sent:?}");
    capture.wait_recorded(12);
    capture.stop_well();
    let rows = tshark(&file, &["frame.interface_name"]);
    let of = |name: &str| rows.iter().filter(|row| row[0] == name).count();
    assert_eq!((of(old), of("cali7")), (7, 5), "{rows:?}");
}
