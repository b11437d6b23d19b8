//! The desired state of a host: a list of captures, in TOML or JSON.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use trawl_packet::verdict::{VerdictKind, VerdictSet};
use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_plan::outputs::{PacketsAt, StorePlan};
use trawl_plan::pod::PodSelector;
pub use trawl_sys::names::Labels;
use trawl_sys::{Error, Result};

/// Maximum length of the text: the bus refuses larger messages, and 1 MiB is enough for some thousand captures.
pub const TEXT_MOST: usize = 1 << 20;
const NAME_MOST: usize = 64;

/// The desired state of a host, as a file gives it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Desired {
    /// Labels of the host, unless its own policy file sets them.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    #[serde(default, rename = "capture", alias = "captures")]
    pub captures: Vec<Capture>,
    /// The latest incidents.
    #[serde(default, rename = "incident", alias = "incidents", skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
}

/// A window of time whose packets the hosts store together, from what their captures keep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incident {
    pub id: String,
    /// Nanoseconds since 1970.
    pub from_ns: u64,
    pub to_ns: u64,
    /// Description of the event.
    #[serde(default)]
    pub why: String,
    /// All hosts that were asked; empty if other hosts know them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// A capture. Absent limits do not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,
    /// Kubernetes pods, by name or label, which may start later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// Store that receives the packets.
    pub store: String,
    /// Filter in tcpdump's syntax; empty for all packets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Taps to use; empty for `auto`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taps: Vec<String>,
    /// Bytes of each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Duration since the first start, including the time without an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u64>,
    /// Maximum of recorded packets, summed over all starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Maximum of recorded bytes, for each start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Memory for packets in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Disk for chunks that wait for the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spool_bytes: Option<u64>,
    /// Maximum number of bytes of a chunk, compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
    /// Time after which a chunk is stored even if it is small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_seconds: Option<u64>,
    /// Set if the host indexes each chunk when it stores it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub index: bool,
    /// Place of the packets: with `host`, the newest stay in the host's spool, and their index is in the store.
    #[serde(default, skip_serializing_if = "is_default")]
    pub packets_at: PacketsAt,
    /// Captures only packets with these verdicts of an XDP program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<String>,
    /// Captures only drops for these reasons, with the tap `drop`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Number of packets recorded in a second from which the host reports an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_rate: Option<u64>,
    /// Records the process of each packet; a choice of processes implies `plain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessDetail>,
    /// Captures only packets of processes of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Captures only packets of this user's processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Captures only packets of processes in this cgroup or container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Desired {
    /// Reads a file in TOML, or in JSON if the text begins with a brace.
    pub fn parse(text: &str) -> Result<Self> {
        let what = "cannot read the desired state";
        let wrong = |why: String| {
            Error::usage(what, why)
                .fix("the guide (Agents) shows the form: [[capture]] with name, interfaces or pods, and store")
        };
        if text.len() > TEXT_MOST {
            return Err(wrong(format!("it has more than {TEXT_MOST} bytes")));
        }
        let desired: Self = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?
        } else {
            toml::from_str(text).map_err(|e| wrong(e.to_string()))?
        };
        desired.check().map_err(wrong)?;
        Ok(desired)
    }

    pub fn check(&self) -> std::result::Result<(), String> {
        let mut names = HashSet::new();
        for capture in &self.captures {
            capture.check()?;
            if !names.insert(&capture.name) {
                return Err(format!("two captures are named '{}'", capture.name));
            }
        }
        self.incidents.iter().try_for_each(Incident::check)
    }
}

/// Returns true if a text is a valid capture name, which becomes part of store keys and file names.
pub fn is_name(text: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !text.is_empty() && text.len() <= NAME_MOST && text.chars().all(letters)
}

impl Incident {
    /// Longest window: a day.
    const LONGEST_NS: u64 = 86_400_000_000_000;

    fn check(&self) -> std::result::Result<(), String> {
        let id = &self.id;
        match self.to_ns.checked_sub(self.from_ns) {
            _ if !is_name(id) => {
                Err(format!("'{id}' is not the name of an incident: use letters, digits, - and _, at most {NAME_MOST}"))
            }
            None => Err(format!("the incident '{id}' ends before it begins")),
            Some(length) if length > Self::LONGEST_NS => Err(format!("the incident '{id}' is longer than a day")),
            Some(_) => Ok(()),
        }
    }
}

impl Capture {
    /// Returns the chosen verdicts.
    pub fn verdict_set(&self) -> std::result::Result<Option<VerdictSet>, String> {
        if self.verdicts.is_empty() {
            return Ok(None);
        }
        let set = VerdictSet::parse(VerdictKind::Xdp, &self.verdicts.join(","));
        set.map(Some).map_err(|error| error.to_string())
    }

    pub fn process_plan(&self) -> Option<ProcessPlan> {
        let plan = ProcessPlan {
            detail: self.process.unwrap_or_default(),
            name: self.comm.clone(),
            user: self.uid,
            cgroup: self.cgroup.clone(),
            ..ProcessPlan::default()
        };
        (self.process.is_some() || plan.filters()).then_some(plan)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let name = &self.name;
        if !is_name(name) {
            return Err(format!("'{name}' is not a capture name: use letters, digits, - and _, at most {NAME_MOST}"));
        }
        let is_nowhere = self.interfaces.is_empty() && self.pods.is_empty();
        if is_nowhere || self.interfaces.iter().any(String::is_empty) {
            return Err(format!("the capture '{name}' names no interface or pod"));
        }
        if let Some(error) = self.pods.iter().find_map(|pod| PodSelector::parse(pod).err()) {
            return Err(format!("the capture '{name}': {}: {}", error.what(), error.why()));
        }
        if self.store.is_empty() {
            return Err(format!("the capture '{name}' names no store"));
        }
        self.verdict_set().map_err(|why| format!("the capture '{name}': {why}"))?;
        let bounds = [
            ("duration_seconds", self.duration_seconds),
            ("packets", self.packets),
            ("size_bytes", self.size_bytes),
            ("memory_bytes", self.memory_bytes),
            ("spool_bytes", self.spool_bytes),
            ("chunk_bytes", self.chunk_bytes),
            ("chunk_seconds", self.chunk_seconds),
            ("event_rate", self.event_rate),
            ("snaplen", self.snaplen.map(u64::from)),
        ];
        let most = StorePlan::MAX_CHUNK;
        match bounds.iter().find(|(_, bound)| *bound == Some(0)) {
            Some((bound, _)) => Err(format!("{bound} of the capture '{name}' is 0")),
            None if self.chunk_bytes.is_some_and(|bytes| bytes > most) => {
                Err(format!("chunk_bytes of the capture '{name}' is larger than {most}"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = r#"
        [labels]
        role = "edge"
        [[capture]]
        name = "dns"
        interfaces = ["eth0"]
        pods = ["default/app=web"]
        filter = "udp port 53"
        store = "file:///s"
        duration_seconds = 60
        process = "full"
        comm = "dig"
    "#;

    #[test]
    fn toml_and_json_parse_to_the_same_state() {
        let desired = Desired::parse(ONE).unwrap();
        let json = serde_json::to_string(&desired).unwrap();
        assert_eq!(Desired::parse(&json).unwrap(), desired);
        assert_eq!(desired.captures[0].duration_seconds, Some(60));
        assert_eq!(desired.labels["role"], "edge");
        let plan = desired.captures[0].process_plan().unwrap();
        assert_eq!(plan.detail, ProcessDetail::Full);
        assert_eq!(plan.name.as_deref(), Some("dig"));
        assert_eq!(Capture::default().process_plan(), None);
    }

    #[test]
    fn errors_name_the_mistake() {
        let capture =
            |fields: &str| format!("[[capture]]\nname = \"a\"\ninterfaces = [\"e\"]\nstore = \"s\"\n{fields}");
        for (text, words) in [
            (capture("").repeat(2), "two captures"),
            (capture("duration_seconds = 0"), "is 0"),
            (capture("colour = 1"), "colour"),
            (capture("process = \"all\""), "plain"),
            (capture("").replace("\"e\"", ""), "no interface"),
            (capture("pods = [\"web\"]"), "no namespace"),
            (capture("").replace("\"a\"", "\"../a\""), "not a capture name"),
            ("{\"capture\":".to_owned(), "EOF"),
            (" ".repeat(TEXT_MOST + 1), "more than"),
        ] {
            let error = Desired::parse(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(Desired::parse("").unwrap(), Desired::default());
    }

    /// Texts from a bus or a file may be anything.
    #[test]
    fn changed_texts_are_read_or_refused() {
        let policy = "max_captures = 1\ninterfaces = [\"eth*\"]\npods = [\"default/*\"]\n";
        let mut random = 1_u64;
        for text in [ONE, policy].repeat(5_000) {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = random as usize % bytes.len();
                bytes[at] = (random >> 32) as u8;
            }
            let text = String::from_utf8_lossy(&bytes);
            let _ = Desired::parse(&text);
            let _ = crate::agent::State::parse(&text);
            let _ = crate::agent::Policy::parse(&text);
        }
    }
}
