//! What a rule is: which packets it is about, and what becomes of them.

mod what;

use std::fmt;

use crate::mac::MacPrefix;

pub(super) use what::PROTOCOL_SHIFT;
pub use what::{IcmpType, Match, On, Ports, Services, TcpState};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// A rule of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: u32,
    pub action: Action,
    pub what: Match,
    /// Packets a second from one source. One that allows drops what is above; one that denies leaves what is below
    /// to the other rules.
    pub rate: Option<u64>,
    /// When it ends, in nanoseconds of the steady clock.
    pub expires: Option<u64>,
}

impl Rule {
    /// A limit that stands beside other rules for the same packets, rather than deciding about them.
    pub fn is_limit(&self) -> bool {
        self.action == Action::Deny && self.rate.is_some()
    }

    /// Two rules about the same packets: the newer one takes the place of the older.
    pub fn is_about_the_same(&self, other: &Self) -> bool {
        self.what == other.what && self.is_limit() == other.is_limit()
    }

    /// Whether it holds for fragments but the first, whose ports nobody knows. They do no harm without their first
    /// fragment, which is judged by its ports; so what may let that pass lets them pass as well.
    pub fn holds_for_fragments(&self) -> bool {
        self.action == Action::Allow || !self.what.looks_at_transport()
    }

    /// Among rules with the same prefixes, the one with the lower rank is tried first.
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

    /// It decides about each packet of its services: rules after it are never asked.
    pub fn is_certain(&self) -> bool {
        self.what.on.is_none()
            && self.what.tcp.is_none()
            && !self.what.names_extras()
            && self.expires.is_none()
            && !self.is_limit()
    }

    /// Nothing but the services has to be looked at to know what it does.
    pub fn is_plain(&self) -> bool {
        self.is_certain() && self.rate.is_none()
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| now >= end)
    }
}

/// As the command that makes such a rule, without its time.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.action.name(), self.what)?;
        match self.rate {
            Some(rate) => write!(f, " --rate {rate}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: Action, what: Match) -> Rule {
        Rule {
            id: 1,
            action,
            what: what.complete().unwrap(),
            rate: None,
            expires: None,
        }
    }

    #[test]
    fn the_narrower_service_comes_first() {
        let ports = |first, last| Match {
            ports: Some(Ports { first, last }),
            ..Match::default()
        };
        let on = Some(On {
            index: 3,
            name: "eth0".to_owned(),
        });
        let in_order = [
            rule(
                Action::Allow,
                Match {
                    on,
                    ..Match::default()
                },
            ),
            rule(
                Action::Allow,
                Match {
                    protocol: Some(6),
                    ..ports(22, 22)
                },
            ),
            rule(Action::Allow, ports(22, 22)),
            rule(Action::Allow, ports(20, 30)),
            rule(
                Action::Allow,
                Match {
                    tcp: Some(TcpState::Syn),
                    ..Match::default()
                },
            ),
            Rule {
                rate: Some(5),
                ..rule(
                    Action::Deny,
                    Match {
                        protocol: Some(6),
                        ..Match::default()
                    },
                )
            },
            rule(
                Action::Deny,
                Match {
                    protocol: Some(6),
                    ..Match::default()
                },
            ),
            rule(
                Action::Allow,
                Match {
                    protocol: Some(6),
                    ..Match::default()
                },
            ),
            rule(Action::Deny, Match::default()),
        ];
        assert!(
            in_order
                .windows(2)
                .all(|pair| pair[0].rank() < pair[1].rank())
        );
    }

    #[test]
    fn a_rule_is_shown_as_the_command_that_makes_it() {
        let what = Match {
            source: Some("10.0.0.0/8".parse().unwrap()),
            ports: Some(Ports {
                first: 22,
                last: 22,
            }),
            tcp: Some(TcpState::Syn),
            on: Some(On {
                index: 3,
                name: "eth0".to_owned(),
            }),
            ..Match::default()
        };
        let rule = Rule {
            rate: Some(10),
            ..rule(Action::Deny, what)
        };
        assert_eq!(
            rule.to_string(),
            "deny --src 10.0.0.0/8 --proto tcp --port 22 --syn --on eth0 --rate 10"
        );
    }
}
