//! Which packets a rule is about.

use std::fmt;

use crate::mac::MacPrefix;
use crate::names::{self, ICMP, ICMPV6, TCP, UDP, WITH_PORTS};
use crate::prefix::Prefix;

/// A TCP packet's part in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    /// It asks for one: SYN without ACK.
    Syn,
    /// It belongs to one: ACK or RST.
    Established,
}

/// The types in ICMP and in ICMPv6 that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IcmpType {
    pub v4: Option<u8>,
    pub v6: Option<u8>,
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

impl std::str::FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a port; write for example 53 or 6000-6100");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| -> Result<u16, String> {
            match text.bytes().all(|digit| digit.is_ascii_digit()) {
                true => text.parse().map_err(|_| wrong()),
                false => Err(wrong()),
            }
        };
        let (first, last) = (number(first)?, number(last)?);
        match first <= last {
            true => Ok(Self { first, last }),
            false => Err(format!("'{text}' ends before it begins")),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => self.first.fmt(f),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// Which packets: those for which all that is given here is true.
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
    /// Whether it names nothing but an interface, if that.
    pub fn is_about_everything(&self) -> bool {
        let Self {
            source,
            destination,
            protocol,
            ports,
            source_ports,
            icmp,
            tcp,
            source_mac,
            destination_mac,
            on: _,
        } = self;
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

    /// Says why no packet could ever match, or completes what is implied: flags are TCP's, and a type is that of one
    /// protocol where the prefixes say which.
    pub fn complete(mut self) -> Result<Self, String> {
        if let (Some(source), Some(destination)) = (self.source, self.destination)
            && source.is_ipv6() != destination.is_ipv6()
        {
            return Err(format!(
                "the source {source} and the destination {destination} are not of one IP version"
            ));
        }
        if self.tcp.is_some() {
            match self.protocol {
                None | Some(TCP) => self.protocol = Some(TCP),
                Some(other) => {
                    return Err(format!(
                        "only TCP has connections, not {}",
                        names::protocol_name(other)
                    ));
                }
            }
        }
        if let (Some(_), Some(protocol)) = (self.ports.or(self.source_ports), self.protocol)
            && !WITH_PORTS.contains(&protocol)
        {
            return Err(format!(
                "{} has no ports; those that have: {}",
                names::protocol_name(protocol),
                WITH_PORTS.map(names::protocol_name).join(", ")
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
                return Err(format!("{} has no ICMP types", names::protocol_name(other)));
            }
        }
        match family {
            Some(true) => icmp.v4 = None,
            Some(false) => icmp.v6 = None,
            None => {}
        }
        match *icmp == (IcmpType { v4: None, v6: None }) {
            true => Err("there is no such type in that version of ICMP".to_owned()),
            false => Ok(()),
        }
    }

    /// One or two ranges.
    pub fn services(&self) -> Vec<Services> {
        let of = |protocol: u8, first: u16, last: u16| {
            let base = u32::from(protocol) << PROTOCOL_SHIFT;
            (base | u32::from(first), base | u32::from(last))
        };
        if let Some(icmp) = self.icmp {
            let one =
                |protocol, number: Option<u8>| number.map(|n| of(protocol, n.into(), n.into()));
            return [one(ICMP, icmp.v4), one(ICMPV6, icmp.v6)]
                .into_iter()
                .flatten()
                .collect();
        }
        let all = Ports {
            first: 0,
            last: u16::MAX,
        };
        let ports = self.ports.or(self.source_ports.map(|_| all));
        match (ports, self.protocol) {
            (Some(ports), Some(protocol)) => vec![of(protocol, ports.first, ports.last)],
            (Some(ports), None) => [TCP, UDP]
                .map(|one| of(one, ports.first, ports.last))
                .into(),
            (None, Some(protocol)) => vec![of(protocol, 0, u16::MAX)],
            (None, None) => vec![ANY_SERVICE],
        }
    }

    /// Whether it names something that later fragments do not tell.
    pub(crate) fn looks_at_transport(&self) -> bool {
        self.ports.is_some()
            || self.source_ports.is_some()
            || self.icmp.is_some()
            || self.tcp.is_some()
    }

    /// Whether it names what few rules name, which the program has to look at besides.
    pub(crate) fn names_extras(&self) -> bool {
        self.source_ports.is_some() || self.source_mac.is_some() || self.destination_mac.is_some()
    }

    pub fn any_service(&self) -> bool {
        self.protocol.is_none() && !self.looks_at_transport()
    }
}

/// As the options that make such a rule.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(source) = self.source {
            write!(f, " --src {source}")?;
        }
        if let Some(destination) = self.destination {
            write!(f, " --dst {destination}")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " --proto {}", names::protocol_name(protocol))?;
        }
        if let Some(ports) = self.ports {
            write!(f, " --port {ports}")?;
        }
        if let Some(ports) = self.source_ports {
            write!(f, " --src-port {ports}")?;
        }
        if let Some(icmp) = self.icmp {
            write!(f, " --icmp {}", names::icmp_type_name(icmp.v4, icmp.v6))?;
        }
        match self.tcp {
            Some(TcpState::Syn) => f.write_str(" --syn")?,
            Some(TcpState::Established) => f.write_str(" --established")?,
            None => {}
        }
        if let Some(mac) = self.source_mac {
            write!(f, " --src-mac {mac}")?;
        }
        if let Some(mac) = self.destination_mac {
            write!(f, " --dst-mac {mac}")?;
        }
        if let Some(on) = &self.on {
            write!(f, " --on {}", on.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_range() {
        assert_eq!(
            "53".parse(),
            Ok(Ports {
                first: 53,
                last: 53
            })
        );
        assert_eq!(
            "0-65535".parse(),
            Ok(Ports {
                first: 0,
                last: 65535
            })
        );
        for text in ["", "-", "1-", "-1", "2-1", "65536", "x", "1-2-3", "+5"] {
            assert!(text.parse::<Ports>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_reason() {
        let prefix = |text: &str| Some(text.parse().unwrap());
        let ports = Some(Ports { first: 1, last: 1 });
        let icmp = Some(IcmpType {
            v4: Some(8),
            v6: Some(128),
        });
        let wrong = [
            (
                Match {
                    source: prefix("10.0.0.0/8"),
                    destination: prefix("::1"),
                    ..Match::default()
                },
                "IP version",
            ),
            (
                Match {
                    protocol: Some(47),
                    ports,
                    ..Match::default()
                },
                "gre has no ports",
            ),
            (
                Match {
                    protocol: Some(17),
                    tcp: Some(TcpState::Syn),
                    ..Match::default()
                },
                "only TCP",
            ),
            (
                Match {
                    icmp,
                    ports,
                    ..Match::default()
                },
                "not ports",
            ),
            (
                Match {
                    icmp,
                    protocol: Some(6),
                    ..Match::default()
                },
                "no ICMP types",
            ),
            (
                Match {
                    icmp: Some(IcmpType {
                        v4: Some(13),
                        v6: None,
                    }),
                    source: prefix("::1"),
                    ..Match::default()
                },
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
        let ports = Some(Ports {
            first: 80,
            last: 81,
        });
        let both = Match {
            ports,
            ..Match::default()
        };
        assert_eq!(
            both.services(),
            [(0x06_0050, 0x06_0051), (0x11_0050, 0x11_0051)]
        );
        let icmp = Some(IcmpType {
            v4: Some(8),
            v6: Some(128),
        });
        let ping = Match {
            icmp,
            ..Match::default()
        }
        .complete()
        .unwrap();
        assert_eq!(
            ping.services(),
            [(0x01_0008, 0x01_0008), (0x3a_0080, 0x3a_0080)]
        );
        let ping4 = Match {
            icmp,
            protocol: Some(1),
            ..Match::default()
        }
        .complete()
        .unwrap();
        assert_eq!(ping4.services(), [(0x01_0008, 0x01_0008)]);
    }
}
