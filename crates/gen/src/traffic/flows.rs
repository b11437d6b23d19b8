//! What makes flows different where nothing was said to vary.

use super::field::{Choice, Kind};
use super::frame::mac_bytes;
use super::{Misfit, Protocol, Spec, family};

/// Where source ports begin that stand for flows, and how many there are.
const FIRST_FLOW_PORT: u128 = 1024;
const FLOW_PORTS: u64 = 65_536 - 1024;

impl Spec {
    /// Flows have to differ in something: where nothing varies, ports, identifiers or addresses do.
    pub(super) fn with_flows(&self, flows: Option<u64>) -> Result<Spec, Misfit> {
        let mut varied = self.clone();
        let Some(flows) = flows else {
            return Ok(varied);
        };
        let mut period = 1u64;
        let mut chance = false;
        for (key, kind) in [
            ("src-mac", Kind::Mac),
            ("dst-mac", Kind::Mac),
            ("src", family(self.get("src").unwrap_or(""))),
            ("dst", family(self.get("dst").unwrap_or(""))),
            ("src-port", Kind::Number(16)),
            ("dst-port", Kind::Number(16)),
            ("id", Kind::Number(16)),
        ] {
            let Some(choice) = self.choice(key, kind)? else {
                continue;
            };
            match choice.period() {
                Some(0) => period = u64::MAX,
                Some(own) => period = lcm(period, own),
                None => chance = true,
            }
        }
        if period > 1 || chance {
            if period < flows && !chance {
                let why = format!("the fields that vary make only {period} different flows");
                return Err(Misfit::new("flows", why));
            }
            return Ok(varied);
        }
        let last = |first: u128, count: u64| format!("{first}-{}", first + u128::from(count) - 1);
        match self.protocol {
            Protocol::Udp | Protocol::Tcp => {
                let ports = flows.min(FLOW_PORTS);
                varied
                    .values
                    .insert("src-port", last(FIRST_FLOW_PORT, ports));
                if flows > FLOW_PORTS {
                    // One port fewer on the other side: the pair is the same again only after the product of both.
                    varied
                        .values
                        .insert("dst-port", last(FIRST_FLOW_PORT, FLOW_PORTS - 1));
                }
            }
            Protocol::Icmp if flows <= 65_536 => {
                varied.values.insert("id", last(0, flows));
            }
            Protocol::Icmp => {
                return Err(Misfit::new("flows", "an echo identifier tells 65536 apart"));
            }
            Protocol::Arp | Protocol::Eth => {
                let mac = self.choice_or("src-mac", Kind::Mac, 0)?.first();
                let text = |mac: u128| {
                    let bytes = mac_bytes(&Choice::Fixed(mac)).map(|byte| format!("{byte:02x}"));
                    bytes.join(":")
                };
                let range = format!("{}-{}", text(mac), text(mac + u128::from(flows) - 1));
                varied.values.insert("src-mac", range);
            }
            Protocol::Raw => {
                return Err(Misfit::new(
                    "flows",
                    "in a raw frame nothing is known that could vary",
                ));
            }
        }
        Ok(varied)
    }
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).saturating_mul(b)
}
