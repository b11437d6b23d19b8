//! `--pod`: the host's end of a Kubernetes pod's veth or netkit pair, its interfaces inside if it has no such pair, or
//! the packets of its processes if it uses the host's network.

mod runtime;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use trawl_plan::CapturePlan;
use trawl_plan::pod::{Pod, PodSelector};
use trawl_plan::sources::Sources;
use trawl_sys::netlink::{LinkRecord, Netlink};
use trawl_sys::netns::Namespace;
use trawl_sys::rights::helper::{Duty, Helper, HelperAnswer};
use trawl_sys::rights::privilege::{Capabilities, KeptPrivileges};
use trawl_sys::{Error, Result};

use crate::event::Event;
use crate::pod_in;

use runtime::{Info, Runtime, cannot_capture, choose};

/// A running pod of the capture.
#[derive(Debug, Serialize, Deserialize)]
struct FoundPod {
    pod: Pod,
    at: PodNetwork,
}

/// The network of a pod.
#[derive(Debug, Serialize, Deserialize)]
enum PodNetwork {
    /// A network of its own, with the interfaces at which the pod is captured.
    Own(Vec<String>),
    /// The host's network, with the number of a process of the pod.
    Host(u32),
    /// An unknown network, with the reason.
    Unknown(String),
}

/// The pods of a capture as it begins.
#[derive(Debug, Default)]
pub struct Pods {
    pub interfaces: Vec<(String, Arc<Pod>)>,
    /// The pod whose processes' packets are captured, on any interface.
    pub on_host: Option<Arc<Pod>>,
    pub events: Vec<Event>,
}

/// Finds the pods of a plan. If the only one uses the host's network, the capture becomes one of its processes' packets
/// on all interfaces: no interface is the pod's own.
pub fn find(plan: &mut CapturePlan) -> Result<Pods> {
    if plan.sources.pods.is_empty() {
        return Ok(Pods::default());
    }
    let mut watched = Watched::new(&plan.sources)?;
    let (found, missing) = watched.find(true)?;
    let selectors = &watched.selectors;
    let awaited: Vec<Event> = missing.into_iter().map(|pod| Event::PodAwaited { pod }).collect();
    if let [FoundPod { pod, at: PodNetwork::Host(process) }] = &found[..]
        && awaited.is_empty()
    {
        let Some(group) = group_of(*process) else {
            let why = "it uses the host's network, and its processes are in no cgroup (v2) of a pod";
            return Err(Error::failed(cannot_capture(pod), why).fix("name the host's interface with -i"));
        };
        plan.options.process.get_or_insert_default().cgroup = Some(group);
        plan.sources.pods.clear();
        if plan.sources.names.is_empty() {
            plan.sources.names.push("any".to_owned());
        }
        let is_named = selectors.iter().all(PodSelector::is_name);
        let alone = (!is_named).then(|| Event::PodAlone { pod: pod.to_string() });
        return Ok(Pods {
            interfaces: Vec::new(),
            on_host: Some(Arc::new(pod.clone())),
            events: alone.into_iter().collect(),
        });
    }
    let is_named = |pod: &Pod| {
        let mut names = selectors.iter().filter(|one| one.is_name());
        names.any(|one| one.selects(pod))
    };
    let refused =
        |one: &&FoundPod| matches!(one.at, PodNetwork::Host(_)) && is_named(&one.pod) && !plan.sources.awaits_pods;
    if let Some(one) = found.iter().find(refused) {
        let why = "it uses the host's network: it has no interface of its own";
        return Err(Error::failed(cannot_capture(&one.pod), why)
            .fix("capture it without other pods, or name the host's interface with -i"));
    }
    let (interfaces, events) = interfaces(found);
    if interfaces.is_empty() && plan.sources.names.is_empty() && !plan.options.joins {
        let wanted = plan.sources.pods.join(", ");
        let why = "no such pod with a network of its own runs here";
        return Err(Error::failed(cannot_capture(wanted), why).fix("crictl pods lists the pods of this host"));
    }
    Ok(Pods { interfaces, on_host: None, events: awaited.into_iter().chain(events).collect() })
}

/// Returns the names of the pods that run on this host, `NAMESPACE/NAME`; none without a container runtime.
pub fn running() -> Vec<String> {
    if !runtime::is_there() {
        return Vec::new();
    }
    let sandboxes = Runtime::new(None).sandboxes().unwrap_or_default();
    let mut names: Vec<String> = runtime::ready(&sandboxes).map(|pod| pod.to_string()).collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the interfaces of pods, and an event for each pod without.
fn interfaces(found: Vec<FoundPod>) -> (Vec<(String, Arc<Pod>)>, Vec<Event>) {
    let (mut interfaces, mut events) = (Vec::new(), Vec::new());
    for one in found {
        match one.at {
            PodNetwork::Own(names) => {
                let pod = Arc::new(one.pod);
                let named = names.into_iter().map(|name| (name, Arc::clone(&pod)));
                interfaces.extend(named);
            }
            PodNetwork::Host(_) => {
                let pod = one.pod.to_string();
                events.push(Event::PodLeftOut { pod });
            }
            PodNetwork::Unknown(why) => events.push(Event::NotJoined { why }),
        }
    }
    (interfaces, events)
}

/// Returns the path of the pod's cgroup that a process is in.
fn group_of(process: u32) -> Option<String> {
    let path = trawl_sys::process::cgroup::path_of(process).ok()?;
    let parts: Vec<&str> = path.split('/').collect();
    let pod = parts.iter().position(|part| pod_in(part).is_some())?;
    Some(parts[..=pod].join("/"))
}

/// Interval between two queries of the runtime.
const QUERY_INTERVAL: Duration = Duration::from_secs(2);

/// A process that finds pods that start later, since the capture itself may not execute programs. The capture does not
/// wait for it.
#[derive(Debug)]
pub struct PodWatcher {
    helper: Helper,
    /// True if further pods may match later.
    may_grow: bool,
    /// True until the last query is answered.
    is_asked: bool,
    last: Option<Instant>,
    /// The names of the pods' interfaces at the last answer.
    names: Vec<String>,
    /// The events reported so far.
    reported: HashSet<String>,
}

/// Capabilities needed to open the network namespace of a pod.
const KEPT: Capabilities = Capabilities::SYS_ADMIN.union(Capabilities::SYS_PTRACE).union(Capabilities::DAC_READ_SEARCH);

impl PodWatcher {
    /// Starts the process, before any thread; returns `None` without pods. `reported` are the events so far.
    pub fn start(sources: &Sources, reported: &[Event]) -> Option<Self> {
        if sources.pods.is_empty() {
            return None;
        }
        let kept = KeptPrivileges { user: None, capabilities: KEPT };
        let mut watched = Watched::new(sources).ok()?;
        let may_grow = sources.awaits_pods || !watched.selectors.iter().all(PodSelector::is_name);
        let helper = Helper::start(c"trawl-pods", Some(&kept), &mut watched).ok()?;
        Some(Self {
            helper,
            may_grow,
            is_asked: false,
            last: None,
            names: Vec::new(),
            reported: reported.iter().map(ToString::to_string).collect(),
        })
    }

    /// Returns the interfaces of the pods if the runtime has answered since the last call. It is queried as long as one
    /// of them is not captured, or more pods may start.
    pub fn interfaces(
        &mut self,
        is_known: impl Fn(&str) -> bool,
        report: &mut dyn FnMut(Event),
    ) -> Vec<(String, Arc<Pod>)> {
        let mut interfaces = Vec::new();
        if self.is_asked
            && let Some(answer) = self.helper.answer().transpose()
        {
            self.is_asked = false;
            let bytes = answer.and_then(HelperAnswer::read).unwrap_or_default();
            let found = serde_json::from_slice(&bytes).unwrap_or_default();
            let (all, events) = self::interfaces(found);
            let is_new = |event: &Event| self.reported.insert(event.to_string());
            events.into_iter().filter(is_new).for_each(report);
            self.names = all.iter().map(|(name, _)| name.clone()).collect();
            interfaces = all;
        }
        let are_known = !self.names.is_empty() && self.names.iter().all(|name| is_known(name));
        let is_due = self.last.is_none_or(|last| last.elapsed() >= QUERY_INTERVAL);
        if is_due && !self.is_asked && (self.may_grow || !are_known) {
            self.is_asked = self.helper.request(b"pods").is_ok();
            self.last = Some(Instant::now());
        }
        interfaces
    }
}

/// The runtime, and the pods to query it for.
struct Watched {
    runtime: Runtime,
    wanted: Vec<String>,
    selectors: Vec<PodSelector>,
    awaits: bool,
}

impl Duty for Watched {
    fn answer(&mut self, _request: &[u8]) -> HelperAnswer {
        let found = self.find(false).map(|(found, _)| found).unwrap_or_default();
        let bytes = serde_json::to_vec(&found).unwrap_or_default();
        // An empty message would end the conversation.
        HelperAnswer::long(&bytes).unwrap_or(HelperAnswer { bytes: b"-".to_vec(), file: None })
    }
}

impl Watched {
    fn new(sources: &Sources) -> Result<Self> {
        Ok(Self {
            runtime: Runtime::new(sources.cri_socket.clone()),
            wanted: sources.pods.clone(),
            selectors: sources.pod_selectors()?,
            awaits: sources.awaits_pods,
        })
    }

    /// Returns the running pods, and the choices that select none. If `begins`, a missing pod of a name is an error,
    /// and so is one that cannot be inspected.
    fn find(&mut self, begins: bool) -> Result<(Vec<FoundPod>, Vec<String>)> {
        let sandboxes = self.runtime.sandboxes()?;
        self.runtime.keep_only(&sandboxes);
        let (mut found, mut missing): (Vec<FoundPod>, Vec<String>) = Default::default();
        for (selector, text) in self.selectors.iter().zip(&self.wanted) {
            let must_exist = begins && selector.is_name() && !self.awaits;
            let chosen = match choose(selector, text, &sandboxes) {
                Err(error) if must_exist => return Err(error),
                chosen => chosen.unwrap_or_default(),
            };
            if chosen.is_empty() {
                missing.push(text.clone());
            }
            for (mut pod, sandbox) in chosen {
                if found.iter().any(|one| one.pod.to_string() == pod.to_string()) {
                    continue;
                }
                let info = self.runtime.inspect(sandbox);
                let network = info.and_then(|info| PodNetwork::find(&info, &mut pod));
                match network {
                    Ok(at) => found.push(FoundPod { pod, at }),
                    Err(error) if must_exist => return Err(error),
                    Err(error) => {
                        let at = PodNetwork::Unknown(error.to_string());
                        found.push(FoundPod { pod, at });
                    }
                }
            }
        }
        Ok((found, missing))
    }
}

impl PodNetwork {
    /// Finds the network of a pod, and its addresses.
    fn find(info: &Info, pod: &mut Pod) -> Result<Self> {
        let namespace = info.namespace(pod)?;
        if namespace.identity() == Namespace::current()?.identity() {
            return Ok(Self::Host(info.pid));
        }
        let mut netlink = Netlink::open(Some(&namespace))?;
        let inside = netlink.links()?;
        for link in inside.iter().filter(|link| !link.is_loopback()) {
            let addresses = netlink.addresses(link.index)?.into_iter();
            pod.addresses.extend(addresses.filter(is_its_own));
        }
        ends(&namespace, &inside).map(Self::Own)
    }
}

/// Returns true unless hosts on other links may have the address too.
fn is_its_own(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}

/// Returns the host's ends of a pod's pairs of interfaces, and its other interfaces inside: macvlan, ipvlan, a host's
/// device.
fn ends(namespace: &Namespace, inside: &[LinkRecord]) -> Result<Vec<String>> {
    let here = Netlink::open(None)?.links()?;
    let is_end = |link: &&LinkRecord| matches!(link.kind.as_deref(), Some("veth" | "netkit"));
    let is_pair = |one: &LinkRecord, other: &LinkRecord| {
        one.peer_namespace_id.is_some() && one.peer_index == Some(other.index) && other.peer_index == Some(one.index)
    };
    let ends = here.iter().filter(is_end);
    let ends = ends.filter(|host| inside.iter().filter(is_end).any(|end| is_pair(end, host)));
    let mut names: Vec<String> = ends.map(|host| host.name.clone()).collect();
    let has_ends = !names.is_empty();
    // The pod may have interfaces for its own use, such as a bridge for containers inside: their packets pass the
    // others.
    let is_outer = |link: &&LinkRecord| match link.kind.as_deref() {
        None | Some("macvlan" | "macvtap" | "ipvlan" | "ipvtap") => true,
        _ => !has_ends,
    };
    let others = inside.iter().filter(|link| link.is_up() && !link.is_loopback()).filter(is_outer);
    names.extend(others.map(|link| format!("{}:{}", namespace.label(), link.name)));
    Ok(names)
}
