//! A host's policy, which limits every desired state: its own file, which no command changes.

use std::collections::HashSet;
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};
use trawl_filter::check_length;
use trawl_plan::options::{ProcessDetail, ProcessPlan};
use trawl_plan::outputs::PacketsAt;
use trawl_plan::pod::PodSelector;
use trawl_sys::names::covers;
use trawl_sys::{Error, Result};
use url::Url;

use super::desired::{Capture, Labels};
use super::report::Rights;

/// Longest filter in bytes: compile time grows faster than the length.
const LONGEST_FILTER: usize = 16 << 10;

/// The policy. An absent list allows everything; an absent limit does not apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    pub labels: Labels,
    /// Public keys of the operators on a bus who have all rights.
    #[serde(default)]
    operators: Vec<String>,
    /// Further operators, with their rights.
    #[serde(default, rename = "operator")]
    limited: Vec<Operator>,
    /// Interface names in the syntax of `-i`; `*` matches any text without a colon.
    interfaces: Option<Vec<String>>,
    /// Kubernetes pods, as a capture chooses them; without this list none if `interfaces` has one.
    pods: Option<Vec<String>>,
    taps: Option<Vec<String>>,
    /// Store addresses; `*` matches any text.
    stores: Option<Vec<String>>,
    max_captures: Option<usize>,
    max_duration_seconds: Option<u64>,
    max_size_bytes: Option<u64>,
    max_memory_bytes: Option<u64>,
    max_spool_bytes: Option<u64>,
    /// Maximum bytes of each packet; absent: whole packets.
    max_snaplen: Option<u32>,
    /// Filter that is added to each capture's own, in tcpdump's syntax.
    filter: Option<String>,
    /// Set if chunks may be indexed on this host, which costs CPU time.
    index: Option<bool>,
    /// Permitted data about processes.
    process: Option<Vec<ProcessDetail>>,
}

/// A right of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// To ask for packets that stay on the host.
    Look,
    /// To have the packets of incidents stored.
    Trigger,
    /// To start captures, and to end them.
    Start,
}

impl Role {
    /// Returns its name in a policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Trigger => "trigger",
            Self::Start => "start",
        }
    }

    /// Returns what it permits, for messages.
    fn permits(self) -> &'static str {
        match self {
            Self::Look => "look at packets",
            Self::Trigger => "trigger incidents",
            Self::Start => "start or end captures",
        }
    }
}

/// An operator with some of the rights.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Operator {
    key: String,
    /// Name for messages.
    name: Option<String>,
    /// Absent: all.
    roles: Option<Vec<Role>>,
    /// The operator may start captures of these names, and end other operators' captures of these names; `*` matches any
    /// text. All names are allowed if this is absent.
    captures: Option<Vec<String>>,
}

impl Operator {
    /// Returns the operator's name, or else the key.
    fn shown(&self) -> String {
        self.name.as_ref().unwrap_or(&self.key).clone()
    }
}

/// Reason for a refused capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Refusal {
    Interface {
        interface: String,
    },
    Pod {
        pod: String,
    },
    Tap {
        tap: String,
    },
    Store {
        store: String,
    },
    TooMany {
        most: usize,
    },
    Duration {
        asked: Option<u64>,
        most: u64,
    },
    Size {
        asked: Option<u64>,
        most: u64,
    },
    Memory {
        asked: u64,
        most: u64,
    },
    Spool {
        asked: u64,
        most: u64,
    },
    Snaplen {
        asked: Option<u32>,
        most: u32,
    },
    Index,
    Process {
        detail: ProcessDetail,
    },
    /// Unbalanced brackets: the filter could escape the brackets around it.
    Filter {
        filter: String,
    },
    FilterLength {
        asked: u64,
        most: u64,
    },
    /// libpcap would need too long for the filter: the message of a capture that refuses it.
    FilterCost {
        why: String,
    },
    /// The operator lacks a right.
    Role {
        operator: String,
        role: Role,
    },
    /// The operator may only use other names for captures.
    Name {
        operator: String,
        names: Vec<String>,
    },
    /// Another operator has a capture of this name; absent: the host's file has it.
    Taken {
        operator: Option<String>,
    },
    /// A reason that this trawl does not know, as an operator may receive it from a newer agent.
    #[serde(other)]
    Unknown,
}

/// Formats a limit, and the value that exceeds it.
fn limit(f: &mut fmt::Formatter<'_>, name: &str, asked: Option<u64>, most: u64) -> fmt::Result {
    match asked {
        Some(asked) => write!(f, "{name} {asked}, at most {most}"),
        None => write!(f, "{name} is missing, at most {most}"),
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("policy: ")?;
        match self {
            Self::Interface { interface } => write!(f, "interface {interface}"),
            Self::Pod { pod } => write!(f, "pod {pod}"),
            Self::Tap { tap } => write!(f, "tap {tap}"),
            Self::Index => f.write_str("no index"),
            Self::Process { detail } => write!(f, "process {}", format!("{detail:?}").to_lowercase()),
            Self::Filter { filter } => write!(f, "the parentheses of the filter '{filter}' are not balanced"),
            Self::FilterLength { asked, most } => limit(f, "length of the filter", Some(*asked), *most),
            Self::FilterCost { why } => f.write_str(why),
            Self::Role { operator, role } => write!(f, "the operator {operator} may not {}", role.permits()),
            Self::Name { operator, names } => {
                write!(f, "the operator {operator} may only start or end captures named {}", names.join(", "))
            }
            Self::Taken { operator: Some(operator) } => {
                write!(f, "one capture of each name, and the operator {operator} has this one")
            }
            Self::Taken { operator: None } => f.write_str("one capture of each name, and the file has this one"),
            Self::Unknown => f.write_str("a reason that only a newer trawl knows"),
            Self::Store { store } => write!(f, "store {store}"),
            Self::TooMany { most } => write!(f, "at most {most} captures"),
            Self::Duration { asked, most } => limit(f, "duration_seconds", *asked, *most),
            Self::Size { asked, most } => limit(f, "size_bytes", *asked, *most),
            Self::Memory { asked, most } => limit(f, "memory_bytes", Some(*asked), *most),
            Self::Spool { asked, most } => limit(f, "spool_bytes", Some(*asked), *most),
            Self::Snaplen { asked, most } => limit(f, "snaplen", asked.map(u64::from), (*most).into()),
        }
    }
}

impl Refusal {
    /// Returns true if the operator may not give the command, whatever the capture.
    pub fn is_of_operator(&self) -> bool {
        matches!(self, Self::Role { .. } | Self::Name { .. } | Self::Taken { .. })
    }
}

impl Policy {
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &dyn Display| {
            Error::usage("cannot read the policy", why).fix("man trawl-fleet-agent lists the keys of a policy")
        };
        let policy: Self = toml::from_str(text).map_err(|e| wrong(&e))?;
        let mut pods = policy.pods.iter().flatten();
        if let Some(error) = pods.find_map(|pod| PodSelector::parse(pod).err()) {
            return Err(wrong(&error));
        }
        let mut known = HashSet::new();
        if let Some(key) = policy.operators().find(|key| !known.insert(*key)) {
            return Err(wrong(&format!("it names the operator {key} twice")));
        }
        Ok(policy)
    }

    /// Returns the public keys of the operators whose commands the host follows.
    pub fn operators(&self) -> impl Iterator<Item = &str> {
        let limited = self.limited.iter().map(|operator| &operator.key);
        self.operators.iter().chain(limited).map(String::as_str)
    }

    /// Returns the operators with their rights, as a host reports them.
    pub fn rights(&self) -> Vec<Rights> {
        let all = [Role::Look, Role::Trigger, Role::Start];
        self.operators()
            .map(|key| {
                let limited = self.limits_of(Some(key));
                let roles = limited.and_then(|operator| operator.roles.as_deref()).unwrap_or(&all);
                Rights {
                    key: key.to_owned(),
                    name: limited.and_then(|operator| operator.name.clone()),
                    roles: roles.iter().map(|role| role.name().to_owned()).collect(),
                    captures: limited.and_then(|operator| operator.captures.clone()),
                }
            })
            .collect()
    }

    /// Returns the reason why an operator lacks a right; a file has all.
    pub fn refuses_role(&self, operator: Option<&str>, role: Role) -> Option<Refusal> {
        let operator = self.limits_of(operator)?;
        let is_missing = operator.roles.as_ref().is_some_and(|roles| !roles.contains(&role));
        is_missing.then(|| Refusal::Role { operator: operator.shown(), role })
    }

    /// Returns the reason why an operator may not start or end a capture of this name.
    pub fn refuses_name(&self, operator: Option<&str>, capture: &str) -> Option<Refusal> {
        self.refuses_role(operator, Role::Start).or_else(|| {
            let operator = self.limits_of(operator)?;
            let names = operator.captures.as_ref().filter(|names| !names.iter().any(|one| covers(one, capture)))?;
            Some(Refusal::Name { operator: operator.shown(), names: names.clone() })
        })
    }

    /// Returns the limits of an operator who has not all rights.
    fn limits_of(&self, operator: Option<&str>) -> Option<&Operator> {
        self.limited.iter().find(|one| Some(one.key.as_str()) == operator)
    }

    /// Returns the reason to refuse the capture as the `number`th, from 0; `None` if it is allowed.
    pub fn refuses(&self, capture: &Capture, number: usize) -> Option<Refusal> {
        if let Some(most) = self.max_captures.filter(|most| number >= *most) {
            return Some(Refusal::TooMany { most });
        }
        if let Some(allowed) = &self.interfaces {
            let is_refused = |name: &&String| !allowed.iter().any(|one| allows_interface(one, name));
            if let Some(interface) = capture.interfaces.iter().find(is_refused) {
                return Some(Refusal::Interface { interface: interface.clone() });
            }
        }
        let allowed = match (&self.pods, &self.interfaces) {
            (None, None) => None,
            (pods, _) => Some(pods.as_deref().unwrap_or_default()),
        };
        if let Some(allowed) = allowed {
            let is_refused = |pod: &&String| !allowed.iter().any(|one| allows_pod(one, pod));
            if let Some(pod) = capture.pods.iter().find(is_refused) {
                return Some(Refusal::Pod { pod: pod.clone() });
            }
        }
        if let Some(allowed) = &self.taps {
            let auto = ["auto".to_owned()];
            let taps = if capture.taps.is_empty() { &auto[..] } else { &capture.taps[..] };
            if let Some(tap) = taps.iter().find(|tap| !allowed.contains(tap)) {
                return Some(Refusal::Tap { tap: tap.clone() });
            }
        }
        if let Some(allowed) = &self.stores
            && !allowed.iter().any(|one| allows_store(one, &capture.store))
        {
            return Some(Refusal::Store { store: capture.store.clone() });
        }
        if capture.filter.len() > LONGEST_FILTER {
            return Some(Refusal::FilterLength { asked: capture.filter.len() as u64, most: LONGEST_FILTER as u64 });
        }
        if self.filter.is_some() && !is_closed(&capture.filter) {
            return Some(Refusal::Filter { filter: capture.filter.clone() });
        }
        if let Err(error) = check_length(&self.narrowed(&capture.filter)) {
            let why = error.to_string();
            return Some(Refusal::FilterCost { why });
        }
        let indexes = capture.index || capture.packets_at == PacketsAt::Host;
        if indexes && self.index == Some(false) {
            return Some(Refusal::Index);
        }
        // Packets of a pod on the host's network are found by their processes.
        let by_process = (!capture.pods.is_empty()).then(ProcessPlan::default);
        if let Some(allowed) = &self.process
            && let Some(plan) = capture.process_plan().or(by_process)
            && !allowed.contains(&plan.detail)
        {
            return Some(Refusal::Process { detail: plan.detail });
        }
        self.exceeds(capture)
    }

    fn exceeds(&self, capture: &Capture) -> Option<Refusal> {
        let unbounded =
            |asked: Option<u64>, most: Option<u64>| most.filter(|most| asked.is_none_or(|asked| asked > *most));
        let larger = |asked: Option<u64>, most: Option<u64>| asked.zip(most).filter(|(asked, most)| asked > most);
        if let Some(most) = unbounded(capture.duration_seconds, self.max_duration_seconds) {
            let asked = capture.duration_seconds;
            return Some(Refusal::Duration { asked, most });
        }
        if let Some(most) = unbounded(capture.size_bytes, self.max_size_bytes) {
            let asked = capture.size_bytes;
            return Some(Refusal::Size { asked, most });
        }
        if let Some(most) = self.max_snaplen.filter(|most| capture.snaplen.is_none_or(|asked| asked > *most)) {
            let asked = capture.snaplen;
            return Some(Refusal::Snaplen { asked, most });
        }
        if let Some((asked, most)) = larger(capture.memory_bytes, self.max_memory_bytes) {
            return Some(Refusal::Memory { asked, most });
        }
        larger(capture.spool_bytes, self.max_spool_bytes).map(|(asked, most)| Refusal::Spool { asked, most })
    }

    fn narrowed(&self, asked: &str) -> String {
        match &self.filter {
            None => asked.to_owned(),
            Some(filter) if asked.trim().is_empty() => filter.clone(),
            Some(filter) => format!("({filter}) and ({asked})"),
        }
    }

    /// Returns the capture with the policy's filter added, and with the policy's limits where it sets none itself.
    pub fn limited(&self, capture: &Capture) -> Capture {
        Capture {
            memory_bytes: capture.memory_bytes.or(self.max_memory_bytes),
            spool_bytes: capture.spool_bytes.or(self.max_spool_bytes),
            filter: self.narrowed(&capture.filter),
            ..capture.clone()
        }
    }
}

/// Returns true if all brackets are balanced.
fn is_closed(filter: &str) -> bool {
    let mut open = 0_u32;
    filter.chars().all(|c| {
        let now = match c {
            '(' => open.checked_add(1),
            ')' => open.checked_sub(1),
            _ => Some(open),
        };
        open = now.unwrap_or(0);
        now.is_some()
    }) && open == 0
}

fn allows_interface(pattern: &str, asked: &str) -> bool {
    match (pattern.rsplit_once(':'), asked.rsplit_once(':')) {
        (None, None) => allows_name(pattern, asked),
        (Some((space, name)), Some((asked_space, asked_name))) => {
            covers(space, asked_space) && allows_name(name, asked_name)
        }
        _ => false,
    }
}

fn allows_pod(allowed: &str, asked: &str) -> bool {
    match (PodSelector::parse(allowed), PodSelector::parse(asked)) {
        (Ok(allowed), Ok(asked)) => allowed.covers(&asked),
        _ => false,
    }
}

/// Matches an interface name. `any` stands for every interface, and only a pattern that does so as well allows it.
fn allows_name(pattern: &str, asked: &str) -> bool {
    match asked {
        "any" => pattern == "any" || pattern == "*",
        _ => covers(pattern, asked),
    }
}

/// Matches the address as parsed, not as written. An address that differs from its parsed form is refused, and so is
/// one with encoded characters, which could stand for others in a directory's name.
fn allows_store(pattern: &str, asked: &str) -> bool {
    let parsed = if asked.starts_with('/') { Url::parse(&format!("file://{asked}")) } else { Url::parse(asked) };
    let Ok(parsed) = parsed else {
        return false;
    };
    let plain = |url: &str| {
        let url = url.strip_prefix("file://").unwrap_or(url);
        url.trim_end_matches('/').to_owned()
    };
    let is_plain = plain(parsed.as_str()) == plain(asked) && !asked.contains('%');
    is_plain && (covers(pattern, asked) || covers(pattern, parsed.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture() -> Capture {
        Capture {
            name: "a".to_owned(),
            interfaces: vec!["eth0".to_owned()],
            store: "file:///s/one".to_owned(),
            ..Capture::default()
        }
    }

    fn refused(policy: &str, change: impl FnOnce(&mut Capture)) -> Option<Refusal> {
        let mut capture = capture();
        change(&mut capture);
        Policy::parse(policy).unwrap().refuses(&capture, 0)
    }

    #[test]
    fn names_are_allowed_only_if_all_their_expansions_are() {
        for (pattern, asked, allowed) in [
            ("eth*", "eth0", true),
            ("eth*", "eth*", true),
            ("eth*", "e*", false),
            ("eth0", "eth*", false),
            ("a*", "any", false),
            ("*", "any", true),
            ("*", "web:eth0", false),
            ("web:*", "web:any", true),
            ("web:*", "*:eth0", false),
            ("*:eth0", "web:eth0", true),
            ("*:eth0", "/proc/1/ns/net:eth1", false),
            ("e*h*0", "eth10", true),
        ] {
            assert_eq!(allows_interface(pattern, asked), allowed, "{pattern} {asked}");
        }
    }

    #[test]
    fn pods_are_allowed_by_name_and_label() {
        let of_pods = |policy: &str, pod: &str| {
            refused(policy, |capture| {
                capture.interfaces.clear();
                capture.pods.push(pod.to_owned());
            })
        };
        for (policy, pod, allowed) in [
            ("", "default/web-0", true),
            ("interfaces = [\"*\"]", "default/web-0", false),
            ("pods = [\"default/*\"]", "default/app=web", true),
            ("pods = [\"default/*\"]", "app=web", false),
            ("pods = []", "default/web-0", false),
            ("interfaces = [\"eth0\"]\npods = [\"*\"]", "app=web", true),
            // A pod on the host's network is found by its processes.
            ("process = []", "app=web", false),
            ("process = [\"plain\"]", "app=web", true),
        ] {
            assert_eq!(of_pods(policy, pod).is_none(), allowed, "{policy} {pod}");
        }
        assert!(Policy::parse("pods = [\"web-0\"]").is_err());
    }

    #[test]
    fn policy_filter_applies_to_every_capture() {
        let policy = "filter = \"not port 22\"";
        let limited = |asked: &str| {
            let mut capture = capture();
            capture.filter = asked.to_owned();
            Policy::parse(policy).unwrap().limited(&capture).filter
        };
        assert_eq!(limited(""), "not port 22");
        assert_eq!(limited("tcp or udp"), "(not port 22) and (tcp or udp)");
        for (asked, allowed) in [
            ("(tcp or udp) and ip", true),
            ("tcp[(0)] = 1", true),
            ("udp) or (tcp", false),
            ("(udp", false),
            ("udp)", false),
        ] {
            let refusal = refused(policy, |capture| capture.filter = asked.to_owned());
            assert_eq!(refusal.is_none(), allowed, "{asked}");
        }
        let unbounded = refused("", |capture| capture.filter = "udp)".to_owned());
        assert_eq!(unbounded, None, "the capture itself refuses it");
    }

    #[test]
    fn store_addresses_cannot_escape_their_pattern() {
        let policy = "stores = [\"file:///s/*\"]";
        assert_eq!(refused(policy, |_| ()), None);
        for store in [
            "file:///s/../etc",
            "file:///s/%2e%2e/etc",
            "s3://other/",
            "file:///s/..\\..\\etc",
            "file:///s/.\t./etc",
            "file:///s/.\n./etc",
            "file:///s/a%2f..%2f..%2fetc",
            "file://host/s/a",
            "file:/s/a",
            "FILE:///s/a",
            "/s/../etc",
            "",
        ] {
            let refusal = refused(policy, |capture| capture.store = store.to_owned());
            assert!(matches!(refusal, Some(Refusal::Store { .. })), "{store}");
        }
    }

    /// A capture refuses such filters too, but only on the host.
    #[test]
    fn costly_filters_are_refused_before_a_host_compiles_them() {
        let costly = |count: usize| {
            let pairs = (1..=count).map(|number| format!("pppoes {number} and not port {number}"));
            pairs.collect::<Vec<_>>().join(" and ")
        };
        assert_eq!(refused("", |c| c.filter = costly(200)), None);
        let refusal = refused("", |c| c.filter = costly(400));
        assert!(matches!(&refusal, Some(Refusal::FilterCost { why }) if why.contains("799")), "{refusal:?}");
        let ports = (1..=700).map(|port| format!("port {port}"));
        let ports = ports.collect::<Vec<_>>().join(" or ");
        assert_eq!(refused("", |c| c.filter.clone_from(&ports)), None);
        // The policy's own filter makes it too costly.
        let policy = format!("filter = '{}'", costly(200));
        let refusal = refused(&policy, |c| c.filter = costly(200));
        assert!(matches!(refusal, Some(Refusal::FilterCost { .. })), "{refusal:?}");
        let refusal = refused("", |c| c.filter = " ".repeat(20_000));
        let most = LONGEST_FILTER as u64;
        let asked = 20_000;
        assert_eq!(refusal, Some(Refusal::FilterLength { asked, most }));
    }

    #[test]
    fn operators_have_the_rights_that_the_policy_gives_them() {
        let policy = "operators = [\"U1\"]\n\
            [[operator]]\nkey = \"U2\"\nname = \"on-call\"\nroles = [\"trigger\", \"start\"]\ncaptures = [\"oncall-*\", \"dns\"]\n\
            [[operator]]\nkey = \"U3\"\nroles = []\n\
            [[operator]]\nkey = \"U4\"";
        let policy = Policy::parse(policy).unwrap();
        assert_eq!(policy.operators().collect::<Vec<_>>(), ["U1", "U2", "U3", "U4"]);
        let role = |operator: &str, role| policy.refuses_role(Some(operator), role).map(|one| one.to_string());
        let name = |operator: &str, name| policy.refuses_name(Some(operator), name).map(|one| one.to_string());
        for operator in ["U1", "U4"] {
            assert_eq!(role(operator, Role::Look).or(role(operator, Role::Start)), None);
            assert_eq!(name(operator, "recorder"), None);
        }
        assert_eq!(role("U2", Role::Look).as_deref(), Some("policy: the operator on-call may not look at packets"));
        assert_eq!(role("U2", Role::Trigger), None);
        assert_eq!(name("U2", "dns").or(name("U2", "oncall-1")), None);
        assert_eq!(
            name("U2", "recorder").as_deref(),
            Some("policy: the operator on-call may only start or end captures named oncall-*, dns")
        );
        assert!(role("U3", Role::Trigger).is_some());
        assert_eq!(name("U3", "a").as_deref(), Some("policy: the operator U3 may not start or end captures"));
        assert_eq!(policy.refuses_name(None, "recorder"), None, "a file has all rights");
        let rights = policy.rights();
        assert_eq!(rights.iter().map(|one| one.roles.len()).collect::<Vec<_>>(), [3, 2, 0, 3]);
        for (name, starts) in [("dns", [true, true, false, true]), ("recorder", [true, false, false, true])] {
            assert_eq!(rights.iter().map(|one| one.may_start(name)).collect::<Vec<_>>(), starts);
        }
        for wrong in [
            "operators = [\"U1\", \"U1\"]",
            "operators = [\"U1\"]\n[[operator]]\nkey = \"U1\"",
            "[[operator]]\nkey = \"U1\"\nroles = [\"prune\"]",
            "[[operator]]\nkey = \"U1\"\ncolour = 1",
            "[[operator]]\nroles = []",
        ] {
            assert!(Policy::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_limit_holds() {
        let asks = |field: &str| {
            let policy = format!("{field} = 100");
            (
                refused(&policy, |_| ()).is_some(),
                refused(&policy, |capture| {
                    capture.duration_seconds = Some(101);
                    capture.size_bytes = Some(101);
                    capture.memory_bytes = Some(101);
                    capture.spool_bytes = Some(101);
                    capture.snaplen = Some(101);
                })
                .is_some(),
                refused(&policy, |capture| {
                    capture.duration_seconds = Some(100);
                    capture.size_bytes = Some(100);
                    capture.memory_bytes = Some(100);
                    capture.spool_bytes = Some(100);
                    capture.snaplen = Some(100);
                })
                .is_some(),
            )
        };
        // A capture without a bound has no end and keeps whole packets; memory and spool are always bounded.
        assert_eq!(asks("max_duration_seconds"), (true, true, false));
        assert_eq!(asks("max_size_bytes"), (true, true, false));
        assert_eq!(asks("max_snaplen"), (true, true, false));
        assert_eq!(asks("max_memory_bytes"), (false, true, false));
        assert_eq!(asks("max_spool_bytes"), (false, true, false));
        assert!(refused("max_captures = 0", |_| ()).is_some());
        assert!(refused("taps = [\"xdp\"]", |_| ()).is_some());
        let process = |detail| refused("process = [\"plain\"]", |capture| capture.process = detail);
        assert_eq!(process(None), None);
        assert_eq!(process(Some(ProcessDetail::Plain)), None);
        assert!(process(Some(ProcessDetail::Full)).is_some());
        let by_name = |capture: &mut Capture| capture.comm = Some("curl".to_owned());
        assert!(refused("process = []", by_name).is_some());
        assert!(Policy::parse("max_colour = 1").is_err());
    }
}
