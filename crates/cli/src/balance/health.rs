//! `trawl balance check`: the health of the backends.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use serde::Serialize;
use trawl_balance::Balancer;
use trawl_balance::check::{Failure, Health, Probe};
use trawl_balance::table::Forward;
use trawl_program::safety::Care;
use trawl_sys::{Error, Result};

use super::Check;
use crate::json::{self, rounded_option};
use crate::terminal::{self, write_to_reader};

#[derive(Debug, Serialize)]
struct Document<'a> {
    interface: &'a str,
    /// What changed in the table, with --apply.
    changed: usize,
    backends: Vec<BackendDocument>,
}

#[derive(Debug, Serialize)]
struct BackendDocument {
    vip: String,
    address: IpAddr,
    healthy: bool,
    #[serde(serialize_with = "rounded_option")]
    seconds: Option<f64>,
    /// The path of the SYN to the virtual address: `direct`, `ipip` or `gue`.
    path: &'static str,
    /// The port of the backend's own address that was asked besides.
    own_port: Option<u16>,
    /// `no_path`, `timed_out`, `refused`, `http_status` or `other`.
    failure: Option<&'static str>,
    http_status: Option<u16>,
}

fn name(failure: &Failure) -> &'static str {
    match failure {
        Failure::TimedOut => "timed_out",
        Failure::NoPath { .. } => "no_path",
        Failure::Refused => "refused",
        Failure::Status(_) => "http_status",
        Failure::Other(_) => "other",
    }
}

fn words(health: &Health, failure: &Failure) -> String {
    match failure {
        Failure::TimedOut => "no answer in time".to_owned(),
        Failure::NoPath {
            answers_itself: false,
        } => format!("no answer {}", through(health.forward)),
        Failure::NoPath {
            answers_itself: true,
        } => format!(
            "no answer {}, though its own address answers; check at the backend {}",
            through(health.forward),
            match health.forward {
                Forward::Direct => "that the virtual address is on its loopback",
                Forward::Ipip | Forward::Gue =>
                    "the tunnel device, rp_filter, and the virtual address on its loopback",
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
    let is_path =
        |path: &String| path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
    if args.http.as_ref().is_some_and(|path| !is_path(path)) {
        return Err(Error::usage(
            "cannot ask by HTTP",
            "the path does not begin with / or has characters that a request cannot have",
        ));
    }
    let probe = Probe {
        http: args.http.clone(),
        port: args.port,
        timeout: args.timeout,
    };
    loop {
        let balancer = args.place.balancer()?;
        let found = probe.ask_all(&balancer.site, &balancer.table()?)?;
        let label = balancer.site.label().to_owned();
        let changed = if args.apply {
            apply(balancer, &found)?
        } else {
            0
        };
        let text = match args.place.json {
            true => json::line(&document(&label, changed, &found))?,
            false => for_people(&found),
        };
        let is_read = write_to_reader(&terminal::printable(&text))?;
        if changed != 0 && !args.place.json {
            terminal::say(&format!(
                "{label}: {changed} backends changed between up and down"
            ));
        }
        match args.every {
            Some(pause) if is_read => std::thread::sleep(pause),
            _ => {
                let healthy = found.iter().all(|one| one.answered.is_ok());
                return Ok(if healthy {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                });
            }
        }
    }
}

fn apply(balancer: Balancer, found: &[Health]) -> Result<usize> {
    let mut changed = 0;
    balancer.change(Care::Without, |table| {
        for health in found {
            // Removed while it was asked.
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

fn document<'a>(interface: &'a str, changed: usize, found: &[Health]) -> Document<'a> {
    let one = |health: &Health| {
        let failure = health.answered.as_ref().err();
        BackendDocument {
            vip: health.service.to_string(),
            address: health.backend,
            healthy: failure.is_none(),
            path: health.forward.name(),
            own_port: health.own_port,
            seconds: health.answered.as_ref().ok().map(|took| took.as_secs_f64()),
            failure: failure.map(name),
            http_status: match failure {
                Some(Failure::Status(status)) => *status,
                _ => None,
            },
        }
    };
    Document {
        interface,
        changed,
        backends: found.iter().map(one).collect(),
    }
}

fn for_people(found: &[Health]) -> String {
    let mut text = String::new();
    for health in found {
        let said = match &health.answered {
            Ok(took) => {
                let own = match health.own_port {
                    Some(port) => format!(", and its own port {port}"),
                    None => String::new(),
                };
                let (took, through) = (took.as_secs_f64() * 1000.0, through(health.forward));
                format!("healthy, {took:.1} ms, {through}{own}")
            }
            Err(failure) => format!("not healthy: {}", words(health, failure)),
        };
        let _ = writeln!(text, "{}  {}  {said}", health.service, health.backend);
    }
    text
}
