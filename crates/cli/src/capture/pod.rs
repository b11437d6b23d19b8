//! `--pod NAMESPACE/NAME`: the host's end of a Kubernetes pod's veth, its interfaces inside if it has no such pair, or the
//! packets of its processes if it uses the host's network. `crictl` asks the container runtime (CRI) for the pod.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use trawl_capture::plan::CapturePlan;
use trawl_capture::pod_in;
use trawl_capture::sources::Sources;
use trawl_sys::helper::{Duty, Helper, HelperAnswer};
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::Namespace;
use trawl_sys::privilege::{Capabilities, KeptPrivileges};
use trawl_sys::{Error, Result};

/// The container runtime, and the pods to query it for.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct PodArgs {
    /// Capture at the host's end of this pod's interfaces; may be given several times
    #[arg(long = "pod", value_name = "NAMESPACE/NAME", value_parser = PodName::parse, hide_short_help = true)]
    pub(super) pods: Vec<PodName>,
    /// The container runtime's socket [default: CONTAINER_RUNTIME_ENDPOINT, or the socket of containerd, CRI-O, k3s or
    /// cri-dockerd]
    #[arg(long, value_name = "PATH", requires = "pods", hide_short_help = true)]
    pub(super) cri_socket: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName {
    namespace: String,
    name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PodName {
    fn parse(text: &str) -> std::result::Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err("write NAMESPACE/NAME, as in default/web-0".to_owned()),
        }
    }
}

/// The sockets of container runtimes: crictl knows all but k3s's.
const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];
const ENDPOINT: &str = "CONTAINER_RUNTIME_ENDPOINT";
const CONFIGURATION: &str = "/etc/crictl.yaml";

/// The answer of `crictl pods`.
#[derive(Debug, Deserialize)]
struct Listing {
    #[serde(default)]
    items: Vec<Sandbox>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sandbox {
    id: String,
    metadata: Metadata,
    state: String,
    /// In nanoseconds since 1970, as text.
    created_at: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    name: String,
    namespace: String,
}

/// The answer of `crictl inspectp`.
#[derive(Debug, Deserialize)]
struct Status {
    #[serde(default)]
    info: Info,
}

/// The part of a sandbox's status whose form depends on the runtime.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Info {
    pid: u32,
    runtime_spec: RuntimeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeSpec {
    linux: LinuxSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LinuxSpec {
    namespaces: Vec<NamespaceSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamespaceSpec {
    r#type: String,
    path: String,
}

/// Returns the interfaces of all requested pods. A capture of one pod that uses the host's network becomes one of its
/// processes' packets on all interfaces: no interface is the pod's own.
pub(super) fn find(plan: &mut CapturePlan) -> Result<Vec<String>> {
    let pods = pods(&plan.sources)?;
    let [(pod, info)] = &pods[..] else {
        return interfaces(&pods);
    };
    if !is_own(&namespace_of(pod, info)?)? {
        return interfaces(&pods);
    }
    let Some(group) = group_of(info.pid) else {
        let why = "it uses the host's network, and its processes are in no cgroup (v2) of a pod";
        return Err(Error::failed(trouble(pod), why).fix("name the host's interface with -i"));
    };
    plan.options.process.get_or_insert_default().cgroup = Some(group);
    plan.sources.pods.clear();
    if plan.sources.names.is_empty() {
        plan.sources.names.push("any".to_owned());
    }
    Ok(Vec::new())
}

fn interfaces(pods: &[(PodName, Info)]) -> Result<Vec<String>> {
    let found = pods.iter().map(|(pod, info)| {
        let namespace = namespace_of(pod, info)?;
        if is_own(&namespace)? {
            let why = "it uses the host's network: it has no interface of its own";
            return Err(Error::failed(trouble(pod), why)
                .fix("capture it without other pods, or name the host's interface with -i"));
        }
        ends(&namespace)
    });
    Ok(found.collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the path of the pod's cgroup that a process is in.
fn group_of(process: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    let parts: Vec<&str> = path.split('/').collect();
    let pod = parts.iter().position(|part| pod_in(part).is_some())?;
    Some(parts[..=pod].join("/"))
}

/// Returns the requested pods, and what the runtime knows about each.
fn pods(sources: &Sources) -> Result<Vec<(PodName, Info)>> {
    if sources.pods.is_empty() {
        return Ok(Vec::new());
    }
    let sandboxes = crictl::<Listing>(sources, &["pods"])?.items;
    let found = sources.pods.iter().map(|pod| {
        let pod = PodName::parse(pod)
            .map_err(|why| Error::usage(format!("cannot capture at the pod {pod}"), why))?;
        let sandbox = choose(&pod, &sandboxes)?;
        let status: Status = crictl(sources, &["inspectp", &sandbox.id])?;
        Ok((pod, status.info))
    });
    found.collect()
}

/// Runs crictl and parses its answer.
fn crictl<T: DeserializeOwned>(sources: &Sources, command: &[&str]) -> Result<T> {
    let what = "cannot query the container runtime";
    let mut crictl = Command::new("crictl");
    crictl.args(["--timeout", "10s"]).stdin(Stdio::null());
    let is_configured = std::env::var_os(ENDPOINT).is_some() || Path::new(CONFIGURATION).exists();
    let present = SOCKETS.iter().map(PathBuf::from).find(|path| path.exists());
    let usual = present.filter(|_| !is_configured);
    if let Some(socket) = sources.cri_socket.clone().or(usual) {
        crictl.args([
            "--runtime-endpoint",
            &format!("unix://{}", socket.display()),
        ]);
    }
    let output = crictl.args(command).args(["-o", "json"]).output();
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

/// A process that finds restarted pods, since the capture may execute no programs.
#[derive(Debug)]
pub(super) struct PodWatcher(Helper);

/// Capabilities needed to open the network namespace of a pod.
const KEPT: Capabilities = Capabilities::SYS_ADMIN
    .union(Capabilities::SYS_PTRACE)
    .union(Capabilities::DAC_READ_SEARCH);

impl PodWatcher {
    /// Starts the process, before any thread; returns `None` without pods.
    pub(super) fn start(sources: &Sources) -> Option<Self> {
        let kept = KeptPrivileges {
            user: None,
            capabilities: KEPT,
        };
        let wanted = (!sources.pods.is_empty()).then(|| sources.clone())?;
        let helper = Helper::start(c"trawl-pods", Some(&kept), &mut Watched(wanted));
        helper.ok().map(Self)
    }

    /// Finds the interfaces of the pods that run now.
    pub(super) fn interfaces(&self) -> Vec<String> {
        let answer = self.0.ask(b"interfaces").unwrap_or_default();
        let names = String::from_utf8_lossy(&answer.bytes).into_owned();
        names.lines().map(str::to_owned).collect()
    }
}

struct Watched(Sources);

impl Duty for Watched {
    fn answer(&mut self, _request: &[u8]) -> HelperAnswer {
        let each = self.0.pods.iter().map(|pod| Sources {
            pods: vec![pod.clone()],
            ..self.0.clone()
        });
        let found: Vec<String> = each
            .filter_map(|one| interfaces(&pods(&one).ok()?).ok())
            .flatten()
            .collect();
        // An empty message would end the conversation.
        HelperAnswer {
            bytes: (found.join("\n") + "\n").into_bytes(),
            file: None,
        }
    }
}

fn trouble(pod: &PodName) -> String {
    format!("cannot capture at the pod {}/{}", pod.namespace, pod.name)
}

/// Returns the running sandbox of a pod; a restarted pod leaves older ones.
fn choose<'a>(pod: &PodName, sandboxes: &'a [Sandbox]) -> Result<&'a Sandbox> {
    let of_name = |sandbox: &&Sandbox| {
        let Metadata { name, namespace } = &sandbox.metadata;
        *namespace == pod.namespace && *name == pod.name
    };
    let ready = |sandbox: &&Sandbox| sandbox.state == "SANDBOX_READY";
    let created = |sandbox: &&Sandbox| sandbox.created_at.parse::<u64>().unwrap_or_default();
    let running = sandboxes.iter().filter(of_name).filter(ready);
    if let Some(newest) = running.max_by_key(created) {
        return Ok(newest);
    }
    let why = match sandboxes.iter().any(|one| of_name(&one)) {
        true => "it is not running",
        false => "the container runtime of this host has no such pod",
    };
    Err(Error::failed(trouble(pod), why).fix(format!(
        "kubectl get pod -n {} {} -o wide shows its node",
        pod.namespace, pod.name
    )))
}

fn namespace_of(pod: &PodName, info: &Info) -> Result<Namespace> {
    let namespaces = &info.runtime_spec.linux.namespaces;
    let network = namespaces.iter().find(|one| one.r#type == "network");
    let path = network.map_or("", |one| one.path.as_str());
    // In a container that shares the host's processes the path may not exist.
    match (path.is_empty() || !Path::new(path).exists(), info.pid) {
        (false, _) => Namespace::from_path(Path::new(path)),
        (true, 0) => {
            let why = "the runtime reports neither its network namespace nor a process in it";
            Err(Error::failed(trouble(pod), why))
        }
        (true, pid) => Namespace::of_pid(pid),
    }
}

fn is_own(namespace: &Namespace) -> Result<bool> {
    Ok(namespace.identity() == Namespace::current()?.identity())
}

/// Returns the host's ends of a pod's pairs of interfaces; its interfaces inside if it has none, as with macvlan.
fn ends(namespace: &Namespace) -> Result<Vec<String>> {
    let inside = Netlink::open(Some(namespace))?.links()?;
    let here = Netlink::open(None)?.links()?;
    let is_end = |link: &&LinkRecord| matches!(link.kind.as_deref(), Some("veth" | "netkit"));
    let is_pair = |one: &LinkRecord, other: &LinkRecord| {
        one.peer_namespace_id.is_some()
            && one.peer_index == Some(other.index)
            && other.peer_index == Some(one.index)
    };
    let ends: Vec<String> = here
        .iter()
        .filter(is_end)
        .filter(|host| inside.iter().filter(is_end).any(|end| is_pair(end, host)))
        .map(|host| host.name.clone())
        .collect();
    if !ends.is_empty() {
        return Ok(ends);
    }
    let own = inside.iter().filter(|link| link.name != "lo");
    Ok(own
        .map(|link| format!("{}:{}", namespace.label(), link.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_named_with_its_namespace() {
        assert!(PodName::parse("default/web").is_ok());
        for text in ["web", "/web", "default/", ""] {
            assert!(PodName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn newest_running_sandbox_is_chosen() {
        let all: Vec<Sandbox> = serde_json::from_str(
            r#"[{"id": "a", "metadata": {"name": "web", "uid": "u", "namespace": "default"}, "state": "SANDBOX_READY", "createdAt": "1"},
                {"id": "b", "metadata": {"name": "web", "namespace": "default"}, "state": "SANDBOX_READY", "createdAt": "2"},
                {"id": "c", "metadata": {"name": "web", "namespace": "default"}, "state": "SANDBOX_NOTREADY", "createdAt": "3"}]"#,
        )
        .expect("the form of crictl");
        let pod = PodName::parse("default/web").expect("a name");
        let refused = |all: &[Sandbox]| choose(&pod, all).expect_err("none runs").to_string();
        assert_eq!(choose(&pod, &all).expect("one runs").id, "b");
        assert!(refused(&all[2..]).contains("is not running"));
        assert!(refused(&[]).contains("no such pod"));
    }
}
