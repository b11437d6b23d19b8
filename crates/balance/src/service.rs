//! What a virtual address stands for: an address, a protocol, and one port or all; written `tcp:192.0.2.1:80`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Tcp,
    Udp,
    /// UDP, where packets name their server in the connection id.
    Quic,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Quic => "quic",
        }
    }

    /// Its number in IP headers.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp | Self::Quic => 17,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service {
    pub protocol: Protocol,
    pub address: IpAddr,
    /// 0: all ports.
    pub port: u16,
}

impl Service {
    /// Whether some packet would be for both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.address == other.address
            && self.protocol.number() == other.protocol.number()
            && (self.port == other.port || self.port == 0 || other.port == 0)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = self.protocol.name();
        match (self.address, self.port) {
            (address, 0) => write!(f, "{protocol}:{address}"),
            (IpAddr::V4(address), port) => write!(f, "{protocol}:{address}:{port}"),
            (IpAddr::V6(address), port) => write!(f, "{protocol}:[{address}]:{port}"),
        }
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || {
            format!(
                "'{text}' is not PROTOCOL:ADDRESS[:PORT], for example tcp:192.0.2.1:80 or udp:[2001:db8::1]:53"
            )
        };
        let (protocol, rest) = text.split_once(':').ok_or_else(usage)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "quic" => Protocol::Quic,
            _ => return Err(usage()),
        };
        let (address, port) = if let Ok(address) = rest.parse::<IpAddr>() {
            (address, 0)
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (address, port) = inner.split_once(']').ok_or_else(usage)?;
            let port = match port.strip_prefix(':') {
                Some(port) => port.parse().map_err(|_| usage())?,
                None if port.is_empty() => 0,
                None => return Err(usage()),
            };
            let address: std::net::Ipv6Addr = address.parse().map_err(|_| usage())?;
            (IpAddr::V6(address), port)
        } else {
            let (address, port) = rest.rsplit_once(':').ok_or_else(usage)?;
            let address: std::net::Ipv4Addr = address.parse().map_err(|_| usage())?;
            (IpAddr::V4(address), port.parse().map_err(|_| usage())?)
        };
        Ok(Self {
            protocol,
            address,
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_as_they_are_shown() {
        for text in [
            "tcp:192.0.2.1:80",
            "udp:192.0.2.1",
            "quic:[2001:db8::1]:443",
            "tcp:2001:db8::1",
        ] {
            let service: Service = text.parse().expect(text);
            assert_eq!(service.to_string(), text);
        }
        for text in [
            "",
            "tcp",
            "sctp:1.2.3.4:5",
            "tcp:1.2.3.4:x",
            "tcp:1.2.3.4:70000",
            "udp:[::1",
            "udp:[::1]x",
        ] {
            assert!(text.parse::<Service>().is_err(), "{text}");
        }
    }

    #[test]
    fn all_ports_overlap_one() {
        let service = |text: &str| text.parse::<Service>().expect(text);
        let all = service("udp:192.0.2.1");
        assert!(all.overlaps(&service("quic:192.0.2.1:443")));
        assert!(!all.overlaps(&service("tcp:192.0.2.1:443")));
        assert!(!service("tcp:192.0.2.1:1").overlaps(&service("tcp:192.0.2.1:2")));
    }
}
