//! The container runtime of this host, which `crictl` queries.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use trawl_plan::pod::{Pod, PodSelector};
use trawl_sys::names::Labels;
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};

/// The sockets of container runtimes: crictl knows all but k3s's.
const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];
const ENDPOINT: &str = "CONTAINER_RUNTIME_ENDPOINT";
const CONFIGURATION: &str = "/etc/crictl.yaml";
/// Start of the labels that repeat a pod's name, namespace and number.
const OWN_LABELS: &str = "io.kubernetes.pod.";

/// The answer of `crictl pods`.
#[derive(Debug, Deserialize)]
struct Listing {
    #[serde(default)]
    items: Vec<Sandbox>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    id: String,
    metadata: Metadata,
    state: String,
    /// In nanoseconds since 1970, as text.
    created_at: String,
    #[serde(default)]
    labels: Labels,
}

#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
}

impl Sandbox {
    fn pod(&self) -> Pod {
        let labels = self.labels.iter().filter(|(key, _)| !key.starts_with(OWN_LABELS));
        Pod {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
            addresses: Vec::new(),
        }
    }

    fn is_ready(&self) -> bool {
        self.state == "SANDBOX_READY"
    }

    fn created(&self) -> u64 {
        self.created_at.parse().unwrap_or_default()
    }
}

/// The answer of `crictl inspectp`.
#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    info: Info,
}

/// The part of a sandbox's status whose form depends on the runtime.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Info {
    pub(super) pid: u32,
    runtime_spec: RuntimeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeSpec {
    linux: LinuxSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LinuxSpec {
    namespaces: Vec<NamespaceSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NamespaceSpec {
    r#type: String,
    path: String,
}

impl Info {
    pub(super) fn namespace(&self, pod: &Pod) -> Result<Namespace> {
        let namespaces = &self.runtime_spec.linux.namespaces;
        let network = namespaces.iter().find(|one| one.r#type == "network");
        let path = network.map_or("", |one| one.path.as_str());
        // In a container that shares the host's processes the path may not exist.
        match (path.is_empty() || !Path::new(path).exists(), self.pid) {
            (false, _) => Namespace::from_path(Path::new(path)),
            (true, 0) => {
                let why = "the runtime reports neither its network namespace nor a process in it";
                Err(Error::failed(cannot_capture(pod), why))
            }
            (true, pid) => Namespace::of_pid(pid),
        }
    }
}

pub(super) fn cannot_capture(pod: impl std::fmt::Display) -> String {
    format!("cannot capture at the pod {pod}")
}

/// Returns true if the socket of a runtime exists, or one is configured.
pub(super) fn is_there() -> bool {
    is_configured() || SOCKETS.iter().any(|socket| Path::new(socket).exists())
}

fn is_configured() -> bool {
    std::env::var_os(ENDPOINT).is_some() || Path::new(CONFIGURATION).exists()
}

/// Returns the running pods.
pub(super) fn ready(sandboxes: &[Sandbox]) -> impl Iterator<Item = Pod> {
    sandboxes.iter().filter(|sandbox| sandbox.is_ready()).map(Sandbox::pod)
}

/// The container runtime, and its answers about sandboxes, which do not change.
#[derive(Debug)]
pub(super) struct Runtime {
    socket: Option<PathBuf>,
    known: HashMap<String, Info>,
}

impl Runtime {
    pub(super) fn new(socket: Option<PathBuf>) -> Self {
        Self { socket, known: HashMap::new() }
    }

    /// Returns all sandboxes, including sandboxes of ended pods.
    pub(super) fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        Ok(self.crictl::<Listing>("pods", None)?.items)
    }

    pub(super) fn inspect(&mut self, sandbox: &Sandbox) -> Result<Info> {
        if let Some(info) = self.known.get(&sandbox.id) {
            return Ok(info.clone());
        }
        let Status { info } = self.crictl("inspectp", Some(&sandbox.id))?;
        self.known.insert(sandbox.id.clone(), info.clone());
        Ok(info)
    }

    /// Forgets the sandboxes that are gone.
    pub(super) fn keep_only(&mut self, sandboxes: &[Sandbox]) {
        self.known.retain(|id, _| sandboxes.iter().any(|one| one.id == *id));
    }

    /// Runs crictl and parses its answer.
    fn crictl<T: DeserializeOwned>(&self, command: &str, about: Option<&str>) -> Result<T> {
        let what = "cannot query the container runtime";
        let mut crictl = Command::new("crictl");
        crictl.args(["--timeout", "10s"]).stdin(Stdio::null());
        let present = SOCKETS.iter().map(PathBuf::from).find(|path| path.exists());
        let usual = present.filter(|_| !is_configured());
        if let Some(socket) = self.socket.clone().or(usual) {
            crictl.args(["--runtime-endpoint", &format!("unix://{}", socket.display())]);
        }
        // crictl treats options after an argument as arguments.
        crictl.args([command, "-o", "json"]).args(about);
        let output = crictl.output();
        let output = output.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::failed(what, "crictl is not installed")
                .fix("install cri-tools: https://github.com/kubernetes-sigs/cri-tools/releases"),
            _ => Error::os("cannot run crictl", error),
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let why = said.trim().lines().last().unwrap_or("crictl failed");
            return Err(Error::failed(what, why).fix("name its socket: --cri-socket PATH"));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Error::failed(what, format!("unexpected answer of crictl: {error}")))
    }
}

/// Returns the running pods of a choice with their sandboxes, the newest of each pod: a restarted pod leaves older
/// ones. A name that no pod has is an error.
pub(super) fn choose<'a>(
    selector: &PodSelector,
    text: &str,
    sandboxes: &'a [Sandbox],
) -> Result<Vec<(Pod, &'a Sandbox)>> {
    let all = sandboxes.iter().map(|sandbox| (sandbox.pod(), sandbox));
    let all: Vec<_> = all.filter(|(pod, _)| selector.selects(pod)).collect();
    let mut chosen: Vec<(Pod, &Sandbox)> = Vec::new();
    for (pod, sandbox) in all.iter().filter(|(_, sandbox)| sandbox.is_ready()) {
        match chosen.iter_mut().find(|(known, _)| known.to_string() == pod.to_string()) {
            Some((_, older)) if older.created() >= sandbox.created() => {}
            Some(known) => *known = (pod.clone(), sandbox),
            None => chosen.push((pod.clone(), sandbox)),
        }
    }
    if !chosen.is_empty() || !selector.is_name() {
        return Ok(chosen);
    }
    let why = if all.is_empty() { "the container runtime of this host has no such pod" } else { "it is not running" };
    let (namespace, name) = text.split_once('/').unwrap_or_default();
    Err(Error::failed(cannot_capture(text), why)
        .fix(format!("kubectl get pod -n {namespace} {name} -o wide shows its node")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_running_sandbox_is_chosen() {
        let all: Vec<Sandbox> = serde_json::from_str(
            r#"[{"id": "a", "metadata": {"name": "web", "uid": "u", "namespace": "default"}, "state": "SANDBOX_READY", "createdAt": "1"},
                {"id": "b", "metadata": {"name": "web", "namespace": "default"}, "state": "SANDBOX_READY", "createdAt": "2",
                 "labels": {"app": "web", "io.kubernetes.pod.name": "web"}},
                {"id": "c", "metadata": {"name": "web", "namespace": "default"}, "state": "SANDBOX_NOTREADY", "createdAt": "3"},
                {"id": "d", "metadata": {"name": "db", "namespace": "default"}, "state": "SANDBOX_READY", "createdAt": "1"}]"#,
        )
        .expect("the form of crictl");
        let chosen = |text: &str, all: &[Sandbox]| {
            let selector = PodSelector::parse(text).expect("a choice");
            choose(&selector, text, all).map(|chosen| {
                let ids = chosen.iter().map(|(_, sandbox)| sandbox.id.clone());
                ids.collect::<Vec<_>>()
            })
        };
        let refused = |all: &[Sandbox]| {
            let error = chosen("default/web", all).expect_err("none runs");
            error.to_string()
        };
        assert_eq!(chosen("default/web", &all).expect("one runs"), ["b"]);
        assert_eq!(chosen("default/*", &all).expect("two run"), ["b", "d"]);
        assert_eq!(chosen("app=web", &all).expect("one runs"), ["b"]);
        assert_eq!(chosen("app=db", &all).expect("none is needed"), [""; 0]);
        assert_eq!(all[1].pod().labels.len(), 1);
        assert!(refused(&all[2..]).contains("is not running"));
        assert!(refused(&[]).contains("no such pod"));
    }
}
