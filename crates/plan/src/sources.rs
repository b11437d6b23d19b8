//! Sources of packets: interfaces as typed, and patterns for several.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trawl_sys::Result;
use trawl_sys::names::is_pattern;
use trawl_sys::netns;

use crate::TapChoice;
use crate::pod::PodSelector;

/// tcpdump's name for all interfaces.
pub const ANY: &str = "any";

/// The interfaces, devices or ports of a capture, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sources {
    /// NAME, NAMESPACE:NAME, a number of the list, a pattern, or `any`; for the pcap and dpdk taps devices and ports.
    pub names: Vec<String>,
    /// Network namespace of names without one: a name, a path or a process.
    pub netns: Option<String>,
    /// Kubernetes pods whose interfaces are captured too, each as [`PodSelector::parse`] reads it.
    pub pods: Vec<String>,
    /// True if the capture waits for pods in `pods` that have not started yet.
    pub awaits_pods: bool,
    /// Socket of the container runtime, if not a usual one.
    pub cri_socket: Option<PathBuf>,
}

impl Sources {
    /// Returns the names that match several interfaces.
    pub fn patterns(&self, tap: TapChoice) -> impl Iterator<Item = Pattern> {
        let are_interfaces = !matches!(tap, TapChoice::Pcap | TapChoice::Dpdk);
        let names = self.names.iter().filter(move |_| are_interfaces);
        names.filter_map(|text| Pattern::of(text, self.netns.as_deref()))
    }

    /// Returns true if interfaces that appear later belong to the capture.
    pub fn may_grow(&self, tap: TapChoice) -> bool {
        !self.pods.is_empty() || self.patterns(tap).next().is_some()
    }

    /// Returns true if a pattern matches interfaces of several network namespaces.
    pub fn span_namespaces(&self, tap: TapChoice) -> bool {
        self.patterns(tap).any(|pattern| pattern.spans_namespaces())
    }

    /// Returns the choices of pods.
    pub fn pod_selectors(&self) -> Result<Vec<PodSelector>> {
        self.pods.iter().map(|text| PodSelector::parse(text)).collect()
    }
}

/// A name that matches several interfaces.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub namespace: Option<String>,
    pub name: String,
    /// True if the labels of the interfaces include the namespace.
    pub is_prefixed: bool,
}

impl Pattern {
    /// Returns the pattern of a name as typed; `None` for the name of one interface.
    pub fn of(text: &str, netns: Option<&str>) -> Option<Self> {
        let (namespace, name) = netns::split_namespace(text, netns);
        let is_several = name == ANY || is_pattern(name) || namespace.is_some_and(is_pattern);
        is_several.then(|| Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            is_prefixed: text.contains(':'),
        })
    }

    /// Returns true if it matches interfaces of several network namespaces.
    pub fn spans_namespaces(&self) -> bool {
        self.namespace.as_deref().is_some_and(is_pattern)
    }
}
