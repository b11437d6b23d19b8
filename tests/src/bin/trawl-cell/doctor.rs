//! Compares the findings of `trawl doctor` and `trawl taps` about the machine with the features' outcomes.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cell::Cell;
use crate::check;
use crate::outcome::{Outcome, Result};
use crate::running::json;

/// Findings of doctor, and the features that work if and only if all these are `ok`.
struct Claim {
    subjects: &'static [Subject],
    features: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Subject {
    Kernel(&'static str),
    Interface(&'static str),
}

use Subject::{Interface, Kernel};

const CLAIMS: &[Claim] = &[
    claim(&[Kernel("fexit"), Kernel("kernel memory")], &["tap-fexit"]),
    claim(&[Kernel("drop reasons"), Kernel("kernel memory")], &["tap-drop", "why", "follow"]),
    claim(&[Kernel("bpf_loop")], &["guard"]),
    claim(&[Kernel("AF_PACKET TPACKET_V3")], &["tap-packet"]),
    claim(&[Kernel("AF_XDP sockets")], &["gen-xsk"]),
    claim(&[Kernel("process")], &["process"]),
    claim(&[Kernel("live XDP frames"), Interface("XDP sending")], &["gen-live"]),
    claim(&[Interface("tap xdp")], &["tap-xdp"]),
    claim(&[Interface("tap tc")], &["tap-tc", "tap-tc-beside-skb-xdp", "vlan-tc"]),
    claim(&[Interface("tap packet")], &["tap-packet", "vlan-packet"]),
];

const fn claim(subjects: &'static [Subject], features: &'static [&'static str]) -> Claim {
    Claim { subjects, features }
}

/// Taps in the list of `trawl taps`, with the variant, and the feature that works if and only if the tap is available.
const TAPS: &[(&str, Option<&str>, &str)] = &[
    ("xdp", Some("own_program"), "tap-xdp"),
    ("xdp", Some("attached_program"), "tap-fexit"),
    ("tailcall", None, "tap-tailcall"),
    ("tc", None, "tap-tc"),
    ("packet", None, "tap-packet"),
    ("pcap", None, "tap-pcap"),
    ("drop", None, "tap-drop"),
];

/// Fails if doctor or taps reports as working a feature that does not work, or warns of one that works.
pub fn judge(cell: &Cell, outcomes: &BTreeMap<&'static str, Outcome>) -> Result<String> {
    let near = &cell.near().interface;
    let report = json(cell, &["doctor", "-i", near, "--json"])?;
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let mut wrong: Vec<String> =
        CLAIMS.iter().flat_map(|claim| wrong_claim(claim, &findings, near, outcomes)).collect();
    wrong.extend(wrong_mode(&findings, near, outcomes));
    wrong.extend(wrong_ability(&findings, near, outcomes));
    wrong.extend(silent_loss(&findings, near, outcomes));
    wrong.extend(wrong_taps(&json(cell, &["taps", "--json"])?, outcomes));
    check!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(format!("{} findings", findings.len()))
}

/// Compares one claim with the outcomes of its features.
fn wrong_claim(
    claim: &Claim,
    findings: &[Value],
    near: &str,
    outcomes: &BTreeMap<&'static str, Outcome>,
) -> Vec<String> {
    let mut is_ok = true;
    let mut texts = Vec::new();
    for subject in claim.subjects {
        let (area, subject) = match *subject {
            Kernel(subject) => ("kernel", subject),
            Interface(subject) => (near, subject),
        };
        let is_meant = |one: &&Value| one["area"] == area && one["subject"] == subject;
        let Some(finding) = findings.iter().find(is_meant) else {
            return vec![format!("says nothing of {subject}")];
        };
        // Doctor reports `info` if it cannot find out whether something works.
        if finding["state"] == "info" {
            return Vec::new();
        }
        is_ok &= finding["state"] == "ok";
        let text = finding["text"].as_str().unwrap_or_default();
        let state = finding["state"].as_str().unwrap_or_default();
        texts.push(format!("says of {subject}: {state}, {text}"));
    }
    let features = claim.features.iter();
    let outcomes = features.filter_map(|feature| Some((feature, outcomes.get(feature)?)));
    outcomes
        .filter(|(_, outcome)| outcome.works() != is_ok)
        .map(|(feature, outcome)| format!("{}; but {feature}: {outcome}", texts.join(", ")))
        .collect()
}

/// Compares the availability of each tap, as listed by `trawl taps --json`, with its outcome.
fn wrong_taps(report: &Value, outcomes: &BTreeMap<&'static str, Outcome>) -> Vec<String> {
    let taps = report["taps"].as_array().cloned().unwrap_or_default();
    let wrong = |(name, variant, feature): &(&str, Option<&str>, &str)| {
        let outcome = outcomes.get(feature)?;
        let is_meant = |tap: &&Value| tap["name"] == *name && tap["variant"].as_str() == *variant;
        let Some(tap) = taps.iter().find(is_meant) else {
            return Some(format!("taps does not list {name}"));
        };
        (tap["available"] != outcome.works()).then(|| {
            let available = &tap["available"];
            format!("taps says of {name}: available {available}; but {feature}: {outcome}")
        })
    };
    TAPS.iter().filter_map(wrong).collect()
}

/// Compares the mode that doctor names for the xdp tap with the one of the capture.
fn wrong_mode(findings: &[Value], near: &str, outcomes: &BTreeMap<&'static str, Outcome>) -> Option<String> {
    let Some(Outcome::Works(mode)) = outcomes.get("tap-xdp") else {
        return None;
    };
    let finding = findings.iter().find(|one| one["area"] == near && one["subject"] == "tap xdp")?;
    let text = finding["text"].as_str()?;
    let is_native = text.contains("native");
    (is_native != (mode == "native")).then(|| format!("says of tap xdp: {text}; but its mode is {mode}"))
}

/// Returns a complaint if attaching or detaching a program loses frames, and doctor does not say that the card is
/// reset.
fn silent_loss(findings: &[Value], near: &str, outcomes: &BTreeMap<&'static str, Outcome>) -> Option<String> {
    // A busy machine may lose a few frames for other reasons.
    const MANY: u64 = 50;
    let Some(Outcome::Works(text)) = outcomes.get("attach") else {
        return None;
    };
    let counts = text.split_once("/s: ")?.1.split(", ");
    let lost: u64 = counts.filter_map(|one| one.split(' ').next()?.parse::<u64>().ok()).sum();
    let about = findings.iter().find(|one| one["area"] == near && one["subject"] == "XDP attach");
    let warns = about.is_some_and(|one| !one["why"].is_null());
    (lost > MANY && !warns).then(|| format!("does not say that attaching loses frames; but attach: {text}"))
}

/// Compares the abilities that doctor lists of the driver with the features that need them.
fn wrong_ability(findings: &[Value], near: &str, outcomes: &BTreeMap<&'static str, Outcome>) -> Vec<String> {
    let native = findings.iter().find(|one| one["area"] == near && one["subject"] == "native XDP");
    let text = native.and_then(|one| one["text"].as_str()).unwrap_or_default();
    let wrong = |(ability, feature): (&str, &'static str)| {
        let outcome = outcomes.get(feature)?;
        let is_listed = text.split(", ").any(|one| one == ability);
        (is_listed && !outcome.works()).then(|| format!("lists {ability}; but {feature}: {outcome}"))
    };
    let copies = matches!(outcomes.get("gen-xsk"), Some(Outcome::Works(how)) if how != "without copying");
    if copies && text.contains("AF_XDP without copying") {
        return vec!["lists AF_XDP without copying; but gen-xsk copies".to_owned()];
    }
    [("redirect", "load-redirect"), ("hardware time stamps", "time-hw"), ("jumbo frames in several buffers", "jumbo")]
        .into_iter()
        .filter_map(wrong)
        .collect()
}
