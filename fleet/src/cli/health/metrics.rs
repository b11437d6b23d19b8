//! The agent's figures in Prometheus' text format.

use std::collections::BTreeMap;

use trawl_front::prometheus::{Metric, Values, page, single};
use trawl_spool::figures::{Chunks, Figures};

use super::Facts;
use crate::agent::{CaptureReport, HostReport, IncidentPhase, Phase};

const NANOSECONDS: f64 = 1e9;

/// Returns the figures at a time, in nanoseconds since 1970.
pub fn text(facts: &Facts, now_ns: u64) -> String {
    let spool = &facts.spool;
    page(own(facts).into_iter().chain(captures(&facts.report)).chain(stores(spool, now_ns)))
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

fn own(facts: &Facts) -> Vec<Metric> {
    let report = &facts.report;
    let incidents = [
        ("freezing", IncidentPhase::Freezing),
        ("frozen", IncidentPhase::Frozen),
        ("stored", IncidentPhase::Stored),
        ("failed", IncidentPhase::Failed),
    ];
    let incidents = incidents.map(|(name, phase)| {
        let count = report.incidents.iter().filter(|one| one.phase == phase).count();
        (vec![("phase", name.to_owned())], count as f64)
    });
    vec![
        (
            "agent_bus_connected",
            "1 while the agent has a connection to its NATS server.",
            facts.is_connected.map(|is_connected| single(flag(is_connected))).unwrap_or_default(),
        ),
        (
            "agent_state_refused",
            "1 if the agent cannot follow the latest desired state.",
            single(flag(report.error.is_some())),
        ),
        ("agent_desired_revision", "Revision of the desired state.", single(report.revision as f64)),
        ("agent_desired_captures", "Captures that should run or be finished.", single(report.captures.len() as f64)),
        ("agent_incidents", "Incidents of the desired state, by phase.", incidents.into()),
    ]
}

fn captures(report: &HostReport) -> Vec<Metric> {
    let name = |one: &CaptureReport| ("capture", one.capture.name.clone());
    let values = |value: fn(&CaptureReport) -> f64| -> Values {
        report.captures.iter().map(|one| (vec![name(one)], value(one))).collect()
    };
    let lost = report.captures.iter().flat_map(|one| {
        let reasons = one.account.lost.iter();
        reasons.map(move |(reason, count)| (vec![name(one), ("reason", reason.clone())], *count as f64))
    });
    let as_desired = |one: &CaptureReport| flag(matches!(one.phase, Phase::Running | Phase::Finished));
    vec![
        ("agent_capture_as_desired", "1 if a desired capture runs or is finished.", values(as_desired)),
        ("agent_capture_starts_total", "Starts of a desired capture.", values(|one| one.starts as f64)),
        ("agent_capture_seen_total", "Packets that a capture saw.", values(|one| one.account.seen as f64)),
        ("agent_capture_recorded_total", "Packets that a capture recorded.", values(|one| one.account.recorded as f64)),
        ("agent_capture_lost_total", "Packets that a capture lost, by reason.", lost.collect()),
    ]
}

/// Returns the figures of the spool; zeros for captures without chunks, so that alerts see their ends.
fn stores(spool: &BTreeMap<String, Figures>, now_ns: u64) -> Vec<Metric> {
    let name = |capture: &String| vec![("capture", capture.clone())];
    let values =
        |value: &dyn Fn(&Figures) -> f64| spool.iter().map(|(capture, one)| (name(capture), value(one))).collect();
    let age =
        |chunks: &Chunks| chunks.oldest_ns.map_or(0.0, |oldest| now_ns.saturating_sub(oldest) as f64 / NANOSECONDS);
    let last =
        spool.iter().filter_map(|(capture, one)| Some((name(capture), one.uploads.last_ns? as f64 / NANOSECONDS)));
    vec![
        ("agent_waiting_chunks", "Chunks that the store does not have yet.", values(&|one| one.waiting.count as f64)),
        ("agent_waiting_bytes", "Their size.", values(&|one| one.waiting.bytes as f64)),
        (
            "agent_waiting_seconds",
            "Age of the oldest chunk that the store does not have.",
            values(&|one| age(&one.waiting)),
        ),
        ("agent_kept_bytes", "Size of the packets that stay on the host.", values(&|one| one.near.bytes as f64)),
        ("agent_kept_seconds", "Time that the packets on the host reach back.", values(&|one| age(&one.near))),
        ("agent_stored_chunks_total", "Chunks that the store has got.", values(&|one| one.uploads.stored as f64)),
        (
            "agent_failed_uploads_total",
            "Attempts to store chunks that failed.",
            values(&|one| one.uploads.failed as f64),
        ),
        ("agent_last_upload_timestamp_seconds", "Time at which the store got a chunk.", last.collect()),
    ]
}
