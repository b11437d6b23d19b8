//! Rules: their matches and actions; and presets.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::Deserialize;

use crate::values::{self, MacPrefix, Prefix, WITH_PORTS};
use trawl_packet::net::protocol::{ICMP, ICMPV6, TCP, UDP};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Deny,
    Allow,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// A rule without a number: its match, action and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub action: Action,
    pub what: Match,
    /// Packets per second from one source. A rule that allows drops packets above the rate; one that denies leaves
    /// packets below it to the other rules.
    pub rate: Option<u64>,
    /// Time at which it ends, in nanoseconds of the monotonic clock.
    pub expires: Option<u64>,
}

/// A rule of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: u32,
    pub draft: Draft,
}

impl Deref for Rule {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

impl Draft {
    pub fn numbered(self, id: u32) -> Rule {
        Rule { id, draft: self }
    }

    /// Returns true for a limit that coexists with other rules for the same packets, rather than deciding about them.
    pub fn is_limit(&self) -> bool {
        self.action == Action::Deny && self.rate.is_some()
    }

    /// Returns true if it denies every packet.
    pub fn denies_everything(&self) -> bool {
        self.action == Action::Deny && self.rate.is_none() && self.what.is_about_everything()
    }
}

impl Rule {
    /// Returns true if both rules match the same packets, so that the newer one replaces the older.
    pub fn is_about_the_same(&self, other: &Draft) -> bool {
        self.what == other.what && self.is_limit() == other.is_limit()
    }

    /// Returns true if it applies to later fragments, whose ports are unknown. Without the first fragment, which is
    /// judged by its ports, later ones are harmless; so a rule that may let the first one pass lets them pass too.
    pub fn holds_for_fragments(&self) -> bool {
        self.action == Action::Allow || !self.what.has_transport_condition()
    }

    /// Returns the rank; among rules with the same prefixes, the one with the lower rank is tried first.
    pub fn rank(&self) -> impl Ord + use<> {
        let services = self.what.services();
        let width = services.iter().map(|(first, last)| last - first).max();
        let order = match (self.is_limit(), self.action) {
            (true, _) => 0,
            (false, Action::Deny) => 1,
            (false, Action::Allow) => 2,
        };
        let length = |mac: Option<MacPrefix>| mac.map_or(0, MacPrefix::length);
        let macs = length(self.what.source_mac) + length(self.what.destination_mac);
        let source_ports = self.what.source_ports;
        (
            self.what.on.is_none(),
            std::cmp::Reverse(macs),
            width,
            services.len(),
            source_ports.map_or(u16::MAX, |ports| ports.last - ports.first),
            self.what.tcp.is_none(),
            order,
            self.id,
        )
    }

    /// Returns true if it decides each packet of its services, so that rules after it are never tried.
    pub fn is_certain(&self) -> bool {
        self.what.on.is_none()
            && self.what.tcp.is_none()
            && !self.what.names_extras()
            && self.expires.is_none()
            && !self.is_limit()
    }

    /// Returns true if its decision depends on the services alone.
    pub fn is_plain(&self) -> bool {
        self.is_certain() && self.rate.is_none()
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| now >= end)
    }
}

/// Writes the options of the command that makes such a rule, without its time.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.action.name(), self.what)?;
        match self.rate {
            Some(rate) => write!(f, " --rate {rate}"),
            None => Ok(()),
        }
    }
}

/// A TCP packet's part in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    /// Opens a connection: SYN without ACK.
    Syn,
    /// Belongs to a connection: ACK or RST.
    Established,
}

impl TcpState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Syn => "syn",
            Self::Established => "established",
        }
    }
}

/// The types in ICMP and in ICMPv6 that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IcmpType {
    pub v4: Option<u8>,
    pub v6: Option<u8>,
}

impl FromStr for IcmpType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        values::icmp_type(text).map(|(v4, v6)| Self { v4, v6 })
    }
}

impl fmt::Display for IcmpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&values::icmp_type_name(self.v4, self.v6))
    }
}

/// An interface that a rule is confined to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct On {
    pub index: u32,
    pub name: String,
}

/// Ports, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    pub first: u16,
    pub last: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a port; write for example 53 or 6000-6100");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| -> Result<u16, String> {
            if text.bytes().all(|digit| digit.is_ascii_digit()) {
                text.parse().map_err(|_| wrong())
            } else {
                Err(wrong())
            }
        };
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(Self { first, last }) } else { Err(format!("'{text}' ends before it begins")) }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { self.first.fmt(f) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Conditions on a packet, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match {
    pub source: Option<Prefix>,
    pub destination: Option<Prefix>,
    pub protocol: Option<u8>,
    /// Destination ports.
    pub ports: Option<Ports>,
    pub source_ports: Option<Ports>,
    pub icmp: Option<IcmpType>,
    pub tcp: Option<TcpState>,
    pub source_mac: Option<MacPrefix>,
    pub destination_mac: Option<MacPrefix>,
    pub on: Option<On>,
}

/// A service: protocol and port or ICMP type, as one number that the program compares (see bpf/include/guard.h).
pub type Services = (u32, u32);
pub(crate) const PROTOCOL_SHIFT: u32 = 16;
const ANY_SERVICE: Services = (0, 0xff_ffff);

impl Match {
    /// Returns true if it names no condition except possibly an interface.
    pub fn is_about_everything(&self) -> bool {
        let Self { source, destination, protocol, ports, source_ports, icmp, tcp, source_mac, destination_mac, on: _ } =
            self;
        source.is_none()
            && destination.is_none()
            && protocol.is_none()
            && ports.is_none()
            && source_ports.is_none()
            && icmp.is_none()
            && tcp.is_none()
            && source_mac.is_none()
            && destination_mac.is_none()
    }

    /// Completes implied conditions: flags imply TCP, and a type implies one protocol if the prefixes do. The error
    /// says why no packet could ever match.
    pub fn complete(mut self) -> Result<Self, String> {
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.is_ipv6() != destination.is_ipv6()
        {
            return Err(format!("the source {source} and the destination {destination} differ in IP version"));
        }
        if self.tcp.is_some() {
            match self.protocol {
                None | Some(TCP) => self.protocol = Some(TCP),
                Some(other) => {
                    return Err(format!("only TCP has connections, not {}", values::protocol_name(other)));
                }
            }
        }
        if let (Some(_), Some(protocol)) = (self.ports.or(self.source_ports), self.protocol)
            && !WITH_PORTS.contains(&protocol)
        {
            return Err(format!(
                "{} has no ports; protocols with ports: {}",
                values::protocol_name(protocol),
                WITH_PORTS.map(values::protocol_name).join(", ")
            ));
        }
        if self.icmp.is_some() {
            self.complete_icmp()?;
        }
        Ok(self)
    }

    fn complete_icmp(&mut self) -> Result<(), String> {
        if self.ports.or(self.source_ports).is_some() {
            return Err("ICMP has types, not ports".to_owned());
        }
        let Some(icmp) = &mut self.icmp else {
            return Ok(());
        };
        let family = self.source.or(self.destination).map(Prefix::is_ipv6);
        match self.protocol {
            Some(ICMP) => icmp.v6 = None,
            Some(ICMPV6) => icmp.v4 = None,
            None => {}
            Some(other) => {
                return Err(format!("{} has no ICMP types", values::protocol_name(other)));
            }
        }
        match family {
            Some(true) => icmp.v4 = None,
            Some(false) => icmp.v6 = None,
            None => {}
        }
        if *icmp == (IcmpType { v4: None, v6: None }) {
            Err("that version of ICMP has no such type".to_owned())
        } else {
            Ok(())
        }
    }

    /// Returns the services that it matches, in one or two ranges.
    pub fn services(&self) -> Vec<Services> {
        let of = |protocol: u8, first: u16, last: u16| {
            let base = u32::from(protocol) << PROTOCOL_SHIFT;
            (base | u32::from(first), base | u32::from(last))
        };
        if let Some(icmp) = self.icmp {
            let one = |protocol, number: Option<u8>| number.map(|n| of(protocol, n.into(), n.into()));
            return [one(ICMP, icmp.v4), one(ICMPV6, icmp.v6)].into_iter().flatten().collect();
        }
        let all = Ports { first: 0, last: u16::MAX };
        let ports = self.ports.or(self.source_ports.map(|_| all));
        match (ports, self.protocol) {
            (Some(ports), Some(protocol)) => vec![of(protocol, ports.first, ports.last)],
            (Some(ports), None) => [TCP, UDP].map(|one| of(one, ports.first, ports.last)).into(),
            (None, Some(protocol)) => vec![of(protocol, 0, u16::MAX)],
            (None, None) => vec![ANY_SERVICE],
        }
    }

    /// Returns true if it names a condition that later fragments cannot satisfy.
    pub(crate) fn has_transport_condition(&self) -> bool {
        self.ports.is_some() || self.source_ports.is_some() || self.icmp.is_some() || self.tcp.is_some()
    }

    /// Returns true if it names rare conditions, which the program checks separately.
    pub(crate) fn names_extras(&self) -> bool {
        self.source_ports.is_some() || self.source_mac.is_some() || self.destination_mac.is_some()
    }

    pub fn any_service(&self) -> bool {
        self.protocol.is_none() && !self.has_transport_condition()
    }
}

impl Match {
    /// Returns its conditions under the names used in options and rule files. A flag has no value.
    pub fn conditions(&self) -> Vec<(&'static str, Option<String>)> {
        let mut all = Vec::new();
        let mut add = |name, value: Option<String>| all.extend(value.map(|one| (name, Some(one))));
        add("src", self.source.map(|one| one.to_string()));
        add("dst", self.destination.map(|one| one.to_string()));
        add("proto", self.protocol.map(values::protocol_name));
        add("port", self.ports.map(|one| one.to_string()));
        add("src-port", self.source_ports.map(|one| one.to_string()));
        add("icmp", self.icmp.map(|one| one.to_string()));
        all.extend(self.tcp.map(|state| (state.name(), None)));
        let mut add = |name, value: Option<String>| all.extend(value.map(|one| (name, Some(one))));
        add("src-mac", self.source_mac.map(|one| one.to_string()));
        add("dst-mac", self.destination_mac.map(|one| one.to_string()));
        add("on", self.on.as_ref().map(|on| on.name.clone()));
        all
    }
}

/// Writes the options that make such a rule.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.conditions() {
            write!(f, " --{name}")?;
            if let Some(value) = value {
                write!(f, " {value}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    PingFlood,
    UdpFlood,
    SynFlood,
}

impl Preset {
    pub const ALL: [Self; 3] = [Self::PingFlood, Self::UdpFlood, Self::SynFlood];

    pub fn name(self) -> &'static str {
        match self {
            Self::PingFlood => "ping-flood",
            Self::UdpFlood => "udp-flood",
            Self::SynFlood => "syn-flood",
        }
    }

    /// Returns the default limit in packets per second from one source: more than users and their programs need.
    pub fn usual_rate(self) -> u64 {
        match self {
            Self::PingFlood => 10,
            Self::UdpFlood => 5_000,
            Self::SynFlood => 100,
        }
    }

    /// Returns the rules of the preset, with this rate or the usual one.
    pub fn drafts(self, rate: Option<u64>) -> Vec<Draft> {
        let what = match self {
            Self::PingFlood => Match { icmp: Some(IcmpType { v4: Some(8), v6: Some(128) }), ..Match::default() },
            Self::UdpFlood => Match { protocol: Some(UDP), ..Match::default() },
            Self::SynFlood => Match { protocol: Some(TCP), tcp: Some(TcpState::Syn), ..Match::default() },
        };
        vec![Draft { action: Action::Deny, what, rate: Some(rate.unwrap_or(self.usual_rate())), expires: None }]
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            format!("'{text}' is not a preset; presets: {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: Action, what: Match) -> Rule {
        rule_with_rate(action, what, None)
    }

    fn rule_with_rate(action: Action, what: Match, rate: Option<u64>) -> Rule {
        let draft = Draft { action, what: what.complete().unwrap(), rate, expires: None };
        draft.numbered(1)
    }

    #[test]
    fn narrower_service_comes_first() {
        let ports = |first, last| Match { ports: Some(Ports { first, last }), ..Match::default() };
        let on = Some(On { index: 3, name: "eth0".to_owned() });
        let in_order = [
            rule(Action::Allow, Match { on, ..Match::default() }),
            rule(Action::Allow, Match { protocol: Some(6), ..ports(22, 22) }),
            rule(Action::Allow, ports(22, 22)),
            rule(Action::Allow, ports(20, 30)),
            rule(Action::Allow, Match { tcp: Some(TcpState::Syn), ..Match::default() }),
            rule_with_rate(Action::Deny, Match { protocol: Some(6), ..Match::default() }, Some(5)),
            rule(Action::Deny, Match { protocol: Some(6), ..Match::default() }),
            rule(Action::Allow, Match { protocol: Some(6), ..Match::default() }),
            rule(Action::Deny, Match::default()),
        ];
        assert!(in_order.windows(2).all(|pair| pair[0].rank() < pair[1].rank()));
    }

    #[test]
    fn rule_is_shown_as_the_command_that_makes_it() {
        let what = Match {
            source: Some("10.0.0.0/8".parse().unwrap()),
            ports: Some(Ports { first: 22, last: 22 }),
            tcp: Some(TcpState::Syn),
            on: Some(On { index: 3, name: "eth0".to_owned() }),
            ..Match::default()
        };
        let rule = rule_with_rate(Action::Deny, what, Some(10));
        assert_eq!(rule.to_string(), "deny --src 10.0.0.0/8 --proto tcp --port 22 --syn --on eth0 --rate 10");
    }

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!("53".parse(), Ok(Ports { first: 53, last: 53 }));
        assert_eq!("0-65535".parse(), Ok(Ports { first: 0, last: 65535 }));
        for text in ["", "-", "1-", "-1", "2-1", "65536", "x", "1-2-3", "+5"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }

    #[test]
    fn impossible_matches_are_refused_with_a_reason() {
        let prefix = |text: &str| Some(text.parse().unwrap());
        let ports = Some(Ports { first: 1, last: 1 });
        let icmp = Some(IcmpType { v4: Some(8), v6: Some(128) });
        let wrong = [
            (Match { source: prefix("10.0.0.0/8"), destination: prefix("::1"), ..Match::default() }, "IP version"),
            (Match { protocol: Some(47), ports, ..Match::default() }, "gre has no ports"),
            (Match { protocol: Some(17), tcp: Some(TcpState::Syn), ..Match::default() }, "only TCP"),
            (Match { icmp, ports, ..Match::default() }, "not ports"),
            (Match { icmp, protocol: Some(6), ..Match::default() }, "no ICMP types"),
            (
                Match { icmp: Some(IcmpType { v4: Some(13), v6: None }), source: prefix("::1"), ..Match::default() },
                "no such type",
            ),
        ];
        for (what, words) in wrong {
            let error = what.complete().unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn services_are_ranges_of_numbers() {
        let ports = Some(Ports { first: 80, last: 81 });
        let both = Match { ports, ..Match::default() };
        assert_eq!(both.services(), [(0x06_0050, 0x06_0051), (0x11_0050, 0x11_0051)]);
        let icmp = Some(IcmpType { v4: Some(8), v6: Some(128) });
        let ping = Match { icmp, ..Match::default() }.complete().unwrap();
        assert_eq!(ping.services(), [(0x01_0008, 0x01_0008), (0x3a_0080, 0x3a_0080)]);
        let ping4 = Match { icmp, protocol: Some(1), ..Match::default() }.complete().unwrap();
        assert_eq!(ping4.services(), [(0x01_0008, 0x01_0008)]);
    }
}
