//! Compares what `trawl doctor` says about the machine with the features' outcomes.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cell::Cell;
use crate::check;
use crate::outcome::{Outcome, Result};
use crate::running::Running;

/// A finding of doctor, and the features that work if and only if its state is `ok`.
struct Claim {
    area: Area,
    subject: &'static str,
    features: &'static [&'static str],
}

enum Area {
    Kernel,
    Interface,
}

const CLAIMS: &[Claim] = &[
    claim(Area::Kernel, "fexit", &["tap-fexit"]),
    claim(Area::Kernel, "AF_PACKET TPACKET_V3", &["tap-packet"]),
    claim(Area::Kernel, "process", &["process"]),
    claim(Area::Interface, "XDP sending", &["gen-live"]),
    claim(Area::Interface, "tap xdp", &["tap-xdp"]),
    claim(
        Area::Interface,
        "tap tc",
        &["tap-tc", "tap-tc-beside-skb-xdp", "vlan-tc"],
    ),
    claim(
        Area::Interface,
        "tap packet",
        &["tap-packet", "vlan-packet"],
    ),
];

const fn claim(area: Area, subject: &'static str, features: &'static [&'static str]) -> Claim {
    Claim {
        area,
        subject,
        features,
    }
}

/// Fails if doctor praises what does not work, or warns of what does.
pub fn judge(cell: &Cell, outcomes: &BTreeMap<&'static str, Outcome>) -> Result<String> {
    let near = &cell.near().interface;
    let mut doctor = Running::start(cell, &["doctor", "-i", near, "--json"]);
    let ended = doctor.end()?;
    let report = crate::running::parse(&ended.stdout)?;
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let mut wrong = Vec::new();
    for claim in CLAIMS {
        let area = match claim.area {
            Area::Kernel => "kernel",
            Area::Interface => near,
        };
        let is_meant = |one: &&Value| one["area"] == area && one["subject"] == claim.subject;
        let Some(finding) = findings.iter().find(is_meant) else {
            wrong.push(format!("says nothing of {}", claim.subject));
            continue;
        };
        let is_ok = finding["state"] == "ok";
        for feature in claim.features {
            let Some(outcome) = outcomes.get(feature) else {
                continue;
            };
            if outcome.works() != is_ok {
                let text = finding["text"].as_str().unwrap_or_default();
                let state = finding["state"].as_str().unwrap_or_default();
                wrong.push(format!(
                    "says of {}: {state}, {text}; but {feature}: {outcome}",
                    claim.subject
                ));
            }
        }
    }
    wrong.extend(wrong_mode(&findings, near, outcomes));
    wrong.extend(wrong_ability(&findings, near, outcomes));
    wrong.extend(silent_loss(&findings, near, outcomes));
    check!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(format!("{} findings", findings.len()))
}

/// Compares the mode that doctor names for the xdp tap with the one of the capture.
fn wrong_mode(
    findings: &[Value],
    near: &str,
    outcomes: &BTreeMap<&'static str, Outcome>,
) -> Option<String> {
    let Some(Outcome::Works(mode)) = outcomes.get("tap-xdp") else {
        return None;
    };
    let finding = findings
        .iter()
        .find(|one| one["area"] == near && one["subject"] == "tap xdp")?;
    let text = finding["text"].as_str()?;
    let is_native = text.contains("native");
    (is_native != (mode == "native"))
        .then(|| format!("says of tap xdp: {text}; but its mode is {mode}"))
}

/// Returns a complaint if attaching or detaching a program loses frames, and doctor does not say that the card is reset.
fn silent_loss(
    findings: &[Value],
    near: &str,
    outcomes: &BTreeMap<&'static str, Outcome>,
) -> Option<String> {
    // Fewer are lost by a busy machine.
    const MANY: u64 = 50;
    let Some(Outcome::Works(text)) = outcomes.get("attach") else {
        return None;
    };
    let counts = text.split_once("/s: ")?.1.split(", ");
    let lost: u64 = counts
        .filter_map(|one| one.split(' ').next()?.parse::<u64>().ok())
        .sum();
    let about = findings
        .iter()
        .find(|one| one["area"] == near && one["subject"] == "XDP attach");
    let warns = about.is_some_and(|one| !one["why"].is_null());
    (lost > MANY && !warns)
        .then(|| format!("does not say that attaching loses frames; but attach: {text}"))
}

/// Compares the abilities that doctor lists of the driver with the features that need them.
fn wrong_ability(
    findings: &[Value],
    near: &str,
    outcomes: &BTreeMap<&'static str, Outcome>,
) -> Vec<String> {
    let native = findings
        .iter()
        .find(|one| one["area"] == near && one["subject"] == "native XDP");
    let text = native
        .and_then(|one| one["text"].as_str())
        .unwrap_or_default();
    let wrong = |(ability, feature): (&str, &'static str)| {
        let outcome = outcomes.get(feature)?;
        let is_listed = text.split(", ").any(|one| one == ability);
        (is_listed && !outcome.works())
            .then(|| format!("lists {ability}; but {feature}: {outcome}"))
    };
    let copies =
        matches!(outcomes.get("gen-xsk"), Some(Outcome::Works(how)) if how != "without copying");
    if copies && text.contains("AF_XDP without copying") {
        return vec!["lists AF_XDP without copying; but gen-xsk copies".to_owned()];
    }
    [
        ("redirect", "load-redirect"),
        ("hardware time stamps", "time-hw"),
        ("jumbo frames in several buffers", "jumbo"),
    ]
    .into_iter()
    .filter_map(wrong)
    .collect()
}
