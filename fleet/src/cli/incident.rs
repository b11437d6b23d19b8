//! An incident as `trawl store query --incident` shows it: the account of each host, and the course of events.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::json;
use trawl_front::{json, terminal};
use trawl_sys::{Result, clock};
use trawl_view::text;

use super::query::StoreArgs;
use crate::query::Answer;
use trawl_store::search::condition::Conditions;
use trawl_store::search::question::Form;
use trawl_store::{File, Incident, Part};

/// A host's packets of the window, as the index has them.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Seen {
    host: String,
    packets: u64,
    drops: u64,
    resets: u64,
    retransmissions: u64,
    first: Option<u64>,
    last: Option<u64>,
    first_drop: Option<u64>,
    first_reset: Option<u64>,
}

/// Something that happened on a host, or the end of the window.
#[derive(Debug, Serialize)]
struct Moment<'a> {
    time_ns: u64,
    /// Largest error of the clock; absent: unknown.
    error_bound_ns: Option<u64>,
    host: Option<&'a str>,
    event: &'static str,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    part: &'a Part,
    seen: &'a Seen,
}

#[derive(Serialize)]
struct Document<'a> {
    incident: &'a str,
    why: &'a str,
    from_ns: u64,
    to_ns: u64,
    hosts: &'a [Row<'a>],
    timeline: &'a [Moment<'a>],
}

/// Reports the hosts whose packets of the incident are incomplete.
pub fn say_missing(incident: &Incident) {
    for part in incident.parts().iter().filter(|part| !part.is_whole()) {
        let text = format!("host {}: {}", part.host, describe_missing(part));
        json::say("incident_incomplete", json!(part), &text);
    }
    for (key, why) in &incident.unreadable {
        let text = format!("{key} is not used: {why}");
        json::say("record_not_used", json!({ "key": key }), &text);
    }
}

fn describe_missing(part: &Part) -> String {
    if !part.stored {
        return "nothing of it is in the store".to_owned();
    }
    let mut remarks = Vec::new();
    if part.lost > 0 {
        remarks.push(format!("{} lost", text::count(part.lost, "packet")));
    }
    if let Some(since) = part.since_ns {
        let since = terminal::date_and_time(since);
        remarks.push(format!("no packets before {since}"));
    }
    if let Some(until) = part.until_ns {
        let until = terminal::date_and_time(until);
        remarks.push(format!("no packets after {until}"));
    }
    remarks.join(", ")
}

/// Shows the account and the timeline.
pub fn show(
    id: &str,
    incident: &Incident,
    store: &StoreArgs,
    files: Vec<File>,
    conditions: &Conditions,
    as_json: bool,
) -> Result<()> {
    let sql = "SELECT host, count(*) AS packets, count(reason) AS drops, count(*) FILTER (WHERE reset) AS resets, \
         count(*) FILTER (WHERE retransmission) AS retransmissions, min(time_ns) AS first, max(time_ns) AS last, \
         min(time_ns) FILTER (WHERE reason IS NOT NULL) AS first_drop, min(time_ns) FILTER (WHERE reset) AS first_reset \
         FROM packets GROUP BY host";
    let answer = Answer::to(&store.question(files, conditions, sql, Form::Lines))?;
    let seen = answer.rows::<Seen>().collect::<std::io::Result<Vec<Seen>>>();
    let seen = seen.map_err(|e| trawl_sys::Error::failed("cannot read the answer", e))?;
    let parts = incident.parts();
    let none = Seen::default();
    let of_host = |part: &Part| seen.iter().find(|seen| seen.host == part.host);
    let rows: Vec<Row<'_>> = parts.iter().map(|part| Row { part, seen: of_host(part).unwrap_or(&none) }).collect();
    let (from_ns, to_ns) = incident.window();
    let timeline = timeline(&rows, to_ns);
    let document = Document { incident: id, why: incident.why(), from_ns, to_ns, hosts: &rows, timeline: &timeline };
    json::print_as(as_json, &document, || lines(&document))
}

fn timeline<'a>(rows: &[Row<'a>], to_ns: u64) -> Vec<Moment<'a>> {
    let mut all = vec![Moment { time_ns: to_ns, error_bound_ns: None, host: None, event: "end of the window" }];
    for Row { part, seen } in rows {
        let moments = [
            (part.since_ns, "oldest packet kept"),
            (part.until_ns, "capture ended"),
            (seen.first, "first packet"),
            (seen.first_drop, "first drop"),
            (seen.first_reset, "first reset"),
            (seen.last, "last packet"),
            (part.frozen_ns, "frozen"),
        ];
        let moments = moments.into_iter().filter_map(|(time, event)| {
            Some(Moment { time_ns: time?, error_bound_ns: part.clock_error_bound_ns, host: Some(&part.host), event })
        });
        all.extend(moments);
    }
    all.sort_by_key(|moment| moment.time_ns);
    all
}

fn lines(document: &Document<'_>) -> String {
    let mut out = format!("incident {}", document.incident);
    if !document.why.is_empty() {
        let _ = write!(out, ": {}", document.why);
    }
    let (from, to) = (document.from_ns, document.to_ns);
    let (from, to) = (terminal::date_and_time(from), terminal::date_and_time(to));
    let _ = writeln!(out, "\n{from} to {to}\n");
    let names = document.hosts.iter().map(|row| row.part.host.chars().count());
    let width = names.max().unwrap_or(0).max("HOST".len());
    let _ = writeln!(
        out,
        "{:<width$}  {:>10}  {:>8}  {:>8}  {:>8}  {:>8}",
        "HOST", "PACKETS", "DROPS", "RESETS", "RESENT", "LOST"
    );
    for Row { part, seen } in document.hosts {
        let _ = writeln!(
            out,
            "{:<width$}  {:>10}  {:>8}  {:>8}  {:>8}  {:>8}",
            part.host, seen.packets, seen.drops, seen.resets, seen.retransmissions, part.lost
        );
        let missing = describe_missing(part);
        if !missing.is_empty() {
            let _ = writeln!(out, "  {missing}");
        }
    }
    out.push('\n');
    for moment in document.timeline {
        let time = clock::strftime_at("%H:%M:%S", moment.time_ns);
        let below = moment.time_ns % 1_000_000_000 / 1000;
        let bound = match (moment.host, moment.error_bound_ns) {
            (None, _) => String::new(),
            (Some(_), Some(bound)) => format!("+-{:.3} ms", bound as f64 / 1e6),
            (Some(_), None) => "+-?".to_owned(),
        };
        let host = moment.host.unwrap_or("-");
        let _ = writeln!(out, "{time}.{below:06}  {bound:>13}  {host:<width$}  {}", moment.event);
    }
    out
}
