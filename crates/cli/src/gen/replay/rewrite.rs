//! What is to be changed in replayed frames, as arguments.

use std::net::IpAddr;

use trawl_gen::replay::rewrite::{Prefix, Rewrite, TagChange};
use trawl_sys::{Error, Result};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Changes to the frames (checksums are kept as right as they were)")]
pub struct Changes {
    /// MAC address that all frames come from
    #[arg(long, value_name = "MAC", value_parser = mac)]
    src_mac: Option<Mac>,
    /// MAC address that all frames go to
    #[arg(long, value_name = "MAC", value_parser = mac)]
    dst_mac: Option<Mac>,
    /// One MAC address instead of another, on both sides; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(mac))]
    map_mac: Vec<(Mac, Mac)>,
    /// Source IP address of all packets; one for IPv4 and one for IPv6 may be given
    #[arg(long, value_name = "IP")]
    src_ip: Vec<IpAddr>,
    /// Destination IP address of all packets; one for IPv4 and one for IPv6 may be given
    #[arg(long, value_name = "IP")]
    dst_ip: Vec<IpAddr>,
    /// One prefix instead of another, on both sides, for example 10.0.0.0/8=172.16.0.0/12; may be repeated, the first that fits counts
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(prefix))]
    map_ip: Vec<(Prefix, Prefix)>,
    /// VLAN of all frames (a tag is added if there is none), or `none` to remove the outermost tag
    #[arg(long, value_name = "ID|none", value_parser = tag)]
    vlan: Option<TagChange>,
    /// One VLAN instead of another; may be repeated
    #[arg(long, value_name = "OLD=NEW", value_parser = pair(vlan), conflicts_with = "vlan")]
    map_vlan: Vec<(u16, u16)>,
}

type Mac = [u8; 6];

impl Changes {
    pub fn rules(&self) -> Result<Rewrite> {
        let (source_v4, source_v6) = by_version("--src-ip", &self.src_ip)?;
        let (destination_v4, destination_v6) = by_version("--dst-ip", &self.dst_ip)?;
        for (old, new) in &self.map_ip {
            if old.is_v4() != new.is_v4() {
                return Err(Error::usage("--map-ip", "one is IPv4 and the other IPv6"));
            }
        }
        Ok(Rewrite {
            source_mac: self.src_mac,
            destination_mac: self.dst_mac,
            macs: self.map_mac.clone(),
            source_v4,
            source_v6,
            destination_v4,
            destination_v6,
            prefixes: self.map_ip.clone(),
            tag: self.vlan,
            tags: self.map_vlan.clone(),
        })
    }
}

/// At most one of each.
fn by_version(
    name: &str,
    given: &[IpAddr],
) -> Result<(Option<std::net::Ipv4Addr>, Option<std::net::Ipv6Addr>)> {
    let (mut v4, mut v6) = (None, None);
    for address in given {
        let twice = match address {
            IpAddr::V4(address) => v4.replace(*address).is_some(),
            IpAddr::V6(address) => v6.replace(*address).is_some(),
        };
        if twice {
            let why = "two addresses of one kind: which one?";
            return Err(Error::usage(format!("{name} {address}"), why));
        }
    }
    Ok((v4, v6))
}

fn mac(text: &str) -> Result<Mac, String> {
    let wrong = || format!("'{text}' is not a MAC address such as 02:00:00:00:00:01");
    let parts: Vec<&str> = text.split([':', '-']).collect();
    let mut mac = [0; 6];
    if parts.len() != mac.len() {
        return Err(wrong());
    }
    for (byte, part) in mac.iter_mut().zip(parts) {
        if !(1..=2).contains(&part.len()) || part.starts_with('+') {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    Ok(mac)
}

fn prefix(text: &str) -> Result<Prefix, String> {
    text.parse()
}

fn vlan(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(id @ 0..=4095) => Ok(id),
        _ => Err(format!("'{text}' is not a VLAN number, 0 to 4095")),
    }
}

fn tag(text: &str) -> Result<TagChange, String> {
    if text == "none" {
        return Ok(TagChange::Remove);
    }
    vlan(text).map(TagChange::Set)
}

/// `OLD=NEW`
fn pair<T>(
    one: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<(T, T), String> + Clone + Send + Sync {
    move |text| {
        let (old, new) = text
            .split_once('=')
            .ok_or_else(|| format!("'{text}': write OLD=NEW"))?;
        Ok((one(old)?, one(new)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        assert_eq!(mac("02:00:00:00:00:0A"), Ok([2, 0, 0, 0, 0, 10]));
        assert_eq!(tag("none"), Ok(TagChange::Remove));
        assert_eq!(tag("7"), Ok(TagChange::Set(7)));
        assert_eq!(pair(vlan)("1=2"), Ok((1, 2)));
        for text in [
            "",
            "1:2:3:4:5",
            "g0:0:0:0:0:0",
            "1:2:3:4:5:6:7",
            "+1:0:0:0:0:0",
        ] {
            assert!(mac(text).is_err(), "{text}");
        }
        assert!(tag("4096").is_err() && pair(vlan)("1").is_err() && pair(vlan)("1=x").is_err());
    }
}
