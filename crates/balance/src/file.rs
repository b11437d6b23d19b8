//! A balancer's table as a TOML file, accepted as a whole or not at all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
pub use trawl_packet::net::mac;

use serde::Deserialize;
use trawl_sys::{Error, Result, files::text_file};

use crate::table::{Backend, Forward, GUE_PORT, Protocol, Service, Sources, Table, Vip};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// Networks (a /16 and a /112) of the tunnels' source addresses.
    source_ipv4: Option<Ipv4Addr>,
    source_ipv6: Option<Ipv6Addr>,
    #[serde(default)]
    vip: Vec<VipEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VipEntry {
    address: IpAddr,
    /// Port; absent: all ports.
    port: Option<u16>,
    protocol: Protocol,
    #[serde(default)]
    forward: Forward,
    gue_port: Option<u16>,
    #[serde(default)]
    backend: Vec<BackendEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendEntry {
    address: IpAddr,
    weight: Option<u32>,
    mac: Option<String>,
    #[serde(default)]
    draining: bool,
    server_id: Option<u16>,
}

/// Reads a file's table, which has no numbers yet.
pub fn read(path: &Path) -> Result<Table> {
    let name = path.display().to_string();
    let text = if path == Path::new("-") {
        text_file::read_from(std::io::stdin(), &format!("cannot read {name}"))?
    } else {
        text_file::read(path)?
    };
    parse(&text).map_err(|why| Error::failed(format!("cannot read the table in {name}"), why))
}

/// Parses a table.
pub fn parse(text: &str) -> Result<Table, String> {
    let content: Content = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let mut table = Table::default();
    let sources = Sources::default();
    table.sources = Sources {
        ipv4: content.source_ipv4.unwrap_or(sources.ipv4),
        ipv6: content.source_ipv6.unwrap_or(sources.ipv6),
    };
    if table.sources.ipv4.to_bits() & 0xffff != 0 || table.sources.ipv6.to_bits() & 0xffff != 0 {
        return Err("the last 16 bits of source_ipv4 and source_ipv6 are the flow's: they must be zero".to_owned());
    }
    for entry in content.vip {
        table.add_vip(vip(entry)?);
    }
    Ok(table)
}

fn vip(entry: VipEntry) -> Result<Vip, String> {
    let service =
        Service { protocol: entry.protocol, address: entry.address.to_canonical(), port: entry.port.unwrap_or(0) };
    if entry.port == Some(0) {
        return Err(format!("{service}: port 0 is invalid; leave the port out for all ports"));
    }
    let mut vip = Vip::new(service, entry.forward);
    if entry.gue_port.is_some() && entry.forward != Forward::Gue {
        return Err(format!("{service}: gue_port is for forward = \"gue\" only"));
    }
    vip.gue_port = entry.gue_port.unwrap_or(GUE_PORT);
    for one in entry.backend {
        let mac = one.mac.as_deref().map(mac).transpose();
        vip.backends.push(Backend {
            weight: one.weight.unwrap_or(1),
            mac: mac.map_err(|why| format!("{service}: {why}"))?,
            draining: one.draining,
            server_id: one.server_id,
            ..Backend::new(one.address.to_canonical())
        });
    }
    Ok(vip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_sets_every_property() {
        let table = parse(
            r#"
            source_ipv4 = "10.200.0.0"
            [[vip]]
            address = "192.0.2.1"
            port = 443
            protocol = "quic"
            forward = "gue"
            gue_port = 9886
            [[vip.backend]]
            address = "10.0.0.1"
            weight = 3
            server_id = 7
            [[vip.backend]]
            address = "2001:db8::2"
            draining = true
            [[vip]]
            address = "2001:db8::80"
            protocol = "tcp"
            forward = "direct"
            [[vip.backend]]
            address = "2001:db8::3"
            mac = "02:00:00:00:00:0A"
            "#,
        )
        .expect("it is right");
        assert_eq!(table.vips.len(), 2);
        assert_eq!(table.vips[0].service.to_string(), "quic:192.0.2.1:443");
        assert_eq!(table.vips[0].gue_port, 9886);
        assert_eq!(table.vips[0].backends[0].server_id, Some(7));
        assert!(table.vips[0].backends[1].draining);
        assert_eq!(table.vips[1].backends[0].mac, Some([2, 0, 0, 0, 0, 10]));
        assert_eq!(table.vips[1].service.port, 0);
        assert!(table.check().is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            ("[[vip]]\naddress = \"1.2.3.4\"\n", "protocol"),
            ("[[vip]]\naddress = \"x\"\nprotocol = \"tcp\"\n", "address"),
            ("[[vip]]\naddress = \"1.2.3.4\"\nprotocol = \"tcp\"\nport = 0\n", "port 0"),
            ("[[vip]]\naddress = \"1.2.3.4\"\nprotocol = \"tcp\"\nport = 70000\n", "70000"),
            ("[[vip]]\naddress = \"1.2.3.4\"\nprotocol = \"tcp\"\nwight = 1\n", "wight"),
            ("source_ipv4 = \"10.0.0.1\"\n", "last 16 bits"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(says), "{why}");
        }
        for text in ["", "02:00", "02:00:00:00:00:0g", "02:00:00:00:00:00:00", "+2:00:00:00:00:00"] {
            assert!(mac(text).is_err(), "{text}");
        }
    }
}
