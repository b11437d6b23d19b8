//! Commands that show a balancer: its table, its counts, and the health of its backends.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use trawl_packet::net::mac_text;

use serde::Serialize;
use trawl_balance::check::{Failure, Health, Probe};
use trawl_balance::stats::VipCount;
use trawl_balance::table::Forward;
use trawl_balance::{Backend, Balancer, Protocol, Vip};
use trawl_program::bundled::stats::ProgramAccount;
use trawl_program::safety::SessionCare;
use trawl_sys::{Error, Result};
use trawl_view::text::count;

use super::{BalancerArgs, Check, Stats};
use crate::json::{self, rounded_option};
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
    /// `None` for all ports.
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

impl From<&Vip> for VipDocument {
    fn from(vip: &Vip) -> Self {
        let backend = |one: &Backend| BackendDocument {
            address: one.address,
            weight: one.weight,
            mac: one.mac.map(mac_text),
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

pub fn list(args: &BalancerArgs) -> Result<()> {
    let balancer = args.balancer()?;
    let table = balancer.table()?;
    let vips: Vec<VipDocument> = table.vips.iter().map(VipDocument::from).collect();
    if args.json {
        return json::print(&ListDocument { interface: balancer.site.label(), vips });
    }
    let mut text = String::new();
    for vip in vips {
        let _ = writeln!(text, "{}  {}", vip.vip, vip.forward);
        for one in vip.backends {
            let mac = one.mac.map_or(String::new(), |mac| format!("  mac {mac}"));
            let server = one.server_id.map_or(String::new(), |id| format!("  server id {id}"));
            let _ = writeln!(text, "  {}  weight {}  {}{mac}{server}", one.address, one.weight, one.state);
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
    account: ProgramAccount,
    vips: Vec<VipCount>,
}

pub fn stats(args: &Stats) -> Result<()> {
    let balancer = args.target.balancer()?;
    args.watch.show(args.target.json, || {
        // Packets that arrive between the two readings are counted at least in the total.
        let vips = balancer.by_vip()?;
        let document = StatsDocument { interface: balancer.site.label(), account: balancer.account()?, vips };
        if args.target.json { json::line(&document) } else { Ok(for_people(&document)) }
    })
}

fn for_people(document: &StatsDocument<'_>) -> String {
    let account = &document.account;
    let mut text = format!("{}  {} packets, {} bytes\n", document.interface, account.packets, account.bytes);
    for one in &account.outcomes {
        let _ = writeln!(text, "  {:>12}  {}", one.packets, one.text);
    }
    for vip in &document.vips {
        let _ = writeln!(text, "{}  {} packets, {} bytes", vip.vip, vip.seen.packets, vip.seen.bytes);
        for one in &vip.backends {
            let _ = writeln!(text, "  {:>12}  {}", one.forwarded.packets, one.address);
        }
        if vip.removed_backends.packets != 0 {
            let _ = writeln!(text, "  {:>12}  removed backends", vip.removed_backends.packets);
        }
        let not_forwarded = |name: &str| !name.starts_with("forwarded");
        for one in vip.outcomes.iter().filter(|one| not_forwarded(one.name)) {
            let _ = writeln!(text, "  {:>12}  {}", one.packets, one.text);
        }
    }
    text
}

#[derive(Debug, Serialize)]
struct HealthDocument<'a> {
    interface: &'a str,
    /// Number of changes in the table, with --apply.
    changed: usize,
    backends: Vec<HealthOfBackend>,
}

#[derive(Debug, Serialize)]
struct HealthOfBackend {
    vip: String,
    address: IpAddr,
    healthy: bool,
    #[serde(serialize_with = "rounded_option")]
    seconds: Option<f64>,
    /// The path of the SYN to the virtual address: `direct`, `ipip` or `gue`.
    path: &'static str,
    /// The port of the backend's own address that was checked as well.
    own_port: Option<u16>,
    /// `no_path`, `timed_out`, `refused`, `http_status` or `other`.
    failure: Option<&'static str>,
    http_status: Option<u16>,
}

fn name_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::TimedOut => "timed_out",
        Failure::NoPath { .. } => "no_path",
        Failure::Refused => "refused",
        Failure::Status(_) => "http_status",
        Failure::Other(_) => "other",
    }
}

fn describe(health: &Health, failure: &Failure) -> String {
    match failure {
        Failure::TimedOut => "no answer in time".to_owned(),
        Failure::NoPath { answers_itself: false } => format!("no answer {}", through(health.forward)),
        Failure::NoPath { answers_itself: true } => format!(
            "no answer {}, though its own address answers; check at the backend {}",
            through(health.forward),
            match health.forward {
                Forward::Direct => "that the virtual address is on its loopback",
                Forward::Ipip | Forward::Gue => "the tunnel device, rp_filter, and the virtual address on its loopback",
            }
        ),
        Failure::Refused => "connection refused".to_owned(),
        Failure::Status(Some(status)) => format!("HTTP status {status}"),
        Failure::Status(None) => "the answer is not HTTP".to_owned(),
        Failure::Other(why) => why.clone(),
    }
}

fn through(forward: Forward) -> String {
    match forward {
        Forward::Direct => "by its MAC address".to_owned(),
        Forward::Ipip | Forward::Gue => format!("through the {} tunnel", forward.name()),
    }
}

pub fn check(args: &Check) -> Result<ExitCode> {
    let is_path = |path: &String| path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    if args.http.as_ref().is_some_and(|path| !is_path(path)) {
        return Err(Error::usage(
            "cannot check by HTTP",
            "the path does not begin with / or has characters that a request cannot have",
        ));
    }
    let probe = Probe { http: args.http.clone(), port: args.port, timeout: args.timeout };
    loop {
        let balancer = args.target.balancer()?;
        let found = probe.ask_all(&balancer.site, &balancer.table()?)?;
        let label = balancer.site.label().to_owned();
        let changed = if args.apply { apply(balancer, &found)? } else { 0 };
        let text = if args.target.json {
            json::line(&health_document(&label, changed, &found))?
        } else {
            health_for_people(&found)
        };
        let is_read = write_to_reader(&terminal::printable(&text))?;
        if changed != 0 && !args.target.json {
            terminal::say(&format!("{label}: {} changed between up and down", count(changed as u64, "backend")));
        }
        match args.every {
            Some(pause) if is_read => std::thread::sleep(pause),
            _ => {
                let healthy = found.iter().all(|one| one.answered.is_ok());
                return Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
        }
    }
}

fn apply(balancer: Balancer, found: &[Health]) -> Result<usize> {
    let mut changed = 0;
    balancer.change(SessionCare::Without, |table| {
        for health in found {
            // The backend was removed during the check.
            let Ok(backend) = table.backend_mut(&health.service, health.backend) else {
                continue;
            };
            let down = health.answered.is_err();
            if backend.down != down {
                backend.down = down;
                changed += 1;
            }
        }
        Ok(())
    })?;
    Ok(changed)
}

fn health_document<'a>(interface: &'a str, changed: usize, found: &[Health]) -> HealthDocument<'a> {
    let one = |health: &Health| {
        let failure = health.answered.as_ref().err();
        HealthOfBackend {
            vip: health.service.to_string(),
            address: health.backend,
            healthy: failure.is_none(),
            path: health.forward.name(),
            own_port: health.own_port,
            seconds: health.answered.as_ref().ok().map(|took| took.as_secs_f64()),
            failure: failure.map(name_of),
            http_status: match failure {
                Some(Failure::Status(status)) => *status,
                _ => None,
            },
        }
    };
    HealthDocument { interface, changed, backends: found.iter().map(one).collect() }
}

fn health_for_people(found: &[Health]) -> String {
    let mut text = String::new();
    for health in found {
        let outcome = match &health.answered {
            Ok(took) => {
                let own = match health.own_port {
                    Some(port) => format!(", and its own port {port}"),
                    None => String::new(),
                };
                let (took, through) = (took.as_secs_f64() * 1000.0, through(health.forward));
                format!("healthy, {took:.1} ms, {through}{own}")
            }
            Err(failure) => format!("not healthy: {}", describe(health, failure)),
        };
        let _ = writeln!(text, "{}  {}  {outcome}", health.service, health.backend);
    }
    text
}
