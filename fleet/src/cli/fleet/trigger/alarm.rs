//! The reason for an incident in the body of a webhook: the alerts of Alertmanager that fire, or the first line.

use std::collections::BTreeMap;

use serde::Deserialize;
use trawl_view::text;

/// Maximum number of characters of a reason.
const LONGEST: usize = 200;
const FIRING: &str = "firing";

/// A notification of Alertmanager, also of Grafana, about a group of alerts.
#[derive(Deserialize)]
struct Notification {
    status: String,
    alerts: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    status: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Alert {
    fn text(&self) -> String {
        let name = self.labels.get("alertname").map_or("an alert", String::as_str);
        let summary = self.annotations.get("summary").or_else(|| self.annotations.get("description"));
        summary.map_or_else(|| name.to_owned(), |summary| format!("{name}: {summary}"))
    }
}

/// Returns the reason in a request's body; `None` if it reports that alerts are over.
pub fn reason(body: &[u8]) -> Option<String> {
    let Ok(Notification { status, alerts }) = serde_json::from_slice(body) else {
        return Some(line(&String::from_utf8_lossy(body)).unwrap_or_else(|| "a request".to_owned()));
    };
    if status != FIRING {
        return None;
    }
    let mut firing = alerts.iter().filter(|alert| alert.status == FIRING);
    let first = firing.next()?;
    let reason = line(&first.text()).unwrap_or_default();
    Some(match firing.count() {
        0 => reason,
        more => format!("{reason} (and {})", text::count(more as u64, "more alert")),
    })
}

/// Returns the first line, without characters that control the terminal; `None` if it is empty.
fn line(text: &str) -> Option<String> {
    let first = text.lines().next().unwrap_or_default();
    let plain = first.chars().filter(|letter| !text::controls_terminal(*letter));
    Some(plain.take(LONGEST).collect::<String>()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns a notification as Alertmanager 0.28 sends it.
    fn notification(status: &str, alerts: &[(&str, &str)]) -> Value {
        let alert = |(status, name): &(&str, &str)| {
            json!({
                "status": status, "labels": { "alertname": name, "instance": "web-1:9100" },
                "annotations": { "summary": "more than 1 % of requests fail\nsince 5 min" },
                "startsAt": "2026-01-31T14:30:00.000Z", "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus:9090/graph", "fingerprint": "0123456789abcdef",
            })
        };
        json!({
            "version": "4", "groupKey": "{}:{alertname=\"Errors\"}", "truncatedAlerts": 0, "status": status,
            "receiver": "trawl", "groupLabels": { "alertname": "Errors" }, "commonLabels": {}, "commonAnnotations": {},
            "externalURL": "http://alertmanager:9093", "alerts": alerts.iter().map(alert).collect::<Vec<_>>(),
        })
    }

    #[test]
    fn only_alerts_that_fire_are_reasons() {
        let of = |status, alerts: &[_]| reason(notification(status, alerts).to_string().as_bytes());
        assert_eq!(of("resolved", &[("resolved", "Errors")]), None);
        assert_eq!(of("firing", &[("firing", "Errors")]).as_deref(), Some("Errors: more than 1 % of requests fail"));
        let several = [("resolved", "Old"), ("firing", "Errors"), ("firing", "Errors"), ("firing", "Latency")];
        let expected = "Errors: more than 1 % of requests fail (and 2 more alerts)";
        assert_eq!(of("firing", &several).as_deref(), Some(expected));
    }

    #[test]
    fn other_bodies_are_reasons_by_their_first_line() {
        for (body, expected) in [
            ("HTTP 500\nmore", "HTTP 500"),
            ("", "a request"),
            ("\x1b[2Jred", "[2Jred"),
            ("{\"status\": \"resolved\"}", "{\"status\": \"resolved\"}"),
        ] {
            assert_eq!(reason(body.as_bytes()).as_deref(), Some(expected));
        }
    }
}
