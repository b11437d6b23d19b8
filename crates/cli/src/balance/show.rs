//! What shows a balancer: its table, and its counts.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use trawl_balance::stats::VipCount;
use trawl_balance::{Backend, Protocol, Vip};
use trawl_program::bundled::stats::Account;
use trawl_sys::Result;

use super::{List, Stats};
use crate::json;
use crate::terminal::{self, write_out, write_to_reader};

#[derive(Debug, Serialize)]
struct ListDocument<'a> {
    interface: &'a str,
    vips: Vec<VipDocument>,
}

#[derive(Debug, Serialize)]
struct VipDocument {
    vip: String,
    address: IpAddr,
    protocol: Protocol,
    /// `None`: all ports.
    port: Option<u16>,
    forward: &'static str,
    backends: Vec<BackendDocument>,
}

#[derive(Debug, Serialize)]
struct BackendDocument {
    address: IpAddr,
    weight: u32,
    mac: Option<String>,
    server_id: Option<u16>,
    state: &'static str,
}

fn state(one: &Backend) -> &'static str {
    match (one.down, one.draining) {
        (true, _) => "down",
        (false, true) => "draining",
        (false, false) => "active",
    }
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl From<&Vip> for VipDocument {
    fn from(vip: &Vip) -> Self {
        let backend = |one: &Backend| BackendDocument {
            address: one.address,
            weight: one.weight,
            mac: one.mac.map(mac),
            server_id: one.server_id,
            state: state(one),
        };
        Self {
            vip: vip.service.to_string(),
            address: vip.service.address,
            protocol: vip.service.protocol,
            port: Some(vip.service.port).filter(|port| *port != 0),
            forward: vip.forward.name(),
            backends: vip.backends.iter().map(backend).collect(),
        }
    }
}

pub fn list(args: &List) -> Result<()> {
    let balancer = args.place.balancer()?;
    let table = balancer.table()?;
    let vips: Vec<VipDocument> = table.vips.iter().map(VipDocument::from).collect();
    if args.place.json {
        return json::print(&ListDocument {
            interface: balancer.site.label(),
            vips,
        });
    }
    let mut text = String::new();
    for vip in vips {
        let _ = writeln!(text, "{}  {}", vip.vip, vip.forward);
        for one in vip.backends {
            let mac = one.mac.map_or(String::new(), |mac| format!("  mac {mac}"));
            let server = one
                .server_id
                .map_or(String::new(), |id| format!("  server id {id}"));
            let _ = writeln!(
                text,
                "  {}  weight {}  {}{mac}{server}",
                one.address, one.weight, one.state
            );
        }
    }
    if text.is_empty() {
        terminal::say("no virtual addresses: trawl balance vip add VIP");
    }
    write_out(&text)
}

#[derive(Debug, Serialize)]
struct StatsDocument<'a> {
    interface: &'a str,
    #[serde(flatten)]
    account: Account,
    vips: Vec<VipCount>,
}

pub fn stats(args: &Stats) -> Result<()> {
    let balancer = args.place.balancer()?;
    loop {
        // What comes in between is in the account of all at least.
        let vips = balancer.by_vip()?;
        let document = StatsDocument {
            interface: balancer.site.label(),
            account: balancer.account()?,
            vips,
        };
        let text = match args.place.json {
            true => json::line(&document)?,
            false => for_people(&document),
        };
        let Some(every) = args.watch else {
            return write_out(&text);
        };
        let text = match args.place.json {
            true => text,
            false => terminal::frame(every, &text),
        };
        if !write_to_reader(&text)? {
            return Ok(());
        }
        std::thread::sleep(every);
    }
}

fn for_people(document: &StatsDocument<'_>) -> String {
    let account = &document.account;
    let mut text = format!(
        "{}  {} packets, {} bytes\n",
        document.interface, account.packets, account.bytes
    );
    for one in &account.outcomes {
        let _ = writeln!(text, "  {:>12}  {}", one.packets, one.text);
    }
    for vip in &document.vips {
        let _ = writeln!(
            text,
            "{}  {} packets, {} bytes",
            vip.vip, vip.seen.packets, vip.seen.bytes
        );
        for one in &vip.backends {
            let _ = writeln!(text, "  {:>12}  {}", one.forwarded.packets, one.address);
        }
        if vip.removed_backends.packets != 0 {
            let _ = writeln!(
                text,
                "  {:>12}  removed backends",
                vip.removed_backends.packets
            );
        }
        let not_forwarded = |name: &str| !name.starts_with("forwarded");
        for one in vip.outcomes.iter().filter(|one| not_forwarded(one.name)) {
            let _ = writeln!(text, "  {:>12}  {}", one.packets, one.text);
        }
    }
    text
}
