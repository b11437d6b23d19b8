//! Checks packaging/kubernetes/trawl.yaml against the schemas of Kubernetes, and against trawl itself.

use std::fs;
use std::process::Command;

use serde_json::Value;
use trawl_tests::lab::Directory;
use trawl_tests::{Running, args, fleet_or_skip, s3, skip};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/trawl.yaml");

/// Validates each document strictly, so that unknown fields are errors.
const VALIDATE: &str = "
import sys
try:
    import kubernetes_validate, yaml
except ImportError:
    sys.exit(77)
kinds = []
for document in yaml.safe_load_all(open(sys.argv[1])):
    for version in sys.argv[2:]:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f'{document[\"kind\"]}: {error.message}')
    kinds.append(document['kind'])
print(*kinds)
";

/// Returns the kinds of a valid manifest, or the complaint about an invalid one. Returns `None` without the validator.
fn validated(file: &str) -> Option<Result<String, String>> {
    let output = Command::new("python3")
        .args(["-c", VALIDATE, file, "1.30", "1.37"])
        .env("PYTHONPATH", s3::python_packages())
        .output()
        .ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.code() {
        Some(0) => Some(Ok(text(&output.stdout))),
        Some(77) => {
            skip("Python's kubernetes-validate is not installed: pip install kubernetes-validate");
            None
        }
        _ => Some(Err(text(&output.stderr))),
    }
}

#[test]
fn manifest_is_valid() {
    let Some(valid) = validated(MANIFEST) else {
        return;
    };
    let kinds = "Namespace ServiceAccount PriorityClass ConfigMap ConfigMap Service StatefulSet NetworkPolicy DaemonSet \
        Deployment NetworkPolicy Role Role ClusterRole";
    assert_eq!(valid.as_deref(), Ok(kinds));
    let directory = Directory::new();
    let file = directory.path().join("wrong.yaml").display().to_string();
    let text = fs::read_to_string(MANIFEST).expect("the manifest");
    for (right, wrong, why) in [
        ("hostPID: true", "hostPid: true", "hostPid"),
        ("periodSeconds: 10", "periodSeconds: often", "often"),
        ("      containers:\n        - name: trawl", "      boxes:\n        - name: trawl", "DaemonSet"),
        ("verbs: [get]", "verbs: get", "get"),
    ] {
        assert!(text.contains(right), "{right}");
        fs::write(&file, text.replace(right, wrong)).expect("a file");
        let complaint = validated(&file).expect("it is installed");
        let complaint = complaint.expect_err(wrong);
        assert!(complaint.contains(why), "{complaint}");
    }
}

/// Bytes that the agent needs without captures, and bytes that each capture needs in addition to its memory for packets
/// (docs/internals/agents.md).
const OF_AGENT: u64 = 64 << 20;
const OF_CAPTURE: u64 = 128 << 20;

/// The argument with which the agents follow the ConfigMap instead of the NATS server.
const FOLLOWED: &str = "--state=/etc/trawl/desired.toml";

/// The agent accepts the manifest's files and arguments; its probes and its memory limit fit these.
#[test]
fn manifest_fits_the_agent() {
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let output = Command::new("python3")
        .args(["-c", script, MANIFEST])
        .env("PYTHONPATH", s3::python_packages())
        .output()
        .expect("python3");
    if !output.status.success() {
        skip("Python's yaml is not installed: pip install kubernetes-validate");
        return;
    }
    if !fleet_or_skip() {
        return;
    }
    let documents: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of_kind = |kind: &str| {
        let mut documents = documents.as_array().expect("a list").iter();
        documents.find(|one| one["kind"] == kind).expect(kind).clone()
    };
    let directory = Directory::new();
    let file = |name: &str| directory.path().join(name).display().to_string();
    for (name, text) in of_kind("ConfigMap")["data"].as_object().expect("files") {
        fs::write(file(name), text.as_str().expect("a text")).expect("a file");
    }
    let container = &of_kind("DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().expect("a list").iter();
    let arguments: Vec<String> = arguments
        .map(|one| one.as_str().expect("a text").replace("--nats=$(NATS)", FOLLOWED))
        .map(|one| one.replace("/etc/trawl", &file("")).replace("$(NODE)", "node-a"))
        .collect();
    for probe in ["livenessProbe", "readinessProbe"] {
        let get = &container[probe]["httpGet"];
        let address = format!("--health={}:{}", get["host"].as_str().expect("a text"), get["port"]);
        assert!(arguments.contains(&address), "{address}");
    }
    let (memory, spool) = (file("memory"), file("spool"));
    let own = args!("--memory {memory} --spool {spool}");
    let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Running::start(&[&given[..], &own].concat(), "following").stop();
    let policy = fs::read_to_string(file("policy.toml")).expect("a file");
    let number = |key: &str| {
        let mut lines = policy.lines();
        let value = lines.find_map(|line| line.strip_prefix(&format!("{key} = "))).expect(key);
        value.parse::<u64>().expect("a number")
    };
    // `kubectl trawl` runs one more capture.
    let captures = number("max_captures") + 1;
    let needed = OF_AGENT + captures * (number("max_memory_bytes") + OF_CAPTURE);
    let limit = container["resources"]["limits"]["memory"].as_str().expect("a text");
    let limit = limit.strip_suffix("Mi").expect("MiB").parse::<u64>().expect("a number") << 20;
    assert!((needed..needed + needed / 4).contains(&limit), "{needed} {limit}");
}
