//! Ready-made rules against the usual floods: what is above a rate from one source is dropped.

use std::str::FromStr;

use super::names::{TCP, UDP};
use super::rule::{Action, IcmpType, Match, TcpState};
use super::set::Draft;

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

    /// Packets a second that one source may send if nobody says: more than people and their programs need.
    pub fn usual_rate(self) -> u64 {
        match self {
            Self::PingFlood => 10,
            Self::UdpFlood => 5_000,
            Self::SynFlood => 100,
        }
    }

    /// Its rules.
    pub fn drafts(self, rate: Option<u64>) -> Vec<Draft> {
        let what = match self {
            Self::PingFlood => Match {
                icmp: Some(IcmpType {
                    v4: Some(8),
                    v6: Some(128),
                }),
                ..Match::default()
            },
            Self::UdpFlood => Match {
                protocol: Some(UDP),
                ..Match::default()
            },
            Self::SynFlood => Match {
                protocol: Some(TCP),
                tcp: Some(TcpState::Syn),
                ..Match::default()
            },
        };
        vec![Draft {
            action: Action::Deny,
            what,
            rate: Some(rate.unwrap_or(self.usual_rate())),
            expires: None,
        }]
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            format!("'{text}' is not a preset; there are {}", names.join(", "))
        })
    }
}
