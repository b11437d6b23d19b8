//! `--pod NAMESPACE/NAME`: the host's end of a Kubernetes pod's veth, found by way of the container runtime (CRI).

mod cri;
mod message;

use std::path::{Path, PathBuf};

use serde::Deserialize;
use trawl_sys::netlink::{Link, Netlink};
use trawl_sys::netns::Namespace;
use trawl_sys::{Error, Result};
use trawl_tap::sources::Sources;

use message::Sandbox;

/// Which runtime is asked, and for which pods.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct PodArgs {
    /// Capture at the host's end of this pod's interfaces; may be given several times
    #[arg(long = "pod", value_name = "NAMESPACE/NAME", value_parser = PodName::parse)]
    pub(super) pods: Vec<PodName>,
    /// The container runtime's socket [default: CONTAINER_RUNTIME_ENDPOINT, or that of containerd, CRI-O, k3s or
    /// cri-dockerd]
    #[arg(long, value_name = "PATH", requires = "pods")]
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

const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];

/// What is of interest of the JSON that a runtime gives with a verbose status.
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

/// Finds the names of the interfaces on the host, of all pods that are asked for.
pub(super) fn interfaces(sources: &Sources) -> Result<Vec<String>> {
    if sources.pods.is_empty() {
        return Ok(Vec::new());
    }
    let runtime = cri::Runtime::open(&socket(sources)?)?;
    let sandboxes = runtime.sandboxes()?;
    let found = sources.pods.iter().map(|pod| {
        let pod = &PodName::parse(pod)
            .map_err(|why| Error::usage(format!("cannot capture at the pod {pod}"), why))?;
        let sandbox = choose(pod, &sandboxes)?;
        let namespace = namespace_of(pod, &runtime.info(&sandbox.id)?)?;
        host_ends(pod, &namespace)
    });
    Ok(found.collect::<Result<Vec<_>>>()?.concat())
}

/// Finds those of the pods that run now.
pub(super) fn interfaces_now(sources: &Sources) -> Vec<String> {
    let each = sources.pods.iter().map(|pod| Sources {
        pods: vec![pod.clone()],
        ..sources.clone()
    });
    each.filter_map(|one| interfaces(&one).ok())
        .flatten()
        .collect()
}

fn socket(sources: &Sources) -> Result<PathBuf> {
    if let Some(named) = &sources.cri_socket {
        return Ok(named.clone());
    }
    if let Ok(named) = std::env::var("CONTAINER_RUNTIME_ENDPOINT") {
        return Ok(named.strip_prefix("unix://").unwrap_or(&named).into());
    }
    let there = SOCKETS.iter().find(|path| Path::new(path).exists());
    there.map(PathBuf::from).ok_or_else(|| {
        let why = format!("none of {} is there", SOCKETS.join(", "));
        Error::failed("cannot ask the container runtime", why)
            .fix("name its socket: --cri-socket PATH")
    })
}

fn trouble(pod: &PodName) -> String {
    format!("cannot capture at the pod {}/{}", pod.namespace, pod.name)
}

/// The running one among those of a pod's name; a pod that was restarted leaves older ones.
fn choose<'a>(pod: &PodName, sandboxes: &'a [Sandbox]) -> Result<&'a Sandbox> {
    let of_name =
        |sandbox: &&Sandbox| sandbox.namespace == pod.namespace && sandbox.name == pod.name;
    let ready = sandboxes.iter().filter(of_name).filter(|one| one.is_ready);
    if let Some(newest) = ready.max_by_key(|sandbox| sandbox.created_ns) {
        return Ok(newest);
    }
    let why = match sandboxes.iter().any(|one| of_name(&one)) {
        true => "it does not run",
        false => "the container runtime of this host has no such pod",
    };
    Err(Error::failed(trouble(pod), why).fix(format!(
        "kubectl get pod -n {} {} -o wide shows its node",
        pod.namespace, pod.name
    )))
}

fn namespace_of(pod: &PodName, info: &str) -> Result<Namespace> {
    let info: Info = serde_json::from_str(info).map_err(|error| {
        Error::failed(
            trouble(pod),
            format!("the runtime's status is not understood: {error}"),
        )
    })?;
    let namespaces = &info.runtime_spec.linux.namespaces;
    let network = namespaces.iter().find(|one| one.r#type == "network");
    let path = network.map_or("", |one| one.path.as_str());
    // In a container with the host's processes the path may not be there.
    let namespace = match (path.is_empty() || !Path::new(path).exists(), info.pid) {
        (false, _) => Namespace::from_path(Path::new(path))?,
        (true, 0) => {
            let why = "the runtime tells neither its network namespace nor a process in it";
            return Err(Error::failed(trouble(pod), why));
        }
        (true, pid) => Namespace::of_pid(pid)?,
    };
    if namespace.identity() == Namespace::current()?.identity() {
        let why = "it uses the host's network: it has no interface of its own";
        return Err(Error::failed(trouble(pod), why).fix("name the host's interface with -i"));
    }
    Ok(namespace)
}

fn host_ends(pod: &PodName, namespace: &Namespace) -> Result<Vec<String>> {
    let inside = Netlink::open(Some(namespace))?.links()?;
    let here = Netlink::open(None)?.links()?;
    let is_veth = |link: &&Link| link.kind.as_deref() == Some("veth");
    let is_pair = |one: &Link, other: &Link| {
        one.peer_namespace_id.is_some()
            && one.peer_index == Some(other.index)
            && other.peer_index == Some(one.index)
    };
    let ends: Vec<String> = here
        .iter()
        .filter(is_veth)
        .filter(|host| inside.iter().filter(is_veth).any(|end| is_pair(end, host)))
        .map(|host| host.name.clone())
        .collect();
    if ends.is_empty() {
        let why = "no veth leads from it to this host's namespace";
        let inside = format!("capture inside: -i '{}:*'", namespace.label());
        return Err(Error::failed(trouble(pod), why).fix(inside));
    }
    Ok(ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_with_its_namespace() {
        assert!(PodName::parse("default/web").is_ok());
        for text in ["web", "/web", "default/", ""] {
            assert!(PodName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_newest_running_sandbox_is_chosen() {
        let sandbox = |id: &str, is_ready, created_ns| Sandbox {
            id: id.to_owned(),
            name: "web".to_owned(),
            namespace: "default".to_owned(),
            is_ready,
            created_ns,
        };
        let pod = PodName::parse("default/web").expect("a name");
        let all = [
            sandbox("a", true, 1),
            sandbox("b", true, 2),
            sandbox("c", false, 3),
        ];
        assert_eq!(choose(&pod, &all).expect("one runs").id, "b");
        assert!(
            choose(&pod, &all[2..])
                .unwrap_err()
                .to_string()
                .contains("does not run")
        );
        assert!(
            choose(&pod, &[])
                .unwrap_err()
                .to_string()
                .contains("no such pod")
        );
    }
}
